"""Refusals of conch's own, where upstream has no bound or its library's words: each by what provokes it, with status and words."""

import json
import unittest

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import certificates
import region
import wire
from case import ServerCase, conch_only, needs_library
from probe import Record, probe
from repository import Repository, identity
from test_demand import flags
from test_ensembles import chain, ensemble
from test_grpc_compression import call, framed
from test_process import free_flags, run

HOST = "Host: t\r\n"
INFER = "POST /v2/models/identity/infer HTTP/1.1\r\n" + HOST
CHUNKED = INFER + "Transfer-Encoding: chunked\r\n\r\n"
# Raw text, status, message.
HTTP = [
    (f"GET /{'a' * 70_000} HTTP/1.1\r\n", 431, "the request's head is too large"),
    ("GET / HTTP/1.1\r\n" + "a: b\r\n" * 600 + "\r\n", 431, "the request has too many headers"),
    ("GET / HTTP/1.1\r\nExpect: miracles\r\n\r\n", 417, "the request's Expect is not supported"),
    ("GET / HTTP/1.1\r\n\r\n", 400, "the request has no Host"),
    ("GET / HTTP/1.1\r\n" + HOST * 2 + "\r\n", 400, "the request has more than one Host"),
    (INFER + "Content-Length: 4\r\nContent-Length: 4\r\n\r\n", 400, "the request has more than one Content-Length"),
    (INFER + "Transfer-Encoding: gzip\r\n\r\n", 400, "the request's Transfer-Encoding is not supported"),
    ("GET / HTTP/1.1\n\n", 400, "a line of the request's head ends without a carriage return"),
    ("GET / HTTP/9.1\r\n\r\n", 400, "the request's head is malformed: invalid HTTP version"),
    (CHUNKED + "x\r\n", 400, "the chunked body is malformed: unexpected byte"),
    (CHUNKED + "1 x\r\n", 400, "the chunked body is malformed: unexpected byte"),
    (CHUNKED + "0" * 65, 400, "the chunked body is malformed: a chunk's size has too many digits"),
    (CHUNKED + "1ffffffff0", 413, "the request's body is too large"),
    (CHUNKED + "1;" + "x" * 10_000, 400, "the chunked body is malformed: too many bytes beside the data"),
    (CHUNKED + "0\r\nX: y\n", 400, "the chunked body is malformed: a line ends without a carriage return"),
]


@conch_only
@needs_library("identity")
class Listeners(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))

    def test_http(self):
        for raw, status, message in HTTP:
            with self.subTest(message), wire.connect(self.server) as link:
                link.sendall(raw.encode())
                replies = wire.Replies(link)
                got, headers, body = replies.next()
                self.assertEqual((got, json.loads(body)), (status, {"error": message}))
                self.assertTrue(replies.is_closed())
        self.assert_serves()

    def refused(self, method, message, metadata=()):
        with grpc.insecure_channel(self.server.grpc, options=[("grpc.max_metadata_size", 1 << 20)]) as channel:
            stub = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with self.assertRaises(grpc.RpcError) as caught:
                stub(message.SerializeToString(), metadata=metadata, timeout=30)
        return caught.exception.code(), caught.exception.details()

    def test_grpc(self):
        asked = pb.ModelInferRequest(model_name="identity")
        _, _, trailers = call(self.server, framed(b"") * 2, method="ServerLive")
        self.assertEqual((trailers["grpc-status"], trailers["grpc-message"]), ("13", "the call carries more than one message"))
        asked.inputs.add(name="INPUT0", datatype="FP32", shape=[1] * 1025)
        self.assertEqual(self.refused("ModelInfer", asked), (grpc.StatusCode.INVALID_ARGUMENT, "input shape has more than 1024 dimensions"))
        code, words = self.refused("ServerLive", pb.ServerLiveRequest(), (("key", "v" * 20_000),))
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertRegex(words, r"^received metadata size exceeds limit \(2\d{4} vs\. 16384\)$")
        self.assert_serves()

    def test_reflection(self):
        def text(number, value):
            return bytes([number << 3 | 2, len(value)]) + value
        with grpc.insecure_channel(self.server.grpc) as channel:
            ask = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            for question, expected in (
                    (text(3, b"no.proto"), b"File not found."), (text(4, b"no.Symbol"), b"Symbol not found."),
                    (text(5, text(1, b"inference.ModelInferRequest")), b"Extension not found."), (text(6, b"no.Type"), b"Type not found.")):
                reply, = ask(iter([question]), timeout=30)
                # error_response { error_code: NOT_FOUND error_message }
                self.assertTrue(reply.endswith(b"\x08\x05" + text(2, expected)), reply)


