"""The generate extension: flat JSON in, flat JSON or server-sent events out; clients that leave, that do not read and that are old; what
is wrong with a request and what goes wrong later. What upstream does too is tried there as well (`--server=triton`)."""

import asyncio
import gzip
import json
import pathlib
import socket
import struct
import subprocess
import tempfile
import time
import unittest

import aiohttp

import server as servers
import wire
from case import Cancelling, ServerCase, conch_only, needs_library, needs_peer
from repository import identity
from test_python_backend import DIRECTORY, ENVIRONMENT, python
from test_stream import REPEAT, square
from waiting import until

MANY = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"
KIND = "has invalid type. It should be either 'int', 'bool', or 'string'."
PYTHON = "abi/backends/python/libtriton_python.so"
JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


def models(repository):
    fp32 = [("INPUT0", "FP32", (-1,))]
    repository.model("identity", identity(fp32, parameters={"example_response_parameters": "1"}))
    repository.model("plain", identity(fp32))
    repository.model("batched", identity(fp32, batch=8))
    repository.model("pairs", identity([("INPUT0", "INT32", (-1, 2))]))
    repository.model("four", identity([("INPUT0", "INT32", (4,))]))
    repository.model("text", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("flags", identity([("INPUT0", "BOOL", (-1,))]))
    repository.model("exact", identity([("INPUT0", "FP64", (-1,)), ("INPUT1", "INT64", (-1,))]))
    repository.model("half", identity([("INPUT0", "FP16", (-1,))]))
    repository.model("data", identity([("data", "FP32", (-1,))], outputs=[("OUTPUT0", "FP32", (-1,))]))
    repository.model("nested", identity([("parameters", "FP32", (-1,))], outputs=[("OUTPUT0", "FP32", (-1,))]))
    # Names that the reply uses itself: it keeps its own.
    repository.model("named", identity([("INPUT0", "STRING", (-1,)), ("INPUT1", "STRING", (-1,))],
                                       outputs=[("id", "STRING", (-1,)), ("model_name", "STRING", (-1,))]))
    repository.model("repeat", REPEAT)
    repository.model("square", square())
    # Twenty responses per second.
    repository.model("steady", square(CUSTOM_INFER_DELAY_NS=50_000_000))
    # A model of its own: its instance's thread is held up.
    repository.model("flooding", square())
    repository.model("rapid", square())


def path(model, stream=False):
    return f"/v2/models/{model}/generate{'_stream' if stream else ''}"


def reply(model, version="1", **members):
    return {"model_name": model, "model_version": version, **members}


def repeated(values, delays=None, wait=0):
    return {"IN": values, "DELAY": [0] * len(values) if delays is None else delays, "WAIT": wait}


class Events:
    """A streamed answer, read by hand: the head, then chunk by chunk."""

    def __init__(self, link, held=b""):
        self.link, self.held = link, held
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        self.version, status = head[0].split(" ")[:2]
        self.status = int(status)
        self.headers = {name.lower(): value.strip() for name, value in (row.split(":", 1) for row in head[1:])}

    def _more(self):
        piece = self.link.recv(1 << 16)
        if not piece:
            raise EOFError(f"closed after {self.held[-200:]!r}")
        self.held += piece

    def _until(self, mark):
        while mark not in self.held:
            self._more()
        before, self.held = self.held.split(mark, 1)
        return before

    def chunk(self):
        """The next chunk; empty at the end."""
        length = int(self._until(b"\r\n"), 16)
        while len(self.held) < length + 2:
            self._more()
        data, tail, self.held = self.held[:length], self.held[length:length + 2], self.held[length + 2:]
        assert tail == b"\r\n", tail
        return data

    def next(self):
        """The next event's object; None at the end."""
        data = self.chunk()
        if not data:
            return None
        assert data.startswith(b"data: ") and data.endswith(b"\n\n") and b"\n" not in data[:-2], data
        return json.loads(data[6:-2])

    def rest(self):
        return list(iter(self.next, None))


class GenerateCase(Cancelling, ServerCase):
    models = staticmethod(models)

    def post(self, model, value, stream=False, headers=None):
        """(status, content type, what the body says): an object, or a list of events."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        status, fields, answer = self.server.request("POST", path(model, stream), body, headers)
        kind = fields.get("content-type")
        if kind != EVENTS:
            return status, kind, json.loads(answer)
        rows = answer.split(b"\n\n")
        self.assertEqual(rows.pop(), b"")
        self.assertTrue(all(row.startswith(b"data: ") for row in rows), answer)
        return status, kind, [json.loads(row[6:]) for row in rows]

    def assert_reply(self, model, value, expected):
        self.assertEqual(self.post(model, value), (200, JSON, reply(model, **expected)))

    def open(self, model, value, *headers, timeout=20):
        """A stream on a connection of its own."""
        link = wire.connect(self.server, timeout=timeout)
        self.addCleanup(link.close)
        link.sendall(wire.post(path(model, True), json.dumps(value).encode(), *headers))
        return Events(link)


@needs_library("repeat")
@needs_library("square")
class Generate(GenerateCase):
    def test_shapes(self):
        for model, value, output in (
                ("plain", [1.5, 2, 3], [1.5, 2.0, 3.0]), ("plain", 1, 1.0), ("plain", [1], 1.0), ("plain", [], []),
                ("plain", [[1], [2]], [1.0, 2.0]), ("plain", [[1, 2], []], [1.0, 2.0]),
                ("pairs", [1, 2, 3, 4], [1, 2, 3, 4]), ("pairs", [], []), ("four", [1, 2, 3, 4], [1, 2, 3, 4]),
                ("batched", [1, 2], [1.0, 2.0]), ("flags", [True, False], [True, False]),
                ("text", "a\u00e9\0b", "a\u00e9\0b"), ("text", ["a", "b"], ["a", "b"]), ("text", "", ""), ("text", [["a"], "b"], ["a", "b"])):
            with self.subTest(model=model, value=value):
                self.assert_reply(model, {"INPUT0": value}, {"OUTPUT0": output})

    def test_members_in_order(self):
        """Sorted by name, as clients of upstream see them."""
        _, fields, body = self.server.request("POST", path("plain"), b'{"id":"r","INPUT0":[1,2]}')
        self.assertEqual(body, b'{"OUTPUT0":[1.0,2.0],"id":"r","model_name":"plain","model_version":"1"}')
        self.assertEqual(fields["content-type"], JSON)

    def test_numbers(self):
        """They read back as they were."""
        text = b'{"INPUT0":[0.1,1e21,1e-7,-0.0,123456789012345678],"INPUT1":[9223372036854775807,-9223372036854775808]}'
        _, _, body = self.server.request("POST", path("exact"), text)
        self.assertIn(b'"OUTPUT0":[0.1,1e21,1e-7,-0.0,123456789012345680.0],"OUTPUT1":[9223372036854775807,-9223372036854775808]', body)
        _, _, body = self.server.request("POST", path("exact"), b'{"INPUT0":[NaN,Infinity,-Inf],"INPUT1":0}')
        self.assertIn(b'"OUTPUT0":[NaN,Infinity,-Infinity],"OUTPUT1":0', body)

    def test_id(self):
        self.assert_reply("plain", {"INPUT0": 1, "id": "r1"}, {"OUTPUT0": 1.0, "id": "r1"})
        self.assert_reply("plain", {"INPUT0": 1, "id": ""}, {"OUTPUT0": 1.0})

    def test_versions(self):
        for place in ("/v2/models/plain/versions/1/generate", "/v2/models/plain/generate"):
            status, _, body = self.server.request("POST", place, b'{"INPUT0":1}')
            self.assertEqual((status, json.loads(body)), (200, reply("plain", OUTPUT0=1.0)))

    def test_parameters(self):
        """Outside or nested, of all types; what infer reserves is plain here."""
        for value in ({"a": 1, "b": True, "c": "x", "d": 1.5, "e": 18446744073709551615}, {"parameters": {"a": 1, "b": "x"}}, {"": 1},
                      {"sequence_id": "s", "sequence_start": 5, "priority": -3, "timeout": True, "binary_data_output": 1, "triton_x": 1}):
            with self.subTest(value=value):
                self.assert_reply("plain", {"INPUT0": 1, **value}, {"OUTPUT0": 1.0})
        self.assert_reply("plain", {"parameters": {"INPUT0": [4]}}, {"OUTPUT0": 4.0})

    def test_response_parameters(self):
        _, _, value = self.post("identity", {"INPUT0": 1})
        self.assertEqual(value, reply("identity", OUTPUT0=1.0, param0="an example string parameter", param1=42, param2=False,
                                       param3=123.123))

    def test_an_input_called_data(self):
        self.assert_reply("data", {"data": [1, 2]}, {"OUTPUT0": [1.0, 2.0]})

    def test_own_names_come_first(self):
        value = {"INPUT0": "mine", "INPUT1": "also mine", "id": "r"}
        self.assert_reply("named", value, {"id": "r"})
        self.assert_reply("named", {"INPUT0": "mine", "INPUT1": "also mine"}, {"id": "mine"})

    def test_large_tensors(self):
        """More elements than a request may have values otherwise."""
        values = [i % 10 / 8 for i in range(1_200_000)]
        self.assert_reply("plain", {"INPUT0": values}, {"OUTPUT0": values})
        self.assert_reply("text", {"INPUT0": ["x" * 100_000, ""]}, {"OUTPUT0": ["x" * 100_000, ""]})

    def test_wrong_requests(self):
        number = "Unable to parse 'data': attempt to access JSON non-number as double"
        shape = "The schema can not convert input 'INPUT0' to tensor with proper shape"
        text = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
        count = ("[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'plain'. Got input(s) [], but missing required "
                 "input(s) ['INPUT0']. Please provide all required input(s).")
        plain = lambda value: ("plain", {"INPUT0": value})
        for (model, value), status, message in (
                (plain("x"), 500, number), (plain(None), 500, number), (plain({}), 500, number), (plain({"a": [1]}), 500, number),
                (plain(True), 500, number), (plain([1, "a"]), 500, number),
                (plain([[1, 2], [3, 4]]), 500, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
                (("pairs", {"INPUT0": [1, 2, 3]}), 400, shape), (("four", {"INPUT0": [1] * 8}), 400, shape), (("four", {"INPUT0": []}), 400, shape),
                (("text", {"INPUT0": 5}), 500, text), (("text", {"INPUT0": None}), 500, text),
                (("flags", {"INPUT0": 1}), 500, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
                (("exact", {"INPUT0": 0, "INPUT1": 1.0}), 500,
                 "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
                (("half", {"INPUT0": [1]}), 400,
                 "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0"),
                (("plain", {"INPUT0": 1, "id": 5}), 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
                (("plain", {"INPUT0": 1, "a": None}), 400, f"parameter 'a' {KIND}"), (("plain", {"INPUT0": 1, "a": [1]}), 400, f"parameter 'a' {KIND}"),
                (("plain", {"INPUT0": 1, "data": [1]}), 400, f"parameter 'data' {KIND}"),
                (("plain", {"parameters": {"parameters": {}}}), 400, f"Converting keyword: 'parameters': parameter 'parameters' {KIND}"),
                (("plain", {"parameters": {"INPUT0": "x"}}), 500, f"Converting keyword: 'parameters': {number}"),
                (("plain", {"parameters": None}), 500,
                 "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"),
                (("nested", {"parameters": {"parameters": 1}}), 400, "Keyword 'parameters' for nested schema also given as input tensor name"),
                (("plain", b'{"INPUT0":1,"INPUT0":2}'), 400, "[request id: <id_unknown>] input 'INPUT0' already exists in request"),
                (("plain", b'{"id":"r","INPUT0":1,"parameters":{"INPUT0":2}}'), 400,
                 "Converting keyword: 'parameters': [request id: r] input 'INPUT0' already exists in request"),
                (("plain", {}), 400, count), (("plain", {"text": "x"}), 400, count),
                (("plain", b""), 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
                (("plain", b"{bad"), 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
                (("plain", b"[1,2]"), 500, "attempt to get members for non-object"), (("plain", b"5"), 500, "attempt to get members for non-object"),
                (("absent", {}), 404, "Request for unknown model: 'absent' is not found"),
                (("plain/versions/7", {}), 404, "Request for unknown model: 'plain' version 7 is not found")):
            for stream in (False, True):
                with self.subTest(model=model, value=value, stream=stream):
                    self.assertEqual(self.post(model, value, stream), (status, JSON, {"error": message}))

    def test_wrong_heads(self):
        for headers in ({"Content-Encoding": "gzip"}, {"Content-Encoding": "x"}):
            expected = 400, JSON, {"error": "Unsupported content-encoding, only 'identity' is supported."}
            self.assertEqual(self.post("plain", gzip.compress(b'{"INPUT0":1}'), headers=headers), expected)
        for headers in ({"Content-Encoding": "identity"}, {"Accept-Encoding": "gzip"}, {"Inference-Header-Content-Length": "3"}):
            self.assertEqual(self.post("plain", {"INPUT0": 1}, headers=headers)[0], 200)
        for stream in (False, True):
            status, headers, body = self.server.request("GET", path("plain", stream))
            self.assertEqual((status, headers["content-type"], json.loads(body)), (405, JSON, {"error": "Method Not Allowed"}))

    @conch_only  # the peer sends a body to HEAD
    def test_head(self):
        for stream in (False, True):
            with wire.connect(self.server) as link:
                replies = wire.Replies(link)
                for _ in range(2):
                    link.sendall(f"HEAD {path('plain', stream)} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
                    status, headers, _ = replies.next(has_body=False)
                    self.assertEqual((status, headers["content-length"]), (405, "30"))
                    self.assertEqual(replies.held, b"")

    def test_one_response_is_needed(self):
        self.assert_reply("repeat", repeated([4]), {"OUT": 4, "IDX": 0})
        self.assert_reply("square", {"IN": 1}, {"OUT": 1})
        for model, value in (("repeat", repeated([4, 5])), ("square", {"IN": 0}), ("square", {"IN": 20})):
            self.assertEqual(self.post(model, value), (200, JSON, {"error": MANY}))
        text = "expected IN and DELAY shape to match, got [2] and [1]"
        self.assertEqual(self.post("repeat", repeated([1, 2], [1])), (400, JSON, {"error": text}))

    @conch_only
    def test_hostile_json(self):
        """Each is refused by a bound, and the next request is served."""
        deep = "JSON nesting depth exceeds maximum allowed limit (100)"
        many = "the request JSON holds more than 1048576 values outside of tensor data"
        cut = "failed to parse the request JSON buffer: Invalid value. at"
        for body, status, message in ((b'{"INPUT0":' + b"[" * 1_000_000, 500, f"{cut} 1000010"), (b'{"a":' * 1_000_000, 500, f"{cut} 5000000"),
                              (b'{"INPUT0":' + b"[" * 100 + b"1" + b"]" * 100 + b"}", 400, f"Unable to parse 'data': {deep}"),
                              (b"{" + b",".join(b'"%d":1' % i for i in range(530_000)) + b"}", 400, many)):
            with self.subTest(body=body[:40]):
                self.assertEqual(self.post("plain", body), (status, JSON, {"error": message}))
                self.assert_reply("plain", {"INPUT0": 1}, {"OUTPUT0": 1.0})

    def test_chunked_request(self):
        body = b'{"INPUT0":[1,2]}'
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:5], body[5:])) + b"0\r\n\r\n"
        with wire.connect(self.server) as link:
            link.sendall(wire.post(path("plain", True), b"", "Transfer-Encoding: chunked", length=False) + chunks)
            self.assertEqual(Events(link).rest(), [reply("plain", OUTPUT0=[1.0, 2.0])])


class Forwarding(ServerCase):
    """What parameters the model sees: the body's, nested or not, and never a header."""

    flags = ("--http-header-forward-pattern=^x-",)

    @staticmethod
    def models(repository):
        repository.model("echo", identity(parameters={"echo_request_parameters": "true"}))

    def test_headers_are_not_forwarded(self):
        value = {"INPUT0": 1, "id": "r", "own": "text", "parameters": {"nested": "too", "number": 1}, "timeout": "t"}
        for stream in (False, True):
            with self.subTest(stream=stream):
                status, _, body = self.server.request("POST", path("echo", stream), json.dumps(value), {"X-Echo": "1"})
                found = json.loads(body.removeprefix(b"data: "))
                self.assertEqual((status, found), (200, reply("echo", OUTPUT0=1.0, id="r", own="text", nested="too", timeout="t")))
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
        _, _, body = self.server.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [tensor]}), {"X-Echo": "1"})
        self.assertEqual(json.loads(body)["parameters"], {"X-Echo": "1"})


