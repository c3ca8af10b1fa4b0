"""Backends that call other models of their server, with the SDK: what models of the test backend `forward` pass on, what comes back,
and what becomes of their calls when one side ends."""

import concurrent.futures
import json
import pathlib
import queue
import tempfile
import time
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import server as servers
from case import KIND, Cancelling, ServerCase, conch_only, needs_library
from probe import ProbeCase, probe
from repository import Repository, identity, tensors
from test_stream import DECOUPLED, REPEAT, square
from trace_paths import model_paths
from waiting import until, until_equal

FLOATS = ([("INPUT0", "FP32", (-1,))], [("OUTPUT0", "FP32", (-1,))])
NUMBERS = ([("INPUT0", "INT32", (-1, 4))], [("OUTPUT0", "INT32", (-1, 4))])
COUNT = ([("IN", "INT32", (1,))], [("OUT", "INT32", (1,))])
OPEN = 1_000_000
# A request's flags for the ends of its sequence.
START, END = 1, 2


def forward(target, rows=FLOATS, extra="", **parameters):
    """The configuration of a model that forwards to `target`."""
    text = 'backend: "forward"\nmax_batch_size: 0\n' + tensors("input", rows[0]) + tensors("output", rows[1])
    text += "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    for key, value in {"model_name": target, **parameters}.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text + extra


def tensor_of(module, values, name="INPUT0"):
    types = {"float32": "FP32", "int32": "INT32", "uint32": "UINT32", "object": "BYTES"}
    tensor = module.InferInput(name, list(values.shape), types[str(values.dtype)])
    tensor.set_data_from_numpy(values)
    return tensor


def floats(*values):
    return numpy.array(values, numpy.float32)


def wait_for_in_flight(server, model, count):
    """Waits until so many calls of the model are in flight: the caller forgets one just after it has answered."""
    until_equal(lambda: server.metrics().get(f'forward_in_flight{{model="{model}"}}'), count, f"the calls of {model} in flight")


class Forwarding(ServerCase):
    """Asks forwarding models over HTTP."""

    def ask(self, model, values=floats(1, 2, 3), parameters=None, **more):
        """OUTPUT0 and the parameters of the response."""
        if parameters is not None:
            more["parameters"] = parameters
        with httpclient.InferenceServerClient(self.server.http, network_timeout=60) as client:
            result = client.infer(model, [tensor_of(httpclient, values)], **more)
        return result.as_numpy("OUTPUT0"), result.get_response().get("parameters", {})

    def assert_refused(self, words, model, *arguments, **more):
        with self.assertRaises(InferenceServerException) as caught:
            self.ask(model, *arguments, **more)
        self.assertIn(words, caught.exception.message())

    def assert_forwards(self, model="plain", values=floats(4, 5)):
        found, parameters = self.ask(model, values)
        numpy.testing.assert_array_equal(found, values)
        return parameters


