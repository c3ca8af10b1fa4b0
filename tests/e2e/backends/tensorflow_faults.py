"""Model files of TensorFlow that cannot be served: cut off, changed, or asking for what there is not. Written as bytes, without TensorFlow."""

import random

import broken_files
from broken_files import NOISE
from onnx_model import number, part

FLOAT, INT32, STRING, COMPLEX64, RESOURCE = 1, 3, 7, 8, 20


def shape(*dims):
    return b"".join(part(2, number(1, dim)) for dim in dims)


def type_of(kind):
    return number(6, kind)


def tensor(kind, dims, content=b""):
    return part(8, number(1, kind) + part(2, shape(*dims)) + (part(4, content) if content else b""))


def function(name):
    return part(10, part(1, name))


def node(name, operation, inputs=(), device="", **attributes):
    out = part(1, name) + part(2, operation) + b"".join(part(3, source) for source in inputs) + (part(4, device) if device else b"")
    return out + b"".join(part(5, part(1, key) + part(2, value)) for key, value in attributes.items())


def placeholder(name="X", kind=FLOAT, dims=(-1, 4)):
    return node(name, "Placeholder", dtype=type_of(kind), shape=part(7, shape(*dims)))


def relu(name="Y", source="X", kind=FLOAT):
    return node(name, "Relu", [source], T=type_of(kind))


def add(name, first, second):
    return node(name, "AddV2", [first, second], T=type_of(FLOAT))


def constant(name, kind, dims, content=b"", says=None):
    return node(name, "Const", dtype=type_of(kind if says is None else says), value=tensor(kind, dims, content))


def body(name, nodes, result, argument="a"):
    """A function of one FP32 argument and one FP32 result."""
    signature = part(1, name) + part(2, part(1, argument) + number(3, FLOAT)) + part(3, part(1, "b") + number(3, FLOAT))
    return part(1, part(1, signature) + b"".join(part(3, entry) for entry in nodes) + part(4, part(1, "b") + part(2, result)))


def graph(*nodes, functions=(), producer=1500, oldest_reader=0):
    versions = number(1, producer) + (number(2, oldest_reader) if oldest_reader else b"")
    return b"".join(part(1, entry) for entry in nodes) + part(2, b"".join(functions)) + part(4, versions)


def with_constant(entry):
    """It is added to the input; `c` is its name."""
    return graph(placeholder(), entry, add("Y", "X", "c"))


def calls(name="f", source="X"):
    types = part(1, number(6, FLOAT))
    return node("Y", "PartitionedCall", [source], f=function(name), Tin=types, Tout=types)


def changed(content, count, seed):
    """With so many bytes that are others."""
    numbers, out = random.Random(seed), bytearray(content)
    for place in numbers.sample(range(len(out)), count):
        out[place] ^= numbers.randrange(1, 256)
    return bytes(out)


SOUND = graph(placeholder(), relu())

# What is no message, whichever message is expected.
NO_MESSAGES = {
    **broken_files.OTHERS,
    "endless_number": b"\xff" * 64,
    "length_beyond_the_end": b"\x0a\xff\xff\xff\xff\x07",
    "deep_groups": b"\x0b" * 100_000,
}

