"""The logging extension: the log's switches, read and set over both protocols, taking effect at once."""

import asyncio
import http.client
import json
import queue
import re
import signal
import time
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

import certificates
from case import IS_TRITON, ServerCase, conch_only, needs_library
from repository import Repository, identity
from server import Server
from waiting import until, until_equal

START = {"log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0, "log_format": "default"}


@needs_library("identity")
class Logging(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=4))

    def setUp(self):
        self.set({key: value for key, value in START.items() if key != "log_file"})

    def set(self, changes):
        status, reply = self.server.post_json("/v2/logging", changes)
        self.assertEqual(status, 200, reply)
        return json.loads(reply)

    def stub(self):
        client = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(client.close)
        return client

    def test_both_protocols_show_the_same(self):
        self.assertEqual(self.server.get_json("/v2/logging"), START)
        status, headers, body = self.server.request("GET", "/v2/logging")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        # The order of members is part of what people see.
        self.assertEqual(list(json.loads(body)), list(START))
        self.assertEqual(self.grpc_settings(), START)

    def grpc_settings(self, changes=None):
        reply = self.stub().update_log_settings(changes) if changes else self.stub().get_log_settings()
        return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in reply.settings.items()}

    def test_changes_by_each_client(self):
        changes = {"log_info": False, "log_warning": False, "log_error": False, "log_verbose_level": 3, "log_format": "ISO8601"}
        expected = {**START, **changes}

        async def http_aio():
            async with httpaio.InferenceServerClient(self.server.http) as client:
                await client.update_log_settings(changes)
                return await client.get_log_settings()

        async def grpc_aio():
            async with grpcaio.InferenceServerClient(self.server.grpc) as client:
                await client.update_log_settings(changes)
                return await client.get_log_settings(as_json=True)

        def http():
            with httpclient.InferenceServerClient(self.server.http) as client:
                client.update_log_settings(changes)
                return client.get_log_settings()
        for ask in (http, lambda: asyncio.run(http_aio()), lambda: self.grpc_settings(changes),
                    lambda: asyncio.run(grpc_aio())):
            self.setUp()
            shown = ask()
            if "settings" in shown:  # protobuf's JSON
                shown = {name: next(iter(value.values()), None) for name, value in shown["settings"].items()}
            self.assertEqual(shown, expected)
            self.assertEqual(self.server.get_json("/v2/logging"), expected)

    def test_what_is_not_named_stays(self):
        self.set({"log_verbose_level": 2})
        for nothing in ({}, {"log_colour": True}, {"log_info": None, "log_file": None, "log_format": None}):
            self.assertEqual(self.set(nothing), {**START, "log_verbose_level": 2}, nothing)
        self.assertEqual(self.grpc_settings({"log_verbose_level": 1}), {**START, "log_verbose_level": 1})

    def lines(self, wanted):
        return [line for line in self.server.lines if wanted in line]

    def settle(self):
        """Lines may still be on their way to us: they come before one that is caused now."""
        self.settled_count = getattr(self, "settled_count", 0) + 1
        path = f"/settled/{self.id()}/{self.settled_count}"
        level = self.server.get_json("/v2/logging")["log_verbose_level"]
        self.set({"log_verbose_level": 1})
        self.server.get(path)
        self.set({"log_verbose_level": level})
        self.server.wait_for_text(path)

    def test_a_change_counts_at_once_and_in_every_thread(self):
        """Verbose lines of HTTP requests begin with the very next request, on whatever shard, and end so."""
        before = len(self.lines("/v2/health/live"))
        for _ in range(8):
            self.server.get("/v2/health/live")
        self.settle()
        self.assertEqual(len(self.lines("/v2/health/live")), before)
        self.set({"log_verbose_level": 1})
        for _ in range(8):
            self.server.get("/v2/health/live")
        self.set({"log_verbose_level": 0})
        for _ in range(8):
            self.server.get("/v2/health/live")
        self.settle()
        self.assertEqual(len(self.lines("/v2/health/live")), before + 8)

    def test_formats(self):
        default = r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] "
        iso8601 = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ \S+:\d+\] "
        for name, form in (("ISO8601", iso8601), ("default", default)):
            self.set({"log_format": name, "log_verbose_level": 1})
            before = len(self.server.lines)
            self.server.get("/v2/health/ready")
            self.set({"log_verbose_level": 0})
            self.settle()
            lines = [line for line in self.server.lines[before:] if "/v2/health/ready" in line]
            self.assertTrue(lines)
            for line in lines:
                self.assertRegex(line, form)

    def test_switched_off_levels_are_silent(self):
        self.set({"log_info": False, "log_verbose_level": 0, "log_error": False, "log_warning": False})
        before = len(self.server.lines)
        self.assertNotEqual(self.server.post_json("/v2/repository/models/none/load", {})[0], 200)
        self.settle()
        own = '"HTTP request: '  # of `settle`
        self.assertEqual([line for line in self.server.lines[before:] if own not in line], [])

    def test_refusals(self):
        bool_text = "attempt to access JSON non-boolean as boolean"
        rows = [
            ({"log_file": "/tmp/x"}, 501, "log file location can not be updated through network protocol"),
            ({"log_file": ""}, 501, "log file location can not be updated through network protocol"),
            ({"log_info": 1}, 500, bool_text),
            ({"log_warning": "true"}, 500, bool_text),
            ({"log_error": [True]}, 500, bool_text),
            ({"log_verbose_level": -1}, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
            ({"log_verbose_level": "1"}, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
            ({"log_format": 1}, 500, "attempt to access JSON non-string as string"),
            ({"log_format": "iso8601"}, 503, "invalid argument for --log_format, got: iso8601"),
        ]
        for changes, status, message in rows:
            got, reply = self.server.post_json("/v2/logging", changes)
            self.assertEqual((got, json.loads(reply)["error"]), (status, message), changes)
        status, reply = self.server.post_json("/v2/logging", b"{")
        self.assertEqual(status, 500)
        self.assertTrue(json.loads(reply)["error"].startswith("failed to parse the request JSON buffer: "))
        status, reply = self.server.post_json("/v2/logging", b"")
        message = "failed to parse the request JSON buffer: The document is empty. at 0"
        self.assertEqual((status, json.loads(reply)["error"]), (500, message))
        for verb in ("PUT", "DELETE"):
            status, headers, reply = self.server.request(verb, "/v2/logging")
            self.assertEqual((status, headers["content-type"], json.loads(reply)), (405, "application/json", {"error": "Method Not Allowed"}))
        self.assertEqual(self.server.get_json("/v2/logging"), START)

    def test_grpc_refusals(self):
        service = grpcclient.service_pb2
        rows = [
            ("log_file", "string_param", "", "UNIMPLEMENTED", "log file location can not be updated through network protocol"),
            ("log_info", "string_param", "on", "INVALID_ARGUMENT", "expect boolean for 'log_info'"),
            ("log_warning", "uint32_param", 1, "INVALID_ARGUMENT", "expect boolean for 'log_warning'"),
            ("log_error", "string_param", "", "INVALID_ARGUMENT", "expect boolean for 'log_error'"),
            ("log_verbose_level", "string_param", "1", "INVALID_ARGUMENT", "expect int32 for 'log_verbose_level'"),
            ("log_format", "bool_param", True, "INVALID_ARGUMENT", "expect string for 'log_format'"),
            ("log_format", "string_param", "iso8601", "INVALID_ARGUMENT", "invalid argument for log_format, got: iso8601"),
        ]
        stub = self.stub()._client_stub
        for name, kind, value, code, message in rows:
            request = service.LogSettingsRequest()
            setattr(request.settings[name], kind, value)
            with self.assertRaises(Exception) as caught:
                stub.LogSettings(request)
            self.assertEqual((caught.exception.code().name, caught.exception.details()), (code, message), name)
        self.assertEqual(self.grpc_settings(), START)

    @conch_only  # upstream sets what stands in front of the fault
    def test_a_bad_request_changes_nothing(self):
        status, _ = self.server.post_json("/v2/logging", {"log_info": False, "log_verbose_level": 4, "log_format": "x"})
        self.assertEqual(status, 503)
        self.assertEqual(self.server.get_json("/v2/logging"), START)

    def test_t2_the_file_stays_where_it_is(self):
        target = self.repository.path / "stolen.log"
        self.assertEqual(self.server.post_json("/v2/logging", {"log_file": str(target)})[0], 501)
        with self.assertRaises(InferenceServerException):
            self.stub().update_log_settings({"log_file": str(target)})
        self.assertFalse(target.exists())


@conch_only
class Events(unittest.TestCase):
    """rustls tells of a handshake from verbose level 2 on, and of nothing below."""

    EVENT = '] "rustls::server::hs: decided upon suite '

    def test_events_of_dependencies(self):
        files = certificates.shared()
        repository = Repository()
        self.addCleanup(repository.close)
        flags = ("--http-use-ssl=true", f"--http-server-cert={files.server}", f"--http-server-key={files.server_key}")
        with Server(repository, *flags, tls={"http": files.context()}) as server:
            # Each request is a handshake, which the level counts for that was set before.
            def set_level(level):
                self.assertEqual(server.post_json("/v2/logging", {"log_verbose_level": level})[0], 200)

            def count():
                return sum(self.EVENT in line for line in server.lines)
            for round_ in (1, 2):
                set_level(1)
                server.get(f"/settled/{round_}")
                # A line that is caused now comes behind all before it.
                server.wait_for_text(f"/settled/{round_}")
                self.assertEqual(count(), round_ * 2 - 2)
                set_level(2)
                server.get("/v2/health/live")
                set_level(0)
                until_equal(count, round_ * 2, "the count of handshakes that are told of")
            line = next(line for line in server.lines if self.EVENT in line)
            self.assertRegex(line, r"^I\d{4} [0-9:.]+ \d+ hs\.rs:\d+\] ")


@needs_library("identity")
@conch_only  # the real Triton stops with the reader of its log
class StoppedReader(unittest.TestCase):
    """A pipe that nobody empties holds the log: requests, model control and the exit go on."""

    def start(self):
        repository = Repository().model("identity", identity(batch=4)).model("other", identity(parameters={"creation_delay_sec": "1"}))
        self.addCleanup(repository.close)
        return Server(repository, "--model-control-mode=explicit", "--load-model=identity", "--log-verbose=1")

    def fill(self, server):
        """Sends requests, each of which logs a long line, until lines are dropped; how many are so far."""
        server.stop_reading()
        path = "/" + "x" * 6_000
        connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=30)
        self.addCleanup(connection.close)
        for round_ in range(100):
            for _ in range(500):
                connection.request("GET", path)
                reply = connection.getresponse()
                reply.read()
            if dropped := self.dropped(server):
                return dropped
        raise AssertionError("no line was dropped")

    def dropped(self, server):
        return server.metrics().get("conch_log_lines_dropped_total", 0)

    def infer(self, server, model):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        status, reply = server.post_json(f"/v2/models/{model}/infer", body)
        self.assertEqual(status, 200, reply)

    def test_everything_goes_on_and_the_log_tells_what_was_dropped(self):
        with self.start() as server:
            self.fill(server)
            self.infer(server, "identity")
            self.assertEqual(server.post_json("/v2/repository/models/other/load", {})[0], 200)
            self.assertEqual(server.post_json("/v2/repository/models/identity/unload", {})[0], 200)
            self.assertEqual(server.post_json("/v2/logging", {"log_verbose_level": 0})[0], 200)
            self.assertGreater(self.dropped(server), 0)
            server.read_on()
            server.wait_for_line(r'^W\d{4} .* sink\.rs:\d+\] "\d+ log lines were dropped: they could not be written as fast as they came"')
            # Whatever else the server had to say meanwhile: what it counts is what it tells.
            until(lambda: (self.told(server), self.dropped(server)), "as many lines told as counted", 30, lambda counts: counts[0] == counts[1])

    @staticmethod
    def told(server):
        return sum(int(count) for count in re.findall(r'"(\d+) log lines were dropped', server.output))

    def test_the_exit_waits_a_bounded_time(self):
        with self.start() as server:
            self.fill(server)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(30), 0)
            # Without a bound it would take for ever; the bound is a second.
            self.assertLess(time.monotonic() - began, 25)

    def test_a_crash_waits_a_bounded_time(self):
        server = self.start()
        self.addCleanup(server.kill)
        self.fill(server)
        server.process.send_signal(signal.SIGSEGV)
        self.assertEqual(server.process.wait(30), -signal.SIGSEGV)

    def test_lines_before_a_crash_are_written(self):
        server = self.start()
        self.addCleanup(server.kill)
        server.get("/v2/the-last-request")
        server.process.send_signal(signal.SIGABRT)
        self.assertEqual(server.process.wait(30), -signal.SIGABRT)
        server.wait_for_line("the-last-request")


