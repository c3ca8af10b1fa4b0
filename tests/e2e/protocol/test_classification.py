"""The classification extension: outputs as `value:index[:label]` texts, over HTTP, gRPC and streams."""

import json
import queue
import struct
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from case import IS_TRITON, ServerCase, conch_only, needs_library
from repository import identity

LABELS = ["cat", "dog", "", "a b", "größe"]
WHOLE = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
NUMPY = {"FP32": numpy.float32, "FP64": numpy.float64, **{name: getattr(numpy, name.lower()) for name in WHOLE},
         "BOOL": numpy.bool_, "FP16": numpy.float16, "BYTES": numpy.object_}


def text(value, index):
    """A value as C prints it, and its label."""
    shown = "%f" % value if isinstance(value, float) else str(value)
    label = LABELS[index] if index < len(LABELS) else ""
    return shown, label


def classes(row, count, has_labels=False):
    """The `count` largest of `row`: larger first, and of equals the lower index first."""
    order = sorted(range(len(row)), key=lambda index: (-row[index] if row[index] == row[index] else float("inf"), index))[:count]
    out = []
    for index in order:
        shown, label = text(row[index], index)
        out.append(f"{shown}:{index}:{label}" if has_labels and label else f"{shown}:{index}")
    return out


def elements(tensor):
    """The texts of a BYTES tensor in wire layout."""
    out = []
    while tensor:
        length = struct.unpack("<I", tensor[:4])[0]
        out.append(tensor[4:4 + length].decode())
        tensor = tensor[4 + length:]
    return out


def models(repository):
    for name in NUMPY:
        kind = "STRING" if name == "BYTES" else name
        repository.model(f"one_{name}", identity([("INPUT0", kind, (-1,))], batch=4))
        repository.model(f"flat_{name}", identity([("INPUT0", kind, (-1, -1))]))
    content = "".join(f"{label}\n" for label in LABELS).encode()
    rows = [(f"INPUT{i}", "FP32", (-1,)) for i in range(3)]
    config = identity(rows, batch=4).replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels.txt"')
    config = config.replace('name: "OUTPUT1"', 'name: "OUTPUT1" label_filename: "1/../labels.txt"')
    repository.model("labelled", config, files={"labels.txt": content})


