"""Says what a library of TensorRT answers through a shim, a line per answer: tensorrt_shim.py SHIM LIBRARY. A program of its own, as the
library stays loaded, and may end its process."""

import ctypes
import sys


def say(shim, library):
    shim = ctypes.CDLL(shim)
    text = ctypes.c_char_p
    shim.conch_tensorrt_open.restype = shim.conch_tensorrt_runtime_new.restype = shim.conch_tensorrt_headers.restype = text
    shim.conch_tensorrt_engine_new.restype = ctypes.c_void_p
    log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, text)(lambda _, severity, line: print("log", severity, line.decode()))
    opened, runtime = ctypes.c_void_p(), ctypes.c_void_p()
    print("headers", shim.conch_tensorrt_headers().decode())
    print("open", shim.conch_tensorrt_open(library.encode(), ctypes.byref(opened)))
    if opened:
        print("runtime", shim.conch_tensorrt_runtime_new(opened, log, None, ctypes.byref(runtime)))
    if runtime:
        plan = b"this is no plan" * 10
        print("cores", shim.conch_tensorrt_dla_cores(runtime))
        print("host code", shim.conch_tensorrt_allow_host_code(runtime))
        print("engine", shim.conch_tensorrt_engine_new(runtime, plan, ctypes.c_size_t(len(plan))))
        shim.conch_tensorrt_runtime_delete(runtime)
    print("end")


if __name__ == "__main__":
    say(*sys.argv[1:])
