"""Models in Python: conch with its Python backend beside the real Triton with upstream's, on the same models and interpreter.

An identity of FP32 (64 B and 600 KB, one by one and in dynamic batches of 16), the same by a call of another model (BLS, to the identity in
Rust or C++ that both servers load), and a decoupled model that answers 16 times. wrk drives them over HTTP. Servers and the processes of
their models are pinned on one CPU and the client on another, and every round visits the servers in turn. The CPU of a request is user and
system time of the server and of all its processes. `conch/upstream` and `triton/own` are the other two pairs of server and backend.

Needs wrk (Debian: wrk) and the peers ($PEERS_DIR, default ~/.cache/peers)."""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import loading
import machine
from bodies import http_binary, tensor

LARGE = 602112 // 4
DECOUPLED_COUNT = 16

IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given.as_numpy())]))
        return responses
"""
CALL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            call = pb_utils.InferenceRequest(model_name="identity", requested_output_names=["OUTPUT0"], inputs=[given])
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            output = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output.as_numpy())]))
        return responses
"""
REPEAT = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]
            sender = request.get_response_sender()
            for index in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numpy.array([index], numpy.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SAME = """max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
BATCHED = "dynamic_batching { preferred_batch_size: [ 16 ] max_queue_delay_microseconds: 2000 }\n"
DECOUPLED = """max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
NO_PARAMETERS = 'parameters { key: "example_response_parameters" value { string_value: "false" } }\n'
# name: (configuration, source)
MODELS = {
    "same": ('backend: "python"\n' + SAME, IDENTITY), "batched": ('backend: "python"\n' + SAME + BATCHED, IDENTITY),
    "call": ('backend: "python"\n' + SAME, CALL), "repeat": ('backend: "python"\n' + DECOUPLED, REPEAT),
    "identity": ('backend: "identity"\n' + SAME + NO_PARAMETERS, None),
}
Case = collections.namedtuple("Case", "name path body json_bytes connections expected")


def identity_case(name, model, count, connections):
    body, json_bytes = http_binary(count)
    return Case(name, f"{model}/infer", body, json_bytes, connections, tensor(count))


CASES = [
    identity_case("64 B", "same", 16, 1),
    identity_case("600 KB", "same", LARGE, 1),
    identity_case("64 B, batches of 16", "batched", 16, 16),
    identity_case("600 KB, batches of 16", "batched", LARGE, 16),
    identity_case("BLS 64 B", "call", 16, 1),
    identity_case("BLS 600 KB", "call", LARGE, 1),
    Case(f"decoupled, {DECOUPLED_COUNT} responses", "repeat/generate_stream", b'{"IN": %d}' % DECOUPLED_COUNT, None, 1,
         b'"OUT":%d' % (DECOUPLED_COUNT - 1)),
]
# The largest ratios of conch/own to triton/upstream that are accepted: CPU per request, median latency.
CPU_GOAL, P50_GOAL = 0.5, 0.6


def processes(pid):
    """A process and all below it."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        for task in pathlib.Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended
                left += [int(word) for word in task.read_text().split()]
    return found


def cpu_seconds(pid):
    ticks = 0
    for one in processes(pid):
        fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def backends_of(kind, servers, directory):
    """A backend directory with the identity that all servers load, and the Python backend of one side."""
    own = servers.backend_directory()
    python = {"own": own / "python", "upstream": servers.PEERS / "backends/python", "abi": servers.PEERS / "abi/backends/python"}
    target = directory / f"backends-{kind}"
    target.mkdir()
    (target / "identity").symlink_to(own / "identity")
    (target / "python").symlink_to(python[kind])
    return target


def start(name, servers, directory, prefix):
    kind, _, backend = name.partition("/")
    environment = {"PATH": f"{servers.PEERS / 'venv/bin'}:{os.environ['PATH']}"}
    if name == "conch/upstream":
        backend = "abi"
        environment["LD_LIBRARY_PATH"] = str(servers.PEERS / "pytriton/nvidia_pytriton.libs")
    place = directory / name.replace("/", "-")
    place.mkdir()
    backends = backends_of(backend, servers, place)
    return servers.Server(directory / "repository", kind=kind, backends=str(backends), environment=environment, prefix=prefix)


def check(server, case):
    headers = {"Inference-Header-Content-Length": str(case.json_bytes)} if case.json_bytes else {}
    status, _, reply = server.request("POST", f"/v2/models/{case.path}", case.body, headers)
    if status != 200 or case.expected not in reply:
        raise SystemExit(f"{case.name}: wrong answer: {status} {reply[:300]!r}")


def drive(server, case, seconds, client_cpu):
    """Runs wrk once: requests, seconds, failed, p50_us, p99_us."""
    headers = [f"Inference-Header-Content-Length: {case.json_bytes}"] if case.json_bytes else []
    return loading.wrk(f"http://{server.http}/v2/models/{case.path}", case.body, case.connections, seconds, client_cpu, headers)


def measure(options, servers):
    cases = [case for case in CASES if not options.cases or any(part in case.name for part in options.cases.split(","))]
    names = options.servers.split(",")
    results = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        for name, (config, source) in MODELS.items():
            version = directory / "repository" / name / "1"
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(config)
            if source:
                (version / "model.py").write_text(source)
        running = {}
        try:
            for name in names:
                running[name] = start(name, servers, directory, ["taskset", "-c", str(options.server_cpu)])
            for turn in range(options.rounds):
                for case in cases:
                    for name in names[turn % len(names):] + names[:turn % len(names)]:
                        server = running[name]
                        check(server, case)
                        drive(server, case, 1, options.client_cpu)
                        before = cpu_seconds(server.pid)
                        row = drive(server, case, options.seconds, options.client_cpu)
                        row["cpu_us"] = (cpu_seconds(server.pid) - before) * 1e6 / max(row["requests"], 1)
                        results[case.name, name].append(row)
                        print(f"round {turn + 1}/{options.rounds}  {case.name:24} {name:15} {row['requests'] / row['seconds']:8.0f}/s"
                              f" {row['cpu_us']:8.1f} us CPU  p50 {row['p50_us']} us", file=sys.stderr, flush=True)
        finally:
            for server in running.values():
                server.kill()
    return cases, names, results


def summary(rows):
    requests = sum(row["requests"] for row in rows)
    return {"requests_per_second": requests / sum(row["seconds"] for row in rows), "failed": sum(row["failed"] for row in rows),
            "p50_us": statistics.median(row["p50_us"] for row in rows), "p99_us": statistics.median(row["p99_us"] for row in rows),
            "cpu_us": sum(row["cpu_us"] * row["requests"] for row in rows) / max(requests, 1)}


def report(cases, names, table):
    """Prints both tables; what missed its goal."""
    print("| case | server/backend | requests/s | p50 us | p99 us | CPU us/request | failed |\n|---|---|---|---|---|---|---|")
    for case in cases:
        for name in names:
            row = table[case.name, name]
            print(f"| {case.name} | {name} | {row['requests_per_second']:.0f} | {row['p50_us']:.0f} | {row['p99_us']:.0f} |"
                  f" {row['cpu_us']:.1f} | {row['failed']} |")
    missed = [f"{case.name}: {table[case.name, name]['failed']} failed" for case in cases for name in names if table[case.name, name]["failed"]]
    if {"conch/own", "triton/upstream"} <= set(names):
        print(f"\n| case | CPU (goal {CPU_GOAL}) | p50 (goal {P50_GOAL}) |\n|---|---|---|")
        for case in cases:
            own, other = table[case.name, "conch/own"], table[case.name, "triton/upstream"]
            cpu, p50 = own["cpu_us"] / other["cpu_us"], own["p50_us"] / other["p50_us"]
            print(f"| {case.name} | {cpu:.2f} | {p50:.2f} |")
            if cpu > CPU_GOAL or p50 > P50_GOAL:
                missed.append(f"{case.name}: CPU {cpu:.2f}, p50 {p50:.2f}")
    return missed


def main(words):
    parser = argparse.ArgumentParser(prog="perf/compare --python", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="conch/own,triton/upstream", help="of conch/own, triton/upstream, conch/upstream, triton/own")
    parser.add_argument("--cases", default="", help="parts of case names, separated by commas")
    parser.add_argument("--seconds", type=int, default=5, help="per run, after one second of warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--client-cpu", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed or a request failed")
    options = parser.parse_args(words)
    if not shutil.which("wrk"):
        parser.exit(2, "wrk is missing: apt-get install wrk\n")
    import server as servers
    if not (servers.PEERS / "backends/python").exists():
        parser.exit(2, f"upstream's Python backend is not in {servers.PEERS}; set PEERS_DIR\n")
    found, started = machine.facts(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    print("\n".join([started, *machine.described(found)]))
    cases, names, results = measure(options, servers)
    table = {key: summary(rows) for key, rows in results.items()}
    missed = report(cases, names, table)
    if options.json:
        rows = {f"{case} / {name}": row for (case, name), row in table.items()}
        options.json.write_text(json.dumps({"started": started, "machine": found, "rows": rows}, indent=1) + "\n")
    if options.check and missed:
        raise SystemExit("missed: " + "; ".join(missed))
