"""Features that have a row of their own in docs/COMPATIBILITY.md and no home in the other files: start-up switches of metrics, log
and configuration, and what a configuration's fields do to requests."""

import concurrent.futures
import json
import struct
import tempfile
import pathlib
import unittest

import onnx_model
import server as servers
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity
from test_process import free_flags, run

PAIR = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


@conch_only
class Switches(unittest.TestCase):
    """One flag, one server."""

    def setUp(self):
        self.repository = Repository().model("identity", identity(batch=8, extra='metric_tags { key: "team" value: "search" }\n'))
        self.addCleanup(self.repository.close)

    def start(self, *flags):
        server = servers.Server(self.repository, *flags)
        self.addCleanup(server.kill)
        return server

    def test_counter_latencies(self):
        label = '{_team="search",model="identity",version="1"}'
        with self.start() as server:
            names = server.metrics()
        self.assertIn(f"nv_inference_queue_duration_us{label}", names)
        self.assertGreater(names[f"nv_model_load_duration_secs{label}"], 0)
        with self.start("--metrics-config=counter_latencies=false") as server:
            names = server.metrics()
        self.assertEqual([name for name in names if "_duration_us" in name], [])
        self.assertIn(f"nv_inference_count{label}", names)

    def test_no_cpu_metrics(self):
        with self.start("--allow-cpu-metrics=false") as server:
            self.assertEqual([name for name in server.metrics() if name.startswith("nv_cpu")], [])

    def test_metrics_with_a_slash(self):
        with self.start() as server:
            self.assertIn(b"nv_inference_count", server.get("/metrics/", port="metrics")[1])

    def test_log_format(self):
        with self.start("--log-format=ISO8601") as server:
            server.wait_for_match(r'(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ \w+\.rs:\d+\] "')
        with self.start() as server:
            server.wait_for_match(r'(?m)^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.rs:\d+\] "')

    def test_log_levels(self):
        with self.start("--log-warning=false", "--http-thread-count=3") as server:
            self.assertNotRegex(server.output, r"(?m)^W\d{4} ")
        with self.start("--http-thread-count=3") as server:
            server.wait_for_match(r"(?m)^W\d{4} .*http-thread-count")

    def test_log_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "log"
            path.write_text("before\n")
            code, out, said = run("--model-repository=/nonexistent/models", f"--log-file={path}", *free_flags())
            text = path.read_text()
        self.assertEqual((code, out), (1, ""))
        self.assertTrue(text.startswith("before\n"))
        self.assertRegex(text, r"(?m)^I\d{4} .*\n(.*\n)*.*/nonexistent/models")
        self.assertRegex(said, r"error: creating server: .*/nonexistent/models")

    def test_verbose_log(self):
        with self.start("--log-verbose=1") as server:
            server.get("/v2/health/live")
            server.wait_for_line(r"HTTP request: .*/v2/health/live")
            server.post_json("/v2/models/identity/infer", {"id": "mine", "inputs": []})
            server.wait_for_line(r"Infer failed: \[request id: mine\]")
        with self.start() as server:
            server.get("/v2/health/live")
            self.assertNotIn("HTTP request", server.output)

    def test_log_of_a_backend(self):
        self.repository.model("late", identity(parameters={"creation_delay_sec": "1"}))
        with self.start() as server:
            server.wait_for_match(r'(?m)^I\d{4} .* lib\.rs:\d+\] "Creation delay')

    def test_the_size_of_the_pinned_pool_is_shown(self):
        for flags, expected in (((), 256 << 20), (("--pinned-memory-pool-byte-size=1048576",), 1 << 20)):
            with self.start(*flags) as server:
                metrics = server.metrics()
                self.assertEqual((metrics["nv_pinned_memory_pool_total_bytes"], metrics["nv_pinned_memory_pool_used_bytes"]), (expected, 0))

    def test_shared_port(self):
        port = servers.free_port()
        with self.start("--reuse-http-port=true", f"--http-port={port}") as first:
            with self.start("--reuse-http-port=true", f"--http-port={port}") as second:
                self.assertEqual(second.get("/v2/health/live")[0], 200)
            self.assertEqual(first.get("/v2/health/live")[0], 200)


