"""The identity backend in a real server, through Triton's own clients: every data type, batching, empty tensors, absent optional
inputs, its metric, wanted outputs only, failures and decoupled responses.

    python3 test_identity.py --server '<command>' --backends <folder with identity/libtriton_identity.so>
"""

import argparse
import json
import queue
import tempfile
import threading
import urllib.request

import grpc as grpcio
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serving import Server, Skipped, run_checks, write_model

TYPES = {
    "BOOL": bool, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "STRING": np.object_,
}
PAIR = """
backend: "identity" max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_{0} dims: [ -1 ] }}, {{ name: "INPUT1" data_type: TYPE_{0} dims: [ -1, 2 ] }} ]
output [ {{ name: "OUTPUT1" data_type: TYPE_{0} dims: [ -1, 2 ] }}, {{ name: "OUTPUT0" data_type: TYPE_{0} dims: [ -1 ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
"""
CONTROLS = 'parameters { key: "enable_request_controls" value { string_value: "true" } }'
PLAIN = """
backend: "identity"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
""" + CONTROLS
DECOUPLED = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
""" + CONTROLS
OPTIONAL = """
backend: "identity" max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "INPUT1" data_type: TYPE_STRING dims: [ 2 ] optional: true } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 2 ] } ]
"""


def some(kind, shape, random):
    if kind is np.object_:
        flat = [random.bytes(int(random.integers(0, 40))) for _ in range(int(np.prod(shape)))]
        array = np.empty(len(flat), dtype=np.object_)
        array[:] = flat
        return array.reshape(shape)
    if kind is bool:
        return random.integers(0, 2, shape).astype(bool)
    return random.integers(0, 100, shape).astype(kind)


def infer(client, module, model, inputs, outputs=None, **arguments):
    tensors = []
    for name, array in inputs.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    wanted = None if outputs is None else [module.InferRequestedOutput(name) for name in outputs]
    return client.infer(model, tensors, outputs=wanted, **arguments)


def expect_error(text, call):
    try:
        call()
    except InferenceServerException as error:
        assert text in str(error), f"expected {text!r} in {error}"
        return
    raise AssertionError(f"no error; expected {text!r}")


def check_types(clients, random):
    for name, kind in TYPES.items():
        model = f"identity_{name.lower()}"
        for module, client in clients:
            for shapes in [((1, 5), (1, 3, 2)), ((8, 1), (8, 4, 2)), ((2, 0), (2, 0, 2)), ((1, 4000), (1, 1, 2))]:
                first, second = (some(kind, shape, random) for shape in shapes)
                result = infer(client, module, model, {"INPUT0": first, "INPUT1": second})
                for sent, output in ((first, "OUTPUT0"), (second, "OUTPUT1")):
                    got = result.as_numpy(output)
                    assert got is not None and got.shape == sent.shape, (model, output, got, sent.shape)
                    assert np.array_equal(got, sent), (model, output)
            only = infer(client, module, model, {"INPUT0": first, "INPUT1": second}, outputs=["OUTPUT1"])
            assert only.as_numpy("OUTPUT0") is None and np.array_equal(only.as_numpy("OUTPUT1"), second)


def check_bf16(address):
    """By raw bytes, since numpy has no BF16."""
    first, second = bytes(range(8)), bytes(range(100, 104))
    head = json.dumps({
        "inputs": [
            {"name": "INPUT0", "datatype": "BF16", "shape": [1, 4], "parameters": {"binary_data_size": len(first)}},
            {"name": "INPUT1", "datatype": "BF16", "shape": [1, 1, 2], "parameters": {"binary_data_size": len(second)}},
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("OUTPUT1", "OUTPUT0")],
    }).encode()
    request = urllib.request.Request(
        f"http://{address}/v2/models/identity_bf16/infer", data=head + first + second,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        body = reply.read()
        head_bytes = int(reply.headers["Inference-Header-Content-Length"])
    order = [output["name"] for output in json.loads(body[:head_bytes])["outputs"]]
    expected = {"OUTPUT0": first, "OUTPUT1": second}
    assert sorted(order) == sorted(expected), order
    assert body[head_bytes:] == b"".join(expected[name] for name in order), body


def check_batching(address, clients_count=16, requests_count=40):
    """Many clients at once; each must get its own rows back, whatever was batched together."""
    failures = []

    def run(seed):
        generator = np.random.default_rng(seed)
        client = grpc.InferenceServerClient(address)
        try:
            for _ in range(requests_count):
                rows = int(generator.integers(1, 4))
                first = generator.standard_normal((rows, 7)).astype(np.float32)
                second = generator.standard_normal((rows, 3, 2)).astype(np.float32)
                result = infer(client, grpc, "identity_fp32", {"INPUT0": first, "INPUT1": second})
                if not np.array_equal(result.as_numpy("OUTPUT0"), first):
                    failures.append(f"seed {seed}: OUTPUT0 differs")
                if not np.array_equal(result.as_numpy("OUTPUT1"), second):
                    failures.append(f"seed {seed}: OUTPUT1 differs")
        except Exception as error:
            failures.append(f"seed {seed}: {error}")

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(clients_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    statistics = grpc.InferenceServerClient(address).get_inference_statistics("identity_fp32", as_json=True)["model_stats"][0]
    inferences, executions = int(statistics["inference_count"]), int(statistics["execution_count"])
    assert executions < inferences, f"nothing was batched: {executions} executions, {inferences} inferences"
    rows = sum(int(batch["batch_size"]) * int(batch["compute_infer"]["count"]) for batch in statistics["batch_stats"])
    assert rows == inferences, f"batch statistics count {rows} rows, the model {inferences}"
    for batch in statistics["batch_stats"]:
        for part in ("compute_input", "compute_infer", "compute_output"):
            assert int(batch[part].get("ns", 0)) < 60_000_000_000, batch


def check_plain(clients):
    for module, client in clients:
        data = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert np.array_equal(infer(client, module, "plain", {"X": data}).as_numpy("Y"), data)
        call = lambda **parameters: infer(client, module, "plain", {"X": data}, parameters=parameters)
        expect_error("as ordered", lambda: call(error="as ordered", error_code="unavailable"))
        expect_error("all of it", lambda: call(execute_error="all of it"))
        expect_error("panic in the backend: ordered by the request", lambda: call(panic=True))
        # The instances survive all that.
        for _ in range(4):
            assert np.array_equal(call(delay_us=1000).as_numpy("Y"), data)


def check_optional(clients):
    for module, client in clients:
        data = np.arange(3, dtype=np.int32).reshape(1, 3)
        result = infer(client, module, "optional", {"INPUT0": data})
        assert np.array_equal(result.as_numpy("OUTPUT0"), data)
        assert result.as_numpy("OUTPUT1").tolist() == [[b"", b""]]
        both = infer(client, module, "optional", {"INPUT0": data, "INPUT1": np.array([[b"a", b"bc"]], dtype=np.object_)})
        assert both.as_numpy("OUTPUT1").tolist() == [[b"a", b"bc"]]


def check_metric(server, clients):
    """The backend's own metric counts the bytes of the inputs, per model."""
    name = 'input_byte_size_counter{model="plain",version="1"} '

    def count():
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as reply:
            return sum(float(line[len(name):]) for line in reply.read().decode().splitlines() if line.startswith(name))

    before = count()
    for module, client in clients:
        infer(client, module, "plain", {"X": np.zeros((2, 3), np.float32)})
    assert count() - before == 48, (before, count())


