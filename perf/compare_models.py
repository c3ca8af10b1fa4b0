"""Models of real size: conch beside the real Triton, both with conch's onnxruntime backend and the same library of ONNX Runtime.

magika (a small network over 2,048 bytes), all-MiniLM-L6-v2 (32 words) and resnet18 (random weights), one instance each with as many threads as
the servers have CPUs, batched as requests come. All over HTTP with binary tensors. In each round, for each model, both servers in turn:

    peak        requests per second in a closed loop of --connections
    Poisson     independent arrivals at 80 % of the slower one's peak, the same times for both: p50 and p99, counted from the arrival

The throughput ratio is conch's peak over Triton's, and may not be below 1; the p99 ratio is conch's over Triton's at that rate, and may not be
above 1. With --plot=FILE one model (--plot-model) is offered rates from a tenth of the slower one's peak to more than it, and p50 and p99 are
drawn over the rate.

Needs the peers ($PEERS_DIR, default ~/.cache/peers), scripts/fetch-runtime onnxruntime, scripts/fetch-models --tests. Build before:
cargo build --release -p conch -p conch-backend-onnxruntime -p conch-bench
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

import chart_svg
import machine
import suite_packages

SERVERS = ("conch", "triton")
SHARE = 0.8
RATIO_GOALS = {"throughput": 1.0, "p99": 1.0}
PLOT_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1)


class Pair:
    """Both servers with all models, and the requests to each model."""

    def __init__(self, stack, options, chosen):
        import real_models
        import server as servers
        from repository import Repository
        self.real_models, self.options, self.models = real_models, options, chosen
        server_cpus, client_cpus = machine.halves()
        self.client_cpus = client_cpus[:1]
        repository = stack.enter_context(Repository())
        for model in chosen:
            repository.model(model.name, real_models.config(model, len(server_cpus)), files={"1/model.onnx": model.file()})
        self.running = {name: stack.enter_context(servers.Server(repository.path, kind=name, prefix=machine.bound_to(server_cpus), ready_within=120))
                        for name in SERVERS}

    def check(self, model):
        """Both answer what ONNX Runtime does."""
        import numpy
        body, json_bytes = self.real_models.binary_request(model)
        wanted = self.real_models.expected(model)
        for name, server in self.running.items():
            status, headers, reply = server.request("POST", f"/v2/models/{model.name}/infer", body, {"Inference-Header-Content-Length": str(json_bytes)})
            if status != 200:
                raise SystemExit(f"{name}, {model.name}: {status} {reply[:300]!r}")
            answer = numpy.frombuffer(reply[int(headers["inference-header-content-length"]):], "<f4")
            if answer.size != wanted.size or not numpy.allclose(answer, wanted.ravel(), rtol=self.real_models.NEAR, atol=self.real_models.NEAR):
                raise SystemExit(f"{name}, {model.name}: wrong answer: {answer[:5]} instead of {wanted.ravel()[:5]}")

    def load(self, name, model, seconds, rate=0):
        """What `load` saw, with the server's CPU per request."""
        from loading import Load
        server = self.running[name]
        with Load(server.http, "http", self.real_models.binary_request(model), model.name, self.options.connections, rate, "poisson",
                  self.options.warm_up_seconds) as load:
            before = machine.cpu_ns(server.pid)
            row = load.run(seconds, self.client_cpus)
        whole = row["requests"] * (seconds + self.options.warm_up_seconds) / seconds
        row["cpu_us"] = (machine.cpu_ns(server.pid) - before) / 1000 / max(whole, 1)
        if row["failed"]:
            raise SystemExit(f"{name}, {model.name}: {row['failed']} requests failed: {row['reasons']}")
        return row


def told(text):
    print(text, file=sys.stderr, flush=True)


def measure(pair, options):
    """Rows by (model, server, "peak" or "poisson")."""
    rows = collections.defaultdict(list)
    for turn in range(options.rounds):
        order = SERVERS[turn % 2:] + SERVERS[:turn % 2]
        for model in pair.models:
            for name in order:
                rows[model.name, name, "peak"].append(pair.load(name, model, options.peak_seconds))
            rate = SHARE * min(peak(rows, model, name) for name in SERVERS)
            for name in order:
                row = pair.load(name, model, options.seconds, rate)
                rows[model.name, name, "poisson"].append({**row, "rate": rate})
                told(f"round {turn + 1}/{options.rounds}  {model.name:8} {name:6} peak {rows[model.name, name, 'peak'][-1]['requests_per_second']:7.0f}/s,"
                     f" at {rate:6.0f}/s p50 {row['p50_us']:8.0f} us, p99 {row['p99_us']:8.0f} us, {row['cpu_us']:7.0f} us CPU, load of the machine {os.getloadavg()[0]:.1f}")
    return rows


def peak(rows, model, name):
    return statistics.median(row["requests_per_second"] for row in rows[model.name, name, "peak"])


