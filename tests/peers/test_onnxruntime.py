"""The onnxruntime backend in a real server: results equal to ONNX Runtime's own bit for bit, every data type, strings, scalars, states
of sequences, completed and refused configurations, and the embedded engine.

    python3 test_onnxruntime.py --server '<command>' --backends <folder with onnxruntime/libtriton_onnxruntime.so> --library <libonnxruntime.so>

Needs `onnxruntime` and `numpy` (beside tritonclient) in this Python; the reference runs in a process of its own, by --python.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serving import Server, needs_extension, run_checks, write_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples/model_repository"
TYPES = {
    "FP32": (1, np.float32), "UINT8": (2, np.uint8), "INT8": (3, np.int8), "UINT16": (4, np.uint16), "INT16": (5, np.int16),
    "INT32": (6, np.int32), "INT64": (7, np.int64), "BYTES": (8, np.object_), "BOOL": (9, bool), "FP16": (10, np.float16),
    "FP64": (11, np.float64), "UINT32": (12, np.uint32), "UINT64": (13, np.uint64),
}
# What the embedded engine has.
EMBEDDED_TYPES = ("FP32", "INT32", "INT64", "UINT8", "INT8", "BOOL", "FP64", "FP16")
REFERENCE = """
import json, sys
import numpy as np, onnxruntime
model, source, target = sys.argv[1:]
inputs = dict(np.load(source))
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
outputs = session.run(None, inputs)
np.savez(target, **{info.name: value for info, value in zip(session.get_outputs(), outputs)})
"""


def maker():
    loader = importlib.machinery.SourceFileLoader("make_models", str(ROOT / "docs/examples/make-models"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_models", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def reference(python, model, inputs):
    """What ONNX Runtime makes of the inputs, in another process."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/in.npz", f"{folder}/out.npz"
        np.savez(source, **inputs)
        subprocess.run([python, "-c", REFERENCE, str(model), source, target], check=True)
        return dict(np.load(target))


def infer(client, module, model, inputs, outputs=None, **arguments):
    tensors = []
    for name, array in inputs.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    wanted = None if outputs is None else [module.InferRequestedOutput(name) for name in outputs]
    return client.infer(model, tensors, outputs=wanted, **arguments)


def same(got, expected, what):
    assert got is not None and got.shape == expected.shape and got.dtype == expected.dtype, (what, got, expected)
    assert got.tobytes() == expected.tobytes(), f"{what}: differs in {np.sum(got != expected)} elements"


