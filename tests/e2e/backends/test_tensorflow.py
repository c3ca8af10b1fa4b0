"""The TensorFlow backend: SavedModels and GraphDefs answer as TensorFlow in Python does (bit for bit with as many threads), over HTTP
and gRPC, in batches and at once; signatures, tags, strings and sessions; configurations that are completed; files and configurations that are refused."""

import json
import os
import shutil

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import library_places
import tensorflow_engine as engine
import tensorflow_faults
from case import IS_TRITON, conch_only, needs_library
from framework import NEAR, FrameworkCase, infer, parameters
from processes import threads_of
from repository import tensors

GRAPH = 'platform: "tensorflow_graphdef"\nbackend: "tensorflow"\n'
SAVED = 'platform: "tensorflow_savedmodel"\nbackend: "tensorflow"\n'
CPU = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
ADDSUB = tensors("input", [("INPUT0", "FP32", (16,)), ("INPUT1", "FP32", (16,))]) + tensors("output", [
    ("OUTPUT0", "FP32", (16,)), ("OUTPUT1", "FP32", (16,))])
XY = tensors("input", [("X", "FP32", (4,))]) + tensors("output", [("Y", "FP32", (4,))])


@needs_library("tensorflow")
@engine.needs_tensorflow
class TensorflowCase(FrameworkCase):
    # The number of threads decides how sums are split, so that answers are near TensorFlow's.
    oracle = engine.ORACLE
    environment = {**engine.NEWEST.environment, **engine.QUIET}

    def tolerance_of(self, data_type):
        return self.tolerance * 100 if data_type == numpy.float16 else self.tolerance


class Answers(TensorflowCase):
    """With as many threads as TensorFlow in Python had: one."""

    tolerance = 0

    @classmethod
    def models(cls, repository):
        one = parameters(TF_NUM_INTRA_THREADS="1")
        for name in ("addsub", "words", "types", "network", "fails"):
            engine.add(repository, name, SAVED + one)
        engine.add_basic_pitch(repository, SAVED + one)
        engine.add(repository, "fill", SAVED + one + "max_batch_size: 0\n" + tensors("input", [("COUNT", "INT64", (1,))])
                   + tensors("output", [("ZEROS", "FP32", (-1,))]) + CPU)
        engine.add(repository, "scalars", SAVED + one + "max_batch_size: 0\n" + tensors("input", [("N", "INT32", (1,)), ("X", "FP32", (-1,))])
                   + tensors("output", [("RANGE", "INT32", (-1,)), ("TOTAL", "FP32", (1,))]) + CPU)
        engine.add(repository, "graph", GRAPH + one + "max_batch_size: 8\n" + ADDSUB + CPU + "dynamic_batching {}\n")
        engine.add(repository, "loop", GRAPH + one + "max_batch_size: 4\n" + tensors("input", [("X", "FP32", (2,))])
                   + tensors("output", [("Y", "FP32", (2,))]))
        engine.add(repository, "split", GRAPH + one + "max_batch_size: 0\n"
                   + tensors("input", [("scope/NUMBERS", "INT32", (-1, -1)), ("TEXT", "STRING", (-1,))])
                   + tensors("output", [("scope/SPLIT", "INT32", (-1, -1)), ("scope/SPLIT:1", "INT32", (-1, -1)), ("UPPER", "STRING", (-1,))]))

    def test_basic_pitch(self):
        self.assert_answers("basic_pitch")

    def test_saved_models(self):
        for name in ("addsub", "words", "types", "network"):
            self.assert_answers(name)

    def test_graph_definitions(self):
        self.assert_answers("graph")
        self.assert_answers("split")
        self.assert_answers("loop")

    def test_scalars(self):
        for feeds, answers in engine.ORACLE.cases("scalars"):
            feeds = {**feeds, "N": feeds["N"].reshape(1)}
            answers = {**answers, "TOTAL": answers["TOTAL"].reshape(1)}
            for module, client in self.both():
                with self.subTest(client=module.__name__):
                    self.assert_equal(infer(module, client, "scalars", feeds, sorted(answers)), answers)

    def test_only_outputs_that_are_asked_for(self):
        feeds, answers = engine.ORACLE.cases("addsub")[1]
        self.assert_equal(infer(httpclient, self.http(), "addsub", feeds, ["OUTPUT1"]), {"OUTPUT1": answers["OUTPUT1"]})

    def test_strings_as_json(self):
        feeds, answers = engine.ORACLE.cases("words")[1]
        inputs = [{"name": name, "datatype": "BYTES", "shape": list(value.shape), "data": [text.decode() for text in value.ravel()]}
                  for name, value in feeds.items()]
        status, _, body = self.infer({"inputs": inputs}, model="words")
        self.assertEqual(status, 200, body)
        outputs = {entry["name"]: entry["data"] for entry in json.loads(body)["outputs"]}
        self.assertEqual(outputs["JOINED"], [text.decode() for text in answers["JOINED"].ravel()])
        self.assertEqual(outputs["LENGTH"], answers["LENGTH"].ravel().tolist())

    def test_a_run_that_fails(self):
        good, answers = engine.ORACLE.cases("fails")[0]
        for module, client in self.both():
            with self.subTest(client=module.__name__):
                with self.assertRaisesRegex(Exception, "too large for this model"):
                    infer(module, client, "fails", {"I": numpy.array([[11]], numpy.int32)})
                self.assert_equal(infer(module, client, "fails", good, ["O"]), answers)

    def test_more_memory_than_there_is(self):
        # TensorFlow waits 10 s for memory that others may give back.
        for count, text in ((1 << 44, "OOM when allocating tensor"), (1 << 62, "(?i)bytes|elements|overflow|shape"), (-1, "(?i)non-negative|>= 0")):
            with self.subTest(count=count), self.assertRaisesRegex(Exception, text):
                infer(httpclient, self.http(), "fill", {"COUNT": numpy.array([count])})
        self.assert_answers("fill")

    def test_wrong_types_and_shapes(self):
        client = self.http()
        good = engine.ORACLE.cases("addsub")[0][0]
        for feeds, text in (
                ({**good, "INPUT0": good["INPUT0"].astype(numpy.float64)}, "data-type"),
                ({**good, "INPUT0": good["INPUT0"][:, :15]}, "unexpected shape for input 'INPUT0'"),
                ({"INPUT0": good["INPUT0"]}, "expected 2 inputs but got 1"),
                ({**good, "INPUT0": numpy.zeros((3, 16), numpy.float32)}, "batch"),
                ({**good, "OTHER": good["INPUT0"]}, "OTHER")):
            with self.subTest(text=text), self.assertRaisesRegex(Exception, text):
                infer(httpclient, client, "addsub", feeds)
        self.assert_answers("addsub")