@conch_only
class Configurations(unittest.TestCase):
    """What fields of a configuration lead to when the server loads the model."""

    def start(self, repository, *flags):
        server = servers.Server(repository, "--exit-on-error=false", "--strict-readiness=false", *flags)
        self.addCleanup(server.kill)
        return server

    @needs_library("onnxruntime")
    def test_default_batch_size(self):
        content = onnx_model.model([("x", onnx_model.FLOAT, ("n", 2))], [("y", onnx_model.FLOAT, ("n", 2))],
                                   [onnx_model.node("Abs", ["x"], ["y"])])
        with Repository().model("bare", None, files={"1/model.onnx": content}) as repository:
            for flags, size in (((), 4), (("--backend-config=default-max-batch-size=7",), 7),
                                (("--backend-config=onnxruntime,default-max-batch-size=1",), 1)):
                with self.start(repository, *flags) as server:
                    config = server.get_json("/v2/models/bare/config")
                    self.assertEqual(config["max_batch_size"], size)
                    self.assertEqual("dynamic_batching" in config, size > 1)
                    self.assertEqual(config["default_model_filename"], "model.onnx")

    @needs_library("onnxruntime")
    def test_strict_configuration(self):
        with Repository().model("bare", None, files={"1/model.onnx": onnx_model.halves()}) as repository:
            repository.model("whole", identity())
            repository.model("partial", 'backend: "identity"\ninput { name: "INPUT0" }\n')
            with self.start(repository, "--disable-auto-complete-config") as server:
                self.assertEqual(server.get("/v2/models/whole/ready")[0], 200)
                self.assertEqual(server.get("/v2/models/bare/ready")[0], 404)
                self.assertEqual(server.get("/v2/models/partial/ready")[0], 404)
                server.wait_for_text("model input 'INPUT0' must specify 'data_type' for partial")

    @needs_library("probe")
    def test_runtime(self):
        with Repository() as repository:
            repository.model("named", identity(extra='runtime: "libtriton_identity.so"\n'))
            repository.model("outside", identity(extra='runtime: "../probe/libtriton_probe.so"\n'))
            with self.start(repository) as server:
                self.assertEqual(server.get("/v2/models/named/ready")[0], 200)
                server.wait_for_match("escapes backend directory")

    @needs_library("probe")
    def test_custom_batching(self):
        """A library that is to decide about a model's batches is found where it may lie, and never ignored if it is no good."""
        with Repository() as repository:
            broken = b"no library at all, though long enough to be asked for its header"
            library = {"batchstrategy.so": broken, "1/batchstrategy.so": broken}
            repository.model("beside", identity(batch=4, extra="dynamic_batching { }\n"), files={"batchstrategy.so": broken})
            repository.model("version", identity(batch=4, extra="dynamic_batching { }\n"), files=library)
            repository.model("idle", identity(batch=4), files=library)
            repository.model("other", identity(batch=4, extra="dynamic_batching { }\n"),
                             files={"batchstrategy.so": servers.built("libtriton_probe.so")})
            own = repository.path / "named" / "own.so"
            for name, path in (("named", own), ("escapes", own), ("missing", repository.path / "missing" / "own.so")):
                repository.model(name, identity(batch=4, extra="dynamic_batching { }\n", parameters={"TRITON_BATCH_STRATEGY_PATH": path}))
            own.write_bytes(broken)
            with self.start(repository) as server:
                for name, reason in (
                        ("beside", r"unable to load shared library: .*/beside/batchstrategy\.so: invalid ELF header"),
                        ("version", r"unable to load shared library: .*/version/1/batchstrategy\.so: invalid ELF header"),
                        ("idle", r"unable to load shared library: .*/idle/1/batchstrategy\.so: invalid ELF header"),
                        ("named", r"unable to load shared library: .*/named/own\.so: invalid ELF header"),
                        ("escapes", r"Batching library path escapes model repository\."),
                        ("missing", r"Batching library path not found: .*/missing/own\.so")):
                    self.assertEqual(server.get(f"/v2/models/{name}/ready")[0], 404)
                    server.wait_for_match(rf"failed to load '{name}' version 1: [A-Za-z ]+: {reason}")
                # It has none of the functions, so that it decides nothing.
                self.assertEqual(server.post_json("/v2/models/other/infer", {"inputs": [
                    {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})[0], 200)

    def test_passed_through(self):
        extra = ('optimization { graph { level: 1 } priority: PRIORITY_MAX cuda { graphs: true } eager_batching: true '
                 'gather_kernel_buffer_threshold: 3 }\n'
                 'cc_model_filenames { key: "7.5" value: "small" }\nparameters { key: "k" value { string_value: "v" } }\n')
        with Repository().model("m", identity(extra=extra)) as repository, self.start(repository) as server:
            config = server.get_json("/v2/models/m/config")
        self.assertEqual(config["parameters"]["k"], {"string_value": "v"})
        self.assertEqual(config["cc_model_filenames"], {"7.5": "small"})
        optimization = config["optimization"]
        self.assertEqual((optimization["graph"]["level"], optimization["priority"]), (1, "PRIORITY_MAX"))
        self.assertEqual((optimization["cuda"]["graphs"], optimization["eager_batching"]), (True, True))
        self.assertEqual(optimization["gather_kernel_buffer_threshold"], 3)


@conch_only
class Requests(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))
        repository.model("vector", identity([("INPUT0", "FP32", (-1,))]))
        repository.model("shaped", identity().replace("dims: [ -1 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }"))
        repository.model("parameters", identity(parameters={"example_response_parameters": None}))
        slow = {"execute_delay_ms": "300"}
        repository.model("narrow", identity(parameters=slow, extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"))
        policy = "default_timeout_microseconds: 600000 allow_timeout_override: true"
        override = "dynamic_batching { default_queue_policy { allow_timeout_override: true } }\n"
        repository.model("without_default", identity(parameters=slow, extra=override))
        repository.model("own_timeouts", identity(parameters={**slow, "CONCH_REQUEST_TIMEOUTS": "true"}, extra=override))
        repository.model("hasty", identity(parameters=slow, extra=f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}\n"))

    def test_infinities(self):
        raw = struct.pack("<3f", float("nan"), float("inf"), float("-inf"))
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [3], "parameters": {"binary_data_size": 12}}]}
        status, _, reply = self.infer(body, raw, model="vector")
        self.assertEqual(status, 200, reply)
        self.assertIn(b"[NaN,Infinity,-Infinity]", reply)
        # Python's json writes and reads the same words.
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [float("nan"), float("inf"), -float("inf")]}],
                "parameters": {"binary_data_output": True}}
        status, headers, reply = self.infer(body, model="vector")
        self.assertEqual(status, 200, reply)
        got = struct.unpack("<3f", reply[int(headers["inference-header-content-length"]):])
        self.assertTrue(got[0] != got[0] and got[1:] == (float("inf"), -float("inf")))

    def test_response_parameters(self):
        status, _, reply = self.infer(PAIR, model="parameters")
        self.assertEqual(status, 200, reply)
        answer = json.loads(reply)
        self.assertEqual(answer["parameters"], {"param0": "an example string parameter", "param1": 42, "param2": False,
                                                 "param3": 123.123})
        self.assertEqual(list(answer), ["model_name", "model_version", "parameters", "outputs"])

    def test_options(self):
        for path, expected in (("/v2/models/identity/infer", 405), ("/v2/health/live", 405), ("/elsewhere", 404)):
            self.assertEqual(self.server.request("OPTIONS", path)[0], expected, path)

    def test_reshape(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}
        status, _, reply = self.infer(body, model="shaped")
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"], [{"name": "OUTPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}])

    def together(self, model, count, **more):
        """Sends the same request so many times at once: status -> bodies."""
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            replies = list(pool.map(lambda _: self.infer({**PAIR, **more}, model=model), range(count)))
        found = {}
        for status, _, body in replies:
            found.setdefault(status, []).append(body.decode())
        return found

    def failures(self, model, reason):
        return self.server.metrics()[f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}}']

    def test_queue_size(self):
        found = self.together("narrow", 6)
        self.assertIn(200, found)
        self.assertEqual(set(found), {200, 503})
        for body in found[503]:
            self.assertIn("Exceeds maximum queue size", body)
        self.assertEqual(self.failures("narrow", "REJECTED"), 0)

    def test_timeouts(self):
        found = self.together("hasty", 6)
        self.assertEqual(set(found), {200, 503})
        self.assertGreaterEqual(len(found[200]), 2)
        for body in found[503]:
            self.assertIn("Request timeout expired", body)
        self.assertEqual(self.failures("hasty", "REJECTED"), len(found[503]))
        # A request may ask for less time than its model's policy gives, not for more.
        self.assertEqual(len(self.together("hasty", 4, parameters={"timeout": 100_000})[200]), 1)
        self.assertGreater(len(self.together("hasty", 6, parameters={"timeout": 60_000_000})[503]), 0)
        # A policy without a timeout has none that could be lowered, unless the model says that requests set it.
        self.assertEqual(set(self.together("without_default", 4, parameters={"timeout": 100_000})), {200})
        self.assertEqual(len(self.together("own_timeouts", 4, parameters={"timeout": 100_000})[200]), 1)