@conch_only  # newer than the peer
class TotalSize(ServerCase):
    flags = ("--http-max-input-size=1024",)
    models = staticmethod(models)

    def test_tensors_are_bounded_together(self):
        ask = lambda **value: self.server.post_json(path("exact"), value)
        self.assertEqual(ask(INPUT0=[0.5] * 64, INPUT1=[1] * 64)[0], 200)
        status, body = ask(INPUT0=[0.5] * 64, INPUT1=[1] * 65)
        self.assertEqual((status, json.loads(body)["error"]), (
            400, "request size of 512 bytes with input 'INPUT1' of size 520 bytes exceeds the maximum allowed input size of 1024. "
                 "Use --http-max-input-size to increase the limit."))
        self.assertEqual(ask(INPUT0=[0.5] * 64, INPUT1=[1] * 64)[0], 200)


@needs_library("repeat")
@needs_library("square")
class Streams(GenerateCase):
    def test_events(self):
        expected = [reply("repeat", OUT=value, IDX=index) for index, value in enumerate((4, 2, 0))]
        self.assertEqual(self.post("repeat", repeated([4, 2, 0], [0, 30, 0]), True), (200, EVENTS, expected))
        self.assertEqual(self.post("plain", {"INPUT0": [1, 2], "id": "r"}, True), (200, EVENTS, [reply("plain", OUTPUT0=[1.0, 2.0], id="r")]))

    def test_no_response(self):
        self.assertEqual(self.post("square", {"IN": 0}, True), (200, EVENTS, []))
        self.assertEqual(self.post("repeat", repeated([]), True), (200, EVENTS, []))

    def test_each_event_is_a_chunk(self):
        """And comes when it is ready."""
        events = self.open("repeat", repeated([1, 2], [0, 400]))
        self.assertEqual((events.version, events.status, events.headers["transfer-encoding"]), ("HTTP/1.1", 200, "chunked"))
        self.assertNotIn("content-length", events.headers)
        self.assertEqual(events.chunk(), b'data: {"IDX":0,"OUT":1,"model_name":"repeat","model_version":"1"}\n\n')
        start = time.monotonic()
        self.assertEqual(events.next()["OUT"], 2)
        self.assertGreater(time.monotonic() - start, 0.2)
        self.assertEqual(events.chunk(), b"")

    def test_the_first_response_decides_on_the_status(self):
        expected = [{"error": "expected IN and DELAY shape to match, got [2] and [1]"}]
        self.assertEqual(self.post("repeat", repeated([1, 2], [1]), True), (400, EVENTS, expected))

    def test_large_events(self):
        values = [i % 1000 / 8 for i in range(300_000)]
        self.assertEqual(self.post("plain", {"INPUT0": values}, True), (200, EVENTS, [reply("plain", OUTPUT0=values)]))

    @conch_only  # the peer stands still after some hundred responses that are sent at once
    def test_many_events(self):
        status, _, events = self.post("rapid", {"IN": 5000}, True)
        self.assertEqual((status, events), (200, [reply("rapid", OUT=5000)] * 5000))

    @conch_only  # the peer answers 5,000 responses never
    def test_the_one_reply_of_many_responses(self):
        self.assertEqual(self.post("rapid", {"IN": 5000}), (200, JSON, {"error": MANY}))

    @conch_only  # the peer answers what stands behind a stream before the stream has ended
    def test_pipelining_behind_a_stream(self):
        one = lambda model, stream, value: wire.post(path(model, stream), json.dumps(value).encode())
        with wire.connect(self.server) as link:
            link.sendall(one("repeat", True, repeated([1, 2], [0, 100])) + one("plain", False, {"INPUT0": 5}) + one("square", True, {"IN": 2}))
            events = Events(link)
            self.assertEqual([event["OUT"] for event in events.rest()], [1, 2])
            replies = wire.Replies(link)
            replies.held = events.held
            self.assertEqual(json.loads(replies.next()[2]), reply("plain", OUTPUT0=5.0))
            self.assertEqual(Events(link, replies.held).rest(), [reply("square", OUT=2)] * 2)

    def test_the_connection_is_used_again(self):
        with wire.connect(self.server) as link:
            for count in (2, 0, 1):
                link.sendall(wire.post(path("square", True), json.dumps({"IN": count}).encode()))
                self.assertEqual(len(Events(link).rest()), count)

    def test_connection_close(self):
        events = self.open("square", {"IN": 2}, "Connection: close")
        self.assertEqual((len(events.rest()), events.headers["connection"]), (2, "close"))
        self.assertEqual((events.held, events.link.recv(1)), (b"", b""))

    @conch_only  # the peer sends chunks to clients that cannot know what they are
    def test_http_1_0(self):
        for keep in ("", "Connection: keep-alive\r\n"):
            with wire.connect(self.server) as link:
                body = json.dumps({"IN": 3}).encode()
                link.sendall(f"POST {path('square', True)} HTTP/1.0\r\n{keep}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                data = b"".join(iter(lambda: link.recv(1 << 16), b""))
            head, body = data.split(b"\r\n\r\n", 1)
            self.assertNotIn(b"transfer-encoding", head.lower())
            self.assertNotIn(b"content-length", head.lower())
            self.assertIn(b"connection: close", head.lower())
            self.assertEqual(body, b'data: {"OUT":3,"model_name":"square","model_version":"1"}\n\n' * 3)

    def test_curl(self):
        done = subprocess.run(["curl", "-sN", "-d", '{"IN": 2}', f"http://{self.server.http}{path('square', True)}"],
                              capture_output=True, text=True, check=True, timeout=20)
        self.assertEqual(done.stdout, 'data: {"OUT":2,"model_name":"square","model_version":"1"}\n\n' * 2)


    def test_aiohttp(self):
        """Line by line, several at once on one loop; a body that is not read to its end closes the connection."""
        async def one(session, count, left):
            async with session.post(f"http://{self.server.http}{path('repeat', True)}", json=repeated(list(range(count)), [20] * count)) as answer:
                self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, EVENTS))
                values = []
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        values.append(json.loads(line[6:])["OUT"])
                    if len(values) == left:
                        break
                return values

        async def all_of_them():
            async with aiohttp.ClientSession() as session:
                return await asyncio.gather(one(session, 3, 9), one(session, 0, 9), one(session, 5, 2), one(session, 1, 9))
        self.assertEqual(asyncio.run(all_of_them()), [[0, 1, 2], [], [0, 1], [0]])

