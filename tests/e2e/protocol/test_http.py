"""HTTP/1.1: the server's and models' endpoints, inference as JSON, as binary tensors and raw, and the protocol itself."""

import json
import pathlib
import struct
import tempfile
import subprocess
import unittest

import wire
from case import IS_TRITON, ServerCase, conch_only, pack
from repository import identity

# Data type, struct code, values that JSON can carry.
TYPES = [
    ("BOOL", "?", [True, False, True]), ("UINT8", "B", [0, 1, 255]), ("UINT16", "H", [0, 1, 65535]),
    ("UINT32", "I", [0, 1, 2**32 - 1]), ("UINT64", "Q", [0, 1, 2**64 - 1]), ("INT8", "b", [-128, 0, 127]),
    ("INT16", "h", [-32768, 0, 32767]), ("INT32", "i", [-(2**31), 0, 2**31 - 1]),
    ("INT64", "q", [-(2**63), 0, 2**63 - 1]), ("FP32", "f", [-1.5, 0.0, 3.25]), ("FP64", "d", [-1e300, 0.0, 0.1]),
]
BINARY_ONLY = [("FP16", "e", [-1.5, 0.0, 65504.0]), ("BF16", "H", [0x3F80, 0, 0xFF7F])]


def string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw


def models(repository):
    repository.model("identity", identity(batch=8))
    for name, _, _ in TYPES + BINARY_ONLY:
        repository.model(f"type_{name}", identity([("INPUT0", name, (-1,))]))
    repository.model("type_BYTES", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("pair", identity([("INPUT0", "INT32", (-1,)), ("INPUT1", "STRING", (-1,))]))
    repository.model("backwards", identity([(f"INPUT{i}", "FP32", (-1,)) for i in (2, 0, 1)]))
    repository.model("raw_bytes", identity([("INPUT0", "STRING", (1,))]))
    # Waits for a second request; longer than any client here.
    repository.model("paired", identity(batch=2, extra="dynamic_batching { preferred_batch_size: [ 2 ] "
                                                       "max_queue_delay_microseconds: 100000000 }\n"))


class Endpoints(ServerCase):
    models = staticmethod(models)

    def test_live(self):
        self.assertEqual(self.server.get("/v2/health/live"), (200, b""))

    def test_ready(self):
        self.assertEqual(self.server.get("/v2/health/ready"), (200, b""))

    def test_model_ready(self):
        for path in ("/v2/models/identity/ready", "/v2/models/identity/versions/1/ready"):
            self.assertEqual(self.server.get(path), (200, b""))

    def test_server_metadata(self):
        meta = self.server.get_json("/v2")
        self.assertEqual(set(meta), {"name", "version", "extensions"})
        self.assertEqual(meta["name"], "triton")
        if not IS_TRITON:
            self.assertEqual([
                "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
                "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters",
                "statistics", "trace", "logging"], meta["extensions"][:13], "upstream's, in its order")
            self.assertIn("conch", meta["extensions"][13:])

    def test_model_metadata(self):
        expected = {"name": "identity", "versions": ["1"], "platform": "identity",
                    "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}],
                    "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, -1]}]}
        for path in ("/v2/models/identity", "/v2/models/identity/versions/1"):
            got = self.server.get_json(path)
            if IS_TRITON:  # 2.51 prints no platform for a custom backend
                got["platform"] = got["platform"] or "identity"
            self.assertEqual(got, expected)

    def test_model_config(self):
        config = self.server.get_json("/v2/models/identity/config")
        self.assertEqual((config["name"], config["backend"], config["max_batch_size"]), ("identity", "identity", 8))
        self.assertEqual(config["input"][0]["data_type"], "TYPE_FP32")
        self.assertEqual(config["input"][0]["dims"], [-1])
        self.assertEqual(config["version_policy"], {"latest": {"num_versions": 1}})
        self.assertEqual(config["instance_group"][0]["kind"], "KIND_CPU")
        self.assertEqual(config["instance_group"][0]["name"], "identity_0")
        self.assertEqual(config["optimization"]["input_pinned_memory"], {"enable": True})

    def test_statistics(self):
        before = self.server.statistics("identity")
        self.assert_serves(shape=(3, 4))
        after = self.server.statistics("identity")
        self.assertEqual(after["inference_count"] - before["inference_count"], 3)
        self.assertEqual(after["execution_count"] - before["execution_count"], 1)
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            self.assertEqual(after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"], 1, name)
        parts = sum(after["inference_stats"][name]["ns"] - before["inference_stats"][name]["ns"]
                    for name in ("queue", "compute_input", "compute_infer", "compute_output"))
        whole = after["inference_stats"]["success"]["ns"] - before["inference_stats"]["success"]["ns"]
        self.assertLessEqual(parts, whole)
        for name in ("fail", "cache_hit", "cache_miss"):
            self.assertEqual(after["inference_stats"][name], {"count": 0, "ns": 0})
        self.assertEqual([row["batch_size"] for row in after["batch_stats"] if row["batch_size"] == 3], [3])
        self.assertEqual((after["response_stats"], after["memory_usage"]), ({}, []))
        self.assertGreater(after["last_inference"], 1_600_000_000_000)

    def test_statistics_of_all_models(self):
        names = [row["name"] for row in self.server.get_json("/v2/models/stats")["model_stats"]]
        self.assertEqual(names, sorted(names))
        self.assertIn("identity", names)

    def test_index(self):
        status, reply = self.server.post_json("/v2/repository/index", b"")
        self.assertEqual(status, 200)
        rows = {row["name"]: row for row in json.loads(reply)}
        self.assertEqual(rows["identity"], {"name": "identity", "version": "1", "state": "READY"} if IS_TRITON
                         else {**rows["identity"], "version": "1", "state": "READY"})
        status, reply = self.server.post_json("/v2/repository/index", {"ready": True})
        self.assertEqual((status, len(json.loads(reply))), (200, len(rows)))

    def test_metrics(self):
        before = self.server.metrics()
        self.assert_serves(shape=(2, 4))
        after = self.server.metrics()
        label = '{model="identity",version="1"}'
        grown = {name: after[name + label] - before[name + label] for name in (
            "nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")}
        self.assertEqual(grown, {"nv_inference_request_success": 1, "nv_inference_count": 2, "nv_inference_exec_count": 1})
        for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
            self.assertIn(f"nv_inference_{name}_duration_us{label}", after)
        self.assertEqual(after[f"nv_inference_pending_request_count{label}"], 0)
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
            self.assertIn(f'nv_inference_request_failure{{model="identity",reason="{reason}",version="1"}}', after)
        for name in ("nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"):
            self.assertIn(name, after)

    def test_metrics_page(self):
        status, headers, _ = self.server.request("GET", "/metrics", port="metrics")
        self.assertEqual((status, headers["content-type"]), (200, "text/plain; charset=utf-8"))
        self.assertEqual(self.server.get("/elsewhere", port="metrics"), (200, b""))
        self.assertEqual(self.server.request("POST", "/metrics", port="metrics", body=b"")[0], 405)


class Infer(ServerCase):
    models = staticmethod(models)

    def test_json_of_every_type(self):
        for name, _, values in TYPES + [("BYTES", None, ["", "a", "äö\u20ac \"\\\n"])]:
            with self.subTest(name):
                body = {"inputs": [{"name": "INPUT0", "datatype": name, "shape": [3], "data": values}]}
                status, _, reply = self.infer(body, model=f"type_{name}")
                self.assertEqual(status, 200, reply)
                self.assertEqual(json.loads(reply)["outputs"], [
                    {"name": "OUTPUT0", "datatype": name, "shape": [3], "data": values}])

    def test_binary_of_every_type(self):
        rows = [(name, pack(values, code)) for name, code, values in TYPES + BINARY_ONLY]
        rows.append(("BYTES", string("") + string(b"\xff\0") + string("abc" * 1000)))
        for name, raw in rows:
            with self.subTest(name):
                body = {"inputs": [{"name": "INPUT0", "datatype": name, "shape": [3],
                                    "parameters": {"binary_data_size": len(raw)}}],
                        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
                status, headers, reply = self.infer(body, raw, model=f"type_{name}")
                self.assertEqual(status, 200, reply)
                length = int(headers["inference-header-content-length"])
                self.assertEqual(headers["content-type"], "application/octet-stream")
                self.assertEqual(json.loads(reply[:length])["outputs"], [
                    {"name": "OUTPUT0", "datatype": name, "shape": [3], "parameters": {"binary_data_size": len(raw)}}])
                self.assertEqual(reply[length:], raw)

    def test_mixed_json_and_binary(self):
        names = string("x") + string("yz")
        body = {"id": "mine", "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]},
            {"name": "INPUT1", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(names)}}],
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}},
                        {"name": "OUTPUT1", "parameters": {"binary_data": False}}]}
        status, headers, reply = self.infer(body, names, model="pair")
        self.assertEqual(status, 200, reply)
        length = int(headers["inference-header-content-length"])
        answer = json.loads(reply[:length])
        self.assertEqual(list(answer), ["id", "model_name", "model_version", "outputs"])
        self.assertEqual((answer["id"], answer["model_name"], answer["model_version"]), ("mine", "pair", "1"))
        self.assertEqual(answer["outputs"], [
            {"name": "OUTPUT0", "datatype": "INT32", "shape": [3], "parameters": {"binary_data_size": 12}},
            {"name": "OUTPUT1", "datatype": "BYTES", "shape": [2], "data": ["x", "yz"]}])
        self.assertEqual(reply[length:], pack([1, 2, 3], "i"))

    def test_requested_outputs(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]},
                           {"name": "INPUT1", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
                "outputs": [{"name": "OUTPUT1"}]}
        status, _, reply = self.infer(body, model="pair")
        self.assertEqual((status, [row["name"] for row in json.loads(reply)["outputs"]]), (200, ["OUTPUT1"]))

    def test_outputs_are_ordered_by_name(self):
        """Not as configured nor as asked for: a backend is asked in the order of the alphabet, and answers in it."""
        inputs = [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [1], "data": [i]} for i in range(3)]
        for wanted in ([], [2, 0, 1], [1, 0]):
            body = {"inputs": inputs, "outputs": [{"name": f"OUTPUT{i}"} for i in wanted]}
            status, _, reply = self.infer(body, model="backwards")
            self.assertEqual(status, 200, reply)
            self.assertEqual([(row["name"], row["data"]) for row in json.loads(reply)["outputs"]],
                             [(f"OUTPUT{i}", [i]) for i in sorted(wanted or range(3))])

    def test_nested_data(self):
        for data in ([[1, 2], [3, 4]], [[[1], 2], 3, [4]], [1, 2, 3, 4]):
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": data}]}
            status, _, reply = self.infer(body)
            self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [1, 2, 3, 4]))

    def test_strings_in_json_are_bytes(self):
        """NUL by its escape only; what is not UTF-8 goes through as it is, both ways."""
        for data, expected, written in (
                (rb'"a\u0000b","\u00e9\ud83d\ude00"', [b"a\0b", "\u00e9\U0001f600".encode()], b'"a\\u0000b","\xc3\xa9\xf0\x9f\x98\x80"'),
                (b'"\xff\xfe",["\x80"]', [b"\xff\xfe", b"\x80"], b'"\xff\xfe","\x80"'),
                (rb'"",["\"\\\/\n"]', [b"", b'"\\/\n'], rb'"","\"\\/\n"')):
            text = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":[%s]}]}' % data
            with self.subTest(data):
                status, _, reply = self.infer(text, model="type_BYTES")
                self.assertEqual(status, 200, reply)
                self.assertTrue(reply.endswith(b'"data":[%s]}]}' % written), reply)
                status, headers, reply = self.infer(text[:-1] + b',"parameters":{"binary_data_output":true}}', model="type_BYTES")
                self.assertEqual(status, 200, reply)
                self.assertEqual(reply[int(headers["inference-header-content-length"]):], b"".join(map(string, expected)))
        status, _, reply = self.infer(b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["a\0b"]}]}', model="type_BYTES")
        self.assertEqual((status, json.loads(reply)["error"].rsplit(" at ", 1)[0]), (
            500, "failed to parse the request JSON buffer: Missing a closing quotation mark in string."))

    def test_numbers_at_the_edge(self):
        largest = "1.7976931348623157e308"
        # The parser of the real one makes infinity of these.
        beyond = [] if IS_TRITON else [("1" * 299 + "e99", None), ("2e308", None)]
        for text, expected in (
                ("-0", "0.0"), ("-0.0", "-0.0"), ("5e-324", "5e-324"), (largest, largest), ("1e-400", "0.0"), ("0.1", "0.1"),
                ("1e400", None), *beyond):
            with self.subTest(text):
                body = '{"inputs":[{"name":"INPUT0","datatype":"FP64","shape":[1],"data":[%s]}]}' % text
                status, _, reply = self.infer(body.encode(), model="type_FP64")
                if expected is None:
                    self.assertEqual(status, 500, reply)
                    self.assertIn(b"Number too big to be stored in double.", reply)
                else:
                    self.assertEqual(status, 200, reply)
                    self.assertTrue(reply.endswith(b'"data":[%s]}]}' % expected.encode()), reply)

    def test_zero_size_tensor(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [0], "data": []}]}
        status, _, reply = self.infer(body, model="type_FP32")
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"], [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": [0], "data": []}])

    def test_version_in_path(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        self.assertEqual(self.server.post_json("/v2/models/identity/versions/1/infer", body)[0], 200)

    def test_parameters(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
                "parameters": {"sequence_id": 7, "sequence_start": True, "sequence_end": False, "priority": 0,
                               "timeout": 10_000_000, "text": "t", "whole": -3, "flag": True, "real": 0.5}}
        self.assertEqual(self.infer(body)[0], 200)

    def test_raw_request(self):
        raw = pack([1.5, 2.5, 3.5])
        status, headers, reply = self.server.request(
            "POST", "/v2/models/identity/infer", raw, {"Inference-Header-Content-Length": "0"})
        self.assertEqual(status, 200, reply)
        length = int(headers["inference-header-content-length"])
        self.assertEqual(json.loads(reply[:length])["outputs"], [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}])
        self.assertEqual(reply[length:], raw)

    def test_raw_request_of_bytes(self):
        status, headers, reply = self.server.request(
            "POST", "/v2/models/raw_bytes/infer", b"any \0 bytes", {"Inference-Header-Content-Length": "0"})
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply[int(headers["inference-header-content-length"]):], string(b"any \0 bytes"))

    def test_large_binary(self):
        raw = pack([float(i % 1000) for i in range(1 << 20)])
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1 << 20],
                            "parameters": {"binary_data_size": len(raw)}}], "parameters": {"binary_data_output": True}}
        status, headers, reply = self.infer(body, raw)
        self.assertEqual((status, reply[int(headers["inference-header-content-length"]):] == raw), (200, True))


