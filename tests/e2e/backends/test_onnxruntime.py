"""What ONNX Runtime itself does for the onnxruntime backend: versions of it, accelerators, weights in files of their own, profiles,
runs that end when nobody waits for them, and files that it cannot load."""

import json
import pathlib
import shutil
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import onnx_faults
import onnx_model
import server as servers
import wire
from c_backend import compiled_library
from case import IS_TRITON, conch_only, needs_library
from framework import FrameworkCase, infer, parameters
from onnx_model import FLOAT
from repository import tensors
from runtime import Runtime, there

LIBRARY = "libonnxruntime.so*"
NEWEST = Runtime("onnxruntime", "ONNX Runtime", LIBRARY)
OLDEST = Runtime("onnxruntime_oldest", "an old ONNX Runtime", LIBRARY, backend="onnxruntime")
OPENVINO = Runtime("onnxruntime_openvino", "ONNX Runtime with OpenVINO", LIBRARY, backend="onnxruntime")


def magika():
    """The model, and one case of it."""
    model = there(servers.ROOT / "docs/examples/model_repository/magika/1/model.onnx", "scripts/fetch-models")
    return model, {"bytes": numpy.random.default_rng(3).integers(0, 257, (3, 2048), dtype=numpy.int32)}


def accelerated(name, **entries):
    listed = "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in entries.items())
    return f'optimization {{ execution_accelerators {{ cpu_execution_accelerator [ {{ name: "{name}"{listed} }} ] }} }}\n'


BACKEND = 'backend: "onnxruntime"\n'


@needs_library("onnxruntime")
@NEWEST.needed()
class OnnxCase(FrameworkCase):
    flags = ("--model-control-mode=explicit", "--log-verbose=1")

    def place(self, name, config=BACKEND, **files):
        self.repository.model(name, config, files={f"1/{file.replace('__', '.')}": content for file, content in files.items()})

    def load(self, name, *config, **files):
        """Loads a model with these files; (status, the error or None)."""
        self.place(name, *config, **files)
        return super().load(name)

    def ask(self, name, rows, module=httpclient, **more):
        return infer(module, self.client(module), name, {"X": numpy.asarray(rows, numpy.float32)}, **more)["Y"]


@conch_only
class Versions(OnnxCase):
    """Libraries of several versions in one process, each for its own models."""

    def answers(self, name, config):
        self.serve(name, config, model__onnx=onnx_faults.SOUND)
        for module in (httpclient, grpcclient):
            numpy.testing.assert_array_equal(self.ask(name, [[1, 2, 3, 4], [5, 6, 7, 8]], module), [[0, 2, 6, 12], [0, 6, 14, 24]])

    @OLDEST.needed()
    def test_newest_and_oldest(self):
        oldest = OLDEST.library
        self.answers("newest", BACKEND)
        self.answers("oldest", BACKEND + parameters(library=oldest))
        # A folder stands for the library in it, and the name that this parameter had first still holds.
        self.answers("folder", BACKEND + parameters(library=oldest.parent))
        self.answers("first_name", BACKEND + parameters(**{"onnxruntime-library": oldest}))
        version = oldest.name.removeprefix("libonnxruntime.so.")
        self.assertEqual(self.server.output.count(f"runs models with ONNX Runtime {version} at {oldest}"), 1)

    @OLDEST.needed()
    def test_real_model_in_both(self):
        model, feeds = magika()
        found = []
        for name, more in (("magika_newest", ""), ("magika_oldest", parameters(library=OLDEST.library))):
            self.serve(name, BACKEND + more, model__onnx=model)
            found.append(infer(httpclient, self.client(), name, feeds)["target_label"])
        numpy.testing.assert_allclose(found[0], found[1], atol=1e-5)

    def test_library_that_is_none(self):
        for path, words in (("/nonexistent/libonnxruntime.so", "cannot be loaded"),
                            (servers.built("libtriton_identity.so"), "is not ONNX Runtime")):
            error = self.refused("none", BACKEND + parameters(library=path), model__onnx=onnx_faults.SOUND)
            self.assertIn(f"ONNX Runtime library {path}: {words}", error)
            self.assertEqual(len(error.strip().splitlines()), 1, error)


