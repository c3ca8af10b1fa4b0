"""The OpenVINO backend: models of OpenVINO's own format, ONNX, TensorFlow, TensorFlow Lite and PaddlePaddle answer as OpenVINO in Python does (bit for
bit with the same batch), over HTTP and gRPC, in batches and at once; batches of fixed sizes, padding, shapes and types that the
configuration gives; configurations that are completed; files and configurations that are refused."""

import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import onnx_model
import openvino_engine as engine
import openvino_models as models
import server as servers
import wire
from case import ServerCase, conch_only, needs_library
from framework import FrameworkCase, infer, parameters
from library_places import LibraryCase
from oracle import run
from repository import tensors
from runtime import there
from waiting import until

BACKEND = 'backend: "openvino"\n'
ONE = BACKEND + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
SCALED = tensors("input", [("X", "FP32", (4,))]) + tensors("output", [("Y", "FP32", (4,))])
# Of a loop, which takes seconds.
TURNS = 500_000
MAGIKA = servers.ROOT / "docs/examples/model_repository/magika/1/model.onnx"
SILERO = servers.CACHE / "models/silero_vad/silero_vad_openvino_16k.onnx"
SAVED = servers.CACHE / "models/basic_pitch"
PICTURES = servers.CACHE / "models/rapidocr/ch_PP-OCRv4_det_infer.onnx"
LITE = servers.CACHE / "models/basic_pitch_tflite/nmp.tflite"


# So that sums are split as in the answers that they are compared with.
# Processors that compute with bf16 do so unless they are told not to, and then each batch size has its own errors.
FULL = parameters(INFERENCE_PRECISION_HINT="f32")
ONE_THREAD = parameters(INFERENCE_NUM_THREADS=1, NUM_STREAMS=1)


@needs_library("openvino")
class OpenvinoCase(FrameworkCase):
    flags = ("--model-control-mode=explicit", "--log-verbose=1")
    environment = engine.NEWEST.environment

    def place(self, name, config=BACKEND, files=None):
        """Adds a model with these files in its version's folder."""
        placed = {}
        for place, content in (models.SOUND if files is None else files).items():
            if isinstance(content, os.PathLike) and content.is_dir():
                shutil.copytree(content, self.repository.path / name / "1" / place, dirs_exist_ok=True)
            else:
                placed[f"1/{place}"] = content
        self.repository.model(name, config, files=placed)

    def load(self, name, *config_and_files):
        """(status, the error or None)"""
        self.place(name, *config_and_files)
        return super().load(name)

    def infer(self, name, feeds, module=httpclient, client=None, **more):
        return infer(module, client or self.client(module), name, feeds, **more)

    def ask(self, name, rows, module=httpclient, **more):
        return self.infer(name, {"X": numpy.asarray(rows, numpy.float32)}, module, **more)["Y"]

    def ask_at_once(self, name, clients=32, turns=20):
        """Clients of both protocols, each with rows of its own."""
        def ask(module, client, number):
            for turn in range(turns):
                rows = numpy.full((1 + turn % 3, 4), number * 100 + turn, numpy.float32)
                numpy.testing.assert_array_equal(self.infer(name, {"X": rows}, module, client)["Y"], rows * numpy.arange(4))

        self.on_threads(clients, (httpclient, grpcclient), ask)

    def counts(self, name):
        """How many requests succeeded and failed. Triton counts after it answers."""
        counts = self.server.statistics(name)["inference_stats"]
        return counts["success"]["count"], counts["fail"]["count"]


ROWS = [[1, 2, 3, 4], [5, 6, 7, 8]]
SCALED_ROWS = [[0, 2, 6, 12], [0, 6, 14, 24]]


