"""What a request costs a server beyond its engine: the same engine, model and input in a bare loop, in the server over HTTP, and in the
server embedded in a program. Beside each the identity backend, which computes nothing, in the same process."""

import collections
import os
import pathlib
import statistics
import sys
import time

import framework_models as models
import machine
import numpy
import server as servers
from engine_programs import Program, Refused, compiled, made
from loading import Load
from repository import Repository, tensors

# Microseconds of CPU that a request may cost beyond its engine, one at a time in the process that has both. Over HTTP most of the cost is the
# network's, as what identity costs shows, and depends on how many requests come before its threads sleep again.
GOAL_US = 30
JUDGED = "embedded"
CONNECTIONS = (1, 4, 32)
# Nanoseconds that a measurement of a bare loop takes about.
SLICE_NS = 300_000_000
# Of answers against those that are computed here.
NEAR = 1e-4

# `place`: where the engine's library is, by the file's pattern; `files(folder)`: the model's files; `command(library, files, rows)`: the bare
# loop; `kind`: the model's input (name, type, dims), its output, what is to be answered.
Row = collections.namedtuple("Row", "backend place files command parameters inputs", defaults=(("digits"),))


def weights():
    path = made(pathlib.Path(models.__file__).read_text(), "digits.npz", models.train)
    return dict(numpy.load(path))


def keyed(name, make):
    return made(pathlib.Path(models.__file__).read_text(), name, make)


def by_python(environment, *words):
    """A file that this environment's Python makes, as tests of the backend have made it."""
    python = servers.CACHE / environment / "bin/python"
    if not python.exists():
        raise Refused(f"{python} is not there: the backend's tests make it (scripts/test --frameworks)")
    from engine_programs import run
    return lambda path: run([python, models.__file__, *words, path])


def torchscript():
    weights()
    return keyed("model.pt", by_python("venv-pytorch", "pytorch", keyed("digits.npz", models.train)))


def bare_pytorch(library, model, rows):
    torch = library.parent
    options = ("-isystem", torch / "include", "-isystem", torch / "include/torch/csrc/api/include", f"-L{torch}", "-Wl,--no-as-needed",
               "-ltorch_cpu", "-lc10", "-Wl,--disable-new-dtags", f"-Wl,-rpath,{torch}")
    return [compiled("pytorch.cc", *options), model, rows]


def bare(name):
    return lambda library, model, rows: [compiled(f"{name}.c"), library, model, rows]


def bare_fil(_, model, rows):
    return [servers.built("forest"), "--format=xgboost_ubj", f"--model={model}", f"--rows={rows}"]


BACKENDS = [
    Row("onnxruntime", "onnxruntime/libonnxruntime.so.*", lambda: {"model.onnx": keyed("model.onnx", lambda path: path.write_bytes(
        models.onnx(weights())))}, bare("onnxruntime"), {"intra_op_thread_count": 1}, "digits"),
    Row("pytorch", "pytorch/libtorch_cpu.so", lambda: {"model.pt": torchscript()}, bare_pytorch, {"INTRA_OP_THREAD_COUNT": 1}, "digits"),
    Row("tensorflow", "tensorflow/libtensorflow_cc.so.2", lambda: {"model.graphdef": keyed("model.graphdef", lambda path: path.write_bytes(
        models.graphdef(weights())))}, bare("tensorflow"), {"TF_NUM_INTRA_THREADS": 1}, "digits"),
    Row("openvino", "openvino/libopenvino_c.so.*", lambda: {"model.onnx": keyed("model.onnx", lambda path: path.write_bytes(
        models.onnx(weights())))}, bare("openvino"), {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}, "digits"),
    Row("dali", "dali/**/libdali.so", lambda: {"model.dali": keyed("model.dali", by_python("venv-dali", "dali"))}, bare("dali"),
        {"num_threads": 1}, "picture"),
    Row("fil", None, lambda: {"xgboost.ubj": keyed("xgboost.ubj", models.forest)}, bare_fil,
        {"model_type": "xgboost_ubj", "is_classifier": "true", "predict_proba": "true", "cpu_nthread": 1}, "forest"),
]
PLATFORMS = {"tensorflow": 'platform: "tensorflow_graphdef"\n', "pytorch": 'platform: "pytorch_libtorch"\n'}
# Of a kind: input, output.
KINDS = {"digits": (("x", "FP32", (64,)), ("y", "FP32", (10,))), "forest": (("input__0", "FP32", (64,)), ("output__0", "FP32", (10,))),
         "picture": (("IMAGE", "UINT8", models.PICTURE), ("DALI_OUTPUT_0", "FP32", models.ANSWER))}


