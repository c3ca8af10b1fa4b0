"""The commands that are clients: `conch infer` and `conch bench` against conch and against the real Triton."""

import json
import pathlib
import re
import shlex
import tempfile
import unittest
from xml.etree import ElementTree

import numpy
from PIL import Image

import certificates
import server as servers
from case import ServerCase, conch_only, needs_library
from repository import identity, tensors
from test_process import run

LABELS = b"cat\ndog\nfish\n"


def with_labels():
    """Three values of FP32 that have names."""
    return ('backend: "identity"\nmax_batch_size: 4\n' + tensors("input", [("INPUT0", "FP32", (3,))])
            + 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }\n'
            + 'instance_group [ { count: 1 kind: KIND_CPU } ]\n'
            + 'parameters { key: "example_response_parameters" value { string_value: "false" } }\n')


class Commands(ServerCase):
    """Runs the executable; the server may be any."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="conch-client-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def url(self, port="http"):
        return f"http://{self.server.address(port)}"

    def client(self, command, model, *words, code=0):
        """What the command prints; on the standard error, where it fails."""
        words = [str(word) for word in words]
        if not any(word.startswith("--url") for word in words):
            words.append(f"--url={self.url()}")
        done = run(command, model, *words, within=120)
        self.assertEqual(done[0], code, done)
        if code:
            self.assertEqual(done[1], "")
            return done[2]
        self.assertEqual(done[2], "")
        return done[1]

    def infer(self, model, *words, code=0):
        return self.client("infer", model, *words, code=code)

    def save(self, model, *words, output="OUTPUT0"):
        """The array that an output is saved as."""
        self.infer(model, *words, f"--save={self.folder / 'saved'}")
        return numpy.load(self.folder / "saved" / f"{output}.npy")


class Infer(Commands):
    @classmethod
    def models(cls, repository):
        repository.model("plain", identity(batch=8))
        repository.model("labels", with_labels(), files={"labels.txt": LABELS})
        for kind in ("FP16", "BF16", "FP64", "BOOL", "INT8", "UINT64", "STRING"):
            repository.model(f"of_{kind.lower()}", identity(inputs=[("INPUT0", kind, (-1, 2))]))
        repository.model("two", identity(inputs=[("INPUT0", "FP32", (2,)), ("INPUT1", "INT32", (1,))], batch=2))
        repository.model("optional", identity(inputs=[("INPUT0", "FP32", (1,)), ("INPUT1", "FP32", (1,))], batch=2)
                         .replace('name: "INPUT1" data_type: TYPE_FP32', 'name: "INPUT1" optional: true data_type: TYPE_FP32'))
        repository.model("nchw", identity(inputs=[("INPUT0", "FP32", (3, 4, 6))], batch=2))
        repository.model("nhwc", identity(inputs=[("INPUT0", "UINT8", (-1, -1, 3))], batch=2))
        repository.model("encoded", identity(inputs=[("INPUT0", "STRING", (1,))], batch=2))

    def test_shapes_are_completed(self):
        for value, shape, shown in (("[[1,2],[3,4]]", "[2,2]", "[[1.0, 2.0], [3.0, 4.0]]"), ("[1.5,2]", "[1,2]", "[[1.5, 2.0]]"),
                                    ("7", "[1,1]", "[[7.0]]")):
            with self.subTest(value):
                self.assertEqual(self.infer("plain", "--input", f"INPUT0={value}"),
                                 f"plain, version 1\nOUTPUT0: FP32 {shape}\n  {shown}\n")
        self.assertIn("OUTPUT0: FP32 [1,0]\n  []\n", self.infer("plain", "--input=INPUT0=[]"))
        self.assertIn("OUTPUT0: FP32 [3,1]", self.infer("plain", "--input=INPUT0=[1,2,3]", "--shape=INPUT0=3,1"))
        many = self.infer("plain", "--input", f"INPUT0={json.dumps(list(range(100)))}")
        self.assertIn("  0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ...\n  min 0, max 99, mean 49.500000\n", many)

    def test_types(self):
        for kind, value, shown in (("fp16", "[1.5,-2]", "[[1.5, -2.0]]"), ("bf16", "[1.5,-2]", "[[1.5, -2.0]]"),
                                   ("fp64", '[1e300,"NaN"]', "[[1e300, NaN]]"), ("bool", "[true,false]", "[[true, false]]"),
                                   ("int8", "[-128,127]", "[[-128, 127]]"),
                                   ("uint64", "[0,18446744073709551615]", "[[0, 18446744073709551615]]"),
                                   ("string", '["a b","\\u00e9\\n"]', '[["a b", "é\\n"]]')):
            with self.subTest(kind):
                wire = "BYTES" if kind == "string" else kind.upper()
                self.assertIn(f"OUTPUT0: {wire} [1,2]\n  {shown}\n", self.infer(f"of_{kind}", "--input", f"INPUT0={value}"))
        self.assertIn('["text as it stands"]', self.infer("encoded", "--input", "INPUT0=text as it stands"))

    def test_arrays_go_there_and_back(self):
        for kind, array in (("fp16", numpy.arange(4, dtype="<f2").reshape(2, 2)), ("fp64", numpy.arange(4, dtype=">f8").reshape(2, 2)),
                            ("bool", numpy.array([[True, False]])), ("int8", numpy.asfortranarray(numpy.arange(6, dtype="i1").reshape(3, 2))),
                            ("uint64", numpy.arange(2, dtype="<u8")), ("string", numpy.array([["a", "longer"]], dtype="S")),
                            ("string", numpy.array([["é", "x"]])), ("bf16", numpy.array([[1.5, 2]], dtype="<f4")),
                            ("fp64", numpy.zeros((0, 2)))):
            with self.subTest(kind=kind, dtype=array.dtype):
                numpy.save(self.folder / "in.npy", array)
                saved = self.save(f"of_{kind}", f"--input=INPUT0=@{self.folder}/in.npy")
                if array.dtype.kind == "U":
                    saved = numpy.char.decode(saved, "utf-8")
                self.assertEqual(saved.tolist(), array.reshape(-1, 2).tolist())
        numpy.save(self.folder / "in.npy", numpy.array([[1, 2]]))
        told = self.infer("plain", f"--input=INPUT0=@{self.folder}/in.npy", code=2)
        self.assertIn("its array is of type INT64", told)
        (self.folder / "in.json").write_text('{"shape": [2, 2], "data": [1, 2, 3, 4]}')
        self.assertIn("[[1.0, 2.0], [3.0, 4.0]]", self.infer("plain", f"--input=INPUT0=@{self.folder}/in.json"))

    def test_images(self):
        """As Pillow, which the clients of others use: its sums are rounded to bytes, ours are not."""
        noise = numpy.random.default_rng(3).integers(0, 256, (9, 13, 3), dtype="u1")
        image = Image.fromarray(noise)
        image.save(self.folder / "image.png")
        image.convert("RGBA").save(self.folder / "alpha.PNG")
        image.save(self.folder / "image.jpg", quality=95)
        expected = numpy.asarray(image.resize((6, 4), Image.Resampling.BILINEAR)).astype("f4").transpose(2, 0, 1)[None]
        for name in ("image.png", "alpha.PNG"):
            saved = self.save("nchw", f"--input=INPUT0=@{self.folder}/{name}")
            self.assertEqual(saved.shape, (1, 3, 4, 6))
            self.assertLess(numpy.abs(saved - expected).max(), 1.01)
        saved = self.save("nchw", f"--input=INPUT0=@{self.folder}/image.png", "--scaling=inception")
        self.assertLess(numpy.abs(saved - (expected / 127.5 - 1)).max(), 0.01)
        saved = self.save("nhwc", f"--input=INPUT0=@{self.folder}/image.png")
        self.assertEqual(saved.tolist(), noise[None].tolist())
        saved = self.save("nhwc", f"--input=INPUT0=@{self.folder}/image.jpg")
        decoded = numpy.asarray(Image.open(self.folder / "image.jpg"))[None].astype("i4")
        self.assertEqual(saved.shape, decoded.shape)
        # Decoders may round the transform and the colours differently.
        self.assertLess(numpy.abs(saved - decoded).mean(), 3)
        self.infer("encoded", f"--input=INPUT0=@{self.folder}/image.png")
        (self.folder / "broken.png").write_bytes((self.folder / "image.png").read_bytes()[:60])
        self.assertIn("it is no image", self.infer("nchw", f"--input=INPUT0=@{self.folder}/broken.png", code=2))

    def test_classes(self):
        told = self.infer("labels", "--input=INPUT0=[[0.25,0.5,0.125],[1,2,4]]", "--classes=2")
        lines = told.splitlines()
        self.assertEqual(lines[:2], ["labels, version 1", "OUTPUT0: BYTES [2,2]"])
        self.assertEqual([line.split()[1:] for line in lines[2:]], [["1", "dog"], ["0", "cat"], [], ["2", "fish"], ["1", "dog"]])

    def test_what_is_asked_for(self):
        told = self.infer("two", "--input=INPUT0=[1,2]", "--input=INPUT1=3", "--output=OUTPUT1", "--id=seven", "--version=1")
        self.assertEqual(told, "two, version 1, id seven\nOUTPUT1: INT32 [1,1]\n  [[3]]\n")
        document = json.loads(self.infer("two", "--zeros", "--json", "--parameter=custom=3"))
        self.assertEqual([(output["name"], output["data"]) for output in document["outputs"]], [("OUTPUT0", [0, 0]), ("OUTPUT1", [0])])
        self.assertIn("[[1.0, 2.0]]", self.infer("plain", "--input=INPUT0=[1,2]", "--no-binary"))
        self.assertEqual(self.infer("two", "--random"), self.infer("two", "--random"))

    def test_inputs_that_are_missing(self):
        told = self.infer("two", "--input=INPUT0=[1,2]", code=2)
        command = f"conch infer two --url {self.url()}"
        self.assertEqual(told, "error: no value is given for input 'INPUT1'; the model's inputs are:\n  INPUT0  FP32 [-1,2]\n  INPUT1  INT32 "
                         f"[-1,1]\nFor example:\n  {command} --input 'INPUT0=[1,2]' --input 'INPUT1=[[1]]'\nor, with zeros or random numbers in "
                         f"place of what is not given:\n  {command} --zeros\n  {command} --random\n")
        told = self.infer("optional", "--input=INPUT0=1", "--output=OUTPUT0")
        self.assertIn("OUTPUT0: FP32 [1,1]\n  [[1.0]]", told)

    def test_errors(self):
        self.assertIn("the server answered 40", self.infer("nothing", "--zeros", code=1))
        self.assertIn("the server answered 40", self.infer("plain", "--zeros", "--version=9", code=1))
        told = self.infer("plain", "--input=INPUT0=[[[1]]]", code=2)
        self.assertIn("input 'INPUT0' (FP32 [-1,-1]): the value has shape [1,1,1], which does not fit", told)
        told = self.infer("plain", "--input=INPUT0=1", "--shape=INPUT0=1,1,1", code=1)
        self.assertIn("the server answered 400 Bad Request: ", told)
        self.assertIn("unexpected shape for input 'INPUT0'", told)
        self.assertIn("the model has no input 'X'; it has:\n  INPUT0  FP32 [-1,-1]", self.infer("plain", "--input=X=1", code=2))
        self.assertIn("no FP16 in JSON", self.infer("of_fp16", "--zeros", "--no-binary", code=2))
        absent = servers.free_port()
        told = self.infer("plain", "--zeros", f"--url=http://127.0.0.1:{absent}", code=1)
        self.assertRegex(told, rf"^error: cannot ask http://127.0.0.1:{absent}: .*refused")
        self.assertIn("Usage: conch infer MODEL", self.infer("plain", "--nothing", code=2))
        self.assertIn("x", self.infer("plain", "--zeros", "--output=x", code=1))


class Bench(Commands):
    """Counts only: how fast a server is, a test cannot say."""

    @classmethod
    def models(cls, repository):
        repository.model("plain", identity(batch=8))
        repository.model("scalar", identity(inputs=[("INPUT0", "STRING", (1,))]))

    def bench(self, model, *words, code=0):
        return self.client("bench", model, *words, code=code)

    def counted(self, model, before):
        return self.server.statistics(model)["inference_stats"]["success"]["count"] - before

    def test_rates(self):
        for protocol, words in (("http", ["--connections=4"]), ("grpc", ["--connections=2", "--in-flight=64"])):
            with self.subTest(protocol):
                before = self.counted("plain", 0)
                svg, figures = self.folder / f"{protocol}.svg", self.folder / f"{protocol}.json"
                told = self.bench("plain", f"--url={self.url(protocol)}", f"--protocol={protocol}", "--input=INPUT0=[1,2]", "--rates=20,40",
                                  "--seconds=0.5", "--warm-up-seconds=0", "--arrivals=even", f"--svg={svg}", f"--json={figures}", *words)
                document = json.loads(figures.read_text())
                due = [rate["due"] for rate in document["rates"]]
                self.assertEqual(due, [10, 20])
                self.assertEqual([rate["answered"] for rate in document["rates"]], due)
                self.assertEqual([rate["failed"] + rate["unanswered"] for rate in document["rates"]], [0, 0])
                # One request is tried before.
                self.assertEqual(self.counted("plain", before), sum(due) + 1)
                self.assertEqual((document["model"], document["protocol"], document["arrivals"]), ("plain", protocol, "even"))
                for name in ("p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms"):
                    self.assertTrue(all(rate[name] > 0 for rate in document["rates"]), document)
                self.assertIn(" offered/s answered/s    p50 ms", told)
                self.assertIn("requests/s", told)
                drawing = ElementTree.parse(svg).getroot()
                self.assertEqual(len(drawing.findall("{http://www.w3.org/2000/svg}polyline")), 4)

    def test_rates_that_double(self):
        """No server answers within a microsecond: the first rate is too much."""
        figures = self.folder / "figures.json"
        told = self.bench("scalar", "--random", "--start-rate=10", "--seconds=0.5", "--warm-up-seconds=0", "--latency-limit-ms=0.001",
                          f"--json={figures}")
        self.assertIn("keeps up with none of these rates with p99 within 0.001 ms", told)
        rates = json.loads(figures.read_text())["rates"]
        self.assertEqual([(rate["offered_per_second"], rate["keeps_up"]) for rate in rates], [(10, False)])

    def test_errors(self):
        short = ["--rates=10", "--seconds=0.1", "--warm-up-seconds=0"]
        for protocol in ("http", "grpc"):
            with self.subTest(protocol):
                more = [f"--url={self.url(protocol)}", f"--protocol={protocol}", *short]
                self.assertIn("Request for unknown model: 'nothing'", self.bench("nothing", "--zeros", *more, code=1))
                self.assertIn("no value is given for input 'INPUT0'", self.bench("plain", *more, code=2))
                told = self.bench("plain", "--zeros", "--shape=INPUT0=1,1,1", *more, code=1)
                self.assertIn("unexpected shape for input 'INPUT0'", told)
                absent = servers.free_port()
                told = self.bench("plain", "--zeros", f"--url=http://127.0.0.1:{absent}", f"--protocol={protocol}", *short, code=1)
                self.assertIn(f"error: cannot ask http://127.0.0.1:{absent}: ", told)
        self.assertIn("load goes to http:// or unix:", self.bench("plain", "--zeros", "--url=https://localhost:1", *short, code=2))
        self.assertIn("Usage: conch bench MODEL", self.bench("plain", "--nothing", code=2))


@conch_only
class OtherAddresses(Commands):
    """A Unix socket, and headers that a restriction asks for."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="conch-")
        cls.addClassCleanup(folder.cleanup)
        cls.socket = pathlib.Path(folder.name) / "http.sock"
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        repository.model("plain", identity(batch=8))

    def test_a_unix_socket(self):
        flags = [f"--http-address=unix:{self.socket}"]
        server = servers.Server(self.repository.path, *flags, expect_ready=False)
        self.addCleanup(server.kill)
        server.wait_for_text("serving: ")
        told = self.infer("plain", "--input=INPUT0=[1,2]", f"--url=unix:{self.socket}")
        self.assertIn("[[1.0, 2.0]]", told)
        told = self.client("bench", "plain", "--zeros", "--rates=10", "--seconds=0.5", f"--url=unix:{self.socket}")
        self.assertIn("keeps up with 10/s", told)
        self.assertEqual(server.terminate(), 0)

    def test_headers(self):
        server = servers.Server(self.repository.path, "--http-restricted-api=inference,metadata:key=secret")
        self.addCleanup(server.kill)
        url = f"--url=http://{server.address('http')}"
        self.assertIn("the server answered 403", self.infer("plain", "--zeros", url, code=1))
        self.assertIn("[[0.0]]", self.infer("plain", "--zeros", url, "--header=key: secret"))
        self.assertEqual(server.terminate(), 0)

    def test_https(self):
        files = certificates.shared()
        flags = ["--http-use-ssl=true", f"--http-server-cert={files.server}", f"--http-server-key={files.server_key}"]
        server = servers.Server(self.repository.path, *flags, tls={"http": files.context()})
        self.addCleanup(server.kill)
        url = f"--url=https://{server.address('http').replace('127.0.0.1', 'localhost')}"
        told = self.infer("plain", "--input=INPUT0=[1,2]", url, f"--ca-certificate={files.root}")
        self.assertIn("[[1.0, 2.0]]", told)
        self.assertIn("error: cannot ask https://", self.infer("plain", "--zeros", url, f"--ca-certificate={files.stranger}", code=1))
        self.assertIn("no certificate in PEM", self.infer("plain", "--zeros", url, f"--ca-certificate={files.server_key}", code=1))
        self.assertEqual(server.terminate(), 0)


