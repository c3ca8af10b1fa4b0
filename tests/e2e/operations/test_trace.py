"""Tracing: the settings over both protocols, and the files that traced requests end up in."""

import asyncio
import collections
import json
import pathlib
import queue
import tempfile
import unittest

import grpc
import numpy
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException

import server as servers
from case import IS_TRITON, KIND, ServerCase, conch_only, needs_library
from probe import probe
from repository import Repository, identity
from test_cache import OWN
from test_stream import REPEAT, Call, repeat
from waiting import until_equal

CORE = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", *CORE, "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", *CORE, "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]
OFF = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "", "trace_mode": "triton"}


def models(repository):
    repository.model("identity", identity(batch=4)).model("other", identity(batch=4)).model("flat", identity())
    repository.model("mixed", identity([("INPUT0", "INT32", (-1,)), ("INPUT1", "STRING", (-1,)), ("INPUT2", "BOOL", (-1,))], batch=4))


def body(values, **more):
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}], **more}


class Traces:
    """What a trace file says, by trace."""

    def __init__(self, path):
        self.entries = json.loads(pathlib.Path(path).read_text())
        self.by_id = {}
        for entry in self.entries:
            trace = self.by_id.setdefault(entry["id"], {"times": [], "tensors": [], "subject": None})
            if "timestamps" in entry:
                trace["times"] += [(row["name"], row["ns"]) for row in entry["timestamps"]]
            elif "tensor" in entry:
                trace["tensors"].append((entry["activity"], entry["tensor"]))
            else:
                trace["subject"] = entry

    @property
    def all(self):
        return list(self.by_id.values())


