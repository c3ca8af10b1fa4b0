"""Writes small ONNX models as bytes, so that tests need neither the onnx package nor committed binaries."""

import struct

FLOAT, UINT8, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, UINT32, UINT64 = 1, 2, 6, 7, 8, 9, 10, 11, 12, 13
BFLOAT16 = 16


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def number(field, value):
    return varint(field << 3) + varint(value)


def part(field, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def value(name, kind, shape):
    """A graph input or output; a text in `shape` is a variable dimension."""
    dims = b"".join(part(1, part(2, dim) if isinstance(dim, str) else number(1, dim)) for dim in shape)
    return part(1, name) + part(2, part(1, number(1, kind) + part(2, dims)))


def attribute(setting):
    """A setting of an operator: its value and its type."""
    if isinstance(setting, str):
        return part(4, setting) + number(20, 3)
    if isinstance(setting, (list, tuple)):
        return b"".join(number(8, entry) for entry in setting) + number(20, 7)
    if isinstance(setting, float):
        return varint(2 << 3 | 5) + struct.pack("<f", setting) + number(20, 1)
    return number(3, setting) + number(20, 2)


def node(operation, inputs, outputs, **attributes):
    out = b"".join(part(1, name) for name in inputs) + b"".join(part(2, name) for name in outputs) + part(4, operation)
    for name, setting in attributes.items():
        out += part(5, part(1, name) + attribute(setting))
    return out


def constant(name, values, kind=INT64, shape=None):
    """A tensor that operators take as an input; a vector if no shape is given."""
    dims = b"".join(number(1, dim) for dim in (shape or [len(values)]))
    return dims + number(2, kind) + part(8, name) + part(9, struct.pack(f"<{len(values)}{'f' if kind == FLOAT else 'q'}", *values))


def weight(name, array):
    """A constant of a numpy array of FP32."""
    return b"".join(number(1, dim) for dim in array.shape) + number(2, FLOAT) + part(8, name) + part(9, array.astype("<f4").tobytes())


def model(inputs, outputs, nodes, constants=()):
    """The bytes of a model, operator set 17."""
    graph = b"".join(part(1, entry) for entry in nodes) + part(2, "test")
    graph += b"".join(part(5, entry) for entry in constants)
    graph += b"".join(part(11, value(*entry)) for entry in inputs)
    graph += b"".join(part(12, value(*entry)) for entry in outputs)
    return number(1, 8) + part(2, "conch tests") + part(7, graph) + part(8, part(1, "") + number(2, 17))


def mixed():
    """FP32[3,2] from UINT32[2,2] and BOOL[3]: output[i,j] = input1[i] * (input0[0,j] + input0[1,j])."""
    return model(
        [("input0", UINT32, (2, 2)), ("input1", BOOL, (3,))], [("output0", FLOAT, (3, 2))],
        [node("Cast", ["input0"], ["numbers"], to=FLOAT), node("Cast", ["input1"], ["flags"], to=FLOAT),
         node("Reshape", ["flags", "column"], ["one"]), node("Concat", ["one", "one"], ["two"], axis=1),
         node("MatMul", ["two", "numbers"], ["output0"])],
        [constant("column", [3, 1])])


def halves():
    """Two FP32[3,1] from FP32[4]: its first three and its last three values."""
    return model(
        [("input", FLOAT, (4,))], [("output0", FLOAT, (3, 1)), ("output1", FLOAT, (3, 1))],
        [node("Slice", ["input", "zero", "three"], ["first"]), node("Slice", ["input", "one", "four"], ["last"]),
         node("Reshape", ["first", "column"], ["output0"]), node("Reshape", ["last", "column"], ["output1"])],
        [constant("zero", [0]), constant("one", [1]), constant("three", [3]), constant("four", [4]),
         constant("column", [3, 1])])


def outside(name, kind, shape, location, offset=None, length=None):
    """A constant whose bytes are in a file beside the model."""
    entries = {"location": location, "offset": offset, "length": length}
    external = b"".join(part(13, part(1, key) + part(2, str(entry))) for key, entry in entries.items() if entry is not None)
    return b"".join(number(1, dim) for dim in shape) + number(2, kind) + part(8, name) + external + number(14, 1)


def graph(inputs, outputs, nodes, name="body"):
    """A graph within an operator."""
    content = b"".join(part(1, entry) for entry in nodes) + part(2, name)
    return content + b"".join(part(11, value(*entry)) for entry in inputs) + b"".join(part(12, value(*entry)) for entry in outputs)


def with_graph(operation, name, content):
    """An operator with one more setting, a graph."""
    return operation + part(5, part(1, name) + part(6, content) + number(20, 5))


def counting(loops=1, rows="rows"):
    """Y[rows,1] = X + loops * the largest X, by as many turns of each loop: a model whose time its inputs say. It can end between loops."""
    body = graph([("turn", INT64, ()), ("on", BOOL, ()), ("before", FLOAT, (rows, 1))],
                 [("still", BOOL, ()), ("after", FLOAT, (rows, 1))],
                 [node("Identity", ["on"], ["still"]), node("Add", ["before", "one"], ["after"])])
    names = ["X", *(f"loop{number}" for number in range(1, loops)), "Y"]
    return model(
        [("X", FLOAT, (rows, 1))], [("Y", FLOAT, (rows, 1))],
        [node("ReduceMax", ["X"], ["largest"], keepdims=0), node("Cast", ["largest"], ["turns"], to=INT64),
         *(with_graph(node("Loop", ["turns", "", before], [after]), "body", body) for before, after in zip(names, names[1:]))],
        [constant("one", [1.0], FLOAT)])


def square():
    """Y[n,n] = softmax(running sums of (softmax(X) @ X)): matrices that are not square fail behind operators that take any."""
    return model(
        [("X", FLOAT, ("r", "n"))], [("Y", FLOAT, ("r", "q"))],
        [node("Softmax", ["X"], ["shares"], axis=1), node("CumSum", ["shares", "axis"], ["sums"]), node("MatMul", ["sums", "X"], ["product"]),
         node("CumSum", ["product", "axis"], ["more"]), node("Softmax", ["more"], ["Y"], axis=1)],
        [constant("axis", [1])])


def eight():
    """Y[2,4] = softmax of the eight values of X[r,n], whatever its shape."""
    return model([("X", FLOAT, ("r", "n"))], [("Y", FLOAT, (2, 4))],
                 [node("Softmax", ["X"], ["shares"], axis=0), node("Reshape", ["shares", "shape"], ["eight"]), node("Softmax", ["eight"], ["Y"], axis=1)],
                 [constant("shape", [2, 4])])


def powers(count=200):
    """Y[n,n] = X ** (count + 1), in as many operators."""
    names = ["X", *(f"power{number}" for number in range(2, count + 1)), "Y"]
    return model([("X", FLOAT, ("n", "n"))], [("Y", FLOAT, ("n", "n"))],
                 [node("MatMul", [before, "X"], [after]) for before, after in zip(names, names[1:])])


def zeros(*names):
    """Zeros Y of the shape X, whose dimensions have these names."""
    return model([("X", FLOAT, (len(names),))], [("Y", FLOAT, names)],
                 [node("Cast", ["X"], ["shape"], to=INT64), node("ConstantOfShape", ["shape"], ["Y"])])


def pairs():
    """Y[rows / 2,8] of X[rows,4]: each two rows as one."""
    return model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("half", 8))],
                 [node("Softmax", ["X"], ["shares"], axis=1), node("Reshape", ["shares", "shape"], ["Y"])], [constant("shape", [-1, 8])])
