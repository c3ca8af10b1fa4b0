"""What clients do that is a little off, or newer, or older, and that is served all the same; and what is refused at once for being off."""

import http.client
import json
import socket
import unittest

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import wire
from case import ServerCase, conch_only, needs_library
from repository import identity
from test_stream import REPEAT as REPEAT_CONFIG

# The real Triton at hand is of a release that does otherwise.
newer = conch_only
ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
INFER, INDEX = "/v2/models/identity/infer", "/v2/repository/index"
REPEAT = {"IN": [4, 2], "DELAY": [300, 300], "WAIT": 0}


def half_closed(server, raw):
    """The bytes that a client gets which sends no more than `raw`, and says so."""
    with wire.connect(server) as link:
        link.sendall(raw)
        link.shutdown(socket.SHUT_WR)
        held = b""
        while piece := link.recv(1 << 16):
            held += piece
        return held


def parsed(held):
    """(status, body) of the one answer in `held`, read as a library reads it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(held)
        ours.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(theirs)
        answer.begin()
        return answer.status, answer.read()


@needs_library("identity")
@needs_library("repeat")
class HalfClosed(ServerCase):
    """The end of a client's requests is not the end of its interest."""

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8)).model("repeat", REPEAT_CONFIG)

    def test_infer(self):
        status, body = parsed(half_closed(self.server, wire.infer_json(ONE)))
        self.assertEqual((status, json.loads(body)["outputs"][0]["data"]), (200, [1, 2]))

    @conch_only  # 2.51 sends one event and then hangs
    def test_a_stream_with_pauses(self):
        """Before the first event, and between two, the client is looked after, and gets no byte that it would not get otherwise."""
        held = half_closed(self.server, wire.post("/v2/models/repeat/generate_stream", json.dumps(REPEAT).encode()))
        self.assertEqual(held.count(b"HTTP/1.1"), 1)
        status, body = parsed(held)
        events = [json.loads(event[6:])["OUT"] for event in body.decode().split("\n\n") if event]
        self.assertEqual((status, events), (200, [4, 2]))

    @conch_only  # upstream reads one of them
    def test_pipelined(self):
        held = half_closed(self.server, wire.infer_json(ONE) * 3 + wire.post(INDEX))
        self.assertEqual(held.count(b"HTTP/1.1 200 OK\r\n"), 4)

    @conch_only  # upstream sends chunks
    def test_http_1_0(self):
        raw = wire.post("/v2/models/repeat/generate_stream", json.dumps(REPEAT).encode()).replace(b"HTTP/1.1", b"HTTP/1.0")
        held = half_closed(self.server, raw)
        self.assertTrue(held.startswith(b"HTTP/1.0 200 OK\r\n"), held)
        self.assertEqual(held.count(b"data: "), 2)

    @conch_only
    def test_half_a_request_is_none(self):
        raw = wire.infer_json(ONE)
        for end in (10, len(raw) - 1):
            self.assertEqual(half_closed(self.server, raw[:end]), b"")
        self.assert_serves()