@needs_library("identity")
class Files(unittest.TestCase):
    """Servers that trace from the start, and what they leave behind."""

    def setUp(self):
        self.repository = Repository()
        self.addCleanup(self.repository.close)
        models(self.repository)
        directory = tempfile.TemporaryDirectory(prefix="conch-trace-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.file = self.directory / "trace.json"

    def server(self, *config, flags=()):
        flags = [f"--trace-config=triton,file={self.file}", *(f"--trace-config={setting}" for setting in config), *flags]
        return servers.Server(self.repository.path, *flags, kind=KIND)

    def names(self):
        return sorted(path.name for path in self.directory.iterdir())

    def ask(self, server, count=1, model="identity", **more):
        for _ in range(count):
            status, reply = server.post_json(f"/v2/models/{model}/infer", body([1, 2], **more))
            self.assertEqual(status, 200, reply)

    def ask_grpc(self, server, model="identity", request_id="", stream=False):
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(numpy.ones((1, 2), numpy.float32))
        with grpcclient.InferenceServerClient(server.grpc) as client:
            if not stream:
                client.infer(model, [tensor], request_id=request_id)
                return
            results = queue.Queue()
            client.start_stream(lambda result, error: results.put(error))
            for _ in range(2):
                client.async_stream_infer(model, [tensor], request_id=request_id)
            self.assertEqual([results.get(timeout=30) for _ in range(2)], [None, None])
            client.stop_stream()

    def assert_in_order(self, trace, stations):
        """All stations are there, once each; times do not go back on the way in, through the engine, and out. The engine may end its part
        while the answer is sent already."""
        names = [name for name, _ in trace["times"]]
        self.assertEqual(sorted(names), sorted(stations))
        times = dict(trace["times"])
        for way in (stations[:9], [*stations[:4], *stations[9:]]):
            found = [times[name] for name in way]
            self.assertEqual(found, sorted(found), trace["times"])

    def test_a_request_over_http(self):
        with self.server("level=TIMESTAMPS", "rate=1") as server:
            self.ask(server, id="re\"q")
            self.ask(server)
        traces = Traces(self.file)
        self.assertEqual(len(traces.all), 2)
        for trace in traces.all:
            self.assert_in_order(trace, HTTP)
            self.assertEqual(trace["tensors"], [])
        first, second = traces.all
        self.assertEqual({key: first["subject"].get(key) for key in ("model_name", "model_version", "request_id", "parent_id")},
                         {"model_name": "identity", "model_version": 1, "request_id": "re\"q", "parent_id": None})
        self.assertNotIn("request_id", second["subject"])
        self.assertLess(*traces.by_id)
        # Whom it is about stands right in front of its first station in the engine.
        index = next(i for i, entry in enumerate(traces.entries) if "model_name" in entry)
        self.assertEqual(traces.entries[index + 1]["timestamps"][0]["name"], "REQUEST_START")

    def test_activities_of_a_backend(self):
        parameters = {"enable_custom_tracing": "true", "nested_span_count": "1"}
        self.repository.model("telling", identity(batch=4, parameters=parameters))
        with self.server("level=TIMESTAMPS", "rate=1") as server:
            self.ask(server, model="telling")
        trace, = Traces(self.file).all
        own = [name for name, _ in trace["times"] if name.startswith("CUSTOM_")]
        self.assertEqual(own, ["CUSTOM_ACTIVITY_START", "CUSTOM_ACTIVITY_END", "CUSTOM_SINGLE_ACTIVITY",
                               "CUSTOM_ACTIVITY0_START", "CUSTOM_SINGLE_ACTIVITY", "CUSTOM_ACTIVITY0_END"])
        times = dict(trace["times"])
        self.assertGreaterEqual(times["CUSTOM_ACTIVITY_END"] - times["CUSTOM_ACTIVITY_START"], 100_000_000)
        self.assertLess(times["COMPUTE_START"], times["CUSTOM_ACTIVITY_START"])

    if IS_TRITON:
        # That release does not escape what clients send.
        def test_a_request_over_http(self):
            with self.server("level=TIMESTAMPS", "rate=1") as server:
                self.ask(server, id="req")
            trace, = Traces(self.file).all
            self.assert_in_order(trace, HTTP)
            self.assertEqual(trace["subject"], {"id": 1, "model_name": "identity", "model_version": 1, "request_id": "req"})

    def test_calls_over_grpc(self):
        with self.server("level=TIMESTAMPS", "rate=1") as server:
            self.ask_grpc(server, request_id="7")
            self.ask_grpc(server, request_id="8", stream=True)
        traces = Traces(self.file).all
        self.assertEqual([trace["subject"]["request_id"] for trace in traces], ["7", "8", "8"])
        for trace in traces:
            self.assert_in_order(trace, GRPC)

    @needs_library("repeat")
    def test_a_stream_of_several_responses(self):
        self.repository.model("repeat", REPEAT)
        with self.server("level=TIMESTAMPS", "rate=1") as server, grpc.insecure_channel(server.grpc) as channel:
            self.assertEqual(len(Call(channel).send(repeat("r", [1, 2, 3])).end().rest()), 3)
        trace, = Traces(self.file).all
        counts = collections.Counter(name for name, _ in trace["times"])
        self.assertEqual([counts[name] for name in ("INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END")], [1, 3, 3])

    @conch_only  # upstream has no times of the sending in chunks
    def test_generate(self):
        with self.server("level=TIMESTAMPS", "rate=1") as server:
            for path in ("generate", "generate_stream"):
                status, reply = server.post_json(f"/v2/models/flat/{path}", {"INPUT0": [1, 2], "id": path})
                self.assertEqual(status, 200, reply)
        traces = Traces(self.file).all
        self.assertEqual([trace["subject"]["request_id"] for trace in traces], ["generate", "generate_stream"])
        for trace in traces:
            self.assert_in_order(trace, HTTP)

    def test_tensors(self):
        with self.server("level=TENSORS", "level=TIMESTAMPS", "rate=1") as server:
            values = [0.1, 1234567, -0.0, 1e-5]
            status, _ = server.post_json("/v2/models/identity/infer", body(values))
            self.assertEqual(status, 200)
            strings = {"inputs": [
                {"name": "INPUT0", "datatype": "INT32", "shape": [1, 3], "data": [1, -2, 3]},
                {"name": "INPUT1", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "bc"]},
                {"name": "INPUT2", "datatype": "BOOL", "shape": [1, 2], "data": [True, False]}]}
            self.assertEqual(server.post_json("/v2/models/mixed/infer", strings)[0], 200)
        floats, mixed = Traces(self.file).all
        self.assert_in_order(floats, HTTP)
        shown = {"data": "0.1,1.23457e+06,-0,1e-05", "shape": "1,4", "dtype": "FP32"}
        expected = [(activity, {"name": "OUTPUT0" if activity.endswith("OUTPUT") else "INPUT0", **shown}) for activity in self.activities()]
        self.assertEqual(floats["tensors"], expected)
        inputs = [tensor for activity, tensor in mixed["tensors"] if activity == "TENSOR_QUEUE_INPUT"]
        self.assertEqual({tensor["name"]: tensor["data"] for tensor in inputs},
                         {"INPUT0": "1,-2,3", "INPUT1": '"a","bc"', "INPUT2": "1,0"})

    def activities(self):
        # That release has a name for what goes into a backend, and does not report it.
        return ["TENSOR_QUEUE_INPUT", *([] if IS_TRITON else ["TENSOR_BACKEND_INPUT"]), "TENSOR_BACKEND_OUTPUT"]

    def test_a_kept_answer_shows_its_outputs(self):
        self.repository.model("cached", identity(batch=4, extra="response_cache { enable: true }\n"))
        flags = ["--cache-config=local,size=1000000", *OWN]
        with self.server("level=TENSORS", "level=TIMESTAMPS", "rate=1", flags=flags) as server:
            self.ask(server, 2, model="cached")
        made, kept = sorted(Traces(self.file).all, key=lambda trace: -len(trace["times"]))
        self.assert_in_order(made, HTTP)
        self.assertNotIn("COMPUTE_START", dict(kept["times"]))
        self.assertEqual([(activity, tensor["data"]) for activity, tensor in kept["tensors"]],
                         [("TENSOR_QUEUE_INPUT", "1,2"), ("TENSOR_BACKEND_OUTPUT", "1,2")])

    def test_tensors_alone(self):
        with self.server("level=TENSORS", "rate=1") as server:
            self.ask(server)
        trace, = Traces(self.file).all
        self.assertEqual((trace["times"], trace["subject"]), ([], None))
        self.assertEqual([activity for activity, _ in trace["tensors"]], self.activities())

    def test_rate(self):
        with self.server("level=TIMESTAMPS", "rate=3") as server:
            self.ask(server, 7)
            self.assertEqual(self.names(), [])
        self.assertEqual(len(Traces(self.file).all), 2)

    def test_count(self):
        with self.server("level=TIMESTAMPS", "rate=1", "count=2") as server:
            self.ask(server, 4)
            self.assertEqual(server.get_json("/v2/trace/setting")["trace_count"], "0")
        self.assertEqual(self.names(), ["trace.json.0"])
        self.assertEqual(len(Traces(self.directory / "trace.json.0").all), 2)

    def test_log_frequency(self):
        with self.server("level=TIMESTAMPS", "rate=1", "triton,log-frequency=2") as server:
            self.ask(server, 5)
            self.wait_for(["trace.json.0", "trace.json.1"])
        self.assertEqual([len(Traces(self.directory / name).all) for name in self.names()], [2, 2, 1])
        self.assertEqual(self.names(), ["trace.json.0", "trace.json.1", "trace.json.2"])

    def wait_for(self, names):
        until_equal(self.names, names, "the names of files")

    def test_off_anywhere_is_off(self):
        with self.server("rate=1", flags=["--trace-level=OFF", "--trace-config=level=TIMESTAMPS"]) as server:
            self.assertEqual(server.get_json("/v2/trace/setting")["trace_level"], ["OFF"])
            self.ask(server, 2)
        self.assertEqual(self.names(), [])

    def test_deprecated_flags(self):
        other = self.directory / "other"
        flags = [f"--trace-file={other}", "--trace-level=TIMESTAMPS", "--trace-rate=1", "--trace-count=9", "--trace-log-frequency=1"]
        with servers.Server(self.repository.path, *flags, kind=KIND) as server:
            self.assertEqual(server.get_json("/v2/trace/setting"), {
                "trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "9", "log_frequency": "1",
                "trace_file": str(other), "trace_mode": "triton"})
            self.ask(server)
            self.wait_for(["other.0"])

    def test_requests_that_fail(self):
        """A trace of a request that is refused has the stations that it reached; one that fails in the model has all."""
        with self.server("level=TIMESTAMPS", "rate=1") as server:
            self.assertEqual(server.post_json("/v2/models/identity/infer", {"inputs": 7})[0], 500)
            self.ask(server)
        refused, served = sorted(Traces(self.file).all, key=lambda trace: len(trace["times"]))
        self.assertEqual([name for name, _ in refused["times"]], ["HTTP_RECV_START", "HTTP_RECV_END"])
        self.assert_in_order(served, HTTP)

    @needs_library("probe")
    def test_a_call_that_fails_in_the_model(self):
        """Its error is sent as an answer would be."""
        self.repository.model("probe", probe())
        flags = [f"--backend-config=probe,record={self.directory}/record"]
        with self.server("level=TIMESTAMPS", "rate=1", flags=flags) as server:
            tensor = grpcclient.InferInput("INPUT0", [4], "INT32").set_data_from_numpy(numpy.full(4, -1, numpy.int32))
            with grpcclient.InferenceServerClient(server.grpc) as client, self.assertRaises(InferenceServerException):
                client.infer("probe", [tensor])
        trace, = Traces(self.file).all
        self.assertEqual([name for name, _ in trace["times"] if name.startswith(("GRPC", "INFER"))], [*GRPC[:2], *GRPC[-3:]])

    def test_settings_change_what_is_traced(self):
        """Model by model, at run time, by both protocols."""
        with self.server() as server:
            self.assertEqual(server.get_json("/v2/trace/setting"), {**OFF, "trace_file": str(self.file)})
            self.ask(server)
            status, reply = server.post_json("/v2/models/other/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
            self.assertEqual((status, json.loads(reply)["trace_level"]), (200, ["TIMESTAMPS"]))
            self.ask(server, 2)
            self.ask(server, 1, model="other", id="one")
            with grpcclient.InferenceServerClient(server.grpc) as client:
                client.update_trace_settings(model_name="other", settings={"trace_level": [], "trace_rate": []})
                self.ask(server, 1, model="other", id="two")
                client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "2"})
            self.ask(server, 1, id="three")
            self.ask(server, 1, model="other", id="four")
        self.assertEqual([trace["subject"]["request_id"] for trace in Traces(self.file).all], ["one", "four"])

    @conch_only
    def test_traces_are_json_whatever_clients_send(self):
        hostile = "\"}],\\\n\u0000\u00e9"
        with self.server("level=TIMESTAMPS", "level=TENSORS", "rate=1") as server:
            request = {"id": hostile, "inputs": [
                {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]},
                {"name": "INPUT1", "datatype": "BYTES", "shape": [1, 1], "data": [hostile]},
                {"name": "INPUT2", "datatype": "BOOL", "shape": [1, 1], "data": [True]}]}
            self.assertEqual(server.post_json("/v2/models/mixed/infer", request)[0], 200)
        trace, = Traces(self.file).all
        self.assertEqual(trace["subject"]["request_id"], hostile)
        texts = {tensor["data"] for _, tensor in trace["tensors"] if tensor["name"] == "INPUT1"}
        self.assertEqual(texts, {f'"{hostile}"'})

    @conch_only
    def test_a_file_that_cannot_be_written_costs_no_request(self):
        with servers.Server(self.repository.path, f"--trace-config=triton,file={self.directory}/none/trace", "--trace-config=level=TIMESTAMPS",
                            "--trace-config=rate=1", "--trace-config=triton,log-frequency=1", kind=KIND) as server:
            self.ask(server, 3)
            server.wait_for_line("failed creating trace file: .*none/trace")
            self.ask(server, 3)


