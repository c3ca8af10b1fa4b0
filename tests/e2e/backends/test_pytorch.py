"""The PyTorch backend: TorchScript and models that AOTInductor compiled answer as PyTorch in Python does, over HTTP and gRPC, in batches and
at once; names, dictionaries, lists and strings; threads; files, configurations and requests that are refused."""

import functools
import json
import pathlib
import sys
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import cuda
import library_places
import pytorch_engine as engine
import pytorch_faults as faults
import server as servers
from case import IS_TRITON, conch_only, needs_library
from framework import FrameworkCase, infer, parameters
from oracle import run
from processes import threads_of
from repository import tensors
from test_gpus import GpuCase

SCRIPT = 'platform: "pytorch_libtorch"\nbackend: "pytorch"\n'
# The real Triton of the comparison is older than the platform `torch_aoti`; the file's name tells as well.
COMPILED = 'backend: "pytorch"\ndefault_model_filename: "model.pt2"\n'
CPU = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
PAIR, TWO = ("INPUT__0", "INPUT__1"), ("OUTPUT__0", "OUTPUT__1")
ONE_THREAD = parameters(INTRA_OP_THREAD_COUNT="1")


def config(inputs, outputs, batch=8, head=SCRIPT, more=CPU, kind="FP32", dims=(16,)):
    """A configuration; inputs and outputs are names of `kind` and `dims`, or rows (name, type, dims)."""
    def rows(entries):
        return [entry if isinstance(entry, tuple) else (entry, kind, dims) for entry in entries]
    return f"{head}max_batch_size: {batch}\n" + tensors("input", rows(inputs)) + tensors("output", rows(outputs)) + more


@needs_library("pytorch")
@engine.needs_pytorch
class PytorchCase(FrameworkCase):
    oracle = engine.ORACLE
    tolerance = 0
    environment = engine.NEWEST.environment

    def assert_fails(self, client, model, feeds, text):
        module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
        with self.assertRaisesRegex(Exception, text):
            infer(module, client, model, feeds)


