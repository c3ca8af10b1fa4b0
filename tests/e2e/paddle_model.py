"""Models of PaddlePaddle as bytes, so that tests need no PaddlePaddle to make them: a program (framework.proto), and its weights joined in
one file."""

import struct

import numpy

from onnx_model import number, part

FP32, LOD_TENSOR, FEED, FETCH = 5, 7, 9, 10
INT = 0


def tensor(dims, kind=FP32):
    return number(1, kind) + b"".join(number(2, dim) for dim in dims)


def variable(name, dims=None, holder=LOD_TENSOR, persists=False, kind=FP32):
    content = number(1, holder) + (part(3, part(1, tensor(dims, kind))) if dims is not None else b"")
    return part(3, part(1, name) + part(2, content) + number(3, int(persists)))


def attribute(name, value):
    return part(4, part(1, name) + number(2, INT) + number(3, value))


def operator(name, inputs, outputs, **attributes):
    def ends(field, given):
        return b"".join(part(field, part(1, key) + part(2, value)) for key, value in given.items())
    return part(4, ends(1, inputs) + ends(2, outputs) + part(3, name) + b"".join(attribute(*each) for each in attributes.items()))


def program(*content, version=2_004_002):
    block = number(1, 0) + number(2, -1) + b"".join(content)
    return part(1, block) + part(4, number(1, version))


def weights(values, dims=None):
    values = numpy.asarray(values, "<f4")
    described = tensor(values.shape if dims is None else dims)
    return struct.pack("<IQIi", 0, 0, 0, len(described)) + described + values.tobytes()


FEEDS = variable("feed", holder=FEED, persists=True) + variable("fetch", holder=FETCH, persists=True)


def scaled(dims=(-1, 4), values=(0, 1, 2, 3), operation="elementwise_mul", kind=FP32, version=2_004_002, more=b""):
    """Y = X * values, as the files of a model."""
    content = program(
        FEEDS, variable("X", dims, kind=kind), variable("Y", dims, kind=kind), variable("W", (len(values),), persists=True),
        operator("feed", {"X": "feed"}, {"Out": "X"}, col=0), operator(operation, {"X": "X", "Y": "W"}, {"Out": "Y"}, axis=-1),
        more, operator("fetch", {"X": "Y"}, {"Out": "fetch"}, col=0), version=version)
    return {"model.pdmodel": content, "model.pdiparams": weights(values)}
