"""Real models through the onnxruntime backend: the worked examples of the binary-tensor extension byte for byte, the examples of
this repository, and magika, whose answers are compared with ONNX Runtime's own in Python."""

import concurrent.futures
import json
import pathlib
import struct
import sys
import unittest

import numpy
import onnxruntime
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import onnx_model
import server as servers
import wire
from case import ServerCase, needs_library, pack
from waiting import until

EXAMPLES = servers.ROOT / "docs/examples/model_repository"


def onnx(inputs, outputs, batch=0):
    def rows(kind, entries):
        return "".join(f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: {list(dims)} }}\n'
                       for name, data_type, dims in entries)
    return f'backend: "onnxruntime"\nmax_batch_size: {batch}\n' + rows("input", inputs) + rows("output", outputs)


@needs_library("onnxruntime")
class WorkedExamples(ServerCase):
    """The requests and replies of upstream's page on the binary tensor data extension."""

    @staticmethod
    def models(repository):
        repository.model("mymodel", onnx([("input0", "UINT32", (2, 2)), ("input1", "BOOL", (3,))],
                                         [("output0", "FP32", (3, 2))]), files={"1/model.onnx": onnx_model.mixed()})
        repository.model("halves", onnx([("input", "FP32", (4,))], [("output0", "FP32", (3, 1)), ("output1", "FP32", (3, 1))]),
                         files={"1/model.onnx": onnx_model.halves()})
        repository.model("bare", None, files={"1/model.onnx": onnx_model.halves()})

    def test_19_bytes_in_24_out(self):
        text = json.dumps({
            "model_name": "mymodel",
            "inputs": [
                {"name": "input0", "shape": [2, 2], "datatype": "UINT32", "parameters": {"binary_data_size": 16}},
                {"name": "input1", "shape": [3], "datatype": "BOOL", "parameters": {"binary_data_size": 3}}],
            "outputs": [{"name": "output0", "parameters": {"binary_data": True}}]}).encode()
        tail = pack([1, 2, 3, 4], "I") + bytes([1, 0, 1])
        self.assertEqual(len(tail), 19)
        status, headers, reply, _ = self.exchange(wire.post(
            "/v2/models/mymodel/infer", text + tail, "Content-Type: application/octet-stream",
            f"Inference-Header-Content-Length: {len(text)}"))
        self.assertEqual(status, 200, reply)
        length = int(headers["inference-header-content-length"])
        self.assertEqual(headers["content-type"], "application/octet-stream")
        self.assertEqual(int(headers["content-length"]), length + 24)
        self.assertEqual(json.loads(reply[:length])["outputs"], [
            {"name": "output0", "datatype": "FP32", "shape": [3, 2], "parameters": {"binary_data_size": 24}}])
        self.assertEqual(reply[length:], pack([4, 6, 0, 0, 4, 6]))

    def test_raw_16_bytes_in_twice_12_out(self):
        status, headers, reply, _ = self.exchange(wire.post(
            "/v2/models/halves/infer", pack([1, 2, 3, 4]), "Content-Type: application/octet-stream",
            "Inference-Header-Content-Length: 0"))
        self.assertEqual(status, 200, reply)
        length = int(headers["inference-header-content-length"])
        self.assertEqual(int(headers["content-length"]), length + 24)
        outputs = json.loads(reply[:length])["outputs"]
        self.assertEqual(sorted(outputs, key=lambda row: row["name"]), [
            {"name": f"output{i}", "datatype": "FP32", "shape": [3, 1], "parameters": {"binary_data_size": 12}} for i in (0, 1)])
        expected = {"output0": pack([1, 2, 3]), "output1": pack([2, 3, 4])}
        self.assertEqual(reply[length:], b"".join(expected[row["name"]] for row in outputs))

    def test_configuration_completed_by_the_backend(self):
        config = self.server.get_json("/v2/models/bare/config")
        self.assertEqual(config["backend"], "onnxruntime")
        self.assertEqual([(row["name"], row["data_type"], row["dims"]) for row in config["input"]],
                         [("input", "TYPE_FP32", [4])])
        self.assertEqual(sorted((row["name"], tuple(row["dims"])) for row in config["output"]),
                         [("output0", (3, 1)), ("output1", (3, 1))])