@engine.needs_shim
class Scripts(PytorchCase):
    """TorchScript."""

    @classmethod
    def models(cls, repository):
        add = functools.partial(engine.add, repository)
        add("addsub", config(PAIR, TWO))
        add("reversed", config(PAIR[::-1], TWO[::-1]), "addsub")
        add("named", config(("second", "first"), ("sum", "difference")))
        add("in_order", config(("A", "B"), ("C", "D")), "named")
        add("twice", config(PAIR, ("SUM__0", "AGAIN__0")), "addsub")
        add("dictionary", config("AB", TWO))
        add("dictionary_back", config("BA", ("product", "difference")))
        add("tensor_list", config(PAIR[:1], (*TWO, ("OUTPUT__2", "FP32", (1,)))))
        add("words", config((("INPUT__0", "STRING", (-1,)), ("INPUT__1", "INT64", (1,))),
                            (("OUTPUT__0", "STRING", (-1,)), ("OUTPUT__1", "INT64", (-1,)), ("OUTPUT__2", "STRING", (-1,))), batch=0))
        kinds = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
        add("types", config([(f"IN__{at}", kind, (2,)) for at, kind in enumerate(kinds)],
                            [(f"OUT__{at}", kind, (2,)) for at, kind in enumerate(kinds)]))
        add("in_place", config(PAIR[:1], TWO[:1], dims=(4,)))
        add("transposed", config(PAIR[:1], TWO, dims=(-1, -1)))
        add("conjugated", config((("INPUT__0", "FP32", (-1, 2)),), (("OUTPUT__0", "FP32", (-1,)),)))
        add("fork", config(PAIR[:1], TWO[:1], more=CPU + parameters(INTER_OP_THREAD_COUNT="2")))
        add("scalar", config((("INPUT__0", "FP32", (-1, 4)),), (("OUTPUT__0", "FP32", (1,)),), batch=0))
        optional = config(PAIR, TWO[:1], dims=(4,)).replace('input { name: "INPUT__1"', 'input { optional: true name: "INPUT__1"')
        add("optionals", optional)
        add("resnet18", config((("image", "FP32", (3, 224, 224)),), (("classes", "FP32", (1000,)),), more=CPU + ONE_THREAD))
        for number, given in enumerate(({"INFERENCE_MODE": "false"}, {"DISABLE_OPTIMIZED_EXECUTION": "true"},
                                        {"ENABLE_JIT_EXECUTOR": "false", "ENABLE_JIT_PROFILING": "false", "ENABLE_TENSOR_FUSER": "true"},
                                        {"ENABLE_WEIGHT_SHARING": "true", "DISABLE_CUDNN": "true", "ENABLE_CACHE_CLEANING": "true"})):
            add(f"set_{number}", config(PAIR, TWO, more="instance_group [ { count: 2 kind: KIND_CPU } ]\n" + parameters(**given)), "addsub")
        add("model_kind", config(PAIR, TWO, more="instance_group [ { kind: KIND_MODEL } ]\n"), "addsub")
        controls = ('sequence_batching { control_input [ { name: "START__2" control [ { kind: CONTROL_SEQUENCE_START '
                    'fp32_false_true: [ 0, 1 ] } ] } ]\n')
        # Upstream leaves a state without an initial one as memory was: it may be no number.
        state = 'state [ { input_name: "STATE__1" output_name: "STATE__1" data_type: TYPE_FP32 dims: [ 2 ]\n'
        state += '  initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } ] }\n'
        add("accumulate", config(("X__0",), ("Y__0",), dims=(2,), batch=4, more=CPU + controls + state))
        add("renamed", config(PAIR, TWO, more=CPU + 'default_model_filename: "mine.pt"\n'), "addsub", "mine.pt")

    def test_names(self):
        for model in ("addsub", "reversed", "renamed", "model_kind"):
            self.assert_answers(model, "addsub")
        self.assert_answers("named")
        for feeds, answers in engine.ORACLE.cases("named"):
            got = infer(httpclient, self.http(), "in_order", {"A": feeds["first"], "B": feeds["second"]}, ["C", "D"])
            self.assert_equal(got, {"C": answers["sum"], "D": answers["difference"]})

    def test_a_result_under_two_names(self):
        for feeds, answers in engine.ORACLE.cases("addsub"):
            got = infer(grpcclient, self.grpc(), "twice", feeds, ["SUM__0", "AGAIN__0"])
            self.assert_equal(got, dict.fromkeys(("SUM__0", "AGAIN__0"), answers["OUTPUT__0"]))

    def test_dictionaries_and_lists(self):
        self.assert_answers("dictionary")
        self.assert_answers("tensor_list")

    @conch_only
    def test_a_dictionary_comes_back(self):
        self.assert_answers("dictionary_back")

    def test_lists_of_strings(self):
        self.assert_answers("words")
        inputs = [{"name": "INPUT__0", "datatype": "BYTES", "shape": [2], "data": ["ab", "c"]},
                  {"name": "INPUT__1", "datatype": "INT64", "shape": [1], "data": [2]}]
        status, _, body = self.infer({"inputs": inputs}, model="words")
        self.assertEqual(status, 200, body)
        self.assertEqual({entry["name"]: entry["data"] for entry in json.loads(body)["outputs"]},
                         {"OUTPUT__0": ["abab!", "cc!"], "OUTPUT__1": [5, 3], "OUTPUT__2": ["c", "ab"]})

    def test_types(self):
        self.assert_answers("types")

    def test_layouts(self):
        self.assert_answers("transposed")
        self.assert_answers("conjugated")

    @conch_only
    def test_scalars_and_inputs_that_are_left_out(self):
        for feeds, answers in engine.ORACLE.cases("scalar"):
            for module, client in self.both():
                got = infer(module, client, "scalar", feeds)["OUTPUT__0"]
                self.assertEqual(got.ravel().tolist(), answers["OUTPUT__0"].ravel().tolist())
        self.assert_answers("optionals")

    def test_models_that_write_into_their_input(self):
        """Two requests of one batch and the client's memory stay as they are."""
        rows = numpy.ones((2, 4), numpy.float32)
        for module, client in self.both():
            for _ in range(3):
                numpy.testing.assert_array_equal(infer(module, client, "in_place", {"INPUT__0": rows})["OUTPUT__0"], rows + 1)

    def test_only_outputs_that_are_asked_for(self):
        self.assert_answers("addsub", outputs=("OUTPUT__1",))

    def test_parameters(self):
        for number in range(4):
            self.assert_answers(f"set_{number}", "addsub")

    def test_fork(self):
        self.assert_answers("fork")

    def test_resnet18(self):
        self.assert_answers("resnet18")

    def test_sequences_with_a_state(self):
        self.assert_accumulates("accumulate", "X__0", "Y__0", factor=10)


