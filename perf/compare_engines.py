"""Engines on a GPU in conch, each beside a bare loop of the same engine on the same GPU.

Models are resnet18 (FP32, 600 KB a row) and magika (INT32, 8 KB a row), in batches of 8 and 32: one request carries a whole batch. Requests come
over HTTP with binary tensors, over gRPC, and over HTTP with tensors in CUDA shared memory. `load` of bench/ drives them in a closed loop.

    onnxruntime   ONNX Runtime with the execution provider CUDA; both models
    pytorch       TorchScript; resnet18, with the weights that the ONNX file has
    tensorrt      plans of these models, made from the ONNX files for this GPU, where they are given

The bare loop (perf/engines) has the engine compute the same batches, one or two at a time, each by a session and a stream of its own: with inputs
and answers in pinned main memory, beside HTTP and gRPC, and in device memory, beside CUDA shared memory. The ratio is conch's rows per second to
the faster one's, and should be at least 0.95. Before anything is timed, the answers of the bare loop and of each way are compared with those of
the engine on the CPU, and one engine's with the other's.

An engine that is not there is left out, with the reason. With --kind=cpu instances and bare loops run on the CPU, with --double on the doubles
of the driver and of ONNX Runtime's providers: that shows that the program works, and no figure of it means anything."""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time

import machine
import suite_packages

GOAL = 0.95
LANES = (1, 2)
# Of answers against those of the CPU, as a share of the largest: the tensor cores round inputs to TF32.
NEAR = {"gpu": 1e-2, "cpu": 1e-3, "double": 1e-3}
BARE_WARM_UP_S = 0.3
# Of a shape, before load comes: cuDNN chooses algorithms, TorchScript's optimiser compiles.
FIRST_REQUESTS = 3


class Wrong(Exception):
    """Answers that are others than they should be."""


def told(text):
    print(text, file=sys.stderr, flush=True)


def answered(server, model):
    """Requests to the model that the server has answered well."""
    return server.statistics(model.name)["inference_stats"]["success"]["count"]


