"""Upstream's own Python backend, unmodified, in conch: models in Python, each in a process of its own beside the server.

The binary comes with the peers: `abi/backends/python`, whose stub finds numpy in the peers' virtual environment.
"""

import concurrent.futures
import json
import os
import pathlib
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import server as servers
from case import ServerCase, conch_only, needs_peer
from processes import children_of
from repository import Repository, tensors
from waiting import until_equal

# Sums and differences, as one batch per execution; negative numbers fail their own request, 1e6 the whole execution.
ADDSUB = '''
import json
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "SUM")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])
        self.scale = float(config["parameters"]["scale"]["string_value"])
        self.name = args["model_name"] + "/" + args["model_version"] + "/" + args["model_instance_kind"]

    def execute(self, requests):
        pairs = [tuple(pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("LEFT", "RIGHT"))
                 for request in requests]
        if any((left == 1e6).any() for left, _ in pairs):
            raise ValueError("ordered to fail")
        rows = [left.shape[0] for left, _ in pairs]
        together = (numpy.concatenate([left for left, _ in pairs]), numpy.concatenate([right for _, right in pairs]))
        edges = numpy.cumsum(rows)[:-1]
        sums = numpy.split((together[0] + together[1]) * self.scale, edges)
        differences = numpy.split((together[0] - together[1]) * self.scale, edges)
        responses = []
        for (left, _), one, other in zip(pairs, sums, differences):
            if (left < 0).any():
                error = pb_utils.TritonError("no negative numbers", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("SUM", one.astype(self.dtype)), pb_utils.Tensor("DIFFERENCE", other.astype(self.dtype)),
                pb_utils.Tensor("BATCH", numpy.full((left.shape[0], 1), sum(rows), numpy.int32))]))
        return responses

    def finalize(self):
        print("finalised", self.name, flush=True)
'''

