"""One build of the Python backend serves every CPython from 3.9 on: the same models under each interpreter that scripts/fetch-pythons laid out,
one without the global lock among them, and the source of what the stub runs, which uses nothing newer."""

import ast
import concurrent.futures
import functools
import os
import pathlib
import queue
import subprocess
import sys
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import server as servers
from case import ServerCase, conch_only, needs_library
from test_python_backend import python

PYTHONS = pathlib.Path(os.environ.get("CONCH_TEST_PYTHONS", servers.CACHE / "pythons"))
FLOOR = (3, 9)
RUNTIME = servers.ROOT / "src/backends/python/runtime"

# What an interpreter says of itself: its version, and whether it has a global lock.
ABOUT = "import sys; print('%d.%d.%d' % sys.version_info[:3], getattr(sys, '_is_gil_enabled', lambda: True)())"

ECHO = '''
import sys
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        about = "%d.%d.%d" % sys.version_info[:3] + f" {getattr(sys, '_is_gil_enabled', lambda: True)()}"
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            texts = pb_utils.get_input_tensor_by_name(request, "TEXTS").as_numpy()
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("SAME", numbers), pb_utils.Tensor("TURNED", numpy.array([text[::-1] for text in texts], numpy.object_)),
                pb_utils.Tensor("ABOUT", numpy.array([about.encode()], numpy.object_))]))
        return responses
'''

# As many numbers as asked for, sent by four threads at a time, and the end.
COUNT = '''
import concurrent.futures
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            sender = request.get_response_sender()

            def send(number):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", numpy.array([number], numpy.int32))]))
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(send, range(count)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

# Calls the other two under its interpreter, both while it waits for neither.
CALL = '''
import asyncio
import json
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.label = json.loads(args["model_config"])["parameters"]["label"]["string_value"]

    async def execute(self, requests):
        return [await self.one(request) for request in requests]

    async def one(self, request):
        count = pb_utils.get_input_tensor_by_name(request, "COUNT")
        texts = numpy.array([b"abc"] * 3, numpy.object_)
        numbers = numpy.arange(3, dtype=numpy.float32)
        echo = pb_utils.InferenceRequest(model_name="echo_" + self.label, requested_output_names=["TURNED", "ABOUT"],
                                         inputs=[pb_utils.Tensor("NUMBERS", numbers), pb_utils.Tensor("TEXTS", texts)])
        counted = pb_utils.InferenceRequest(model_name="count_" + self.label, requested_output_names=["NUMBER"], inputs=[count])
        response, iterator = await asyncio.gather(echo.async_exec(), counted.async_exec(decoupled=True))
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        total = sum(int(part.output_tensors()[0].as_numpy()[0]) for part in iterator if part.output_tensors())
        turned = pb_utils.get_output_tensor_by_name(response, "TURNED").as_numpy()
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("TOTAL", numpy.array([total], numpy.int32)), pb_utils.Tensor("TEXT", numpy.array([b"".join(turned)], numpy.object_)),
            pb_utils.get_output_tensor_by_name(response, "ABOUT")])
