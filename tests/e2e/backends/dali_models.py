"""Pipelines for the tests of the dali backend, what DALI itself makes of their inputs, and where DALI is."""

import functools
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy

import server as servers

LIBRARY = pathlib.Path(os.environ.get("CONCH_DALI_LIBRARY") or servers.CACHE / "dali/nvidia/dali/libdali.so")
# The DALI of the runtime as a Python package, to ask what it answers.
VENV = servers.CACHE / "venv-dali"
PACKAGES = ("nvidia-dali-cuda130==2.4.0", "nvidia-nvimgcodec-cu13==0.9.0.20", "numpy", "pillow")
PYTHON = VENV / "bin/python"
ENVIRONMENT = {"CONCH_DALI_LIBRARY": str(LIBRARY), "CONCH_DALI_PYTHON": str(PYTHON)}

needs_dali = unittest.skipUnless(LIBRARY.exists(), f"{LIBRARY} is not there: scripts/fetch-runtime dali fetches it")


@functools.cache
def made():
    """The folder with everything that the oracle makes, once per process. The first time on a machine it installs DALI for Python."""
    if not PYTHON.exists():
        subprocess.run(["python3", "-m", "venv", VENV], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    folder = tempfile.TemporaryDirectory(prefix="conch-dali-")
    oracle = pathlib.Path(__file__).with_name("dali_oracle.py")
    subprocess.run([PYTHON, oracle, folder.name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def pipeline(name):
    return (pathlib.Path(made().name) / f"{name}.dali").read_bytes()


@functools.cache
def calls(name):
    """Calls of a pipeline: inputs by name, and outputs in order."""
    folder, found = pathlib.Path(made().name), []
    while (path := folder / f"{name}.{len(found)}.npz").exists():
        arrays = numpy.load(path)
        inputs = {key[3:]: arrays[key] for key in arrays if key.startswith("in.")}
        outputs = [arrays[f"out.{index}"] for index in range(sum(key.startswith("out.") for key in arrays))]
        found.append((inputs, outputs))
    return found
