"""The example backends of docs/examples, in C, C++ and Rust, in a real server, through Triton's own clients.

    python3 test_examples.py --server '<command>' --backends <folder with scale/libtriton_scale.so, words/… and labels/…>
"""

import argparse
import contextlib
import queue
import tempfile
import threading

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from serving import Server, run_checks, write_model
from test_identity import expect_error, infer, needs_streams

SCALED = """
backend: "scale" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 2000 }
"""
# Passes the server's checks, not those of the backend.
MISTYPED = SCALED.replace("FP32", "INT32")
WORDS = """
backend: "words"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "WORDS" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
LABELS = """
backend: "labels" max_batch_size: 4
input [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
# Passes the server's checks, not those of the backend.
LOOSE = LABELS.replace("max_batch_size: 4", "").replace("[ 3 ]", "[ -1 ]")
NAMES = [("labels.txt", b"cat\ndog\nfish\n")]
STREAMED = WORDS + "model_transaction_policy { decoupled: true }"


def texts(*values):
    return np.array([value.encode() for value in values], dtype=np.object_)


def statistics(client, model):
    return client.get_inference_statistics(model)["model_stats"][0]


def check_scale(clients, seed):
    random = np.random.default_rng(seed)
    for module, client in clients:
        for shape in ((1, 1), (3, 7), (8, 100_000), (2, 0)):
            data = random.standard_normal(shape).astype(np.float32)
            got = infer(client, module, "scaled", {"IN": data}).as_numpy("OUT")
            assert got.shape == shape and np.array_equal(got, data * np.float32(2.5)), shape
        expect_error("input IN must be of type FP32", lambda: infer(client, module, "mistyped", {"IN": np.ones((1, 3), np.int32)}))


def check_batches(address):
    """Many at once: each gets its own answer, and the statistics count them all."""
    client = http.InferenceServerClient(address, concurrency=1)
    before = int(statistics(client, "scaled")["inference_count"])
    failures = []

    def run(seed):
        random, mine = np.random.default_rng(seed), http.InferenceServerClient(address)
        for _ in range(25):
            data = random.standard_normal((2, 5)).astype(np.float32)
            got = infer(mine, http, "scaled", {"IN": data}).as_numpy("OUT")
            if not np.array_equal(got, data * np.float32(2.5)):
                failures.append(f"seed {seed}")
        mine.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    stats = statistics(client, "scaled")
    client.close()
    assert int(stats["inference_count"]) - before == 8 * 25 * 2, stats
    assert int(stats["execution_count"]) < int(stats["inference_count"]) / 2, "nothing was batched"
    rows = sum(int(batch["batch_size"]) * int(batch["compute_infer"]["count"]) for batch in stats["batch_stats"])
    assert rows == int(stats["inference_count"]), (rows, stats["inference_count"])
    assert int(stats["inference_stats"]["fail"]["count"]) == 0, stats
    mistyped = statistics(http.InferenceServerClient(address), "mistyped")
    assert int(mistyped["inference_stats"]["fail"]["count"]) > 0, "failed requests are counted as such"


def check_words(clients):
    for module, client in clients:
        for text, expected in (("the quick  brown\nfox", [b"the", b"quick", b"brown", b"fox"]), ("", []), ("x" * 70_000, [b"x" * 70_000])):
            got = infer(client, module, "words", {"TEXT": texts(text)}).as_numpy("WORDS")
            assert got.tolist() == expected, got
        expect_error("input TEXT must hold one string", lambda: infer(client, module, "words", {"TEXT": texts("one", "two")}))


def check_labels(clients):
    for module, client in clients:
        scores = np.array([[0.1, 0.7, 0.2], [9, -9, 0], [-3, -2, -1]], np.float32)
        got = infer(client, module, "labels", {"SCORES": scores}).as_numpy("LABEL")
        assert got.tolist() == [[b"dog"], [b"cat"], [b"fish"]], got
        assert infer(client, module, "loose", {"SCORES": scores[0]}).as_numpy("LABEL").tolist() == [b"dog"]
        expect_error("expected 1 rows of 3 scores, got 8 bytes", lambda: infer(client, module, "loose", {"SCORES": scores[0][:2]}))


def streamed(client, replies, text, **parameters):
    """Words of one request until its final response: (words, how it ended)."""
    tensor = grpc.InferInput("TEXT", [1], "BYTES")
    tensor.set_data_from_numpy(texts(text))
    client.async_stream_infer("streamed", [tensor], parameters=parameters, enable_empty_final_response=True)
    words = []
    while True:
        result, error = replies.get(timeout=20)
        if error is not None:
            return words, str(error)
        if result.get_response().parameters["triton_final_response"].bool_param:
            return words, "final"
        words += result.as_numpy("WORDS").tolist()


def check_stream(address):
    needs_streams(address)
    client, replies = grpc.InferenceServerClient(address), queue.Queue()
    client.start_stream(callback=lambda result, error: replies.put((result, error)))
    for _ in range(3):
        assert streamed(client, replies, "a stream of words", pause_ms=2) == ([b"a", b"stream", b"of", b"words"], "final")
        assert streamed(client, replies, "") == ([], "final")
        words, end = streamed(client, replies, "a b", pause_ms="soon")
        assert words == [] and "pause_ms must be an integer" in end, (words, end)
    # A stream that its client leaves ends early, and the next request is served: the backend's one thread is free again.
    tensor = grpc.InferInput("TEXT", [1], "BYTES")
    tensor.set_data_from_numpy(texts("w " * 10_000))
    client.async_stream_infer("streamed", [tensor], parameters={"pause_ms": 10})
    assert replies.get(timeout=20)[1] is None
    client.stop_stream(cancel_requests=True)
    replies = queue.Queue()
    client.start_stream(callback=lambda result, error: replies.put((result, error)))
    assert streamed(client, replies, "still there") == ([b"still", b"there"], "final")
    client.stop_stream()


def check_refused(server, backends):
    """Models that the backends refuse name the reason, and leave the others alone."""
    with tempfile.TemporaryDirectory() as repository:
        write_model(repository, "no_factor", SCALED)
        write_model(repository, "no_number", SCALED, [("factor.txt", b"many")])
        write_model(repository, "batching", WORDS + "max_batch_size: 4")
        write_model(repository, "nameless", LABELS)
        write_model(repository, "mistyped_labels", LABELS.replace("FP32", "FP64"), NAMES)
        write_model(repository, "words", WORDS)
        with Server(server, repository, backends, ["--exit-on-error=false"], is_ready_expected=False) as running:
            with contextlib.closing(http.InferenceServerClient(running.http)) as client:
                index = {model["name"]: model for model in client.get_model_repository_index()}
                for model, reason in (("no_factor", "the model has no factor.txt"), ("no_number", "factor.txt holds no number"),
                                      ("batching", "the backend 'words' does not batch"), ("nameless", "labels.txt"),
                                      ("mistyped_labels", "expected SCORES datatype to be")):
                    assert reason in index[model]["reason"], index
                assert infer(client, http, "words", {"TEXT": texts("served")}).as_numpy("WORDS").tolist() == [b"served"]
                try:
                    infer(client, http, "no_factor", {"IN": np.ones((1, 1), np.float32)})
                    raise AssertionError("a model that did not load was served")
                except InferenceServerException:
                    pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--backends", required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as repository:
        write_model(repository, "scaled", SCALED, [("factor.txt", b"2.5\n")])
        write_model(repository, "mistyped", MISTYPED, [("factor.txt", b"1")])
        write_model(repository, "words", WORDS)
        write_model(repository, "streamed", STREAMED)
        write_model(repository, "labels", LABELS, NAMES)
        write_model(repository, "loose", LOOSE, NAMES)
        with Server(arguments.server, repository, arguments.backends) as server:
            clients = [(http, http.InferenceServerClient(server.http)), (grpc, grpc.InferenceServerClient(server.grpc))]
            run_checks("examples", {
                "scale": lambda: check_scale(clients, arguments.seed),
                "batches and statistics": lambda: check_batches(server.http),
                "words": lambda: check_words(clients),
                "labels": lambda: check_labels(clients),
                "stream": lambda: check_stream(server.grpc),
                "refused models": lambda: check_refused(arguments.server, arguments.backends),
            })
            clients[0][1].close()


if __name__ == "__main__":
    main()
