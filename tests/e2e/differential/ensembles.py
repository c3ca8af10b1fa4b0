"""Ensembles: what they answer, what is wrong with their steps, and what is shown of them."""

import json
import struct

import numpy
from tritonclient.grpc import service_pb2 as pb

from .entry import call, entry, get, post, stream
from .sound import infer, request, tensor

ENTRIES = []


def add(name, rows, *steps):
    ENTRIES.append(entry("ensembles", name, rows, *steps))


def ints(model, name, values, request_id="1", **more):
    made = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[struct.pack(f"<{len(values)}i", *values)])
    made.inputs.add(name=name, datatype="INT32", shape=[len(values)])
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    return made


def floats(model, values, shape):
    made = pb.ModelInferRequest(model_name=model, raw_input_contents=[numpy.array(values, numpy.float32).tobytes()])
    made.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
    return made


PAIR = request(tensor([1, 2], [1, 2]))
add("ensemble", "http-infer", infer(PAIR, model="into_row"), infer({**PAIR, "id": "x", "parameters": {"sequence_id": 7, "sequence_start": True}}, model="into_row"),
    infer(request(tensor([1, 2], [2])), model="from_row"), infer(request(tensor([1, 2, 3], [3])), model="nested"))
add("ensemble_outputs", "http-infer", *[infer(request(tensor([1, 2], [2]), outputs=[{"name": name}]), model="branches") for name in ("left", "right", "none")])
add("ensemble_step", "scheduling/ensemble-step", infer(request(tensor([1, 2, 3, 4], [2, 2])), model="into_row"),
    call("ModelInfer", floats("into_row", [1, 2, 3, 4], [2, 2])), stream([floats("into_row", [1, 2, 3, 4], [2, 2]), floats("into_row", [1, 2], [1, 2])]))
add("ensemble_shown", "http-model-meta http-config", *[get(f"/v2/models/{model}{part}") for model in ("nested", "counting") for part in ("", "/config", "/ready")])
add("ensemble_many", "grpc-stream", stream([ints("counting", "INPUT0", [3])], folds=True), stream([ints("counting", "INPUT0", [0])]),
    call("ModelInfer", ints("counting", "INPUT0", [3])), post("/v2/models/counting/infer", json.dumps(request(tensor([1], [1], "INT32"))).encode()))