class Measured:
    """A backend with its model, in a bare loop and in two servers."""

    def __init__(self, row, stack, cpus):
        self.row = row
        if not servers.built(f"libtriton_{row.backend}.so").exists():
            raise Refused(f"libtriton_{row.backend}.so is not built")
        library = None
        if row.place:
            library = next(iter(sorted(servers.CACHE.glob(row.place))), None)
            if library is None:
                raise Refused(f"its engine is not there: run scripts/fetch-runtime {row.backend}")
        self.given, self.answered = KINDS[row.inputs]
        files = row.files()
        samples = self.samples()
        repository = stack.enter_context(Repository())
        repository.model("model", self.config(), files={f"1/{name}": path for name, path in files.items()})
        repository.model("identity", servers_identity(self.given))
        self.sample = repository.path.parent / f"{repository.path.name}.sample"
        self.sample.write_bytes(samples[0].tobytes())
        stack.callback(self.sample.unlink)
        rows = repository.path.parent / f"{repository.path.name}.rows"
        rows.write_bytes(samples.tobytes())
        stack.callback(rows.unlink)
        environment = {f"CONCH_{row.backend.upper()}_LIBRARY": str(library)} if library else {}
        self.server = stack.enter_context(servers.Server(repository.path, prefix=machine.bound_to(cpus), environment=environment,
                                                         ready_within=300))
        self.bare = stack.enter_context(Program(row.command(library, *files.values(), rows), cpus))
        self.embedded = stack.enter_context(Program(
            [embedded(), repository.path, os.environ.get("CONCH_TEST_BACKENDS") or servers.backend_directory()], cpus,
            {**os.environ, **environment, "LD_LIBRARY_PATH": str(servers.built("libtritonserver.so").parent)}))
        self.loads = {(model, connections): stack.enter_context(Load(self.server.http, "http", self.request(model), model, connections))
                      for model in ("model", "identity") for connections in CONNECTIONS}
        self.check()
        self.calls = max(200, int(SLICE_NS / self.bare.run(1, 200)[0]))
        self.figures = collections.defaultdict(list)

    def samples(self):
        if self.row.inputs == "picture":
            return numpy.random.default_rng(20).integers(0, 255, (64, *models.PICTURE), dtype=numpy.uint8)
        return models.digits()[0][:256]

    def config(self):
        backend = PLATFORMS.get(self.row.backend, "") + f'backend: "{self.row.backend}"\nmax_batch_size: 16\n'
        parameters = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in self.row.parameters.items())
        return (backend + tensors("input", [self.given]) + tensors("output", [self.answered])
                + "instance_group [ { count: 1 kind: KIND_CPU } ]\n" + parameters)

    def request(self, model):
        name, data_type, dims = self.given
        return models.request(name if model == "model" else "INPUT0", data_type, (1, *dims), self.sample.read_bytes())

    def check(self):
        """All three answer the same, and what they should."""
        body, json_bytes = self.request("model")
        status, headers, reply = self.server.request("POST", "/v2/models/model/infer", body, {"Inference-Header-Content-Length": str(json_bytes)})
        if status != 200:
            raise Refused(f"the server answers {status}: {reply[:300]!r}")
        served = numpy.frombuffer(reply[int(headers["inference-header-content-length"]):], "<f4")
        embedded_answer = numpy.frombuffer(bytes.fromhex(self.ask_embedded("model", 1)[2]), "<f4")
        saved = self.sample.with_suffix(".answers")
        self.bare.ask("save", saved)
        bare_answer = numpy.fromfile(saved, "<f4")[:len(served)]
        saved.unlink()
        answers = {"in the server": served, "embedded": embedded_answer, "bare": bare_answer}
        if self.row.inputs == "digits":
            answers["computed"] = models.expected(weights(), self.samples()[:1]).ravel()
        for name, answer in answers.items():
            if answer.shape != served.shape or not numpy.allclose(answer, served, rtol=NEAR, atol=NEAR):
                raise Refused(f"the answer {name} is another: {answer[:5]}, {served[:5]}")

    def ask_embedded(self, model, times):
        name, data_type, dims = self.given
        shape = ",".join(map(str, (1, *dims)))
        return self.embedded.ask(model, name if model == "model" else "INPUT0", data_type, shape, self.sample, times)

    def round(self, seconds, client_cpus):
        """One measurement of each."""
        first = self.bare.run(1, self.calls)[1]
        figures = {"rested": self.bare.rest(1000, 100)[1]}
        for (model, connections), load in self.loads.items():
            before = machine.cpu_ns(self.server.pid)
            outcome = load.run(seconds, client_cpus)
            spent = machine.cpu_ns(self.server.pid) - before
            if outcome["failed"]:
                raise Refused(f"{outcome['failed']} requests failed: {outcome['reasons']}")
            figures[model, connections] = spent / outcome["requests"]
        for model in ("model", "identity"):
            times = max(1000, int(5 * seconds * 1000))
            self.ask_embedded(model, 200)
            figures[model, "embedded"] = int(self.ask_embedded(model, times)[1]) / times
        # Before and after, so that what changes meanwhile falls on both sides.
        figures["bare"] = (first + self.bare.run(1, self.calls)[1]) / 2
        for key, nanoseconds in figures.items():
            self.figures[key].append(nanoseconds / 1000)

    def median(self, key, less=None):
        """Of the rounds; `less` is taken off in each round."""
        values = self.figures[key]
        if less is not None:
            values = [value - other for value, other in zip(values, self.figures[less])]
        return statistics.median(values)


