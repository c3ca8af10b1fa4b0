"""The onnxruntime backend on GPUs: tensors stay on the device, options reach the execution providers, and what is missing is told.

The device is the double of the driver in src/testkit/cuda; the execution providers are those of the double in src/testkit/onnxruntime, which
has a real ONNX Runtime for CPUs compute. The library for GPUs itself is opened where `scripts/fetch-runtime onnxruntime_gpu` has fetched it;
without a GPU it says what it lacks."""

import concurrent.futures
import json
import pathlib
import re
import tempfile
import unittest

import numpy
import tritonclient.http as httpclient

import cuda
import onnx_faults
import onnx_model
import region
import server as servers
from case import conch_only, needs_library
from framework import FrameworkCase, infer, parameters
from onnx_model import BOOL, FLOAT, FLOAT16, INT32, INT64, STRING
from region import part
from repository import Repository, tensors
from runtime import Runtime
from test_batch_tensors import CONFIG as RAGGED, shown
from test_gpus import GpuCase
from waiting import until, until_equal

NEWEST = Runtime("onnxruntime", "ONNX Runtime", "libonnxruntime.so*")
REAL = Runtime("onnxruntime_gpu", "ONNX Runtime for GPUs", "libonnxruntime.so*", backend="onnxruntime")
DOUBLE = servers.built("libconch_testkit_onnxruntime.so")
BACKEND = 'backend: "onnxruntime"\n'
ON_GPU = "instance_group [ { kind: KIND_GPU count: 1 gpus: [ 0 ] } ]\n"
ROWS = tensors("input", [("X", "FP32", (4,))]) + tensors("output", [("Y", "FP32", (4,))])
# Models that do not batch.
PAIRS = BACKEND + tensors("input", [("X", "FP32", (-1, 4))]) + tensors("output", [("Y", "FP32", (-1, 8))]) + ON_GPU
SINGLE = BACKEND + tensors("input", [("X", "FP32", (-1, 4))]) + tensors("output", [("Y", "FP32", (-1, 4))])
POOL = "conch_gpu_memory_pool_used_bytes"


def on_gpu(device=0, count=1):
    return f"instance_group [ {{ kind: KIND_GPU count: {count} gpus: [ {device} ] }} ]\n"


def accelerated(*accelerators):
    """The GPU's execution accelerators: names with their parameters."""
    shown = [f'{{ name: "{name}"' + "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in entries.items()) + " }"
             for name, entries in accelerators]
    return f'optimization {{ execution_accelerators {{ gpu_execution_accelerator [ {", ".join(shown)} ] }} }}\n'


def times(rows):
    """What the model `times` answers."""
    return numpy.asarray(rows, numpy.float32) * numpy.arange(4, dtype=numpy.float32)


@conch_only
@needs_library("onnxruntime")
@NEWEST.needed()
@unittest.skipIf(cuda.IS_REAL, "has the devices and the execution providers of doubles")
@unittest.skipUnless(DOUBLE.exists(), f"{DOUBLE.name} is not built")
class OnnxGpuCase(FrameworkCase, GpuCase):
    """A server whose ONNX Runtime is the double, and what the double was asked for."""

    flags = (region.FLAG, "--model-control-mode=explicit", "--load-model=*", "--log-verbose=1", "--metrics-interval-ms=50")
    models = staticmethod(lambda repository: None)
    # Orders of the double.
    orders = ""

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-ort-double-")
        cls.addClassCleanup(directory.cleanup)
        cls.folder = pathlib.Path(directory.name)
        cls.tally = cuda.TallyFile(cls.folder)
        cls.environment = {"CONCH_ONNXRUNTIME_LIBRARY": str(DOUBLE), "CONCH_ORT_DOUBLE_LIBRARY": str(NEWEST.library),
                           "CONCH_ORT_DOUBLE_RECORD": str(cls.folder / "record"), "CONCH_ORT_DOUBLE": cls.orders,
                           **cls.tally.environment, **(cls.environment or {})}
        super().setUpClass()

    def told(self, *events):
        """What the double was asked for, of these kinds, in order."""
        path = self.folder / "record"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] in events]

    def copies(self, work):
        """Copies by where they were read and written: those of the backend, without the double's own, whose memory is pageable."""
        return {ends: count for ends, (count, _) in self.tally.during(work).items() if "pageable" not in ends}

    def place(self, name, config=BACKEND + ON_GPU, model=onnx_faults.SOUND):
        self.repository.model(name, config, files={"1/model.onnx": model})

    def load(self, name, *model):
        self.place(name, *model)
        return super().load(name)

    def send(self, model, rows, source=None, target=None):
        """The answer's status, its head and its bytes: rows in the body or in the region `source`, the output in the body or in `target`."""
        rows = numpy.asarray(rows, numpy.float32)
        tensor = {"name": "X", "datatype": "FP32", "shape": list(rows.shape), "parameters": source or {"binary_data_size": rows.nbytes}}
        output = {"name": "Y", "parameters": target or {"binary_data": True}}
        status, headers, reply = self.infer({"inputs": [tensor], "outputs": [output]}, b"" if source else rows.tobytes(), model=model)
        length = int(headers.get("inference-header-content-length", len(reply)))
        return status, json.loads(reply[:length]), reply[length:]

    def assert_times(self, model, rows, source=None, target=None, into=None):
        status, head, output = self.send(model, rows, source, target)
        self.assertEqual(status, 200, head)
        found = output if target is None else into.read(target["shared_memory_offset"], target["shared_memory_byte_size"])
        numpy.testing.assert_array_equal(numpy.frombuffer(found, numpy.float32).reshape(-1, 4), times(rows))


