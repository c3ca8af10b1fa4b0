"""Tensors of requests and responses."""

import numpy as np

from . import _dlpack, _native, _types
from ._errors import TritonModelException

_ELEMENT_BYTES = {_types.BOOL: 1, _types.UINT8: 1, _types.INT8: 1, _types.UINT16: 2, _types.INT16: 2, _types.FP16: 2, _types.BF16: 2,
         _types.UINT32: 4, _types.INT32: 4, _types.FP32: 4, _types.UINT64: 8, _types.INT64: 8, _types.FP64: 8}


class _Memory:
    """Bytes at an address as numpy reads them. Arrays keep it, and it keeps what the bytes belong to."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, address, shape, typestr, owner):
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "version": 3}
        self._owner = owner


class Tensor(_native.TensorBase):
    """A named tensor: of a numpy array, of another framework's tensor, or of a request."""

    __slots__ = ("__weakref__",)

    @classmethod
    def _at(cls, name, number, shape, address, byte_size, owner, device=(_dlpack.CPU, 0)):
        """The tensor whose bytes lie at `address` as long as `owner` lives."""
        return _native.tensor_at(cls, name, number, shape, address, byte_size, owner, device)

    def _as_array(self):
        """The array of a tensor whose elements are no plain values, or lie in another framework's memory."""
        if not self.is_cpu():
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._number == _types.BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead.")
        return self._decoded() if self._number == _types.BYTES else self._bytes_as(self._number, self._shape)

    def _bytes_as(self, number, shape):
        if self._byte_size == 0:
            return np.empty(shape, _types.TYPESTR[number])
        return np.asarray(_Memory(self._address, shape, _types.TYPESTR[number], self._owner))

    def _decoded(self):
        encoded = self._bytes_as(_types.UINT8, (self._byte_size,))
        return _types.deserialize_bytes_tensor(encoded).reshape(self._shape)

    def to_dlpack(self):
        """A capsule that another framework may take; the memory is shared."""
        if not self.is_cpu():
            _gpu().settle(self)
        return _dlpack.export(self._address, self._shape, self._number, self._device, self)

    def __dlpack__(self, stream=None, **_):
        # No work on the tensor is under way, so there is no stream to wait for.
        return self.to_dlpack()

    def __dlpack_device__(self):
        return self._device

    @staticmethod
    def from_dlpack(name, tensor):
        """The tensor of another framework, from a capsule or anything with `__dlpack__`; the memory is shared."""
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
            kind = int(tensor.__dlpack_device__()[0])
            _check_device(kind)
            tensor = tensor.__dlpack__()
        elif type(tensor).__name__ != "PyCapsule":
            raise TritonModelException("Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                                       "`__dlpack_device__` attributes")
        given = _dlpack.Imported(tensor)
        _check_device(given.device[0])
        count = 1
        for dim in given.shape:
            count *= dim
        byte_size = count * _ELEMENT_BYTES[given.number]
        device = given.device if given.device[0] == _dlpack.CUDA else (_dlpack.CPU, 0)
        return Tensor._at(name, given.number, given.shape, given.address, byte_size, given, device)

    def __repr__(self):
        return f"Tensor({self._name!r}, {list(self._shape)})"


def _prepare(name, numpy_array):
    """Of an array that is no plain one: the number of its type, its shape, itself, and its bytes as an array."""
    if not isinstance(name, str) or not isinstance(numpy_array, np.ndarray):
        raise TypeError(f"Tensor takes a str and a numpy array, got {type(name).__name__} and {type(numpy_array).__name__}")
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    number = _types.numpy_to_triton_type(numpy_array.dtype)
    if number is None:
        raise TritonModelException("NumPy dtype is not supported.")
    if not numpy_array.flags.c_contiguous:
        numpy_array = np.ascontiguousarray(numpy_array)
    encoded = numpy_array
    if number == _types.BYTES:
        encoded = np.frombuffer(_types.serialize_byte_tensor(numpy_array) or b"", np.uint8)
    return number, numpy_array.shape, numpy_array, encoded


def _gpu():
    """Loaded for the first tensor on a GPU."""
    from . import _gpu
    return _gpu


def _check_device(kind):
    """Raises for memory of another framework that cannot be that of a tensor here."""
    if kind == _dlpack.CUDA:
        try:
            _gpu().driver()
        except TritonModelException as error:
            raise TritonModelException(
                f"DLPack capsule passed pointer to memory allocated on GPU device, when {error}") from None
    elif kind not in (_dlpack.CPU, _dlpack.CUDA_HOST):
        raise TritonModelException(f"DLDevice type {kind} is not support by Python backend.")


def _received_on_device(*row):
    return _gpu().received(Tensor, *row)


def _export_device(tensor):
    return _gpu().export(tensor)


def _to_host(tensor):
    return _gpu().to_host(tensor)
