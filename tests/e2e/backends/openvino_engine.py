"""OpenVINO for tests: the library that the backend opens, and a Python with OpenVINO that answers for comparison."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy

import server as servers

FOLDER = servers.CACHE / "openvino"
OLDEST = servers.CACHE / "openvino_oldest"
ENVIRONMENT = servers.CACHE / "venv-openvino"
PROGRAM = pathlib.Path(__file__).with_name("openvino_oracle.py")
# As scripts/runtimes/openvino.sh pins it, so that answers can be compared bit for bit.
VERSION = re.search(r"^openvino_version=(.*)$", (servers.ROOT / "scripts/runtimes/openvino.sh").read_text(), re.MULTILINE)[1]


def found(folder):
    return next(iter(sorted(folder.glob("libopenvino_c.so*"))), None)


def library():
    return os.environ.get("CONCH_OPENVINO_LIBRARY") or str(found(FOLDER) or "")


needs_openvino = unittest.skipIf(not library(), "OpenVINO is not there; scripts/fetch-runtime openvino gets it")
needs_oldest = unittest.skipIf(not found(OLDEST), "an old OpenVINO is not there; scripts/fetch-runtime openvino_oldest gets it")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise unittest.SkipTest(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


@functools.cache
def python():
    """That of an environment with the pinned OpenVINO, which is made at the first use."""
    program = ENVIRONMENT / "bin/python"
    if not program.exists():
        run(sys.executable, "-m", "venv", ENVIRONMENT)
    run(program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"openvino=={VERSION}")
    return program


def answers(model, cases, threads, **more):
    """What OpenVINO in Python answers to each of `cases` (feeds by name): outputs by name. `more`: shapes of inputs."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        arrays = {f"{number}/{name}": value for number, feeds in enumerate(cases) for name, value in feeds.items()}
        numpy.savez(folder / "feeds.npz", **arrays)
        (folder / "settings.json").write_text(json.dumps({"model": str(model), "count": len(cases), "threads": threads, **more}))
        run(python(), PROGRAM, folder)
        with numpy.load(folder / "answers.npz") as given:
            found = [{} for _ in cases]
            for key in given.files:
                number, name = key.split("/", 1)
                found[int(number)][name] = given[key]
    return found
