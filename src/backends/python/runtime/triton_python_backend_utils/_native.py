"""The library beside this package: what makes and reads the objects of requests, and the connection to the server."""

import ctypes
import os

_PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libconch_python_stub.so")
_library = ctypes.PyDLL(_PATH)
_library.conch_stub_module.restype = ctypes.py_object
_library.conch_stub_module.argtypes = [ctypes.c_size_t]
_functions = _library.conch_stub_module(object.__basicsize__)

TensorBase = _functions["TensorBase"]
configure = _functions["configure"]
tensor_at = _functions["tensor_at"]
# Of the process that serves a model: commands in, replies and calls out.
next_command = _functions["next"]
reply = _functions["reply"]
reply_requests = _functions["reply_requests"]
post = _functions["post"]
call = _functions["call"]
send = _functions["send"]
infer = _functions["infer"]
fetch = _functions["fetch"]