# Texts backwards, and how many bytes each has.
TEXTS = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            turned = numpy.array([text[::-1] for text in texts.reshape(-1)], dtype=numpy.object_).reshape(texts.shape)
            lengths = numpy.array([len(text) for text in texts.reshape(-1)], dtype=numpy.int64).reshape(texts.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TURNED", turned), pb_utils.Tensor("LENGTH", lengths)]))
        return responses
'''

# Completes its own configuration, which has nothing but the backend.
COMPLETES = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [2]})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * 2)])
                for request in requests]
'''

BROKEN = '''
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the weights are missing")

    def execute(self, requests):
        return []
'''

DIRECTORY = servers.PEERS / "abi/backends"
ENVIRONMENT = {
    "PATH": f"{servers.PEERS / 'venv/bin'}:{os.environ['PATH']}",
    # What the binaries are linked with; not upstream's server library, whose place conch takes.
    "LD_LIBRARY_PATH": str(servers.PEERS / "pytriton/nvidia_pytriton.libs"),
}


def python(inputs, outputs, batch=0, count=1, extra=""):
    return (f'backend: "python"\nmax_batch_size: {batch}\n' + tensors("input", inputs) + tensors("output", outputs)
            + f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n" + extra)


class PythonCase(ServerCase):
    """Serves models of the Python backend."""

    # A backend directory with the Python backend.
    backends = DIRECTORY
    environment = ENVIRONMENT
    flags = (f"--backend-directory={DIRECTORY}",)

    def children(self):
        """Processes of the server: the stubs, and what they started."""
        return children_of(self.server.pid)


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
class Python(PythonCase):
    @staticmethod
    def models(repository):
        repository.model("addsub", python(
            [("LEFT", "FP32", (3,)), ("RIGHT", "FP32", (3,))],
            [("SUM", "FP32", (3,)), ("DIFFERENCE", "FP32", (3,)), ("BATCH", "INT32", (1,))], 8, 2,
            'parameters { key: "scale" value { string_value: "2" } }\n'
            "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 300000 }\n"),
            files={"1/model.py": ADDSUB.encode()})
        repository.model("texts", python([("TEXT", "STRING", (-1,))], [("TURNED", "STRING", (-1,)), ("LENGTH", "INT64", (-1,))], 4),
                         files={"1/model.py": TEXTS.encode()})
        repository.model("completes", 'backend: "python"\n', files={"1/model.py": COMPLETES.encode()})

    def addsub(self, client, module, left, right):
        tensors_ = []
        for name, array in (("LEFT", left), ("RIGHT", right)):
            tensor = module.InferInput(name, list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            tensors_.append(tensor)
        return client.infer("addsub", tensors_)

    def test_numbers(self):
        left, right = numpy.arange(24, dtype=numpy.float32).reshape(8, 3), numpy.full((8, 3), 0.5, numpy.float32)
        for module, address in ((httpclient, self.server.http), (grpcclient, self.server.grpc)):
            with module.InferenceServerClient(address) as client:
                result = self.addsub(client, module, left, right)
            numpy.testing.assert_array_equal(result.as_numpy("SUM"), (left + right) * 2)
            numpy.testing.assert_array_equal(result.as_numpy("DIFFERENCE"), (left - right) * 2)

    def test_requests_become_a_batch(self):
        before = self.server.statistics("addsub")
        with httpclient.InferenceServerClient(self.server.http, concurrency=8) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
            rows = [numpy.full((1, 3), index, numpy.float32) for index in range(8)]
            results = list(pool.map(lambda row: self.addsub(client, httpclient, row, row + 1), rows))
        for row, result in zip(rows, results):
            numpy.testing.assert_array_equal(result.as_numpy("SUM"), (2 * row + 1) * 2)
        sizes = [int(result.as_numpy("BATCH")[0, 0]) for result in results]
        after = self.server.statistics("addsub")
        executions = after["execution_count"] - before["execution_count"]
        self.assertEqual(after["inference_count"] - before["inference_count"], 8)
        # Each request says how large its batch was; summed, a batch of n says n times 1/n.
        self.assertAlmostEqual(sum(1 / size for size in sizes), executions)
        self.assertGreater(max(sizes), 1, "none was batched")
        self.assertLess(executions, 8)
        compute = after["inference_stats"]["compute_infer"]
        self.assertEqual(compute["count"], after["inference_stats"]["success"]["count"])
        self.assertGreater(compute["ns"], 0)

    def test_texts(self):
        texts = numpy.array([["stressed", "", "αβγ"], ["x" * 100_000, "\0\x01", "a b"]], dtype=numpy.object_)
        raw = numpy.array([[text.encode() for text in row] for row in texts], dtype=numpy.object_)
        tensor = httpclient.InferInput("TEXT", [2, 3], "BYTES")
        with httpclient.InferenceServerClient(self.server.http) as client:
            for is_binary in (True, False):
                tensor.set_data_from_numpy(raw if is_binary else texts, binary_data=is_binary)
                outputs = [httpclient.InferRequestedOutput("LENGTH", binary_data=is_binary)]
                if is_binary:  # bytes backwards are no UTF-8, which JSON would want
                    outputs.append(httpclient.InferRequestedOutput("TURNED", binary_data=True))
                result = client.infer("texts", [tensor], outputs=outputs)
                self.assertEqual(result.as_numpy("LENGTH").tolist(), [[len(text) for text in row] for row in raw])
                if is_binary:
                    self.assertEqual(result.as_numpy("TURNED").tolist(), [[text[::-1] for text in row] for row in raw])

    def test_completed_configuration(self):
        config = self.server.get_json("/v2/models/completes/config")
        self.assertEqual((config["max_batch_size"], "dynamic_batching" in config), (4, True))
        self.assertEqual([(row["name"], row["data_type"], row["dims"]) for row in config["input"]], [("X", "TYPE_INT32", [2])])
        tensor = httpclient.InferInput("X", [1, 2], "INT32")
        tensor.set_data_from_numpy(numpy.array([[3, 4]], numpy.int32))
        with httpclient.InferenceServerClient(self.server.http) as client:
            self.assertEqual(client.infer("completes", [tensor]).as_numpy("Y").tolist(), [[6, 8]])

    def test_errors(self):
        """An error of a request is its own; an exception fails the execution; what comes next works."""
        good, bad = numpy.ones((1, 3), numpy.float32), -numpy.ones((1, 3), numpy.float32)
        with grpcclient.InferenceServerClient(self.server.grpc) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(self.addsub, client, grpcclient, row, good) for row in (bad, good)]
            with self.assertRaises(InferenceServerException) as caught:
                calls[0].result()
            self.assertEqual(caught.exception.status(), "StatusCode.INVALID_ARGUMENT")
            self.assertIn("no negative numbers", caught.exception.message())
            numpy.testing.assert_array_equal(calls[1].result().as_numpy("SUM"), [[4, 4, 4]])
            with self.assertRaises(InferenceServerException) as caught:
                self.addsub(client, grpcclient, good * 1e6, good)
            self.assertEqual(caught.exception.status(), "StatusCode.INTERNAL")
            self.assertIn("ordered to fail", caught.exception.message())
            numpy.testing.assert_array_equal(self.addsub(client, grpcclient, good, good).as_numpy("SUM"), [[4, 4, 4]])


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
class Life(PythonCase):
    @staticmethod
    def models(repository):
        repository.model("texts", python([("TEXT", "STRING", (-1,))], [("TURNED", "STRING", (-1,)), ("LENGTH", "INT64", (-1,))], 4, 2),
                         files={"1/model.py": TEXTS.encode()})
        repository.model("broken", python([("A", "FP32", (1,))], [("B", "FP32", (1,))]), files={"1/model.py": BROKEN.encode()})

    flags = (*PythonCase.flags, "--exit-on-error=false", "--strict-readiness=false")

    def test_one_process_per_instance_until_the_end(self):
        stubs = self.children()
        self.assertEqual(len(stubs), 2, "two instances, and nothing left of the broken model")
        self.server.wait_for_match("failed to load 'broken' version 1: .*the weights are missing")
        self.assertEqual(self.server.terminate(), 0)
        until_equal(lambda: [pid for pid in stubs if pathlib.Path(f"/proc/{pid}").exists()], [], "the stubs that outlive the server")

    @classmethod
    def tearDownClass(cls):
        """The test has stopped the server."""


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
class Places(unittest.TestCase):
    """The Python backend finds its stub and its models whatever way leads to the backend directory."""

    def serves(self, directory):
        with Repository() as repository:
            repository.model("completes", 'backend: "python"\n', files={"1/model.py": COMPLETES.encode()})
            with servers.Server(repository, backends=directory, environment=ENVIRONMENT) as server:
                body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}]}
                status, reply = server.post_json("/v2/models/completes/infer", body)
                self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [2, 4]))
                server.wait_for_text(f"| python  | {directory}/python/libtriton_python.so")

    def test_relative(self):
        self.serves(os.path.relpath(DIRECTORY))

    def test_symbolic_link(self):
        with tempfile.TemporaryDirectory() as folder:
            link = pathlib.Path(folder) / "backends"
            link.symlink_to(DIRECTORY)
            self.serves(link)


if __name__ == "__main__":
    unittest.main()