class Many(TensorflowCase):
    """Many clients at once, with all threads."""

    @classmethod
    def models(cls, repository):
        engine.add(repository, "network")
        engine.add(repository, "words")
        engine.add_basic_pitch(repository)
        engine.add(repository, "graph", GRAPH + "max_batch_size: 8\n" + ADDSUB + CPU + "dynamic_batching {}\n")
        engine.add(repository, "batched", SAVED + "max_batch_size: 64\n" + ADDSUB
                   + "instance_group [ { count: 2 kind: KIND_CPU } ]\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n",
                   source="addsub")

    def test_thirty_two_at_once(self):
        for model, source, count in (("batched", "addsub", 640), ("network", "network", 320), ("graph", "graph", 640),
                                     ("words", "words", 320), ("basic_pitch", "basic_pitch", 64)):
            self.assert_answers_at_once(model, count, source)
        # Each as if alone.
        self.assert_batched("batched")


class Sessions(TensorflowCase):
    """Signatures, tags, sessions and what they keep."""

    @classmethod
    def models(cls, repository):
        engine.add(repository, "usual", SAVED, source="scales")
        engine.add(repository, "squared", SAVED + parameters(TF_SIGNATURE_DEF="squared"), source="scales")
        engine.add(repository, "untagged", SAVED, source="tagged")
        engine.add(repository, "retagged", SAVED + parameters(TF_GRAPH_TAG="serve1"), source="tagged")
        config = GRAPH + "max_batch_size: 4\n" + tensors("input", [("X", "FP32", (2,))]) + tensors("output", [("Y", "FP32", (2,))])
        for place in ("1/init_ops.json", "init_ops.json"):
            name = "in_version" if place.startswith("1/") else "in_model"
            engine.add(repository, name, config + parameters(TF_INIT_OPS_FILE="init_ops.json"), source="variables")
            if name == "in_model":
                os.rename(repository.path / name / "1/init_ops.json", repository.path / name / "init_ops.json")
        engine.add(repository, "tuned", SAVED + "max_batch_size: 8\n" + ADDSUB + parameters(
            TF_NUM_INTRA_THREADS="1", TF_NUM_INTER_THREADS="2", TF_USE_PER_SESSION_THREADS="yes", MAX_SESSION_SHARE_COUNT="2")
            + "instance_group [ { count: 3 kind: KIND_CPU } ]\noptimization { graph { level: 1 } }\n", source="addsub")
        engine.add(repository, "on_own_thread", SAVED + parameters(TF_NUM_INTER_THREADS="-1"), source="network")
        engine.add(repository, "anywhere", SAVED + "instance_group [ { kind: KIND_MODEL } ]\n", source="network")
        keeps = SAVED + tensors("input", [("X", "FP32", (4096,))]) + tensors("output", [("BEFORE", "FP32", (4096,))])
        engine.add(repository, "keeps", keeps + CPU)
        engine.add(repository, "keeps_shared", keeps + "instance_group [ { count: 3 kind: KIND_CPU } ]\n"
                   + parameters(MAX_SESSION_SHARE_COUNT="3"), source="keeps")
        controls = 'sequence_batching { control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]\n'
        # Upstream leaves a state without an initial one as memory was: it may be no number.
        state = 'state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 2 ]\n'
        state += '  initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } ] }\n'
        engine.add(repository, "sequence", SAVED + "max_batch_size: 4\n" + tensors("input", [("X", "FP32", (2,))])
                   + tensors("output", [("TOTAL", "FP32", (2,))]) + controls + state + CPU)

    def test_signatures(self):
        self.assert_answers("usual", "scales")
        x = engine.ORACLE.cases("scales")[0][0]["X"]
        got = infer(httpclient, self.http(), "squared", {"X": x}, ["SQUARE", "SUM"])
        numpy.testing.assert_array_equal(got["SQUARE"], x * x)
        numpy.testing.assert_allclose(got["SUM"].ravel(), x.sum(1), rtol=NEAR)

    def test_tags(self):
        x = numpy.ones((2, 2), numpy.float32)
        # The only signature of the usual tag has another name than the usual one.
        for name, factor in (("untagged", 2), ("retagged", 10)):
            with self.subTest(model=name):
                numpy.testing.assert_array_equal(infer(grpcclient, self.grpc(), name, {"X": x})["Y"], x * factor)

    def test_init_ops(self):
        self.assert_answers("in_version", "variables")
        self.assert_answers("in_model", "variables")

    def test_threads(self):
        self.assert_answers("tuned", "addsub")
        # Whichever thread runs the operations, they are the same.
        self.assert_answers("on_own_thread", "network")
        self.assert_answers("anywhere", "network")

    def test_inputs_that_the_model_keeps(self):
        client = self.http()
        for last in range(20):
            x = numpy.full(4096, last + 1, numpy.float32)
            # Another request of that size, so that memory is used again.
            before = infer(httpclient, client, "keeps", {"X": x})["BEFORE"]
            numpy.testing.assert_array_equal(before, numpy.full(4096, last, numpy.float32))

    def test_shared_sessions(self):
        def ask(client, index):
            return infer(httpclient, client, "keeps_shared", {"X": numpy.full(4096, index + 1, numpy.float32)})["BEFORE"]

        seen = sorted({value for before in self.at_once(3, httpclient, ask, 60) for value in before})
        # Three sessions of their own would each have begun with zeros, so that values are of all runs but the last at least.
        self.assertGreater(len(seen), 30)
        self.assertLessEqual(set(seen), set(range(61)))

    def test_sequences_with_a_state(self):
        self.assert_accumulates("sequence", "X", "TOTAL")


