"""PyTorch for tests: the library that the backend opens, and a Python with PyTorch that makes models and answers."""

import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import numpy

import server as servers

# As scripts/runtimes/pytorch.sh pins it: answers are compared bit for bit.
VERSION = "2.15.0"
LIBRARY = "libtorch_cpu.so"
FLOOR = servers.CACHE / "pytorch_oldest"
ENVIRONMENT = servers.CACHE / "venv-pytorch"
PROGRAM = pathlib.Path(__file__).with_name("pytorch_models.py")
MODELS = servers.CACHE / "pytorch-models"


def library():
    return os.environ.get("CONCH_PYTORCH_LIBRARY") or str(servers.CACHE / "pytorch" / LIBRARY)


needs_pytorch = unittest.skipIf(not os.path.exists(library()), "PyTorch is not there; scripts/fetch-runtime pytorch gets it")
needs_shim = unittest.skipIf(not pathlib.Path(library()).with_name("libconch_torch.so").exists(),
                             "the shim for TorchScript is not there; scripts/build-torch-shim compiles it, with g++")
needs_floor = unittest.skipIf(not (FLOOR / "libconch_torch.so").exists(), "PyTorch 2.10 is not there; scripts/fetch-runtime pytorch_oldest gets it")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise unittest.SkipTest(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


@functools.cache
def models():
    """The folder of models that pytorch_models.py made with the pinned PyTorch. Made at the first use: a minute, and before that a virtual
    environment with all of PyTorch (about 2.5 GB to load, 5.3 GB of disk), which may be removed afterwards."""
    folder = MODELS / hashlib.sha256(PROGRAM.read_bytes() + VERSION.encode()).hexdigest()[:16]
    if (folder / "version").exists():
        return folder
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", ENVIRONMENT)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"torch=={VERSION}", "numpy")
    shutil.rmtree(MODELS, ignore_errors=True)
    folder.mkdir(parents=True)
    run(python, PROGRAM, folder)
    shutil.rmtree(folder / "inductor", ignore_errors=True)
    return folder


@functools.cache
def cases(model):
    """What PyTorch in Python answers: pairs of feeds and answers by name."""
    found = []
    with numpy.load(models() / f"{model}.npz") as arrays:
        for key in arrays.files:
            side, number, name = key.split(".", 2)
            while len(found) <= int(number):
                found.append(({}, {}))
            found[int(number)][side == "out"][name] = arrays[key]
    return found


def file_of(model):
    """The model's file, `model.pt` or `model.pt2`."""
    return next((models() / model).glob("model.pt*"))


def add(repository, name, config=None, source=None, file=None):
    """A model of the test repository, with the file of `source`, a model of `models`."""
    path = file_of(source or name)
    repository.model(name, config, files={f"1/{file or path.name}": path})
