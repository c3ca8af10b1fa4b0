"""What a server that faces its clients must stand, a test each: sizes, numbers, nesting, cancellations and counts from outside. After
each the server answers the next request, and has not grown for it."""

import gzip
import json
import random
import struct
import threading
import time

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import wire
from case import ServerCase, conch_only, pack
from repository import identity
from test_stream import square

INFER = "/v2/models/identity/infer"
GROWTH_BYTES_MAX = 96 << 20


def models(repository):
    repository.model("identity", identity(batch=8))
    repository.model("text", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("wide", identity([("INPUT0", "FP32", (-1, -1, -1))]))
    repository.model("slow", identity(batch=8, parameters={"execute_delay_ms": "30"}))
    repository.model("square", square())


def tensor(**more):
    return {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **more}


def binary(size, **more):
    value = tensor(parameters={"binary_data_size": size}, **more)
    del value["data"]
    return value


@conch_only
class Security(ServerCase):
    models = staticmethod(models)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")

    def setUp(self):
        self.before = self.server.resident_bytes()

    def tearDown(self):
        self.assert_serves(shape=(1, 2))
        self.assertLess(self.server.resident_bytes() - self.before, GROWTH_BYTES_MAX)

    def refused(self, raw, statuses=(400, 413, 431, 500, 501), timeout=30):
        """Sends what must be refused; None where the answer was lost because the server closed while we were still sending."""
        with wire.connect(self.server, timeout=timeout) as link:
            try:
                link.sendall(raw)
                status = wire.Replies(link).next()[0]
            except ConnectionError:
                return None
        self.assertIn(status, statuses, raw[:300])
        return status

    def stub(self):
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    # T8

    def chunked(self, count, size=1):
        body = json.dumps({"inputs": [tensor()]}).encode()
        piece = b"%x\r\n" % size + b" " * size + b"\r\n"
        first = b"%x\r\n%s\r\n" % (len(body), body)
        return wire.post(INFER, first + piece * (count - 1) + b"0\r\n\r\n", "Transfer-Encoding: chunked", length=False)

    def test_t8_chunks(self):
        self.assertEqual(self.exchange(self.chunked(65_536))[0], 200)
        status, _, body, is_closed = self.exchange(self.chunked(65_537))
        self.assertEqual((status, is_closed), (400, True))
        self.assertIn(b"exceeds maximum of 65536 non-empty chunks", body)
        # Three megabytes of chunks of a byte, then ten million of them: refused as soon as there are too many.
        for count in (500_000, 10_000_000):
            self.refused(self.chunked(count), (400,))

    def test_t8_chunk_sizes(self):
        for size in (b"0x1", b"-1", b"+1", b" 1", b"1 ", b"ffffffffffffffff", b"10000000000000000", b"g", b"", b"1;" + b"x" * 100_000):
            self.refused(wire.post(INFER, size + b"\r\nx\r\n0\r\n\r\n", "Transfer-Encoding: chunked", length=False), (400, 413, 431, 500))

    # T9

    def test_t9_dimensions(self):
        for shape in ([2**31, 2**31], [2**32, 2**32], [2**63 - 1], [2**63 - 1, 2], [2**63], [2**64 - 1], [2**64], [-1, 2], [0, 2**63 - 1], [1, 2**62], [1, 2**61],
                      [3037000500, 3037000500], [1] * 1000, [2] * 63, [2] * 64, [65536, 65536, 65536, 65536], [1.5, 2], ["1", 2], [None], [True, 2], []):
            for value in (tensor(shape=shape), binary(8, shape=shape)):
                for model in ("identity", "wide"):
                    text = json.dumps({"inputs": [value]}).encode()
                    tail = bytes(8) if "parameters" in value else b""
                    self.refused(wire.infer_json(text, tail, f"/v2/models/{model}/infer"), (400, 500))

    def test_t9_dimensions_over_grpc(self):
        stub = self.stub()
        for shape in ([2**31, 2**31], [2**63 - 1], [2**63 - 1, 2], [-1, 2], [-(2**63), 2], [0, 2**63 - 1], [2**62, 4], [1] * 1000, [2] * 64, []):
            value = pb.ModelInferRequest(model_name="wide", raw_input_contents=[bytes(8)])
            value.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
            with self.assertRaises(grpc.RpcError) as caught:
                stub.ModelInfer(value, timeout=10)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, shape)

    def test_t9_lengths(self):
        for value in ("2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "-1", "-9223372036854775808",
                      "1e3", "0x10", "", " ", "٣"):
            raw = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: {value}\r\n\r\n".encode() + b"{}"
            with wire.connect(self.server, timeout=1) as link:
                link.sendall(raw)
                try:
                    status = wire.Replies(link).next()[0]
                except (TimeoutError, EOFError):
                    continue  # a length that could be meant: the rest is waited for
                self.assertIn(status, (400, 413))

    def test_t9_numbers_at_their_edges(self):
        for number in (b"3.5e38", b"1e309", b"-1e309", b"1e999999999999", b"1" * 400, b"0." + b"1" * 4000, b"1e-999999", b"-0", b"123456789012345678901234567890"):
            text = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[' + number + b",1]}]}"
            self.assertIn(self.infer(text)[0], (200, 400, 500), number)
        for key in ("priority", "timeout", "sequence_id"):
            for number in (-1, 2**63, 2**64, 1.5, 1e300):
                self.assertIn(self.infer({"inputs": [tensor()], "parameters": {key: number}})[0], (200, 400, 500))

    def test_t9_base64(self):
        load = "/v2/repository/models/other/load"
        for text in ("A", "AB=", "====", "A" * 65_537, "\u00e9" * 100, "A" * (1 << 20) + "=" * 1000):
            body = json.dumps({"parameters": {"config": "{}", "file:1/model": text}}).encode()
            self.refused(wire.post(load, body), (400, 500))

    # T10

    def test_t10_zeros_and_mismatches(self):
        for value in (tensor(shape=[0, 2], data=[]), tensor(shape=[1, 0], data=[]), tensor(shape=[0, 0], data=[]), tensor(shape=[0], data=[]), binary(0, shape=[0, 2]), binary(0, shape=[1, 0])):
            self.assertIn(self.infer({"inputs": [value]}, b"")[0], (200, 400), value)
        for value, tail in ((binary(8, shape=[1, 3]), bytes(8)), (binary(9), bytes(9)), (binary(2**63), bytes(8)), (binary(2**64 - 1), bytes(8)), (binary(7), bytes(8))):
            self.assertIn(self.infer({"inputs": [value]}, tail)[0], (400, 500), value)
        for count in (0, 1, 2**31, 2**32, 2**63, 2**64 - 1, -1, "x", 1.5, None):
            value = {"inputs": [tensor()], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": count}}]}
            self.assertIn(self.infer(value)[0], (200, 400, 500), count)
        value = {"inputs": [tensor(shape=[1, 0], data=[])], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 3}}]}
        self.assertEqual(self.infer(value)[0], 200)

    def test_t10_expansion(self):
        """A few bytes of JSON that promise a large tensor take no memory."""
        for shape in ([1, 2**28], [8, 2**30], [1, 16_000_000]):
            self.refused(wire.infer_json({"inputs": [tensor(shape=shape, data=[1])]}), (400, 500))

    # T11

    def test_t11_nesting(self):
        paths = [INFER, "/v2/repository/index", "/v2/repository/models/identity/load", "/v2/repository/models/identity/unload", "/v2/models/identity/generate",
                 "/v2/models/identity/generate_stream", "/v2/logging", "/v2/trace/setting", "/v2/models/identity/trace/setting", "/v2/systemsharedmemory/region/x/register",
                 "/v2/cudasharedmemory/region/x/register"]
        for path in paths:
            for depth in (99, 100, 101, 1_000_000):
                for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
                    text = b'{"x":' + opening * depth + (b"1" if opening != b"[" else b"") + closing * depth + b"}"
                    with wire.connect(self.server, timeout=30) as link:
                        try:
                            link.sendall(wire.post(path, text))
                            status = wire.Replies(link).next()[0]
                        except ConnectionError:
                            continue
                        self.assertLess(status, 504, (path, depth))
        # What came along was harmless: the model is there still, or again.
        self.assertEqual(self.server.request("POST", "/v2/repository/models/identity/load", b"")[0], 200)

    def test_t11_configurations(self):
        for depth in (99, 101, 100_000):
            for text in ('{"a":' * depth + "1" + "}" * depth, '{"model_warmup":[' + "[" * depth + "]" * depth + "]}"):
                body = json.dumps({"parameters": {"config": text}}).encode()
                self.refused(wire.post("/v2/repository/models/other/load", body), (400, 500))

    def test_t11_messages(self):
        """Groups and messages within messages, as deep as they come."""
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        for depth in (99, 101, 20_000):
            groups = b"\x5b" * depth + b"\x5c" * depth  # field 11, which nobody knows
            nested = b""
            for _ in range(min(depth, 2_000)):
                nested = b"\x22" + wire.varint(len(nested)) + nested
            for payload in (groups, nested):
                for method in ("ModelInfer", "RepositoryModelLoad", "ModelMetadata"):
                    with self.assertRaises(grpc.RpcError):
                        channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(payload, timeout=10)

    # T12

    def test_t12_cancelled_streams(self):
        stub = self.stub()
        noise = random.Random(7)

        def requests(count, model):
            for index in range(count):
                if model == "square":
                    value = pb.ModelInferRequest(model_name="square", id=str(index), raw_input_contents=[struct.pack("<i", noise.randrange(8))])
                    value.inputs.add(name="IN", datatype="INT32", shape=[1])
                else:
                    value = pb.ModelInferRequest(model_name=model, id=str(index), raw_input_contents=[pack([1, 2])])
                    value.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2])
                yield value
                if noise.random() < 0.3:
                    time.sleep(noise.random() * 0.01)  # a client that takes its time

        def client():
            for turn in range(60):
                metadata = (("triton_grpc_error", "true"),) if turn % 3 == 0 else ()
                answers = stub.ModelStreamInfer(requests(noise.randrange(1, 6), noise.choice(["identity", "slow", "square", "absent"])), timeout=20, metadata=metadata)
                try:
                    for _ in range(noise.randrange(4)):
                        next(answers, None)
                except grpc.RpcError:
                    pass
                answers.cancel()

        clients = [threading.Thread(target=client) for _ in range(6)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        self.settled("slow")
        self.settled("square")

    def settled(self, model):
        """Nothing is left of what was cancelled: no request waits, and the model answers."""
        self.server.wait_for_pending(model, 0)

    def test_t12_resets_at_every_frame(self):
        value = pb.ModelInferRequest(model_name="slow", raw_input_contents=[pack([1, 2])])
        value.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2])
        message = value.SerializeToString()
        framed = b"\0" + struct.pack(">I", len(message)) + message
        for method in ("ModelInfer", "ModelStreamInfer"):
            for cut in range(0, len(framed) + 1, 3):
                with wire.Http2(self.server).start() as link:
                    for stream in (1, 3, 5):
                        link.send(wire.frame(wire.HEADERS, 4, stream, wire.call_head(method)))
                        if cut:
                            link.send(wire.frame(wire.DATA, 0, stream, framed[:cut]))
                        link.send(wire.frame(wire.RST_STREAM, 0, stream, struct.pack(">I", 8)))
        self.settled("slow")

    # T15

    def test_t15_counts(self):
        many = 200_000
        started = time.monotonic()
        for value in ({"inputs": [tensor()], "outputs": [{"name": f"O{index}"} for index in range(many)]}, {"inputs": [tensor()], "outputs": [{"name": "OUTPUT0"}] * many},
                      {"inputs": [tensor(name=f"I{index}") for index in range(many // 2)]}, {"inputs": [tensor()] * (many // 2)}):
            self.refused(wire.infer_json(value), (400,))
        self.assertIn(self.infer({"inputs": [tensor()], "parameters": {f"p{index}": index for index in range(many)}})[0], (200, 400))
        self.refused(f"GET /v2 HTTP/1.1\r\n{''.join(f'H{index}: x' + chr(13) + chr(10) for index in range(100_000))}\r\n".encode(), (400, 431))
        self.assertLess(time.monotonic() - started, 60)

    def test_t15_counts_over_grpc(self):
        stub = self.stub()
        value = pb.ModelInferRequest(model_name="identity", raw_input_contents=[pack([1, 2])])
        value.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2])
        outputs = pb.ModelInferRequest()
        outputs.CopyFrom(value)
        for index in range(100_000):
            outputs.outputs.add(name=f"O{index}")
        inputs = pb.ModelInferRequest()
        inputs.CopyFrom(value)
        for index in range(100_000):
            inputs.inputs.add(name=f"I{index}", datatype="FP32", shape=[1])
        for wrong in (outputs, inputs):
            with self.assertRaises(grpc.RpcError) as caught:
                stub.ModelInfer(wrong, timeout=30)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    # T18

    def test_t18_headers(self):
        body = json.dumps({"inputs": [tensor()]}).encode()
        for value in ("abc", "-1", "1.5", "99999999999999999999", "2147483648", "0x10", "", " ", "+5", "1,1", "NaN"):
            status = self.exchange(wire.post(INFER, body, f"Inference-Header-Content-Length: {value}"))[0]
            self.assertIn(status, (400, 500), value)  # what begins with a number counts as that number: of too few bytes
        for name in ("Accept-Encoding", "Content-Encoding", "Endpoint-Load-Metrics-Format", "Expect", "Content-Type"):
            for value in ("x" * 1000, ";;;", "gzip;q=-1", "gzip;q=1e400", "\xff"):
                self.assertLess(self.exchange(wire.post(INFER, body, f"{name}: {value}"))[0], 502)
        for path in ("/v2/models/identity/versions/99999999999999999999/infer", "/v2/models/identity/versions/-1/infer", "/v2/models/identity/versions/1x", "/v2/models/identity?x=1",
                     "/v2/models/identity/versions/0/ready", "/v2/models/%00/ready", "/v2/models/%ff/ready", "/v2/models/%/ready"):
            self.assertIn(self.exchange(wire.post(path, body))[0], (400, 404, 405, 503), path)

    def test_t18_deadlines(self):
        for value in ("abc", "-1S", "1", "99999999999S", "1.5S", "", "S", "100000000n", "0n", "9" * 100 + "S"):
            with wire.Http2(self.server).start() as link:
                message = pb.ServerLiveRequest().SerializeToString()
                link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ServerLive", ("grpc-timeout", value))),
                          wire.frame(wire.DATA, 1, 1, b"\0" + struct.pack(">I", len(message)) + message))
                self.assertIsNotNone(link.wait_for(wire.HEADERS, wire.RST_STREAM), value)

    # T20

    def test_t20_no_bytes_of_others(self):
        """What one client sends is never part of an answer to another, whatever the sizes."""
        canary = b"CANARY0!"
        secret = canary * 512
        stop, leaks = threading.Event(), []

        def tenant():
            value = json.dumps({"inputs": [binary(len(secret), shape=[1, len(secret) // 4])], "parameters": {"binary_data_output": True}}).encode()
            while not stop.is_set():
                self.server.request("POST", INFER, value + secret, {"Inference-Header-Content-Length": str(len(value))})
                self.server.request("POST", INFER, gzip.compress(value + secret), {"Inference-Header-Content-Length": str(len(value)), "Content-Encoding": "gzip"})

        others = [threading.Thread(target=tenant) for _ in range(2)]
        for one in others:
            one.start()
        noise = random.Random(3)
        try:
            for _ in range(1_500):
                count = noise.choice([0, 1, 2, 3, 15, 16, 17, 255, 1024, 1025])
                value = {"inputs": [binary(4 * count, shape=[1, count])], "parameters": {"binary_data_output": noise.random() < 0.7}}
                if noise.random() < 0.2:
                    value["inputs"][0]["shape"] = [1, count + 1]
                status, _, reply = self.infer(value, bytes(4 * count))
                if canary[:6] in reply:
                    leaks.append((status, reply[:200]))
        finally:
            stop.set()
            for one in others:
                one.join()
        self.assertEqual(leaks, [])
