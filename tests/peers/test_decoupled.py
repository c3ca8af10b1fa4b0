"""The repeat and square backends in a real server, through Triton's own client: streams of responses after their execution, mixed over
requests, counted by index, cancelled; and what unary calls to such models say.

    python3 test_decoupled.py --server '<command>' --backends <folder with repeat/libtriton_repeat.so and square/libtriton_square.so>
"""

import argparse
import collections
import queue
import tempfile
import time

import grpc as grpcio
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from serving import Server, Skipped, run_checks, write_model

REPEAT = """
backend: "repeat"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
SQUARE = """
backend: "square" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
dynamic_batching { }
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


def setting(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


COUNTED = SQUARE + setting("CUSTOM_INFER_DELAY_NS", 2_000_000) + setting("CUSTOM_OUTPUT_DELAY_NS", 1_000_000) + \
    setting("CUSTOM_FAIL_COUNT", 2) + setting("CUSTOM_EMPTY_COUNT", 1)
SLOW = SQUARE + setting("CUSTOM_INFER_DELAY_NS", 50_000_000)


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


def tensor(name, kind, values, shape=None):
    array = np.array(values, dtype={"INT32": np.int32, "UINT32": np.uint32}[kind]).reshape(shape or [len(values)])
    made = grpc.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def repeat(values, delays, wait):
    return [tensor("IN", "INT32", values), tensor("DELAY", "UINT32", delays), tensor("WAIT", "UINT32", [wait])]


def square(value):
    return [tensor("IN", "INT32", [value], (1, 1))]


class Stream:
    """A bidirectional stream, and what came back by request id, in order of arrival."""

    def __init__(self, address):
        needs_streams(address)
        self.client = grpc.InferenceServerClient(address)
        self.replies = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.replies.put((result, error)))

    def send(self, model, inputs, request_id):
        self.client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    def collect(self, request_count, output="OUT"):
        """The arrivals until all requests came to their end: (id, value or error); the end is (id, None)."""
        arrivals, ended = [], 0
        while ended < request_count:
            result, error = self.replies.get(timeout=30)
            if error is not None:
                arrivals.append(("", error.message()))
                continue
            response = result.get_response()
            value = result.as_numpy(output)
            if value is not None:
                arrivals.append((response.id, int(value.flat[0])))
            if response.parameters["triton_final_response"].bool_param:
                arrivals.append((response.id, None))
                ended += 1
        return arrivals

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()
        assert self.replies.empty()


def check_order(address):
    with Stream(address) as stream:
        for wait in (0, 300):
            stream.send("repeat", repeat([4, 2, 0, -1], [0, 10, 0, 5], wait), "r")
            assert stream.collect(1) == [("r", 4), ("r", 2), ("r", 0), ("r", -1), ("r", None)]
        stream.send("repeat", repeat([], [], 0), "none")
        assert stream.collect(1) == [("none", None)]
        stream.send("repeat", repeat([7, 7, 7], [0, 0, 0], 0), "i")
        assert [value for _, value in stream.collect(1, "IDX")] == [0, 1, 2, None]


def check_mixing(address):
    """One instance, yet the second request is answered while the first one still has responses to come."""
    with Stream(address) as stream:
        stream.send("repeat", repeat([1, 2], [0, 600], 0), "slow")
        stream.send("repeat", repeat([3], [50], 0), "quick")
        assert stream.collect(2) == [("slow", 1), ("quick", 3), ("quick", None), ("slow", 2), ("slow", None)]
        # Many at once; each has its own responses in order.
        for number in range(50):
            stream.send("repeat", repeat([number] * 5, [number % 7] * 5, 0), str(number))
        by_request = collections.defaultdict(list)
        for request_id, value in stream.collect(50):
            by_request[request_id].append(value)
        assert by_request == {str(number): [number] * 5 + [None] for number in range(50)}


def check_errors(address):
    with Stream(address) as stream:
        stream.send("repeat", repeat([1, 2], [0], 0), "bad")
        _, error = stream.replies.get(timeout=20)
        assert "expected IN and DELAY shape to match, got [2] and [1]" in str(error), error
        stream.send("repeat", repeat([1], [0], 0), "good")
        assert stream.collect(1) == [("good", 1), ("good", None)]