@needs_library("identity")
class Classes(ServerCase):
    models = staticmethod(models)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.http = httpclient.InferenceServerClient(cls.server.http, network_timeout=60)
        cls.grpc = grpcclient.InferenceServerClient(cls.server.grpc)

    @classmethod
    def tearDownClass(cls):
        # Before the server: that release waits for idle connections.
        cls.http.close()
        cls.grpc.close()
        super().tearDownClass()

    def ask(self, array, count, model, name):
        """Shape and texts of OUTPUT0 by each way to ask for it: JSON, binary, gRPC, stream. Checks that they agree."""
        shape = list(array.shape)
        answers = {}
        for is_binary in (False, True):
            tensor = httpclient.InferInput("INPUT0", shape, name).set_data_from_numpy(array)
            wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=is_binary, class_count=count)
            result = self.http.infer(model, [tensor], outputs=[wanted])
            output = result.get_output("OUTPUT0")
            self.assertEqual(output["datatype"], "BYTES")
            self.assertEqual("binary_data_size" in output.get("parameters", {}), is_binary)
            values = result.as_numpy("OUTPUT0")
            texts = [v.decode() if isinstance(v, bytes) else v for v in values.flatten()]
            answers["binary" if is_binary else "json"] = (output["shape"], texts)
        tensor = grpcclient.InferInput("INPUT0", shape, name).set_data_from_numpy(array)
        wanted = grpcclient.InferRequestedOutput("OUTPUT0", class_count=count)
        streamed = queue.Queue()
        self.grpc.start_stream(lambda result, error: streamed.put((result, error)))
        self.grpc.async_stream_infer(model, [tensor], outputs=[wanted])
        result, error = streamed.get(timeout=60)
        self.grpc.stop_stream()
        self.assertIsNone(error)
        for way, result in (("grpc", self.grpc.infer(model, [tensor], outputs=[wanted])), ("stream", result)):
            response = result.get_response()
            self.assertEqual(response.outputs[0].datatype, "BYTES")
            answers[way] = (list(response.outputs[0].shape), elements(response.raw_output_contents[0]))
        first = answers["json"]
        for way, answer in answers.items():
            self.assertEqual(answer, first, way)
        return first

    def test_values_of_each_type(self):
        for name in WHOLE:
            limits = numpy.iinfo(NUMPY[name])
            row = numpy.array([[3, limits.max, limits.min, 7, 3, 1]], NUMPY[name])
            for count in (1, 3, 6):
                self.assertEqual(self.ask(row, count, f"one_{name}", name), ([1, count], classes(row[0].tolist(), count)), name)
        for name in ("FP32", "FP64"):
            limits = numpy.finfo(NUMPY[name])
            inf = float("inf")
            row = numpy.array([[0.1, -2.5, limits.max, limits.min, limits.tiny, 0.0078125, 0.0234375, -0.9999996, 1e22, inf, -inf]],
                              NUMPY[name])
            self.assertEqual(self.ask(row, 11, f"one_{name}", name), ([1, 11], classes(row[0].tolist(), 11)), name)

    def test_many_random_values(self):
        generator = numpy.random.default_rng(7)
        for name, scale in (("FP32", 1.0), ("FP32", 1e-4), ("FP64", 1e9), ("FP64", 1.0)):
            # Different in all digits that are shown or not: the order of equals is upstream's own beyond 16 elements.
            row = (generator.permutation(3_000) * scale / 3_000).astype(NUMPY[name]).reshape(1, -1)
            self.assertEqual(len(set(row[0])), 3_000)
            for count in (5, 3_000):
                expected = ([1, count], classes(row[0].tolist(), count))
                self.assertEqual(self.ask(row, count, f"one_{name}", name), expected)

    def test_equals_keep_their_order(self):
        row = numpy.array([[2, 5, 5, 1, 5, 2, 2, 5]], numpy.float32)
        self.assertEqual(self.ask(row, 6, "one_FP32", "FP32"), ([1, 6], classes(row[0].tolist(), 6)))
        row = numpy.array([[0.0, -0.0, 0.0]], numpy.float32)
        self.assertEqual(self.ask(row, 3, "one_FP32", "FP32")[1], ["0.000000:0", "-0.000000:1", "0.000000:2"])

    @conch_only
    def test_nan_comes_last(self):
        nan = float("nan")
        row = numpy.array([[nan, 1, nan, 2]], numpy.float32)
        self.assertEqual(self.ask(row, 4, "one_FP32", "FP32")[1], ["2.000000:3", "1.000000:1", "nan:0", "nan:2"])

    def test_batches(self):
        rows = numpy.array([[1, 3, 2], [9, 7, 8], [0, 0, 4]], numpy.int32)
        expected = [row for values in rows for row in classes(values.tolist(), 2)]
        self.assertEqual(self.ask(rows, 2, "one_INT32", "INT32"), ([3, 2], expected))
        # A model without batching: all of the tensor is one row.
        self.assertEqual(self.ask(rows, 2, "flat_INT32", "INT32"), ([2], classes(rows.flatten().tolist(), 2)))

    def test_t10_huge_counts_are_all_classes(self):
        row = numpy.array([[1, 3, 2]], numpy.int32)
        for count in (3, 4, 2**31 - 1, 2**31):
            self.assertEqual(self.ask(row, count, "one_INT32", "INT32"), ([1, 3], classes([1, 3, 2], 3)), count)

    @conch_only  # upstream cuts the number off, so that 2^32 is none
    def test_t10_counts_beyond_32_bits(self):
        row = numpy.array([[1, 3, 2]], numpy.int32)
        for count in (2**32, 2**32 + 1, 2**63 - 1):
            self.assertEqual(self.ask(row, count, "one_INT32", "INT32"), ([1, 3], classes([1, 3, 2], 3)), count)

    def test_t10_count_zero(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}],
                "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 0}}]}
        status, _, reply = self.infer(body, model="one_INT32")
        self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [1, 2]))
        request = grpcclient.service_pb2.ModelInferRequest(model_name="one_INT32")
        tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 2])
        tensor.contents.int_contents.extend([1, 2])
        output = request.outputs.add(name="OUTPUT0")
        for value in (0, -1, -2**63):
            output.parameters["classification"].int64_param = value
            self.refused(request, "INVALID_ARGUMENT", "invalid value for 'classification' parameter, expected >= 0")
        for kind, value in (("bool_param", True), ("string_param", "3"), ("uint64_param", 3), ("double_param", 3.0)):
            if IS_TRITON and kind in ("uint64_param", "double_param"):
                continue  # newer than that release's protocol
            setattr(output.parameters["classification"], kind, value)
            self.refused(request, "INVALID_ARGUMENT", "invalid value type for 'classification' parameter, expected int64_param")

    def refused(self, request, code, message):
        with self.assertRaises(Exception) as caught:
            self.grpc._client_stub.ModelInfer(request)
        self.assertEqual((caught.exception.code().name, caught.exception.details()), (code, message))

    def test_refusals(self):
        def body(parameters):
            return {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}],
                    "outputs": [{"name": "OUTPUT0", "parameters": parameters}]}
        for value, found in ((-1, "signed"), ("3", "string"), (1.5, "double"), (True, "bool"), (None, "null"), ([3], "array")):
            status, _, reply = self.infer(body({"classification": value}), model="one_INT32")
            message = "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"
            self.assertEqual((status, json.loads(reply)["error"]), (500, message), found)
        parameters = {"classification": 1, "shared_memory_region": "r", "shared_memory_byte_size": 8}
        status, _, reply = self.infer(body(parameters), model="one_INT32")
        message = "Output can't set both 'shared_memory_region' and 'classification'"
        self.assertEqual((status, json.loads(reply)["error"]), (400, message))
        wanted = grpcclient.InferRequestedOutput("OUTPUT0", class_count=1)
        request = grpcclient.service_pb2.ModelInferRequest(model_name="one_INT32", outputs=[wanted._get_tensor()])
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 2]).contents.int_contents.extend([1, 2])
        request.outputs[0].parameters["shared_memory_region"].string_param = "r"
        request.outputs[0].parameters["shared_memory_byte_size"].int64_param = 8
        self.refused(request, "INVALID_ARGUMENT", "output can't set both 'shared_memory_region' and 'classification'")

    def test_types_without_an_order(self):
        values = {"FP16": numpy.zeros((1, 2), numpy.float16), "BOOL": numpy.zeros((1, 2), bool),
                  "BYTES": numpy.array([[b"x", b"y"]], numpy.object_)}
        if IS_TRITON:
            del values["BYTES"]  # ends that release with a signal
        for name, array in values.items():
            message = f"class result not available for output due to unsupported type '{name}'"
            with self.assertRaises(InferenceServerException) as caught:
                self.ask(array, 1, f"one_{name}", name)
            self.assertEqual((caught.exception.status(), caught.exception.message()), ("400", message))
            tensor = grpcclient.InferInput("INPUT0", [1, 2], name).set_data_from_numpy(array)
            with self.assertRaises(InferenceServerException) as caught:
                self.grpc.infer(f"one_{name}", [tensor], outputs=[grpcclient.InferRequestedOutput("OUTPUT0", class_count=1)])
            self.assertEqual((caught.exception.status(), caught.exception.message()), ("StatusCode.INVALID_ARGUMENT", message))

    def test_labels(self):
        rows = [numpy.array([[5, 4, 3, 2, 1, 6]] * 2, numpy.float32)] * 3
        tensors = [httpclient.InferInput(f"INPUT{i}", [2, 6], "FP32").set_data_from_numpy(row) for i, row in enumerate(rows)]
        wanted = [httpclient.InferRequestedOutput("OUTPUT0", class_count=6), httpclient.InferRequestedOutput("OUTPUT1", class_count=2),
                  httpclient.InferRequestedOutput("OUTPUT2", class_count=2)]
        result = self.http.infer("labelled", tensors, outputs=wanted)
        for name, count, has_labels in (("OUTPUT0", 6, True), ("OUTPUT1", 2, True), ("OUTPUT2", 2, False)):
            found = [[value.decode() for value in row] for row in result.as_numpy(name)]
            self.assertEqual(found, [classes([5.0, 4.0, 3.0, 2.0, 1.0, 6.0], count, has_labels)] * 2, name)

    def test_beside_plain_outputs(self):
        """One output as classes, one as it is, one as JSON: each in its own form, by one request."""
        rows = [numpy.array([[1, 2]], numpy.float32)] * 3
        tensors = [httpclient.InferInput(f"INPUT{i}", [1, 2], "FP32").set_data_from_numpy(row) for i, row in enumerate(rows)]
        wanted = [httpclient.InferRequestedOutput("OUTPUT0", class_count=1), httpclient.InferRequestedOutput("OUTPUT1"),
                  httpclient.InferRequestedOutput("OUTPUT2", binary_data=False)]
        result = self.http.infer("labelled", tensors, outputs=wanted)
        self.assertEqual([result.as_numpy(f"OUTPUT{i}").tolist() for i in range(3)], [[[b"2.000000:1:dog"]], [[1, 2]], [[1, 2]]])

    @conch_only  # upstream ends with a signal
    def test_an_empty_output_has_no_classes(self):
        for shape, model, expected in (((1, 0), "one_FP32", [1, 0]), ((3, 0), "one_FP32", [3, 0]), ((0, 3), "flat_FP32", [0])):
            array = numpy.zeros(shape, numpy.float32)
            self.assertEqual(self.ask(array, 3, model, "FP32"), (expected, []))
        self.assert_serves("one_FP32")

    def test_large_outputs(self):
        """A million elements: the largest by each way, off the shard; one more is refused."""
        row = numpy.arange(1_000_000, dtype=numpy.int32).reshape(1, -1)
        self.assertEqual(self.ask(row, 2, "one_INT32", "INT32"), ([1, 2], ["999999:999999", "999998:999998"]))
        if IS_TRITON:
            return  # the bound is newer
        more = numpy.zeros((1, 1_000_001), numpy.int8)
        with self.assertRaises(InferenceServerException) as caught:
            self.ask(more, 1, "one_INT8", "INT8")
        self.assertEqual((caught.exception.status(), caught.exception.message()), ("400", "classification output tensor too large"))

    @conch_only
    def test_t15_all_classes_of_a_large_batch_do_not_hold_up_others(self):
        """4 times 200,000 classes, while a small request is asked again and again."""
        import threading
        import time
        rows = numpy.tile(numpy.arange(200_000, dtype=numpy.float32), (4, 1))
        tensor = httpclient.InferInput("INPUT0", [4, 200_000], "FP32").set_data_from_numpy(rows)
        results = []

        def large():
            with httpclient.InferenceServerClient(self.server.http, network_timeout=120) as client:
                wanted = httpclient.InferRequestedOutput("OUTPUT0", class_count=2**31 - 1)
                results.append(client.infer("one_FP32", [tensor], outputs=[wanted]).get_response()["outputs"][0])
        thread = threading.Thread(target=large)
        thread.start()
        waits = []
        while thread.is_alive():
            started = time.monotonic()
            self.assertEqual(self.server.get("/v2/health/live")[0], 200)
            waits.append(time.monotonic() - started)
        thread.join()
        self.assertEqual(results[0]["shape"], [4, 200_000])
        # On a machine that does other things, too: far less than the classes take.
        self.assertLess(sorted(waits)[len(waits) // 2], 0.05)


@needs_library("identity")
class LabelFiles(unittest.TestCase):
    """Label files that cannot be used."""

    def test_t1_outside_of_the_model(self):
        import server as servers
        from case import KIND
        from repository import Repository
        secret = "cat\n"
        for name, expected in (("../secret.txt", "is outside model directory"), ("outward.txt", "is outside model directory"),
                               ("missing.txt", "failed to open text file for read")):
            with self.subTest(name), Repository() as repository:
                (repository.path / "secret.txt").write_text(secret)
                config = identity(batch=4).replace('name: "OUTPUT0"', f'name: "OUTPUT0" label_filename: "{name}"')
                repository.model("m", config)
                (repository.path / "m/outward.txt").symlink_to(repository.path / "secret.txt")
                if IS_TRITON and "outside" in expected:
                    continue  # newer
                with servers.Server(repository.path, "--exit-on-error=false", "--strict-readiness=false", kind=KIND) as server:
                    server.wait_for_line(expected)
                    self.assertNotEqual(server.get("/v2/models/m/ready")[0], 200)


if __name__ == "__main__":
    unittest.main()