class Operators(TensorflowCase):
    """An operator of the user's own, from a library that configurations name."""

    @classmethod
    def setUpClass(cls):
        cls.operators = engine.operator()
        super().setUpClass()

    def test_library(self):
        halve = tensorflow_faults.node("Y", "ConchTestsHalve", ["X"])
        graph = tensorflow_faults.graph(tensorflow_faults.placeholder(), halve)
        graph_file = {"1/model.graphdef": graph}
        saved_file = {"1/model.savedmodel/saved_model.pb": tensorflow_faults.saved(graph)}
        named = 'model_operations {{ op_library_filename: [ "{}" ] }}\n'.format
        self.repository.model("without", GRAPH + "max_batch_size: 8\n" + XY, files=graph_file)
        self.assert_refused("without", "ConchTestsHalve")
        self.repository.model("no_operators", SAVED + named("absent.so"), files=saved_file)
        self.assert_refused("no_operators", "absent.so")
        # Two models and one file: operators are the process's, and a second one of a name is in the first one's way.
        self.repository.model("beside", SAVED + named("libhalve.so"), files=saved_file | {"libhalve.so": self.operators})
        library = self.repository.path / "beside/libhalve.so"
        self.repository.model("anywhere", GRAPH + "max_batch_size: 8\n" + XY + named(library), files=graph_file)
        for name in ("beside", "anywhere"):
            self.serve(name)
            for module, client in self.both():
                with self.subTest(model=name, client=module.__name__):
                    got = infer(module, client, name, {"X": numpy.array([[1, 2, 3, 4]], numpy.float32)})
                    numpy.testing.assert_array_equal(got["Y"], [[0.5, 1, 1.5, 2]])


