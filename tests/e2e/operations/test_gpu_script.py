"""scripts/test-gpu: what it refuses, and that steps run from a pack, in a folder of their own, with the double of the driver."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import tarfile
import tempfile
import unittest

import server as servers
from case import conch_only

SCRIPT = servers.ROOT / "scripts/test-gpu"


def load_script():
    """The script as a module, which has no name that Python would import."""
    loader = importlib.machinery.SourceFileLoader("test_gpu_program", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


# What a pack has of the profile for measurements.
BUILT = load_script().MEASURED


@conch_only
class GpuScript(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="conch-gpu-script-")
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def run_script(self, *words):
        environment = {name: value for name, value in os.environ.items() if name not in ("OUT", "CONCH", "CARGO_TARGET_DIR")}
        done = subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                              cwd=self.folder, env=environment)
        return done.returncode, done.stdout + done.stderr

    def pack(self):
        """As --pack lays it out, of what is built here and without an interpreter."""
        pack = self.folder / "pack"
        pack.mkdir()
        with tarfile.open(pack / "pack.tar.xz", "w") as archive:
            for name in ("tests/e2e", "perf", "scripts/test-gpu"):
                archive.add(servers.ROOT / name, name, filter=lambda entry: None if "__pycache__" in entry.name else entry)
            for name in BUILT:
                archive.add(servers.built(name), f"target/{servers.PROFILE}/{name}")
        about = {"machine": platform.machine(), "python": ".".join(platform.python_version_tuple()[:2]), "glibc": "2.17",
                 "test_profile": servers.PROFILE, "measure_profile": servers.PROFILE}
        (pack / "pack.json").write_text(json.dumps(about))
        return pack

    def test_refused_arguments(self):
        for words, code, message in (
                (["--only=identity,nothing"], 2, "there is no step 'nothing'; there are tests, identity,"),
                (["--no-such"], 2, "unrecognized arguments: --no-such"),
                (["--requests=0"], 2, "are above 0"),
                (["--pack", "x", "--double"], 2, "--pack takes no directory"),
                ([self.folder], 1, "there is no pack.tar.xz in"),
                ([], 1, "`scripts/test-gpu --pack DIR` makes one")):
            with self.subTest(words):
                got, output = self.run_script(*words)
                self.assertEqual(got, code, output)
                self.assertIn(message, output)

    @unittest.skipUnless(all(servers.built(name).exists() for name in BUILT), f"not all of {BUILT} are built")
    def test_steps_run_from_a_pack(self):
        pack = self.pack()
        code, output = self.run_script(pack, "--double", "--only=identity,timeline,perf_analyzer", "--seconds=0.5", "--out=results")
        self.assertEqual(code, 3, output)
        self.assertRegex(output, r"ok +identity ")
        self.assertRegex(output, r"ok +timeline ")
        self.assertIn("skipped: perf_analyzer: it was not packed", output)
        results = json.loads((self.folder / "results/results.json").read_text())
        self.assertEqual({name: step["outcome"] for name, step in results["steps"].items()},
                         {"identity": "ok", "timeline": "ok", "perf_analyzer": "skipped"})
        self.assertTrue((self.folder / "results/timeline/cuda-in-flight-4.svg").exists())
        self.assertTrue(results["double"])
        self.assertEqual(results["machine"]["kernel"], platform.release())
        self.assertGreater(results["steps"]["identity"]["figures"]["count"], 0)
        code, output = self.run_script(pack, "--double", "--only=memory", "--budget=0.001")
        self.assertEqual(code, 3, output)
        self.assertIn("skipped memory", output)
        self.assertTrue((pack / "results/results.json").exists())


if __name__ == "__main__":
    unittest.main()
