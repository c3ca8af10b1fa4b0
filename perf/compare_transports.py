"""TLS and Unix sockets: what they add to a request, beside the same request in the clear over TCP, and beside the real Triton where that
has them (TLS under gRPC).

h2load is the client of all of them. Servers run on one CPU and the client on another; every round visits transports and servers in turn.
Triton has neither HTTPS nor Unix sockets: those rows have the ratio to its HTTP, or its gRPC, over TCP in the clear. Keys are P-256.

Needs h2load and openssl (Debian: nghttp2-client, openssl). The real Triton is taken from $PEERS_DIR (default ~/.cache/peers)."""

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import tempfile

import certificates
import machine
import server as servers
from bodies import grpc_binary, http_binary

MODEL = """backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "example_response_parameters" value { string_value: "false" } }
"""
LARGE = 602112 // 4
# Protocol, what is asked, floats, connections, streams of each.
CASES = (("http", "small c=1", 16, 1, 1), ("http", "small c=32", 16, 32, 1), ("http", "600 KB", LARGE, 8, 1),
         ("grpc", "small c=1", 16, 1, 1), ("grpc", "small c=32", 16, 4, 8), ("grpc", "600 KB", LARGE, 4, 2))
TRANSPORTS = ("tcp", "tls", "unix")


class Target:
    """A server with one transport."""

    def __init__(self, name, transport, options, repository, files, directory):
        self.name, self.transport, self.sockets = name, transport, {}
        flags, environment = [], None
        if transport == "tls":
            prefixes = ("grpc", "http") if name == "conch" else ("grpc",)
            key = files.make(f"{name}-own", "ec", issuer="root")
            for prefix in prefixes:
                flags += [f"--{prefix}-use-ssl=true", f"--{prefix}-server-cert={key[0]}", f"--{prefix}-server-key={key[1]}"]
            if name == "triton":
                flags.append(f"--grpc-root-cert={files.root}")
        if transport == "unix":
            self.sockets = {protocol: directory / f"{protocol}.sock" for protocol in ("http", "grpc")}
            flags += [f"--{protocol}-address=unix:{path}" for protocol, path in self.sockets.items()]
        if name == "conch" and options.conch:
            os.environ["CONCH"] = str(options.conch)
        context = files.context() if transport == "tls" and name == "conch" else None
        self.server = servers.Server(repository, *flags, kind=name, prefix=machine.bound_to([options.server_cpu]), backends=options.backends,
                                     tls={"http": context} if context else None, environment=environment)

    def has(self, protocol):
        return not (self.name == "triton" and self.transport == "tls" and protocol == "http")

    def drive(self, case, seconds, cpu, body):
        """Runs the client once: requests, seconds of CPU of the server."""
        protocol, _, _, connections, streams = case
        content, json_bytes = body
        scheme = "https" if self.transport == "tls" else "http"
        port = 80 if self.sockets else self.server.ports[protocol]
        url = f"{scheme}://localhost:{port}/"
        command = [*machine.bound_to([cpu]), "h2load", f"-c{connections}", f"-m{streams}", f"-D{seconds}", f"--data={content}"]
        if self.sockets:
            command.append(f"--base-uri=unix:{self.sockets[protocol]}")
        if protocol == "http":
            command += ["--h1", "-H", f"Inference-Header-Content-Length: {json_bytes}", f"{url}v2/models/identity/infer"]
        else:
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"{url}inference.GRPCInferenceService/ModelInfer"]
        before, answered = self.server.cpu_seconds(), self.answered()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"h2load ended with {done.returncode}: {done.stderr[-500:]}")
        # By the server's own count: a failure of gRPC is HTTP 200.
        return self.answered() - answered, self.server.cpu_seconds() - before

    def answered(self):
        """Inferences that went well, by the page of metrics, which every server has over TCP in the clear."""
        return sum(value for name, value in self.server.metrics().items() if name.startswith("nv_inference_request_success"))


def measure(options):
    """Of each case, transport and server: CPU microseconds per request and requests per second, a row per round."""
    names = ["conch"]
    if (servers.PEERS / "triton").exists():
        names.append("triton")
    else:
        print("no real Triton here: its columns are left out", file=sys.stderr)
    cases = [case for case in CASES if not options.cases or any(part in f"{case[0]} {case[1]}" for part in options.cases.split(","))]
    rows, files = collections.defaultdict(list), certificates.Certificates()
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        (directory / "repository/identity/1").mkdir(parents=True)
        (directory / "repository/identity/config.pbtxt").write_text(MODEL)
        bodies = {}
        for protocol, name, floats, *_ in cases:
            content, json_bytes = (http_binary if protocol == "http" else grpc_binary)(floats)
            file = directory / f"{protocol}-{floats}"
            file.write_bytes(content)
            bodies[protocol, name] = (file, json_bytes)
        targets = []
        try:
            for name in names:
                for transport in TRANSPORTS:
                    if name == "conch" or transport != "unix":
                        targets.append(Target(name, transport, options, directory / "repository", files, directory))
            for index in range(options.rounds):
                for case in cases:
                    for target in targets[index % len(targets):] + targets[:index % len(targets)]:
                        if not target.has(case[0]):
                            continue
                        body = bodies[case[0], case[1]]
                        target.drive(case, 1, options.client_cpu, body)
                        requests, cpu = target.drive(case, options.seconds, options.client_cpu, body)
                        if not requests:
                            raise SystemExit(f"{target.name} over {target.transport} answered no {case[0]} {case[1]}")
                        rows[case[:2], target.transport, target.name].append((requests, cpu))
                        print(f"round {index + 1}/{options.rounds}  {case[0]} {case[1]:10} {target.transport:4} {target.name:7}"
                              f" {cpu * 1e6 / requests:8.1f} us CPU", file=sys.stderr)
            for target in targets:
                if target.name == "conch":
                    target.server.terminate()
        finally:
            for target in targets:
                target.server.kill()
    return cases, rows


def cost(rows, *key):
    """CPU microseconds per request over all rounds; none without any."""
    found = rows.get(key)
    return sum(cpu for _, cpu in found) * 1e6 / sum(requests for requests, _ in found) if found else None


def main(words):
    parser = argparse.ArgumentParser(prog="perf/compare --transports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="per run, after one second of warm-up")
    parser.add_argument("--cases", default="", help="parts of case names, separated by commas")
    parser.add_argument("--server-cpu", type=int, default=0)
    parser.add_argument("--client-cpu", type=int, default=1)
    parser.add_argument("--conch", type=pathlib.Path, help="the executable (default: the release build)")
    parser.add_argument("--backends", type=pathlib.Path, help="backend directory (default: links to the release build)")
    options = parser.parse_args(words)
    cases, rows = measure(options)
    print("| case | transport | conch, requests/s | conch, CPU us | to its own TCP | Triton, CPU us | conch/Triton | |\n|---|---|---|---|---|---|---|---|")
    for case in cases:
        for transport in TRANSPORTS:
            key = (case[:2], transport, "conch")
            own, plain = cost(rows, *key), cost(rows, case[:2], "tcp", "conch")
            theirs, note = cost(rows, case[:2], transport, "triton"), ""
            if theirs is None and (theirs := cost(rows, case[:2], "tcp", "triton")):
                note = "Triton's over TCP in the clear: it has none of this"
            rate = sum(requests for requests, _ in rows[key]) / (len(rows[key]) * options.seconds)
            columns = f"{theirs:.1f} | {own / theirs:.2f}" if theirs else "- | -"
            print(f"| {case[0]} {case[1]} | {transport} | {rate:.0f} | {own:.1f} | {own / plain:.2f} | {columns} | {note} |")