@needs_library("forward")
@needs_library("identity")
class Single(Forwarding):
    """One response per request."""

    @staticmethod
    def models(repository):
        fixed = ([("INPUT0", "FP32", (4,))], [("OUTPUT0", "FP32", (4,))])
        texts = ([("INPUT0", "STRING", (-1,))], [("OUTPUT0", "STRING", (-1,))])
        pair = ([("INPUT0", "FP32", (-1,)), ("INPUT1", "FP32", (-1,))], [("OUTPUT0", "FP32", (-1,)), ("OUTPUT1", "FP32", (-1,))])
        repository.model("echo", identity(FLOATS[0], extra="version_policy: { all { } }\n"), versions=("1", "3"))
        repository.model("plain", forward("echo"))
        repository.model("decoupled", forward("echo", extra=DECOUPLED))
        repository.model("told", forward("echo", tells="true"))
        repository.model("outer", forward("told"))
        repository.model("small", forward("echo", output_limit=64))
        repository.model("fixed", identity(fixed[0]))
        repository.model("texts", identity(texts[0])).model("forward_texts", forward("texts", texts))
        repository.model("pair", identity(pair[0])).model("forward_pair", forward("pair", pair))
        repository.model("examples", identity(FLOATS[0], parameters={"example_response_parameters": "true"}))
        repository.model("forward_examples", forward("examples"))
        repository.model("measured", identity(FLOATS[0])).model("measuring", forward("measured"))

    def told(self, parameters=None, **more):
        """What the model `told`, called by `outer`, knows of the request."""
        _, found = self.ask("outer", parameters=parameters, **more)
        return json.loads(found["told"])

    def test_tensors_of_every_size(self):
        for values in (floats(1, 2, 3), numpy.arange(1 << 18, dtype=numpy.float32), floats()):
            with self.subTest(count=values.size):
                parameters = self.assert_forwards(values=values)
                self.assertEqual(parameters["answered_by"], "echo 3")
        texts = numpy.array(["a", "", "ü" * 5_000], dtype=numpy.object_)
        found, _ = self.ask("forward_texts", texts)
        self.assertEqual([text.decode() for text in found], list(texts))

    def test_outputs_that_are_wanted(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            inputs = [tensor_of(httpclient, floats(1), "INPUT0"), tensor_of(httpclient, floats(2, 3), "INPUT1")]
            both = client.infer("forward_pair", inputs)
            one = client.infer("forward_pair", inputs, outputs=[httpclient.InferRequestedOutput("OUTPUT1")])
        for result in (both, one):
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT1"), floats(2, 3))
        numpy.testing.assert_array_equal(both.as_numpy("OUTPUT0"), floats(1))
        self.assertIsNone(one.as_numpy("OUTPUT0"))
        with httpclient.InferenceServerClient(self.server.http) as client:
            result = client.infer("outer", [tensor_of(httpclient, floats(1))], outputs=[httpclient.InferRequestedOutput("OUTPUT0")])
        self.assertEqual(json.loads(result.get_response()["parameters"]["told"])["outputs"], ["OUTPUT0"])

    def test_version(self):
        for version, expected in ((1, "echo 1"), (3, "echo 3")):
            _, parameters = self.ask("plain", parameters={"forward_version": version})
            self.assertEqual(parameters["answered_by"], expected)

    def test_errors_of_the_target(self):
        self.assert_refused("'nobody' is not found", "plain", parameters={"forward_model": "nobody"})
        self.assert_refused("'echo' version 2 is not found", "plain", parameters={"forward_version": 2})
        self.assert_refused("unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got [3]", "plain",
                            parameters={"forward_model": "fixed"})
        self.assert_refused("data-type", "plain", parameters={"forward_model": "texts"})
        self.assert_forwards()

    def test_models_that_are_decoupled(self):
        for model, expected in (("echo", False), ("decoupled", True)):
            _, parameters = self.ask("plain", parameters={"forward_decoupled": model})
            self.assertEqual(parameters["decoupled"], expected)
        self.assert_refused("'nobody' is not found", "plain", parameters={"forward_decoupled": "nobody"})

    def test_no_memory_for_an_output(self):
        values = numpy.zeros(17, numpy.float32)
        self.assert_refused("failed to allocate 68 bytes", "small", values)
        self.assert_forwards("small", values[:16])

    def test_fields_are_passed_on(self):
        told = self.told(request_id="ask-7")
        self.assertEqual((told["id"], told["correlation"], told["flags"], told["timeout_us"]), ("ask-7", 0, 0, 0))
        told = self.told({"forward_timeout_us": 2_500_000})
        self.assertEqual((told["timeout_us"], told["parameters"]), (2_500_000, {}))
        _, parameters = self.ask("plain", request_id="ask-8")
        self.assertEqual(parameters["answered_id"], "ask-8")

    def test_sequences_are_passed_on(self):
        for sequence in (12, "a name"):
            with self.subTest(sequence=sequence):
                for is_start, is_end, flags in ((True, False, START), (False, False, 0), (False, True, END), (True, True, START | END)):
                    told = self.told(sequence_id=sequence, sequence_start=is_start, sequence_end=is_end)
                    self.assertEqual((told["correlation"], told["flags"]), (sequence, flags))

    def test_parameters_of_each_kind(self):
        sent = {"text": "some", "number": -(1 << 40), "on": True, "off": False}
        self.assertEqual(self.told(sent)["parameters"], sent)
        # Over gRPC, where a double has a kind of its own.
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            result = client.infer("outer", [tensor_of(grpcclient, floats(1))], parameters=sent)
        found = result.get_response().parameters
        self.assertEqual(json.loads(found["told"].string_param)["parameters"], sent)

    def test_parameters_of_responses(self):
        _, parameters = self.ask("forward_examples")
        expected = {"param0": "an example string parameter", "param1": 42, "param2": False, "param3": 123.123}
        self.assertEqual({name: parameters.get(name) for name in expected}, expected)

    def test_the_folder_of_the_library(self):
        told = self.told()
        self.assertEqual(told["library"], str(servers.backend_directory() / "forward"))
        self.assertEqual(told["trace_context"], "")

    def test_statistics_of_the_target(self):
        def counted(model):
            statistics = self.server.statistics(model)["inference_stats"]
            return statistics["success"]["count"], statistics["fail"]["count"]
        success, failed = counted("measured")
        for _ in range(3):
            self.assert_forwards("measuring")
        self.assert_refused("data-type", "measuring", parameters={"forward_model": "texts"})
        until_equal(lambda: counted("measured"), (success + 3, failed), "the calls counted")
        self.assertEqual(counted("measuring")[1], 0, "the execution that makes a call has done its part")

    def test_metrics_of_each_kind(self):
        for count in (1, 2_000):
            self.assert_forwards("measuring", numpy.zeros(count, numpy.float32))
        wait_for_in_flight(self.server, "measuring", 0)
        metrics = self.server.metrics()
        kinds = {"forward_calls": "counter", "forward_in_flight": "gauge", "forward_responses": "gauge", "forward_bytes": "histogram"}
        text = self.server.get("/metrics", port="metrics")[1].decode()
        for name, kind in kinds.items():
            self.assertIn(f"# TYPE {name} {kind}\n", text)
        label = '{model="measuring"'
        self.assertGreaterEqual(metrics[f"forward_calls{label}}}"], 2)
        self.assertEqual(metrics[f"forward_responses{label}}}"], 1)
        buckets = [metrics[f'forward_bytes_bucket{label},le="{bound}"}}'] for bound in ("16", "1024", "65536", "+Inf")]
        self.assertEqual(buckets[3], metrics[f"forward_bytes_count{label}}}"])
        self.assertGreaterEqual(buckets[0], 1)
        self.assertGreater(buckets[2], buckets[1], "the response of 8000 bytes")

    def test_many_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            values = [floats(*range(count)) for count in range(1, 41)]
            for sent, (found, _) in zip(values, pool.map(lambda value: self.ask("outer", value), values)):
                numpy.testing.assert_array_equal(found, sent)


@needs_library("forward")
@needs_library("repeat")
@needs_library("square")
class Streams(Cancelling, ServerCase):
    """Many responses per request."""

    @staticmethod
    def models(repository):
        rows = ([("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))],
                [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))])
        repository.model("repeat", REPEAT).model("forward_repeat", forward("repeat", rows, DECOUPLED))
        repository.model("square", square()).model("forward_square", forward("square", COUNT, DECOUPLED))
        repository.model("failing", square(CUSTOM_FAIL_COUNT=2)).model("forward_failing", forward("failing", COUNT, DECOUPLED))
        # A response each 10 ms.
        repository.model("steady", square(CUSTOM_INFER_DELAY_NS=10_000_000))
        repository.model("cancels", forward("steady", COUNT, DECOUPLED, cancel_after=3))
        repository.model("cancels_at_once", forward("steady", COUNT, DECOUPLED, cancel_after=0))
        # Not decoupled: it answers with the first.
        repository.model("first", forward("square", COUNT))

    def stream(self, model, *rows, **more):
        """What comes on a stream until its end: results, or messages of errors."""
        answers, found = queue.Queue(), []
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            inputs = [tensor_of(grpcclient, numpy.array(values, kind), name) for name, kind, values in rows]
            client.async_stream_infer(model, inputs, enable_empty_final_response=True, **more)
            while True:
                result, error = answers.get(timeout=60)
                if error is not None:
                    found.append(error.message())
                    if model != "forward_failing" or "simulated" not in error.message():
                        break
                    continue
                response = result.get_response()
                if response.outputs:
                    found.append(result)
                if response.parameters["triton_final_response"].bool_param:
                    break
            client.stop_stream()
        return found

    def counted(self, model, count):
        found = self.stream(model, ("IN", numpy.int32, [count]))
        return [int(answer.as_numpy("OUT")[0]) if not isinstance(answer, str) else answer for answer in found]

    def test_each_response(self):
        for count in (0, 1, 5, 200):
            self.assertEqual(self.counted("forward_square", count), [count] * count)
        delays = ("DELAY", numpy.uint32, [0, 5, 0])
        found = self.stream("forward_repeat", ("IN", numpy.int32, [7, -8, 9]), delays, ("WAIT", numpy.uint32, [0]))
        self.assertEqual([(int(answer.as_numpy("OUT")[0]), int(answer.as_numpy("IDX")[0])) for answer in found], [(7, 0), (-8, 1), (9, 2)])
        self.assertEqual(found[0].get_response().parameters["answered_by"].string_param, "repeat 1")

    def test_errors_between_responses(self):
        self.assertEqual(self.counted("forward_failing", 4), [4, 4, "simulated failure", "simulated failure"])
        (error,) = self.stream("forward_square", ("IN", numpy.int32, [-1]))
        self.assertIn("IN must not be negative, got -1", error)

    def test_the_first_of_many(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            result = client.infer("first", [tensor_of(httpclient, numpy.array([3], numpy.int32), "IN")])
            self.assertEqual(result.as_numpy("OUT")[0], 3)
            with self.assertRaises(InferenceServerException) as caught:
                client.infer("first", [tensor_of(httpclient, numpy.array([0], numpy.int32), "IN")])
        self.assertIn("the model answered nothing", caught.exception.message())

    def test_cancelled_after_some_responses(self):
        before = self.figures("steady")
        found = self.counted("cancels", 3_000)
        self.assertLess(len(found), 2_000)
        self.assertEqual(found[:3], [3_000] * 3)
        self.assert_cancelled("steady", before)
        wait_for_in_flight(self.server, "cancels", 0)

    def test_cancelled_at_once(self):
        """In the queue, or while it executes: whatever comes first, the end comes early."""
        found = self.counted("cancels_at_once", 3_000)
        self.assertLess(len(found), 2_000)


@needs_library("forward")
@needs_library("square")
class Panics(Cancelling, Forwarding):
    """A panic in what receives the responses of a call."""

    may_panic = True

    @staticmethod
    def models(repository):
        repository.model("echo", identity(FLOATS[0])).model("plain", forward("echo"))
        repository.model("steady", square(CUSTOM_INFER_DELAY_NS=10_000_000)).model("first", forward("steady", COUNT))

    def test_the_request_fails_alone(self):
        for _ in range(3):
            self.assert_refused("the backend gave up before the last response", "plain", parameters={"forward_panic": True})
            self.assert_forwards()
        wait_for_in_flight(self.server, "plain", 0)

    def test_the_call_is_cancelled(self):
        before = self.figures("steady")
        with httpclient.InferenceServerClient(self.server.http) as client, self.assertRaises(InferenceServerException) as caught:
            client.infer("first", [tensor_of(httpclient, numpy.array([3_000], numpy.int32), "IN")], parameters={"forward_panic": True})
        self.assertIn("gave up before the last response", caught.exception.message())
        self.assert_cancelled("steady", before)


@needs_library("forward")
@needs_library("identity")
class Stopped(unittest.TestCase):
    def test_a_server_stops_while_a_call_is_in_flight(self):
        with Repository() as repository:
            repository.model("slow", identity(FLOATS[0], parameters={"execute_delay_ms": "700"})).model("leaver", forward("slow"))
            with servers.Server(repository.path, kind=KIND) as server, httpclient.InferenceServerClient(server.http) as client:
                with self.assertRaises(InferenceServerException) as caught:
                    client.infer("leaver", [tensor_of(httpclient, floats(1))], parameters={"forward_leave": True})
                self.assertIn("left in flight", caught.exception.message())


@needs_library("forward")
@needs_library("identity")
class Traced(unittest.TestCase):
    def test_a_call_has_a_trace_below_its_request(self):
        with tempfile.TemporaryDirectory(prefix="conch-traced-") as directory, Repository() as repository:
            file = pathlib.Path(directory) / "trace.json"
            repository.model("echo", identity(FLOATS[0]))
            repository.model("plain", forward("echo")).model("outer", forward("plain"))
            flags = ["--trace-config=mode=triton", f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS",
                     "--trace-config=rate=1"]
            with servers.Server(repository.path, *flags, kind=KIND) as server, httpclient.InferenceServerClient(server.http) as client:
                for model in ("echo", "outer", "plain"):
                    result = client.infer(model, [tensor_of(httpclient, floats(1, 2))])
                    numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), floats(1, 2))
                with self.assertRaises(InferenceServerException):
                    client.infer("plain", [tensor_of(httpclient, floats(1))], parameters={"forward_model": "nobody"})
            entries = json.loads(file.read_text())
        paths = model_paths(entries)
        self.assertEqual(sorted(paths.values()), ["echo", "outer", "outer/plain", "outer/plain/echo", "plain", "plain", "plain/echo"])
        for number in paths:
            stations = {row["name"] for entry in entries if entry["id"] == number for row in entry.get("timestamps", [])}
            self.assertLessEqual({"REQUEST_START", "COMPUTE_START", "REQUEST_END"}, stations)