class Comparison:
    """The measured rows, those of the bare loops, and what came of engines that have none."""

    def __init__(self, options, directory):
        self.options, self.directory = options, pathlib.Path(directory)
        self.rows, self.bare, self.left_out, self.broken, self.wanted = [], [], {}, {}, {}
        self.server_cpus, self.client_cpus = machine.halves()
        self.until = time.monotonic() + options.within if options.within else None

    def place(self):
        import gpu_engines
        from engine_programs import Refused
        libraries = []
        if self.options.kind == "gpu":
            # NVIDIA's libraries lie beside torch, also for other engines; without a torch the loader has to know them.
            with contextlib.suppress(Refused):
                libraries = gpu_engines.TorchPython(self.options.torch_python).libraries
        return gpu_engines.Place(self.options.kind, libraries, len(self.server_cpus))

    def run(self):
        import batch_requests
        import cuda
        import gpu_engines
        import server as servers
        from engine_programs import Refused
        place = self.place()
        for kind in gpu_engines.ENGINES:
            if self.options.only and kind.name not in self.options.only:
                continue
            try:
                engine = kind(self.options, place)
            except Refused as refused:
                self.leave_out(kind.name, refused)
                continue
            models, files = [], {}
            for model in map(self.model, (name for name in kind.models if name in self.options.models)):
                try:
                    files[model.name] = engine.files(model)
                    models.append(model)
                except Refused as refused:
                    self.leave_out(f"{kind.name} {model.name}", refused)
            begun = time.monotonic()
            try:
                models = [model for model in models if not self.is_over(f"{kind.name} {model.name}")]
                for model in models:
                    self.measure_bare(engine, model)
                if models:
                    self.measure_served(engine, models, files)
            except (Refused, Wrong, batch_requests.Unanswered, servers.StartFailed, cuda.Refused, AssertionError, RuntimeError, OSError) as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self.broken[kind.name] = next((line for line in lines if "failed to load" in line), lines[0])
                told(f"failed: {kind.name}: {error}")
            told(f"{kind.name}: {time.monotonic() - begun:.0f} s")

    def is_over(self, what):
        """Whether the time is over, so that this is left out."""
        is_over = self.until is not None and time.monotonic() > self.until
        if is_over:
            self.leave_out(what, f"the {self.options.within:.0f} s were over")
        return is_over

    def leave_out(self, what, refused):
        self.left_out[what] = str(refused)
        told(f"left out: {what}: {refused}")

    @staticmethod
    def model(name):
        import real_models
        return real_models.MODELS[name]

    def content(self, model):
        import batch_requests
        return batch_requests.rows(model, max(self.options.batches))

    def check(self, what, model, answers):
        import numpy
        wanted = self.wanted[model.name][:len(answers)]
        difference = numpy.abs(answers - wanted).max() / numpy.abs(wanted).max()
        if not difference <= NEAR[self.options.kind]:
            raise Wrong(f"{what}: wrong answers, off by {difference:.2g} of the largest: {answers[0][:4]} instead of {wanted[0][:4]}")

    # The bare loop

    def saved(self, program, memory, count, model):
        import numpy
        file = self.directory / "answers"
        program.ask("save", memory, count, file)
        return numpy.fromfile(file, "<f4").reshape(count, model.outputs[0][2][0])

    def measure_bare(self, engine, model):
        from engine_programs import Program
        rows = self.directory / f"{model.name}.rows"
        rows.write_bytes(self.content(model).tobytes())
        count = max(self.options.batches)
        if model.name not in self.wanted:
            with Program(engine.bare(model, rows, -1), self.server_cpus, name="the engine on the CPU") as program:
                self.wanted[model.name] = self.saved(program, "host", count, model)
        with Program(engine.bare(model, rows, engine.place.device), self.server_cpus, name="the bare loop") as program:
            for memory in ("host", "device"):
                self.check(f"{engine.name} {model.name}, the bare loop, {memory}", model, self.saved(program, memory, count, model))
                for batch in self.options.batches:
                    for lanes in LANES:
                        program.ask("run", memory, batch, lanes, int(BARE_WARM_UP_S * 1000))
                        batches, wall, cpu = map(int, program.ask("run", memory, batch, lanes, int(self.options.bare_seconds * 1000)))
                        row = {"engine": engine.name, "model": model.name, "batch": batch, "memory": memory, "lanes": lanes,
                               "batches_per_second": batches * 1e9 / wall, "rows_per_second": batch * batches * 1e9 / wall, "cpu_us": cpu / 1000 / batches}
                        self.bare.append(row)
                        told(f"bare   {engine.name:11} {model.name:8} {batch:2} {memory:9} {lanes} at once {row['rows_per_second']:9.0f} rows/s"
                             f" {row['cpu_us']:8.0f} us CPU")

    def best_bare(self, engine, model, batch, memory):
        return max(row["rows_per_second"] for row in self.bare
                   if (row["engine"], row["model"], row["batch"], row["memory"]) == (engine.name, model.name, batch, memory))

    # In the server

    def measure_served(self, engine, models, files):
        import base64

        import batch_requests
        import cuda
        import region
        import server as servers
        from repository import Repository
        contents = {model.name: self.content(model) for model in models}
        size = max(batch_requests.BatchRequest.region_bytes(contents[model.name], model) for model in models)
        with Repository() as repository:
            for model in models:
                repository.model(model.name, engine.config(model), files=files[model.name])
            flags = [region.FLAG, *machine.shards_on(self.server_cpus), f"--pinned-memory-pool-byte-size={1 << 30}"]
            if engine.place.kind == "gpu":
                flags.append(f"--cuda-memory-pool-byte-size=0:{1 << 29}")
            prefix = [*machine.bound_to(self.server_cpus), *map(str, engine.outside())]
            with cuda.DeviceArray(size) as array, servers.Server(repository.path, *flags, prefix=prefix, ready_within=120) as server:
                for line in server.lines:
                    if "in flight" in line:
                        told(line)
                body = {"raw_handle": {"b64": base64.b64encode(array.handle()).decode()}, "byte_size": size, "device_id": 0}
                status, reply = server.post_json(region.path("register", batch_requests.REGION, "cuda"), body)
                if status != 200:
                    raise Wrong(f"cannot register CUDA shared memory: {reply}")
                for model in models:
                    for batch in self.options.batches:
                        for way in batch_requests.WAYS:
                            if self.is_over(f"{engine.name} {model.name}, {batch} rows over {way}"):
                                continue
                            request = batch_requests.BatchRequest(model, contents[model.name][:batch], way, array)
                            self.measure_way(engine, model, batch, request, server)
                server.post_json(region.path("unregister", batch_requests.REGION, "cuda"), b"")

    def measure_way(self, engine, model, batch, request, server):
        from batch_requests import WAYS
        from loading import Load
        what = f"{engine.name} {model.name}, {batch} rows over {request.way}"
        for _ in range(FIRST_REQUESTS):
            self.check(what, model, request.ask(server))
        clients = self.client_cpus[:self.options.clients]
        with Load(server.address(request.protocol), request.protocol, request.body, model.name, max(1, self.options.connections // len(clients)),
                  warm_up_s=self.options.warm_up_seconds) as load:
            before = machine.cpu_ns(server.pid), answered(server, model)
            seen = load.run(self.options.seconds, clients)
            # Of the warm-up too.
            spent, count = machine.cpu_ns(server.pid) - before[0], answered(server, model) - before[1]
        if not seen["requests"]:
            seen.update(failed=seen["failed"] + 1, reasons=[*seen["reasons"], "no request began within the measured time: more --seconds"])
        if request.way == "http cuda":
            # What lies there is the last answer of many.
            self.check(what, model, request.ask(server))
        row = {"engine": engine.name, "model": model.name, "batch": batch, "way": request.way, "rows_per_second": batch * seen["requests_per_second"],
               "batches_per_second": seen["requests_per_second"], "p50_us": seen["p50_us"], "p99_us": seen["p99_us"],
               "cpu_us": spent / 1000 / max(count, 1), "failed": seen["failed"], "reasons": seen["reasons"],
               "ratio": batch * seen["requests_per_second"] / self.best_bare(engine, model, batch, WAYS[request.way])}
        self.rows.append(row)
        told(f"served {engine.name:11} {model.name:8} {batch:2} {request.way:9} {row['ratio']:6.2f} of bare {row['rows_per_second']:9.0f} rows/s"
             f" {row['cpu_us']:8.0f} us CPU {'; '.join(row['reasons'])}")

    # What came of it

    def report(self):
        """Prints the tables; what missed its goal."""
        print("| engine | model | batch | bare loop, memory | at once | rows/s | batches/s | CPU us/batch |\n|---|---|---|---|---|---|---|---|")
        for row in self.bare:
            print(f"| {row['engine']} | {row['model']} | {row['batch']} | {row['memory']} | {row['lanes']} | {row['rows_per_second']:.0f} |"
                  f" {row['batches_per_second']:.1f} | {row['cpu_us']:.0f} |")
        print(f"\n| engine | model | batch | way | rows/s | batches/s | p50 us | p99 us | CPU us/request | of bare (at least {GOAL}) | failed |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        missed = [f"{name}: {why}" for name, why in self.broken.items()]
        for row in self.rows:
            print(f"| {row['engine']} | {row['model']} | {row['batch']} | {row['way']} | {row['rows_per_second']:.0f} | {row['batches_per_second']:.1f} |"
                  f" {row['p50_us']:.0f} | {row['p99_us']:.0f} | {row['cpu_us']:.0f} | {row['ratio']:.2f} | {row['failed']} |")
            what = f"{row['engine']} {row['model']}, {row['batch']} rows over {row['way']}"
            if row["failed"]:
                missed.append(f"{what}: {row['failed']} failed requests")
            if row["ratio"] < GOAL:
                missed.append(f"{what}: {row['ratio']:.2f}")
        for name, why in self.left_out.items():
            print(f"\nleft out: {name}: {why}")
        for name, why in self.broken.items():
            print(f"\nfailed: {name}: {why}")
        return missed


def chosen(parser, text, known, what):
    """The words of a list with commas, all of them known."""
    words = [word for word in text.split(",") if word]
    if unknown := [word for word in words if word not in known]:
        parser.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return words


def pair(parser, text, option):
    """What stands on both sides of the first `=`."""
    name, equals, value = text.partition("=")
    if not equals:
        parser.error(f"{option}={text} has no value")
    return name, value


def parse(words):
    parser = argparse.ArgumentParser(prog="perf/compare --gpu --engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("gpu", "cpu"), default="gpu", help="cpu: instances and bare loops on the CPU")
    parser.add_argument("--double", action="store_true", help="the doubles of the driver and of ONNX Runtime's providers instead of a GPU")
    parser.add_argument("--only", default="", help="engines, with commas")
    parser.add_argument("--models", default="resnet18,magika", help="with commas")
    parser.add_argument("--batches", default="8,32", help="rows of a request, with commas")
    parser.add_argument("--seconds", type=float, default=2, help="of each row")
    parser.add_argument("--warm-up-seconds", type=float, default=0.5)
    parser.add_argument("--bare-seconds", type=float, default=0.7, help="of each row of the bare loops")
    parser.add_argument("--within", type=float, default=0, help="seconds after which rows are left out (0: none)")
    parser.add_argument("--connections", type=int, default=16, help="with a request each, over all clients")
    parser.add_argument("--clients", type=int, default=4, help="processes of `load`, each on a CPU of its own, where there are so many")
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--batches-in-flight", type=int, default=2, help="the parameter of the models, on a GPU")
    parser.add_argument("--cuda-option", action="append", default=[], metavar="NAME=VALUE",
                        help="of ONNX Runtime's execution provider CUDA, in the server and the bare loop; may be given again")
    parser.add_argument("--onnxruntime-library", help="ONNX Runtime, or the folder that holds it with its providers "
                        "(default: $CONCH_ONNXRUNTIME_LIBRARY, or what scripts/fetch-runtime onnxruntime_gpu fetched)")
    parser.add_argument("--torch-python", help="a Python that has torch; NVIDIA's libraries are looked for beside its torch (default: python3)")
    parser.add_argument("--torch-shim", help="what scripts/build-torch-shim made for that torch, or its folder (default: where it puts it)")
    parser.add_argument("--tensorrt-library", help="libnvinfer.so.<major>")
    parser.add_argument("--tensorrt-shim", help="what scripts/build-tensorrt-shim made for it (default: where it puts it)")
    parser.add_argument("--tensorrt-plan", action="append", default=[], metavar="MODEL=FILE", help="a plan for 1 to 32 rows; may be given again")
    parser.add_argument("--model-directory", help="a folder with magika.onnx (default: where scripts/fetch-models puts it)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args(words)
    options.kind = "double" if options.double else options.kind
    options.only = chosen(parser, options.only, ("onnxruntime", "pytorch", "tensorrt"), "engine")
    options.models = chosen(parser, options.models, ("resnet18", "magika"), "model")
    options.batches = [int(size) for size in chosen(parser, options.batches, [str(size) for size in range(1, 33)], "batch")]
    options.cuda_options = [pair(parser, option, "--cuda-option") for option in options.cuda_option]
    options.tensorrt_plans = dict(pair(parser, option, "--tensorrt-plan") for option in options.tensorrt_plan)
    chosen(parser, ",".join(options.tensorrt_plans), ("resnet18", "magika"), "model")
    if min(options.seconds, options.bare_seconds, options.warm_up_seconds, options.connections, options.clients) <= 0 or not options.batches:
        parser.error("numbers are above 0")
    return options


def main(words):
    options = parse(words)
    suite_packages.run_with_packages(("numpy", "tritonclient"))
    if options.kind == "gpu":
        os.environ["CONCH_CUDA"] = "real"
    found, started = machine.facts(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    print("\n".join([started, *machine.described(found)]))
    if options.kind != "gpu":
        print(f"{options.kind}, not a GPU: no figure below means anything")
    with tempfile.TemporaryDirectory(prefix="conch-engines-") as directory:
        comparison = Comparison(options, directory)
        comparison.run()
    missed = comparison.report()
    if options.json:
        options.json.write_text(json.dumps({"started": started, "machine": found, "kind": options.kind, "bare": comparison.bare, "rows": comparison.rows,
                                            "left_out": comparison.left_out, "broken": comparison.broken, "missed": missed}, indent=1) + "\n")
    if comparison.broken or any(row["failed"] for row in comparison.rows):
        raise SystemExit("failed: " + "; ".join(missed))
    if not comparison.rows:
        raise SystemExit("no engine is here")
    if options.check and missed:
        raise SystemExit("missed: " + "; ".join(missed))
