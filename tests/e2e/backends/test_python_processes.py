"""Processes that models in Python start, and what they leave: `multiprocessing` in its three ways, programs, and what runs at exit."""

import os
import pathlib
import re
import signal
import unittest

import tritonclient.grpc as grpcclient

from case import conch_only, needs_library
from processes import GONE, children_of, is_running
from test_python_backend import python
from test_python_calls import NUMBER, call
from test_python_own import OwnCase
from waiting import until_equal

# Has the value's square computed by a process; negative values are asked what runs. Importable, since processes that are spawned import it.
SQUARES = '''
import atexit
import json
import multiprocessing
import os
import subprocess
import tempfile
import numpy
import triton_python_backend_utils as pb_utils


def square(value):
    return value * value, os.getpid()


def wait():
    import time
    time.sleep(3600)


class TritonPythonModel:
    def initialize(self, args):
        way = json.loads(args["model_config"])["parameters"]["way"]["string_value"]
        context = multiprocessing.get_context(way)
        self.pool = context.Pool(1)
        self.pool.map(square, range(4))
        # It is a daemon, which Python ends at exit.
        self.daemon = context.Process(target=wait, daemon=True)
        self.daemon.start()
        self.program = subprocess.Popen(["sleep", "3600"])
        atexit.register(self.program.wait)
        atexit.register(self.program.kill)
        self.folder = tempfile.TemporaryDirectory(dir=args["model_repository"])
        atexit.register(print, "at exit of " + way, flush=True)

    def execute(self, requests):
        responses = []
        for request in requests:
            value = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
            result, pid = self.pool.apply(square, (value,))
            assert pid != os.getpid()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numpy.array([result], numpy.int32))]))
        return responses
'''

WAYS = ("fork", "spawn", "forkserver")


@conch_only
@needs_library("python")
class Processes(OwnCase):
    flags = (*OwnCase.flags, "--model-control-mode=explicit", "--load-model=*")

    @staticmethod
    def models(repository):
        for way in WAYS:
            parameter = f'parameters {{ key: "way" value {{ string_value: "{way}" }} }}\n'
            repository.model(way, python(*NUMBER, extra=parameter), files={"1/model.py": SQUARES.encode()})

    def below(self, pid):
        """The processes that this one started, and theirs."""
        try:
            children = children_of(pid)
        except GONE:
            return set()
        return children.union(*map(self.below, children))

    def test_a_model_computes_in_processes(self):
        for way in WAYS:
            with self.subTest(way), grpcclient.InferenceServerClient(self.server.grpc) as client:
                for value in (3, 100):
                    self.assertEqual(int(call(client, grpcclient, way, value).as_numpy("OUTPUT0")[0]), value * value)

    def test_nothing_is_left_after_unload(self):
        stubs = {re.search(rb"\0(\w+)_0_0\0", pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())[1].decode(): pid for pid in self.children()}
        self.assertEqual(set(stubs), set(WAYS))
        for way in WAYS:
            with self.subTest(way):
                processes = self.below(stubs[way])
                # One of the pool, the daemon and the program, at least.
                self.assertGreaterEqual(len(processes), 3)
                folder = self.repository.path / way
                self.assertEqual(len(list(folder.glob("tmp*"))), 1)
                status, reply = self.server.post_json(f"/v2/repository/models/{way}/unload", {})
                self.assertEqual(status, 200, reply)
                until_equal(lambda pids=processes: {pid for pid in pids if is_running(pid)}, set(), "the processes that outlive the model", 60)
                self.server.wait_for_text(f"{way}_0_0: at exit of {way}")
                until_equal(lambda folder=folder: list(folder.glob("tmp*")), [], "temporary folders of the model")
                self.assertEqual(self.server.post_json(f"/v2/repository/models/{way}/load", {})[0], 200)


@conch_only
@needs_library("python")
class Killed(OwnCase):
    """A server that has no time to end anything."""

    models = staticmethod(Processes.models)
    below = Processes.below

    def test_nothing_outlives_a_killed_server(self):
        processes = self.below(self.server.pid)
        # A stub, one of the pool, the daemon and the program of each, at least.
        self.assertGreaterEqual(len(processes), 4 * len(WAYS))
        os.kill(self.server.pid, signal.SIGKILL)
        until_equal(lambda: {pid for pid in processes if is_running(pid)}, set(), "the processes that outlive the server", 60)

    @classmethod
    def tearDownClass(cls):
        """The test has killed the server."""


if __name__ == "__main__":
    unittest.main()