@needs_library("identity")
class Json(ServerCase):
    flags = ("--model-control-mode=explicit", "--load-model=identity")

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8)).model("other", identity())

    def ask(self, text, path=INFER):
        status, _, body = self.server.request("POST", path, text)
        return status, json.loads(body) if body else None

    def test_what_stands_around_it(self):
        text = json.dumps(ONE).encode()
        for around in (b"\xef\xbb\xbf" + text, text + b"\0", text + b"\0\0 [", b"\xef\xbb\xbf \n" + text + b" \0"):
            self.assertEqual(self.ask(around)[0], 200, around)
        self.assertEqual(self.ask(b"\xef\xbb\xbf{}\0", INDEX)[0], 200)
        self.assertEqual(self.ask(b"\0", INDEX), (500, {"error": "failed to parse the request JSON buffer: The document is empty. at 0"}))
        status, _, body = self.server.request("POST", INFER, b"\xef\xbb\xbf" + text + b"\0", {"Inference-Header-Content-Length": str(len(text) + 4)})
        self.assertEqual(status, 200, body)

    @conch_only  # 2.51 ends with a SIGSEGV
    def test_what_nobody_reads_may_be_deep(self):
        deep = "[" * 250_000 + "true" + "]" * 250_000
        self.assertEqual(self.ask(f'{{"x":{deep}}}', INDEX)[0], 200)
        self.assertEqual(self.ask(json.dumps(ONE)[:-1] + f',"x":{deep}}}')[0], 200)

    @newer
    def test_a_deep_wish(self):
        deep = "[" * 250_000 + "true" + "]" * 250_000
        self.assertEqual(self.ask(f'{{"ready":{deep}}}', INDEX), (400, {"error": "Invalid value for 'ready': expected a boolean"}))

    def test_the_first_parameter_of_a_name_counts(self):
        def with_parameters(text):
            return self.server.request("POST", INFER, json.dumps(ONE)[:-1] + f',"parameters":{{{text}}}}}')
        status, headers, _ = with_parameters('"binary_data_output":true,"binary_data_output":false')
        self.assertEqual((status, headers["content-type"]), (200, "application/octet-stream"))
        self.assertEqual(with_parameters('"timeout":1000000,"timeout":"x"')[0], 200)
        self.assertEqual(with_parameters('"timeout":"x","timeout":1000000')[0], 500)
        many = ",".join(f'"p{index % 30_000}":{index}' for index in range(60_000))
        self.assertEqual(with_parameters(many)[0], 200)

    def test_configurations_written_by_hand(self):
        rest = '"input":[{"name":"INPUT0","data_type":"TYPE_FP32","dims":[-1]}],"output":[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[-1]}]'
        plain = '{"backend":"identity","max_batch_size":3,' + rest + "}"
        sound = [plain, plain.replace('"backend"', "backend").replace('"input"', "input"), plain.replace('"', "'"), plain[:-1] + ",}",
                 plain.replace("[-1]", "[-1,]"), plain.replace("[-1]", "-1"), plain.replace("[{", "{").replace("}]", "}"), plain + "\0{"]
        for text in sound:
            with self.subTest(text):
                self.assertEqual(self.ask(json.dumps({"parameters": {"config": text}}), "/v2/repository/models/other/load")[0], 200)
                self.assertEqual(self.server.get_json("/v2/models/other/config")["max_batch_size"], 3)
        refused = (500, {"error": "failed to load 'other', failed to poll from model repository"})
        for text in (plain.replace(":3", ":03"), plain.replace(',"input"', ',,"input"'), plain + "}", plain.replace("[-1]", "[,-1]")):
            with self.subTest(text):
                self.assertEqual(self.ask(json.dumps({"parameters": {"config": text}}), "/v2/repository/models/other/load"), refused)

    @conch_only
    def test_comments_in_a_configuration(self):
        text = '// by hand\n{/* twice */backend:"identity",max_batch_size:5,input:{name:"INPUT0",data_type:"TYPE_FP32",dims:-1},' \
               'output:{name:"OUTPUT0",data_type:"TYPE_FP32",dims:-1}}'
        self.assertEqual(self.ask(json.dumps({"parameters": {"config": text}}), "/v2/repository/models/other/load")[0], 200)
        self.assertEqual(self.server.get_json("/v2/models/other/config")["max_batch_size"], 5)

    @newer
    def test_bodies_that_are_too_long_are_told_by_their_length(self):
        """A model of gigabytes sent along with its load: the refusal does not wait for it."""
        for path in ("/v2/repository/models/other/load", INDEX, "/v2/logging", "/v2/models/identity/generate"):
            for length in ((64 << 20) + 1, 2_863_311_564, 1 << 40):
                with self.subTest(path, length=length), wire.connect(self.server) as link:
                    link.sendall(f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n".encode())
                    if length < 1 << 31:
                        piece = b" " * (1 << 20)
                        for _ in range(length >> 20):
                            link.sendall(piece)
                        link.sendall(b" " * (length & (1 << 20) - 1))
                    status, _, body = wire.Replies(link).next()
                    self.assertEqual((status, json.loads(body)["error"]), (
                        400, f"request JSON size of {length} bytes exceeds the maximum allowed input size of {64 << 20} bytes. "
                             "Use --http-max-input-size to increase the limit."))
        self.assert_serves()

    @conch_only
    def test_what_errors_repeat_is_cut(self):
        name = "n" * 10_000
        long = {"name": name, "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        cases = [(f"/v2/models/{name}", None), (f"/v2/models/identity/versions/{'9' * 10_000}", None),
                 (INFER, {"inputs": [long]}), (INFER, {"inputs": [dict(long, datatype=name)]}), (INFER, {"inputs": [dict(long, shape=[-1])]}),
                 (INFER, {**ONE, "outputs": [{"name": name}]}), (INFER, {**ONE, "parameters": {name: []}}),
                 (INFER, {"id": name, "inputs": [dict(ONE["inputs"][0], shape=[1] * 1000)]}),
                 (INFER, {"inputs": [dict(ONE["inputs"][0], name=f"{index}{name}") for index in range(1000)]}),
                 (INFER, {"inputs": [{"name": name, "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 8}}]}),
                 (f"/v2/repository/models/{name}/load", {}), (f"/v2/repository/models/{name}/unload", {}),
                 ("/v2/logging", {"log_format": name}), ("/v2/trace/setting", {"trace_rate": name})]
        for path, value in cases:
            with self.subTest(path[:60], value=str(value)[:60]):
                body = None if value is None else json.dumps(value)
                status, _, reply = self.server.request("GET" if value is None else "POST", path, body)
                self.assertLess(len(reply), 20_000)
                self.assertNotIn(b"n" * 300, reply)
                self.assertNotIn(b"9" * 300, reply)
                self.assertTrue(400 <= status < 600 or "unload" in path, (status, reply))
        for header in ("Inference-Header-Content-Length", "Content-Length"):
            status, _, reply, _ = self.exchange(f"POST {INFER} HTTP/1.1\r\nHost: t\r\n{header}: {name}\r\n\r\n".encode())
            self.assertEqual(status, 400)
            self.assertLess(len(reply), 600)

    @conch_only
    def test_where_a_model_lies_for_now_is_nothing_for_clients(self):
        config = '{"backend":"onnxruntime","max_batch_size":0}'
        status, body = self.ask(json.dumps({"parameters": {"config": config, "file:1/model.onnx": "bm8gbW9kZWw="}}), "/v2/repository/models/sent/load")
        self.assertGreaterEqual(status, 400)
        rows = [row for row in json.loads(self.server.request("POST", INDEX)[2]) if row["name"] == "sent"]
        for text in (body["error"], json.dumps(rows)):
            self.assertNotIn("/tmp", text)
            self.assertNotIn(str(self.server.pid), text)


@conch_only
@needs_library("identity")
class Heads(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))

    def test_many_headers(self):
        rows = [f"X-{index}: {'v' * 100}" for index in range(490)]
        self.assertEqual(self.exchange(wire.post(INFER, json.dumps(ONE).encode(), *rows))[0], 200)

    def test_a_length_beside_chunks(self):
        """As Python's requests sends a generator with a Content-Length. The chunks count, and the connection ends."""
        text = json.dumps(ONE).encode()
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
        for rows in (("Content-Length: 3", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", f"Content-Length: {len(text)}")):
            status, _, body, is_closed = self.exchange(wire.post(INFER, chunks, *rows, length=False))
            self.assertEqual((status, is_closed), (200, True), body)

    def test_versions(self):
        for version, answered in (("1.0", b"HTTP/1.0 200"), ("1.1", b"HTTP/1.1 200"), ("1.2", b"HTTP/1.1 200"), ("1.9", b"HTTP/1.1 200"),
                                  ("2.0", b"HTTP/1.1 400"), ("1.10", b"HTTP/1.1 400")):
            held = half_closed(self.server, f"GET /v2/health/live HTTP/{version}\r\nHost: t\r\n\r\n".encode())
            self.assertTrue(held.startswith(answered), (version, held))

    def test_hosts(self):
        for hosts, expected in (("", 400), ("Host: a\r\nHost: a\r\n", 400), ("Host:\r\n", 200), ("Host: a\r\n", 200)):
            self.assertEqual(self.exchange(f"GET /v2 HTTP/1.1\r\n{hosts}\r\n".encode())[0], expected)

    def test_tls(self):
        for record in (b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(509)):
            with wire.connect(self.server) as link:
                link.sendall(record)
                self.assertTrue(wire.Replies(link).is_closed())
        self.assert_serves()

    def test_chunk_sizes(self):
        for size, expected in ((b"1 x", 400), (b"1x", 400), (b"0" * 65, 400), (b"80000000", 413), (b"f" * 20, 413), (b"1;x=y", 500), (b"1 ", 500)):
            status, _, body, is_closed = self.exchange(wire.post(INFER, size + b"\r\n{\r\n0\r\n\r\n", "Transfer-Encoding: chunked", length=False))
            self.assertEqual((status, is_closed), (expected, expected != 500), (size, body))

    def test_health_without_a_body(self):
        for path, port in (("/v2/health/live", "http"), ("/v2/health/ready", "http"), ("/v2/models/identity/ready", "http"), ("/metrics", "metrics")):
            status, headers, body = self.server.request("HEAD", path, port=port)
            self.assertEqual((status, body), (200, b""), path)
            self.assertEqual(int(headers["content-length"]) > 0, path == "/metrics")
        self.assertEqual(self.server.request("HEAD", "/v2/models/absent/ready")[0], 404)
        self.assertEqual(self.server.request("HEAD", "/v2")[0], 405)

    def test_health_in_json(self):
        """For who asks for it by name, as KServe's REST client can be told to."""
        for path, expected in (("health/live", {"live": True}), ("health/ready", {"ready": True}),
                               ("models/identity/ready", {"name": "identity", "ready": True})):
            status, headers, body = self.server.request("GET", f"/v2/{path}", headers={"Accept": "text/html, application/json;q=0.9"})
            self.assertEqual((status, headers["content-type"], json.loads(body)), (200, "application/json", expected))
            for accept in ({}, {"Accept": "*/*"}):
                self.assertEqual(self.server.request("GET", f"/v2/{path}", headers=accept)[::2], (200, b""))


@conch_only
@needs_library("identity")
class Origins(ServerCase):
    flags = ("--http-cors-origins=https://app.example,http://localhost:3000", "--http-restricted-api=inference:key=value")

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))

    def test_a_preflight_and_what_it_announces(self):
        ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,key"}
        status, headers, body = self.server.request("OPTIONS", INFER, headers=ask)
        self.assertEqual((status, body), (200, b""))
        self.assertEqual(headers["access-control-allow-origin"], "https://app.example")
        self.assertEqual(headers["access-control-allow-headers"], "content-type,key")
        self.assertIn("POST", headers["access-control-allow-methods"])
        status, headers, _ = self.server.request("POST", INFER, json.dumps(ONE), {"Origin": "https://app.example", "key": "value"})
        self.assertEqual((status, headers["access-control-allow-origin"], headers["vary"]), (200, "https://app.example", "Origin"))
        # What is restricted stays so, and says why to the script.
        status, headers, _ = self.server.request("POST", INFER, json.dumps(ONE), {"Origin": "https://app.example"})
        self.assertEqual((status, headers["access-control-allow-origin"]), (403, "https://app.example"))

    def test_other_origins(self):
        for origin in ("https://other.example", "http://app.example", "null"):
            status, headers, _ = self.server.request("OPTIONS", INFER, headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
            self.assertIn(status, (403, 405))
            self.assertNotIn("access-control-allow-origin", headers)
        self.assertNotIn("access-control-allow-origin", self.server.request("GET", "/v2")[1])


@conch_only
@needs_library("identity")
class StrictIntegers(ServerCase):
    flags = ("--strict-integers=true",)
    RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767), "UINT16": (0, 65535), "INT32": (-2**31, 2**31 - 1), "UINT32": (0, 2**32 - 1)}

    @classmethod
    def models(cls, repository):
        for kind in cls.RANGES:
            repository.model(kind.lower(), identity([("INPUT0", kind, (-1,))]))

    def test_json(self):
        for kind, (least, most) in self.RANGES.items():
            for value, path in ((most, "infer"), (least, "infer"), (most + 1, "infer"), (most + 1, "generate")):
                text = {"inputs": [{"name": "INPUT0", "datatype": kind, "shape": [1], "data": [value]}]} if path == "infer" else {"INPUT0": [value]}
                status, body = self.server.post_json(f"/v2/models/{kind.lower()}/{path}", text)
                if value <= most:
                    self.assertEqual((status, json.loads(body)["outputs"][0]["data"]), (200, [value]))
                else:
                    self.assertEqual((status, json.loads(body)["error"]), (400, f"{value} is out of the range of {kind} for input 'INPUT0'"))

    def test_typed_contents(self):
        with grpc.insecure_channel(self.server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for kind in ("INT8", "UINT8", "INT16", "UINT16"):
                least, most = self.RANGES[kind]
                for value in (least, most, most + 1, least - 1):
                    message = pb.ModelInferRequest(model_name=kind.lower())
                    tensor = message.inputs.add(name="INPUT0", datatype=kind, shape=[1])
                    if value < 0 and least == 0:
                        continue
                    getattr(tensor.contents, "int_contents" if kind.startswith("I") else "uint_contents").append(value)
                    if least <= value <= most:
                        stub.ModelInfer(message, timeout=30)
                        continue
                    with self.assertRaises(grpc.RpcError) as caught:
                        stub.ModelInfer(message, timeout=30)
                    self.assertEqual((caught.exception.code(), caught.exception.details()), (
                        grpc.StatusCode.INVALID_ARGUMENT, f"an element is out of the range of {kind} for input 'INPUT0'"))


if __name__ == "__main__":
    unittest.main()
