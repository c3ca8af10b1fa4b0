"""Embeds the server in a Python process by ctypes alone, the library opened RTLD_LOCAL.

    embedded.py LIBRARY REPOSITORY BACKENDS

Sends 200 requests from Python, decoupled ones among them, and checks what the callbacks get.
"""

import ctypes
import os
import sys
import threading
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

FINAL = 1
FP32 = 11

# (allocator, name, bytes, type, id, userp, buffer*, buffer_userp*, actual type*, actual id*) -> error
ALLOCATE = CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_size_t, c_uint32, c_int64, c_void_p, POINTER(c_void_p), POINTER(c_void_p),
                     POINTER(c_uint32), POINTER(c_int64))
RELEASE_BUFFER = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_uint32, c_int64)
COMPLETE = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p)


class Api:
    """The functions of the library; each error becomes an exception."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        self._message = self._library.TRITONSERVER_ErrorMessage
        self._message.restype, self._message.argtypes = c_char_p, [c_void_p]

    def __getattr__(self, name):
        function = getattr(self._library, "TRITONSERVER_" + name)
        function.restype = c_void_p

        def call(*arguments):
            error = function(*arguments)
            if error:
                text = self._message(c_void_p(error)).decode()
                self._library.TRITONSERVER_ErrorDelete(c_void_p(error))
                raise RuntimeError(f"{name}: {text}")
        return call


def make(function, *arguments):
    handle = c_void_p()
    function(byref(handle), *arguments)
    return handle


def main():
    library, repository, backends = (os.fsencode(word) for word in sys.argv[1:])
    api = Api(library.decode())
    options = make(api.ServerOptionsNew)
    api.ServerOptionsSetModelRepositoryPath(options, repository)
    api.ServerOptionsSetBackendDirectory(options, backends)
    api.ServerOptionsSetLogInfo(options, ctypes.c_bool(False))
    server = make(api.ServerNew, options)
    api.ServerOptionsDelete(options)

    buffers = {}

    @ALLOCATE
    def allocate(_self, _name, size, _type, _id, _userp, buffer, buffer_userp, actual_type, actual_id):
        memory = ctypes.create_string_buffer(max(size, 1))
        address = ctypes.addressof(memory)
        buffers[address] = memory
        buffer[0], buffer_userp[0], actual_type[0], actual_id[0] = address, None, 0, 0
        return None

    @RELEASE_BUFFER
    def release_buffer(_self, buffer, _userp, _size, _type, _id):
        del buffers[buffer]
        return None

    allocator = make(api.ResponseAllocatorNew, allocate, release_buffer, ctypes.cast(None, ALLOCATE))
    answers, over = {}, threading.Semaphore(0)

    @COMPLETE
    def on_response(response, flags, userp):
        key = userp or 0
        if response:
            response = c_void_p(response)
            api.InferenceResponseError(response)
            name, data_type, shape, rank = c_char_p(), c_uint32(), POINTER(c_int64)(), c_uint64()
            base, size, memory, place, mine = c_void_p(), c_size_t(), c_uint32(), c_int64(), c_void_p()
            api.InferenceResponseOutput(response, c_uint32(0), byref(name), byref(data_type), byref(shape), byref(rank), byref(base),
                                        byref(size), byref(memory), byref(place), byref(mine))
            answers.setdefault(key, []).append((name.value, list(shape[:rank.value]), ctypes.string_at(base.value, size.value)))
            api.InferenceResponseDelete(response)
        if flags & FINAL:
            over.release()

    @COMPLETE
    def on_release(request, _flags, _userp):
        api.InferenceRequestDelete(c_void_p(request))
        over.release()

    inputs, expected = {}, {}
    for number in range(1, 201):
        is_decoupled = number % 4 == 0
        model, name = (b"several", b"IN") if is_decoupled else (b"identity", b"INPUT0")
        values = (ctypes.c_int32 * 1)(3) if is_decoupled else (ctypes.c_float * 3)(number, 2, 3)
        inputs[number] = values
        request = make(api.InferenceRequestNew, server, c_char_p(model), c_int64(-1))
        shape = (c_int64 * 1)(len(values))
        kind = 8 if is_decoupled else FP32
        api.InferenceRequestAddInput(request, c_char_p(name), c_uint32(kind), shape, c_uint64(1))
        api.InferenceRequestAppendInputData(request, c_char_p(name), values, c_size_t(ctypes.sizeof(values)), c_uint32(0), c_int64(0))
        api.InferenceRequestSetReleaseCallback(request, on_release, None)
        api.InferenceRequestSetResponseCallback(request, allocator, None, on_response, c_void_p(number))
        answer = (b"OUT", [1], bytes(values)) if is_decoupled else (b"OUTPUT0", [3], bytes(values))
        expected[number] = [answer] * (3 if is_decoupled else 1)
        api.ServerInferAsync(server, request, None)
    for _ in range(2 * len(expected)):
        if not over.acquire(timeout=30):
            sys.exit("a callback is missing")
    api.ServerDelete(server)
    api.ResponseAllocatorDelete(allocator)
    if answers != expected:
        wrong = next(number for number in expected if answers.get(number) != expected[number])
        sys.exit(f"request {wrong}: {answers.get(wrong)} instead of {expected[wrong]}")
    if buffers:
        sys.exit(f"{len(buffers)} buffers did not come back")
    print("ok")


main()