class Completed(TensorflowCase):
    @classmethod
    def models(cls, repository):
        engine.add(repository, "none", None, source="addsub")
        engine.add(repository, "platform", 'platform: "tensorflow_savedmodel"\n', source="words")
        engine.add(repository, "named", SAVED + 'output [ { name: "SUM" } ]\n' + parameters(TF_SIGNATURE_DEF="squared"), source="scales")
        engine.add(repository, "plain", SAVED + tensors("input", [("X", "FP32", (-1, 4))]), source="scales")
        engine.add(repository, "sized", SAVED + "max_batch_size: 32\n", source="types")

    def tensors_of(self, name):
        config = self.config_of(name)
        return config["max_batch_size"], [(entry["name"], entry["data_type"], [int(dim) for dim in entry["dims"]])
                                          for entry in config["input"] + config["output"]], "dynamic_batching" in config

    def test_what_is_left_out(self):
        floats = [("INPUT0", "TYPE_FP32", [16]), ("INPUT1", "TYPE_FP32", [16]), ("OUTPUT0", "TYPE_FP32", [16]), ("OUTPUT1", "TYPE_FP32", [16])]
        self.assertEqual(self.tensors_of("none"), (4, floats, True))
        self.assertEqual(self.config_of("none")["platform"], "tensorflow_savedmodel")
        self.assertEqual(self.tensors_of("platform"), (4, [
            ("A", "TYPE_STRING", [-1]), ("B", "TYPE_STRING", [-1]), ("JOINED", "TYPE_STRING", [-1]), ("LENGTH", "TYPE_INT32", [-1])], True))
        # Outputs that are not named are left out; one number per row is reshaped.
        self.assertEqual(self.tensors_of("named"), (4, [("X", "TYPE_FP32", [4]), ("SUM", "TYPE_FP32", [1])], True))
        self.assertEqual(self.config_of("named")["output"][0]["reshape"], {"shape": []})
        # A shape as long as the model's says that it does not batch.
        self.assertEqual(self.tensors_of("plain"), (0, [("X", "TYPE_FP32", [-1, 4]), ("Y", "TYPE_FP32", [-1, 4])], False))
        size, entries, has_scheduler = self.tensors_of("sized")
        self.assertEqual((size, len(entries), has_scheduler), (32, 24, True))
        self.assert_answers("none", "addsub")
        self.assert_answers("platform", "words")
        x = engine.ORACLE.cases("scales")[0][0]["X"]
        got = infer(httpclient, self.http(), "named", {"X": x})["SUM"]
        self.assertEqual(got.shape, (2, 1))
        numpy.testing.assert_allclose(got.ravel(), x.sum(1), rtol=NEAR)