@needs_library("square")
class Leaving(GenerateCase):
    def check(self, leave, **more):
        before = self.figures("steady")
        events = self.open("steady", {"IN": 1000, **more})
        events.next()
        leave(events.link)
        self.assert_cancelled("steady", before)
        self.assertEqual(self.post("square", {"IN": 1}, True), (200, EVENTS, [reply("square", OUT=1)]))

    def test_a_client_that_closes(self):
        self.check(socket.socket.close)

    def test_a_client_that_closes_after_a_large_request(self):
        self.check(socket.socket.close, padding="x" * 600_000)

    def test_a_client_that_resets(self):
        def reset(link):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
        self.check(reset)

    @conch_only  # the peer notices it with the next response
    def test_while_nothing_is_sent(self):
        """Before the first response, and between two that are far apart: the model stops at once."""
        for name, delays in (("first", [20_000, 0, 0]), ("second", [0, 20_000, 0])):
            start = time.monotonic()
            link = wire.connect(self.server)
            with self.server.telling_states():
                link.sendall(wire.post(path("repeat", True), json.dumps({"id": name, **repeated([1, 2, 3], delays)}).encode()))
                self.server.wait_for_state(name, "EXECUTING")
            if name == "second":
                self.assertEqual(Events(link).next()["OUT"], 1)
            link.close()
            # One instance: who comes next waits for it.
            status, _, events = self.post("repeat", repeated([9]), True)
            self.assertEqual((status, [event["OUT"] for event in events]), (200, [9]))
            self.assertLess(time.monotonic() - start, 15, "less than the model takes")

    @conch_only
    def test_behind_what_it_sent_too_early(self):
        """The next requests wait unread; the end behind them is noticed all the same."""
        def leave(link):
            link.sendall(wire.post("/v2/models/square/generate", b'{"IN": 1}') * 100)
            link.close()
        self.check(leave)

    @conch_only
    def test_generate(self):
        """The one reply of a model that sends many."""
        before = self.figures("steady")
        link = wire.connect(self.server)
        link.sendall(wire.post(path("steady"), b'{"IN": 1000}'))
        until(lambda: self.figures("steady")["success"], "a response of 'steady'", accept=lambda count: count > before["success"])
        link.close()
        self.assert_cancelled("steady", before)