class LinesCase(ServerCase):
    def wait_for_count(self, line, count):
        """A thread of its own writes the log: a line may follow the answer."""
        until_equal(lambda: self.server.output.count(line), count, f"the count of '{line}'")


@needs_library("identity")
class Lines(LinesCase):
    """Lines that people and upstream's tests look for."""

    flags = ("--log-verbose=1",)

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=4))
        repository.model("batching", identity(batch=4, extra="dynamic_batching { }\n"))

    def test_the_life_of_a_request(self):
        body = {"id": "life", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        self.assertEqual(self.server.post_json("/v2/models/identity/infer", body)[0], 200)
        self.server.wait_for_line(r"\[request id: life\] Setting state from EXECUTING to RELEASED")
        found = re.findall(r"\[request id: life\] Setting state from ([A-Z]+) to ([A-Z]+)", self.server.output)
        self.assertEqual(found, [("INITIALIZED", "INITIALIZED"), ("INITIALIZED", "PENDING"), ("PENDING", "EXECUTING"), ("EXECUTING", "RELEASED")])
        self.server.wait_for_line(r"\[request id: life\] prepared: .*request id: life, model: identity, ")

    def test_refused_requests_are_told_apart(self):
        """By their ids, also where the reason names none, over every way in."""
        reason = "unexpected inference input 'OTHER' for model 'identity'"
        body = {"inputs": [{"name": "OTHER", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        for more, shown in (({"id": "refused"}, "refused"), ({}, "<id_unknown>")):
            self.assertEqual(self.server.post_json("/v2/models/identity/infer", {**body, **more})[0], 400)
            self.server.wait_for_line(rf"\[request id: {shown}\] Infer failed: {reason}")
        tensor = grpcclient.InferInput("OTHER", [1, 2], "FP32").set_data_from_numpy(numpy.zeros((1, 2), numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            with self.assertRaises(InferenceServerException):
                client.infer("identity", [tensor], request_id="call")
            results = queue.Queue()
            client.start_stream(lambda result, error: results.put(error))
            client.async_stream_infer("identity", [tensor], request_id="stream")
            self.assertIn(reason, str(results.get(timeout=30)))
            client.stop_stream()
        for shown in ("call", "stream"):
            self.server.wait_for_line(rf"\[request id: {shown}\] Infer failed: {reason}")

    def test_handlers_of_inferences(self):
        line = "New request handler for ModelInferHandler"
        before = self.server.output.count(line)
        if not IS_TRITON:  # of the newer release
            self.assertEqual(before, 2)
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(numpy.zeros((1, 2), numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.infer("identity", [tensor])
        self.wait_for_count(line, before + 1)

    def test_the_start(self):
        for line in ("Adding default backend config setting: default-max-batch-size,4", "TRITONBACKEND_Initialize: identity",
                     r"backend configuration:\n{", "TRITONBACKEND_ModelInitialize: identity (version 1)",
                     "TRITONBACKEND_ModelInstanceInitialize: identity_0_0 (CPU device 0)",
                     "Starting dynamic-batcher thread for batching at "):
            self.server.wait_for_text(line)
        self.assertNotIn("Starting dynamic-batcher thread for identity ", self.server.output)


@needs_library("identity")
class Leaving(LinesCase):
    """What is logged of clients that leave, in the words that upstream's tests look for."""

    flags = ("--log-verbose=2",)

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=4))
        repository.model("slow", identity(batch=4, count=4, parameters={"execute_delay_ms": "1500"}))

    def test_clients_that_leave(self):
        """A call that its client cancels or leaves has one line that says so, one that was answered has none; each state is released."""
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(numpy.zeros((1, 2), numpy.float32))
        states = ("StateNew", "StateRelease")
        wait_for_execution = lambda name: self.server.wait_for_line(rf"\[request id: {name}\] Setting state from PENDING to EXECUTING")
        for name, handler in (("unary", "ModelInferHandler"), ("streamed", "ModelStreamInferHandler"), ("abandoned", "ModelInferHandler")):
            with self.subTest(name):
                line = f"Cancellation notification received for {handler}, rpc_ok="
                before, opened = self.server.output.count(line), self.server.output.count(states[0])
                with grpcclient.InferenceServerClient(self.server.grpc) as client:
                    if name == "streamed":
                        client.start_stream(callback=lambda result, error: None)
                        client.async_stream_infer("slow", [tensor], request_id=name)
                        wait_for_execution(name)
                        client.stop_stream(cancel_requests=True)
                    else:
                        future = client.async_infer("slow", [tensor], callback=lambda result, error: None, request_id=name)
                        wait_for_execution(name)
                        if name == "unary":
                            future.cancel()
                        else:
                            client.close()
                    self.wait_for_count(line, before + 1)
                if not IS_TRITON:  # keeps states for calls to come
                    self.assertEqual(self.server.output.count(states[0]), opened + 1)
                    self.wait_for_count(states[1], self.server.output.count(states[0]))
        before = self.server.output.count("Cancellation notification")
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.infer("identity", [tensor])
            with self.assertRaises(InferenceServerException):
                client.infer("nobody", [tensor])
            client.start_stream(callback=lambda result, error: None)
            client.async_stream_infer("identity", [tensor])
            client.stop_stream()
        if not IS_TRITON:
            self.wait_for_count(states[1], self.server.output.count(states[0]))
        self.assertEqual(self.server.output.count("Cancellation notification"), before)


if __name__ == "__main__":
    unittest.main()