BOTH = "instance_group [ { count: 2 kind: KIND_CPU } ]\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n" + ONE_THREAD


class Compiled(PytorchCase):
    """Models that AOTInductor compiled, without the shim."""

    environment = {**PytorchCase.environment, "CONCH_PYTORCH_SHIM": "/nowhere/libconch_torch.so"}

    @classmethod
    def models(cls, repository):
        add = functools.partial(engine.add, repository)
        add("addsub_compiled", config(PAIR, TWO, head=COMPILED))
        add("resnet18_compiled", config((("ARGS[0]", "FP32", (3, 224, 224)),), (("RESULT", "FP32", (1000,)),), head=COMPILED,
                                        more=CPU + ONE_THREAD))
        add("nested", config(("KWARGS[third]", "ARGS[0]", "ARGS[1]", "ARGS[2][y]", "ARGS[2][x]"),
                             ("RESULT[pair][1]", "RESULT[sum]", "RESULT[pair][0]", "RESULT[all][0]"), head=COMPILED, dims=(4,)))
        add("transposed_compiled", config(PAIR[:1], TWO, batch=0, head=COMPILED, dims=(-1, -1, -1)))
        add("open", config(PAIR, TWO, batch=128, head=COMPILED, dims=(-1,)), "addsub_compiled")
        add("shared", config(PAIR, TWO, head=COMPILED, more=BOTH + parameters(ENABLE_WEIGHT_SHARING="true", INFERENCE_MODE="true")),
            "addsub_compiled")
        if not IS_TRITON:
            add("platform", config(PAIR, TWO, head='platform: "torch_aoti"\n'), "addsub_compiled")
            add("found", config(PAIR, TWO, head=""), "addsub_compiled")

    def test_names(self):
        self.assert_answers("addsub_compiled")
        self.assert_answers("shared", "addsub_compiled")
        self.assert_answers("nested")

    def test_layouts(self):
        self.assert_answers("transposed_compiled")

    @conch_only
    def test_platforms(self):
        self.assert_answers("platform", "addsub_compiled")
        self.assert_answers("found", "addsub_compiled")
        for name in ("platform", "found"):
            self.assertEqual(json.loads(self.server.request("GET", f"/v2/models/{name}/config")[2])["platform"], "torch_aoti")

    def test_resnet18(self):
        self.assert_answers("resnet18_compiled")

    def test_shapes_that_it_was_not_compiled_for(self):
        feeds = engine.ORACLE.cases("addsub_compiled")[0][0]
        for module, client in self.both():
            for wrong in ({name: value[:, :15] for name, value in feeds.items()}, {name: value.repeat(65, 0) for name, value in feeds.items()},
                          {"INPUT__0": feeds["INPUT__0"], "INPUT__1": feeds["INPUT__1"][:, :3]}):
                with self.subTest(client=module.__name__):
                    self.assert_fails(client, "open", wrong, "PyTorch execute failure")
        self.assert_answers("open", "addsub_compiled")

    @conch_only
    def test_scripts_want_the_shim(self):
        engine.add(self.repository, "script", config(PAIR, TWO), "addsub")
        self.assert_refused("script", "/nowhere/libconch_torch.so")


