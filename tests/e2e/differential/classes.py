"""Outputs as classes."""

import struct

from tritonclient.grpc import service_pb2 as pb

from .entry import call, entry, stream
from .sound import infer, request, tensor

ENTRIES = []


def add(name, rows, *steps):
    ENTRIES.append(entry("plain", name, rows, *steps))


def classes(values, count, shape=None, model="labelled", kind="FP32", **output):
    return infer(request(tensor(values, shape or [1, len(values)], kind),
                         outputs=[{"name": "OUTPUT0", "parameters": {"classification": count, **output}}]), model=model)


def message(values, count, shape=None, model="labelled", kind=("FP32", "f"), field="int64_param"):
    made = pb.ModelInferRequest(model_name=model, raw_input_contents=[struct.pack(f"<{len(values)}{kind[1]}", *values)])
    made.inputs.add(name="INPUT0", datatype=kind[0], shape=shape or [1, len(values)])
    setattr(made.outputs.add(name="OUTPUT0").parameters["classification"], field, count)
    return made


VALUES = [0.5, 3.25, -1, 2]
add("classes", "http-classification", *[classes(VALUES, count) for count in (1, 2, 4, 9, 2**31, 2**63)])
add("classes_binary", "http-classification", classes(VALUES, 2, binary_data=True))
add("classes_of_batches", "http-classification", classes([1, 2, 3, 6, 5, 4], 2, [2, 3]), classes([1, 2, 3, 4, 5, 6], 1, [2, 3]))
add("classes_beyond_labels", "http-classification", classes([1, 2, 3, 4, 5, 6], 6), classes([1, 2, 3], 3, model="identity"))
add("classes_of_types", "http-classification",
    *[classes([3, 1, 2], 3, [3], f"type_{kind.lower()}", kind) for kind in ("UINT8", "INT8", "UINT64", "INT64", "INT32", "FP64")])
add("classes_of_a_flag", "http-classification http-infer/classification-impossible", classes([True, False], 2, [2], "type_bool", "BOOL"),
    classes(["a", "b"], 2, [2], "text", "BYTES"))
add("classes_none", "http-classification", classes(VALUES, 0), classes([], 1, [1, 0]))
add("classes_kinds", "http-classification http-infer/member-of-wrong-type", classes(VALUES, "x"), classes(VALUES, -1), classes(VALUES, 1.5))
add("g_classes", "grpc-class", call("ModelInfer", message(VALUES, 2)), call("ModelInfer", message(VALUES, 9)),
    call("ModelInfer", message([3, 1, 2], 2, [3], "type_int64", ("INT64", "q"))), call("ModelInfer", message([1, 2, 3, 6, 5, 4], 2, [2, 3])))
add("g_classes_value", "grpc-infer/classification-value grpc-class", call("ModelInfer", message(VALUES, 0)), call("ModelInfer", message(VALUES, -1)),
    call("ModelInfer", message(VALUES, "x", field="string_param")))
add("s_classes", "grpc-class grpc-stream", stream([message(VALUES, 2)]))
