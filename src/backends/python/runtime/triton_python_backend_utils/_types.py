"""Data types: the server's numbers and names, numpy's types, and the layout of BYTES tensors."""

import struct

import numpy as np

BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16 = range(1, 15)

# Numpy's type and its description in the array interface, by the server's number.
_NUMPY = {
    BOOL: (np.bool_, "|b1"), UINT8: (np.uint8, "|u1"), UINT16: (np.uint16, "<u2"), UINT32: (np.uint32, "<u4"),
    UINT64: (np.uint64, "<u8"), INT8: (np.int8, "|i1"), INT16: (np.int16, "<i2"), INT32: (np.int32, "<i4"),
    INT64: (np.int64, "<i8"), FP16: (np.float16, "<f2"), FP32: (np.float32, "<f4"), FP64: (np.float64, "<f8"),
    BYTES: (np.object_, None), BF16: (None, "<u2"),
}
TYPESTR = {number: typestr for number, (_, typestr) in _NUMPY.items()}
# By the characters of numpy's types, which are equal on every platform that serves.
_NUMBER = {np.dtype(kind): number for number, (kind, _) in _NUMPY.items() if kind is not None}

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool, "TYPE_UINT8": np.uint8, "TYPE_UINT16": np.uint16, "TYPE_UINT32": np.uint32, "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8, "TYPE_INT16": np.int16, "TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32, "TYPE_FP64": np.float64, "TYPE_STRING": np.object_,
}


def plain_dtypes():
    """Numpy's types by the server's number; None for those whose elements are no plain values."""
    return [None, *(np.dtype(_NUMPY[number][0]) for number in range(BOOL, BYTES)), None, None]


def triton_to_numpy_type(data_type):
    """Numpy's type of the server's number; None if there is none."""
    return _NUMPY.get(int(data_type), (None, None))[0]


def numpy_to_triton_type(data_type):
    """The server's number of numpy's type; None if there is none."""
    if isinstance(data_type, type) and issubclass(data_type, np.bytes_):
        return BYTES
    kind = np.dtype(data_type)
    return BYTES if kind.kind == "S" else _NUMBER.get(kind)


def triton_string_to_numpy(triton_type_string):
    """Numpy's type of a type's name in a configuration, such as TYPE_FP32."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor):
    """The elements of an array of bytes or texts, each behind its length in 4 bytes, in C order; None for arrays of anything else."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    parts = []
    for element in input_tensor.ravel().tolist():
        if not isinstance(element, bytes):
            element = str(element).encode("utf-8")
        parts.append(struct.pack("<I", len(element)))
        parts.append(element)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor):
    """The elements of a BYTES tensor as a flat array of bytes."""
    elements, offset, view = [], 0, memoryview(encoded_tensor).cast("B")
    while offset < len(view):
        (length,) = struct.unpack_from("<I", view, offset)
        offset += 4
        if length > len(view) - offset:
            raise ValueError("a string of the tensor is cut off")
        elements.append(bytes(view[offset:offset + length]))
        offset += length
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
