"""The dali backend: serialised pipelines answer as DALI itself does, bit for bit, over HTTP and gRPC, one by one, in batches of requests
with different shapes, and at once; configurations that are completed; pipelines in Python; bad images, which fail alone; files and
configurations that are refused."""

import concurrent.futures
import os
import pathlib
import queue
import random
import shutil
import struct
import sys
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import server as servers
from case import conch_only, needs_library
from dali_models import NEWEST, OLDEST
from framework import FrameworkCase, infer, parameters
from library_places import LibraryCase
from oracle import run
from processes import threads_of
from waiting import until_equal

MAKE = servers.ROOT / "docs/examples/dali/make_repository.py"
CPU = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
VECTOR = "data_type: TYPE_FP32 dims: [ -1 ]"
ARITHMETIC = (f'input [ {{ name: "A" {VECTOR} allow_ragged_batch: true }}, {{ name: "B" {VECTOR} allow_ragged_batch: true }} ]\n'
              f'output [ {{ name: "SUM" {VECTOR} }}, {{ name: "PRODUCT" {VECTOR} }} ]\n')
IDENTITY = b"""
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@pipeline_def(batch_size=4, num_threads=1, device_id=None, output_dtype=[types.UINT8], output_ndim=[1])
def pipeline():
    return fn.external_source(device="cpu", name="IN", dtype=types.UINT8, ndim=1)
"""


def config(more="", extra=""):
    return f'backend: "dali"\n{CPU}{more}{extra}'


@needs_library("dali")
@NEWEST.needed()
class DaliCase(FrameworkCase):
    dali = NEWEST
    environment = NEWEST.environment

    def assert_same(self, got, names, expected):
        """Outputs in order, bit for bit."""
        self.assert_equal({name: got[name] for name in names}, dict(zip(names, expected)), tolerance=0)


NAMES = ("jpeg", "normalise", "audio", "arithmetic", "steps")