def servers_identity(given):
    from repository import identity
    _, data_type, dims = given
    return identity(inputs=(("INPUT0", data_type, dims),), batch=16)


def embedded():
    """The program that embeds the server."""
    folder = servers.built("libtritonserver.so").parent
    return compiled("embedded.c", "-I", servers.ROOT / "src/abi/include", f"-L{folder}", "-ltritonserver")


def measure(stack, options):
    """The backends that were measured, and those that were left out, each with the reason."""
    server_cpus, client_cpus = machine.halves()
    found, left_out = [], {}
    for row in BACKENDS:
        if options.backends and row.backend not in options.backends.split(","):
            continue
        try:
            found.append(Measured(row, stack, server_cpus[:1]))
        except (Refused, servers.StartFailed) as refused:
            lines = str(refused).splitlines()
            left_out[row.backend] = next((line for line in lines if "failed to load" in line or "UNAVAILABLE" in line), lines[0])
    for turn in range(options.rounds):
        started = time.monotonic()
        for measured in found:
            measured.round(options.seconds, client_cpus[:1])
        print(f"round {turn + 1}/{options.rounds}: {time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return found, left_out


COLUMNS = [*((f"http c={count}", ("model", count), ("identity", count)) for count in CONNECTIONS),
           ("embedded", ("model", "embedded"), ("identity", "embedded"))]


def report(found):
    """Prints the table; what misses the goal."""
    print("| backend | engine | engine after 100 us of rest | way | in all | beyond engine | identity | beyond both |")
    print("|---|---|---|---|---|---|---|---|")
    missed = []
    for measured in found:
        for way, model, identity in COLUMNS:
            beyond = measured.median(model, "bare")
            both = statistics.median(total - engine - other for total, engine, other in zip(
                measured.figures[model], measured.figures["bare"], measured.figures[identity]))
            print(f"| {measured.row.backend} | {measured.median('bare'):.1f} | {measured.median('rested'):.1f} | {way} |"
                  f" {measured.median(model):.1f} | {beyond:.1f} | {measured.median(identity):.1f} | {both:.1f} |")
            if way == JUDGED and beyond > GOAL_US:
                missed.append(f"{measured.row.backend}, {way}: {beyond:.1f} us > {GOAL_US}")
    print(f"\nthe goal of {GOAL_US} us beyond the engine is for what is {JUDGED}")
    return missed