# Bit patterns of 16-bit floats: zeros, ones, the largest, the smallest, infinities, and NaNs with a payload, which no number survives.
PATTERNS = {
    "FP16": [0x0000, 0x8000, 0x3C00, 0xBC00, 0x7BFF, 0x0001, 0x7C00, 0xFC00, 0x7E01, 0xFDAB, 0x3555, 0x0400],
    "BF16": [0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F, 0x0001, 0x7F80, 0xFF80, 0x7FC1, 0xFFAB, 0x3EAB, 0x0080],
}


def widen(data_type, pattern):
    """The FP32 value of a bit pattern."""
    if data_type == "FP16":
        return struct.unpack("<e", struct.pack("<H", pattern))[0]
    return struct.unpack("<f", struct.pack("<I", pattern << 16))[0]


@needs_library("onnxruntime")
class SixteenBits(ServerCase):
    """FP16 and BF16 through ONNX Runtime, which have no JSON form: the bytes in and out, over both protocols."""

    @staticmethod
    def models(repository):
        for name, kind in (("FP16", onnx_model.FLOAT16), ("BF16", onnx_model.BFLOAT16)):
            content = onnx_model.model(
                [("x", kind, ("n", 3)), ("narrow", onnx_model.FLOAT, ("n", 3))],
                [("same", kind, ("n", 3)), ("wide", onnx_model.FLOAT, ("n", 3)), ("narrowed", kind, ("n", 3))],
                [onnx_model.node("Identity", ["x"], ["same"]), onnx_model.node("Cast", ["x"], ["wide"], to=onnx_model.FLOAT),
                 onnx_model.node("Cast", ["narrow"], ["narrowed"], to=kind)])
            config = 'backend: "onnxruntime"\nmax_batch_size: 4\ndynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 2000000 }\n'
            repository.model(name, config, files={"1/model.onnx": content})

    # Outputs by name, of a request of two rows that fills half a batch.

    def over_http(self, name, narrow_bytes, wide_bytes):
        def row(tensor, data_type, content):
            return {"name": tensor, "shape": [2, 3], "datatype": data_type, "parameters": {"binary_data_size": len(content)}}
        text = json.dumps({"inputs": [row("x", name, narrow_bytes), row("narrow", "FP32", wide_bytes)],
                           "parameters": {"binary_data_output": True}}).encode()
        status, headers, reply = self.infer(text, narrow_bytes + wide_bytes, name)
        self.assertEqual(status, 200, reply)
        length = int(headers["inference-header-content-length"])
        outputs, rest = {}, reply[length:]
        for entry in json.loads(reply[:length])["outputs"]:
            self.assertEqual(entry["shape"], [2, 3])
            size = entry["parameters"]["binary_data_size"]
            outputs[entry["name"]], rest = (entry["datatype"], rest[:size]), rest[size:]
        self.assertEqual(rest, b"")
        return outputs

    def over_grpc(self, name, narrow_bytes, wide_bytes):
        tensors = []
        for tensor, data_type, content in (("x", name, narrow_bytes), ("narrow", "FP32", wide_bytes)):
            value = grpcclient.InferInput(tensor, [2, 3], data_type)
            value._raw_content = content  # its own conversion knows no NaN with a payload
            tensors.append(value)
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            response = client.infer(name, tensors).get_response()
        self.assertEqual([list(output.shape) for output in response.outputs], [[2, 3]] * 3)
        return {output.name: (output.datatype, content) for output, content in zip(response.outputs, response.raw_output_contents)}

    def test_bytes_in_and_out(self):
        for name, patterns in PATTERNS.items():
            # Both halves of a batch, one over each protocol; the odd row length makes the second half start at an odd multiple of 2 bytes.
            halves = [patterns[:6], patterns[6:]]
            finite = [[0x3F800000, 0xBF800000, 0x40490FDB, 0x3EAAAAAB, 0x00000000, 0x80000000], [0x42F6E979, 0x3DCCCCCD] * 3]
            packed = [(pack(half, "H"), pack(words, "I")) for half, words in zip(halves, finite)]
            before = self.server.statistics(name)["execution_count"]
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                calls = [pool.submit(way, name, *content) for way, content in zip((self.over_http, self.over_grpc), packed)]
                answers = [call.result() for call in calls]
            # Upstream may count an execution after it was answered.
            executed = until(lambda: self.server.statistics(name)["execution_count"] - before, f"an execution of {name}")
            self.assertEqual(executed, 1, "both were one batch")
            for half, words, (narrow_bytes, _), answer in zip(halves, finite, packed, answers):
                with self.subTest(name, half=half):
                    self.assertEqual(answer["same"], (name, narrow_bytes))
                    self.assertEqual(answer["wide"][0], "FP32")
                    wide = struct.unpack("<6f", answer["wide"][1])
                    numpy.testing.assert_array_equal(wide, [widen(name, pattern) for pattern in half])
                    self.assertEqual(answer["narrowed"], (name, pack([self.narrow(name, word) for word in words], "H")))

    @staticmethod
    def narrow(data_type, word):
        """The nearest 16-bit pattern of an FP32 one, ties to even."""
        if data_type == "FP16":
            value, = struct.unpack("<f", struct.pack("<I", word))
            return struct.unpack("<H", struct.pack("<e", value))[0]
        return (word + 0x7FFF + (word >> 16 & 1)) >> 16

    def test_completed_configuration(self):
        for name in PATTERNS:
            config = self.server.get_json(f"/v2/models/{name}/config")
            self.assertEqual([row["data_type"] for row in config["input"]], [f"TYPE_{name}", "TYPE_FP32"])
            self.assertEqual({row["name"]: row["data_type"] for row in config["output"]},
                             {"same": f"TYPE_{name}", "wide": "TYPE_FP32", "narrowed": f"TYPE_{name}"})