@needs_library("forward")
@needs_library("probe")
class Scheduled(Forwarding, ProbeCase):
    """Targets whose schedulers look at what was passed on."""

    CONTROLS = "".join(
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {text} }} }} '
        for name, text in (("START", "int32_false_true: [ 0, 1 ]"), ("END", "int32_false_true: [ 0, 1 ]"),
                           ("READY", "int32_false_true: [ 0, 1 ]"), ("CORRID", "data_type: TYPE_UINT64")))

    @classmethod
    def models(cls, repository):
        cls.gate(OPEN)
        direct = f"sequence_batching {{ direct {{ }} max_sequence_idle_microseconds: 15000000 {cls.CONTROLS} }}\n"
        repository.model("sequence", probe(batch=1, rows=1, extra=direct))
        repository.model("forward_sequence", forward("sequence", NUMBERS))
        policy = "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 60000000 allow_timeout_override: true }"
        levels = f"dynamic_batching {{ preferred_batch_size: 1 priority_levels: 2 default_priority_level: 2 {policy} }}\n"
        repository.model("levels", probe(batch=1, rows=1, gate=cls.record.folder / "gate", extra=levels))
        repository.model("forward_levels", forward("levels", NUMBERS))
        repository.model("gives_up", forward("levels", NUMBERS, cancel_after=0))

    @classmethod
    def gate(cls, count):
        """Lets so many executions of `levels` go on, from its first."""
        fresh = cls.record.folder / "gate.fresh"
        fresh.write_text(str(count))
        fresh.replace(cls.record.folder / "gate")

    def rows(self, *names):
        """What the probe's executions saw, of requests that have all of these inputs."""
        found = [row for event in self.record.events("Rows") if event.edge == "begin" for row in json.loads(event.detail)]
        return [row for row in found if all(name in row for name in names)]

    def numbers(self, value):
        return numpy.full((1, 4), value, numpy.int32)

    def test_the_sequence_batcher_sees_the_ends(self):
        marks = [(5, True, False), (6, False, False), (7, False, True)]
        for value, is_start, is_end in marks:
            self.ask("forward_sequence", self.numbers(value), sequence_id=77, sequence_start=is_start, sequence_end=is_end)
        seen = [(row["INPUT0"][1][0], row["START"][1][0] == 1, row["END"][1][0] == 1, row["CORRID"][1][0]) for row in self.rows("CORRID")]
        self.assertEqual(seen, [(*mark, 77) for mark in marks])
        self.assert_refused("must specify the START flag", "forward_sequence", self.numbers(8), sequence_id=78)

    def occupied(self, pool):
        """Has `levels` execute a request that the gate holds; returns its future and the count of executions before."""
        count = len([event for event in self.record.events("Execute") if event.edge == "begin"])
        passed = self.server.statistics("levels")["execution_count"]
        self.gate(passed)
        first = pool.submit(self.ask, "forward_levels", self.numbers(1))
        self.record.wait_for(count + 1, "begin", "Execute", 30)
        return first

    def test_priority_and_timeout(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            try:
                first = self.occupied(pool)
                late = pool.submit(self.ask, "forward_levels", self.numbers(2), {"forward_priority": 2})
                self.server.wait_for_pending("levels", 1)
                gone = pool.submit(self.ask, "forward_levels", self.numbers(3), {"forward_priority": 2, "forward_timeout_us": 1_000})
                soon = pool.submit(self.ask, "forward_levels", self.numbers(4), {"forward_priority": 1})
                until(lambda: gone.done() or self.server.pending_count("levels") >= 3, "all requests in the queue")
                time.sleep(0.05)  # the test itself: the timeout passes
            finally:
                self.gate(OPEN)
            for answer in (first, late, soon):
                answer.result(30)
            with self.assertRaises(InferenceServerException) as caught:
                gone.result(30)
        self.assertIn("timeout expired", caught.exception.message())
        order = [row["INPUT0"][1][0] for row in self.rows("INPUT0") if "CORRID" not in row and row["INPUT0"][1][0] in (1, 2, 3, 4)]
        self.assertEqual(order[-3:], [1, 4, 2])

    @conch_only  # upstream's batcher may have chosen the request already
    def test_cancelled_in_the_queue(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            try:
                first = self.occupied(pool)
                cancelled = pool.submit(self.ask, "gives_up", self.numbers(9))
                with self.assertRaises(InferenceServerException):
                    cancelled.result(30)
            finally:
                self.gate(OPEN)
            first.result(30)
        self.assertNotIn(9, [row["INPUT0"][1][0] for row in self.rows("INPUT0")])


@needs_library("forward")
@needs_library("identity")
class Controlled(Forwarding):
    """Models that load and unload others, and are unloaded themselves."""

    flags = ("--model-control-mode=explicit", "--load-model=*")

    @staticmethod
    def models(repository):
        repository.model("echo", identity(FLOATS[0]))
        repository.model("slow", identity(FLOATS[0], parameters={"execute_delay_ms": "1500"}))
        for name in ("plain", "leaver", "waiter"):
            repository.model(name, forward("echo" if name == "plain" else "slow"))

    def is_ready(self, model, version=""):
        _, parameters = self.ask("plain", parameters={"forward_ready": model, "forward_ready_version": version})
        return parameters["ready"]

    def test_load_and_unload(self):
        self.repository.model("late", identity(FLOATS[0]))
        self.assertFalse(self.is_ready("late"))
        self.assert_refused("'late'", "plain", parameters={"forward_model": "late"})
        self.ask("plain", parameters={"forward_load": "late"})
        self.assertTrue(self.is_ready("late"))
        self.assertTrue(self.is_ready("late", "1"))
        self.assertFalse(self.is_ready("late", "2"))
        _, parameters = self.ask("plain", parameters={"forward_model": "late"})
        self.assertEqual(parameters["answered_by"], "late 1")
        for order in ("forward_unload", "forward_unload_all"):
            self.ask("plain", parameters={"forward_load": "late"})
            self.ask("plain", parameters={order: "late"})
            until(lambda: not self.is_ready("late"), "the model unloaded")

    def test_load_of_what_is_given(self):
        config = {"backend": "identity", "max_batch_size": 0,
                  "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                  "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]}
        self.ask("plain", parameters={"forward_load": "given", "forward_load_config": json.dumps(config),
                                      "forward_load_file": "file:5/note", "forward_load_text": "text"})
        _, parameters = self.ask("plain", parameters={"forward_model": "given"})
        self.assertEqual(parameters["answered_by"], "given 5")
        self.ask("plain", parameters={"forward_unload": "given"})

    def test_errors_of_control(self):
        self.assert_refused("failed to load 'nobody'", "plain", parameters={"forward_load": "nobody"})
        self.assert_refused("failed to get model version from specified version string 'x'", "plain",
                            parameters={"forward_ready": "echo", "forward_ready_version": "x"})
        self.assertFalse(self.is_ready("nobody"))
        self.assert_forwards()

    def successes(self):
        return self.server.statistics("slow")["inference_stats"]["success"]["count"]

    def state(self, model):
        rows = json.loads(self.server.post_json("/v2/repository/index", {})[1])
        return {row["name"]: row.get("state") for row in rows}[model]

    def reload(self, model):
        status, body = self.server.post_json(f"/v2/repository/models/{model}/unload", {})
        self.assertEqual(status, 200, body)
        until(lambda: self.state(model) == "UNAVAILABLE", f"{model} unloaded")
        status, body = self.server.post_json(f"/v2/repository/models/{model}/load", {})
        self.assertEqual(status, 200, body)

    def test_the_caller_unloads_while_its_call_is_in_flight(self):
        """A call that its request did not wait for outlives neither side's crash: the end of the calling model waits for it."""
        before = self.successes()
        for _ in range(2):
            self.assert_refused("left in flight", "leaver", parameters={"forward_leave": True})
            self.reload("leaver")
        until(lambda: self.successes() >= before + 2, "the calls executed")
        self.assert_forwards("leaver")

    def test_the_caller_unloads_while_its_request_waits(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self.ask, "waiter")
            wait_for_in_flight(self.server, "waiter", 1)
            self.reload("waiter")
            numpy.testing.assert_array_equal(waiting.result(60)[0], floats(1, 2, 3))
        self.assert_forwards("waiter")


@conch_only
class ControlledAndClosed(Controlled):
    """The same with a library that is closed after its last model, and opened again."""

    flags = (*Controlled.flags, "--backend-config=forward,unload-when-unused=true")

    def test_the_last_caller_unloads(self):
        """The code of the library stays where it is, because a call may return through it."""
        self.assert_refused("left in flight", "leaver", parameters={"forward_leave": True})
        for model in ("plain", "leaver", "waiter"):
            self.assertEqual(self.server.post_json(f"/v2/repository/models/{model}/unload", {})[0], 200)
        for model in ("plain", "leaver", "waiter"):
            until(lambda: self.state(model) == "UNAVAILABLE", f"{model} unloaded")
        self.assertIn("libtriton_forward.so", pathlib.Path(f"/proc/{self.server.pid}/maps").read_text())
        for model in ("plain", "leaver", "waiter"):
            self.assertEqual(self.server.post_json(f"/v2/repository/models/{model}/load", {})[0], 200)
        self.assert_forwards()