def placed(repository):
    fixed = onnx_model.model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("rows", 4))], [onnx_model.node("Mul", ["X", "W"], ["Y"])],
                             [onnx_model.weight("W", numpy.arange(4))])
    for device in (0, 1):
        repository.model(f"times{device}", BACKEND + "max_batch_size: 8\n" + ROWS + on_gpu(device), files={"1/model.onnx": fixed})
    repository.model("whole", PAIRS, files={"1/model.onnx": onnx_model.pairs()})


class Places(OnnxGpuCase):
    """Where inputs and outputs lie."""

    models = staticmethod(placed)
    ROWS = numpy.arange(1, 9, dtype=numpy.float32).reshape(2, 4)

    def last_run(self):
        run = self.told("run")[-1]
        return run["inputs"][0][1], run["outputs"][0][1]

    def test_bodies(self):
        for model in ("times0", "times1"):
            self.assert_times(model, self.ROWS)
            self.assertEqual(self.last_run(), ("device", "device"), "a run that is not waited for writes no main memory")
            self.assertEqual(self.told("run")[-1]["device"], int(model[-1]))

    def test_regions_are_used_in_place(self):
        given, target = self.array(32, self.ROWS.tobytes()), self.array(32)
        self.registered("in", given)
        self.registered("out", target)
        ask = lambda: self.assert_times("times0", self.ROWS, part("in", 0, 32), part("out", 0, 32), target)
        self.assertEqual(self.copies(ask), {}, "nothing but what the engine reads and writes")
        self.assertEqual(self.last_run(), ("device", "device given"))

    def test_regions_that_the_engine_cannot_use(self):
        """An address that is not aligned, and memory of another GPU: one copy on devices."""
        # Of another GPU the server makes outputs in main memory.
        ways = (((0, 8), {("device", "device"): 2}), ((1, 0), {("device", "device"): 1, ("device", "pinned"): 1, ("pinned", "device"): 1}))
        for (device, offset), copies in ways:
            with self.subTest(device=device, offset=offset):
                given, target = self.array(64, bytes(offset) + self.ROWS.tobytes(), device), self.array(64, b"\xee" * 64, device)
                self.registered("in", given)
                self.registered("out", target)
                ask = lambda: self.assert_times("times0", self.ROWS, part("in", offset, 32), part("out", offset, 32), target)
                self.assertEqual(self.copies(ask), copies)
                self.assertEqual(self.last_run(), ("device", "device"))
                self.assertEqual((target.read(0, offset), target.read(offset + 32)), (b"\xee" * offset, b"\xee" * (32 - offset)), "nothing beside it")
                self.unregister()

    def test_one_side_on_the_device(self):
        given, target = self.array(32, self.ROWS.tobytes()), self.array(32)
        self.registered("in", given)
        self.registered("out", target)
        self.assert_times("times0", self.ROWS, part("in", 0, 32))
        self.assertEqual(self.last_run(), ("device", "device"))
        self.assert_times("times0", self.ROWS, None, part("out", 0, 32), target)
        self.assertEqual(self.last_run(), ("device", "device given"))

    def test_size_that_is_known_after_the_run(self):
        rows = numpy.ones((4, 4), numpy.float32)
        expected = numpy.full((2, 8), 0.25, numpy.float32)
        status, head, output = self.send("whole", rows)
        self.assertEqual(status, 200, head)
        numpy.testing.assert_array_equal(numpy.frombuffer(output, numpy.float32).reshape(2, 8), expected)
        self.assertEqual(self.last_run(), ("device", "device"))
        target = self.array(64)
        self.registered("out", target)
        self.assertEqual(self.send("whole", rows, None, part("out", 0, 64))[0], 200)
        self.assertEqual(target.read(), expected.tobytes())

    def test_many(self):
        """Clients at once, whose rows tell them apart."""
        def ask(number):
            rows = numpy.full((1 + number % 3, 4), number, numpy.float32)
            self.assert_times(f"times{number % 2}", rows)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(64)))