@conch_only
@needs_library("square")
class Deadlines(GenerateCase):
    flags = ("--http-timeout-header=test-timeout-ms",)

    def test_before_the_first_response(self):
        for stream in (False, True):
            start = time.monotonic()
            answer = self.post("repeat", repeated([1, 2], [9000, 0]), stream, {"test-timeout-ms": "300"})
            self.assertEqual(answer, (504, JSON, {"error": "Deadline Exceeded"}))
            self.assertLess(time.monotonic() - start, 8, "less than the model takes")
        self.assertEqual(self.post("square", {"IN": 1}, headers={"test-timeout-ms": "9000"})[0], 200)

    def test_within_a_stream(self):
        before = self.figures("steady")
        status, _, events = self.post("steady", {"IN": 1000}, True, {"test-timeout-ms": "500"})
        self.assertEqual((status, events[0], events[-1]), (200, reply("steady", OUT=1000), {"error": "Deadline Exceeded"}))
        self.assertIn(len(events), range(3, 12))
        self.assert_cancelled("steady", before)

    def test_a_deadline_that_is_none(self):
        self.assertEqual(self.post("square", {"IN": 1}, True, {"test-timeout-ms": "x"})[:2], (400, JSON))


@conch_only
@needs_library("square")
class SlowReaders(GenerateCase):
    """Upstream keeps for a client all that it does not read."""

    # Little may wait beyond the credits.
    flags = ("--memory-limit-bytes=268435456", "--stream-patience-ms=1000")
    FLOOD = 500_000

    def flood(self):
        """A stream of which nothing is read. With little room in the kernel, as each response that leaves is a row of the statistics."""
        link = socket.socket()
        self.addCleanup(link.close)
        link.settimeout(60)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", self.server.ports["http"]))
        link.sendall(wire.post(path("flooding", True), json.dumps({"IN": self.FLOOD}).encode()))
        return link

    def test_what_is_held_is_bounded_and_the_end_is_clear(self):
        before, figures = self.server.resident_bytes(), self.figures("flooding")
        link = self.flood()
        # A client that reads nothing: kernel buffers fill, and then the server's patience ends.
        time.sleep(3)
        self.assertLess(self.server.resident_bytes() - before, 30 << 20)
        self.assert_cancelled("flooding", figures, within=20)
        rows = Events(link).rest()
        self.assertEqual(rows[0], reply("flooding", OUT=self.FLOOD))
        self.assertLess(len(rows), self.FLOOD)
        self.assertGreater(len(rows), 256)
        self.assertIn("the request was cancelled: its responses were read too slowly", rows[-1]["error"])
        # The connection is whole: it can be used again.
        link.sendall(wire.post(path("square", True), b'{"IN": 1}'))
        self.assertEqual(Events(link).rest(), [reply("square", OUT=1)])

    def test_others_are_not_slowed(self):
        figures, link, durations = self.figures("flooding"), self.flood(), []
        for _ in range(50):
            start = time.monotonic()
            self.assertEqual(self.post("square", {"IN": 2}, True)[0], 200)
            durations.append(time.monotonic() - start)
        # What waits for the flood waits for its patience, a second.
        self.assertLess(sorted(durations)[len(durations) // 2], 0.5)
        link.close()
        self.assert_cancelled("flooding", figures, within=20)

    def test_a_reader_that_pauses_is_waited_for(self):
        link = wire.connect(self.server, timeout=60)
        self.addCleanup(link.close)
        link.sendall(wire.post(path("rapid", True), b'{"IN": 30000}'))
        events = Events(link)
        events.next()
        time.sleep(0.5)  # the reader's pause
        self.assertEqual(events.rest(), [reply("rapid", OUT=30000)] * 29_999)


@conch_only
@needs_library("repeat")
class Draining(GenerateCase):
    def test_streams_are_served_to_their_end(self):
        events = self.open("repeat", repeated([1, 2, 3], [0, 400, 400]))
        self.assertEqual(events.next()["OUT"], 1)
        self.server.process.terminate()
        self.assertEqual([event["OUT"] for event in events.rest()], [2, 3])
        self.assertEqual(events.link.recv(1), b"", "and then the connection ends")
        self.assertEqual(self.server.process.wait(20), 0)

    @classmethod
    def tearDownClass(cls):
        """The server has ended already."""


@needs_peer("perf_analyzer")
@needs_library("square")
class PerfAnalyzer(ServerCase):
    """Upstream's load tool as GenAI-Perf drives it: by the path, with payloads of JSON."""

    @staticmethod
    def models(repository):
        repository.model("square", square())

    def run_tool(self, endpoint):
        with tempfile.TemporaryDirectory() as directory:
            data = pathlib.Path(directory) / "data.json"
            data.write_text(json.dumps({"data": [{"payload": [{"IN": 1 if endpoint == "generate" else 4}]}]}))
            profile = pathlib.Path(directory) / "profile.json"
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", "square", "--service-kind", "openai", "--endpoint", f"v2/models/square/{endpoint}",
                 "-u", self.server.http, "--async", "--input-data", str(data), "--concurrency-range", "2", "--profile-export-file", str(profile),
                 "--measurement-interval", "1000", "--stability-percentage", "999", "--max-trials", "8"],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            experiment, = json.loads(profile.read_text())["experiments"]
            return experiment["requests"]

    def check(self, endpoint, *expected):
        requests = self.run_tool(endpoint)
        self.assertGreater(len(requests), 50)
        for request in requests:
            self.assertEqual([output["response"] for output in request["response_outputs"]], list(expected))

    def test_generate(self):
        self.check("generate", '{"OUT":1,"model_name":"square","model_version":"1"}')

    def test_generate_stream(self):
        """It knows events by their content type, and takes each for a response. Its `--streaming` is for gRPC alone."""
        self.check("generate_stream", *['data: {"OUT":4,"model_name":"square","model_version":"1"}\n\n'] * 4, "")


# Keeps the metrics that TensorRT-LLM's backend keeps.
CACHE = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(name="nv_trt_llm_kv_cache_block_metrics", description="of a test", kind=pb_utils.MetricFamily.GAUGE)
        self.metrics = []
        for kind, value in (("max", 12), ("used", 3), ("tokens_per", 64), ("free", 9)):
            metric = self.family.Metric(labels={"kv_cache_block_type": kind, "model": args["model_name"], "version": "1"})
            metric.set(value)
            self.metrics.append(metric)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())])
                for request in requests]