def needs_streams(address):
    """No extension tells of them: a server without streams does not know the method."""
    with grpcio.insecure_channel(address) as channel:
        try:
            for _ in service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(()), timeout=10):
                pass
        except grpcio.RpcError as error:
            if error.code() == grpcio.StatusCode.UNIMPLEMENTED:
                raise Skipped("the server does not serve ModelStreamInfer") from None
            raise


def check_decoupled(address):
    needs_streams(address)
    client = grpc.InferenceServerClient(address)
    replies = queue.Queue()
    client.start_stream(callback=lambda result, error: replies.put((result, error)))
    data = np.arange(4, dtype=np.int32)
    tensor = grpc.InferInput("INPUT0", [4], "INT32")
    tensor.set_data_from_numpy(data)
    for count in (0, 1, 5):
        client.async_stream_infer(
            "decoupled", [tensor], parameters={"response_count": count, "response_delay_us": 1000},
            enable_empty_final_response=True,
        )
        for index in range(count + 1):
            result, error = replies.get(timeout=20)
            assert error is None, error
            is_final = result.get_response().parameters["triton_final_response"].bool_param
            assert is_final == (index == count), (count, index)
            if not is_final:
                assert np.array_equal(result.as_numpy("OUTPUT0"), data)
    client.stop_stream()
    assert replies.empty()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--backends", required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as repository:
        for name in [*TYPES, "BF16"]:
            write_model(repository, f"identity_{name.lower()}", PAIR.format(name))
        write_model(repository, "plain", PLAIN)
        write_model(repository, "decoupled", DECOUPLED)
        write_model(repository, "optional", OPTIONAL)
        with Server(arguments.server, repository, arguments.backends) as server:
            clients = [(http, http.InferenceServerClient(server.http)), (grpc, grpc.InferenceServerClient(server.grpc))]
            run_checks("identity", {
                "data types": lambda: check_types(clients, random),
                "BF16": lambda: check_bf16(server.http),
                "batching": lambda: check_batching(server.grpc),
                "its metric": lambda: check_metric(server, clients),
                "failures": lambda: check_plain(clients),
                "optional inputs": lambda: check_optional(clients),
                "decoupled": lambda: check_decoupled(server.grpc),
            })
            clients[0][1].close()


if __name__ == "__main__":
    main()