class SlowCopies(OnnxGpuCase):
    """Copies that take long: nothing is read before it is there, and no answer leaves before its bytes are."""

    models = staticmethod(placed)
    settings = {"devices": 2, "copy_us": 20_000}

    def test_answers_wait_for_their_bytes(self):
        for turn, offset in enumerate((0, 8)):
            rows = numpy.arange(8, dtype=numpy.float32).reshape(2, 4) + turn
            target = self.array(64)
            self.registered("in", self.array(64, bytes(offset) + rows.tobytes()))
            self.registered("out", target)
            for source in (None, part("in", offset, 32)):
                for goal in (None, part("out", offset, 32)):
                    with self.subTest(offset=offset, source=source, goal=goal):
                        target.write(bytes(64))
                        self.assert_times("times0", rows, source, goal, target)
            self.unregister()
        self.assertEqual(self.send("whole", numpy.ones((4, 4), numpy.float32))[2], numpy.full((2, 8), 0.25, numpy.float32).tobytes())


def batching(repository):
    queue = "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 20000000 }\n"
    repository.model("batched", BACKEND + "max_batch_size: 4\n" + ROWS + queue + on_gpu(), files={"1/model.onnx": onnx_faults.SOUND})
    repository.model("ragged", RAGGED.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: [ 1 ]"), files={"1/model.onnx": shown()})


class Batches(OnnxGpuCase):
    """Requests that are run as one."""

    models = staticmethod(batching)

    def together(self, model, *asks):
        before = self.server.statistics(model)["execution_count"]
        with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
            results = [future.result() for future in [pool.submit(ask) for ask in asks]]
        self.assertEqual(self.server.statistics(model)["execution_count"] - before, 1, "one batch")
        return results

    def test_each_request_gets_its_rows(self):
        rows = [numpy.full((1, 4), number, numpy.float32) for number in range(1, 5)]
        arrays = [self.array(16, rows[0].tobytes()), self.array(16, rows[1].tobytes(), 1)]
        targets = [self.array(16, device=device) for device in (0, 1)]
        for index, (array, target) in enumerate(zip(arrays, targets)):
            self.registered(f"in{index}", array)
            self.registered(f"out{index}", target)
        there = lambda index: part(f"out{index}", 0, 16)
        self.together("batched",
                      lambda: self.assert_times("batched", rows[0], part("in0", 0, 16)),
                      lambda: self.assert_times("batched", rows[1], part("in1", 0, 16), there(0), targets[0]),
                      lambda: self.assert_times("batched", rows[2], None, there(1), targets[1]),
                      lambda: self.assert_times("batched", rows[3]))
        run = self.told("run")[-1]
        self.assertEqual((run["inputs"][0][1], run["outputs"][0][1]), ("device", "device"))

    def test_ragged(self):
        values = [[1.0], [-2.0, 3.0, -4.0], [5.0, -6.0]]

        def ask(given):
            body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, len(given)], "data": given}]}
            status, _, reply = self.infer(body, model="ragged")
            self.assertEqual(status, 200, reply)
            return {output["name"]: output["data"] for output in json.loads(reply)["outputs"]}
        found = self.together("ragged", *(lambda given=given: ask(given) for given in values))
        self.assertEqual([answer["Y"] for answer in found], [[abs(value) for value in given] for given in values])
        self.assertEqual(sorted(answer["TOLD"][0] for answer in found), [1.0, 2.0, 3.0])
        places = {name: place for name, place, _ in self.told("run")[-1]["inputs"]}
        self.assertEqual(places, {"X": "device", **{name: "host" for name in "CAZMIF"}}, "what describes a batch is made by the CPU")


