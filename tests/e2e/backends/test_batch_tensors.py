"""Ragged inputs with all that tells them apart: batch inputs of every kind, and a batch output. A real ONNX model gets several requests of different
lengths as one, shows what it was told of them, and its answer is cut apart again."""

import concurrent.futures
import json

import onnx_model
from case import ServerCase, needs_library

# The batch inputs of the model: name, kind, data type.
BATCH_INPUTS = (("C", "BATCH_ELEMENT_COUNT", "FP32"), ("A", "BATCH_ACCUMULATED_ELEMENT_COUNT", "INT32"),
                ("Z", "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "INT32"), ("M", "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "FP32"),
                ("I", "BATCH_ITEM_SHAPE", "INT32"), ("F", "BATCH_ITEM_SHAPE_FLATTEN", "FP32"))
CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "TOLD" data_type: TYPE_FP32 dims: [ 7 ] }
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 20000000 }
""" + "".join(f'batch_input {{ kind: {kind} target_name: "{name}" data_type: TYPE_{data_type} source_input: "X" }}\n'
              for name, kind, data_type in BATCH_INPUTS)


def shown():
    """Y is X without signs; TOLD has a row per request: C, A, Z without its last, Z without its first, the length of M, I, F."""
    kinds = {"FP32": onnx_model.FLOAT, "INT32": onnx_model.INT32}
    shapes = {"I": ("rows", "dims")}
    inputs = [("X", onnx_model.FLOAT, ("elements",))]
    inputs += [(name, kinds[data_type], shapes.get(name, (f"n{name}",))) for name, _, data_type in BATCH_INPUTS]
    node = onnx_model.node
    nodes = [node("Abs", ["X"], ["Y"])]
    nodes += [node("Cast", [name], [f"{name}f"], to=onnx_model.FLOAT) for name in "CAZIF"]
    nodes += [node("Slice", ["Zf", "zero", "last"], ["starts"]), node("Slice", ["Zf", "one", "far"], ["ends"]),
              node("Shape", ["M"], ["length"]), node("Cast", ["length"], ["lengthf"], to=onnx_model.FLOAT),
              node("Sub", ["Cf", "Cf"], ["nothing"]), node("Add", ["nothing", "lengthf"], ["longest"])]
    flat = ["Cf", "Af", "starts", "ends", "longest", "Ff"]
    nodes += [node("Unsqueeze", [name, "one"], [f"{name}column"]) for name in flat]
    columns = [f"{name}column" for name in flat]
    nodes += [node("Concat", [*columns[:5], "If", columns[5]], ["TOLD"], axis=1)]
    return onnx_model.model(inputs, [("Y", onnx_model.FLOAT, ("elements",)), ("TOLD", onnx_model.FLOAT, ("requests", 7))], nodes,
                            [onnx_model.constant("zero", [0]), onnx_model.constant("one", [1]), onnx_model.constant("last", [-1]),
                             onnx_model.constant("far", [1 << 30])])


@needs_library("onnxruntime")
class Ragged(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("ragged", CONFIG, files={"1/model.onnx": shown()})

    def ask(self, values):
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, len(values)], "data": values}]}
        status, _, reply = self.infer(body, model="ragged")
        self.assertEqual(status, 200, reply)
        return {output["name"]: (output["shape"], output["data"]) for output in json.loads(reply)["outputs"]}

    def test_each_request_gets_its_own(self):
        for lengths in ((1, 4, 2), (3, 3, 3)):
            requests = [[-float(10 * number + place) for place in range(length)] for number, length in enumerate(lengths, 1)]
            before = self.server.statistics("ragged")
            with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
                answers = list(pool.map(self.ask, requests))
            after = self.server.statistics("ragged")
            self.assertEqual(after["execution_count"] - before["execution_count"], 1)
            for values, answer in zip(requests, answers):
                self.assertEqual(answer["Y"], ([1, len(values)], [-value for value in values]))
            # Whatever their order was, each row continues where another ended, and they end where all end.
            rows = [answer["TOLD"][1] for answer in answers]
            for length, (count, accumulated, start, end, longest, dims, flat) in zip(lengths, rows):
                self.assertEqual((count, accumulated, end - start, longest, dims, flat), (length, end, length, max(lengths), length, length))
            ordered = sorted(rows, key=lambda row: row[2])
            self.assertEqual([row[2] for row in ordered], [0, *(row[3] for row in ordered[:-1])])
            self.assertEqual(ordered[-1][3], sum(lengths))