class Refused(TensorflowCase):
    flags = ("--model-control-mode=explicit", "--load-model=good")

    @classmethod
    def models(cls, repository):
        engine.add(repository, "good", source="addsub")

    def tearDown(self):
        self.assert_answers("good", "addsub")

    def check(self, name, text, config, source, **more):
        engine.add(self.repository, name, config, source=source, **more)
        with self.subTest(model=name):
            self.assert_refused(name, text)

    def test_configurations(self):
        graph = GRAPH + "max_batch_size: 8\n" + ADDSUB
        saved = SAVED + "max_batch_size: 8\n" + ADDSUB
        for name, text, config, source in (
                ("sharing", "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model 'sharing'",
                 saved + parameters(MAX_SESSION_SHARE_COUNT="0"), "addsub"),
                ("threads", "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'threads'",
                 saved + parameters(TF_NUM_INTRA_THREADS="-2"), "addsub"),
                ("boolean", "TF_USE_PER_SESSION_THREADS", saved + parameters(TF_USE_PER_SESSION_THREADS="perhaps"), "addsub"),
                ("signature", "unable to load model 'signature', expected 'absent' signature",
                 saved + parameters(TF_SIGNATURE_DEF="absent"), "addsub"),
                ("tag", "absent", saved + parameters(TF_GRAPH_TAG="absent"), "addsub"),
                ("init_ops", "absent.json", graph + parameters(TF_INIT_OPS_FILE="absent.json"), "graph"),
                ("accelerated", "CPU Execution Accelerator is not supported in TensorFlow backend",
                 saved + 'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "tensorrt" } ] } }\n', "addsub"),
                ("operators", "libabsent.so", saved + 'model_operations { op_library_filename: [ "libabsent.so" ] }\n', "addsub"),
                ("shape", "the model expects 2 dimensions (shape [-1,16]) but the model configuration specifies 2 dimensions",
                 saved.replace("dims: [ 16 ]", "dims: [ 15 ]", 1), "addsub"),
                ("type", "configuration expects datatype TYPE_INT32 for input 'INPUT0', model provides TYPE_FP32",
                 saved.replace("TYPE_FP32", "TYPE_INT32", 1), "addsub"),
                ("input", "unexpected inference input 'OTHER', allowed inputs are: INPUT0, INPUT1",
                 saved.replace("INPUT0", "OTHER"), "addsub"),
                ("output", "unexpected inference output 'OTHER', allowed outputs are: OUTPUT0, OUTPUT1",
                 saved.replace("OUTPUT0", "OTHER"), "addsub"),
                ("graph_input", "unexpected inference input 'OTHER', allowed inputs are: INPUT0, INPUT1",
                 graph.replace("INPUT0", "OTHER"), "graph"),
                ("graph_output", "allowed outputs are: OUTPUT0, OUTPUT1", graph.replace("OUTPUT0", "OTHER"), "graph"),
                ("graph_port", "its graph has no tensor for output 'OUTPUT0:1'", graph.replace("OUTPUT0", "OUTPUT0:1"), "graph"),
                ("graph_type", "configuration expects datatype TYPE_INT32 for input 'INPUT0', model provides TYPE_FP32",
                 graph.replace("TYPE_FP32", "TYPE_INT32", 1), "graph"),
                ("graph_many", "configuration expects 3 inputs, model provides at most 2",
                 graph + tensors("input", [("INPUT2", "FP32", (16,))]), "graph")):
            self.check(name, text, config, source)

    @conch_only
    def test_gpus(self):
        # The real Triton refuses the group itself where there is no GPU.
        config = SAVED + "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n"
        engine.add(self.repository, "gpu", config, source="addsub")
        self.refused("gpu")

    def test_missing_files(self):
        for name, config in (("no_graph", GRAPH + "max_batch_size: 8\n" + ADDSUB), ("no_saved", SAVED + "max_batch_size: 8\n" + ADDSUB)):
            self.repository.model(name, config)
            with self.subTest(model=name):
                self.assert_refused(name, "unable to find" if not IS_TRITON else "")

    def test_malformed_graph_definitions(self):
        config = GRAPH + "max_batch_size: 8\n" + XY

        def place(model, content):
            self.repository.model(model, config, files={"1/model.graphdef": content})

        self.assert_files_refused("graph", tensorflow_faults.GRAPHS | {"a_saved_model": tensorflow_faults.SOUND_SAVED}, place, at_least=40)
        place("sound_graph", tensorflow_faults.SOUND)
        self.assert_relu("sound_graph")

    def test_malformed_saved_models(self):
        def place(model, content):
            self.repository.model(model, SAVED, files={"1/model.savedmodel/saved_model.pb": content})

        self.assert_files_refused("saved", tensorflow_faults.SAVED_MODELS, place, at_least=40)
        place("sound_saved", tensorflow_faults.SOUND_SAVED)
        self.assert_relu("sound_saved")

    def test_malformed_variables(self):
        folder = engine.ORACLE.folder / "network/model.savedmodel/variables"
        index, data = ((folder / f"variables.{part}").read_bytes() for part in ("index", "data-00000-of-00001"))

        def place(model, content):
            file, content = content
            engine.add(self.repository, model, SAVED, source="network")
            path = self.repository.path / model / "1/model.savedmodel" / file
            path.unlink()
            if content is not None:
                path.write_bytes(content)

        self.assert_files_refused("variables", tensorflow_faults.variables(index, data), place)

    def test_files_that_fail_later(self):
        """Models that say of themselves what is not so: refused when they are loaded, or when they run."""
        x = numpy.ones((1, 4), numpy.float32)
        for name, content in tensorflow_faults.FAILING.items():
            self.repository.model(name, SAVED + "max_batch_size: 8\n" + XY, files={"1/model.savedmodel/saved_model.pb": content})
            with self.subTest(model=name):
                status, error = self.load(name)
                if status == 200:
                    for module, client in self.both():
                        with self.assertRaises(Exception) as raised:
                            infer(module, client, name, {"X": x})
                        self.assertTrue(str(raised.exception))
                else:
                    self.assertTrue(error)
                self.assertTrue(self.server.is_alive())

    def assert_relu(self, model):
        self.serve(model)
        x = numpy.array([[-1, 0, 1, 2]], numpy.float32)
        for module, client in self.both():
            numpy.testing.assert_array_equal(infer(module, client, model, {"X": x})["Y"], x.clip(0))

    def test_files_and_folders_swapped(self):
        self.repository.model("swapped", SAVED, files={"1/model.savedmodel": tensorflow_faults.SOUND})
        self.assert_refused("swapped", "")
        engine.add(self.repository, "turned", GRAPH + "max_batch_size: 8\n" + ADDSUB, source="addsub")
        shutil.move(self.repository.path / "turned/1/model.savedmodel", self.repository.path / "turned/1/model.graphdef")
        self.assert_refused("turned", "")