TYPES = {"FP16": (FLOAT16, numpy.float16), "FP32": (FLOAT, numpy.float32), "INT32": (INT32, numpy.int32), "INT64": (INT64, numpy.int64),
         "BOOL": (BOOL, numpy.bool_), "STRING": (STRING, numpy.object_)}


def typed(repository):
    for name, (kind, _) in TYPES.items():
        config = BACKEND + tensors("input", [("X", name, (-1,))]) + tensors("output", [("Y", name, (-1,))]) + on_gpu()
        repository.model(name.lower(), config, files={"1/model.onnx": onnx_model.model(
            [("X", kind, ("n",))], [("Y", kind, ("n",))], [onnx_model.node("Identity", ["X"], ["Y"])])})
    total = onnx_model.model([("X", FLOAT, ("rows", 1)), ("S", FLOAT, ("rows", 1))], [("Y", FLOAT, ("rows", 1)), ("T", FLOAT, ("rows", 1))],
                             [onnx_model.node("Add", ["X", "S"], ["Y"]), onnx_model.node("Identity", ["Y"], ["T"])])
    state = 'state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 1 ] }'
    repository.model("total", BACKEND + "max_batch_size: 4\n" + tensors("input", [("X", "FP32", (1,))]) + tensors("output", [("Y", "FP32", (1,))])
                     + f"sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} {state} }}\n" + on_gpu(), files={"1/model.onnx": total})
    scalar = onnx_model.model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ())], [onnx_model.node("ReduceSum", ["X"], ["Y"], keepdims=0)])
    repository.model("scalar", BACKEND + on_gpu(), files={"1/model.onnx": scalar})


class Kinds(OnnxGpuCase):
    """Types of tensors, scalars, and states of sequences."""

    models = staticmethod(typed)

    def test_types(self):
        for module, client in self.both():
            for name, (_, kind) in TYPES.items():
                for count in (0, 1, 1000):
                    if name == "STRING":
                        values = numpy.array([f"{number}é".encode() for number in range(count)], numpy.object_)
                    else:
                        values = numpy.random.default_rng(count).integers(0, 2, count).astype(kind)
                    with self.subTest(module=module.__name__, type=name, count=count):
                        found = infer(module, client, name.lower(), {"X": values})["Y"]
                        self.assertEqual(list(found), list(values))
                places = self.told("run")[-1]
                where = "host" if name == "STRING" else "device"
                self.assertEqual((places["inputs"][0][1], places["outputs"][0][1].split()[0]), (where, where))

    def test_scalar(self):
        found = infer(httpclient, self.client(), "scalar", {"X": numpy.ones((3, 4), numpy.float32)})["Y"]
        self.assertEqual((found.shape, found.tolist()), ((1,), [12.0]))

    def test_states_of_sequences(self):
        client = self.client()
        sums = {}
        for step in range(5):
            for sequence in (1, 2, 3):
                sums[sequence] = sums.get(sequence, 0) + step * sequence
                found = infer(httpclient, client, "total", {"X": numpy.full((1, 1), step * sequence, numpy.float32)}, sequence_id=sequence,
                              sequence_start=step == 0, sequence_end=step == 4)["Y"]
                self.assertEqual(found.tolist(), [[sums[sequence]]])
        self.assertEqual({place for run in self.told("run") for name, place, _ in run["inputs"] if name == "S"}, {"device"})