def report(pair, rows):
    """Prints both tables; what missed its goal, and the figures."""
    print("| model | server | peak requests/s | Poisson requests/s | p50 us | p99 us | CPU us/request |\n|---|---|---|---|---|---|---|")
    missed, figures, ratios = [], [], []
    for model in pair.models:
        found = {}
        for name in SERVERS:
            poisson = rows[model.name, name, "poisson"]
            found[name] = {"peak": peak(rows, model, name), **{key: statistics.median(row[key] for row in poisson)
                                                               for key in ("requests_per_second", "p50_us", "p99_us", "cpu_us")}}
            row = found[name]
            figures.append({"model": model.name, "server": name, **row})
            print(f"| {model.name} | {name} | {row['peak']:.0f} | {row['requests_per_second']:.0f} | {row['p50_us']:.0f} | {row['p99_us']:.0f} |"
                  f" {row['cpu_us']:.0f} |")
        own, other = (found[name] for name in SERVERS)
        ratios.append((model.name, own["peak"] / other["peak"], own["p50_us"] / other["p50_us"], own["p99_us"] / other["p99_us"],
                       own["cpu_us"] / other["cpu_us"]))
    print("\n| model | throughput conch/Triton (at least 1.0) | p50 | p99 (at most 1.0) | CPU |\n|---|---|---|---|---|")
    for name, throughput, p50, p99, cpu in ratios:
        print(f"| {name} | {throughput:.2f} | {p50:.2f} | {p99:.2f} | {cpu:.2f} |")
        if throughput < RATIO_GOALS["throughput"] or p99 > RATIO_GOALS["p99"]:
            missed.append(f"{name}: throughput {throughput:.2f}, p99 {p99:.2f}")
    return missed, figures


def plot(pair, options):
    """p50 and p99 of both servers over the offered rate; the points."""
    model = pair.real_models.MODELS[options.plot_model]
    slower = min(pair.load(name, model, options.peak_seconds)["requests_per_second"] for name in SERVERS)
    found = collections.defaultdict(list)
    for share in PLOT_SHARES:
        rate = round(slower * share, 1)
        for name in SERVERS:
            row = pair.load(name, model, options.plot_seconds, rate)
            told(f"{model.name} {name:6} {share:4.0%} {rate:7.1f}/s: p50 {row['p50_us']:.0f} us, p99 {row['p99_us']:.0f} us")
            for quantile in ("p50", "p99"):
                found[f"{name} {quantile}"].append((rate, row[f"{quantile}_us"] / 1000))
    title = f"{model.name}: latency over the offered rate, Poisson arrivals; the slower server's peak is {slower:.0f}/s"
    # Each server's two curves one after the other, so that their colours lie beside each other.
    options.plot.write_text(chart_svg.draw(title, "requests per second", [chart_svg.Panel("ms", sorted(found.items()), is_log=True)]))
    return dict(found)


def main(words):
    parser = argparse.ArgumentParser(prog="perf/compare --models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models, separated by commas: magika, minilm, resnet18")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of arrivals by Poisson, per run")
    parser.add_argument("--peak-seconds", type=float, default=4, help="of the closed loop, per run")
    parser.add_argument("--warm-up-seconds", type=float, default=0.5, help="before each run, not counted")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--plot", type=pathlib.Path, help="draw latency over load into this SVG file; with --rounds=0 nothing else is measured")
    parser.add_argument("--plot-model", default="magika")
    parser.add_argument("--plot-seconds", type=float, default=5, help="per rate and server")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args(words)
    suite_packages.run_with_packages()
    import real_models
    import server as servers
    if not (servers.PEERS / "triton").exists():
        parser.exit(2, f"the real Triton is not in {servers.PEERS}; set PEERS_DIR\n")
    unknown = [name for name in (*filter(None, options.only.split(",")), options.plot_model) if name not in real_models.MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}")
    chosen = [model for name, model in real_models.MODELS.items() if not options.only or name in options.only.split(",")]
    if options.plot and options.plot_model not in [model.name for model in chosen]:
        chosen.append(real_models.MODELS[options.plot_model])
    started, found = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), machine.facts()
    print("\n".join([started, *machine.described(found)]), flush=True)
    with contextlib.ExitStack() as stack:
        try:
            pair = Pair(stack, options, chosen)
        except real_models.Refused as refused:
            parser.exit(2, f"{refused}\n")
        for model in pair.models:
            pair.check(model)
        missed, figures = report(pair, measure(pair, options)) if options.rounds else ([], [])
        points = plot(pair, options) if options.plot else {}
    if options.json:
        options.json.write_text(json.dumps({"started": started, "machine": found, "rows": figures, "plot": points}, indent=1) + "\n")
    if options.check and missed:
        raise SystemExit("missed: " + "; ".join(missed))
