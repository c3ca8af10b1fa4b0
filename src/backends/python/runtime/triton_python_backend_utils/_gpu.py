"""Tensors on GPUs, by the functions of CUDA's driver. The library is loaded when the first such tensor comes.

Inputs lie in buffers of the server's, which are mapped here by their IPC handles. Outputs are exported by handles in the same way."""

import collections
import contextlib
import ctypes
import struct
import threading

import numpy as np

from . import _dlpack, _link
from ._errors import TritonModelException

# As the server reads and writes a place: device, number, offset, handle.
_PLACE = struct.Struct("<IQQ64s")
# The number of memory that is freed when the server has copied it.
_TEMPORARY = 1
# Buffers that are not used stay mapped up to so many bytes, as the server uses them again.
_KEPT_BYTES = 64 << 20
_LAZY_ENABLE_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class _Failure(TritonModelException):
    """A call of the driver that failed."""


class _Driver:
    """The driver's library, with the primary context of each device, which frameworks use as well."""

    def __init__(self):
        self._library, self._contexts = ctypes.CDLL("libcuda.so.1"), {}
        self._call("cuInit", ctypes.c_uint(0))

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise _Failure(f"{name}: {(text.value or b'error %d' % code).decode()}")

    @contextlib.contextmanager
    def on(self, device):
        """Has calls of this thread use a device; the thread has its own again afterwards."""
        context, before = self._contexts.get(device), ctypes.c_void_p()
        try:
            if context is None:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
                self._contexts[device] = context
            self._call("cuCtxGetCurrent", ctypes.byref(before))
            self._call("cuCtxSetCurrent", context)
            try:
                yield self
            finally:
                self._call("cuCtxSetCurrent", before)
        except _Failure as error:
            raise _Failure(f"GPU {device}: {error}") from None

    def synchronize(self):
        """Waits for all work of the device's context."""
        self._call("cuCtxSynchronize")

    def allocation(self, address):
        """Where the allocation of an address begins, and its bytes."""
        base, byte_size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(byte_size), ctypes.c_uint64(address))
        return base.value, byte_size.value

    def export(self, base):
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle)

    def open(self, handle):
        address = ctypes.c_uint64()
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS))
        return address.value

    def close(self, address):
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def allocate(self, byte_size):
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(byte_size))
        return address.value

    def free(self, address):
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy(self, target, source, byte_size):
        """Copies between any two places, and waits."""
        self._call("cuMemcpyAsync", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(byte_size), None)
        self._call("cuStreamSynchronize", None)


_driver = None
# Guards the driver and the mappings. No thread waits for it in a destructor.
_lock = threading.Lock()


def driver():
    """Raises without a driver."""
    global _driver
    if _driver is None:
        try:
            _driver = _Driver()
        except (OSError, AttributeError, _Failure) as error:
            raise TritonModelException(f"GPU is not available: {error}") from None
    return _driver


class _Mapping:
    """A buffer of the server's, mapped."""

    __slots__ = ("device", "number", "address", "byte_size", "is_used")

    def __init__(self, device, number, handle):
        with driver().on(device) as cuda:
            self.address = cuda.open(handle)
            self.byte_size = cuda.allocation(self.address)[1]
        self.device, self.number, self.is_used = device, number, True

    def close(self):
        with driver().on(self.device) as cuda:
            cuda.close(self.address)


# By number; the one that came last is the last.
_mappings = {}
# Those whose tensors are gone.
_ended = collections.deque()


class _Input:
    """The memory of one input. Whatever refers to it refers to this object, and the server has it back with the last reference."""

    __slots__ = ("address", "failure", "_mapping")

    def __init__(self, device, number, handle):
        self.address, self.failure, self._mapping = 0, None, None
        try:
            with _lock:
                mapping = _mappings.pop(number, None)
                if mapping is None:
                    mapping = _Mapping(device, number, handle)
                _mappings[number] = mapping
                mapping.is_used = True
                self._mapping, self.address = mapping, mapping.address
        except TritonModelException as error:
            # Told when the tensor is used: the model may not want it.
            self.failure = error
            _give_back("device", number)
            _give_back("device_mapping", number)
        _tell()

    def __del__(self):
        if self._mapping is not None:
            _ended.append(self._mapping)
            _tell()


def _give_back(kind, number):
    _link.connection().drop(kind, number)


def _tell():
    """Tells the server of inputs whose tensors are gone, and closes what is too much. A destructor may run while the lock is taken, perhaps by
    this very thread: then whoever has it does this afterwards."""
    while _ended and _lock.acquire(blocking=False):
        try:
            while _ended:
                mapping = _ended.popleft()
                mapping.is_used = False
                _give_back("device", mapping.number)
            _close_unused()
        finally:
            _lock.release()


def _close_unused():
    unused = [mapping for mapping in _mappings.values() if not mapping.is_used]
    byte_size = sum(mapping.byte_size for mapping in unused)
    for mapping in unused:
        if byte_size <= _KEPT_BYTES:
            return
        byte_size -= mapping.byte_size
        del _mappings[mapping.number]
        with contextlib.suppress(_Failure):
            mapping.close()
        _give_back("device_mapping", mapping.number)


def received(tensor_type, name, number, shape, byte_size, place):
    """The tensor of an input in a buffer of the server's."""
    device, buffer, offset, handle = _PLACE.unpack(place)
    owner = _Input(device, buffer, handle)
    return tensor_type._at(name, number, shape, owner.address + offset, byte_size, owner, (_dlpack.CUDA, device))


def check(tensor):
    """Raises if the memory of a tensor could not be mapped."""
    failure = getattr(tensor._owner, "failure", None)
    if failure is not None:
        raise TritonModelException(f"Tensor '{tensor.name()}' cannot be used: {failure}")


def settle(tensor):
    """Waits for what frameworks still do with a tensor; inputs are there."""
    check(tensor)
    if not isinstance(tensor._owner, _Input):
        with driver().on(tensor._device[1]) as cuda:
            cuda.synchronize()


class _Copy:
    """A copy of memory that cannot be exported, such as that of a pool."""

    def __init__(self, device, address, byte_size):
        self._device, self._address = device, None
        with driver().on(device) as cuda:
            self._address = cuda.allocate(byte_size)
            cuda.copy(self._address, address, byte_size)
            self.handle = cuda.export(self._address)

    def __del__(self):
        if self._address is not None:
            with contextlib.suppress(_Failure), driver().on(self._device) as cuda:
                cuda.free(self._address)


def export(tensor):
    """The place of a tensor as another process finds it, and what is to be kept until the process is done with it."""
    check(tensor)
    device, address, byte_size = tensor._device[1], tensor._address, tensor._byte_size
    with driver().on(device) as cuda:
        # Whatever stream computes it.
        cuda.synchronize()
        with contextlib.suppress(_Failure):
            base, length = cuda.allocation(address)
            if address + byte_size <= base + length:
                return _PLACE.pack(device, 0, address - base, cuda.export(base)), tensor
    copy = _Copy(device, address, byte_size)
    return _PLACE.pack(device, _TEMPORARY, 0, copy.handle), copy


def to_host(tensor):
    """The same tensor in main memory."""
    check(tensor)
    copy = np.empty(tensor._byte_size, np.uint8)
    with driver().on(tensor._device[1]) as cuda:
        cuda.synchronize()
        cuda.copy(copy.ctypes.data, tensor._address, tensor._byte_size)
    return type(tensor)._at(tensor.name(), tensor._number, tensor._shape, copy.ctypes.data, tensor._byte_size, copy)
