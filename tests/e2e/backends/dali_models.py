"""Pipelines for the tests of the dali backend, what DALI itself makes of their inputs, and where DALI is, in the versions that are
tested."""

import functools
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy

import server as servers

ORACLE = pathlib.Path(__file__).with_name("dali_oracle.py")


class Dali:
    """A version: its `library`, and a Python that has the same, which makes pipelines and answers."""

    def __init__(self, name, version, codec, library=None):
        self.name, self.library = name, pathlib.Path(library or servers.CACHE / name / "libdali.so")
        self.venv = servers.CACHE / f"venv-{name}"
        self.packages = (f"nvidia-dali-cuda130=={version}", f"nvidia-nvimgcodec-cu13=={codec}", "numpy", "pillow")
        self.python = self.venv / "bin/python"
        self.environment = {"CONCH_DALI_LIBRARY": str(self.library), "CONCH_DALI_PYTHON": str(self.python)}

    def needed(self):
        """Skips a test class where the version was not fetched."""
        return unittest.skipUnless(self.library.exists(), f"{self.library} is not there: scripts/fetch-runtime {self.name} fetches it")

    @functools.cached_property
    def made(self):
        """The folder with everything that the oracle makes, once per process. The first time on a machine it installs DALI for Python."""
        # What is written last, so that an installation that was interrupted is done again.
        whole = self.venv / "packages"
        if not whole.exists() or whole.read_text() != " ".join(self.packages):
            subprocess.run(["python3", "-m", "venv", self.venv], check=True)
            subprocess.run([self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages], check=True)
            whole.write_text(" ".join(self.packages))
        folder = tempfile.TemporaryDirectory(prefix="conch-dali-")
        subprocess.run([self.python, ORACLE, folder.name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return folder

    def pipeline(self, name):
        return (pathlib.Path(self.made.name) / f"{name}.dali").read_bytes()

    @functools.cache
    def calls(self, name):
        """Calls of a pipeline: inputs by name, and outputs in order."""
        folder, found = pathlib.Path(self.made.name), []
        while (path := folder / f"{name}.{len(found)}.npz").exists():
            arrays = numpy.load(path)
            inputs = {key[3:]: arrays[key] for key in arrays if key.startswith("in.")}
            outputs = [arrays[f"out.{index}"] for index in range(sum(key.startswith("out.") for key in arrays))]
            found.append((inputs, outputs))
        return found


NEWEST = Dali("dali", "2.4.0", "0.9.0.20", os.environ.get("CONCH_DALI_LIBRARY"))
OLDEST = Dali("dali_oldest", "1.53.0", "0.7.0.11")
