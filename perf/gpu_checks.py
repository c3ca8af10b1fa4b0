"""Checks of a server on a GPU, for scripts/test-gpu: `identity`, `memory`, `perf_analyzer`. Each writes what it found as JSON."""

import argparse
import base64
import contextlib
import csv
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
os.environ.setdefault("CONCH_PROFILE", "release")
# FP32 values of a tensor.
COUNTS = (1, 16, 1000, 602112 // 4, 4 << 20)
# What the server may grow by after its first fifth of requests: arenas and stacks that were not touched before.
RESIDENT_GROWTH_MAX = 8 << 20
GPU_GROWTH_MAX = 2 << 20
METRICS_INTERVAL_MS = 100


@contextlib.contextmanager
def serving(*flags):
    """A server with the model of perf/compare --gpu."""
    import compare_gpu
    import cuda
    import region
    import server as servers
    with tempfile.TemporaryDirectory() as directory:
        version = pathlib.Path(directory) / "identity" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(compare_gpu.MODEL)
        with servers.Server(directory, region.FLAG, *flags, environment=cuda.environment()) as server:
            yield server


def register(server, name, handle, byte_size):
    """`handle` as base64 text."""
    import region
    status, reply = server.post_json(region.path("register", name, "cuda"),
                                     {"raw_handle": {"b64": handle}, "byte_size": byte_size, "device_id": 0})
    if status != 200:
        raise AssertionError(f"cannot register CUDA shared memory: {reply}")


def unregister(server, name):
    import region
    server.post_json(region.path("unregister", name, "cuda"), b"")


def infer(server, body, json_bytes):
    headers = {"Inference-Header-Content-Length": str(json_bytes)} if json_bytes else {}
    status, head, reply = server.request("POST", "/v2/models/identity/infer", body, headers)
    if status != 200:
        raise AssertionError(f"status {status}: {reply[:500]}")
    return reply[int(head.get("inference-header-content-length", len(reply))):]


def through_bodies(server, content):
    from bodies import http_binary
    body, json_bytes = http_binary(len(content) // 4)
    return infer(server, body[:json_bytes] + content, json_bytes)


def through_ctypes(server, content):
    """In CUDA shared memory that this process makes of the driver."""
    import cuda
    from bodies import http_region
    size = len(content)
    with cuda.DeviceArray(2 * size, content + bytes(size)) as array:
        register(server, "own", base64.b64encode(array.handle()).decode(), 2 * size)
        try:
            infer(server, *http_region(size // 4, ("own", 0), ("own", size)))
            return array.read(size, size)
        finally:
            unregister(server, "own")


def through_tritonclient(server, content):
    """In CUDA shared memory that upstream's client makes."""
    import numpy
    import tritonclient.utils.cuda_shared_memory as shared
    from bodies import http_region
    size = len(content)
    handle = shared.create_shared_memory_region("theirs", 2 * size, 0)
    try:
        shared.set_shared_memory_region(handle, [numpy.frombuffer(content + bytes(size), numpy.uint8)])
        register(server, "theirs", shared.get_raw_handle(handle).decode(), 2 * size)
        try:
            infer(server, *http_region(size // 4, ("theirs", 0), ("theirs", size)))
            return shared.get_contents_as_numpy(handle, numpy.uint8, [2 * size])[size:].tobytes()
        finally:
            unregister(server, "theirs")
    finally:
        shared.destroy_shared_memory_region(handle)


def identity(options):
    """Random bytes, so that no number is left out: NaNs, infinities, denormals."""
    ways = {"bodies": through_bodies, "the driver": through_ctypes}
    found = {"count": 0, "bytes": 0, "by": ["the driver"]}
    if options.double:
        found["left_out"] = "tritonclient's cuda_shared_memory needs the driver itself"
    else:
        try:
            import tritonclient.utils.cuda_shared_memory  # noqa: F401
            ways["tritonclient"] = through_tritonclient
            found["by"].append("tritonclient")
        except (ImportError, RuntimeError) as error:
            found["left_out"] = f"tritonclient's cuda_shared_memory: {error}"
    with serving() as server:
        for name, way in ways.items():
            for count in COUNTS:
                content = random.Random(f"{name} {count}").randbytes(4 * count)
                if way(server, content) != content:
                    raise AssertionError(f"{name}: a tensor of {count} values came back changed")
                found["count"] += 1
                found["bytes"] += len(content)
    return found


def gpu_used(server):
    """Bytes in use on the GPUs, from NVML by the server's metrics, once they are fresh; 0 without them."""
    time.sleep(3 * METRICS_INTERVAL_MS / 1000)
    return int(sum(value for name, value in server.metrics().items() if name.startswith("nv_gpu_memory_used_bytes")))


def memory(options):
    import cuda
    from bodies import http_binary, http_region
    from loading import Load
    count, samples, done = 256, [], 0
    with serving(f"--metrics-interval-ms={METRICS_INTERVAL_MS}") as server, cuda.DeviceArray(8 * count, bytes(8 * count)) as array:
        register(server, "memory", base64.b64encode(array.handle()).decode(), 8 * count)
        bodies = (http_binary(count), http_region(count, ("memory", 0), ("memory", 4 * count)))
        loads = [Load(server.http, "http", body) for body in bodies]
        client_cpus = machine.halves()[1][:1]
        deadline = time.monotonic() + 120
        while done < options.requests:
            if time.monotonic() > deadline:
                raise AssertionError(f"{done} of {options.requests} requests in 120 s")
            for load in loads:
                report = load.run(0.5, client_cpus)
                if report["failed"]:
                    raise AssertionError(f"requests failed: {report['reasons']}")
                done += report["requests"]
            samples.append({"requests": done, "resident_bytes": server.resident_bytes(), "gpu_bytes": gpu_used(server)})
            # At least five samples, so that there is a first fifth.
            if done >= options.requests and len(samples) < 5:
                options.requests = done + 1
        for load in loads:
            load.close()
        unregister(server, "memory")
    settled = samples[len(samples) // 5]
    found = {"requests": done, "samples": samples,
             "resident_growth_bytes": samples[-1]["resident_bytes"] - settled["resident_bytes"],
             "gpu_growth_bytes": samples[-1]["gpu_bytes"] - settled["gpu_bytes"]}
    if not samples[-1]["gpu_bytes"]:
        raise AssertionError("the metrics tell no GPU memory in use")
    for name, limit in (("resident_growth_bytes", RESIDENT_GROWTH_MAX), ("gpu_growth_bytes", GPU_GROWTH_MAX)):
        if found[name] > limit:
            found["failed"] = f"{name} is {found[name]} over {done} requests; at most {limit} are expected: {samples}"
    return found


def perf_analyzer(_options):
    """Both protocols; requests per second, as it tells them."""
    import server as servers
    rates = {}
    with serving() as server, tempfile.TemporaryDirectory() as directory:
        for protocol in ("http", "grpc"):
            report = pathlib.Path(directory) / f"{protocol}.csv"
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", "identity", "-i", protocol, "-u", server.address(protocol),
                 "--shared-memory=cuda", f"--output-shared-memory-size={1 << 20}", "--shape=INPUT0:16", "--concurrency-range=4",
                 "--measurement-mode=count_windows", "--measurement-request-count=1000", "--stability-percentage=999", "-f", str(report)],
                capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                raise AssertionError(f"{protocol}: {done.stdout[-400:]} {done.stderr[-400:]}")
            with report.open() as file:
                row, = csv.DictReader(file)
            rates[protocol] = float(row["Inferences/Second"])
    return {"rates": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=("identity", "memory", "perf_analyzer"))
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if not options.double:
        os.environ["CONCH_CUDA"] = "real"
    found = globals()[options.check](options)
    print(json.dumps({name: value for name, value in found.items() if name != "samples"}))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if "failed" in found:
        raise SystemExit(found["failed"])


if __name__ == "__main__":
    main()
