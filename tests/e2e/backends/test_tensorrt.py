"""The TensorRT backend with a double of TensorRT's library over the double of CUDA's driver: plans are completed, checked and served, with
batches, profiles, shape tensors, late shapes, ragged inputs, sequences and CUDA graphs; tensors in CUDA shared memory stay where they are;
what fails is told."""

import concurrent.futures
import json
import pathlib
import subprocess
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import cuda
import region
import server as servers
import tensorrt_plans as plans
from case import conch_only, needs_library
from framework import infer, load, parameters
from region import part
from repository import tensors
from tensorrt_plans import BACKEND, Plan, rows
from test_gpus import GpuCase
from test_streams import STAGES
from waiting import until

GRAPHS = "optimization { cuda { graphs: true } }\n"


@conch_only
@needs_library("tensorrt")
class TensorrtCase(GpuCase):
    """A server whose TensorRT is the double. `plans` are the models, by name: the configuration and the plan."""

    settings = {"devices": 1}
    flags = (region.FLAG, "--log-verbose=1", "--model-control-mode=explicit", "--load-model=*")
    models = None
    plans = {}
    backend_flags = ()

    @classmethod
    def setUpClass(cls):
        library = plans.double()
        directory = tempfile.TemporaryDirectory(prefix="conch-tensorrt-")
        cls.addClassCleanup(directory.cleanup)
        cls.runs_file, cls.tally = pathlib.Path(directory.name) / "runs", cuda.TallyFile(directory.name)
        cls.faults = cuda.FaultFile(directory.name)
        cls.flags = (*cls.flags, f"--backend-config=tensorrt,library={library}", *cls.backend_flags)
        cls.environment = {**(cls.environment or {}), **cls.faults.environment, **cls.tally.environment,
                           "CONCH_TENSORRT_SHIM": str(plans.SHIMS), "CONCH_TENSORRT_DOUBLE_TALLY": str(cls.runs_file)}
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        for name, (config, plan) in cls.plans.items():
            cls.place(repository, name, config, plan)

    @staticmethod
    def place(repository, name, config, plan, file="model.plan"):
        content = plan if isinstance(plan, bytes) else plan.bytes()
        repository.model(name, config, files={f"1/{file}": content})

    def client(self, module=httpclient):
        client = module.InferenceServerClient(self.server.http if module is httpclient else self.server.grpc)
        self.addCleanup(client.close)
        return client

    def ask_model(self, model, module=httpclient, **feeds):
        return infer(module, self.client(module), model, feeds)

    def refusal(self, model, **feeds):
        with self.assertRaises(InferenceServerException) as refused:
            self.ask_model(model, **feeds)
        return refused.exception.message()

    def said(self):
        """Lines of the double, in order."""
        return self.runs_file.read_text().splitlines() if self.runs_file.exists() else []

    def runs(self):
        """Those of runs and captures, with profiles and shapes."""
        return [line for line in self.said() if line != "done"]

    def runs_of(self, ask):
        before = len(self.runs())
        ask()
        return self.runs()[before:]

    def wait_for_line(self, words):
        until(lambda: any(words in line for line in self.server.lines), f"a line with '{words}'", 5)

    def config(self, model):
        return self.server.get_json(f"/v2/models/{model}/config")


def floats(count, *inner, seed=0):
    return numpy.random.default_rng(seed).integers(-100, 100, (count, *inner)).astype(numpy.float32)


TYPES = {"fp32": numpy.float32, "fp16": numpy.float16, "int8": numpy.int8, "int32": numpy.int32, "bool": numpy.bool_, "uint8": numpy.uint8,
         "int64": numpy.int64}
STATE = ('sequence_batching { control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }\n'
         ' state { input_name: "in" output_name: "out" data_type: TYPE_FP32 dims: [ 4 ]\n'
         '  initial_state { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true name: "zero" } } }\n')
RAGGED = (BACKEND + "max_batch_size: 8\n"
          'input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }\n'
          'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32 source_input: "A" }\n'
          'output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "M" data_type: TYPE_FP32 dims: [ 1 ] }\n'
          'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "A" }\n'
          "dynamic_batching { max_queue_delay_microseconds: 300000 preferred_batch_size: [ 2 ] }\n")