def write_repository(repository, make, types):
    for name in ("addsub", "choose_strings", "magika"):
        if (EXAMPLES / name / "1/model.onnx").exists():
            shutil.copytree(EXAMPLES / name, f"{repository}/{name}")
    for name in types:
        element = TYPES[name][0]
        content = make.model(
            "same", [make.node("Identity", ["X"], ["Y"])],
            [make.tensor("X", element, ["n", 3])], [make.tensor("Y", element, ["n", 3])],
        )
        # No input or output: the backend completes them.
        write_model(repository, f"same_{name.lower()}", 'backend: "onnxruntime" max_batch_size: 8', [("model.onnx", content)])
    scalar = make.model(
        "scalar", [make.node("ReduceSum", ["X"], ["Y"]) + make.piece(5, make.piece(1, "keepdims") + make.number(3, 0) + make.number(20, 2))],
        [make.tensor("X", make.FLOAT, ["n"])], [make.tensor("Y", make.FLOAT, [])],
    )
    write_model(repository, "scalar", 'backend: "onnxruntime"', [("other.onnx", scalar)])
    with open(f"{repository}/scalar/config.pbtxt", "a") as file:
        file.write(' default_model_filename: "other.onnx"')
    total = make.model(
        "total", [make.node("Add", ["X", "BEFORE"], ["AFTER"]), make.node("Identity", ["AFTER"], ["Y"])],
        [make.tensor("X", make.FLOAT, ["n", 2]), make.tensor("BEFORE", make.FLOAT, ["n", 2])],
        [make.tensor("AFTER", make.FLOAT, ["n", 2]), make.tensor("Y", make.FLOAT, ["n", 2])],
    )
    write_model(repository, "total", """
        backend: "onnxruntime" max_batch_size: 4
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
        sequence_batching { oldest { max_candidate_sequences: 8 }
          state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 2 ]
                    initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } ] }
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
        parameters { key: "session.intra_op.allow_spinning" value { string_value: "0" } }
    """, [("model.onnx", total)])
    # Refused ones, each with a part of the reason.
    addsub = make.MODELS["addsub"]
    sides = 'input [ { name: "INPUT0" data_type: %s dims: %s }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ] ' \
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] backend: "onnxruntime" max_batch_size: 8 '
    refused = {
        "wrong_type": (sides % ("TYPE_INT32", "[ -1 ]"), addsub, "configuration expects datatype TYPE_INT32 for input 'INPUT0', model provides TYPE_FP32"),
        "wrong_shape": (sides % ("TYPE_FP32", "[ -1, 2 ]"), addsub, "making complete shape [-1,-1,2]"),
        "no_file": ('backend: "onnxruntime"', None, "unable to find"),
        "no_model": ('backend: "onnxruntime"', b"no model at all", ""),
        "no_batching": ('backend: "onnxruntime" max_batch_size: 8', scalar, "model does not support batching while non-zero max_batch_size"),
        "wrong_mode": (sides % ("TYPE_FP32", "[ -1 ]") + 'parameters { key: "execution_mode" value { string_value: "3" } }', addsub,
                       "Expected values for  execution_mode are 0 or 1 but got 3"),
        "no_library": (sides % ("TYPE_FP32", "[ -1 ]") + 'parameters { key: "onnxruntime-library" value { string_value: "/none.so" } }',
                       addsub, "ONNX Runtime library /none.so: cannot be loaded"),
    }
    for name, (config, content, _) in refused.items():
        write_model(repository, name, config, [] if content is None else [("model.onnx", content)])
    return refused


def some(name, shape, random):
    kind = TYPES[name][1]
    if kind is np.object_:
        array = np.empty(shape, dtype=np.object_)
        for index in np.ndindex(*shape):
            array[index] = random.bytes(int(random.integers(0, 30)))
        return array
    if kind is bool:
        return random.integers(0, 2, shape).astype(bool)
    return random.integers(0, 100, shape).astype(kind)


def check_types(clients, types, random):
    for name in types:
        model = f"same_{name.lower()}"
        for module, client in clients:
            for rows in (1, 8):
                data = some(name, (rows, 3), random)
                got = infer(client, module, model, {"X": data}).as_numpy("Y")
                assert got.dtype == data.dtype and np.array_equal(got, data), (model, got, data)


def check_choose(clients):
    condition = np.array([[True, False, True]])
    yes = np.array([[b"a\0b", b"", "\u00e4".encode()]], dtype=np.object_)
    no = np.array([[b"x", b"y" * 5000, b"z"]], dtype=np.object_)
    for module, client in clients:
        got = infer(client, module, "choose_strings", {"CONDITION": condition, "YES": yes, "NO": no}).as_numpy("CHOICE")
        assert got.tolist() == [[b"a\0b", b"y" * 5000, "\u00e4".encode()]], got