@engine.needs_shim
class AtOnce(PytorchCase):
    @classmethod
    def models(cls, repository):
        engine.add(repository, "addsub", config(PAIR, TWO, batch=64, more=BOTH))
        engine.add(repository, "addsub_compiled", config(PAIR, TWO, batch=64, head=COMPILED, more=BOTH))
        engine.add(repository, "dictionary", config("AB", TWO, batch=64, more=BOTH))
        engine.add(repository, "words_batched", config((("INPUT__0", "STRING", (1,)),), (("OUTPUT__0", "STRING", (1,)),), batch=64,
                                                       more=BOTH).replace("dims: [ 1 ]", "dims: [ 1 ] reshape { shape: [ ] }"))
        for name, head, image, classes in (("resnet18", SCRIPT, "image", "classes"), ("resnet18_compiled", COMPILED, "ARGS[0]", "RESULT")):
            engine.add(repository, name, config(((image, "FP32", (3, 224, 224)),), ((classes, "FP32", (1000,)),), head=head, more=BOTH))

    @staticmethod
    def words_in_rows():
        """The model's strings are a list; in batches each is a row."""
        return [tuple({name: value.reshape(-1, 1) for name, value in side.items()} for side in case)
                for case in engine.ORACLE.cases("words_batched")]

    def test_strings_in_batches(self):
        self.assert_answers("words_batched", cases=self.words_in_rows())

    def test_thirty_two_at_once(self):
        for model, count in (("addsub", 640), ("addsub_compiled", 640), ("dictionary", 320), ("resnet18", 64), ("resnet18_compiled", 64)):
            self.assert_answers_at_once(model, count)
        self.assert_answers_at_once("words_batched", 320, cases=self.words_in_rows())
        # Each as if alone.
        for model in ("addsub", "addsub_compiled"):
            self.assert_batched(model)


@engine.needs_shim
class Threads(PytorchCase):
    """An instance computes with as many threads as it is told."""

    flags = ("--model-control-mode=explicit",)

    @conch_only
    def test_as_many_as_it_is_told(self):
        image = engine.ORACLE.cases("resnet18")[0][0]["image"]
        for count in (1, 4):
            name = f"with_{count}"
            engine.add(self.repository, name, config((("image", "FP32", (3, 224, 224)),), (("classes", "FP32", (1000,)),),
                                                     more=CPU + parameters(INTRA_OP_THREAD_COUNT=str(count))), "resnet18")
            self.serve(name)
            infer(httpclient, self.http(), name, {"image": image})
            # An engine's threads have the name of the instance's own, which started them.
            self.assertEqual(sum(thread.startswith(name) for _, thread in threads_of(self.server.pid)), count)