class Protocol(ServerCase):
    models = staticmethod(models)
    BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
    PATH = "/v2/models/identity/infer"

    def test_keep_alive(self):
        with wire.connect(self.server) as link:
            replies = wire.Replies(link)
            for _ in range(100):
                link.sendall(wire.post(self.PATH, self.BODY))
                self.assertEqual(replies.next()[0], 200)

    def test_connection_close(self):
        status, headers, _, closed = self.exchange(wire.post(self.PATH, self.BODY, "Connection: close"))
        self.assertEqual((status, headers["connection"].lower(), closed), (200, "close", True))

    def test_http_1_0_closes(self):
        raw = wire.post(self.PATH, self.BODY).replace(b"HTTP/1.1", b"HTTP/1.0")
        with wire.connect(self.server) as link:
            link.sendall(raw)
            replies = wire.Replies(link)
            self.assertEqual(replies.next()[0], 200)
            self.assertTrue(replies.is_closed())

    def test_pipelining_answers_in_order(self):
        with wire.connect(self.server) as link:
            requests = []
            for index in range(50):
                body = {"id": str(index), "inputs": [
                    {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [index]}]}
                requests.append(wire.infer_json(body))
            link.sendall(b"".join(requests))
            replies = wire.Replies(link)
            for index in range(50):
                status, _, reply = replies.next()
                self.assertEqual((status, json.loads(reply)["id"]), (200, str(index)))

    def test_an_answer_does_not_wait_for_the_body_behind_it(self):
        cut = len(self.BODY) // 2
        whole = wire.post(self.PATH, self.BODY)
        chunks = wire.post(self.PATH, b"%x\r\n%s\r\n0\r\n\r\n" % (len(self.BODY), self.BODY), "Transfer-Encoding: chunked", length=False)
        unwanted = wire.post("/nowhere", self.BODY)
        for raw, expected in ((whole, 200), (chunks, 200), (unwanted, 404)):
            for first in (b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n", wire.post(self.PATH, self.BODY)):
                with self.subTest(raw=raw[:50], first=first[:20]), wire.connect(self.server) as link:
                    link.sendall(first + raw[:-cut])
                    replies = wire.Replies(link)
                    self.assertEqual(replies.next()[0], 200)
                    link.sendall(raw[-cut:])
                    self.assertEqual(replies.next()[0], expected)

    @conch_only  # the real one sends the first answer at once as well, but can lose the request behind it
    def test_an_answer_does_not_wait_for_the_model_behind_it(self):
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
        half = wire.post("/v2/models/paired/infer", body)
        for first in (b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n", wire.post(self.PATH, self.BODY)):
            with wire.connect(self.server) as link, wire.connect(self.server) as other:
                link.sendall(first + half)
                replies = wire.Replies(link)
                self.assertEqual(replies.next()[0], 200)
                other.sendall(half)
                self.assertEqual((replies.next()[0], wire.Replies(other).next()[0]), (200, 200))

    @conch_only  # the real one answers 404, as its parser loses the path
    def test_pieces_of_one_byte(self):
        with wire.connect(self.server) as link:
            for byte in wire.post(self.PATH, self.BODY):
                link.sendall(bytes([byte]))
            self.assertEqual(wire.Replies(link).next()[0], 200)

    def test_expect_continue(self):
        with wire.connect(self.server) as link:
            link.sendall(wire.post(self.PATH, b"", "Expect: 100-continue", f"Content-Length: {len(self.BODY)}", length=False))
            replies = wire.Replies(link)
            self.assertEqual(replies.next()[0], 100)
            link.sendall(self.BODY)
            self.assertEqual(replies.next()[0], 200)

    def test_chunked_body(self):
        for size in (1, 7, 1 << 20):
            self.check_chunks(size, b"", b"")

    @conch_only
    def test_chunk_extensions_and_trailers(self):
        self.check_chunks(10, b";note=1", b"Trailer: 1\r\n")

    def check_chunks(self, size, extension, trailer):
        pieces = [self.BODY[i:i + size] for i in range(0, len(self.BODY), size)]
        chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
        raw = wire.post(self.PATH, chunks + b"0\r\n" + trailer + b"\r\n", "Transfer-Encoding: chunked", length=False)
        with wire.connect(self.server) as link:
            replies = wire.Replies(link)
            for request in (raw, wire.post(self.PATH, self.BODY)):
                link.sendall(request)
                self.assertEqual(replies.next()[0], 200)

    @conch_only
    def test_head(self):
        with wire.connect(self.server) as link:
            link.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: t\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
            replies = wire.Replies(link)
            self.assertIn(replies.next(has_body=False)[0], (200, 405))
            self.assertEqual(replies.next()[0], 200)

    def test_disconnect_in_the_middle_of_a_body(self):
        for _ in range(20):
            with wire.connect(self.server) as link:
                link.sendall(wire.post(self.PATH, self.BODY)[:-5])
        self.assert_serves()

    def test_curl(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "body"
            file.write_bytes(self.BODY)
            output = subprocess.run(
                ["curl", "-sS", "--fail", "--data-binary", f"@{file}", f"http://{self.server.http}{self.PATH}"],
                capture_output=True, check=True).stdout
        self.assertEqual(json.loads(output)["outputs"][0]["data"], [1, 2])


if __name__ == "__main__":
    unittest.main()
