"""The server in process: conch's libtritonserver.so beside the real Triton's, in the same C program, with the same backend .so.

A third row is conch's with `CONCH_INLINE` "callers", where the thread that calls executes.

The program makes a request of FP32[1,16] anew each time, as an embedder does that has a protocol of its own, and looks at its answer. CPU of a
request is that of all threads of the process, the program's own work included. Processes run on the given CPUs, and every round visits
the libraries in turn.

Needs a C compiler. The real Triton is taken from $PEERS_DIR (default ~/.cache/peers); without it the ratios are left out."""

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import tempfile

import machine
import server as servers
from engine_programs import Program, Refused, made, run

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = ROOT / "perf/embedder.c"
MODEL = """backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "example_response_parameters" value { string_value: "false" } }
"""
CALLERS = 'parameters { key: "CONCH_INLINE" value { string_value: "callers" } }\n'
OWN = ("conch", "conch, callers execute")
IN_FLIGHT = (1, 32)
GOAL = 0.5


def program():
    header = ROOT / "tests/capi/api.h"
    return made(SOURCE.read_text() + header.read_text(), "embedder", lambda path: run(
        ["gcc", "-std=gnu11", "-O2", "-I", ROOT / "src/abi/include", "-I", header.parent, SOURCE, "-o", path, "-ldl", "-lpthread"]))


def start(name, options, repository):
    library, environment = options.library, None
    if name == "triton":
        library, environment = servers.PEERS / "serverlib/libtritonserver.so", dict(os.environ)
        places = (servers.PEERS / "serverlib", servers.PEERS / "pytriton/nvidia_pytriton.libs")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, places))
    return Program([program(), library, repository, options.backends or servers.backend_directory()], options.cpus, environment)


def libraries():
    if (servers.PEERS / "serverlib/libtritonserver.so").exists():
        return (*OWN, "triton")
    print("no real Triton here: its rows are left out", file=sys.stderr)
    return OWN


def measure(options, repository, libraries):
    """Of each library and number of requests in flight: nanoseconds per request (on the clock, of CPU, p50, p99), a row per round."""
    rows = {}
    with contextlib.ExitStack() as stack:
        names = [(name, stack.enter_context(start(name, options, repository / ("callers" if "callers" in name else "plain")))) for name in libraries]
        for _, library in names:
            library.ask(32, 20_000)
        for index in range(options.rounds):
            for in_flight in IN_FLIGHT:
                for name, library in names[index % len(names):] + names[:index % len(names)]:
                    wall, cpu, p50, p99 = map(int, library.ask(in_flight, options.requests))
                    row = (wall / options.requests, cpu / options.requests, p50, p99)
                    rows.setdefault((in_flight, name), []).append(row)
                    print(f"round {index + 1}/{options.rounds}  {in_flight:3} in flight  {name:22} {row[1] / 1000:8.2f} us CPU", file=sys.stderr)
    return rows


def main(words):
    parser = argparse.ArgumentParser(prog="perf/compare --embedded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100_000, help="per run")
    parser.add_argument("--cpus", type=lambda text: [int(cpu) for cpu in text.split(",")], default=machine.cpus()[:2],
                        help="of each process, as 0,1 (default: two)")
    parser.add_argument("--library", type=pathlib.Path, default=servers.built("libtritonserver.so"), help="conch's (default: the release build)")
    parser.add_argument("--backends", type=pathlib.Path, help="backend directory (default: links to the release build)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as directory:
        for repository, config in {"plain": MODEL, "callers": MODEL + CALLERS}.items():
            version = pathlib.Path(directory) / repository / "identity/1"
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(config)
        try:
            names = libraries()
            rows = measure(options, pathlib.Path(directory), names)
        except Refused as error:
            parser.exit(2, f"{error}\n")
    print("| in flight | library | requests/s | CPU us/request | p50 us | p99 us | CPU conch/Triton |\n|---|---|---|---|---|---|---|")
    missed = []
    for in_flight in IN_FLIGHT:
        for name in names:
            wall, cpu, p50, p99 = (statistics.median(column) for column in zip(*rows[in_flight, name], strict=True))
            ratio = ""
            if name in OWN and "triton" in names:
                value = statistics.median(own[1] / other[1] for own, other in zip(rows[in_flight, name], rows[in_flight, "triton"], strict=True))
                ratio = f"{value:.2f}"
                if value > GOAL:
                    missed.append(f"{name}, {in_flight} in flight: {ratio} > {GOAL}")
            print(f"| {in_flight} | {name} | {1e9 / wall:.0f} | {cpu / 1000:.2f} | {p50 / 1000:.1f} | {p99 / 1000:.1f} | {ratio} |")
    if options.check and missed:
        raise SystemExit("missed: " + "; ".join(missed))