@engine.needs_shim
class Refused(PytorchCase):
    """Files, configurations and requests that are refused, while others are served."""

    flags = ("--model-control-mode=explicit", "--load-model=addsub", "--load-model=fails", "--load-model=large", "--load-model=open",
             "--load-model=number", "--load-model=beyond", "--load-model=scalar", "--load-model=typed")

    @classmethod
    def models(cls, repository):
        engine.add(repository, "addsub", config(PAIR, TWO))
        engine.add(repository, "fails", config(PAIR[:1], TWO[:1], dims=(-1, -1)))
        engine.add(repository, "large", config((("INPUT__0", "INT64", (1,)),), (("OUTPUT__0", "FP32", (-1,)),), batch=0))
        engine.add(repository, "open", config(PAIR, TWO, dims=(-1,)), "addsub")
        engine.add(repository, "number", config(PAIR[:1], TWO[:1]))
        engine.add(repository, "beyond", config(PAIR, ("OUTPUT__0", "OUTPUT__7")), "addsub")
        engine.add(repository, "scalar", config(PAIR[:1], TWO[:1], dims=(4,)))
        engine.add(repository, "typed", config(PAIR, TWO).replace("output { name: \"OUTPUT__1\" data_type: TYPE_FP32",
                                                                  "output { name: \"OUTPUT__1\" data_type: TYPE_INT32"), "addsub")

    def test_exceptions_in_forward(self):
        good, answers = engine.ORACLE.cases("fails")[0]
        for module, client in self.both():
            with self.subTest(client=module.__name__):
                self.assert_fails(client, "fails", {"INPUT__0": -good["INPUT__0"]}, "no negative numbers")
                self.assert_fails(client, "fails", {"INPUT__0": good["INPUT__0"] * 0}, "(?s)PyTorch execute failure.*cholesky")
                self.assert_fails(client, "fails", {"INPUT__0": numpy.ones((1, 2, 5), numpy.float32)}, "PyTorch execute failure")
                self.assert_equal(infer(module, client, "fails", good, ["OUTPUT__0"]), answers)

    def test_wrong_types_and_shapes(self):
        client = self.http()
        good = engine.ORACLE.cases("addsub")[0][0]
        for model, feeds, text in (
                ("addsub", {**good, "INPUT__0": good["INPUT__0"].astype(numpy.float64)}, "data-type"),
                ("addsub", {**good, "INPUT__0": good["INPUT__0"][:, :15]}, "unexpected shape for input 'INPUT__0'"),
                ("addsub", {"INPUT__0": good["INPUT__0"]}, "expected 2 inputs but got 1"),
                ("addsub", {**good, "INPUT__0": numpy.zeros((3, 16), numpy.float32)}, "batch"),
                ("addsub", {**good, "OTHER": good["INPUT__0"]}, "OTHER"),
                ("open", {**good, "INPUT__1": good["INPUT__1"][:, :3]}, "(?s)PyTorch execute failure.*size of tensor")):
            with self.subTest(text=text):
                self.assert_fails(client, model, feeds, text)
        self.assert_answers("addsub")

    def test_outputs_that_do_not_fit(self):
        client = self.http()
        pair = engine.ORACLE.cases("addsub")[0][0]
        one = {"INPUT__0": pair["INPUT__0"]}
        for model, feeds, text in (
                ("number", one, "It should not be a Scalar"), ("beyond", pair, "refers to an output index which doesn't exist"),
                ("scalar", {"INPUT__0": pair["INPUT__0"][:, :4]}, "scalar which is not supported"),
                ("typed", pair, "configuration expects datatype TYPE_INT32 for output 'OUTPUT__1', model provides TYPE_FP32")):
            with self.subTest(model=model):
                self.assert_fails(client, model, feeds, text)

    def test_outputs_beyond_memory(self):
        for module, client in self.both():
            for size in (2 ** 50, 2 ** 62, -1):
                with self.subTest(size=size, client=module.__name__):
                    self.assert_fails(client, "large", {"INPUT__0": numpy.array([size])}, "PyTorch execute failure")
            numpy.testing.assert_array_equal(infer(module, client, "large", {"INPUT__0": numpy.array([3])})["OUTPUT__0"], [1, 1, 1])

    def test_configurations(self):
        good = config(PAIR, TWO)
        for name, text, given, source in (
                ("one_input", "configuration expects 1 inputs, model provides 2", config(PAIR[:1], TWO), "addsub"),
                ("beyond_the_inputs", "input 'INPUT__2' is argument 2, and the model has 2", config(("INPUT__0", "INPUT__2"), TWO), "addsub"),
                ("twice", "and so is another input", config(("A__0", "B__0"), TWO), "addsub"),
                ("type", "unsupported datatype TYPE_UINT32 for input 'INPUT__0'", good.replace("TYPE_FP32", "TYPE_UINT32", 1), "addsub"),
                ("strings", "only supports 1 dimensional List of String as input", config(
                    (("INPUT__0", "STRING", (1,)),), (("OUTPUT__0", "STRING", (1,)),)), "words_batched"),
                ("argument", "An input of type 'int' was detected in the model", config(PAIR, TWO[:1]), "argument"),
                ("parameter", "INFERENCE_MODE", good + parameters(INFERENCE_MODE="perhaps"), "addsub"),
                ("threads", "INTRA_OP_THREAD_COUNT", good + parameters(INTRA_OP_THREAD_COUNT="many"), "addsub"),
                ("compiled_input", "is not found in model input map. It has: ARGS[0], ARGS[1]",
                 config(("INPUT__0", "OTHER"), TWO, head=COMPILED), "addsub_compiled"),
                ("compiled_output", "is not found in model output map. It has: RESULT[0], RESULT[1]",
                 config(PAIR, ("OUTPUT__0", "OTHER"), head=COMPILED), "addsub_compiled"),
                ("compiled_count", "configuration expects 1 inputs, but model expects 2 inputs",
                 config(PAIR[:1], TWO, head=COMPILED), "addsub_compiled"),
                ("compiled_size", "unmatched dim value at 1, expected: 16, but got: 15",
                 config((("INPUT__0", "FP32", (16,)), ("INPUT__1", "FP32", (15,))), TWO, head=COMPILED), "addsub_compiled"),
                ("compiled_rank", "expected ndim 2 but got 3", config(PAIR, TWO, head=COMPILED, dims=(16, 1)), "addsub_compiled"),
                ("compiled_type", "unmatched dtype", config(PAIR, TWO, head=COMPILED, kind="FP64"), "addsub_compiled"),
                ("compiled_strings", "unsupported datatype TYPE_STRING for input 'INPUT__1'", config(
                    ("INPUT__0", ("INPUT__1", "STRING", (1,))), TWO, head=COMPILED), "addsub_compiled")):
            engine.add(self.repository, name, given, source)
            with self.subTest(model=name):
                self.assert_refused(name, text)

    @conch_only
    def test_gpus_and_models_in_python(self):
        # The real Triton refuses the group itself where there is no GPU, and hands models in Python to a backend of theirs.
        engine.add(self.repository, "gpu", config(PAIR, TWO, more="instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n"), "addsub")
        self.refused("gpu")
        self.repository.model("python", config(PAIR, TWO), files={"1/model.py": b"pass\n"})
        self.assert_refused("python", 'give it a TritonPythonModel and backend: "python"')

    def test_missing_files(self):
        for name, head in (("no_script", SCRIPT), ("no_compiled", COMPILED)):
            self.repository.model(name, config(PAIR, TWO, head=head))
            with self.subTest(model=name):
                self.assert_refused(name, "unable to find" if not IS_TRITON else "")

    def check_files(self, file, files, given):
        def place(model, content):
            self.repository.model(model, given, files={f"1/{file}": content})

        self.assert_files_refused(file, files, place)
        self.assert_answers("addsub")

    def test_malformed_scripts(self):
        self.check_files("model.pt", faults.script_files(), config(PAIR[:1], TWO[:1]))

    def test_malformed_packages(self):
        self.check_files("model.pt2", faults.compiled_files(), config(PAIR, TWO, head=COMPILED))


