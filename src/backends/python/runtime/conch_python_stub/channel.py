"""Memory and messages shared with the backend: a thin layer over libconch_python_stub.so."""

import ctypes
import json
import struct

HEADER_BYTES = 64
ALIGNMENT_BYTES = 64


class Exhausted(Exception):
    """The shared memory has no room."""


def _aligned(byte_size):
    return (byte_size + ALIGNMENT_BYTES - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


class RequestBlock:
    """A block that the server wrote. Given back when nothing refers to it any more."""

    __slots__ = ("_channel", "offset")

    def __init__(self, channel, offset):
        self._channel, self.offset = channel, offset

    def __del__(self):
        self._channel.finish(self.offset)


class Channel:
    """The two segments: requests, in which the server writes, and responses, in which this process does."""

    def __init__(self, library_path, requests_file, responses_file):
        library = ctypes.CDLL(library_path, use_errno=True)
        void, u64, i32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32
        for name, result, arguments in (
                ("open", void, (i32, i32)), ("base", void, (void, i32)), ("length", u64, (void, i32)), ("next", u64, (void,)),
                ("take", u64, (void, u64)), ("publish", None, (void, u64, ctypes.c_char_p, u64)), ("reply", None, (void, u64)),
                ("post", None, (void, u64, i32)), ("wait", u64, (void, u64)), ("give_back", None, (void, u64)), ("finish", None, (void, u64)),
                ("copy", None, (void, u64, void, u64)), ("wait_for_room", i32, (void,)), ("trim", None, (void,))):
            function = getattr(library, "conch_stub_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "_" + name, function)
        self._stub = self._open(requests_file, responses_file)
        if not self._stub:
            raise OSError(ctypes.get_errno(), "the shared memory of the Python backend cannot be mapped")
        self._requests_base = self._base(self._stub, 0)
        self._requests = memoryview((ctypes.c_char * self._length(self._stub, 0)).from_address(self._requests_base)).cast("B")
        self._responses = memoryview((ctypes.c_char * self._length(self._stub, 1)).from_address(self._base(self._stub, 1))).cast("B")

    def next_command(self):
        """Blocks until the server sent a command; its message and its block."""
        return self.message(self._next(self._stub))

    def message(self, offset):
        """The message in a block of the server's, and the block."""
        (length,) = struct.unpack_from("<Q", self._requests, offset + 8)
        begin = offset + HEADER_BYTES
        return json.loads(str(self._requests[begin:begin + length], "utf-8")), RequestBlock(self, offset)

    def tensors_address(self, offset):
        """The address of the tensors in a block of the server's."""
        (length,) = struct.unpack_from("<Q", self._requests, offset + 8)
        return self._requests_base + _aligned(offset + HEADER_BYTES + length)

    def requests_address(self, offset):
        return self._requests_base + offset

    def write(self, message, parts=(), may_wait=False):
        """A block of a message (bytes) and the bytes at `parts` (addresses and lengths), which lie behind it, each aligned; its offset."""
        text_end = _aligned(HEADER_BYTES + len(message))
        end = text_end
        for _, byte_size in parts:
            end += _aligned(byte_size)
        offset = self._take(self._stub, end)
        while not offset and may_wait and self._wait_for_room(self._stub):
            offset = self._take(self._stub, end)
        if not offset:
            raise Exhausted(f"the shared memory of the model has no room for {end} bytes (shm-max-byte-size)")
        at = offset + text_end
        for address, byte_size in parts:
            if byte_size:
                self._copy(self._stub, at, address, byte_size)
            at += _aligned(byte_size)
        self._publish(self._stub, offset, message, len(message))
        return offset

    def reply(self, offset):
        """Answers the command that came last. The server gives the block back."""
        self._reply(self._stub, offset)

    def post(self, offset):
        """Sends a block that needs no answer. The server gives it back."""
        self._post(self._stub, offset, 1)

    def call(self, offset):
        """Sends a block and waits for its answer: (message, block), or (None, None) if there is none."""
        self._post(self._stub, offset, 0)
        reply = self._wait(self._stub, offset)
        self._give_back(self._stub, offset)
        return self.message(reply) if reply else (None, None)

    def block_at(self, offset):
        """A block of the server's that this process is to give back."""
        return RequestBlock(self, offset)

    def finish(self, offset):
        self._finish(self._stub, offset)

    def trim(self):
        self._trim(self._stub)
