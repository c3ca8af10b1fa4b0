"""Some seconds of perf/soak: clients of all kinds at a steady pace, models loaded anew, windows of `load`; and that it finds what is wrong."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import server as servers
from case import conch_only, needs_library

SOAK = servers.ROOT / "perf/soak"
SVG = "{http://www.w3.org/2000/svg}"
# Short, and judged by what can be counted: the pools of a build with assertions grow for longer than this.
SHORT = ("--minutes=0.1", "--warm-up-seconds=2", "--reload-seconds=1", "--ignore-latency", "--memory-mb=256")


@conch_only
@needs_library("repeat")
@unittest.skipUnless(servers.built("load").exists(), "the load generator is not built")
class Soak(unittest.TestCase):
    def soak(self, *arguments):
        return subprocess.run([sys.executable, str(SOAK), *SHORT, *arguments], capture_output=True, text=True, timeout=400, check=False,
                              env={**os.environ, "CONCH_PROFILE": servers.PROFILE})

    def test_some_seconds(self):
        with tempfile.TemporaryDirectory(prefix="conch-soak-") as directory:
            place = pathlib.Path(directory)
            done = self.soak(f"--svg={place / 'soak.svg'}", f"--json={place / 'soak.json'}")
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
            drawing = xml.etree.ElementTree.parse(place / "soak.svg").getroot()
            told = json.loads((place / "soak.json").read_text())
        verdict = done.stdout.splitlines()[-1]
        found = re.fullmatch(r"soak: PASS, 0.1 min, seed \d+: (\d+) checked, 0 wrong, 0 lost, 0 doubled, (\d+) reloads, (\d+) clients cut off,"
                             r" largest ratio of p50 [\d.]+, of p99 [\d.]+, memory .* under load, .* at rest, 0 other faults", verdict)
        self.assertTrue(found, verdict)
        for count in map(int, found.groups()):
            self.assertGreater(count, 0, verdict)
        # Eight cases and the bare server.
        self.assertEqual(len(told["windows"]), 9)
        for name, windows in told["windows"].items():
            self.assertGreater(sum(row["requests"] for _, row in windows), 0, name)
        curves = [curve.find(f"{SVG}title").text for curve in drawing.iter(f"{SVG}polyline") if curve.get("points")]
        self.assertEqual(curves, [*told["windows"], "resident memory"])

    def test_it_fails_when_something_is_wrong(self):
        """A server that refuses what it should serve is found out."""
        done = self.soak("--minutes=0.05", "--flag=--server-requests-max=1", "--flag=--limit-wait-ms=0")
        self.assertEqual(done.returncode, 1, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("soak: FAIL", done.stdout.splitlines()[-1])

    def test_it_fails_when_memory_grows(self):
        done = self.soak("--minutes=0.05", "--memory-mb=-1000")
        self.assertEqual(done.returncode, 1, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertRegex(done.stdout, r"fault: memory under load: .*MB")


if __name__ == "__main__":
    unittest.main()
