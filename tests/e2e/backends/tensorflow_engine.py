"""TensorFlow for tests: the library that the backend opens, and a Python with TensorFlow that makes models and answers."""

import pathlib
import shutil
import sys

import server as servers
from c_backend import compiled_library
from oracle import Oracle, PinnedPython, run
from runtime import Runtime, there

LIBRARY = "libtensorflow_cc.so.2"
NEWEST = Runtime("tensorflow", "TensorFlow", LIBRARY)
OLDEST = Runtime("tensorflow_oldest", "TensorFlow 2.12", LIBRARY, backend="tensorflow")
BASIC_PITCH = servers.CACHE / "models/basic_pitch"
OPERATOR = pathlib.Path(__file__).with_name("tensorflow_operator.c")
EXAMPLE = servers.ROOT / "docs/examples/tensorflow/make_repository.py"
# Less to read in a server's output when a test fails.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

needs_tensorflow = NEWEST.needed()
needs_floor = OLDEST.needed()


def basic_pitch():
    there(BASIC_PITCH / "saved_model.pb", "scripts/fetch-models")
    return BASIC_PITCH


PYTHON = PinnedPython("tensorflow", f"tensorflow-cpu=={NEWEST.version}")
ORACLE = Oracle("tensorflow", NEWEST.version, PYTHON, pathlib.Path(__file__).with_name("tensorflow_models.py"),
                arguments=[BASIC_PITCH], require=basic_pitch)


def add(repository, name, config=None, source=None, files=None):
    """A model of the test repository, with the files of `source`, a model of the oracle's."""
    repository.model(name, config, files=files)
    shutil.copytree(ORACLE.folder / (source or name), repository.path / name / "1", dirs_exist_ok=True)


def operator():
    """A library with the operator of tensorflow_operator.c. It names the library that it takes its functions from, which is open by then."""
    return compiled_library("libhalve.so", OPERATOR, f"-L{NEWEST.library.parent}", "-l:libtensorflow_framework.so.2")


def add_basic_pitch(repository, config=None, name="basic_pitch"):
    repository.model(name, config)
    shutil.copytree(basic_pitch(), repository.path / name / "1/model.savedmodel")


def make_example(folder):
    """The repository of docs/examples."""
    PYTHON.run(EXAMPLE, folder)


def ask_example(address):
    """What the example prints when it asks a server. By the Python that has the clients."""
    return run(sys.executable, EXAMPLE, "--send", address)