class Serves(TensorrtCase):
    plans = {
        "add": (BACKEND, plans.add()),
        "no_config": (None, plans.add()),
        "whole": (BACKEND + tensors("input", [("A", "FP32", (-1, 16))]) + tensors("output", [("Y", "FP32", (-1, 16))]), plans.identity()),
        "fixed": (BACKEND, Plan().input("A", "fp32", (2, 4)).output("Y", "fp32", (2, 4)).op("Y", "identity", "A")),
        **{f"type_{name}": (BACKEND, plans.identity(name)) for name in TYPES},
        "bf16": (BACKEND, plans.identity("bf16")),
        "profiles": (BACKEND + 'instance_group { profile: [ "0", "1", "2" ] }\n',
                     Plan().input("A", "fp32", (-1, -1)).output("Y", "fp32", (-1, -1)).output("P", "int32", (-1, 1))
                     .op("Y", "identity", "A").op("P", "profile", "A")
                     .profile(A=((1, 1), (1, 4), (8, 8))).profile(A=((1, 1), (8, 16), (8, 32))).profile(A=((1, 1), (4, 4), (8, 8)))),
        "one_profile": (BACKEND + 'instance_group { profile: "1" }\n',
                        Plan().input("A", "fp32", (-1, 4)).output("P", "int32", (-1, 1)).op("P", "profile", "A")
                        .profile(A=rows(4)).profile(A=rows(4, batch=16))),
        "shapes": (BACKEND, Plan().input("A", "fp32", (-1, 4)).input("S", "int64", (2,), "shape").output("Y", "fp32", (-1, -1))
                   .op("Y", "fill", "A", "S").profile(A=rows(4)).say("range", "S", "2", "2", "2").values("S", (1, 1), (4, 3), (8, 5))),
        "shapes32": (BACKEND + "max_batch_size: 0\n" + tensors("input", [("A", "FP32", (4,))])
                     + 'input { name: "S" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }\n' + tensors("output", [("Y", "FP32", (-1, -1))]),
                     Plan().input("A", "fp32", (4,)).input("S", "int32", (2,), "shape").output("Y", "fp32", (-1, -1))
                     .op("Y", "fill", "A", "S").profile(A=((4,), (4,), (4,))).values("S", (1, 1), (2, 3), (4, 5))),
        "shape_output": (BACKEND, Plan().input("A", "fp32", (-1, 4)).output("Y", "fp32", (-1, 4)).output("D", "int64", (2,), "shape")
                         .op("Y", "identity", "A").op("D", "dims", "A").profile(A=rows(4))),
        "late": (BACKEND + "max_batch_size: 0\n" + tensors("input", [("A", "FP32", (-1,))]) + tensors("output", [("Y", "FP32", (-1,))]),
                 Plan().input("A", "fp32", (-1,)).output("Y", "fp32", (-1,)).op("Y", "positive", "A").profile(A=((0,), (4,), (100000,)))),
        "vector": (BACKEND, plans.identity("int8", (3, 2, 2)).say("format", "A", 2, 1, 4).say("format", "Y", 2, 1, 4)),
        "ragged": (RAGGED, Plan().input("A", "fp32", (-1,)).input("N", "fp32", (-1,)).output("Y", "fp32", (-1,)).output("M", "fp32", (-1, 1))
                   .op("Y", "identity", "A").op("M", "rows", "N").profile(A=((1,), (8,), (64,)), N=((1,), (2,), (8,)))),
        "sequence": (BACKEND + "max_batch_size: 4\n" + tensors("input", [("A", "FP32", (4,))]) + tensors("output", [("Y", "FP32", (4,))]) + STATE,
                     Plan().input("A", "fp32", (-1, 4)).input("in", "fp32", (-1, 4)).input("START", "fp32", (-1, 1))
                     .output("Y", "fp32", (-1, 4)).output("out", "fp32", (-1, 4)).op("Y", "add", "A", "in").op("out", "add", "A", "in")
                     .profile(A=rows(4, batch=4), **{"in": rows(4, batch=4)}, START=rows(1, batch=4))),
        "two_streams": (BACKEND + "optimization { cuda { output_copy_stream: true } }\n", plans.add()),
        "large": (BACKEND, plans.identity("fp32", (1 << 18,), batch=4)),
        "inert": (BACKEND + "optimization { eager_batching: true gather_kernel_buffer_threshold: 4 cuda { busy_wait_events: true } }\n"
                  + parameters(execution_context_allocation_strategy="ON_PROFILE_CHANGE"), plans.add()),
    }

    def test_completes_configurations(self):
        config = self.config("no_config")
        self.assertEqual((config["platform"], config["backend"], config["max_batch_size"]), ("tensorrt_plan", "tensorrt", 8))
        self.assertEqual([(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in config["input"]],
                         [("A", "TYPE_FP32", [16]), ("B", "TYPE_FP32", [16])])
        self.assertIn("dynamic_batching", config)
        self.assertEqual(self.config("whole")["max_batch_size"], 0)
        self.assertEqual(self.config("one_profile")["max_batch_size"], 16)
        fixed = self.config("fixed")
        self.assertEqual((fixed["max_batch_size"], fixed["input"][0]["dims"]), (2, [4]), "a fixed first dimension is the batch, as upstream")
        shape, = (tensor for tensor in self.config("shapes")["input"] if tensor["name"] == "S")
        self.assertEqual((shape["dims"], shape["is_shape_tensor"]), ([1], True))
        self.assertTrue(self.config("vector")["input"][0]["is_non_linear_format_io"])

    def test_batches_of_both_protocols(self):
        for module in (httpclient, grpcclient):
            for count in (1, 3, 8):
                for model in ("add", "no_config", "two_streams", "inert"):
                    with self.subTest(module=module.__name__, count=count, model=model):
                        a, b = floats(count, 16, seed=1), floats(count, 16, seed=2)
                        self.assertTrue(numpy.array_equal(self.ask_model(model, module, A=a, B=b)["Y"], a + b))

    def test_requests_at_once(self):
        """Many requests of several sizes: each gets its own rows."""
        def use(module, client, number):
            for turn in range(10):
                count = 1 + (number + turn) % 3
                a, b = floats(count, 16, seed=number * 100 + turn), floats(count, 16, seed=turn)
                if not numpy.array_equal(infer(module, client, "add", {"A": a, "B": b})["Y"], a + b):
                    return False
            return True

        def run(number):
            with httpclient.InferenceServerClient(self.server.http) as client:
                return use(httpclient, client, number)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(run, range(8))), [True] * 8)

    def test_types(self):
        for name, kind in TYPES.items():
            with self.subTest(name):
                given = numpy.random.default_rng(7).integers(0, 2, (3, 16)).astype(kind)
                self.assertTrue(numpy.array_equal(self.ask_model(f"type_{name}", A=given)["Y"], given))
        self.assertEqual(self.config("bf16")["input"][0]["data_type"], "TYPE_BF16")

    def test_models_without_batches(self):
        given = floats(5, 16)
        self.assertTrue(numpy.array_equal(self.ask_model("whole", A=given)["Y"], given))
        given = floats(2, 4)
        self.assertTrue(numpy.array_equal(self.ask_model("fixed", A=given)["Y"], given))

    def test_the_best_profile_is_used(self):
        for (count, width), expected in {(1, 4): 0, (4, 4): 2, (1, 20): 1, (8, 8): 1, (3, 5): 2}.items():
            with self.subTest(count=count, width=width):
                given = floats(count, width)
                found = self.ask_model("profiles", A=given)
                self.assertTrue(numpy.array_equal(found["Y"], given))
                self.assertEqual(found["P"].tolist(), [[expected]] * count)
        self.assertEqual(self.ask_model("one_profile", A=floats(12, 4))["P"].tolist(), [[1]] * 12)

    def test_shapes_out_of_the_profile_are_refused(self):
        self.assertIn("request specifies invalid shape for input 'A' for profiles_0_0. Error details: model expected the shape of dimension 1 to "
                      "be between 1 and 8 but received 33", self.refusal("profiles", A=floats(1, 33)))
        self.assertIn("inference request batch-size must be <= 8 for 'add'", self.refusal("add", A=floats(9, 16), B=floats(9, 16)))
        self.assert_adds()

    def test_shape_tensors(self):
        for count, width in ((1, 2), (3, 5), (8, 1)):
            with self.subTest(count=count, width=width):
                given = floats(count, 4)
                found = self.ask_model("shapes", A=given, S=numpy.array([width], dtype=numpy.int64))["Y"]
                self.assertEqual(found.tolist(), numpy.full((count, width), given.sum()).tolist())
        self.assertIn("The shape value at index 1 is expected to be in range from 1 to 5, Got: 6",
                      self.refusal("shapes", A=floats(1, 4), S=numpy.array([6], dtype=numpy.int64)))
        given = floats(4)
        found = self.ask_model("shapes32", A=given, S=numpy.array([2, 3], dtype=numpy.int32))["Y"]
        self.assertEqual(found.tolist(), numpy.full((2, 3), given.sum()).tolist())

    def test_shape_outputs(self):
        found = self.ask_model("shape_output", A=floats(3, 4))
        self.assertEqual(found["D"].tolist(), [[4]] * 3)

    def test_sizes_that_values_tell(self):
        for given in ([1, -1, 2, -2, 3], [], [-1], list(range(5000))):
            with self.subTest(len(given)):
                given = numpy.array(given, dtype=numpy.float32)
                self.assertEqual(self.ask_model("late", A=given)["Y"].tolist(), given[given > 0].tolist())

    def test_vectorised_formats(self):
        """Three channels lie in memory as four."""
        for count, size in ((2, 32), (1, 16)):
            body = {"inputs": [{"name": "A", "datatype": "INT8", "shape": [count, 3, 2, 2], "parameters": {"binary_data_size": size}}],
                    "outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}
            given = bytes(range(size))
            status, headers, reply = self.infer(body, given, model="vector")
            self.assertEqual(status, 200, reply)
            self.assertEqual(reply[int(headers["inference-header-content-length"]):], given)
        body["inputs"][0]["parameters"]["binary_data_size"] = 12
        status, _, reply = self.infer(body, bytes(12), model="vector")
        self.assertEqual(status, 400)
        self.assertIn("input byte size mismatch for input 'A' for model 'vector'. Expected 16, got 12", json.loads(reply)["error"])

    def test_ragged_batches(self):
        def run(width):
            with httpclient.InferenceServerClient(self.server.http) as client:
                given = floats(1, width, seed=width)
                found = infer(httpclient, client, "ragged", {"A": given}, outputs=["Y"])
                return numpy.array_equal(found["Y"], given)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            lines = self.runs_of(lambda: self.assertEqual(list(pool.map(run, (3, 5))), [True, True]))
        self.assertTrue(any("A=8 N=2" in line for line in lines), lines)

    def test_sequences_keep_their_state(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            sums = {7: numpy.zeros((1, 4), numpy.float32), 8: numpy.zeros((1, 4), numpy.float32)}
            for turn in range(4):
                for number in sums:
                    given = floats(1, 4, seed=turn * 10 + number)
                    sums[number] = sums[number] + given
                    found = infer(httpclient, client, "sequence", {"A": given}, sequence_id=number, sequence_start=turn == 0, sequence_end=turn == 3)
                    self.assertEqual(found["Y"].tolist(), sums[number].tolist())

    def test_large_tensors(self):
        given = floats(3, 1 << 18)
        self.assertTrue(numpy.array_equal(self.ask_model("large", A=given)["Y"], given))

    def test_tells_what_is_inert(self):
        for word in ("'eager_batching' has no effect", "'busy_wait_events' has no effect", "'gather_kernel_buffer_threshold' has no effect"):
            self.assertEqual(sum("model 'inert'" in line and word in line for line in self.server.lines), 1, word)

    def test_tensors_on_the_device_stay_there(self):
        """A request whose tensors are in CUDA shared memory is run in place: the only copies are the double's own."""
        size = 2 * 16 * 4
        first, second = floats(2, 16, seed=3), floats(2, 16, seed=4)
        arrays = {"a": self.array(size, first.tobytes()), "b": self.array(size, second.tobytes()), "y": self.array(size)}
        for name, array in arrays.items():
            self.registered(name, array)
        inputs = [{"name": name.upper(), "datatype": "FP32", "shape": [2, 16], "parameters": part(name, 0, size)} for name in ("a", "b")]
        body = {"inputs": inputs, "outputs": [{"name": "Y", "parameters": part("y", 0, size)}]}

        def ask():
            status, _, reply = self.infer(body, model="add")
            self.assertEqual(status, 200, reply)
        self.assertEqual(self.tally.during(ask), {("device", "pinned"): (2, 2 * size), ("pinned", "device"): (1, size)})
        self.assertEqual(numpy.frombuffer(arrays["y"].read(), numpy.float32).tolist(), (first + second).ravel().tolist())

    def test_calls_that_fail_fail_their_request(self):
        """Whatever the driver refuses, now or later: the request gets an error, and the next one its answer."""
        for call in ("copy", "host_function", "cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuLaunchHostFunc"):
            for model in ("add", "two_streams"):
                with self.subTest(call=call, model=model):
                    with self.faults.failing(f"{call}:0:1:1"):
                        refused = self.refusal(model, A=floats(1, 16), B=floats(1, 16))
                    self.assertRegex(refused, "GPU 0: .*CUDA_ERROR_INVALID_VALUE|unable to enqueue for inference")
                    self.assert_adds(model)

    def test_hostile_shapes_are_refused(self):
        def ask(model, **shapes):
            types = {"S": "INT64"}
            inputs = [{"name": name, "datatype": types.get(name, "FP32"), "shape": list(shape), "data": [1] * int(numpy.prod(shape))}
                      for name, shape in shapes.items()]
            return self.infer({"inputs": inputs}, model=model)[0]
        for model, shapes in (("add", {"A": (0, 16), "B": (0, 16)}), ("add", {"A": (1, 16), "B": (2, 16)}), ("add", {"A": (1, 16)}),
                              ("shapes", {"A": (1, 4), "S": (2,)}), ("shapes", {"A": (1, 4), "S": (0,)}), ("shapes", {"A": (1, 4)}),
                              ("profiles", {"A": (8, 1000)}), ("late", {"A": (100001,)}), ("sequence", {"A": (1, 4)})):
            with self.subTest(model=model, shapes=shapes):
                self.assertIn(ask(model, **shapes), (400, 500))
        self.assert_adds()

    def assert_adds(self, model="add"):
        a, b = floats(2, 16, seed=5), floats(2, 16, seed=6)
        self.assertTrue(numpy.array_equal(self.ask_model(model, A=a, B=b)["Y"], a + b))


LOWER = """optimization { cuda { graphs: true
  graph_spec { batch_size: 4 input { key: "A" value { dim: [ 16 ] } } input { key: "B" value { dim: [ 16 ] } }
    graph_lower_bound { batch_size: 2 input { key: "A" value { dim: [ 16 ] } } input { key: "B" value { dim: [ 16 ] } } } } } }
"""


class Graphs(TensorrtCase):
    plans = {
        "usual": (BACKEND + "max_batch_size: 8\n" + GRAPHS + "dynamic_batching { preferred_batch_size: [ 2, 4 ] }\n", plans.add()),
        "lower": (BACKEND + LOWER, plans.add()),
        "uncaptured": (BACKEND + GRAPHS, plans.add().say("capture", "no")),
        "shapes": (BACKEND + GRAPHS, Serves.plans["shapes"][1]),
        "late": (Serves.plans["late"][0] + GRAPHS, Serves.plans["late"][1]),
        "unbatched": (Serves.plans["whole"][0] + GRAPHS, plans.identity()),
    }

    def answer(self, model, count):
        """What the double does for a batch of this size, which is answered well."""
        a, b = floats(count, 16, seed=count), floats(count, 16, seed=2)

        def ask():
            self.assertTrue(numpy.array_equal(self.ask_model(model, A=a, B=b)["Y"], a + b))
        return self.runs_of(ask)

    def test_captured_batches_are_launched(self):
        for count in (1, 2, 4, 8):
            self.assertEqual(self.answer("usual", count), [], f"a batch of {count} has a graph")
        self.assertEqual(self.answer("usual", 3), ["run 0 A=3,16 B=3,16"])
        self.wait_for_line("is launching CUDA graph for usual_0")

    def test_every_slot_has_its_own_graphs(self):
        """Two batches may be in flight, on buffers of their own."""
        captured = [line for line in self.runs() if line.startswith("capture 0 A=2,16 B=2,16")]
        self.assertEqual(len(captured), 2)

    def test_lower_bounds(self):
        for count in (2, 3, 4):
            self.assertEqual(self.answer("lower", count), [], f"a batch of {count} uses the graph of 4")
        for count in (1, 5):
            self.assertEqual(len(self.answer("lower", count)), 1, f"a batch of {count} has none")

    def test_batches_of_other_content_do_not_leak(self):
        """Rows of the graph beyond the batch are of an earlier one: nobody sees them."""
        self.answer("lower", 4)
        a, b = floats(2, 16, seed=9), floats(2, 16, seed=10)
        self.assertEqual(self.ask_model("lower", A=a, B=b)["Y"].tolist(), (a + b).tolist())

    def test_what_cannot_be_captured_runs(self):
        self.assertEqual(self.answer("uncaptured", 2), ["run 0 A=2,16 B=2,16"])
        found = self.ask_model("shapes", A=floats(1, 4), S=numpy.array([2], dtype=numpy.int64))["Y"]
        self.assertEqual(found.shape, (1, 2))
        self.assertEqual(self.ask_model("late", A=numpy.ones(3, numpy.float32))["Y"].tolist(), [1, 1, 1])
        for word in ("unable to record CUDA graph for uncaptured_0", "Detected shape tensor, CUDA graph is not captured for shapes_0",
                     "Detected an output whose shape depends on data, CUDA graph is not captured for late_0"):
            self.wait_for_line(word)

    def test_a_launch_that_fails_fails_its_request(self):
        with self.faults.failing("cuGraphLaunch:0:1:1"):
            self.assertIn("GPU 0: cuGraphLaunch: CUDA_ERROR_INVALID_VALUE", self.refusal("usual", A=floats(2, 16), B=floats(2, 16)))
        self.assertEqual(self.answer("usual", 2), [])

    def test_without_batches_the_best_shape_is_captured(self):
        given = floats(4, 16)
        lines = self.runs_of(lambda: self.assertTrue(numpy.array_equal(self.ask_model("unbatched", A=given)["Y"], given)))
        self.assertEqual(lines, [])
        given = floats(5, 16)
        lines = self.runs_of(lambda: self.assertTrue(numpy.array_equal(self.ask_model("unbatched", A=given)["Y"], given)))
        self.assertEqual(lines, ["run 0 A=5,16"])


A, Y = tensors("input", [("A", "FP32", (16,))]), tensors("output", [("Y", "FP32", (16,))])
REFUSED = {
    "wrong_version": (BACKEND, plans.add(major=7), f"the engine plan file is of version 7, this library of version {plans.MAJOR}"),
    "no_plan": (BACKEND, b"something else", "unable to load plan file to auto complete config: "),
    "damaged": (BACKEND + "max_batch_size: 8\n" + A + Y, plans.identity().say("fail", "deserialize"), "the double: the plan is damaged"),
    "no_context": (BACKEND, plans.identity().say("fail", "context"), "unable to create TensorRT context: the double has no memory for a context"),
    "too_large": (BACKEND + "max_batch_size: 9\n", plans.identity(),
                  "autofill failed for model 'too_large': configuration specified max-batch 9 but TensorRT engine only supports max-batch 8"),
    "no_profile": (BACKEND + 'instance_group { profile: "3" }\n', plans.identity(),
                   "unable to autofill for 'no_profile', configuration specified invalid profile 3 . Number of profiles supported by TensorRT "
                   "engine: 1"),
    "name": (BACKEND + tensors("input", [("X", "FP32", (16,))]), plans.identity(), "unexpected inference input 'X', allowed inputs are: A"),
    "type": (BACKEND + "max_batch_size: 8\n" + tensors("input", [("A", "FP16", (16,))]) + Y, plans.identity(),
             "unexpected datatype TYPE_FP32 for inference input 'A', expecting TYPE_FP16 for type_0"),
    "shape": (BACKEND + "max_batch_size: 8\n" + tensors("input", [("A", "FP32", (17,))]) + Y, plans.identity(),
              "model 'shape', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the model configuration specifies 2 dimensions"),
    "fp8": (BACKEND, plans.identity("fp8"), "model input 'A' must specify 'data_type' for fp8"),
    "strategy": (BACKEND + parameters(execution_context_allocation_strategy="x"), plans.identity(),
                 "Invalid value for 'execution_context_allocation_strategy': 'x' for model instance 'strategy'"),
    "spec": (BACKEND + "optimization { cuda { graphs: true graph_spec { batch_size: 9 } } }\n", plans.identity(),
             "graph spec expects 'batch_size' to be >= 1 and <= 8"),
    "on_cpu": (BACKEND + "instance_group { kind: KIND_CPU }\n", plans.identity(),
               "unable to load model 'on_cpu', TensorRT backend supports only GPU device"),
    "no_dla": (BACKEND + 'instance_group { secondary_devices { kind: KIND_NVDLA device_id: 3 } }\n', plans.identity(),
               "unable to create TensorRT runtime with DLA Core ID: 3, available number of DLA cores: 1"),
}


class Refuses(TensorrtCase):
    flags = (region.FLAG, "--model-control-mode=explicit")
    environment = {"CONCH_TENSORRT_DOUBLE_DLA": "1"}
    plans = {
        "good": (BACKEND, plans.add()),
        "failing": (BACKEND, plans.add().say("fail", "enqueue")),
        "dla": (BACKEND + 'instance_group { secondary_devices { kind: KIND_NVDLA device_id: 0 } }\n', plans.identity()),
        **{name: (config, plan) for name, (config, plan, _) in REFUSED.items()},
    }

    def test_what_does_not_fit_is_refused(self):
        for name, (_, _, expected) in REFUSED.items():
            with self.subTest(name):
                status, error = load(self.server, name)
                self.assertEqual(status, 400)
                self.assertIn(expected, error)

    def test_a_missing_plan_is_told(self):
        self.place(self.repository, "missing", BACKEND + "max_batch_size: 8\n" + A + Y, plans.identity(), file="other.plan")
        status, error = load(self.server, "missing")
        self.assertEqual(status, 400)
        self.assertIn("unable to find '", error)

    def test_plans_by_compute_capability(self):
        names = 'cc_model_filenames { key: "9.0" value: "hopper.plan" }\ncc_model_filenames { key: "8.0" value: "ampere.plan" }\n'
        self.place(self.repository, "capability", BACKEND + names, plans.add(), file="hopper.plan")
        self.assertEqual(load(self.server, "capability"), (200, None))
        a = floats(1, 16)
        self.assertEqual(self.ask_model("capability", A=a, B=a)["Y"].tolist(), (a + a).tolist())

    def test_a_run_that_fails_is_told_and_the_server_goes_on(self):
        for name in ("good", "failing"):
            self.assertEqual(load(self.server, name), (200, None))
        for _ in range(3):
            self.assertIn("unable to enqueue for inference failing_0: the double refuses to run",
                          self.refusal("failing", A=floats(1, 16), B=floats(1, 16)))
        a = floats(1, 16)
        self.assertEqual(self.ask_model("good", A=a, B=a)["Y"].tolist(), (a + a).tolist())

    def test_the_example_makes_a_model(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder) / "any.plan"
            plan.write_bytes(plans.add().bytes())
            program = servers.ROOT / "docs/examples/tensorrt/make_repository.py"
            two = subprocess.run([program, folder, "two", plan, plan], capture_output=True, text=True, check=False)
            self.assertEqual((two.returncode, pathlib.Path(folder, "two").exists()), (1, False), "two plans for all GPUs")
            self.assertIn("one PLAN at most is for all GPUs", two.stderr)
            subprocess.run([program, "--graphs", self.repository.path, "example", plan, f"9.0={plan}"], check=True)
        self.assertEqual(load(self.server, "example"), (200, None))
        a = floats(8, 16)
        self.assertEqual(self.runs_of(lambda: self.assertEqual(self.ask_model("example", A=a, B=a)["Y"].tolist(), (a + a).tolist())), [])

    def test_models_come_and_go(self):
        a = floats(1, 16)
        for _ in range(3):
            self.assertEqual(load(self.server, "good"), (200, None))
            self.assertEqual(self.ask_model("good", A=a, B=a)["Y"].tolist(), (a + a).tolist())
            status, _, reply = self.server.request("POST", "/v2/repository/models/good/unload", b"{}")
            self.assertEqual(status, 200, reply)

    def test_an_accelerator_core_is_chosen(self):
        self.assertEqual(load(self.server, "dla"), (200, None))
        self.assertIn("dla 0", self.runs())


class InFlight(TensorrtCase):
    """Batches of one instance at once."""

    plans = {"slow": (BACKEND + "max_batch_size: 1\ninstance_group { count: 1 kind: KIND_GPU }\n", plans.add().say("delay", 2000))}

    def test_batches_in_flight_have_a_bound_and_buffers_of_their_own(self):
        def ask(number):
            with httpclient.InferenceServerClient(self.server.http) as client:
                for turn in range(20):
                    a, b = floats(1, 16, seed=number * 100 + turn), floats(1, 16, seed=turn)
                    if not numpy.array_equal(infer(httpclient, client, "slow", {"A": a, "B": b})["Y"], a + b):
                        return False
            return True
        before = len(self.said())
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            self.assertEqual(list(pool.map(ask, range(6))), [True] * 6)
        said = until(lambda: self.said()[before:], "the end of all runs", 10, lambda lines: lines.count("done") >= 120)
        in_flight = most = 0
        for line in said:
            in_flight += 1 if line.startswith("run") else -1
            most = max(most, in_flight)
        self.assertEqual((in_flight, len(said)), (0, 240))
        self.assertLessEqual(most, 2, "no more than the instance has buffers for")

    def test_a_model_is_unloaded_with_batches_in_flight(self):
        """Every request has its answer, or is refused because the model is gone."""
        self.place(self.repository, "leaving", BACKEND + "max_batch_size: 1\n", plans.add().say("delay", 20000))
        for _ in range(3):
            self.assertEqual(load(self.server, "leaving"), (200, None))

            def ask(number):
                with httpclient.InferenceServerClient(self.server.http) as client:
                    a = floats(1, 16, seed=number)
                    try:
                        return numpy.array_equal(infer(httpclient, client, "leaving", {"A": a, "B": a})["Y"], a + a)
                    except InferenceServerException as error:
                        return "Request for unknown model" in error.message() or "is not found" in error.message() or error.message()
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                before = len(self.runs())
                asked = [pool.submit(ask, number) for number in range(8)]
                until(lambda: len(self.runs()), "a run", 10, lambda count: count > before)
                status, _, reply = self.server.request("POST", "/v2/repository/models/leaving/unload", b"{}")
                self.assertEqual(status, 200, reply)
                self.assertEqual([answer.result() for answer in asked], [True] * 8)


class Traced(TensorrtCase):
    """Traces have the times of the device's events."""

    plans = {"add": (BACKEND + "max_batch_size: 1\n", plans.add().say("delay", 2000))}

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-tensorrt-traces-")
        cls.addClassCleanup(directory.cleanup)
        cls.traces = pathlib.Path(directory.name)
        cls.flags = (*cls.flags, f"--trace-config=triton,file={cls.traces / 'trace.json'}", "--trace-config=level=TIMESTAMPS",
                     "--trace-config=rate=1", "--trace-config=triton,log-frequency=1")
        super().setUpClass()

    def test_stages_are_in_order(self):
        a = floats(1, 16)
        self.assertEqual(self.ask_model("add", A=a, B=a)["Y"].tolist(), (a + a).tolist())

        def read():
            rows = [row for path in self.traces.iterdir() for row in json.loads(path.read_text() or "[]")]
            return {stamp["name"]: stamp["ns"] for row in rows for stamp in row.get("timestamps", ())}
        times = until(read, "a trace", 5, lambda times: "COMPUTE_END" in times and STAGES[-1] in times)
        order = ["COMPUTE_START", *STAGES, "COMPUTE_END"]
        self.assertEqual(sorted(order, key=lambda name: (times[name], order.index(name))), order, times)
        self.assertEqual((times["COMPUTE_INPUT_END"], times["COMPUTE_OUTPUT_START"]), (times[STAGES[1]], times[STAGES[2]]))


@unittest.skipIf(plans.VERSION < (8, 6) and not plans.IS_RTX, "TensorRT runs plans of other versions from 8.6 on")
class VersionCompatible(TensorrtCase):
    """Plans of other versions, where the backend's setting lets them bring their own code; and plug-ins that are named."""

    plans = {"old": (BACKEND, plans.add(major=7))}
    backend_flags = ("--backend-config=tensorrt,version-compatible=true", "--backend-config=tensorrt,plugins=/nowhere/plugin.so",
                     "--backend-config=tensorrt,coalesce-request-input=true", "--backend-config=tensorrt,execution-policy=BLOCKING")

    def test_serves(self):
        a = floats(2, 16)
        self.assertEqual(self.ask_model("old", A=a, B=a)["Y"].tolist(), (a + a).tolist())
        self.wait_for_line("unable to load plugin library /nowhere/plugin.so")