@needs_library("tensorflow")
@engine.needs_tensorflow
class Libraries(library_places.AllPlaces):
    """Where TensorFlow comes from."""

    runtime, oracle = engine.NEWEST, engine.ORACLE
    others = (("/nowhere/libtensorflow_cc.so.2", "cannot be loaded"), ("libc.so.6", "is not TensorFlow"))

    def add_models(self, repository):
        engine.add(repository, "addsub")

    @conch_only
    def test_tensorflow_1_is_refused(self):
        self.assert_does_not_start("only TensorFlow 2 is served", engine.NEWEST.environment, "--backend-config=tensorflow,version=1")


class Threads(TensorflowCase):
    """TensorFlow's threads have the CPUs of the instances, and are as many."""

    cpu = min(os.sched_getaffinity(0))
    flags = (f"--host-policy=cpu,cpu-cores={cpu}-{cpu}",)

    @classmethod
    def models(cls, repository):
        engine.add(repository, "network", SAVED + "instance_group [ { count: 3 kind: KIND_CPU } ]\n")

    def test_they_have_the_cpus_of_the_instances(self):
        self.assert_answers("network")
        found = [os.sched_getaffinity(thread) for thread, name in threads_of(self.server.pid) if name.startswith("tf_Compute")]
        self.assertEqual(found, [{self.cpu}])


class Example(TensorflowCase):
    """The repository of docs/examples."""

    @classmethod
    def models(cls, repository):
        engine.make_example(repository.path)

    def test_it_answers_as_it_says(self):
        said = engine.ask_example(self.server.http)
        self.assertEqual(said.splitlines(), [
            "regions REGION [[b'Brittany'], [b'Normandy'], [b'elsewhere']]", "codes CODE [[0], [1], [2]]",
            "addsub SUM [[10.0, 11.0, 12.0, 13.0]]"])


@engine.needs_floor
class FloorCase(TensorflowCase):
    """The oldest version that is served: the same models, which the newest wrote. Versions differ in how they add up."""

    environment = {**engine.OLDEST.environment, **engine.QUIET}
    tolerance = 1e-4


class FloorAnswers(FloorCase, Answers):
    pass


class FloorMany(FloorCase, Many):
    pass


class FloorSessions(FloorCase, Sessions):
    pass


class FloorOperators(FloorCase, Operators):
    pass


class FloorRefused(FloorCase, Refused):
    pass
