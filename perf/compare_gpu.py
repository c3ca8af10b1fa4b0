"""Host memory against CUDA shared memory, on one server and one identity model whose instance runs on a GPU.

Each size goes over HTTP (binary tensors) and gRPC, with the tensors in the bodies ("host") and in CUDA shared memory ("cuda"). The
CPU of a request is the server's own, user and system, from /proc/PID/stat; beside it what of that the thread of the GPU took (it polls while
batches are in flight) and what the network threads took. `load` of bench/ drives it, in a closed loop.
With --double it runs against the double of the driver: that shows that the program works, and no figure of it means anything."""

import argparse
import base64
import json
import os
import pathlib
import sys
import tempfile
import time

import machine
from bodies import grpc_binary, grpc_region, http_binary, http_region, tensor

# FP32 values: 64 bytes, one image of 224 x 224 x 3, and 16 MB; with connections.
SIZES = (("64 B", 16, 8), ("600 KB", 602112 // 4, 8), ("16 MB", 4 << 20, 4))
REGION = "compare"
MODEL = """backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0 ] } ]
parameters { key: "example_response_parameters" value { string_value: "false" } }
"""


def request(protocol, place, count):
    if place == "cuda":
        places = ((REGION, 0), (REGION, 4 * count))
        return http_region(count, *places) if protocol == "http" else grpc_region(count, *places)
    return http_binary(count) if protocol == "http" else grpc_binary(count)


def thread_seconds(pid):
    """CPU of the threads that drive GPUs, and of the network threads: {"core": ..., "shard": ...}."""
    seconds = {"core": 0.0, "shard": 0.0}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = machine.text_of(task / "comm")
        kind = "shard" if name.startswith("shard-") else "core" if name.startswith("gpu-") else None
        if kind:
            fields = machine.text_of(task / "stat").rpartition(")")[2].split()
            seconds[kind] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def measure(server, array, options):
    from loading import Load
    client_cpus = machine.halves()[1][:1]
    for size, count, connections in SIZES:
        array.write(tensor(count))
        for protocol in ("http", "grpc"):
            for place in ("host", "cuda"):
                if place == "cuda":
                    array.write(bytes(4 * count), 4 * count)
                with Load(server.address(protocol), protocol, request(protocol, place, count), connections=connections) as load:
                    load.run(options.warm_up_seconds, client_cpus)
                    before, threads = server.cpu_seconds(), thread_seconds(server.pid)
                    row = load.run(options.seconds, client_cpus)
                    scale = 1e6 / max(row["requests"], 1)
                    row["cpu_us"] = (server.cpu_seconds() - before) * scale
                    row.update({f"{kind}_us": (after - threads[kind]) * scale for kind, after in thread_seconds(server.pid).items()})
                if place == "cuda" and array.read(4 * count, 4 * count) != tensor(count):
                    row["failed"] += 1
                    row["reasons"].append("the output in CUDA shared memory is wrong")
                yield {"size": size, "protocol": protocol, "place": place, **row}


def report(rows):
    """The table, each row of CUDA shared memory with its ratios to the row of the host before it."""
    print("| tensor | protocol | memory | requests/s | CPU us/request | GPU's thread | network threads | CPU cuda/host | requests/s cuda/host | failed |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    before = None
    for row in rows:
        ratios = "- | -"
        if row["place"] == "cuda" and before and before["cpu_us"] and before["requests_per_second"]:
            row["cpu_ratio"] = row["cpu_us"] / before["cpu_us"]
            row["rate_ratio"] = row["requests_per_second"] / before["requests_per_second"]
            ratios = f"{row['cpu_ratio']:.2f} | {row['rate_ratio']:.2f}"
        print(f"| {row['size']} | {row['protocol']} | {row['place']} | {row['requests_per_second']:.0f} | {row['cpu_us']:.1f} |"
              f" {row['core_us']:.1f} | {row['shard_us']:.1f} | {ratios} | {row['failed']} |")
        before = row


def main(words):
    parser = argparse.ArgumentParser(prog="perf/compare --gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--double", action="store_true", help="the double of the driver instead of a GPU")
    parser.add_argument("--seconds", type=float, default=3, help="of each row")
    parser.add_argument("--warm-up-seconds", type=float, default=0.5)
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    options = parser.parse_args(words)
    if not options.double:
        os.environ["CONCH_CUDA"] = "real"
    import cuda
    import region
    import server as servers
    found, started = machine.facts(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    print("\n".join([started, *machine.described(found)]))
    if options.double:
        print("double, not a GPU: no figure below means anything")
    with tempfile.TemporaryDirectory() as directory:
        version = pathlib.Path(directory) / "identity" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(MODEL)
        byte_size = 8 * max(count for _, count, _ in SIZES)
        cpus = machine.halves()[0]
        flags = [region.FLAG, *machine.shards_on(cpus)]
        with servers.Server(directory, *flags, environment=cuda.environment(), prefix=machine.bound_to(cpus)) as server:
            with cuda.DeviceArray(byte_size) as array:
                body = {"raw_handle": {"b64": base64.b64encode(array.handle()).decode()}, "byte_size": byte_size, "device_id": 0}
                status, reply = server.post_json(region.path("register", REGION, "cuda"), body)
                if status != 200:
                    raise SystemExit(f"cannot register CUDA shared memory: {reply}")
                rows = []
                for row in measure(server, array, options):
                    rows.append(row)
                    print(f"{row['size']:7} {row['protocol']:4} {row['place']:4} {row['requests_per_second']:9.0f}/s"
                          f" {row['cpu_us']:9.1f} us CPU {'; '.join(row['reasons'])}", file=sys.stderr, flush=True)
                server.post_json(region.path("unregister", REGION, "cuda"), b"")
    report(rows)
    if options.json:
        options.json.write_text(json.dumps({"started": started, "machine": found, "double": options.double, "rows": rows}, indent=1) + "\n")
    if any(row["failed"] or not row["requests"] for row in rows):
        raise SystemExit("some requests failed")