@needs_library("onnxruntime")
class Examples(ServerCase):
    """The repository that the README serves."""

    repository_path = EXAMPLES
    flags = ("--exit-on-error=false", "--strict-readiness=false")

    def test_addsub(self):
        first, second = numpy.arange(4, dtype=numpy.float32).reshape(1, 4), numpy.full((1, 4), 10, numpy.float32)
        for client, address in ((httpclient, self.server.http), (grpcclient, self.server.grpc)):
            inputs = []
            for name, array in (("INPUT0", first), ("INPUT1", second)):
                value = client.InferInput(name, [1, 4], "FP32")
                value.set_data_from_numpy(array)
                inputs.append(value)
            with client.InferenceServerClient(address) as connection:
                result = connection.infer("addsub", inputs)
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)

    def test_simple_identity(self):
        self.assert_serves("simple_identity", (2, 3))


BLOCK, EDGE, PADDING = 4096, 1024, 256


def features(content):
    """The first and the last 1024 bytes of a file, without the white space around it, padded: magika's input."""
    first = content[:BLOCK].lstrip()[:EDGE]
    last = content[-BLOCK:].rstrip()[-EDGE:]
    return ([*first] + [PADDING] * (EDGE - len(first))) + ([PADDING] * (EDGE - len(last)) + [*last])


def samples():
    """Real files, and what each is. Files of this checkout and of the Python that runs the tests; some are made by libraries."""
    import gzip
    import io
    import sqlite3
    import tempfile
    import zipfile
    library = pathlib.Path(json.__file__)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for index in range(5):
            archive.writestr(f"notes/{index}.txt", "some text\n" * 50)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "base"
        base = sqlite3.connect(path)
        base.execute("create table things (id integer primary key, name text)")
        base.executemany("insert into things (name) values (?)", [(f"thing {i}",) for i in range(200)])
        base.commit()
        base.close()
        database = path.read_bytes()
    rust = servers.ROOT / "src/main.rs"
    return [
        ("python", library.read_bytes()), ("python", pathlib.Path(library.parent / "decoder.py").read_bytes()),
        ("rust", rust.read_bytes()), ("markdown", (servers.ROOT / "README.md").read_bytes()),
        ("shell", (servers.ROOT / "scripts/serve").read_bytes()), ("toml", (servers.ROOT / "Cargo.toml").read_bytes()),
        ("elf", pathlib.Path(sys.executable).resolve().read_bytes()), ("gzip", gzip.compress(library.read_bytes())),
        ("zip", packed.getvalue()), ("sqlite", database),
        ("json", json.dumps({"rows": [{"id": i, "name": f"row {i}", "tags": ["a", "b"]} for i in range(60)]}, indent=2).encode()),
    ]


