"""TensorFlow for tests: the library that the backend opens, and a Python with TensorFlow that makes models and answers."""

import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy

import server as servers

# As scripts/runtimes/tensorflow.sh pins it, so that answers can be compared bit for bit.
VERSION = "2.21.0"
FOLDER = servers.CACHE / "tensorflow"
FLOOR = servers.CACHE / "tensorflow_oldest"
LIBRARY = "libtensorflow_cc.so.2"
ENVIRONMENT = servers.CACHE / "venv-tensorflow"
BASIC_PITCH = servers.CACHE / "models/basic_pitch"
PROGRAM = pathlib.Path(__file__).with_name("tensorflow_models.py")
OPERATOR = pathlib.Path(__file__).with_name("tensorflow_operator.c")
MODELS = servers.CACHE / "tensorflow-models"
EXAMPLE = servers.ROOT / "docs/examples/tensorflow/make_repository.py"


def library():
    return os.environ.get("CONCH_TENSORFLOW_LIBRARY") or str(FOLDER / LIBRARY)


needs_tensorflow = unittest.skipIf(not os.path.exists(library()), "TensorFlow is not there; scripts/fetch-runtime tensorflow gets it")
needs_floor = unittest.skipIf(not (FLOOR / LIBRARY).exists(), "TensorFlow 2.12 is not there; scripts/fetch-runtime tensorflow_oldest gets it")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise unittest.SkipTest(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def python():
    """That of an environment with the pinned TensorFlow, which is made at the first use."""
    program = ENVIRONMENT / "bin/python"
    if not program.exists():
        run(sys.executable, "-m", "venv", ENVIRONMENT)
    run(program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"tensorflow-cpu=={VERSION}")
    return program


@functools.cache
def models():
    """The folder of models that tensorflow_models.py made with the pinned TensorFlow. Made at the first use, which takes a minute."""
    if not (BASIC_PITCH / "saved_model.pb").exists():
        raise unittest.SkipTest("basic-pitch is not there; scripts/fetch-models gets it")
    folder = MODELS / hashlib.sha256(PROGRAM.read_bytes() + VERSION.encode()).hexdigest()[:16]
    if (folder / "version").exists():
        return folder
    MODELS.mkdir(exist_ok=True)
    # Under another name until all is there, since others may do the same.
    making = pathlib.Path(tempfile.mkdtemp(dir=MODELS))
    run(python(), PROGRAM, making, BASIC_PITCH)
    try:
        making.rename(folder)
    except OSError:
        shutil.rmtree(making)
    return folder


def cases(model):
    """What TensorFlow in Python answers: pairs of feeds and answers by name."""
    found = []
    with numpy.load(models() / f"{model}.npz") as arrays:
        for key in arrays.files:
            side, number, name = key.split(".", 2)
            while len(found) <= int(number):
                found.append(({}, {}))
            found[int(number)][side == "out"][name] = arrays[key]
    return found


def add(repository, name, config=None, source=None, files=None):
    """A model of the test repository, with the files of `source`, a model of `models`."""
    repository.model(name, config, files=files)
    shutil.copytree(models() / (source or name), repository.path / name / "1", dirs_exist_ok=True)


def compile_operator(target):
    """A library with the operator of tensorflow_operator.c. It names the library that it takes its functions from, which is open by then."""
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(target), str(OPERATOR),
               f"-L{os.path.dirname(library())}", "-l:libtensorflow_framework.so.2"]
    subprocess.run(command, check=True)


def add_basic_pitch(repository, config=None, name="basic_pitch"):
    repository.model(name, config)
    shutil.copytree(BASIC_PITCH, repository.path / name / "1/model.savedmodel")


def make_example(folder):
    """The repository of docs/examples."""
    run(python(), EXAMPLE, folder)


def ask_example(address):
    """What the example prints when it asks a server. By the Python that has the clients."""
    return run(sys.executable, EXAMPLE, "--send", address)
