"""`conch doctor`: what it says of this machine, and of one that lacks something."""

import errno
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import unittest

import cuda
import server as servers
from case import conch_only

HERE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("CONCH", str(servers.built("conch")))
STATES = {"ok  ": "OK", "note": "NOTE", "warn": "WARNING", "FAIL": "FAILED"}
ALWAYS = {"io_uring", "open files", "CPUs", "SMT", "shared memory", "GPU driver"}


def run(*options, prefix=(), environment=None, before=None):
    return subprocess.run([*prefix, PROGRAM, "doctor", *options], capture_output=True, text=True, timeout=60, check=False, preexec_fn=before,
                          env={**os.environ, **(environment or {})})


def findings(**arguments):
    """By subject, and the exit code."""
    done = run("--json", **arguments)
    found = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["subject"], finding)
    return found, done.returncode


@conch_only
class Doctor(unittest.TestCase):
    def test_lines_tell_what_json_tells(self):
        done = run()
        self.assertEqual(done.stderr, "")
        *lines, end = done.stdout.splitlines()
        told = [line for line in lines if not line.startswith("     ")]
        listed = json.loads(run("--json").stdout)["findings"]
        self.assertEqual([(STATES[line[:4]], line[5:].split(":")[0]) for line in told],
                         [(finding["state"], finding["subject"]) for finding in listed])
        self.assertTrue(ALWAYS <= {finding["subject"] for finding in listed}, listed)
        for finding in listed:
            self.assertEqual("advice" in finding, finding["state"] != "OK", finding)
        counts = [int(count) for count in re.findall(r"\d+", end)]
        states = [finding["state"] for finding in listed]
        self.assertEqual(counts, [states.count(state) for state in ("FAILED", "WARNING", "NOTE", "OK")], end)
        # The machine of the tests serves.
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_without_io_uring_no_server_starts(self):
        for number, word in ((errno.ENOSYS, "seccomp"), (errno.EPERM, "io_uring_disabled")):
            found, code = findings(prefix=(sys.executable, str(HERE / "deny.py"), "io_uring_setup", str(number)))
            self.assertEqual((found["io_uring"]["state"], code), ("FAILED", 1))
            self.assertIn(word, found["io_uring"]["advice"])

    def test_few_open_files(self):
        found, code = findings(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)))
        self.assertEqual((found["open files"]["state"], code), ("WARNING", 0))
        self.assertIn("can be raised to 200", found["open files"]["seen"])

    def test_one_of_several_cpus(self):
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            self.skipTest("there is one CPU")
        found, _ = findings(before=lambda: os.sched_setaffinity(0, allowed[:1]))
        self.assertEqual(found["CPUs"]["state"], "NOTE")
        self.assertTrue(found["CPUs"]["seen"].endswith(f"(CPUs {allowed[0]})"), found["CPUs"])

    @unittest.skipIf(cuda.IS_REAL, "is about the double")
    def test_gpus(self):
        found, code = findings(environment=cuda.environment(devices=2, bytes=1 << 30))
        self.assertEqual((found["GPU driver"]["state"], code), ("OK", 0), found)
        self.assertRegex(found["GPU"]["seen"], r"^0: .* of 1 GiB at [0-9a-f:.]+")

    @unittest.skipUnless(cuda.IS_REAL, "needs a GPU")
    def test_real_gpus(self):
        found, _ = findings()
        self.assertRegex(found["GPU driver"]["seen"], r"^[\d.]+, CUDA \d+\.\d+")
        self.assertIn("NVIDIA", found["GPU"]["seen"])

    def test_usage(self):
        self.assertIn("Usage: conch doctor", run("--help").stdout)
        done = run("m")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("Unexpected argument: m\nUsage: conch doctor [--json]", done.stderr)


if __name__ == "__main__":
    unittest.main()