@conch_only
@needs_library("onnxruntime")
class Documented(Commands):
    """The examples of docs/OPERATIONS.md."""

    repository_path = servers.ROOT / "docs/examples/model_repository"
    flags = ("--model-control-mode=explicit", "--load-model=addsub")

    def test_the_example(self):
        text = (servers.ROOT / "docs/OPERATIONS.md").read_text()
        command, printed = re.search(r"```sh\nconch (infer .*?)\n```\n\n```text\n(.*?)```", text, re.S).groups()
        _, model, *words = shlex.split(command)
        self.assertEqual(self.infer(model, *words), printed)

    def test_the_measurement(self):
        """Its figures are those of another machine, and its rates others: its lines are the same."""
        def lines(printed):
            """Without figures; rows below each other once; where the curves are, their frame alone."""
            table, curves, end = printed.strip("\n").split("\n\n")
            title, names, *rows = table.splitlines()
            title = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", re.sub(r"[\d.]+ s per rate", "N s per rate", title))
            rows = {re.sub(r"\s*[\d.]+", " N", row) for row in rows}
            legend, *plot, axis, scale = curves.splitlines()
            frames = {re.fullmatch(r"[ \dk.]*\|[ .*#]*", line) is not None for line in plot}
            return [title, names, rows, legend, frames, axis, scale.split()[-1], re.sub(r"\d+", "N", end)]

        text = (servers.ROOT / "docs/OPERATIONS.md").read_text()
        command, printed = re.search(r"```sh\nconch (bench .*?)\n```\n\n```text\n(.*?)```", text, re.S).groups()
        # A busy machine has other latencies.
        command = command.replace("addsub.svg", str(self.folder / "addsub.svg")).replace("latency-limit-ms 20", "latency-limit-ms 60000")
        _, model, *words = shlex.split(command)
        told = self.client("bench", model, *words, "--rates=20,40", "--seconds=0.5", "--warm-up-seconds=0")
        self.assertEqual(lines(told), lines(printed))


if __name__ == "__main__":
    unittest.main()
