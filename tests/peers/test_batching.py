"""Batching libraries (TRITONBACKEND_ModelBatch*) in a real server: where they are found, what they decide, and which are refused. The library is
src/ffi/tests/strategy.c, compiled against this project's headers; the probe backend writes down how many requests it executes at once.

    python3 test_batching.py --server '<command>' --backends <folder with probe/libtriton_probe.so> [--beyond]

With --beyond also what upstream does not survive: libraries without all functions or whose start fails (it never ends loading), and requests
that the library would never let into a batch (it never executes them, nor others); and a
library outside of the model's directory, which only newer releases refuse.
"""

import argparse
import os
import pathlib
import queue
import subprocess
import tempfile
import time

import numpy as np
import tritonclient.grpc as grpc

from serving import Server, run_checks, write_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = """
backend: "probe" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 400000 }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def compile_strategy(target, *definitions):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", *definitions, "-I", str(ROOT / "src/abi/include"),
         str(ROOT / "src/ffi/tests/strategy.c"), "-o", target],
        check=True)


def write_models(repository, is_beyond):
    limit = parameter("LIMIT", 10)
    write_model(repository, "free", CONFIG)
    write_model(repository, "in_version", CONFIG + limit)
    compile_strategy(f"{repository}/in_version/1/batchstrategy.so")
    write_model(repository, "in_model", CONFIG + limit)
    compile_strategy(f"{repository}/in_model/batchstrategy.so")
    write_model(repository, "named", CONFIG + limit + parameter("TRITON_BATCH_STRATEGY_PATH", f"{repository}/named/own.so"))
    compile_strategy(f"{repository}/named/own.so")
    # Nobody asks this one.
    write_model(repository, "idle", CONFIG.replace("dynamic_batching", "# dynamic_batching") + limit)
    compile_strategy(f"{repository}/idle/1/batchstrategy.so")
    # Those that must not load.
    write_model(repository, "missing", CONFIG + limit + parameter("TRITON_BATCH_STRATEGY_PATH", f"{repository}/missing/own.so"))
    if is_beyond:
        write_model(repository, "escaping", CONFIG + limit + parameter("TRITON_BATCH_STRATEGY_PATH", f"{repository}/named/own.so"))
        write_model(repository, "partial", CONFIG + limit)
        compile_strategy(f"{repository}/partial/1/batchstrategy.so", "-DTRITONBACKEND_ModelBatchFinalize=something_else")
        write_model(repository, "refusing", CONFIG + parameter("LIMIT", -1))
        compile_strategy(f"{repository}/refusing/1/batchstrategy.so")


class Executions:
    """How many requests each execution of a model had, by the probe's record."""

    def __init__(self, record):
        self.record = record
        self.seen = 0

    def take(self, count):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with open(self.record) as file:
                lines = [line.rstrip("\n").split("\t") for line in file]
            sizes = [int(line[6].split("=")[1]) for line in lines if line[3:5] == ["end", "Execute"]]
            if len(sizes) - self.seen >= count:
                sizes = sizes[self.seen:]
                self.seen += len(sizes)
                return sizes
            time.sleep(0.05)
        raise AssertionError(f"only {sizes[self.seen:]} of {count} executions")


def send(client, model, numbers):
    """All of them, in this order, without waiting; then their answers."""
    replies = queue.Queue()
    for number in numbers:
        tensor = grpc.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[number]], dtype=np.int32))
        client.async_infer(model, [tensor], callback=lambda result, error, number=number: replies.put((number, result, error)))
        # Requests of one client arrive in order only if they are sent so.
        time.sleep(0.02)  # upstream does not say when it has one
    for _ in numbers:
        number, result, error = replies.get(timeout=20)
        assert error is None, error
        assert result.as_numpy("OUTPUT0").tolist() == [[number]]


def check_decides(client, executions, model):
    send(client, model, [4, 4, 4, 1, 1, 9])
    assert executions.take(3) == [2, 3, 1]
    send(client, model, [10, 1, 10])
    assert executions.take(3) == [1, 1, 1]


def check_free(client, executions):
    send(client, "free", [4, 4, 4, 1, 1, 9])
    assert executions.take(1) == [6]


def check_idle(client, executions, log):
    """Without the dynamic batcher each request is executed by itself; conch says that the library has no effect."""
    send(client, "idle", [1, 1])
    assert executions.take(2) == [1, 1]
    if log is not None:
        assert "of model 'idle' has no effect" in log()


def check_alone(client, executions):
    send(client, "in_version", [11, 1, 1])
    assert executions.take(2) == [1, 2]


def check_refused(client, repository, is_beyond):
    index = client.get_model_repository_index(as_json=True)["models"]
    reasons = {model["name"]: model.get("reason", "") for model in index}
    expected = {
        "missing": f"Batching library path not found: {repository}/missing/own.so",
    }
    if is_beyond:
        expected["partial"] = f"{repository}/partial/1/batchstrategy.so does not define all required custom batching functions for model partial"
        expected["escaping"] = "Batching library path escapes model repository."
        expected["refusing"] = "LIMIT must not be negative"
    for model, words in expected.items():
        assert words in reasons[model], (model, reasons[model])
    for model in ("free", "in_version", "in_model", "named", "idle"):
        assert client.is_model_ready(model), (model, reasons[model])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--backends", required=True)
    parser.add_argument("--beyond", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository, record = os.path.join(folder, "models"), os.path.join(folder, "record")
        write_models(repository, arguments.beyond)
        options = [f"--backend-config=probe,record={record}", "--exit-on-error=false", "--strict-readiness=false"]
        with Server(arguments.server, repository, arguments.backends, options) as server:
            client = grpc.InferenceServerClient(server.grpc)
            executions = Executions(record)
            checks = {
                "refused libraries": lambda: check_refused(client, repository, arguments.beyond),
                "no library": lambda: check_free(client, executions),
            }
            for model in ("in_version", "in_model", "named"):
                checks[model] = lambda model=model: check_decides(client, executions, model)
            checks["idle"] = lambda: check_idle(client, executions, server.log_text if arguments.beyond else None)
            if arguments.beyond:
                checks["alone"] = lambda: check_alone(client, executions)
            run_checks("batching", checks)
            client.close()


if __name__ == "__main__":
    main()