'''


@functools.lru_cache(None)
def interpreters():
    """Those of the folder that work, and the one of these tests: what each says of itself, by a label."""
    found = {"own": (sys.executable, subprocess.check_output([sys.executable, "-c", ABOUT], text=True).strip())}
    for program in sorted(PYTHONS.glob("*/bin/python3")):
        result = subprocess.run([str(program), "-c", f"import numpy; {ABOUT}"], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            found[program.parents[1].name.replace(".", "_")] = (str(program), result.stdout.strip())
    return found


@conch_only
@needs_library("python")
class Versions(ServerCase):
    @classmethod
    def setUpClass(cls):
        versions = {about.rsplit(".", 1)[0] for _, about in interpreters().values()}
        if len(versions) < 2:
            raise unittest.SkipTest(f"no interpreter but {sys.executable} is there: run scripts/fetch-pythons, or set CONCH_TEST_PYTHONS")
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        for label, (program, _) in interpreters().items():
            parameters = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
                                 for key, value in (("python-interpreter", program), ("label", label)))
            numbers, texts = ("FP32", (-1,)), ("STRING", (-1,))
            count = [("COUNT", "INT32", (1,))]
            repository.model(f"echo_{label}", python(
                [("NUMBERS", *numbers), ("TEXTS", *texts)], [("SAME", *numbers), ("TURNED", *texts), ("ABOUT", *texts)], extra=parameters),
                files={"1/model.py": ECHO.encode()})
            repository.model(f"count_{label}", python(
                count, [("NUMBER", "INT32", (1,))], extra=parameters + "model_transaction_policy { decoupled: true }\n"),
                files={"1/model.py": COUNT.encode()})
            repository.model(f"call_{label}", python(
                count, [("TOTAL", "INT32", (1,)), ("TEXT", *texts), ("ABOUT", *texts)], extra=parameters), files={"1/model.py": CALL.encode()})

    @staticmethod
    def tensor(client, name, array, data_type):
        tensor = client.InferInput(name, list(array.shape), data_type)
        tensor.set_data_from_numpy(array)
        return tensor

    def test_numbers_and_texts(self):
        numbers = numpy.random.default_rng(3).normal(size=100_000).astype(numpy.float32)
        texts = numpy.array([b"", "αβγ".encode(), b"\0\xff" * 50_000, b"abc"], numpy.object_)
        for label, (_, about) in interpreters().items():
            for client, address in ((httpclient, self.server.http), (grpcclient, self.server.grpc)):
                with self.subTest(label, client=client.__name__), client.InferenceServerClient(address) as connection:
                    result = connection.infer(f"echo_{label}", [self.tensor(client, "NUMBERS", numbers, "FP32"),
                                                                self.tensor(client, "TEXTS", texts, "BYTES")])
                    self.assertEqual(result.as_numpy("SAME").tobytes(), numbers.tobytes())
                    self.assertEqual(result.as_numpy("TURNED").tolist(), [text[::-1] for text in texts])
                    self.assertEqual(result.as_numpy("ABOUT").tolist(), [about.encode()])

    def test_many_responses(self):
        for label in interpreters():
            got = queue.Queue()
            with self.subTest(label), grpcclient.InferenceServerClient(self.server.grpc) as client:
                client.start_stream(lambda result, error, got=got: got.put((result, error)))
                client.async_stream_infer(f"count_{label}", [self.tensor(grpcclient, "COUNT", numpy.array([200], numpy.int32), "INT32")],
                                          enable_empty_final_response=True)
                numbers, is_final = [], False
                while not is_final:
                    result, error = got.get(timeout=60)
                    self.assertIsNone(error)
                    is_final = result.get_response().parameters["triton_final_response"].bool_param
                    if not is_final:
                        numbers.append(int(result.as_numpy("NUMBER")[0]))
                self.assertEqual(sorted(numbers), list(range(200)))

    def test_calls(self):
        def ask(label):
            with httpclient.InferenceServerClient(self.server.http) as client:
                return client.infer(f"call_{label}", [self.tensor(httpclient, "COUNT", numpy.array([20], numpy.int32), "INT32")])
        for label, (_, about) in interpreters().items():
            with self.subTest(label), concurrent.futures.ThreadPoolExecutor(4) as pool:
                for result in pool.map(ask, [label] * 12):
                    self.assertEqual((int(result.as_numpy("TOTAL")[0]), result.as_numpy("TEXT").tolist()), (190, [b"cba" * 3]))
                    self.assertEqual(result.as_numpy("ABOUT").tolist(), [about.encode()])


class Source(unittest.TestCase):
    def test_the_syntax_is_that_of_the_oldest_version(self):
        files = sorted(RUNTIME.glob("*/*.py"))
        self.assertGreater(len(files), 10)
        for file in files:
            with self.subTest(file.name):
                ast.parse(file.read_text(), str(file), feature_version=FLOOR)

    def test_the_library_is_that_of_the_oldest_version(self):
        """By vermin, which knows since when modules, functions and their parameters are there."""
        command = [sys.executable, "-c", "import vermin; vermin.main()", f"--target={FLOOR[0]}.{FLOOR[1]}-", "--violations", "--eval-annotations",
                   str(RUNTIME)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, "Minimum required versions: ")


if __name__ == "__main__":
    unittest.main()
