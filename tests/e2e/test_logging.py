"""The logging extension: the log's switches, read and set over both protocols, taking effect at once."""

import asyncio
import json
import time
import unittest

import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

from case import IS_TRITON, ServerCase, conch_only, needs_library
from repository import identity

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
        """Lines may still be on their way to us."""
        time.sleep(0.2)

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
        self.assertEqual(self.server.lines[before:], [])

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


if __name__ == "__main__":
    unittest.main()