@engine.needs_openvino
class Shapes(OpenvinoCase):
    """Small models: batches, shapes and types that the configuration gives."""

    def test_one_at_a_time(self):
        self.serve("single", BACKEND + "max_batch_size: 0\n")
        for module in (httpclient, grpcclient):
            numpy.testing.assert_array_equal(self.ask("single", ROWS, module), SCALED_ROWS)

    def test_batches_of_any_size(self):
        """Also of a model whose file has one row."""
        for name, dims in (("open", (-1, 4)), ("one_row", (1, 4))):
            self.serve(name, BACKEND + "max_batch_size: 8\n" + SCALED, models.scaled(dims))
            for module in (httpclient, grpcclient):
                for count in (1, 2, 8):
                    found = self.ask(name, (ROWS * 4)[:count], module)
                    numpy.testing.assert_array_equal(found, (SCALED_ROWS * 4)[:count])

    def test_batches_of_a_fixed_size(self):
        for name, more, dims in (("skips", parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES"), (-1, 4)), ("cannot", "", (2, 4))):
            files = models.whole_batches(2) if name == "cannot" else models.scaled(dims)
            self.serve(name, BACKEND + "max_batch_size: 2\n" + SCALED + more, files)
            expected = [[0, 2, 6, 12], [20, 30, 42, 56]] if name == "cannot" else SCALED_ROWS
            numpy.testing.assert_array_equal(self.ask(name, ROWS), expected)
            with self.assertRaises(httpclient.InferenceServerException) as refused:
                self.ask(name, ROWS[:1])
            self.assertIn("expected requests with batch size '2', got '1'... this error can be avoided by setting 'ENABLE_BATCH_PADDING'",
                          str(refused.exception))
        self.server.wait_for_text("model 'cannot' takes no batches of any size, so that each must have 2 rows")

    def test_padding(self):
        for name, files in (("padded", models.SOUND), ("padded_whole", models.whole_batches(4))):
            self.serve(name, BACKEND + "max_batch_size: 4\n" + SCALED + parameters(ENABLE_BATCH_PADDING="YES"), files)
            for module in (httpclient, grpcclient):
                for count in (1, 2, 3, 4):
                    rows = (ROWS * 2)[:count]
                    weights = numpy.arange(16).reshape(4, 4)[:count] if name == "padded_whole" else numpy.arange(4)
                    numpy.testing.assert_array_equal(self.ask(name, rows, module), rows * weights)

    def test_shapes_of_the_configuration(self):
        """With RESHAPE_IO_LAYERS the model takes the configuration's dimensions."""
        wide = tensors("input", [("X", "FP32", (-1, 4))]) + tensors("output", [("Y", "FP32", (-1, 4))])
        self.serve("reshaped", BACKEND + "max_batch_size: 0\n" + wide + parameters(RESHAPE_IO_LAYERS="yes"), models.scaled((1, 4)))
        numpy.testing.assert_array_equal(self.ask("reshaped", ROWS), SCALED_ROWS)
        error = self.refused("not_reshaped", BACKEND + "max_batch_size: 0\n" + wide, models.scaled((1, 4)))
        self.assertIn("not_reshaped", error)

    def test_types_of_the_configuration(self):
        """Values are converted where the configuration has another type than the model."""
        other = tensors("input", [("X", "INT32", (4,))]) + tensors("output", [("Y", "FP16", (4,))])
        self.serve("converted", BACKEND + "max_batch_size: 4\n" + other)
        found = self.infer("converted", {"X": numpy.asarray(ROWS, numpy.int32)})
        self.assertEqual(found["Y"].dtype, numpy.float16)
        numpy.testing.assert_array_equal(found["Y"], SCALED_ROWS)

    def test_types(self):
        for kind, long, code in (("i8", "INT8", "i1"), ("u8", "UINT8", "u1"), ("i16", "INT16", "<i2"), ("i32", "INT32", "<i4"),
                                 ("i64", "INT64", "<i8"), ("u32", "UINT32", "<u4"), ("u64", "UINT64", "<u8"), ("f16", "FP16", "<f2"),
                                 ("f64", "FP64", "<f8")):
            with self.subTest(kind):
                ir = {"INT8": "I8", "UINT8": "U8", "INT16": "I16", "INT32": "I32", "INT64": "I64", "UINT32": "U32", "UINT64": "U64"}.get(long, long)
                self.serve(f"type_{kind}", BACKEND, models.scaled(element=(kind, ir, code)))
                self.assertEqual(self.config_of(f"type_{kind}")["input"][0]["data_type"], f"TYPE_{long}")
                found = self.infer(f"type_{kind}", {"X": numpy.asarray(ROWS, code)})["Y"]
                self.assertEqual(found.dtype, numpy.dtype(code))
                numpy.testing.assert_array_equal(found, SCALED_ROWS)

    def test_wrong_requests(self):
        self.serve("strict", BACKEND + "max_batch_size: 4\n" + SCALED)
        for rows, kind, words in (([[1, 2, 3]], numpy.float32, "unexpected shape for input 'X'"),
                                  (ROWS * 3, numpy.float32, "must be <= 4"), (ROWS, numpy.int32, "data-type")):
            with self.assertRaises(httpclient.InferenceServerException) as refused:
                self.infer("strict", {"X": numpy.asarray(rows, kind)})
            self.assertIn(words, str(refused.exception))
        self.serve("loose", BACKEND + "max_batch_size: 0\n" + tensors("input", [("X", "FP32", (-1, -1))]) + tensors(
            "output", [("Y", "FP32", (-1, 4))]) + parameters(RESHAPE_IO_LAYERS="YES"))
        with self.assertRaises(httpclient.InferenceServerException) as refused:
            self.ask("loose", [[1, 2, 3]])
        self.assertIn("openvino error in", str(refused.exception))
        numpy.testing.assert_array_equal(self.ask("loose", ROWS), SCALED_ROWS)

    def test_many_clients(self):
        self.serve("busy", BACKEND + "max_batch_size: 8\ndynamic_batching { }\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n" + SCALED)

        self.ask_at_once("busy")


@engine.needs_openvino
class Several(OpenvinoCase):
    """Several runs at a time in one instance."""

    config = ONE + "max_batch_size: 4\ndynamic_batching { }\n" + SCALED

    def crowd(self, name, clients=32, turns=20):
        """Every request is answered with its own rows."""
        self.ask_at_once(name, clients, turns)
        until(lambda: self.counts(name) == (clients * turns, 0), "all of them counted")
        self.assertEqual(self.server.statistics(name)["inference_count"], sum(1 + turn % 3 for turn in range(turns)) * clients)

    def test_many_clients(self):
        for name, more in (("four", parameters(INFER_REQUESTS=4)), ("streams", parameters(NUM_STREAMS=2)), ("hinted", parameters(
                PERFORMANCE_HINT="THROUGHPUT")), ("padded", parameters(INFER_REQUESTS=3, ENABLE_BATCH_PADDING="YES"))):
            with self.subTest(name):
                self.serve(name, self.config + more)
                self.crowd(name)
        self.server.wait_for_text("instance 'four_0_0' has up to 4 runs at a time")
        self.server.wait_for_text("instance 'streams_0_0' has up to 2 runs at a time")

    def test_errors_of_a_batch(self):
        """A batch that cannot be run fails alone."""
        self.serve("exact", ONE + "max_batch_size: 2\n" + SCALED + parameters(INFER_REQUESTS=4, SKIP_OV_DYNAMIC_BATCHSIZE="YES"))
        for _ in range(10):
            with self.assertRaises(httpclient.InferenceServerException) as refused:
                self.ask("exact", ROWS[:1])
            self.assertIn("expected requests with batch size '2', got '1'", str(refused.exception))
            numpy.testing.assert_array_equal(self.ask("exact", ROWS), SCALED_ROWS)
        until(lambda: self.counts("exact") == (10, 10), "all of them counted")

    def test_unloaded_under_load(self):
        """What was taken is answered before the model goes."""
        outcomes = collections.Counter()

        def ask(number):
            with httpclient.InferenceServerClient(self.server.http) as client:
                for _ in range(40):
                    try:
                        rows = numpy.full((1, 4), number, numpy.float32)
                        numpy.testing.assert_array_equal(self.infer("leaving", {"X": rows}, client=client)["Y"], rows * numpy.arange(4))
                        outcomes["answered"] += 1
                    except httpclient.InferenceServerException as error:
                        self.assertRegex(str(error), "not ready|unknown model|not found|unavailable|no available")
                        outcomes["refused"] += 1

        for _ in range(3):
            self.serve("leaving", self.config + parameters(INFER_REQUESTS=4))
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                asked = [pool.submit(ask, number) for number in range(8)]
                before = outcomes["answered"]
                until(lambda: outcomes["answered"] - before > 20 or all(one.done() for one in asked), "some answers")
                self.assertEqual(self.server.request("POST", "/v2/repository/models/leaving/unload", b"{}")[0], 200)
                for one in asked:
                    one.result()
        self.assertEqual(sum(outcomes.values()), 3 * 8 * 40)

    @conch_only
    def test_runs_overlap(self):
        """A run that takes seconds does not keep another from being answered."""
        self.serve("slow", ONE + "max_batch_size: 0\n" + parameters(INFER_REQUESTS=2, NUM_STREAMS=2), {"model.onnx": onnx_model.counting()})
        text = json.dumps({"id": "slow", "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [TURNS]}]})
        with wire.connect(self.server, timeout=120) as link:
            link.sendall(wire.post("/v2/models/slow/infer", text.encode(), "Content-Type: application/json"))
            self.server.wait_for_state("slow", "EXECUTING")
            for _ in range(5):
                numpy.testing.assert_array_equal(self.ask("slow", [[3]]), [[6]])
            until(lambda: self.counts("slow")[0] == 5, "five of them counted")
            status, _, reply = wire.Replies(link).next()
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"][0]["data"], [2 * TURNS])

    def test_sequences_are_one_after_the_other(self):
        config = ONE + "max_batch_size: 4\nsequence_batching { }\n" + SCALED + parameters(INFER_REQUESTS=4)
        self.serve("sequence", config)
        for turn in range(3):
            found = self.ask("sequence", ROWS[:1], sequence_id=7, sequence_start=turn == 0, sequence_end=turn == 2)
            numpy.testing.assert_array_equal(found, SCALED_ROWS[:1])
        self.assertNotIn("instance 'sequence_0_0' has up to", self.server.output)

    def test_parameter(self):
        for number, value in enumerate(("0", "65", "many")):
            error = self.refused(f"requests_{number}", BACKEND + parameters(INFER_REQUESTS=value))
            self.assertIn(f"expected the parameter 'INFER_REQUESTS' to be a number from 1 to 64, got {value}", error)


# So many turns of each of its loops take a minute and more; a run can end between two loops.
LOOPS, LONG = 200, 300_000
LOOPED = {"model.onnx": onnx_model.counting(LOOPS, rows=1)}


@engine.needs_openvino
class Cancelled(OpenvinoCase):
    """Runs that are going on: how many there are, and that they end when nobody waits for them."""

    config = ONE + "max_batch_size: 0\n"

    def begin(self, name, turns, identity=""):
        """An inference that goes on: what is called to cancel it, and what becomes of it."""
        outcome = concurrent.futures.Future()
        given = grpcclient.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(numpy.asarray([[turns]], numpy.float32))
        call = self.client(grpcclient).async_infer(
            name, [given], lambda result, error: outcome.set_exception(error) if error else outcome.set_result(result.as_numpy("Y")),
            request_id=identity)
        return call, outcome

    def cancel(self, *begun):
        for call, _ in begun:
            call.cancel()
        for _, outcome in begun:
            self.assertIn("CANCELLED", str(outcome.exception(timeout=60)))

    def test_as_many_as_there_are_requests(self):
        """Of eight, one is with the instance for each request of OpenVINO's; where they are several, one more waits there."""
        for limit, pending in ((1, 7), (4, 3)):
            name = f"limit_{limit}"
            self.serve(name, self.config + parameters(INFER_REQUESTS=limit), LOOPED)
            begun = [self.begin(name, LONG) for _ in range(8)]
            self.server.wait_for_pending(name, pending)
            self.assertEqual(self.counts(name), (0, 0))
            self.assertFalse(any(outcome.done() for _, outcome in begun))
            self.cancel(*begun)
            numpy.testing.assert_array_equal(self.ask(name, [[3]]), [[3 * (LOOPS + 1)]])
            until(lambda: self.counts(name) == (1, 8), "all of them counted")

    def test_one_of_several(self):
        """The others go on."""
        self.serve("several", self.config + parameters(INFER_REQUESTS=3, NUM_STREAMS=2), LOOPED)
        for turn in range(3):
            gone, stays = self.begin("several", LONG, f"gone_{turn}"), self.begin("several", 500, f"stays_{turn}")
            self.server.wait_for_state(f"gone_{turn}", "EXECUTING")
            self.cancel(gone)
            numpy.testing.assert_array_equal(stays[1].result(timeout=120), [[500 * (LOOPS + 1)]])
        until(lambda: self.counts("several") == (3, 3), "all of them counted")

    def test_unloaded(self):
        """A model that is unloaded waits for its runs, which end when they are cancelled."""
        self.serve("unloaded", self.config + parameters(INFER_REQUESTS=2, NUM_STREAMS=2), LOOPED)
        begun = [self.begin("unloaded", LONG) for _ in range(2)]
        self.server.wait_for_pending("unloaded", 0)
        self.assertEqual(self.server.request("POST", "/v2/repository/models/unloaded/unload", b"{}")[0], 200)
        self.cancel(*begun)
        self.server.wait_for_text("successfully unloaded 'unloaded'")

    def test_open_shapes_are_not_interrupted(self):
        """OpenVINO would take shapes of the run that ended for those of the next one."""
        self.serve("open", self.config + FULL + parameters(INFER_REQUESTS=2, NUM_STREAMS=1), {"model.onnx": onnx_model.powers(200)})
        small, large = numpy.eye(8, dtype=numpy.float32), numpy.eye(384, dtype=numpy.float32)
        for _ in range(3):
            with self.client(grpcclient) as client:
                given = grpcclient.InferInput("X", large.shape, "FP32")
                given.set_data_from_numpy(large)
                numpy.testing.assert_array_equal(self.infer("open", {"X": small})["Y"], small)
                call = client.async_infer("open", [given], lambda result, error: None)
                numpy.testing.assert_array_equal(self.infer("open", {"X": small})["Y"], small)
                call.cancel()
                numpy.testing.assert_array_equal(self.infer("open", {"X": small})["Y"], small)


@engine.needs_openvino
class OpenShapes(OpenvinoCase):
    """Inputs of shapes that only the request says: those that do not fit are refused before OpenVINO runs with them, which would read what is
    not theirs, or spoil the runs of others."""

    config = ONE + "max_batch_size: 0\n" + FULL

    def refused_shape(self, name, shape):
        with self.assertRaises(httpclient.InferenceServerException) as refused:
            self.infer(name, {"X": numpy.ones(shape, numpy.float32)})
        self.assertIn("inputs of shapes that do not fit: openvino error in reshaping the model", str(refused.exception))

    def test_refused(self):
        """Also beside runs of others at the same time, each with the answer that it has alone."""
        random = numpy.random.default_rng(8)
        fits = [random.normal(size=(side, side)).astype(numpy.float32) for side in (1, 2, 3, 8)]
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "model.onnx"
            source.write_bytes(onnx_model.square())
            expected = engine.answers(source, [{"X": rows} for rows in fits], threads=1, precision="f32")
        for name, more in (("square", ""), ("square_several", parameters(INFER_REQUESTS=3))):
            self.serve(name, self.config + more, {"model.onnx": onnx_model.square()})

            def ask(number, name=name):
                for turn in range(10):
                    if number % 3 == 0:
                        self.refused_shape(name, [(3, 5), (30, 50), (1, 3), (4, 3)][turn % 4])
                    for _ in range(2):
                        self.assert_equal(self.infer(name, {"X": fits[turn % 4]}), expected[turn % 4])

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(ask, range(8)))

    def test_reads_of_what_is_not_there(self):
        self.serve("eight", self.config, {"model.onnx": onnx_model.eight()})
        for _ in range(2):
            for shape in ((2, 4), (8, 1), (1, 8), (4, 2)):
                self.assertEqual(self.infer("eight", {"X": numpy.ones(shape, numpy.float32)})["Y"].shape, (2, 4))
            for shape in ((1, 1), (3, 5), (1, 7), (300, 500)):
                self.refused_shape("eight", shape)

    def test_rows_that_do_not_fit(self):
        self.serve("pairs", self.config + tensors("input", [("X", "FP32", (-1, 4))]) + tensors("output", [("Y", "FP32", (-1, 8))]),
                   {"model.onnx": onnx_model.pairs()})
        for rows in (2, 1, 4, 3, 2):
            if rows % 2:
                self.refused_shape("pairs", (rows, 4))
            else:
                found = self.infer("pairs", {"X": numpy.ones((rows, 4), numpy.float32)})["Y"]
                numpy.testing.assert_array_equal(found, numpy.full((rows // 2, 8), 0.25, numpy.float32))


@engine.needs_openvino
class Completed(OpenvinoCase):
    """Configurations that leave things out."""

    def test_layouts_say_what_batches(self):
        self.serve("layout", BACKEND, models.scaled(layouts="[N,C]"))
        config = self.config_of("layout")
        self.assertEqual(config["max_batch_size"], 4)
        self.assertEqual(config["input"][0]["dims"], [4])
        self.assertIn("dynamic_batching", config)
        numpy.testing.assert_array_equal(self.ask("layout", ROWS), SCALED_ROWS)
        for name, layouts in (("no_layout", None), ("no_batch", "[C,H]")):
            self.serve(name, BACKEND, models.scaled(layouts=layouts))
            config = self.config_of(name)
            self.assertEqual(config["max_batch_size"], 0)
            self.assertEqual((config["input"][0]["dims"], config["output"][0]["dims"]), ([-1, 4], [-1, 4]))

    def test_batches_that_the_configuration_has(self):
        self.serve("said", BACKEND + "max_batch_size: 3\n", models.scaled((1, 4)))
        config = self.config_of("said")
        self.assertEqual((config["max_batch_size"], config["input"][0]["dims"]), (3, [4]))
        numpy.testing.assert_array_equal(self.ask("said", ROWS), SCALED_ROWS)

    @conch_only
    def test_without_a_configuration(self):
        self.serve("bare", None)
        self.assertEqual(self.config_of("bare")["backend"], "openvino")
        numpy.testing.assert_array_equal(self.ask("bare", ROWS), SCALED_ROWS)


@engine.needs_openvino
class Refused(OpenvinoCase):
    """Settings and configurations that cannot be."""

    def test_parameters(self):
        for number, (name, value, words) in enumerate((
                ("INFERENCE_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
                ("COMPILATION_NUM_THREADS", "all", "to be a non-negative number, got all"),
                ("HINT_BF16", "NO", "to be YES, got no"),
                ("NUM_STREAMS", "many", "to be either AUTO/NUMA/<int_value>, got many"),
                ("PERFORMANCE_HINT", "fast", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"))):
            error = self.refused(f"parameter_{number}", BACKEND + parameters(**{name: value}))
            self.assertIn(f"expected the parameter '{name}' {words}", error)
        self.assertIn("openvino error in", self.refused("device", BACKEND + parameters(TARGET_DEVICE="ABACUS")))
        self.assertIn("openvino error in  loading custom CPU extensions",
                      self.refused("extension", BACKEND + parameters(CPU_EXTENSION_PATH="/nonexistent/ops.so")))

    def test_parameters_that_are_served(self):
        for number, values in enumerate((
                {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}, {"PERFORMANCE_HINT": "throughput"}, {"NUM_STREAMS": "AUTO"},
                {"NUM_STREAMS": "NUMA"}, {"INFERENCE_NUM_THREADS": "1", "COMPILATION_NUM_THREADS": "1"}, {"HINT_BF16": "YES"},
                {"TARGET_DEVICE": "AUTO"})):
            self.serve(f"tuned_{number}", BACKEND + parameters(**values))
            numpy.testing.assert_array_equal(self.ask(f"tuned_{number}", ROWS), SCALED_ROWS)

    def test_configurations(self):
        unlike = tensors("input", [("X", "FP32", (5,))]) + tensors("output", [("Y", "FP32", (4,))])
        for name, config, words in (
                ("shape", "max_batch_size: 4\n" + unlike, "unlike"),
                ("input_name", "max_batch_size: 4\n" + SCALED.replace('"X"', '"A"'), "A"),
                ("output_name", "max_batch_size: 4\n" + SCALED.replace('"Y"', '"B"'), "B"),
                ("text", "max_batch_size: 4\n" + SCALED.replace("TYPE_FP32", "TYPE_STRING"), "unsupported datatype TYPE_STRING for input 'X'"),
                ("gpu", "instance_group [ { kind: KIND_GPU } ]\n", "GPU")):
            error = self.refused(f"config_{name}", BACKEND + config)
            self.assertIn(words if words != "unlike" else "config_shape", error)

    def test_no_file(self):
        self.assertIn("unable to find", self.refused("absent", BACKEND, {}))
        self.assertIn("other.xml", self.refused("other", BACKEND + 'default_model_filename: "other.xml"\n'))

    @conch_only
    def test_library_that_is_none(self):
        for path, words in (("/nonexistent/libopenvino_c.so", "cannot be loaded"), (servers.built("libtriton_identity.so"), "is not OpenVINO")):
            error = self.refused("none", BACKEND + parameters(library=path))
            self.assertIn(f"OpenVINO library {path}: {words}", error)
            self.assertNotIn("\n", error.rstrip())


@engine.needs_openvino
class Faults(OpenvinoCase):
    """Files that cannot be served: an error that says so, and a server that goes on."""

    def check(self, kind, faults, may_serve=()):
        self.assert_files_refused(kind, faults, lambda model, files: self.place(model, files=files), may_load=may_serve)

    def tearDown(self):
        self.serve("sound")
        numpy.testing.assert_array_equal(self.ask("sound", ROWS), SCALED_ROWS)

    def test_own_format(self):
        self.check("own", models.FAULTS, may_serve=("size_that_does_not_fit", "no_layers"))

    def test_onnx(self):
        self.check("onnx", {name: {"model.onnx": content} for name, content in models.ONNX_FAULTS.items()},
                   may_serve=("no_tensor_but_a_sequence", "made_twice", "without_operator_set", "cut_at_the_end",
                              "operator_set_of_the_future", "unknown_domain", "type_that_the_operator_has_not", "negative_size",
                              "size_beyond_memory"))

    def test_outputs_beyond_memory(self):
        self.serve("large", ONE + "max_batch_size: 0\n", {"model.onnx": onnx_model.zeros("n", "m")})
        for size in ((1e6, 1e6), (2e9, 2e9), (-1, 2)):
            with self.assertRaises(httpclient.InferenceServerException) as refused:
                self.ask("large", size)
            self.assertIn("openvino error in running inference", str(refused.exception))
        numpy.testing.assert_array_equal(self.ask("large", (2, 1)), [[0], [0]])

    def test_paddle(self):
        self.check("paddle", models.PADDLE_FAULTS, may_serve=models.PADDLE_SERVED)

    def test_tensorflow_lite(self):
        good = there(LITE).read_bytes()
        self.check("lite", {name: {"model.tflite": content} for name, content in models.of_format(good, b"\x1c\0\0\0TFL3").items()},
                   may_serve=models.LITE_SERVED)

    def test_tensorflow(self):
        there(SAVED)
        sound = {f"model.saved_model/{place.relative_to(SAVED)}": place for place in SAVED.rglob("*") if place.is_file()}
        for number, part in enumerate(("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")):
            faults = models.of_format((SAVED / part).read_bytes())
            self.check(f"saved_{number}", {name: sound | {f"model.saved_model/{part}": content} for name, content in faults.items()},
                       may_serve=models.SAVED_SERVED[part])


@engine.needs_openvino
class RealModels(OpenvinoCase):
    """Against OpenVINO in Python."""

    def compare(self, name, config, source, cases, file):
        """Answers of a model to each case, over both protocols, are those of OpenVINO."""
        self.serve(name, config + ONE_THREAD, {file: there(source)})
        expected = engine.answers(source, cases, threads=1)
        for module in (httpclient, grpcclient):
            for feeds, answer in zip(cases, expected):
                self.assert_equal(self.infer(name, feeds, module), answer, tolerance=0)
        return expected

    def test_magika(self):
        random = numpy.random.default_rng(3)
        cases = [{"bytes": random.integers(0, 257, (count, 2048), dtype=numpy.int32)} for count in (1, 3, 8)]
        self.compare("magika", ONE + "max_batch_size: 8\n", MAGIKA, cases, "model.onnx")
        # As many threads as the instance has CPUs: sums may be split otherwise.
        self.serve("magika_wide", BACKEND + "max_batch_size: 8\n" + FULL, {"model.onnx": MAGIKA})
        for feeds, answer in zip(cases, engine.answers(MAGIKA, cases, threads=1, precision="f32")):
            self.assert_equal(self.infer("magika_wide", feeds), answer)

    def test_magika_with_many_clients(self):
        random = numpy.random.default_rng(4)
        cases = [{"bytes": random.integers(0, 257, (1, 2048), dtype=numpy.int32)} for _ in range(32)]
        expected = engine.answers(there(MAGIKA), cases, threads=1, precision="f32")
        for name, more in (("magika_busy", ""), ("magika_several", parameters(INFER_REQUESTS=4))):
            self.serve(name, BACKEND + "max_batch_size: 16\ndynamic_batching { }\n" + FULL + more, {"model.onnx": MAGIKA})

            def ask(module, client, number, name=name):
                for _ in range(5):
                    self.assert_equal(self.infer(name, cases[number], module, client), expected[number])

            self.on_threads(32, (httpclient, grpcclient), ask)

    def test_paddle(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "model.pdmodel"
            for file, content in models.PADDLE.items():
                source.with_name(file).write_bytes(content)
            cases = [{"X": numpy.arange(4 * count, dtype=numpy.float32).reshape(count, 4)} for count in (1, 3, 8)]
            expected = engine.answers(source, cases, threads=1)
        self.serve("paddle", ONE + "max_batch_size: 8\n" + ONE_THREAD, models.PADDLE)
        for module in (httpclient, grpcclient):
            for feeds, answer in zip(cases, expected):
                self.assert_equal(self.infer("paddle", feeds, module), answer, tolerance=0)

    def test_silero(self):
        random = numpy.random.default_rng(5)
        cases = [{"input": random.normal(0, 0.1, (1, 576)).astype(numpy.float32), "state": random.normal(0, 0.1, (2, 1, 128)).astype(numpy.float32)}
                 for _ in range(4)]
        self.compare("silero", ONE + 'default_model_filename: "model.onnx"\n', SILERO, cases, "model.onnx")

    def test_pictures_of_any_size(self):
        """Height and width are the request's; those that the network cannot have are refused."""
        random = numpy.random.default_rng(7)
        sizes = ((1, 3, 64, 96), (2, 3, 96, 64), (1, 3, 64, 96), (1, 3, 32, 320))
        cases = [{"x": random.normal(0, 1, size).astype(numpy.float32)} for size in sizes]
        self.compare("pictures", ONE, PICTURES, cases, "model.onnx")
        self.compare("pictures_in_batches", ONE + "max_batch_size: 4\n", PICTURES, cases, "model.onnx")
        for name in ("pictures", "pictures_in_batches"):
            with self.assertRaises(httpclient.InferenceServerException):
                self.infer(name, {"x": numpy.zeros((1, 3, 50, 70), numpy.float32)})
            self.assert_equal(self.infer(name, cases[0]), self.infer("pictures", cases[0]), tolerance=0)

    def test_tensorflow_lite(self):
        self.transcribes("lite", LITE, "model.tflite", "serving_default_input_2:0")

    def test_saved_model(self):
        self.transcribes("saved", SAVED, "model.saved_model", "input_2", 'default_model_filename: "model.saved_model"\n')

    def transcribes(self, name, source, file, given, more=""):
        random = numpy.random.default_rng(6)
        cases = [{given: random.normal(0, 0.1, (count, 43844, 1)).astype(numpy.float32)} for count in (1, 2)]
        self.compare(name, ONE + "max_batch_size: 2\n" + more, source, cases, file)


@engine.needs_oldest
class Oldest(OpenvinoCase):
    """The oldest version that serves, beside the newest in one process."""

    def test_both(self):
        self.serve("oldest", BACKEND + "max_batch_size: 4\n" + parameters(library=engine.OLDEST.library))
        numpy.testing.assert_array_equal(self.ask("oldest", ROWS), SCALED_ROWS)
        self.serve("folder", BACKEND + parameters(library=engine.OLDEST.folder))
        numpy.testing.assert_array_equal(self.ask("folder", ROWS), SCALED_ROWS)
        if engine.NEWEST.is_there:
            self.serve("newest", BACKEND + "max_batch_size: 4\n")
            numpy.testing.assert_array_equal(self.ask("newest", ROWS), SCALED_ROWS)

    def test_types(self):
        for kind, long, ir, code in (("u8", "UINT8", "U8", "u1"), ("u64", "UINT64", "U64", "<u8"), ("f64", "FP64", "FP64", "<f8")):
            self.serve(f"old_{kind}", BACKEND + parameters(library=engine.OLDEST.folder), models.scaled(element=(kind, ir, code)))
            self.assertEqual(self.config_of(f"old_{kind}")["input"][0]["data_type"], f"TYPE_{long}")
            numpy.testing.assert_array_equal(self.infer(f"old_{kind}", {"X": numpy.asarray(ROWS, code)})["Y"], SCALED_ROWS)

    def test_padding(self):
        self.serve("old_padded", BACKEND + "max_batch_size: 4\n" + SCALED + parameters(library=engine.OLDEST.folder, ENABLE_BATCH_PADDING="YES"))
        numpy.testing.assert_array_equal(self.ask("old_padded", ROWS), SCALED_ROWS)

    def test_several(self):
        """Several runs in an instance, and shapes that do not fit."""
        self.serve("old_several", ONE + "max_batch_size: 4\ndynamic_batching { }\n" + SCALED + parameters(library=engine.OLDEST.folder, INFER_REQUESTS=4))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda _: self.ask("old_several", ROWS), range(64)):
                numpy.testing.assert_array_equal(found, SCALED_ROWS)
        self.serve("old_eight", ONE + "max_batch_size: 0\n" + parameters(library=engine.OLDEST.folder), {"model.onnx": onnx_model.eight()})
        self.assertEqual(self.ask("old_eight", ROWS).shape, (2, 4))
        with self.assertRaises(httpclient.InferenceServerException) as refused:
            self.ask("old_eight", ROWS[:1])
        self.assertIn("inputs of shapes that do not fit: openvino error in reshaping the model", str(refused.exception))

    def test_real_model(self):
        random = numpy.random.default_rng(3)
        feeds = {"bytes": random.integers(0, 257, (3, 2048), dtype=numpy.int32)}
        found = []
        for name, more in (("magika_newest", ""), ("magika_oldest", parameters(library=engine.OLDEST.folder))):
            self.serve(name, BACKEND + "max_batch_size: 8\n" + FULL + more, {"model.onnx": there(MAGIKA)})
            found.append(self.infer(name, feeds))
        self.assert_equal(found[0], found[1])


@needs_library("openvino")
@engine.needs_openvino
class Example(ServerCase):
    """The repository of docs/examples."""

    environment = engine.NEWEST.environment

    @staticmethod
    def models(repository):
        run(sys.executable, servers.ROOT / "docs/examples/openvino/make_repository.py", repository.path)

    def test_answers(self):
        rows = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        status, _, reply = self.infer(rows, model="scale")
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"][0]["data"], [0, 2, 6, 12])
        if MAGIKA.exists():
            content = {"inputs": [{"name": "bytes", "datatype": "INT32", "shape": [1, 2048], "data": [0] * 2048}]}
            status, _, reply = self.infer(content, model="magika")
            self.assertEqual(status, 200, reply)


@conch_only
@needs_library("openvino")
class Missing(LibraryCase):
    """No library anywhere: one line that says what to do."""

    runtime = engine.NEWEST

    def add_models(self, repository):
        repository.model("scaled", BACKEND, files={f"1/{name}": content for name, content in models.SOUND.items()})

    def test_says_what_to_run(self):
        self.assert_not_loaded({self.runtime.variable: ""},
                               {"scaled": "no OpenVINO library was found: run scripts/fetch-runtime openvino"})


if __name__ == "__main__":
    unittest.main()