@conch_only
@engine.needs_shim
@unittest.skipIf(cuda.IS_REAL, "has the devices of the double")
class OnGpus(PytorchCase, GpuCase):
    """Instances on GPUs with a torch that is built for CPUs, which is what is fetched."""

    flags = ("--model-control-mode=explicit", "--load-model=open")

    @classmethod
    def models(cls, repository):
        engine.add(repository, "open", config(PAIR, TWO, more=""), "addsub")
        engine.add(repository, "gpu", config(PAIR, TWO, more=CPU.replace("KIND_CPU", "KIND_GPU")), "addsub")
        engine.add(repository, "compiled_gpu", config(("ARGS[0]",), ("RESULT",), head=COMPILED, more=CPU.replace("KIND_CPU", "KIND_GPU")), "resnet18_compiled")

    def test_what_is_missing_is_told(self):
        error = self.refused("gpu")
        self.assertIn("unable to load model 'gpu': instance 'gpu_0_0' is of KIND_GPU: ", error)
        self.assertIn("is of a build of torch for CPUs: there is no libtorch_cuda.so beside it", error)
        self.assertIn("or set kind: KIND_CPU in the model's instance_group", error)
        self.assertEqual(len(error.strip().splitlines()), 1, error)
        self.assertIn("models compiled by AOTInductor run on CPUs only here", self.refused("compiled_gpu"))

    def test_without_a_group_it_stays_on_cpus(self):
        group, = self.config_of("open")["instance_group"]
        self.assertEqual(group["kind"], "KIND_CPU")
        good, answers = engine.ORACLE.cases("addsub")[0]
        self.assert_equal(infer(httpclient, self.http(), "open", good, list(TWO)), answers)