@conch_only
@needs_library("identity")
class Memory(ServerCase):
    """Tensors of 4 MiB where requests may hold one."""

    flags = ("--memory-limit-bytes=1048576", region.FLAG)

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))
        repository.model("flat", identity())
        repository.model("through", ensemble(chain("flat"), outputs=[("INPUT0", "FP32", (-1,)), ("OUTPUT0", "FP32", (-1,))]))

    def test_a_request_that_is_too_large(self):
        count = 1 << 20
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "parameters": {"binary_data_size": 4 * count}}
        status, _, body = self.infer({"inputs": [tensor]}, bytes(4 * count))
        self.assertEqual((status, json.loads(body)["error"]), (503, "the server has no memory left for the request: the limit is 1048576 bytes"))
        asked = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(4 * count)])
        asked.inputs.add(name="INPUT0", datatype="FP32", shape=[1, count])
        with grpc.insecure_channel(self.server.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
            with self.assertRaises(grpc.RpcError) as caught:
                service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked, timeout=30)
        self.assertEqual((caught.exception.code(), caught.exception.details()),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "the server's limit of 1048576 bytes for requests is reached (--memory-limit-bytes)"))
        self.assert_serves()


    def test_an_ensemble_that_answers_with_its_input(self):
        """Its copy of what a client may still change is charged like any output."""
        with region.Object(1 << 20, content=bytes(range(256)) * 4096) as memory:
            self.assertEqual(region.register(self.server, "in", memory.key, 1 << 20)[0], 200)
            self.addCleanup(region.unregister, self.server, "in")
            for count, outputs, expected in ((1 << 12, ("INPUT0", "OUTPUT0"), 200), (100 << 10, ("OUTPUT0",), 200),
                                             (100 << 10, ("INPUT0", "OUTPUT0"), 503), (100 << 10, ("INPUT0",), 200)):
                with self.subTest(count=count, outputs=outputs):
                    asked = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [count], "parameters": region.part("in", 0, 4 * count)}],
                             "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs]}
                    status, headers, reply = self.infer(asked, model="through")
                    self.assertEqual(status, expected, reply[:300])
                    if status == 200:
                        data = reply[int(headers["inference-header-content-length"]):]
                        self.assertTrue(data == memory.read(0, 4 * count) * len(outputs))
                    else:
                        self.assertEqual(json.loads(reply)["error"], "the server has no memory left for the request: the limit is 1048576 bytes")
        self.assert_serves()


@conch_only
@needs_library("identity")
class Starts(unittest.TestCase):
    def refused(self, *flags):
        with Repository().model("identity", identity()) as repository:
            code, _, err = run(f"--model-repository={repository}", *free_flags(), *flags)
        self.assertEqual(code, 1, err)
        return err

    def test_keys_and_certificates(self):
        made = certificates.shared()
        empty = made.write("empty.pem", b"")
        for certificate, key, reason in (
                (empty, made.server_key, "it holds no certificate in PEM"),
                (made.server, empty, "it holds no private key in PEM, or only an encrypted one"),
                (made.server, made.client_key, rf"it is not the key of the certificate in '{made.server}' \(--grpc-server-cert\)")):
            with self.subTest(reason):
                err = self.refused("--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")
                self.assertRegex(err, reason)

    def test_flags_that_exclude_each_other(self):
        for flags_, reason in (
                (("--model-memory-budget-bytes=1",), "--model-memory-budget-bytes needs --model-control-mode=explicit."),
                (("--model-memory-budget-bytes=1", "--model-control-mode=explicit", "--model-namespacing=true"),
                 "a budget for the memory of models excludes --model-namespacing"),
                (("--executions-max=1", "--rate-limit=execution_count"), "--executions-max excludes --rate-limit=execution_count.")):
            with self.subTest(reason):
                self.assertIn(reason, self.refused(*flags_))


@conch_only
@needs_library("probe")
class Demand(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = (*flags(1, "--model-wait-secs=1"), cls.record.flag)
        super().setUpClass()

    @staticmethod
    def models(repository):
        repository.model("slow", probe(initialize_ms=2000))

    def test_a_model_that_takes_too_long(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]}]}
        status, _, reply = self.infer(body, model="slow")
        self.assertEqual((status, json.loads(reply)["error"]), (503, "model 'slow' was not loaded within 1 s"))


if __name__ == "__main__":
    unittest.main()
