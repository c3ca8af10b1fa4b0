"""PyTorch for tests: the library that the backend opens, and a Python with PyTorch that makes models and answers."""

import pathlib
import shutil
import unittest

from oracle import Oracle, PinnedPython
from runtime import Runtime

LIBRARY, SHIM = "libtorch_cpu.so", "libconch_torch.so"
NEWEST = Runtime("pytorch", "PyTorch", LIBRARY)
OLDEST = Runtime("pytorch_oldest", "PyTorch 2.10", LIBRARY, backend="pytorch")

needs_pytorch = NEWEST.needed()
needs_shim = unittest.skipUnless(NEWEST.library.with_name(SHIM).exists(),
                                 "the shim for TorchScript is not there; scripts/build-torch-shim compiles it, with g++")
needs_floor = OLDEST.needed(beside=SHIM)


def require_compiler():
    if not shutil.which("g++"):
        raise unittest.SkipTest("there is no g++, with which AOTInductor compiles models")


# Made in a minute, and before that an environment with all of PyTorch (about 2.5 GB to load, 5.3 GB of disk).
ORACLE = Oracle("pytorch", NEWEST.version, PinnedPython("pytorch", f"torch=={NEWEST.version}", "numpy"),
                pathlib.Path(__file__).with_name("pytorch_models.py"), scratch="inductor", require=require_compiler)


def file_of(model):
    """The model's file, `model.pt` or `model.pt2`."""
    return next((ORACLE.folder / model).glob("model.pt*"))


def add(repository, name, config=None, source=None, file=None):
    """A model of the test repository, with the file of `source`, a model of the oracle's."""
    path = file_of(source or name)
    repository.model(name, config, files={f"1/{file or path.name}": path})