@needs_library("onnxruntime")
class Magika(ServerCase):
    """A real model: file types by content."""

    repository_path = EXAMPLES
    flags = ("--exit-on-error=false", "--strict-readiness=false")

    @classmethod
    def setUpClass(cls):
        cls.model = next(iter(sorted((EXAMPLES / "magika").glob("*/model.onnx"))), None)
        if cls.model is None:
            raise unittest.SkipTest("the magika model is not there: run scripts/fetch-models")
        super().setUpClass()
        if cls.server.get("/v2/models/magika/ready")[0] != 200:
            raise AssertionError(f"magika did not load\n{cls.server.output[-3000:]}")
        config = cls.server.get_json("/v2/models/magika/config")
        cls.input, cls.output = config["input"][0]["name"], config["output"][0]["name"]
        cls.session = onnxruntime.InferenceSession(str(cls.model), providers=["CPUExecutionProvider"])
        cls.samples = samples()
        cls.rows = numpy.array([features(content) for _, content in cls.samples], numpy.int32)

    def reference(self, rows):
        return self.session.run(None, {self.session.get_inputs()[0].name: rows})[0]

    def ask(self, client, rows):
        value = grpcclient.InferInput(self.input, list(rows.shape), "INT32")
        value.set_data_from_numpy(rows)
        return client.infer("magika", [value]).as_numpy(self.output)

    def labels(self):
        for place in (self.model.parent.parent, self.model.parent):
            for file in sorted(place.glob("*")):
                if file.name.endswith("labels.txt"):
                    return file.read_text().split("\n")
                if file.name.endswith("config.min.json"):
                    return json.loads(file.read_text())["target_labels_space"]
        self.fail("magika has no file with its labels")

    def test_top_labels(self):
        labels = self.labels()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            answers = self.ask(client, self.rows)
        got = [labels[index] for index in answers.argmax(axis=1)]
        self.assertEqual(got, [label for label, _ in self.samples])

    def test_same_batch_is_equal_bit_for_bit(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for size in (1, 2, 5, len(self.rows)):
                got = self.ask(client, self.rows[:size])
                self.assertEqual(got.tobytes(), self.reference(self.rows[:size]).tobytes(), size)

    def test_32_callers_are_batched(self):
        """Concurrent callers share executions, and each gets its own answer."""
        alone = self.reference(self.rows)
        before = self.server.statistics("magika")
        addresses = [grpcclient.InferenceServerClient(self.server.grpc) for _ in range(32)]

        def caller(number):
            worst = 0.0
            for turn in range(8):
                index = (number + turn) % len(self.rows)
                got = self.ask(addresses[number], self.rows[index:index + 1])
                worst = max(worst, float(numpy.abs(got[0] - alone[index]).max()))
            return worst

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            worst = max(pool.map(caller, range(32)))
        for client in addresses:
            client.close()
        # The real Triton counts a request when it has answered it.
        inferences = before["inference_count"] + 32 * 8
        after = until(lambda: self.server.statistics("magika"), f"{inferences} inferences",
                      accept=lambda now: now["inference_count"] >= inferences)
        self.assertEqual(after["inference_count"], inferences)
        # ONNX Runtime adds in another order in batches of other sizes: sums differ in their last digits, by 2.0e-5 where most was seen.
        self.assertLessEqual(worst, 1e-4)
        self.assertLessEqual(after["execution_count"] - before["execution_count"], 32 * 8 / 4)


if __name__ == "__main__":
    unittest.main()