class Options(OnnxGpuCase):
    """What the execution providers are given."""

    def providers(self, name, config):
        self.serve(name, BACKEND + ON_GPU.replace("gpus: [ 0 ]", "gpus: [ 1 ]") + config)
        self.assert_times(name, [[1, 2, 3, 4]])
        session = [session for session in self.told("session") if f"/{name}/" in session["path"]][-1]
        self.assertEqual([provider["has_stream"] for provider in session["providers"]], [True] * len(session["providers"]))
        return [(provider["name"], {key: value for key, value in provider["options"].items() if key != "has_user_compute_stream"})
                for provider in session["providers"]]

    def test_cuda_alone(self):
        self.assertEqual(self.providers("plain", ""), [("CUDA", {"device_id": "1"})])
        self.server.wait_for_text("CUDA Execution Accelerator is set for 'plain' on device 1 with options: device_id=1;has_user_compute_stream=1")

    def test_cuda(self):
        config = accelerated(("cuda", {"cudnn_conv_use_max_workspace": 0, "gpu_mem_limit": 1000, "device_id": 7, "user_compute_stream": 5}))
        config += parameters(cudnn_conv_algo_search=2, gpu_mem_limit=2000, arena_extend_strategy=1, do_copy_in_default_stream=0)
        self.assertEqual(self.providers("tuned", config), [("CUDA", {
            "device_id": "1", "cudnn_conv_use_max_workspace": "0", "cudnn_conv_algo_search": "DEFAULT", "gpu_mem_limit": "2000",
            "arena_extend_strategy": "kSameAsRequested", "do_copy_in_default_stream": "0"})])

    def test_tensorrt_before_cuda(self):
        config = accelerated(("tensorrt", {"precision_mode": "FP16", "max_workspace_size_bytes": 1 << 30, "trt_engine_cache_enable": "true"}),
                             ("cuda", {"prefer_nhwc": 1}))
        self.assertEqual(self.providers("both", config), [
            ("Tensorrt", {"device_id": "1", "trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824", "trt_engine_cache_enable": "true"}),
            ("CUDA", {"device_id": "1", "prefer_nhwc": "1"})])
        self.server.wait_for_text("TensorRT Execution Accelerator is set for 'both' on device 1")

    def test_refused(self):
        for name, config, words in (
                ("unknown", accelerated(("abacus", {})), "unknown Execution Accelerator 'abacus' is requested"),
                ("no_key", accelerated(("tensorrt", {"speed": 1})), "unknown parameter 'speed' is provided for TensorRT Execution Accelerator"),
                ("precision", accelerated(("tensorrt", {"precision_mode": "FP8"})), "unsupported precision mode 'FP8' is requested"),
                ("boolean", accelerated(("cuda", {"use_ep_level_unified_stream": "x"})), "failed to convert 'x' to boolean"),
                ("search", parameters(cudnn_conv_algo_search=3), "unsupported cudnn_conv_algo_search value '3' is requested"),
                ("own_key", accelerated(("cuda", {"speed": 1})), 'Unknown provider option: "speed"'),
                ("graph", accelerated(("tensorrt", {"trt_cuda_graph_enable": 1})), "'trt_cuda_graph_enable' is not supported"),
                ("cpu_library", parameters(library=NEWEST.library), "is a build for CPUs, without the CUDA execution provider; run "
                                                                    "scripts/fetch-runtime onnxruntime_gpu"),
                ("embedded", parameters(library="embedded"), "the engine embedded in this backend runs on CPUs only")):
            with self.subTest(name):
                error = self.refused(name, SINGLE + ON_GPU + config)
                self.assertIn(words, error)
                if name in ("own_key", "cpu_library", "embedded"):
                    self.assertIn(f"unable to load model '{name}': instance '{name}_0_0' is of KIND_GPU", error)

    def test_cpu_instances_are_left_alone(self):
        config = accelerated(("tensorrt", {"speed": 1})) + "instance_group [ { kind: KIND_CPU } ]\n"
        self.serve("on_cpu", BACKEND + config)
        self.assert_times("on_cpu", [[1, 2, 3, 4]])
        self.server.wait_for_text("'gpu_execution_accelerator' of model 'on_cpu' has no effect on CPU instances")