# By name: the bytes of `model.graphdef`, whose input is X and whose output is Y.
GRAPHS = NO_MESSAGES | {
    **broken_files.cut(SOUND),
    "more_at_the_end": SOUND + b"\x0a\x7f",
    "without_operations": graph(),
    "of_the_future": graph(placeholder(), relu(), producer=1 << 30, oldest_reader=1 << 30),
    "unknown_operator": graph(placeholder(), node("Y", "Reluuuu", ["X"], T=type_of(FLOAT))),
    "operator_without_a_name": graph(placeholder(), node("Y", "", ["X"])),
    "operation_without_a_name": graph(placeholder(), relu(), node("", "NoOp")),
    "impossible_name": graph(placeholder(), relu(), node("^a b", "NoOp")),
    "without_attribute": graph(node("X", "Placeholder"), relu()),
    "attribute_of_another_kind": graph(placeholder(), node("Y", "Relu", ["X"], T=number(3, 1))),
    "impossible_element_type": graph(placeholder(kind=999), relu(kind=999)),
    "element_type_that_the_operator_has_not": graph(placeholder(kind=STRING), relu(kind=STRING)),
    "types_that_do_not_fit": graph(placeholder(kind=INT32), relu()),
    "no_such_input": graph(placeholder(), relu(source="absent")),
    "no_such_output_of_an_input": graph(placeholder(), relu(source="X:7")),
    "output_of_a_huge_number": graph(placeholder(), relu(source="X:99999999999999999999")),
    "too_few_inputs": graph(placeholder(), node("Y", "AddV2", ["X"], T=type_of(FLOAT))),
    "too_many_inputs": graph(placeholder(), node("Y", "Relu", ["X", "X"], T=type_of(FLOAT))),
    "circle": graph(placeholder(), add("a", "X", "Y"), add("Y", "a", "X")),
    "made_twice": graph(placeholder(), relu(), relu()),
    "order_that_cannot_be": graph(placeholder(), node("Y", "Relu", ["^Y", "X"], T=type_of(FLOAT))),
    "shapes_that_do_not_fit": graph(placeholder(), constant("c", FLOAT, (5, 4), bytes(80)),
                                    node("Y", "MatMul", ["X", "c"], T=type_of(FLOAT))),
    "too_few_bytes": with_constant(constant("c", FLOAT, (1000,), b"1234")),
    "negative_size": with_constant(constant("c", FLOAT, (-4,))),
    "size_beyond_memory": with_constant(constant("c", FLOAT, (1 << 40, 1 << 10))),
    "size_beyond_numbers": with_constant(constant("c", FLOAT, (1 << 40, 1 << 40))),
    "255_dimensions": with_constant(constant("c", FLOAT, (1,) * 255, bytes(4))),
    "constant_of_another_type": with_constant(constant("c", INT32, (4,), bytes(16), says=FLOAT)),
    "constant_of_resources": with_constant(constant("c", RESOURCE, (4,), b"1234", says=FLOAT)),
    "constant_of_an_unknown_type": with_constant(constant("c", 98, (4,), bytes(16), says=FLOAT)),
    "constant_of_a_type_unknown_to_all": with_constant(constant("c", 98, (4,), bytes(16))),
    "constant_of_references": with_constant(constant("c", 101, (4,), bytes(16))),
    "constant_without_a_type": with_constant(constant("c", 0, (4,), bytes(16))),
    "shape_of_255_dimensions": graph(placeholder(dims=(1,) * 255), relu()),
    "impossible_number_of_inputs": graph(placeholder(), node("Y", "AddN", ["X"], N=number(3, 1 << 50), T=type_of(FLOAT))),
    "negative_number_of_inputs": graph(placeholder(), node("Y", "AddN", ["X"], N=number(3, -2), T=type_of(FLOAT))),
    "end_of_no_loop": graph(placeholder(), node("Y", "Exit", ["X"], T=type_of(FLOAT))),
    "function_that_calls_itself": graph(placeholder(), calls(), functions=[
        body("f", [node("c", "PartitionedCall", ["a"], f=function("f"), Tin=part(1, number(6, FLOAT)), Tout=part(1, number(6, FLOAT)))],
             "c:output:0")]),
    "function_without_its_operation": graph(placeholder(), calls(), functions=[body("f", [relu("c", "absent")], "c:activations:0")]),
    "function_without_its_result": graph(placeholder(), calls(), functions=[body("f", [relu("c", "a")], "absent:activations:0")]),
    "function_with_two_of_a_name": graph(placeholder(), calls(), functions=[
        body("f", [relu("c", "a"), relu("c", "a")], "c:activations:0")]),
    "functions_of_one_name": graph(placeholder(), calls(), functions=[
        body("f", [relu("c", "a")], "c:activations:0"), body("f", [add("d", "a", "a")], "d:z:0")]),
    "function_named_as_an_operator": graph(placeholder(), relu(), functions=[body("Relu", [add("d", "a", "a")], "d:z:0")]),
    "input_that_triton_has_not": graph(placeholder(kind=COMPLEX64), node("Y", "Identity", ["X"], T=type_of(COMPLEX64))),
}


def saved(graph_def, signature=None, tags=("serve",), schema=1):
    """The bytes of `saved_model.pb`, without variables."""
    infos = b"".join(part(4, tag) for tag in tags)
    signature = signature or signature_of()
    meta_graph = part(1, infos) + part(2, graph_def) + part(5, part(1, "serving_default") + part(2, signature))
    return number(1, schema) + part(2, meta_graph)


def info(name, kind=FLOAT, dims=(-1, 4)):
    return part(1, name) + number(2, kind) + part(3, shape(*dims))


def signature_of(x=None, y=None):
    entry = lambda field, name, value: part(field, part(1, name) + part(2, value))  # noqa: E731
    return entry(1, "X", x or info("X:0")) + entry(2, "Y", y or info("Y:0")) + part(3, "tensorflow/serving/predict")