@conch_only
class Accelerators(OnnxCase):
    @OPENVINO.needed()
    def test_openvino(self):
        library = parameters(library=OPENVINO.library)
        model, feeds = magika()
        configs = {
            "plain": BACKEND,
            "accelerated": BACKEND + library + accelerated("openvino"),
            "tuned": BACKEND + library + accelerated("openvino", num_of_threads=1, precision="FP32"),
        }
        found = {}
        for name, config in configs.items():
            self.serve(name, config, model__onnx=model)
            found[name] = infer(httpclient, self.client(), name, feeds)["target_label"]
        numpy.testing.assert_allclose(found["accelerated"], found["plain"], atol=1e-5)
        numpy.testing.assert_allclose(found["tuned"], found["plain"], atol=1e-5)
        self.server.wait_for_text("OpenVINO Execution Accelerator is set for 'tuned' on CPU")

    @OPENVINO.needed()
    def test_a_run_that_fails_spoils_no_other(self):
        """OpenVINO's provider keeps the shapes of a run that failed for them."""
        config = BACKEND + parameters(library=OPENVINO.library) + accelerated("openvino")
        config += tensors("input", [("X", "FP32", (-1, 4))]) + tensors("output", [("Y", "FP32", (-1, 8))])
        self.serve("pairs", config, model__onnx=onnx_model.pairs())
        for rows in (2, 3, 2, 1, 4, 3, 3, 2):
            given = numpy.ones((rows, 4), numpy.float32)
            if rows % 2:
                with self.assertRaises(httpclient.InferenceServerException) as refused:
                    self.ask("pairs", given)
                self.assertIn("onnx runtime error", str(refused.exception))
            else:
                numpy.testing.assert_array_equal(self.ask("pairs", given), numpy.full((rows // 2, 8), 0.25, numpy.float32))

    @OPENVINO.needed()
    def test_setting_that_the_accelerator_has_not(self):
        config = BACKEND + parameters(library=OPENVINO.library) + accelerated("openvino", speed="high")
        error = self.refused("strange", config, model__onnx=onnx_faults.SOUND)
        self.assertIn("onnx runtime error", error)

    def test_library_without_it(self):
        error = self.refused("without", BACKEND + accelerated("openvino"), model__onnx=onnx_faults.SOUND)
        self.assertIn("unknown Execution Accelerator 'openvino' is requested", error)
        self.assertIn("run scripts/fetch-runtime onnxruntime_openvino", error)

    def test_unknown(self):
        error = self.refused("unknown", BACKEND + accelerated("abacus"), model__onnx=onnx_faults.SOUND)
        self.assertIn("unknown Execution Accelerator 'abacus' is requested", error)


class Files(OnnxCase):
    """Files beside the model's, and those that runs write."""

    @staticmethod
    def outside(**place):
        return onnx_model.model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("rows", 4))], [onnx_model.node("Mul", ["X", "W"], ["Y"])],
                                [onnx_model.outside("W", FLOAT, (4,), **place)])

    def test_weights_beside_the_model(self):
        weights = numpy.array([9, 1, 2, 3, 4], "<f4").tobytes()
        model = self.outside(location="model.onnx.data", offset=4, length=16)
        self.assertEqual(self.load("beside", model__onnx=model, **{"model__onnx__data": weights})[0], 200)
        numpy.testing.assert_array_equal(self.ask("beside", [[1, 1, 1, 1]]), [[1, 2, 3, 4]])

    def test_weights_that_are_too_short(self):
        model = self.outside(location="model.onnx.data", offset=4, length=16)
        self.refused("short", model__onnx=model, **{"model__onnx__data": bytes(8)})

    @conch_only
    def test_profile(self):
        with tempfile.TemporaryDirectory() as folder:
            config = BACKEND + parameters(profile_file_prefix=f"{folder}/run") + "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
            self.serve("profiled", config, model__onnx=onnx_faults.SOUND)
            self.ask("profiled", [[1, 2, 3, 4]])
            self.assertEqual(self.server.request("POST", "/v2/repository/models/profiled/unload", b"{}")[0], 200)
            self.server.wait_for_text(f"onnxruntime wrote a profile to {folder}/run")
            written = list(pathlib.Path(folder).glob("run*.json"))
            self.assertEqual(len(written), 1)
            events = json.loads(written[0].read_text())
            self.assertTrue(any("Mul" in json.dumps(event) for event in events))


