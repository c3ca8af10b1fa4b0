"""Tensors to and from other frameworks without a copy, by DLPack's capsules."""

import ctypes

from . import _types
from ._errors import TritonModelException

CPU, CUDA, CUDA_HOST = 1, 2, 3
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_KINDS = {
    _types.BOOL: (_BOOL, 8), _types.UINT8: (_UINT, 8), _types.UINT16: (_UINT, 16), _types.UINT32: (_UINT, 32), _types.UINT64: (_UINT, 64),
    _types.INT8: (_INT, 8), _types.INT16: (_INT, 16), _types.INT32: (_INT, 32), _types.INT64: (_INT, 64), _types.FP16: (_FLOAT, 16),
    _types.FP32: (_FLOAT, 32), _types.FP64: (_FLOAT, 64), _types.BF16: (_BFLOAT, 16),
}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("rank", ctypes.c_int32), ("data_type", _DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]

_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
# The same by address: a destructor runs when its capsule has no references any more, so it must take none.
_is_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_NAME, _USED = b"dltensor", b"used_dltensor"

# What was given away and not given back, by the address of its structure: the structure, and what it refers to.
_exported = {}


@_DELETER
def _release(managed):
    _exported.pop(ctypes.addressof(managed.contents), None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule):
    # Nobody took the tensor.
    if _is_valid_at(capsule, _NAME):
        _exported.pop(_pointer_at(capsule, _NAME), None)


def export(address, shape, number, device, owner):
    """A capsule of the bytes at `address`, which lie on `device` (kind, number) and live as long as `owner`."""
    if number not in _KINDS:
        raise TritonModelException("DLPack does not have support for string tensors.")
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    code, bits = _KINDS[number]
    tensor = _Tensor(address or None, _Device(*device), len(shape), _DataType(code, bits, 1), dims, None, 0)
    managed = _Managed(tensor, None, _release)
    _exported[ctypes.addressof(managed)] = (managed, dims, owner)
    return _python.PyCapsule_New(ctypes.addressof(managed), _NAME, ctypes.cast(_destroy, ctypes.c_void_p))


class Imported:
    """A tensor of another framework's, held until this is gone."""

    def __init__(self, capsule):
        if not _python.PyCapsule_IsValid(capsule, _NAME):
            raise TritonModelException("The DLPack capsule was used already, or is none.")
        pointer = _python.PyCapsule_GetPointer(capsule, _NAME)
        self._managed = _Managed.from_address(pointer)
        tensor = self._managed.tensor
        self.shape = tuple(tensor.shape[index] for index in range(tensor.rank))
        self.device = (tensor.device.kind, tensor.device.number)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.number = _NUMBERS.get((tensor.data_type.code, tensor.data_type.bits))
        if self.number is None or tensor.data_type.lanes != 1:
            raise TritonModelException("DLPack dtype is not supported.")
        if tensor.strides and not self._is_contiguous(tensor):
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.")
        # From here on the tensor is ours.
        _python.PyCapsule_SetName(capsule, _USED)
        self._is_owned = True

    _is_owned = False

    @staticmethod
    def _is_contiguous(tensor):
        expected = 1
        for index in reversed(range(tensor.rank)):
            if tensor.shape[index] != 1 and tensor.strides[index] != expected:
                return False
            expected *= tensor.shape[index]
        return True

    def __del__(self):
        if self._is_owned and self._managed.deleter:
            self._managed.deleter(ctypes.pointer(self._managed))