def check_parallel(address, model, rows_of, expected, name, outputs, callers=12, turns=25):
    """Many callers; whatever is batched together, each gets what its rows give alone."""
    wrong = []

    def run(seed):
        client = grpc.InferenceServerClient(address)
        for turn in range(turns):
            index = (seed * turns + turn) % len(expected[outputs[0]])
            try:
                result = infer(client, grpc, model, rows_of(index))
                for output in outputs:
                    if not np.allclose(result.as_numpy(output)[0], expected[output][index], rtol=0, atol=1e-6):
                        wrong.append(f"caller {seed}, row {index}: {output} differs")
            except Exception as error:
                wrong.append(f"caller {seed}: {error}")

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
    statistics = grpc.InferenceServerClient(address).get_inference_statistics(model, as_json=True)["model_stats"][0]
    inferences, executions = int(statistics["inference_count"]), int(statistics["execution_count"])
    assert executions < inferences, f"{name}: nothing was batched"
    return f"{inferences} inferences in {executions} executions"


def check_addsub(clients, address, python, random):
    data = {name: random.standard_normal((64, 16)).astype(np.float32) for name in ("INPUT0", "INPUT1")}
    expected = reference(python, EXAMPLES / "addsub/1/model.onnx", data)
    for module, client in clients:
        for rows in (1, 3, 64):
            result = infer(client, module, "addsub", {name: array[:rows] for name, array in data.items()})
            for output in ("OUTPUT0", "OUTPUT1"):
                same(result.as_numpy(output), expected[output][:rows], output)
        only = infer(client, module, "addsub", data, outputs=["OUTPUT1"])
        assert only.as_numpy("OUTPUT0") is None
        same(only.as_numpy("OUTPUT1"), expected["OUTPUT1"], "OUTPUT1 alone")
        empty = np.zeros((2, 0), dtype=np.float32)
        assert infer(client, module, "addsub", {"INPUT0": empty, "INPUT1": empty}).as_numpy("OUTPUT0").shape == (2, 0)
    rows_of = lambda index: {name: array[index:index + 1] for name, array in data.items()}
    return check_parallel(address, "addsub", rows_of, expected, "addsub", ["OUTPUT0", "OUTPUT1"])


def check_magika(clients, address, python, random):
    if not (EXAMPLES / "magika/1/model.onnx").exists():
        return "not there; run scripts/fetch-models"
    data = random.integers(0, 257, (16, 2048)).astype(np.int32)
    expected = {}
    for rows in (1, 2, 16):
        expected = reference(python, EXAMPLES / "magika/1/model.onnx", {"bytes": data[:rows]})
        for module, client in clients:
            same(infer(client, module, "magika", {"bytes": data[:rows]}).as_numpy("target_label"), expected["target_label"], f"batch of {rows}")
    return check_parallel(address, "magika", lambda i: {"bytes": data[i:i + 1]}, expected, "magika", ["target_label"], turns=8)


def check_classes(client, random):
    needs_extension(client, "classification")
    if not (EXAMPLES / "magika/1/model.onnx").exists():
        return "magika is not there; run scripts/fetch-models"
    data = random.integers(0, 257, (1, 2048)).astype(np.int32)
    scores = infer(client, http, "magika", {"bytes": data}).as_numpy("target_label")[0]
    top = client.infer("magika", [tensor_of("bytes", data)], outputs=[http.InferRequestedOutput("target_label", class_count=1)])
    _, index, label = top.as_numpy("target_label")[0][0].decode().split(":")
    labels = (EXAMPLES / "magika/labels.txt").read_text().split("\n")
    assert label == labels[int(index)] and int(index) == int(scores.argmax()), (index, label)
    return label


def tensor_of(name, array):
    tensor = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def check_completed(client):
    config = client.get_model_config("same_fp32")
    assert config["max_batch_size"] == 8 and "dynamic_batching" in config, config
    assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [("X", "TYPE_FP32", [3])], config["input"]
    assert client.get_model_config("choose_strings")["max_batch_size"] == 4
    scalar = client.get_model_config("scalar")
    assert scalar["max_batch_size"] == 0 and scalar["output"][0]["dims"] == [1], scalar


def check_scalar(clients):
    for module, client in clients:
        got = infer(client, module, "scalar", {"X": np.array([1, 2, 3.5], dtype=np.float32)}).as_numpy("Y")
        same(got, np.array([6.5], dtype=np.float32), "scalar")