class Graphs(OnnxGpuCase):
    """Runs that are captured as CUDA graphs: one for each number of rows, on memory of its own."""

    SHAPES_MAX = 16

    @staticmethod
    def models(repository):
        graphs = accelerated(("cuda", {"enable_cuda_graph": 1}))
        repository.model("captured", BACKEND + "max_batch_size: 32\n" + ROWS + on_gpu() + graphs, files={"1/model.onnx": onnx_faults.SOUND})
        repository.model("open", PAIRS + graphs, files={"1/model.onnx": onnx_model.pairs()})
        # A request's elements are its input's first dimension, and no output's.
        first = onnx_model.model([("X", FLOAT, ("elements",))], [("Y", FLOAT, ("requests", 1))],
                                 [onnx_model.node("Slice", ["X", "zero", "one"], ["S"]), onnx_model.node("Unsqueeze", ["S", "one"], ["Y"])],
                                 [onnx_model.constant("zero", [0]), onnx_model.constant("one", [1])])
        one = tensors("output", [("Y", "FP32", (1,))])
        repository.model("ragged", BACKEND + "max_batch_size: 8\ninput { name: \"X\" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }\n"
                         + one + on_gpu() + graphs, files={"1/model.onnx": first})

    def graph(self):
        return self.told("run")[-1]["graph"]

    def test_each_shape_has_its_own(self):
        for turn in range(3):
            for number, rows in enumerate((1, 2, 5), 1):
                self.assert_times("captured", numpy.full((rows, 4), 10 * turn + rows, numpy.float32))
                self.assertEqual(self.graph(), [number, turn > 0])
        given, target = numpy.full((1, 4), 3, numpy.float32), self.array(16)
        self.registered("in", self.array(16, given.tobytes()))
        self.registered("out", target)
        ask = lambda: self.assert_times("captured", given, part("in", 0, 16), part("out", 0, 16), target)
        self.assertEqual(self.copies(ask), {("device", "device"): 2}, "to where the graph reads, and from where it writes")
        self.assertEqual(self.graph(), [1, True])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: self.assert_times("captured", numpy.full((1 + number % 2, 4), number, numpy.float32)), range(40)))
        # Their number is bounded.
        for rows in range(1, self.SHAPES_MAX + 6):
            self.assert_times("captured", numpy.full((rows, 4), rows, numpy.float32))
        self.assertIsNone(self.graph())
        self.assertEqual(max(run["graph"][0] for run in self.told("run") if run["graph"]), self.SHAPES_MAX)
        self.assert_times("captured", given)
        self.assertEqual(self.graph(), [1, True])
        # ONNX Runtime warns of an option of a run that is set again.
        self.assertNotIn("already exists with value", self.server.output)

    def test_sizes_that_are_not_known(self):
        status, head, output = self.send("open", numpy.ones((4, 4), numpy.float32))
        self.assertEqual(status, 200, head)
        self.assertEqual(numpy.frombuffer(output, numpy.float32).tolist(), [0.25] * 16)
        self.assertIsNone(self.graph())

    def test_ragged_inputs(self):
        status, head, output = self.send("ragged", numpy.arange(3, 8, dtype=numpy.float32).reshape(1, 5))
        self.assertEqual(status, 200, head)
        self.assertEqual(numpy.frombuffer(output, numpy.float32).tolist(), [3])
        self.assertIsNone(self.graph())


class Life(OnnxGpuCase):
    """Sessions come and go, and nothing is left."""

    # Of two instances, each with one for its runs and one for the copies of each batch in flight.
    STREAMS = 6

    def streams(self):
        """Each is a thread of the double."""
        return sum("cuda-double" in row for row in self.server.threads().splitlines())

    def used(self):
        return self.server.metrics().get(POOL, 0)

    def test_nothing_is_left(self):
        used = self.used()
        for turn in range(3):
            self.serve("comes", SINGLE + on_gpu(count=2))
            until_equal(self.streams, self.STREAMS, "the number of streams")
            for rows in (1, 3, 200):
                self.assert_times("comes", numpy.full((rows, 4), turn, numpy.float32))
            self.assertEqual(self.server.post_json("/v2/repository/models/comes/unload", {})[0], 200)
            until_equal(self.streams, 0, "the number of streams")
            ended = until(lambda: self.told("session_end")[2 * turn + 1:], "both sessions end")
            self.assertEqual([(session["live_bindings"], session["live_values"]) for session in ended], [(0, 0)])
        until_equal(self.used, used, "the bytes in use of the devices' pools")

    def test_placement_without_a_group(self):
        """With a library for GPUs a model goes there, as upstream's do; with one for CPUs it stays."""
        for name, has_provider, kind in (("gpus", True, "KIND_GPU"), ("cpus", False, "KIND_CPU")):
            with self.subTest(name), Repository() as repository:
                folder = self.folder / name
                folder.mkdir()
                servers.place(folder / "libonnxruntime.so", DOUBLE)
                if has_provider:
                    (folder / "libonnxruntime_providers_cuda.so").write_bytes(b"")
                repository.model("open", BACKEND, files={"1/model.onnx": onnx_faults.SOUND})
                environment = {**self.environment, "CONCH_ONNXRUNTIME_LIBRARY": str(folder)}
                with servers.Server(repository.path, environment=environment) as server:
                    group, = server.get_json("/v2/models/open/config")["instance_group"]
                    self.assertEqual(group["kind"], kind)