class Answers(DaliCase):
    @classmethod
    def models(cls, repository):
        for name in NAMES:
            more = ARITHMETIC if name == "arithmetic" else ""
            repository.model(name, config(more), files={"1/model.dali": cls.dali.pipeline(name)})
        repository.model("waits", config("max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 8 ] }\n"),
                         files={"1/model.dali": cls.dali.pipeline("jpeg")})
        repository.model("two", 'backend: "dali"\ninstance_group [ { kind: KIND_CPU count: 2 } ]\n', files={"1/model.dali": cls.dali.pipeline("jpeg")})
        repository.model("unbatched", config("max_batch_size: 0\n"), files={"1/model.dali": cls.dali.pipeline("normalise")})
        split = parameters(split_along_outer_axis="OTHER:ROWS")
        repository.model("split", config(split), files={"1/model.dali": cls.dali.pipeline("rows")})
        repository.model("threads", config(parameters(num_threads=3), 'max_batch_size: 8\n'
                                           'default_model_filename: "mine.dali"\noutput [ { name: "IMAGE" dims: [ 48, 64, 3 ] } ]\n'),
                         files={"1/mine.dali": cls.dali.pipeline("jpeg")})

    def outputs_of(self, model):
        return [output["name"] for output in self.config_of(model)["output"]]

    def test_calls_over_http_and_grpc(self):
        for name in NAMES:
            names = self.outputs_of(name)
            for module, client in self.both():
                for index, (inputs, expected) in enumerate(self.dali.calls(name)):
                    with self.subTest(model=name, client=module.__name__, call=index):
                        self.assert_same(infer(module, client, name, inputs, names), names, expected)

    def test_thirty_two_at_once(self):
        (_, http), (_, grpc) = self.both()
        outputs = {name: self.outputs_of(name) for name in (*NAMES, "two")}

        def call(number):
            random_ = random.Random(number)
            name = random_.choice((*NAMES, "two"))
            inputs, expected = random_.choice(self.dali.calls("jpeg" if name == "two" else name))
            module, client = ((httpclient, http), (grpcclient, grpc))[number % 2]
            return name, infer(module, client, name, inputs, outputs[name]), expected

        # The HTTP client of tritonclient is for one thread: eight of its connections are shared by a pool of their own.
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            for name, reply, expected in pool.map(call, range(1, 257, 2)):
                self.assert_same(reply, outputs[name], expected)
        for number in range(0, 16, 2):
            name, reply, expected = call(number)
            self.assert_same(reply, outputs[name], expected)

    def test_http_clients_at_once(self):
        names = self.outputs_of("jpeg")

        def ask(module, client, seed):
            for inputs, expected in random.Random(seed).sample(self.dali.calls("jpeg"), 4):
                self.assert_same(infer(module, client, "jpeg", inputs), names, expected)

        self.on_threads(32, [httpclient], ask)

    def test_requests_of_different_shapes_are_one_batch(self):
        client, names = self.grpc(), self.outputs_of("waits")
        before = self.server.statistics("waits")["execution_count"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            chosen = [self.dali.calls("jpeg")[index % 4] for index in range(8)]
            replies = list(pool.map(lambda call: infer(grpcclient, client, "waits", call[0]), chosen))
        for reply, (_, expected) in zip(replies, chosen):
            self.assert_same(reply, names, expected)
        self.assertLess(self.server.statistics("waits")["execution_count"] - before, 8)

    def test_models_without_batches(self):
        self.assertEqual(self.config_of("unbatched")["max_batch_size"], 0)
        names = self.outputs_of("unbatched")
        for module, client in self.both():
            for inputs, expected in self.dali.calls("normalise"):
                self.assert_same(infer(module, client, "unbatched", inputs, names), names, expected)

    def test_samples_are_split(self):
        self.assertEqual([(output["name"], output["dims"]) for output in self.config_of("split")["output"]], [("ROWS", [-1])])
        inputs, (expected,) = self.dali.calls("rows")[0]
        for module, client in self.both():
            got = infer(module, client, "split", inputs)
            numpy.testing.assert_array_equal(got["ROWS"], expected.reshape(-1, expected.shape[-1]))

    def test_parameters(self):
        inputs, expected = self.dali.calls("jpeg")[4]
        self.assert_same(infer(grpcclient, self.grpc(), "threads", inputs), ["IMAGE"], expected)
        self.assertEqual(self.config_of("threads")["max_batch_size"], 8)

    def test_completed_configuration(self):
        completed = self.config_of("jpeg")
        self.assertEqual(completed["max_batch_size"], 16)
        self.assertIn("dynamic_batching", completed)
        tensor = completed["input"][0]
        self.assertEqual((tensor["name"], tensor["data_type"], tensor["allow_ragged_batch"]), ("JPEG", "TYPE_UINT8", True))
        self.assertEqual([int(dim) for dim in tensor["dims"]], [-1])
        self.assertEqual([int(dim) for dim in completed["output"][0]["dims"]], [-1, -1, -1])
        self.assertEqual([int(dim) for dim in self.config_of("unbatched")["input"][0]["dims"]], [-1, -1, -1, -1])

    def test_wrong_requests(self):
        client = self.grpc()
        for what, model, inputs in (
            ("type", "arithmetic", {name: numpy.zeros((1, 4), numpy.int32) for name in "AB"}),
            ("dimensions", "arithmetic", {name: numpy.zeros((1, 4, 2), numpy.float32) for name in "AB"}),
            ("rows", "arithmetic", {"A": numpy.zeros((2, 4), numpy.float32), "B": numpy.zeros((1, 4), numpy.float32)}),
            ("missing", "arithmetic", {"A": numpy.zeros((2, 4), numpy.float32)}),
            ("batch", "arithmetic", {name: numpy.zeros((17, 4), numpy.float32) for name in "AB"}),
            ("no broadcast", "arithmetic", {"A": numpy.zeros((1, 4), numpy.float32), "B": numpy.zeros((1, 5), numpy.float32)}),
            ("no samples", "unbatched", {"IMAGE": numpy.zeros((0, 4, 4, 3), numpy.uint8)}),
        ):
            with self.subTest(what), self.assertRaises(InferenceServerException):
                infer(grpcclient, client, model, inputs)
            inputs, expected = self.dali.calls("arithmetic")[0]
            self.assert_same(infer(grpcclient, client, "arithmetic", inputs), ("SUM", "PRODUCT"), expected)


class Movies(DaliCase):
    """A pipeline that makes several batches of one input: a response each, of a decoupled model."""

    @classmethod
    def models(cls, repository):
        more = 'max_batch_size: 0\noutput [ { name: "FRAMES" data_type: TYPE_UINT8 dims: [ -1, -1, -1, -1, 3 ] } ]\n'
        movie = {"1/model.dali": cls.dali.pipeline("video")}
        repository.model("decoupled", config(more + "model_transaction_policy { decoupled: true }\n"), files=movie)
        repository.model("plain", config(more), files=movie)

    def ask(self, model, movie):
        """The responses of a stream up to the final one, or the error that ended it."""
        answers, client = queue.Queue(), self.grpc()
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = grpcclient.InferInput("VIDEO", list(movie.shape), "UINT8")
        tensor.set_data_from_numpy(movie)
        client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
        found = []
        while True:
            result, error = answers.get(timeout=60)
            if error:
                return error
            if result.as_numpy("FRAMES") is not None:
                found.append(result.as_numpy("FRAMES"))
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found

    def test_each_sequence_is_a_response(self):
        movies = self.dali.calls("video")
        for inputs, expected in (*movies, *movies):
            found = self.ask("decoupled", inputs["VIDEO"])
            self.assertEqual([frames.shape for frames in found], [frames.shape for frames in expected])
            for got, wanted in zip(found, expected):
                numpy.testing.assert_array_equal(got, wanted)

    def test_movies_at_once(self):
        movies = self.dali.calls("video")
        chosen = [movies[index % len(movies)] for index in range(32)]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            for found, (_, expected) in zip(pool.map(lambda call: self.ask("decoupled", call[0]["VIDEO"]), chosen), chosen):
                self.assertEqual([frames.tobytes() for frames in found], [frames.tobytes() for frames in expected])

    def test_a_cut_movie_fails_alone(self):
        # Not of every length: some end DALI's process, in Python as well.
        inputs, expected = self.dali.calls("video")[0]
        whole = inputs["VIDEO"]
        for length in (0, 4, 100, 300):
            self.assertIsInstance(self.ask("decoupled", whole[:, :length]), InferenceServerException, length)
            self.assertEqual(len(self.ask("decoupled", whole)), len(expected))

    def test_other_models_are_refused_more_than_one(self):
        movies = self.dali.calls("video")
        error = self.ask("plain", movies[0][0]["VIDEO"])
        self.assertIn("makes several responses to a request; its model must be decoupled", str(error))
        inputs, (expected,) = movies[1]
        self.assert_same(infer(grpcclient, self.grpc(), "plain", inputs), ["FRAMES"], [expected])


@unittest.skipUnless(shutil.which("taskset"), "there is no taskset")
class Threads(DaliCase):
    """On one CPU: as many threads as the model says, else the instance's share of that CPU."""

    launcher = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    flags = ("--model-control-mode=explicit",)

    @classmethod
    def models(cls, repository):
        two = 'backend: "dali"\ninstance_group [ { kind: KIND_CPU count: 2 } ]\n'
        repository.model("three", config(parameters(num_threads=3)), files={"1/model.dali": cls.dali.pipeline("jpeg")})
        repository.model("two", two, files={"1/model.dali": cls.dali.pipeline("jpeg")})

    def count(self):
        return sum("[DALI][TP" in name for _, name in threads_of(self.server.pid))

    def test_their_number(self):
        for model, expected in (("three", 3), ("two", 5)):
            self.serve(model)
            # A pipeline that only told what it declares is gone, its threads soon too.
            until_equal(self.count, expected, f"threads with {model}")


class HostileImages(DaliCase):
    """Images that cannot be decoded: each fails its own request and no other."""

    @classmethod
    def models(cls, repository):
        repository.model("jpeg", config("max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 50000 preferred_batch_size: [ 16 ] }\n"),
                         files={"1/model.dali": cls.dali.pipeline("jpeg")})

    @classmethod
    def bad(cls, count):
        """Whole images that were cut, changed and made up; none of them has to be refused, as some changes leave an image."""
        noise = random.Random(5)
        good = cls.dali.calls("jpeg")[0][0]["JPEG"].tobytes()
        for index in range(count):
            kind = index % 4
            if kind == 0:
                yield good[:noise.randrange(1, len(good))]
            elif kind == 1:
                yield noise.randbytes(noise.randrange(1, 4000))
            elif kind == 2:
                changed = bytearray(good)
                for _ in range(20):
                    changed[noise.randrange(2, len(good))] = noise.randrange(256)
                yield bytes(changed)
            else:
                yield good[:noise.randrange(2, 600)] + noise.randbytes(2000)

    def send(self, client, content):
        tensor = numpy.frombuffer(content, numpy.uint8)[None]
        return infer(grpcclient, client, "jpeg", {"JPEG": tensor})

    def test_each_fails_alone(self):
        client = self.grpc()
        inputs, expected = self.dali.calls("jpeg")[1]
        good = inputs["JPEG"].tobytes()
        output = self.config_of("jpeg")["output"][0]["name"]
        refused = 0
        contents = [content for bad in self.bad(120) for content in (bad, good)]

        def ask(content):
            try:
                return self.send(client, content)
            except InferenceServerException as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for content, reply in zip(contents, pool.map(ask, contents)):
                if content is good:
                    self.assertNotIsInstance(reply, InferenceServerException, reply)
                    self.assert_same(reply, [output], expected)
                elif isinstance(reply, InferenceServerException):
                    refused += 1
                    self.assertIn("DALI error", str(reply))
                    self.assertNotIn("\n", reply.message().strip())
        self.assertGreater(refused, 60)

    def test_one_bad_sample_fails_its_request(self):
        inputs, _ = self.dali.calls("jpeg")[4]
        samples = inputs["JPEG"].copy()
        samples[2] = 7
        with self.assertRaises(InferenceServerException):
            infer(grpcclient, self.grpc(), "jpeg", {"JPEG": samples})


@unittest.skipUnless(shutil.which("prlimit"), "there is no prlimit")
class ShortOfMemory(DaliCase):
    """An image of few bytes that says it has 13 GB of pixels, where there are 8."""

    launcher = ("prlimit", "--as=8000000000")

    @classmethod
    def models(cls, repository):
        repository.model("jpeg", config(), files={"1/model.dali": cls.dali.pipeline("jpeg")})

    def test_the_request_fails(self):
        inputs, expected = self.dali.calls("jpeg")[0]
        whole = inputs["JPEG"]
        size = whole.tobytes().index(b"\xff\xc0") + 5
        huge = whole.copy()
        huge[0, size:size + 4] = numpy.frombuffer(struct.pack(">HH", 65500, 65500), numpy.uint8)
        for module, client in self.both():
            with self.assertRaisesRegex(InferenceServerException, "bad_alloc"):
                infer(module, client, "jpeg", {"JPEG": huge})
            self.assert_same(infer(module, client, "jpeg", inputs), [self.config_of("jpeg")["output"][0]["name"]], expected)


def malformed(whole):
    """Twenty files that are no pipeline, or not one that runs, made of a whole one."""
    noise = random.Random(3)
    yield from ((f"cut at {length}", whole[:length]) for length in (0, 1, 2, 10, 100, len(whole) // 2, len(whole) - 1))
    yield from ((f"noise {seed}", random.Random(seed).randbytes(400)) for seed in range(2))
    # DALI itself would read through a null pointer.
    yield "argument without a value", whole.replace(b"\x12\x06string*\x03cpu", b"\x12\x06string\x22\x03cpu", 1)
    yield "list that is none", whole.replace(b"\x40\x00\x40\x01", b"\x40\x00\x40\x00", 1)
    yield "text", b"a pipeline"
    yield "zeros", bytes(500)
    yield "no batch", whole.replace(b"\x10\x10", b"\x18\x10", 1)
    yield "other operator", whole.replace(b"decoders__Image", b"decoders__Imagf")
    yield "other input", whole.replace(b"JPEG", b"JPEF", 1)
    yield "long field", whole + b"\x2a\xff\xff\xff\xff\x0f"
    yield "doubled", whole + whole
    for seed in range(2):
        changed = bytearray(whole)
        for _ in range(30):
            changed[noise.randrange(len(changed))] ^= 1 << noise.randrange(8)
        yield f"changed {seed}", bytes(changed)


class MalformedFiles(DaliCase):
    flags = ("--model-control-mode=explicit", "--load-model=good")

    @classmethod
    def models(cls, repository):
        repository.model("good", config(), files={"1/model.dali": cls.dali.pipeline("jpeg")})
        for index, (_, content) in enumerate(malformed(cls.dali.pipeline("jpeg"))):
            repository.model(f"bad_{index}", config(), files={"1/model.dali": content})

    def test_each_is_refused(self):
        found = list(malformed(self.dali.pipeline("jpeg")))
        self.assertEqual(len(found), 20)
        for index, (what, _) in enumerate(found):
            with self.subTest(what):
                error = self.refused(f"bad_{index}")
                self.assertIn(f"bad_{index}", error)
                self.assertEqual(len(error.strip().splitlines()), 1, error)
                if what in ("argument without a value", "list that is none"):
                    self.assertIn("has no value of its type string", error)
        inputs, expected = self.dali.calls("jpeg")[0]
        output = self.config_of("good")["output"][0]["name"]
        self.assert_same(infer(grpcclient, self.grpc(), "good", inputs), [output], expected)


class Refusals(DaliCase):
    flags = ("--model-control-mode=explicit",)

    @classmethod
    def models(cls, repository):
        for name, more in (
            ("other_input", 'input [ { name: "PNG" data_type: TYPE_UINT8 dims: [ -1 ] } ]\n'),
            ("other_type", 'input [ { name: "JPEG" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'),
            ("other_dims", 'output [ { name: "X" data_type: TYPE_UINT8 dims: [ -1 ] } ]\n'),
            ("more_outputs", 'output [ { name: "X" data_type: TYPE_UINT8 dims: [ -1, -1, -1 ] }, { name: "Y" data_type: TYPE_UINT8 dims: [ 1 ] } ]\n'),
            ("no_threads", parameters(num_threads=0)),
        ):
            repository.model(name, config(more), files={"1/model.dali": cls.dali.pipeline("jpeg")})
        repository.model("empty", config())
        repository.model("needs_gpu", config(), files={"1/model.dali": cls.dali.pipeline("normalise").replace(b"\x03cpu", b"\x03gpu")})

    def test_what_is_wrong_is_said(self):
        for name, expected in (
            ("other_input", "Configuration file contains config for PNG but such input is not present in the pipeline."),
            ("other_type", 'Mismatch of data_type config for "JPEG".'),
            ("other_dims", "Number of dimensions defined in pipeline: 3"),
            ("more_outputs", "Model config outputs: 2"),
            ("no_threads", "parameter 'num_threads' is 0; it can be 1 to 1024"),
            ("empty", "model.dali', nor a dali.py beside it"),
            ("needs_gpu", "The pipeline requires a CUDA-capable GPU"),
        ):
            with self.subTest(name):
                self.assertIn(expected, self.refused(name))


class PipelinesInPython(DaliCase):
    flags = ("--model-control-mode=explicit", "--load-model=identity", "--load-model=named")

    @classmethod
    def models(cls, repository):
        cls.dali.python.install()
        repository.model("identity", config(), files={"1/dali.py": IDENTITY})
        repository.model("named", config('default_model_filename: "mine.py"\n'), files={"1/mine.py": IDENTITY})
        repository.model("broken", config(), files={"1/dali.py": b"raise ValueError('not today')"})

    def test_they_are_serialised_and_served(self):
        value = numpy.arange(5, dtype=numpy.uint8)[None]
        for model in ("identity", "named"):
            got = infer(grpcclient, self.grpc(), model, {"IN": value})
            numpy.testing.assert_array_equal(got[self.config_of(model)["output"][0]["name"]], value)

    def test_the_exception_is_told(self):
        self.assertIn("ValueError: not today", self.refused("broken"))


class Example(DaliCase):
    """The repository that docs/examples/dali makes, and the request that it sends."""

    @classmethod
    def models(cls, repository):
        cls.dali.python.install()
        with tempfile.TemporaryDirectory(prefix="conch-dali-") as name:
            folder = pathlib.Path(name)
            cls.dali.python.run(MAKE, folder)
            cls.picture = (folder / "picture.jpg").read_bytes()
            for model in ("decode", "arithmetic"):
                repository.model(model, (folder / model / "config.pbtxt").read_text(),
                                 files={"1/model.dali": (folder / model / "1/model.dali").read_bytes()})

    def test_arithmetic(self):
        a, b = numpy.random.default_rng(1).standard_normal((2, 3, 7)).astype(numpy.float32)
        for module, client in self.both():
            self.assert_same(infer(module, client, "arithmetic", {"A": a, "B": b}), ("SUM", "PRODUCT"), (a + b, a * b))

    def test_the_picture_is_sent(self):
        with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
            file.write(self.picture)
            file.flush()
            sent = run(sys.executable, MAKE, "--send", file.name, self.server.http)
        self.assertRegex(sent, r"^\(1, 3, 224, 224\) float32 -?[0-9.]+")


@OLDEST.needed()
class FloorCase(DaliCase):
    """The oldest version that is served, with pipelines and answers of its own Python."""

    dali = OLDEST
    environment = OLDEST.environment


class FloorAnswers(FloorCase, Answers):
    def test_it_is_the_library(self):
        self.assertIn(f"DALI ({OLDEST.library.resolve()})", self.server.output)


class FloorRefusals(FloorCase, MalformedFiles):
    pass


class FloorImages(FloorCase, HostileImages):
    pass


class FloorPipelinesInPython(FloorCase, PipelinesInPython):
    pass


@OLDEST.needed()
class TwoVersions(DaliCase):
    flags = ("--model-control-mode=explicit", "--load-model=first")

    @classmethod
    def models(cls, repository):
        repository.model("first", config(), files={"1/model.dali": cls.dali.pipeline("jpeg")})
        repository.model("second", config(parameters(library=OLDEST.library)), files={"1/model.dali": cls.dali.pipeline("jpeg")})
        # Another way to the same library is the same library.
        same = parameters(library=f"{NEWEST.library.parent}/./{NEWEST.library.name}")
        repository.model("same", config(same), files={"1/model.dali": cls.dali.pipeline("jpeg")})

    def test_the_second_is_refused(self):
        self.assertIn("a process can have one, and this one has", self.refused("second"))
        self.serve("same")
        inputs, expected = self.dali.calls("jpeg")[0]
        for model in ("first", "same"):
            self.assert_same(infer(grpcclient, self.grpc(), model, inputs), [self.config_of(model)["output"][0]["name"]], expected)


@needs_library("dali")
@conch_only
class WithoutDali(LibraryCase):
    runtime = NEWEST.runtime

    def add_models(self, repository):
        repository.model("m", config(), files={"1/model.dali": b"\x10\x01"})
        repository.model("elsewhere", config(parameters(library="/nonexistent/libdali.so")), files={"1/model.dali": b"\x10\x01"})

    def test_the_command_is_said(self):
        self.assert_not_loaded({self.runtime.variable: ""}, {"m": "scripts/fetch-runtime dali", "elsewhere": "/nonexistent/libdali.so"})


class BesideTheBackend(DaliCase):
    """A DALI that lies beside the backend, as scripts/serve lays it out, is found without being named."""

    environment = {"CONCH_DALI_LIBRARY": ""}

    @classmethod
    def models(cls, repository):
        repository.model("jpeg", config(), files={"1/model.dali": cls.dali.pipeline("jpeg")})

    def test_it_is_found(self):
        inputs, expected = self.dali.calls("jpeg")[0]
        self.assert_same(infer(grpcclient, self.grpc(), "jpeg", inputs), [self.config_of("jpeg")["output"][0]["name"]], expected)
