"""The life of the process: it is told of a model, makes it, executes requests, and ends."""

import array
import contextlib
import ctypes
import importlib
import json
import os
import socket
import sys
import traceback

_PR_SET_NAME = 15


def _receive_start():
    """What the backend says first, and the files that it passes. Nothing else stays open but the standard streams."""
    backend = socket.socket(fileno=0)
    text, ancillary, _, _ = backend.recvmsg(1 << 16, socket.CMSG_SPACE(2 * array.array("i").itemsize))
    files = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[:len(data) - len(data) % files.itemsize])
    start = json.loads(text)
    backend.detach()
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in files:
            with contextlib.suppress(OSError):
                os.close(number)
    return start, files[0], files[1]


def main():
    start, requests_file, responses_file = _receive_start()
    library = ctypes.PyDLL(start["library"])
    if library.conch_stub_follow(start["parent"]):
        os._exit(1)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"conch_python", 0, 0, 0)
    library.conch_stub_module.restype = ctypes.py_object
    library.conch_stub_module.argtypes = [ctypes.c_size_t]
    if library.conch_stub_open(requests_file, responses_file):
        sys.exit("the shared memory of the Python backend cannot be mapped")
    functions = library.conch_stub_module(object.__basicsize__)
    try:
        worker = _import_worker()
    except ImportError as error:
        _refuse(functions, error)
        return
    worker.Worker(start).run()


def _import_worker():
    # It needs numpy, which an interpreter may lack.
    return importlib.import_module("conch_python_stub.worker")


def import_failure(error):
    version = ".".join(map(str, sys.version_info[:3]))
    missing = f" has no module '{error.name}'" if isinstance(error, ModuleNotFoundError) and error.name else " cannot import it"
    return f"{error} (the interpreter {sys.executable}, Python {version},{missing})"


def _refuse(functions, error):
    """Answers the first command with what is missing, and ends."""
    traceback.print_exc()
    functions["next"]()
    functions["reply"](json.dumps({"e": [1, import_failure(error)]}))
