"""Model files that cannot be served: cut off, changed, or asking for what there is not."""

import broken_files
import onnx_model
from onnx_model import FLOAT, model, node, number, part, value, weight

import numpy

SOUND = model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("rows", 4))], [node("Mul", ["X", "W"], ["Y"])],
              [weight("W", numpy.arange(4))])


def unary(operation="Relu", **attributes):
    return model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("rows", 4))], [node(operation, ["X"], ["Y"], **attributes)])


def with_constant(tensor):
    return model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("rows", 4))], [node("Mul", ["X", "W"], ["Y"])], [tensor])


def nested(depth):
    """Branches in branches; the innermost makes the value."""
    content = onnx_model.graph([], [("made", FLOAT, (4,))], [node("Relu", ["X"], ["made"])])
    for _ in range(depth):
        inner = onnx_model.with_graph(node("If", ["yes"], ["made"]), "then_branch", content)
        content = onnx_model.graph([], [("made", FLOAT, (4,))], [onnx_model.with_graph(inner, "else_branch", b"")])
    return content


# By name: the bytes of `model.onnx`.
FILES = {
    **broken_files.OTHERS,
    **broken_files.cut(SOUND),
    "length_beyond_the_end": number(1, 8) + b"\x3a\xff\xff\xff\xff\x07",
    "endless_number": b"\xff" * 64,
    "without_graph": number(1, 8) + part(8, part(1, "") + number(2, 17)),
    "without_operator_set": SOUND[:SOUND.rindex(b"B\x04\x0a\x00")],
    "operator_set_of_the_future": unary()[:-2] + number(2, 1 << 20),
    "unknown_operator": unary("Reluuuu"),
    "unknown_domain": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("Relu", ["X"], ["Y"]) + part(7, "nowhere")])
                      + part(8, part(1, "nowhere") + number(2, 1)),
    "wrong_attribute": unary("Softmax", axis=1000),
    "no_such_input": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("Add", ["X", "absent"], ["Y"])]),
    "output_that_nothing_makes": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("Relu", ["X"], ["Z"])]),
    "circle": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("Add", ["X", "b"], ["a"]), node("Add", ["a", "Y"], ["b"]),
                                                                 node("Relu", ["b"], ["Y"])]),
    "made_twice": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("Relu", ["X"], ["Y"]), node("Abs", ["X"], ["Y"])]),
    "too_few_bytes": with_constant(number(1, 1000) + number(2, FLOAT) + part(8, "W") + part(9, b"1234")),
    "negative_size": with_constant(number(1, -4) + number(2, FLOAT) + part(8, "W") + part(9, b"")),
    "size_beyond_memory": with_constant(number(1, 1 << 40) + number(1, 1 << 40) + number(2, FLOAT) + part(8, "W") + part(9, b"")),
    "unknown_element_type": with_constant(number(1, 4) + number(2, 999) + part(8, "W") + part(9, bytes(16))),
    "type_that_the_operator_has_not": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("Not", ["X"], ["Y"])]),
    "shapes_that_do_not_fit": model([("X", FLOAT, (3, 4))], [("Y", FLOAT, (3, 5))], [node("MatMul", ["X", "W"], ["Y"])],
                                    [weight("W", numpy.ones((5, 5)))]),
    "weights_elsewhere_that_are_not_there": with_constant(onnx_model.outside("W", FLOAT, (4,), "weights.bin")),
    "weights_above_the_folder": with_constant(onnx_model.outside("W", FLOAT, (4,), "../../secret.bin")),
    "deep_branches": number(1, 8) + part(7, nested(2000) + part(11, value("X", FLOAT, (4,)))) + part(8, part(1, "") + number(2, 17)),
    "no_tensor_but_a_sequence": model([("X", FLOAT, (4,))], [("Y", FLOAT, (4,))], [node("SequenceConstruct", ["X"], ["Y"])]),
    "input_of_four_bits": model([("X", 22, (4,))], [("Y", 22, (4,))], [node("Identity", ["X"], ["Y"])]),
}