class Options(OnnxCase):
    """Threads, memory, rewrites of the graph, and ONNX Runtime's own keys: the answers stay, and what it refuses is told."""

    def test_answers_are_the_same(self):
        configs = {
            "no_arena": parameters(enable_mem_arena=0, enable_mem_pattern=0),
            "arena_given_back": parameters(enable_mem_arena=1, **{"memory.enable_memory_arena_shrinkage": "cpu:0"}),
            "side_by_side": parameters(execution_mode=1, inter_op_thread_count=2, intra_op_thread_count=2),
            "no_spinning": parameters(**{"session.intra_op.allow_spinning": 0, "session.set_denormal_as_zero": 1}),
            "pretransformed": parameters(**{"optimization.minimal_build_optimizations": ""}),
            **{f"level_{level}": f"optimization {{ graph {{ level: {level} }} }}\n" for level in (-1, 1, 2)},
        }
        for name, config in configs.items():
            with self.subTest(name):
                self.serve(name, BACKEND + config, model__onnx=onnx_faults.SOUND)
                for turn in range(3):
                    numpy.testing.assert_array_equal(self.ask(name, [[turn, 2, 3, 4]]), [[0, 2, 6, 12]])
        if not IS_TRITON:
            self.server.wait_for_text("Configuring memory.enable_memory_arena_shrinkage to cpu:0")

    def test_refused(self):
        for name, config in (("mode", parameters(execution_mode=2)), ("threads", parameters(intra_op_thread_count="many")),
                             ("arena", parameters(enable_mem_arena="perhaps"))):
            with self.subTest(name):
                self.refused(name, BACKEND + config, model__onnx=onnx_faults.SOUND)

    def test_refused_by_each_run(self):
        config = parameters(**{"memory.enable_memory_arena_shrinkage": "nowhere:0"})
        self.serve("shrinks_nowhere", BACKEND + config, model__onnx=onnx_faults.SOUND)
        with self.assertRaises(httpclient.InferenceServerException) as refused:
            self.ask("shrinks_nowhere", [[1, 2, 3, 4]])
        self.assertIn("onnx runtime error", str(refused.exception))


@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
class Operators(OnnxCase):
    """Operators of the user's own, from libraries that the configuration names."""

    MODEL = onnx_model.model([("X", FLOAT, ("rows", 4))], [("Y", FLOAT, ("rows", 4))],
                             [onnx_model.node("Halve", ["X"], ["Y"]) + onnx_model.part(7, "tests")]) \
        + onnx_model.part(8, onnx_model.part(1, "tests") + onnx_model.number(2, 1))

    @classmethod
    def setUpClass(cls):
        cls.library = compiled_library("libhalve.so", pathlib.Path(__file__).with_name("halve_operator.c"))
        super().setUpClass()

    @staticmethod
    def named(*libraries):
        listed = ", ".join(f'"{library}"' for library in libraries)
        return BACKEND + f"model_operations {{ op_library_filename: [ {listed} ] }}\n"

    def test_library_anywhere(self):
        # Two models: the library is opened once, and registered for each.
        for name in ("halves", "halves_too"):
            self.serve(name, self.named(self.library), model__onnx=self.MODEL)
            numpy.testing.assert_array_equal(self.ask(name, [[1, 2, 3, 4]]), [[0.5, 1, 1.5, 2]])

    @conch_only
    def test_library_beside_the_model(self):
        self.repository.model("beside_it", self.named("libhalve.so"), files={"1/model.onnx": self.MODEL, "libhalve.so": self.library})
        self.assertEqual(self.server.request("POST", "/v2/repository/models/beside_it/load", b"{}")[0], 200)
        numpy.testing.assert_array_equal(self.ask("beside_it", [[1, 2, 3, 4]]), [[0.5, 1, 1.5, 2]])

    def test_without_it(self):
        for name, config in (("unnamed", BACKEND), ("missing", self.named("/nonexistent/libhalve.so")),
                             ("no_operators", self.named(servers.built("libtriton_identity.so")))):
            error = self.refused(name, config, model__onnx=self.MODEL)
            self.assertIn("onnx runtime error", error)


