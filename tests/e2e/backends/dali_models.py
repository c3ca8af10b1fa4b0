"""Pipelines for the tests of the dali backend, what DALI itself makes of their inputs, and where DALI is, in the versions that are
tested."""

import functools
import pathlib

import cases
from oracle import Oracle, PinnedPython
from runtime import Runtime

PROGRAM = pathlib.Path(__file__).with_name("dali_oracle.py")


class Dali:
    """A version: the library, and a Python that has the same, which makes pipelines and answers."""

    def __init__(self, runtime, codec):
        self.runtime, self.library, self.needed = runtime, runtime.library, runtime.needed
        self.python = PinnedPython(runtime.name, f"nvidia-dali-cuda130=={runtime.version}", f"nvidia-nvimgcodec-cu13=={codec}",
                                   "numpy", "pillow")
        self.oracle = Oracle(runtime.name, self.python.packages, self.python, PROGRAM, modules=[pathlib.Path(cases.__file__)])
        self.environment = {**runtime.environment, "CONCH_DALI_PYTHON": str(self.python.program)}

    def pipeline(self, name):
        return (self.oracle.folder / f"{name}.dali").read_bytes()

    @functools.cache
    def calls(self, name):
        """Calls of a pipeline: inputs by name, and outputs in order."""
        return [(inputs, list(outputs.values())) for inputs, outputs in self.oracle.cases(name)]


NEWEST = Dali(Runtime("dali", "DALI", "libdali.so"), "0.9.0.20")
OLDEST = Dali(Runtime("dali_oldest", "DALI 1.53", "libdali.so", backend="dali"), "0.7.0.11")