def figures(client, model):
    statistics = client.get_inference_statistics(model, as_json=True)["model_stats"][0].get("response_stats", {})
    count = lambda part: int(part.get("count", 0))
    return {
        int(index): {key: count(part) for key, part in parts.items() if count(part)} for index, parts in statistics.items()
    }, statistics


def check_statistics(address):
    with Stream(address) as stream:
        for request_id, value in (("a", 5), ("b", 4)):
            stream.send("counted", square(value), request_id)
            arrivals = stream.collect(1)
            failures = [("", text) for _, text in arrivals if isinstance(text, str)]
            assert len(failures) == 2 and all("simulated failure" in text for _, text in failures), arrivals
            assert [entry for entry in arrivals if not isinstance(entry[1], str)] == \
                [(request_id, value)] * (value - 3) + [(request_id, None)], arrivals
        client = stream.client
        both = {"compute_infer": 2, "compute_output": 2}
        expected = {
            0: {**both, "success": 2},
            1: {**both, "success": 1, "fail": 1},
            2: {**both, "fail": 2},
            3: {"compute_infer": 2, "compute_output": 1, "fail": 1, "empty_response": 1},
            4: {"compute_infer": 1, "empty_response": 1},
        }
        deadline = time.monotonic() + 20
        counts, statistics = figures(client, "counted")
        while counts != expected and time.monotonic() < deadline:
            time.sleep(0.01)  # the report follows the response
            counts, statistics = figures(client, "counted")
        assert counts == expected, counts
        first = statistics["0"]
        assert int(first["compute_infer"]["ns"]) >= 4_000_000 and int(first["compute_output"]["ns"]) >= 2_000_000, first
        assert int(first["success"]["ns"]) >= 6_000_000, first


def check_cancellation(address):
    """A stream that its client drops ends soon, and is counted as cancelled."""
    stream = Stream(address)
    stream.send("slow", square(1_000), "c")
    stream.replies.get(timeout=20)
    stream.client.stop_stream(cancel_requests=True)
    client = grpc.InferenceServerClient(address)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        counts, _ = figures(client, "slow")
        if sum(parts.get("cancel", 0) for parts in counts.values()) == 1:
            break
        time.sleep(0.1)
    else:
        raise AssertionError(counts)
    time.sleep(0.3)  # the test itself: nothing more may come
    assert figures(client, "slow")[0] == counts, "the request went on after it was cancelled"


def check_unary(http_address, grpc_address):
    """A decoupled model is for streams: unary calls are refused."""
    words = "doesn't support models with decoupled transaction policy"
    for module, client in ((http, http.InferenceServerClient(http_address)), (grpc, grpc.InferenceServerClient(grpc_address))):
        inputs = []
        for name, kind, values in (("IN", "INT32", [1, 2]), ("DELAY", "UINT32", [0, 0]), ("WAIT", "UINT32", [0])):
            made = module.InferInput(name, [len(values)], kind)
            made.set_data_from_numpy(np.array(values, dtype=np.int32 if kind == "INT32" else np.uint32))
            inputs.append(made)
        try:
            client.infer("repeat", inputs)
        except InferenceServerException as error:
            assert words in str(error), error
        else:
            raise AssertionError("the call was not refused")
        client.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--backends", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as repository:
        write_model(repository, "repeat", REPEAT)
        write_model(repository, "counted", COUNTED)
        write_model(repository, "slow", SLOW)
        with Server(arguments.server, repository, arguments.backends) as server:
            run_checks("decoupled", {
                "order": lambda: check_order(server.grpc),
                "mixing": lambda: check_mixing(server.grpc),
                "errors": lambda: check_errors(server.grpc),
                "statistics": lambda: check_statistics(server.grpc),
                "cancellation": lambda: check_cancellation(server.grpc),
                "unary calls": lambda: check_unary(server.http, server.grpc),
            })


if __name__ == "__main__":
    main()