SOUND_SAVED = saved(SOUND)
# Files that are wrong as a GraphDef, and not in what a SavedModel says of itself.
WRONG_GRAPHS = ("of_the_future", "unknown_operator", "no_such_input", "no_such_output_of_an_input", "output_of_a_huge_number", "circle",
                "made_twice", "types_that_do_not_fit", "too_few_bytes", "negative_size", "size_beyond_memory", "255_dimensions",
                "shape_of_255_dimensions", "impossible_number_of_inputs", "end_of_no_loop", "function_that_calls_itself",
                "function_without_its_result", "function_with_two_of_a_name", "functions_of_one_name")

# By name: the bytes of `saved_model.pb`.
SAVED_MODELS = NO_MESSAGES | {f"graph_{name}": saved(GRAPHS[name]) for name in WRONG_GRAPHS} | {
    **broken_files.cut(SOUND_SAVED),
    "a_graph": SOUND,
    "without_graphs": number(1, 1),
    "without_a_graph": saved(b""),
    "without_tags": saved(SOUND, tags=()),
    "with_other_tags": saved(SOUND, tags=("serve", "gpu")),
    "without_signature": number(1, 1) + part(2, part(1, part(4, "serve")) + part(2, SOUND)),
    "signature_of_no_tensor": saved(SOUND, signature_of(x=info(""))),
    "signature_of_an_absent_tensor": saved(SOUND, signature_of(x=info("absent:0"))),
    "signature_of_an_absent_output": saved(SOUND, signature_of(y=info("Y:1"))),
    "signature_of_a_strange_name": saved(SOUND, signature_of(y=info("Y:-1"))),
    "signature_of_an_impossible_type": saved(SOUND, signature_of(x=info("X:0", 999))),
}

# By name: graphs that load, and whose runs fail, if they are not refused before.
FAILING = {
    "no_such_function": saved(graph(placeholder(), calls("absent"))),
    "signature_without_tensors": saved(SOUND, part(3, "tensorflow/serving/predict")),
    "signature_of_another_type": saved(SOUND, signature_of(x=info("X:0", INT32))),
    "signature_of_another_shape": saved(SOUND, signature_of(y=info("Y:0", dims=(-1, 5)))),
    "reshape_that_cannot_be": saved(graph(placeholder(), constant("c", INT32, (1,), b"\x05\0\0\0"), node(
        "Y", "Reshape", ["X", "c"], T=type_of(FLOAT), Tshape=type_of(INT32)))),
    "fill_beyond_memory": saved(graph(placeholder(), constant("c", INT32, (3,), b"\0\0\1\0" * 3), node(
        "f", "Fill", ["c", "one"], T=type_of(FLOAT), index_type=type_of(INT32)), constant("one", FLOAT, (), b"\0\0\x80?"), node(
        "s", "Sum", ["f", "c"], T=type_of(FLOAT), Tidx=type_of(INT32)), add("Y", "X", "s"))),
    "axis_that_is_not_there": saved(graph(placeholder(), constant("c", INT32, (), b"\x63\0\0\0"), node(
        "Y", "Cumsum", ["X", "c"], T=type_of(FLOAT), Tidx=type_of(INT32)))),
    "endless_steps": saved(graph(placeholder(), constant("c", INT32, (4,), bytes(16)), node(
        "Y", "Reshape", ["r", "c"], T=type_of(INT32), Tshape=type_of(INT32)), node(
        "r", "Range", ["z", "z", "z"], Tidx=type_of(INT32)), constant("z", INT32, (), bytes(4)))),
}


def variables(index, data):
    """By name: the file of a SavedModel, and its bytes; None removes it."""
    index_file, data_file = "variables/variables.index", "variables/variables.data-00000-of-00001"
    files = {
        "no_data": (data_file, None),
        "empty_index": (index_file, b""), "empty_data": (data_file, b""),
        "zeros_as_index": (index_file, bytes(len(index))), "noise_as_index": (index_file, NOISE),
        "text_as_index": (index_file, NO_MESSAGES["text"]), "data_as_index": (index_file, data[:4096]),
        "index_and_more": (index_file, index + b"\0"), "index_twice": (index_file, index + index[:-1]),
        "index_without_its_start": (index_file, index[1:]), "index_as_data": (data_file, index),
    }
    files |= {f"index_cut_at_{count}": (index_file, index[:count]) for count in (1, 47, 48, 50, len(index) // 2, len(index) - 1)}
    files |= {f"index_changed_{seed}": (index_file, changed(index, 8, seed)) for seed in range(8)}
    files |= {f"index_with_another_{name}": (index_file, index[:at] + bytes([index[at] ^ 0x55]) + index[at + 1:])
              for name, at in (("first", 0), ("end", len(index) - 1))}
    return files | {f"data_cut_at_{count}": (data_file, data[:count]) for count in (1, 1000, len(data) // 2, len(data) - 1)} | {
        f"data_changed_{seed}": (data_file, changed(data, 8, seed)) for seed in range(4)}
