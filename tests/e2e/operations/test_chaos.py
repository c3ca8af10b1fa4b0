"""A minute of perf/chaos: clients of all kinds, a storm of reloads, and clients that reset, stall or are killed, at once."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import server as servers
from case import conch_only, needs_library

CHAOS = pathlib.Path(__file__).resolve().parents[3] / "perf/chaos"
MINUTES = float(os.environ.get("CONCH_TEST_CHAOS_MINUTES", "1"))


@conch_only
@needs_library("repeat")
class Chaos(unittest.TestCase):
    def run_chaos(self, *arguments):
        environment = {**os.environ, "CONCH_PROFILE": servers.PROFILE}
        done = subprocess.run([sys.executable, str(CHAOS), *arguments], capture_output=True, text=True, timeout=MINUTES * 60 + 400, check=False, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
        verdict = done.stdout.splitlines()[-1]
        found = re.fullmatch(r"chaos: PASS under .*: (\d+) answers, 0 wrong, 0 lost, 0 doubled, \d+ refused, (\d+) clients cut off, (\d+) loads, 0 other faults", verdict)
        self.assertTrue(found, verdict)
        for count in map(int, found.groups()):
            self.assertGreater(count, 0, verdict)

    def test_a_minute(self):
        self.run_chaos(f"--minutes={MINUTES}")

    def test_where_something_is_short(self):
        kinds = ["address-space", "descriptors", "stopped-log", *(["full-disk"] if os.geteuid() == 0 else [])]
        for kind in kinds:
            with self.subTest(kind):
                self.run_chaos(f"--minutes={MINUTES / 5}", f"--under={kind}")

    def test_it_fails_when_something_is_wrong(self):
        """A server that refuses what it should serve is found out."""
        done = subprocess.run([sys.executable, str(CHAOS), "--minutes=0.2", "--flag=--server-requests-max=1"], capture_output=True, text=True, timeout=400, check=False,
                              env={**os.environ, "CONCH_PROFILE": servers.PROFILE})
        self.assertEqual(done.returncode, 1, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("chaos: FAIL", done.stdout.splitlines()[-1])
