"""Cases of models in Python that run in three places: conch with our backend, the real Triton with our backend, and conch with upstream's
own. All three must give the same answers, so that what is expected is upstream's behaviour and not only ours.

Most of the interface of `triton_python_backend_utils` is looked at by the model `script`, which executes what a test sends it."""

import json
import sys
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import server as servers
from case import conch_only, needs_peer
from repository import Repository
from test_python_backend import DIRECTORY, python
from test_python_backend import ENVIRONMENT as ENVIRONMENT_OF_UPSTREAM
from test_python_own import BACKENDS, ENVIRONMENT, needs_python

# Answers with the JSON of an expression, or of what a few lines leave in `result`; an exception is answered as its text.
SCRIPT = '''
import asyncio
import gc
import json
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args, self.kept = args, {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        space = {"pb_utils": pb_utils, "np": np, "json": json, "gc": gc, "asyncio": asyncio, "threading": threading, "request": request,
                 "args": self.args, "kept": self.kept}
        try:
            try:
                program = compile(code, "script", "eval")
            except SyntaxError:
                exec(compile(code, "script", "exec"), space)
                answer = space["result"]
            else:
                answer = eval(program, space)
            answer = {"result": answer}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        text = np.array([json.dumps(answer, default=str)], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", text)])
'''
SCRIPT_TENSORS = [("CODE", "STRING", (1,))], [("RESULT", "STRING", (1,))]


class ScriptError(Exception):
    """What a script raised."""


class ScriptCase(unittest.TestCase):
    """Serves the model `script` and those of the class."""

    kind, backends, environment = "conch", BACKENDS, ENVIRONMENT
    # Whether the backend is ours.
    is_ours = True
    flags = ()

    @staticmethod
    def models(repository):
        """For further models."""

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        cls.repository.model("script", python(*SCRIPT_TENSORS), files={"1/model.py": SCRIPT.encode()})
        cls.models(cls.repository)
        cls.server = servers.Server(cls.repository.path, *cls.flags, kind=cls.kind, backends=str(cls.backends), environment=cls.environment)
        cls.addClassCleanup(cls.server.kill)

    @classmethod
    def tearDownClass(cls):
        if not cls.server.is_alive():
            raise AssertionError(f"the server died with code {cls.server.process.returncode}\n{cls.server.output[-4000:]}")
        if cls.kind == "conch" and cls.is_ours:
            code = cls.server.terminate()
            if code != 0 or "panicked" in cls.server.output:
                raise AssertionError(f"the server ended with code {code}\n{cls.server.output[-4000:]}")

    def script(self, code, model="script"):
        """What the lines, or the expression, make of it."""
        tensor = httpclient.InferInput("CODE", [1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([code], dtype=numpy.object_))
        with httpclient.InferenceServerClient(self.server.http) as client:
            answer = json.loads(client.infer(model, [tensor]).as_numpy("RESULT")[0])
        if "error" in answer:
            raise ScriptError(answer["error"])
        return answer["result"]

    def failure(self, code):
        """What the lines raise."""
        with self.assertRaises(ScriptError) as caught:
            self.script(code)
        return str(caught.exception)

    def check(self, *rows):
        """Each row is a script and what it makes."""
        for code, expected in rows:
            with self.subTest(code):
                self.assertEqual(self.script(code), expected)

    def check_failures(self, *rows):
        """Each row is a script and what it raises."""
        for code, expected in rows:
            with self.subTest(code):
                self.assertEqual(self.failure(code), expected)

    def clients(self):
        """Each client library with the address that it talks to."""
        return (httpclient, self.server.http), (grpcclient, self.server.grpc)

    def refusals(self, model, arrays):
        """How a request fails: (status, message) by HTTP and by gRPC."""
        found = []
        for module, address in self.clients():
            with module.InferenceServerClient(address) as client, self.assertRaises(InferenceServerException) as caught:
                client.infer(model, inputs(module, arrays))
            found.append((caught.exception.status().removeprefix("StatusCode."), caught.exception.message()))
        return found


def inputs(module, arrays):
    """The tensors of a request, from arrays by name."""
    tensors = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), DATA_TYPES[array.dtype.type])
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


DATA_TYPES = {numpy.int32: "INT32", numpy.int64: "INT64", numpy.float32: "FP32", numpy.object_: "BYTES"}

PLACES = {
    "InConch": ((conch_only, needs_python), {}),
    "InTriton": ((conch_only, needs_python, needs_peer("triton")), {"kind": "triton"}),
    "OfUpstream": ((conch_only, needs_peer("abi/backends/python/libtriton_python.so")),
                   {"is_ours": False, "backends": DIRECTORY, "environment": ENVIRONMENT_OF_UPSTREAM}),
}


def everywhere(mixin, places=tuple(PLACES)):
    """Makes a test class of `mixin` for each place."""
    module = sys.modules[mixin.__module__]
    for place in places:
        marks, attributes = PLACES[place]
        case = type(mixin.__name__ + place, (mixin, ScriptCase), {**attributes, "__module__": mixin.__module__, "__doc__": mixin.__doc__})
        for mark in marks:
            case = mark(case)
        setattr(module, case.__name__, case)
    return mixin


def ours(mixin):
    """The same without upstream's backend, which ends, or has no such thing."""
    return everywhere(mixin, ("InConch", "InTriton"))