@needs_library("identity")
class Settings(ServerCase):
    """The trace extension's calls; the server has a file, and traces nothing at first."""

    models = staticmethod(models)

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-trace-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.flags = (f"--trace-config=triton,file={cls.directory}/trace.json", "--trace-config=count=100")
        cls.start = {**OFF, "trace_file": f"{cls.directory}/trace.json", "trace_count": "100"}
        super().setUpClass()

    def setUp(self):
        nulls = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
        for path in ("/v2/trace/setting", "/v2/models/identity/trace/setting", "/v2/models/other/trace/setting"):
            status, reply = self.server.post_json(path, nulls)
            self.assertEqual((status, json.loads(reply)), (200, self.start))

    def test_shape_of_an_answer(self):
        status, headers, reply = self.server.request("GET", "/v2/trace/setting")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        self.assertEqual(list(json.loads(reply).items()), list(self.start.items()))

    def test_every_client(self):
        changes = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "5", "trace_count": "7", "log_frequency": "2"}
        expected = {**self.start, **changes}

        def http(**more):
            with httpclient.InferenceServerClient(self.server.http) as client:
                client.update_trace_settings(settings=changes, **more)
                return client.get_trace_settings(**more)

        def grpc(**more):
            with grpcclient.InferenceServerClient(self.server.grpc) as client:
                client.update_trace_settings(settings=changes, **more)
                return client.get_trace_settings(**more)

        async def http_aio(**more):
            async with httpaio.InferenceServerClient(self.server.http) as client:
                await client.update_trace_settings(settings=changes, **more)
                return await client.get_trace_settings(**more)

        async def grpc_aio(**more):
            async with grpcaio.InferenceServerClient(self.server.grpc) as client:
                await client.update_trace_settings(settings=changes, **more)
                return await client.get_trace_settings(**more)
        for more in ({}, {"model_name": "identity"}):
            for ask in (http, grpc, lambda **more: asyncio.run(http_aio(**more)), lambda **more: asyncio.run(grpc_aio(**more))):
                self.setUp()
                shown = ask(**more)
                if not isinstance(shown, dict):
                    shown = {name: list(value.value) for name, value in shown.settings.items()}
                    shown = {name: value if name == "trace_level" else value[0] for name, value in shown.items()}
                self.assertEqual(shown, expected)
                self.assertEqual(self.server.get_json("/v2/models/identity/trace/setting"), expected)
                self.assertEqual(self.server.get_json("/v2/models/other/trace/setting"), self.start if more else expected)

    def set(self, path, changes):
        status, reply = self.server.post_json(path, changes)
        self.assertEqual(status, 200, reply)
        return json.loads(reply)

    def test_models_follow_in_what_they_did_not_set(self):
        model = "/v2/models/identity/trace/setting"
        self.set(model, {"trace_rate": "9"})
        self.set("/v2/trace/setting", {"trace_rate": "2", "trace_count": "3"})
        self.assertEqual(self.server.get_json(model), {**self.start, "trace_rate": "9", "trace_count": "3"})
        self.set(model, {"trace_rate": None})
        self.assertEqual(self.server.get_json(model), {**self.start, "trace_rate": "2", "trace_count": "3"})
        self.set("/v2/trace/setting", {"trace_rate": None})
        self.assertEqual(self.server.get_json(model), {**self.start, "trace_count": "3"})

    def test_what_means_nothing_changes_nothing(self):
        for nothing in ({}, {"trace_level": ["MAX"]}, {"trace_level": []}, {"trace_mode": "opentelemetry"}, {"colour": 1}):
            self.assertEqual(self.set("/v2/trace/setting", nothing), self.start, nothing)

    def test_numbers_are_read_as_upstream_reads_them(self):
        shown = self.set("/v2/trace/setting", {"trace_rate": " 12x", "log_frequency": "+3"})
        self.assertEqual((shown["trace_rate"], shown["log_frequency"]), ("12", "3"))
        self.assertEqual(self.set("/v2/trace/setting", {"trace_rate": "-1"})["trace_rate"], "4294967295")

    FILE = "trace file location can not be updated through network protocol"
    RANGE = "value is out of range [ {} ], got: {}"

    def rows(self):
        unsigned, signed = "0, 4294967295", "-1, 2147483647"
        return [
            ("trace_file", "x", 501, self.FILE),
            ("trace_level", ["TIMESTAMPS", "OFF"], 400, "Expect only one trace level 'OFF' is specified"),
            ("trace_rate", "no", 400, "Unable to parse 'trace_rate', got: no"),
            ("trace_rate", "9999999999", 400, f"Unable to parse 'trace_rate', {self.RANGE.format(unsigned, 9999999999)}"),
            ("trace_count", "", 400, "Unable to parse 'trace_count', got: "),
            ("trace_count", "-99999999999", 400, f"Unable to parse 'trace_count', {self.RANGE.format(signed, -99999999999)}"),
            ("log_frequency", "x", 400, "Unable to parse 'log_frequency', got: x"),
            ("log_frequency", "2147483648", 400, f"Unable to parse 'log_frequency', {self.RANGE.format(unsigned, 2147483648)}"),
        ]

    def test_refusals(self):
        rows = self.rows() + [
            ("trace_file", None, 501, self.FILE),
            ("trace_count", "-2", 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
            ("trace_level", "OFF", 500, "attempt to access JSON non-array as array"),
            ("trace_level", [1], 500, "attempt to access JSON non-string as string"),
            ("trace_rate", 5, 500, "attempt to access JSON non-string as string"),
        ]
        for name, value, status, message in rows:
            for path in ("/v2/trace/setting", "/v2/models/identity/trace/setting"):
                got, reply = self.server.post_json(path, {name: value})
                self.assertEqual((got, json.loads(reply)["error"]), (status, message), (name, value))
        status, reply = self.server.post_json("/v2/trace/setting", b"[")
        self.assertEqual(status, 500)
        self.assertIn("failed to parse the request JSON buffer: ", json.loads(reply)["error"])
        for path in ("/v2/trace/setting", "/v2/models/identity/trace/setting"):
            status, headers, reply = self.server.request("PUT", path)
            self.assertEqual((status, json.loads(reply)), (405, {"error": "Method Not Allowed"}))
        self.assertEqual(self.server.get("/v2/models/identity/versions/1/trace/setting")[0], 404)
        self.assertEqual(self.server.get_json("/v2/trace/setting"), self.start)

    def test_settings_that_cannot_trace(self):
        prefix = "Attempting to set invalid trace setting :"
        for changes, why in (({"trace_rate": "0"}, "sample rate must be non-zero"), ({"trace_count": "0"}, "")):
            self.set("/v2/trace/setting", changes)  # off: it may be anything
            status, reply = self.server.post_json("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], **changes})
            self.assertEqual((status, json.loads(reply)["error"]), (400, prefix + why))
            self.setUp()

    def test_grpc_refusals(self):
        codes = {501: "UNIMPLEMENTED", 400: "INVALID_ARGUMENT"}
        rows = self.rows() + [
            ("trace_count", "-2", 400, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
            ("trace_rate", ["1", "2"], 400, "expect only 1 value for 'trace_rate'"),
            ("trace_count", ["1", "2"], 400, "expect only 1 value for 'trace_count'"),
            ("log_frequency", ["1", "2"], 400, "expect only 1 value for 'log_frequency'"),
        ]
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for name, value, status, message in rows:
                with self.assertRaises(InferenceServerException) as caught:
                    client.update_trace_settings(settings={name: value})
                self.assertEqual((caught.exception.status(), caught.exception.message()), (f"StatusCode.{codes[status]}", message))
        self.assertEqual(self.server.get_json("/v2/trace/setting"), self.start)

    def test_unknown_models(self):
        message = "Request for unknown model : none"
        for verb, more in (("GET", None), ("POST", "{}")):
            status, _, reply = self.server.request(verb, "/v2/models/none/trace/setting", body=more)
            self.assertEqual((status, json.loads(reply)["error"]), (400, message))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for ask in (lambda: client.get_trace_settings("none"), lambda: client.update_trace_settings("none", {"trace_rate": "1"})):
                with self.assertRaises(InferenceServerException) as caught:
                    ask()
                self.assertEqual((caught.exception.status(), caught.exception.message()), ("StatusCode.INVALID_ARGUMENT", message))

    def test_t2_the_file_stays_where_it_is(self):
        target = self.directory / "stolen"
        for path in ("/v2/trace/setting", "/v2/models/identity/trace/setting"):
            changes = {"trace_file": str(target), "trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
            self.assertEqual(self.server.post_json(path, changes)[0], 501)
        with grpcclient.InferenceServerClient(self.server.grpc) as client, self.assertRaises(InferenceServerException):
            client.update_trace_settings(settings={"trace_file": str(target)})
        self.assert_serves()
        self.assertEqual(list(self.directory.iterdir()), [])
        self.assertEqual(self.server.get_json("/v2/trace/setting"), self.start)


@needs_library("identity")
class WithoutAFile(ServerCase):
    models = staticmethod(models)

    def test_nothing_can_be_switched_on(self):
        self.assertEqual(self.server.get_json("/v2/trace/setting"), OFF)
        status, reply = self.server.post_json("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})
        self.assertEqual((status, json.loads(reply)["error"]),
                         (400, "Attempting to set invalid trace setting :trace file name is not given"))
        self.assertEqual(self.server.get_json("/v2/trace/setting"), OFF)
        self.assert_serves()


if __name__ == "__main__":
    unittest.main()
