"""Some seconds of perf/soak: clients of all kinds at a steady pace, models loaded anew, windows of `load`; and that it finds what is wrong."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
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
                             r" largest ratio of p50 [\d.]+, of p99 [\d.]+, of p99 together [\d.]+, memory .* under load, .* at rest, 0 other faults", verdict)
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


@conch_only
class Judged(unittest.TestCase):
    """Latencies of sixty windows, a second each: what is slower at the end than chance explains."""

    def faults(self, **factors):
        """Of cases whose windows have latencies between 80 and 120; in the last period these are multiplied: {case: (of p50, of p99)}."""
        loader = importlib.machinery.SourceFileLoader("soak", str(SOAK))
        soak = importlib.util.module_from_spec(importlib.util.spec_from_loader("soak", loader))
        loader.exec_module(soak)
        windows = {name: [(at, {"requests": 1, **{key: (80 + 7 * at % 41) * (factor if at >= 50 else 1)
                                                  for key, factor in zip(("p50_us", "p99_us"), factors.get(name, (1, 1)))}}) for at in range(60)]
                   for name in ("one", "other", "third", soak.clients.BARE.name)}
        soaked = types.SimpleNamespace(windows=windows, memory=[(at, 1e6) for at in range(60)])
        options = types.SimpleNamespace(minutes=1, latency_tolerance=0.1, ignore_latency=False, memory_mb=2)
        tally = types.SimpleNamespace(counts={"reloads": 1, "clients cut off": 1})
        counts = {"descriptors": 1, "threads": 1, "memory": 1e6}
        return soak.judge(options, tally, soaked, soak.latencies(windows, 60), counts, counts)[0]

    def test_what_is_slower(self):
        for factors, expected in (
            ({}, []),
            ({"one": (1.02, 1.05)}, []),
            ({"one": (1.2, 1)}, ["p50 of one: "]),
            ({"one": (1, 2)}, ["p99 of one: ", "p99 of all cases together: "]),
            ({name: (1, 1.2) for name in ("one", "other", "third")}, ["p99 of all cases together: "]),
        ):
            with self.subTest(factors=factors):
                faults = self.faults(**factors)
                self.assertEqual([next((words for words in expected if fault.startswith(words)), fault) for fault in faults], expected)
        # The machine became slower: so did the bare server.
        self.assertEqual(self.faults(**{name: (1.5, 1.5) for name in ("one", "other", "third", "bare server")}), [])


if __name__ == "__main__":
    unittest.main()