ONE_INSTANCE = BACKEND + "max_batch_size: 2\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n"
FOREVER = 1e15


@conch_only
class Cancelled(OnnxCase):
    """Runs that take for ever end when all their requests are cancelled: else nothing after them would be answered."""

    def begin(self, name, turns, identity):
        """A connection on which a request was sent."""
        text = json.dumps({"id": identity, "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [turns]}]})
        link = wire.connect(self.server, timeout=120)
        self.addCleanup(link.close)
        link.sendall(wire.post(f"/v2/models/{name}/infer", text.encode(), "Content-Type: application/json"))
        return link

    def test_a_client_that_goes(self):
        self.serve("endless", ONE_INSTANCE, model__onnx=onnx_model.counting())
        for turn in range(2):
            link = self.begin("endless", FOREVER, f"gone_{turn}")
            self.server.wait_for_state(f"gone_{turn}", "EXECUTING")
            link.close()
            numpy.testing.assert_array_equal(self.ask("endless", [[3]]), [[6]])
        self.assertEqual(self.server.statistics("endless")["inference_stats"]["fail"]["count"], 2)

    def test_a_deadline(self):
        self.serve("late", ONE_INSTANCE, model__onnx=onnx_model.counting())
        with self.assertRaises(grpcclient.InferenceServerException) as late:
            self.ask("late", [[FOREVER]], grpcclient, client_timeout=0.5)
        self.assertEqual(late.exception.status(), "StatusCode.DEADLINE_EXCEEDED")
        numpy.testing.assert_array_equal(self.ask("late", [[3]]), [[6]])

    def test_all_of_a_batch(self):
        """Nobody waits for one of two requests of a batch: the other is answered. Nobody waits for both: the run ends."""
        config = ONE_INSTANCE + "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000 }\n"
        self.serve("pair", config, model__onnx=onnx_model.counting())
        links = [self.begin("pair", turns, f"one_{turns}") for turns in (300_000, 7)]
        self.server.wait_for_state("one_7", "EXECUTING")
        links[1].close()
        status, _, reply = wire.Replies(links[0]).next()
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"][0]["data"], [600_000])
        links = [self.begin("pair", FOREVER, f"both_{turn}") for turn in range(2)]
        for turn in range(2):
            self.server.wait_for_state(f"both_{turn}", "EXECUTING")
        for link in links:
            link.close()
        links = [self.begin("pair", turns, f"after_{turns}") for turns in (3, 4)]
        self.assertEqual([json.loads(wire.Replies(link).next()[2])["outputs"][0]["data"] for link in links], [[7], [8]])


class Faults(OnnxCase):
    """Files that cannot be served: an error that says so, and a server that goes on."""

    def test_malformed_files(self):
        self.assert_files_refused("onnx", onnx_faults.FILES, lambda model, content: self.place(model, model__onnx=content))
        self.serve("sound", model__onnx=onnx_faults.SOUND)
        numpy.testing.assert_array_equal(self.ask("sound", [[1, 2, 3, 4]]), [[0, 2, 6, 12]])

    def test_outputs_beyond_memory(self):
        self.serve("large", BACKEND + "max_batch_size: 0\n", model__onnx=onnx_model.zeros("n"))
        for size in (1e15, -1):
            with self.assertRaises(httpclient.InferenceServerException) as refused:
                self.ask("large", [size])
            self.assertIn("onnx runtime error", str(refused.exception))
        numpy.testing.assert_array_equal(self.ask("large", [3]), [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