class Batches(ServerCase):
    """Which two requests that wait at the same time share an execution: the queue waits long enough for both."""

    @staticmethod
    def models(repository):
        waits = "dynamic_batching { max_queue_delay_microseconds: 1000000 }\n"
        vector = identity(batch=2, extra=waits)
        repository.model("vector", vector)
        repository.model("ragged", vector.replace('"INPUT0"', '"INPUT0" allow_ragged_batch: true'))
        pair = identity([("INPUT0", "FP32", (-1,)), ("INPUT1", "FP32", (-1,))], batch=2, extra=waits)
        repository.model("optional", pair.replace('"INPUT1"', '"INPUT1" optional: true'))
        for name, (preferred, _, _) in Batches.QUEUED.items():
            busy = f"dynamic_batching {{ preferred_batch_size: {preferred} }}\n"
            repository.model(name, identity(batch=8, extra=busy, parameters={"execute_delay_ms": "700"}))

    # Preferred sizes, the sizes of requests that come while the only instance is busy with one, the sizes of the batches then made.
    QUEUED = {
        "five": ([], [1] * 5, {5: 1}), "twenty": ([], [1] * 20, {8: 2, 4: 1}), "large": ([], [5] * 2, {5: 2}), "whole": ([], [8] * 2, {8: 2}),
        "fours": ([4], [1] * 6, {4: 1, 2: 1}), "twos": ([2, 4], [1] * 7, {4: 1, 2: 1, 1: 1}), "threes": ([3], [1] * 8, {3: 2, 2: 1}),
        "beyond": ([4, 8], [3] * 4, {6: 2}),
    }

    def executions(self, model, *requests):
        """How many executions the requests took; a request is one list of values per input."""
        def ask(tensors):
            body = {"inputs": [{"name": f"INPUT{index}", "datatype": "FP32", "shape": [1, len(values)], "data": values}
                               for index, values in enumerate(tensors)]}
            status, _, reply = self.infer(body, model=model)
            self.assertEqual(status, 200, reply)
            return [output["data"] for output in json.loads(reply)["outputs"]][:len(tensors)]
        before = self.server.statistics(model)["execution_count"]
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            self.assertEqual(list(pool.map(ask, requests)), [list(tensors) for tensors in requests])
        return self.server.statistics(model)["execution_count"] - before

    def test_what_comes_while_the_instance_is_busy(self):
        def ask(model, size, **more):
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [size, 1], "data": [1] * size}], **more}
            self.assertEqual(self.infer(body, model=model)[0], 200)

        def run(model):
            _, sizes, _ = self.QUEUED[model]
            with concurrent.futures.ThreadPoolExecutor(1 + len(sizes)) as own:
                first = own.submit(ask, model, 1, id=model)
                self.server.wait_for_state(model, "EXECUTING")
                for asked in [first, *(own.submit(ask, model, size) for size in sizes)]:
                    asked.result()
            return {row["batch_size"]: row["compute_infer"]["count"] for row in self.server.statistics(model)["batch_stats"]}
        with self.server.telling_states(), concurrent.futures.ThreadPoolExecutor(len(self.QUEUED)) as pool:
            made = dict(zip(self.QUEUED, pool.map(run, self.QUEUED)))
        for model, (_, _, expected) in self.QUEUED.items():
            self.assertEqual(made[model], {**expected, 1: 1 + expected.get(1, 0)}, model)

    def test_equal_shapes(self):
        self.assertEqual(self.executions("vector", [[1, 2]], [[3, 4]]), 1)

    def test_different_shapes(self):
        self.assertEqual(self.executions("vector", [[1, 2]], [[3, 4, 5]]), 2)

    def test_different_shapes_of_a_ragged_input(self):
        self.assertEqual(self.executions("ragged", [[1, 2]], [[3, 4, 5]]), 1)

    def test_optional_inputs(self):
        self.assertEqual(self.executions("optional", [[1], [2]], [[3], [4]]), 1)
        self.assertEqual(self.executions("optional", [[1]], [[3]]), 1)
        self.assertEqual(self.executions("optional", [[1]], [[3], [4]]), 2)


if __name__ == "__main__":
    unittest.main()
