"""Plans for the double of TensorRT in src/testkit/tensorrt, the double itself, and the shims of the tensorrt backend.

CONCH_TENSORRT_HEADERS names the headers of another version than the one that is fetched: both are compiled against those."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

import server as servers

HEADERS = pathlib.Path(os.environ.get("CONCH_TENSORRT_HEADERS", servers.CACHE / "tensorrt/include"))
SHIMS = servers.CACHE / "tensorrt-shim"
BACKEND = 'platform: "tensorrt_plan"\n'


def read_version():
    """The version of the headers, and whether they are of TensorRT for RTX."""
    file = HEADERS / "NvInferVersion.h"
    text = file.read_text() if file.exists() else ""
    numbers = [re.search(rf"^#define (?:TRT_{part}_ENTERPRISE|TRT_{part}_RTX|NV_TENSORRT_{part}) (\d+)", text, re.MULTILINE)
               for part in ("MAJOR", "MINOR")]
    return tuple(int(found[1]) if found else 0 for found in numbers), "TRT_MAJOR_RTX" in text


VERSION, IS_RTX = read_version()
MAJOR = VERSION[0]


def double():
    """The path of the double, made now unless it is there, as is the shim; skips without headers or a compiler."""
    if not (HEADERS / "NvInferRuntime.h").exists():
        raise unittest.SkipTest(f"the headers of TensorRT are not in {HEADERS}: run scripts/fetch-runtime tensorrt tensorrt_rtx")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise unittest.SkipTest(f"{compiler} is not there to compile the double of TensorRT")
    for arguments in ([HEADERS, SHIMS], ["--double", HEADERS]):
        run = subprocess.run([servers.ROOT / "scripts/build-tensorrt-shim", *arguments], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"scripts/build-tensorrt-shim {arguments[0]}: {run.stderr[-2000:]}")
    return pathlib.Path(run.stdout.strip())


def dims(numbers):
    return ",".join(map(str, numbers)) or "-"


class Plan:
    """A plan in the words of src/testkit/tensorrt/plan.h. Methods return the plan, so that calls can be chained."""

    def __init__(self, major=MAJOR):
        self.lines = [f"conch-double {major}"]

    def say(self, *words):
        self.lines.append(" ".join(map(str, words)))
        return self

    def input(self, name, data_type, shape, *more):
        return self.say("input", name, data_type, dims(shape), *more)

    def output(self, name, data_type, shape, *more):
        return self.say("output", name, data_type, dims(shape), *more)

    def op(self, *words):
        return self.say("op", *words)

    def profile(self, **ranges):
        """Shapes of inputs: (smallest, best, largest)."""
        self.say("profile")
        for name, shapes in ranges.items():
            self.say("range", name, *map(dims, shapes))
        return self

    def values(self, name, *shapes):
        return self.say("values", name, *map(dims, shapes))

    def bytes(self):
        return "\n".join(self.lines).encode()


def rows(*inner, batch=8, best=4):
    """The shapes of an input with so many rows at most."""
    return (1, *inner), (best, *inner), (batch, *inner)


def add(width=16, batch=8, major=MAJOR):
    shapes = rows(width, batch=batch)
    return (Plan(major).input("A", "fp32", (-1, width)).input("B", "fp32", (-1, width)).output("Y", "fp32", (-1, width))
            .op("Y", "add", "A", "B").profile(A=shapes, B=shapes))


def identity(data_type="fp32", inner=(16,), batch=8):
    return (Plan().input("A", data_type, (-1, *inner)).output("Y", data_type, (-1, *inner)).op("Y", "identity", "A")
            .profile(A=rows(*inner, batch=batch)))
