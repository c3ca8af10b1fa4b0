"""Headers that become request parameters, and headers that set deadlines."""

import json
import time
import unittest

import hpack
import numpy
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import server as servers
import wire
from case import ServerCase, conch_only
from repository import identity

# The real Triton at hand is of a release that forwarded reserved names, too.
newer = conch_only
ECHO = {"echo_request_parameters": "true"}
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")


def refusal(name):
    return f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


class Forward(ServerCase):
    flags = ("--http-header-forward-pattern=^(X-Echo|my|sequence_|priority|timeout|binary_data|headers|triton_)|part$",
             "--grpc-header-forward-pattern=^(x-echo|my|sequence_|priority|timeout|binary_data|headers|triton_)|PART$")

    @classmethod
    def models(cls, repository):
        repository.model("echo", identity(parameters=ECHO))

    def http_parameters(self, *headers, parameters=None, path="/v2/models/echo/infer"):
        body = dict(BODY, parameters=parameters) if parameters else BODY
        status, _, reply, _ = self.exchange(wire.infer_json(body, b"", path, *headers))
        value = json.loads(reply)
        return value.get("parameters", {}) if status == 200 else (status, value["error"])

    def test_http_headers_that_match_in_part(self):
        """Names keep their case; values stay as they are."""
        found = self.http_parameters("X-Echo: 1", "x-echo-two:  a, b", "MY: =;\"", "not-my: 1", "X-Some-PART: p", "Partial: no")
        self.assertEqual(found, {"X-Echo": "1", "x-echo-two": "a, b", "MY": '=;"', "X-Some-PART": "p"})

    def test_http_blanks_behind_a_value_stay(self):
        found = self.http_parameters("my-one: a  ", "my-two:  b\t ", "my-three:\tc")
        own = {name: value for name, value in found.items() if name.startswith("my-")}
        self.assertEqual(own, {"my-one": "a  ", "my-two": "b\t ", "my-three": "\tc"})

    def test_http_beside_parameters_of_the_body(self):
        found = self.http_parameters("my-header: 1", parameters={"own": "text"})
        self.assertEqual(found, {"own": "text", "my-header": "1"})

    def test_http_without_a_match(self):
        self.assertEqual(self.http_parameters("other: 1"), {})

    @newer
    def test_t19_http_reserved_names(self):
        for name in (*RESERVED, "triton_x", "triton_enable_empty_final_response"):
            with self.subTest(name):
                self.assertEqual(self.http_parameters(f"{name}: 1"), (400, refusal(name)))
        self.assertEqual(self.http_parameters("my: fine"), {"my": "fine"})

    @newer
    def test_http_reserved_newer(self):
        self.assertEqual(self.http_parameters("headers: 1"), (400, refusal("headers")))

    def test_http_a_wrong_body_comes_first(self):
        raw = wire.post("/v2/models/echo/infer", b"{", "timeout: 1")
        self.assertEqual(self.exchange(raw)[0], 500)

    @conch_only
    def test_http_what_is_no_text(self):
        raw = wire.infer_json(BODY, b"", "/v2/models/echo/infer", "my: caf\xe9")
        status, _, reply, _ = self.exchange(raw)
        self.assertEqual((status, json.loads(reply)["error"]), (400, "the value of header 'my' is not text and cannot be forwarded."))

    def test_nothing_is_forwarded_to_generate(self):
        """Nor is a reserved name refused there."""
        status, _, body = self.server.request("POST", "/v2/models/echo/generate", json.dumps({"INPUT0": [1, 2]}),
                                              {"my-key": "1", "timeout": "1", "sequence_id": "7"})
        self.assertEqual(status, 200, body)
        self.assertNotIn("my-key", json.loads(body))

    def grpc_parameters(self, headers, parameters=None):
        tensor = grpcclient.InferInput("INPUT0", [2], "FP32")
        tensor.set_data_from_numpy(numpy.array([1, 2], numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            try:
                reply = client.infer("echo", [tensor], headers=headers, parameters=parameters).get_response()
            except InferenceServerException as error:
                return error.status(), error.message()
        return {name: value.string_param for name, value in reply.parameters.items()}

    def test_grpc_metadata_that_match(self):
        found = self.grpc_parameters({"x-echo": "1", "my-key": "a b", "not-my": "1", "some-part": "p"})
        self.assertEqual(found, {"x-echo": "1", "my-key": "a b", "some-part": "p"})

    def test_grpc_binary_metadata_is_decoded(self):
        self.assertEqual(self.grpc_parameters({"my-bin": b"text of it"}), {"my-bin": "text of it"})

    def test_grpc_binary_metadata_counts_up_to_its_first_nul(self):
        for value, expected in ((b"a\0b", "a"), (b"\0", ""), (b"\xff\xfe", "\ufffd\ufffd")):
            self.assertEqual(self.grpc_parameters({"my-bin": value})["my-bin"], expected)

    @newer
    def test_t19_grpc_reserved_names(self):
        for name in (*RESERVED, "triton_x"):
            with self.subTest(name):
                self.assertEqual(self.grpc_parameters({name: "1"}), ("StatusCode.INVALID_ARGUMENT", refusal(name)))
        self.assertEqual(self.grpc_parameters({"my": "fine"}), {"my": "fine"})

    @newer
    def test_grpc_reserved_newer(self):
        self.assertEqual(self.grpc_parameters({"headers": "1"}), ("StatusCode.INVALID_ARGUMENT", refusal("headers")))

    def stream(self, headers, count=3):
        """What a stream of some requests gives: (parameters, error) of each."""
        import queue
        replies = queue.Queue()
        tensor = grpcclient.InferInput("INPUT0", [2], "FP32")
        tensor.set_data_from_numpy(numpy.array([1, 2], numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: replies.put((result, error)), headers=headers)
            for _ in range(count):
                client.async_stream_infer("echo", [tensor])
            found = [replies.get(timeout=10) for _ in range(count)]
            client.stop_stream()
        texts = [result and {name: value.string_param for name, value in result.get_response().parameters.items() if value.string_param}
                 for result, _ in found]
        return texts, [error and error.message() for _, error in found]

    def test_every_request_of_a_stream(self):
        self.assertEqual(self.stream({"my-key": "v"}), ([{"my-key": "v"}] * 3, [None] * 3))

    @newer
    def test_reserved_names_fail_each_request_of_a_stream(self):
        self.assertEqual(self.stream({"timeout": "1"}), ([None] * 3, [refusal("timeout")] * 3))


class ForwardAll(Forward):
    """With a pattern that everything matches: what is there at all."""

    flags = ("--http-header-forward-pattern=.", "--grpc-header-forward-pattern=.*")

    def test_http_headers_that_match_in_part(self):
        found = self.http_parameters("X-Echo: 1")
        self.assertEqual(found, {"Host": "test", "X-Echo": "1", "Content-Length": str(len(json.dumps(BODY)))})

    def test_http_without_a_match(self):
        self.skipTest("everything matches")

    def test_http_beside_parameters_of_the_body(self):
        self.assertIn(("own", "text"), self.http_parameters(parameters={"own": "text"}).items())

    @newer
    def test_t19_http_reserved_names(self):
        self.assertEqual(self.http_parameters("my: 1", "timeout: 1"), (400, refusal("timeout")))

    def test_grpc_metadata_that_match(self):
        """What belongs to gRPC itself is not forwarded."""
        found = self.grpc_parameters({"x-echo": "1", "grpc-mine": "1"})
        self.assertIn("grpc-python", found.pop("user-agent"))
        self.assertEqual(found, {"x-echo": "1", "grpc-mine": "1"})

    def test_grpc_binary_metadata_is_decoded(self):
        self.assertEqual(self.grpc_parameters({"x-bin": b"text"})["x-bin"], "text")

    @newer
    def test_t19_grpc_reserved_names(self):
        self.assertEqual(self.grpc_parameters({"timeout": "1"}), ("StatusCode.INVALID_ARGUMENT", refusal("timeout")))

    def test_every_request_of_a_stream(self):
        self.assertEqual([found["my-key"] for found in self.stream({"my-key": "v"})[0]], ["v"] * 3)


@conch_only
class Deadlines(ServerCase):
    """`--http-timeout-header`, and `grpc-timeout` of every method."""

    flags = ("--http-timeout-header=Wait-Ms",)

    @classmethod
    def models(cls, repository):
        repository.model("slow", identity(parameters={"execute_delay_ms": "1500"}))
        repository.model("identity", identity())

    def infer_within(self, milliseconds, model="slow"):
        begun = time.monotonic()
        status, _, body = self.infer(BODY, model=model, headers={"wait-ms": str(milliseconds)})
        return status, body, time.monotonic() - begun

    def test_an_http_deadline_ends_the_wait(self):
        status, body, seconds = self.infer_within(200)
        self.assertEqual((status, json.loads(body)), (504, {"error": "Deadline Exceeded"}))
        self.assertTrue(0.2 <= seconds < 1.5, f"{seconds} s: the deadline, and less than the model takes")

    def test_an_http_deadline_that_holds(self):
        self.assertEqual(self.infer_within(20_000)[0], 200)
        self.assertEqual(self.infer_within(20_000, "identity")[0], 200)
        self.assertEqual(self.infer_within("9" * 60, "identity")[0], 200)

    def test_a_deadline_of_nothing_is_past(self):
        self.assertEqual(self.infer_within(0, "identity")[0], 504)

    def test_a_connection_goes_on_after_a_deadline(self):
        with wire.connect(self.server) as link:
            replies = wire.Replies(link)
            for headers, expected in ((("Wait-Ms: 50",), 504), ((), 200)):
                link.sendall(wire.infer_json(BODY, b"", "/v2/models/slow/infer", *headers))
                self.assertEqual(replies.next()[0], expected)

    def test_an_http_deadline_counts_the_body(self):
        """It runs from the head on: a body that comes too late is not executed."""
        raw = wire.infer_json(BODY, b"", "/v2/models/identity/infer", "Wait-Ms: 100")
        with wire.connect(self.server) as link:
            link.sendall(raw[:-5])
            time.sleep(0.3)  # a pause of the client, longer than the deadline
            link.sendall(raw[-5:])
            self.assertEqual(wire.Replies(link).next()[0], 504)

    def test_grpc_deadlines_of_every_kind_of_method(self):
        """A call whose request does not come, or whose answer is late, ends at its deadline."""
        for method in ("ModelInfer", "ModelStreamInfer", "ServerLive", "ModelReady", "RepositoryIndex", "ModelStatistics"):
            with self.subTest(method):
                link = wire.Http2(self.server).start()
                begun = time.monotonic()
                link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head(method, ("grpc-timeout", "200m"))))
                status = trailers_of(link, 1)
                self.assertEqual(status.get("grpc-status"), "4", status)
                # Anything else that could end it takes longer.
                self.assertTrue(0.19 <= time.monotonic() - begun < 8)


    def test_t18_numbers_in_headers_and_paths(self):
        """What is no number, or too large a one, is refused wherever a number is read; the server goes on."""
        wrong = ("-1", "x", "1.5", "", " ", "0x10", "\u0663", "9" * 20, "9" * 400, "-" + "9" * 20)
        for value in wrong:
            encoded = value.encode("utf-8").decode("latin-1")
            rows = [(f"{name}: {encoded}", ()) for name in ("Content-Length", "Inference-Header-Content-Length", "Wait-Ms")]
            for row, _ in rows:
                if row.startswith("Wait-Ms") and value.isascii() and value.isdigit():
                    continue  # no time is too long
                if row.startswith("Inference") and value in ("1.5", "0x10"):
                    continue  # a number with something behind it, as upstream reads it
                with self.subTest(row[:60]):
                    raw = wire.post("/v2/models/identity/infer", b"{}", row, length=not row.startswith("Content-Length"))
                    self.assertEqual(self.exchange(raw)[0], 400)
            with self.subTest(f"grpc-timeout: {value[:40]}"):
                link = wire.Http2(self.server).start()
                head = wire.call_head("ServerLive", ("grpc-timeout", value.strip() + "S"))
                link.send(wire.frame(wire.HEADERS, 4, 1, head), wire.frame(wire.DATA, 1, 1, b"\0" * 5))
                self.assertEqual(trailers_of(link, 1).get("grpc-status"), "13")
        for version in ("9" * 20, "9" * 400):
            status, _, body = self.server.request("GET", f"/v2/models/identity/versions/{version}")
            self.assertEqual(status, 400, body)
        self.assertEqual(self.server.request("GET", "/v2/models/identity?version=-1&x=99999999999999999999")[0], 200)
        self.assertEqual(self.infer(BODY)[0], 200)


class Ports(unittest.TestCase):
    def test_t18_numbers_of_flags(self):
        """No port, count or size is taken from a text that is no number of its range."""
        for flag in ("http-port", "grpc-port", "metrics-port", "http-max-input-size"):
            for value in ("-1", "x", "", "1.5", "9" * 20) + (("65536",) if "port" in flag else ("0",)):
                with self.subTest(f"{flag}={value}"), self.assertRaises(servers.StartFailed) as failed:
                    servers.Server("/tmp", f"--{flag}={value}", kind="conch")
                self.assertEqual(failed.exception.code, 1)
                self.assertIn(f'Bad option: "--{flag}"', failed.exception.output)


def trailers_of(link, stream):
    """The fields of the HEADERS frames of a stream, up to its end."""
    decoder, fields = hpack.Decoder(), {}
    while (got := link.next()) is not None:
        kind, flags, number, payload = got
        if kind == wire.HEADERS:
            rows = decoder.decode(payload)
            if number == stream:
                fields.update(rows)
        if number == stream and (kind == wire.RST_STREAM or flags & 1 and kind in (wire.HEADERS, wire.DATA)):
            break
    return fields