@needs_library("pytorch")
@engine.needs_pytorch
class Libraries(library_places.AllPlaces):
    """Where PyTorch comes from."""

    runtime, oracle = engine.NEWEST, engine.ORACLE
    others = (("/nowhere/libtorch_cpu.so", "cannot open /nowhere/libtorch_cpu.so"),
              ("libc.so.6", "the torch library has no function aoti_torch_empty_strided"))

    def add_models(self, repository):
        engine.add(repository, "addsub", config(PAIR, TWO))

    @conch_only
    def test_a_shim_of_another_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            for version, text in (("2.10.0", "was compiled for torch 2.10.0, and the torch library is"), ("x", "was compiled for torch x")):
                shim = pathlib.Path(folder, "libconch_torch.so")
                shim.write_bytes(b"conch-torch-shim 2 for torch " + version.encode() + b"\0")
                with self.subTest(version=version):
                    self.assert_does_not_start(text, {**engine.NEWEST.environment, "CONCH_PYTORCH_SHIM": str(shim)})
            self.assert_does_not_start("cannot read the shim /nowhere/shim.so", engine.NEWEST.environment,
                                       "--backend-config=pytorch,shim=/nowhere/shim.so")

    @engine.needs_shim
    def test_a_setting_names_a_folder(self):
        super().test_a_setting_names_a_folder()


@engine.needs_shim
class Example(PytorchCase):
    """The repository that docs/examples/pytorch makes, as far as a Python without torch makes it."""

    @staticmethod
    def models(repository):
        # Without what is installed, of which torch may be.
        run(sys.executable, "-S", servers.ROOT / "docs/examples/pytorch/make_repository.py", repository)

    def test_sum_and_difference(self):
        feeds = {"INPUT__0": numpy.array([[1, 2, 3, 4]], numpy.float32), "INPUT__1": numpy.array([[4, 3, 2, 1]], numpy.float32)}
        for module, client in self.both():
            got = infer(module, client, "sum_script", feeds)
            self.assertEqual({name: value.tolist() for name, value in got.items()},
                             {"SUM__0": [[5, 5, 5, 5]], "DIFFERENCE__1": [[-3, -1, 1, 3]]})


@engine.needs_floor
class FloorCase(PytorchCase):
    """The oldest version that is served: the same models, which the newest wrote. Versions differ in how they add up."""

    environment = engine.OLDEST.environment
    tolerance = 1e-4


class FloorScripts(FloorCase, Scripts):
    pass


class FloorCompiled(FloorCase, Compiled):
    environment = {**FloorCase.environment, "CONCH_PYTORCH_SHIM": "/nowhere/libconch_torch.so"}


class FloorAtOnce(FloorCase, AtOnce):
    pass


class FloorRefused(FloorCase, Refused):
    pass


if __name__ == "__main__":
    unittest.main()
