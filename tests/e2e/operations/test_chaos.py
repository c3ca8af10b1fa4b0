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
CHAOS_PYTHON = CHAOS.with_name("chaos-python")
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
        done = subprocess.run([sys.executable, str(CHAOS), "--minutes=0.2", "--flag=--server-requests-max=1", "--flag=--limit-wait-ms=0"], capture_output=True, text=True, timeout=400, check=False,
                              env={**os.environ, "CONCH_PROFILE": servers.PROFILE})
        self.assertEqual(done.returncode, 1, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("chaos: FAIL", done.stdout.splitlines()[-1])


@conch_only
@needs_library("python")
class ChaosPython(unittest.TestCase):
    """A short run of perf/chaos-python: models in Python whose processes are killed, and that are reloaded."""

    def run_chaos(self, *arguments):
        return subprocess.run([sys.executable, str(CHAOS_PYTHON), *arguments], capture_output=True, text=True, timeout=900, check=False,
                              env={**os.environ, "CONCH_PROFILE": servers.PROFILE})

    def test_a_short_run(self):
        done = self.run_chaos("--requests=3000", "--kills=10", "--reloads=6")
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
        verdict = done.stdout.splitlines()[-1]
        found = re.fullmatch(r"chaos-python: PASS, seed \d+, \d+ s: (\d+) requests, 0 wrong, \d+ failed by (\d+) kills, \d+ refused in (\d+) reloads, 0 other faults", verdict)
        self.assertTrue(found, verdict)
        for count, least in zip(map(int, found.groups()), (3000, 10, 6)):
            self.assertGreaterEqual(count, least, verdict)

    def test_it_fails_when_something_is_wrong(self):
        """A server that refuses what it should serve is found out."""
        done = self.run_chaos("--requests=300", "--kills=3", "--reloads=2", "--flag=--server-requests-max=1", "--flag=--limit-wait-ms=0")
        self.assertEqual(done.returncode, 1, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("chaos-python: FAIL", done.stdout.splitlines()[-1])