'''
LOAD = {"text": "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=768",
        "json": 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":768}}'}


@conch_only  # newer than the peer
@needs_peer(PYTHON)
class LoadMetrics(GenerateCase):
    """The header endpoint-load-metrics (ORCA)."""

    environment = ENVIRONMENT
    flags = (f"--backend-directory={DIRECTORY}",)

    @staticmethod
    def models(repository):
        numbers = [("INPUT0", "INT32", (1,))], [("OUTPUT0", "INT32", (1,))]
        repository.model("cache", python(*numbers), files={"1/model.py": CACHE.encode()})

    def ask(self, stream, wish):
        status, headers, _ = self.server.request("POST", path("cache", stream), b'{"INPUT0":1}', {"Endpoint-Load-Metrics-Format": wish} if wish else {})
        self.assertEqual(status, 200)
        return headers.get("endpoint-load-metrics")

    def test_it_is_there_for_who_asks(self):
        for stream in (False, True):
            for wish, expected in ((None, None), ("text", LOAD["text"]), ("json", LOAD["json"]), ("other", None)):
                with self.subTest(stream=stream, wish=wish):
                    self.assertEqual(self.ask(stream, wish), expected)

    def test_the_log_says_why_not(self):
        time.sleep(1)  # time must pass: there is one such line per second, and another test may have had it
        self.ask(False, "another")
        self.server.wait_for_line("orca_type is set to an invalid type: another")


class NoLoadMetrics(GenerateCase):
    def test_no_header_without_metrics(self):
        for stream in (False, True):
            for wish in ("text", "json"):
                status, headers, _ = self.server.request("POST", path("plain", stream), b'{"INPUT0":1}', {"endpoint-load-metrics-format": wish})
                self.assertEqual((status, headers.get("endpoint-load-metrics")), (200, None))


if __name__ == "__main__":
    unittest.main()