def check_states(clients):
    """Two sequences at a time, each with a running total of its own."""
    needs_extension(clients[0][1], "sequence")
    for number, (module, client) in enumerate(clients):
        totals = {}
        for turn in range(4):
            for sequence in (1 + 10 * number, 2 + 10 * number):
                step = np.array([[sequence, turn]], dtype=np.float32)
                got = infer(client, module, "total", {"X": step}, sequence_id=sequence, sequence_start=turn == 0,
                            sequence_end=turn == 3).as_numpy("Y")
                totals[sequence] = totals.get(sequence, 0) + step
                same(got, totals[sequence], f"sequence {sequence}, turn {turn}")


def check_refused(client, refused):
    index = {row["name"]: row for row in client.get_model_repository_index()}
    for name, (_, _, reason) in refused.items():
        row = index[name]
        assert row["state"] == "UNAVAILABLE" and reason in row["reason"], (name, row)


def check_wrong_requests(clients):
    for module, client in clients:
        for call in (
            lambda: infer(client, module, "addsub", {"INPUT0": np.zeros((1, 4), np.float32), "INPUT1": np.zeros((1, 5), np.float32)}),
            lambda: infer(client, module, "addsub", {"INPUT0": np.zeros((1, 4), np.float32)}),
        ):
            try:
                call()
            except InferenceServerException:
                continue
            raise AssertionError("a wrong request was answered")


def main():
    parser = argparse.ArgumentParser()
    for option in ("--server", "--backends", "--library"):
        parser.add_argument(option, required=True)
    parser.add_argument("--python", default=sys.executable, help="a Python with onnxruntime")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    print(f"seed {arguments.seed}")
    make = maker()
    flags = ["--exit-on-error=false", "--strict-readiness=false"]
    with tempfile.TemporaryDirectory() as repository:
        refused = write_repository(repository, make, TYPES)
        library = f"--backend-config=onnxruntime,onnxruntime-library={arguments.library}"
        with Server(arguments.server, repository, arguments.backends, [*flags, library], is_ready_expected=False) as server:
            clients = [(http, http.InferenceServerClient(server.http)), (grpc, grpc.InferenceServerClient(server.grpc))]
            run_checks("onnxruntime", {
                "data types": lambda: check_types(clients, TYPES, random),
                "strings": lambda: check_choose(clients),
                "addsub": lambda: check_addsub(clients, server.grpc, arguments.python, random),
                "magika": lambda: check_magika(clients, server.grpc, arguments.python, random),
                "classes by label": lambda: check_classes(clients[0][1], random),
                "completed configurations": lambda: check_completed(clients[0][1]),
                "scalars": lambda: check_scalar(clients),
                "states": lambda: check_states(clients),
                "refused configurations": lambda: check_refused(clients[0][1], refused),
                "wrong requests": lambda: check_wrong_requests(clients),
            })
            clients[0][1].close()
    with tempfile.TemporaryDirectory() as repository:
        write_repository(repository, make, EMBEDDED_TYPES)
        embedded = "--backend-config=onnxruntime,onnxruntime-library=embedded"
        with Server(arguments.server, repository, arguments.backends, [*flags, embedded], is_ready_expected=False) as server:
            clients = [(http, http.InferenceServerClient(server.http)), (grpc, grpc.InferenceServerClient(server.grpc))]
            index = {row["name"]: row for row in clients[0][1].get_model_repository_index()}
            assert "no strings" in index["choose_strings"]["reason"], index["choose_strings"]
            run_checks("onnxruntime, embedded", {
                "data types": lambda: check_types(clients, EMBEDDED_TYPES, random),
                "addsub": lambda: check_addsub(clients, server.grpc, arguments.python, random),
                "scalars": lambda: check_scalar(clients),
                "states": lambda: check_states(clients),
            })
            clients[0][1].close()


if __name__ == "__main__":
    main()