class Faults(OnnxGpuCase):
    """A run or a device that fails: only the requests concerned do."""

    orders = "room_bytes=65536"

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    def assert_fails(self, words, model, rows):
        status, head, _ = self.send(model, rows)
        self.assertEqual(status, 500, head)
        self.assertRegex(head["error"], words)

    def test_a_run_fails(self):
        self.serve("pairs", PAIRS, onnx_model.pairs())
        for rows in (2, 3, 2, 1, 4):
            given = numpy.ones((rows, 4), numpy.float32)
            if rows % 2:
                self.assert_fails("onnx runtime error", "pairs", given)
            else:
                self.assertEqual(self.send("pairs", given)[0], 200)

    def test_no_room_for_an_output(self):
        self.serve("wide", PAIRS, onnx_model.pairs())
        self.assert_fails("onnx runtime error 1: Failed to allocate memory for requested buffer of size", "wide", numpy.ones((8192, 4)))
        self.assertEqual(self.send("wide", numpy.ones((2, 4)))[0], 200)

    def test_copies_fail(self):
        rows = numpy.ones((2, 4), numpy.float32)
        # The first copies are those of inputs; the double's own follow, and those of outputs.
        copies = (("cuMemcpyAsync", 0), ("cuMemcpyAsync", 1), ("copy", 0))
        waits = (("cuEventSynchronize", 0), ("cuEventSynchronize", 1))
        for name, config, calls in (("copies", "", copies), ("waiting", parameters(batches_in_flight=1), copies + waits)):
            self.serve(name, PAIRS + config, onnx_model.pairs())
            self.assertEqual(self.send(name, rows)[0], 200)
            for call, after in calls:
                with self.subTest(name, call=call, after=after), self.faults.failing(f"{call}:{after}:1:1"):
                    self.assert_fails("^GPU 0: cu[A-Za-z]+: CUDA_ERROR_INVALID_VALUE", name, rows)
                    self.assertEqual(self.send(name, rows)[0], 200)

    def test_a_device_breaks(self):
        self.serve("near", BACKEND + on_gpu(0))
        self.serve("far", BACKEND + on_gpu(1))
        with self.faults.failing("copy:0:1:700"):
            for _ in range(3):
                self.assert_fails("CUDA_ERROR_ILLEGAL_ADDRESS|CUDA failure 700", "near", [[1, 2, 3, 4]])
            self.assert_times("far", [[1, 2, 3, 4]])
        self.assert_times("near", [[1, 2, 3, 4]])


class Missing(OnnxGpuCase):
    """A library for GPUs without NVIDIA's."""

    orders = "missing=libcublasLt.so.13"

    def test_it_is_named(self):
        error = self.refused("lacks", BACKEND + ON_GPU)
        self.assertIn("the CUDA execution provider of ONNX Runtime", error)
        self.assertIn("libcublasLt.so.13: cannot open shared object file", error)
        self.assertIn("install NVIDIA's libraries of the version that it names (CUDA and cuDNN)", error)
        self.assertEqual(len(error.strip().splitlines()), 1, error)
        error = self.refused("lacks_tensorrt", BACKEND + ON_GPU + accelerated(("tensorrt", {})))
        self.assertIn("the TensorRT execution provider of ONNX Runtime", error)

    @REAL.needed()
    def test_the_library_itself(self):
        """The real library for GPUs, over the double of the driver and without CUDA's other libraries."""
        library = parameters(library=REAL.library)
        for name, config, provider in (("real", "", "CUDA"), ("real_tensorrt", accelerated(("tensorrt", {})), "TensorRT")):
            error = self.refused(name, BACKEND + ON_GPU + library + config)
            self.assertRegex(error, rf"the {provider} execution provider of ONNX Runtime {re.escape(REAL.version)} at .* cannot be used: .*"
                                    r"lib[a-zA-Z]+\.so\.\d+: cannot open shared object file")
        self.serve("real_cpu", BACKEND + library + "instance_group [ { kind: KIND_CPU } ]\n")
        self.assert_times("real_cpu", [[1, 2, 3, 4]])


if __name__ == "__main__":
    unittest.main()
