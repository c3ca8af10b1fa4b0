"""What our Python backend withstands: servers that are killed, stubs that end between requests, slow clients, models that do not end, and a
machine without shared memory to speak of."""

import concurrent.futures
import os
import pathlib
import queue
import shutil
import signal
import sys
import tempfile
import threading
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import server as servers
import wire
from case import conch_only
from processes import children_of, is_running, threads_of
from repository import Repository
from test_python_backend import python
from test_python_calls import NUMBER
from test_python_own import BACKENDS, ENVIRONMENT, OwnCase, WIDE, needs_python
from waiting import until, until_equal

# Adds 1. Negative numbers: -1 calls `stuck` from a thread of its own, -2 starts a process, -3 asks `plain` and adds what it says.
PLAIN = '''
import os
import subprocess
import sys
import threading
import time
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.repository, self.name = os.path.dirname(args["model_repository"]), args["model_name"]
        while os.path.exists(os.path.join(self.repository, "no_start")):
            time.sleep(0.01)

    def is_ready(self):
        return True

    def ask(self, model, array):
        request = pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=[pb_utils.Tensor("INPUT0", array)])
        response = request.exec()
        return array if response.has_error() else pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            value = int(array.flat[0])
            if self.name == "stuck":
                open(os.path.join(self.repository, "begun"), "w").close()
                while not os.path.exists(os.path.join(self.repository, "go_on")):
                    time.sleep(0.01)
            if value == -1 and self.name == "plain":
                threading.Thread(target=self.ask, args=("stuck", array.copy()), daemon=True).start()
            if value == -2:
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                array = numpy.array([child.pid - 1], numpy.int32)
            if value == -3 and self.name == "plain":
                pb_utils.Logger.log_info("asks")
                array = self.ask("other", array)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]))
        return responses

    def finalize(self):
        while self.name == "endless":
            time.sleep(1)
'''

# As many responses as the input says, with as many numbers each; from a thread of its own, so that requests overlap.
STREAM = '''
import threading
import numpy
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, size = map(int, pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
            threading.Thread(target=self.send, args=(request.get_response_sender(), count, size), daemon=True).start()

    def send(self, sender, count, size):
        for index in range(count):
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numpy.full(size, index, numpy.int32))]))
        sender.send(flags=FINAL)
'''


@conch_only
@needs_python
class Restarts(OwnCase):
    """Stubs that are killed while nobody executes."""

    flags = (*OwnCase.flags, "--backend-config=python,stub-restart-pause-ms=1")

    @staticmethod
    def models(repository):
        repository.model("plain", python(*NUMBER), files={"1/model.py": PLAIN.encode()})

    def setUp(self):
        self.wait_until_ready("plain")

    def test_no_request_is_lost_that_no_process_took(self):
        for number in range(40):
            (stub,) = self.children()
            os.kill(stub, signal.SIGKILL)
            # It comes before, while or after the server sees the end.
            self.assertEqual(self.ask(number, "plain"), number + 1)

    def test_what_a_model_started_ends_with_its_stub(self):
        (stub,) = self.children()
        child = self.ask(-2, "plain")
        self.assertTrue(is_running(child))
        os.kill(stub, signal.SIGKILL)
        until_equal(lambda: is_running(child), False, "whether the process of the killed stub runs")


@conch_only
@needs_python
class SlowReaders(OwnCase):
    """A client that does not read its stream holds up nobody but itself."""

    # Of the memory limit one request may hold a sixteenth: 8 MiB.
    flags = (*OwnCase.flags, f"--memory-limit-bytes={128 << 20}")

    @staticmethod
    def models(repository):
        repository.model("stream", python(*WIDE, extra="model_transaction_policy { decoupled: true }\n"), files={"1/model.py": STREAM.encode()})

    def stream(self, client, results, count, size):
        client.start_stream(results)
        tensor = grpcclient.InferInput("INPUT0", [2], "INT32")
        tensor.set_data_from_numpy(numpy.array([count, size], numpy.int32))
        client.async_stream_infer("stream", [tensor], enable_empty_final_response=True)

    def read_all(self, count):
        """The first numbers of all responses to a client that reads."""
        results, found = queue.SimpleQueue(), []
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            self.stream(client, lambda result, error: results.put((result, error)), count, 1000)
            while True:
                result, error = results.get(timeout=60)
                self.assertIsNone(error)
                if result.get_response().parameters["triton_final_response"].bool_param:
                    return found
                found.append(int(result.as_numpy("OUTPUT0")[-1]))

    def test_others_go_on(self):
        goes_on, outcomes = threading.Event(), queue.SimpleQueue()
        has_begun = threading.Semaphore(0)

        def wait(result, error):
            has_begun.release()
            goes_on.wait(120)
            outcomes.put((result, error))

        with StreamClients(self.server.grpc, 3) as slow:
            for client in slow:
                # 400 MB: more than the server keeps for one request.
                self.stream(client, wait, 400, 250_000)
            for _ in slow:
                self.assertTrue(has_begun.acquire(timeout=60))
            # None of them reads until the others have all of theirs.
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for found in pool.map(self.read_all, [50] * 16):
                    self.assertEqual(found, list(range(50)))
            self.assertTrue(outcomes.empty())
            goes_on.set()
            # It was given up when its part of the memory was full.
            reasons = set()
            while len(reasons) < 1:
                _, error = outcomes.get(timeout=120)
                if error is not None:
                    reasons.add(error.message())
            self.assertRegex(reasons.pop(), "(?i)cancel")
        self.assertEqual(self.read_all(5), list(range(5)))


class StreamClients:
    """So many clients of streams, closed together."""

    def __init__(self, address, count):
        self.clients = [grpcclient.InferenceServerClient(address) for _ in range(count)]

    def __enter__(self):
        return self.clients

    def __exit__(self, *_):
        for client in self.clients:
            client.stop_stream(cancel_requests=True)
            client.close()


@conch_only
@needs_python
class Unloads(OwnCase):
    """Unloading ends, whatever the model does."""

    flags = (*OwnCase.flags, "--model-control-mode=explicit", "--load-model=*", "--backend-config=python,stub-timeout-seconds=1",
             "--backend-config=python,stub-restart-pause-ms=1")

    @staticmethod
    def models(repository):
        for name in ("plain", "stuck", "endless"):
            repository.model(name, python(*NUMBER), files={"1/model.py": PLAIN.encode()})

    def instance_threads(self):
        names = [name for _, name in threads_of(self.server.pid)]
        return names.count("py instance"), names.count("py control")

    def assert_unloads(self, model, stub):
        others = len(self.children() - {stub})
        with httpclient.InferenceServerClient(self.server.http, network_timeout=120, connection_timeout=120) as client:
            client.unload_model(model)
        until_equal(lambda: is_running(stub), False, f"whether the process of {model} runs", 60)
        until_equal(self.instance_threads, (others, 0), "threads of instances", 60)
        with httpclient.InferenceServerClient(self.server.http) as client:
            until(lambda: not client.is_model_ready(model), f"{model} is unloaded", 60)

    def load(self, model):
        """Loads a model anew; its process."""
        with httpclient.InferenceServerClient(self.server.http, network_timeout=60, connection_timeout=60) as client:
            client.unload_model(model)
            until(lambda: not client.is_model_ready(model), f"{model} is unloaded", 60)
            until(lambda: len(self.children()) == self.instance_threads()[0], "its process is gone", 60)
            before = self.children()
            client.load_model(model)
        (stub,) = self.children() - before
        return stub

    def test_with_a_call_under_way(self):
        stub = self.load("plain")
        go_on = self.repository.path / "go_on"
        try:
            self.assertEqual(self.ask(-1, "plain"), 0)
            until((self.repository.path / "begun").exists, "the call is executed")
            self.assert_unloads("plain", stub)
        finally:
            go_on.touch()
        self.assertEqual(self.ask(10, "stuck"), 11)
        go_on.unlink()

    def test_with_an_end_that_hangs(self):
        stub = self.load("endless")
        self.assert_unloads("endless", stub)
        self.server.wait_for_text("Stub process 'endless_0_0' did not end within 1 s and is killed (stub-timeout-seconds)")

    def test_with_a_start_that_hangs(self):
        """The stub is being started again when its model is unloaded."""
        stub = self.load("plain")
        no_start = self.repository.path / "no_start"
        no_start.touch()
        try:
            before = self.children()
            os.kill(stub, signal.SIGKILL)
            until(lambda: self.children() - before, "the next process")
            (starting,) = self.children() - before
            self.assert_unloads("plain", starting)
        finally:
            no_start.unlink()


@conch_only
@needs_python
class KilledServers(unittest.TestCase):
    """What a server leaves that is killed, and what the next one makes of it; and one that ends although a model does not."""

    def test_an_execution_that_hangs(self):
        """The server ends with its exit timeout, and its stub with it."""
        with Repository() as repository:
            repository.model("stuck", python(*NUMBER), files={"1/model.py": PLAIN.encode()})
            server = servers.Server(repository.path, f"--backend-directory={BACKENDS}", "--exit-timeout-secs=2", environment=ENVIRONMENT)
            try:
                stubs = children_of(server.pid)
                body = b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [5]}]}'
                with wire.connect(server) as client:
                    client.sendall(b"POST /v2/models/stuck/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    until((repository.path / "begun").exists, "the execution begins")
                    # Its exit code says that a request was not answered.
                    self.assertEqual(server.terminate(60), 1)
                until(lambda: not any(map(is_running, stubs)), "the stubs end")
            finally:
                server.kill()

    def test_folders_of_environments(self):
        with tempfile.TemporaryDirectory(prefix="conch-survival-") as folder, Repository() as repository:
            folder = pathlib.Path(folder)
            programs = folder / "env/bin"
            programs.mkdir(parents=True)
            (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            (programs / "python3").chmod(0o755)
            archive = shutil.make_archive(str(folder / "packed"), "gztar", folder / "env")
            parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{archive}" }} }}\n'
            repository.model("plain", python(*NUMBER, extra=parameter), files={"1/model.py": PLAIN.encode()})
            temporary = folder / "tmp"
            temporary.mkdir()
            (temporary / "python_env_upstream").mkdir()

            def start():
                return servers.Server(repository.path, f"--backend-directory={BACKENDS}", environment={**ENVIRONMENT, "TMPDIR": str(temporary)})

            def unpacked():
                return {path.name for path in temporary.iterdir() if path.name.startswith("conch_python_env_")}

            with start():
                (first,) = unpacked()
                killed = start()
                (second,) = unpacked() - {first}
                stubs = children_of(killed.pid)
                self.assertEqual(len(stubs), 1)
                os.kill(killed.pid, signal.SIGKILL)
                killed.kill()
                until(lambda: not any(map(is_running, stubs)), "the stubs end")
                self.assertEqual(unpacked(), {first, second}, "nobody could remove it")
                with start():
                    self.assertNotIn(second, unpacked())
                    self.assertIn(first, unpacked(), "of a server that lives")
                    self.assertEqual(len(unpacked()), 2)
                self.assertEqual(unpacked(), {first})
            self.assertEqual(unpacked(), set())
            self.assertTrue((temporary / "python_env_upstream").exists())


@conch_only
@needs_python
@unittest.skipIf(os.geteuid() != 0, "mounts a file system: needs root")
class SmallSharedMemory(unittest.TestCase):
    """`/dev/shm` of containers is small. Nothing needs it."""

    def test_with_one_mebibyte(self):
        prefix = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh"]
        with Repository() as repository:
            for name in ("plain", "other"):
                repository.model(name, python(*WIDE, count=2), files={"1/model.py": PLAIN.encode()})
            with servers.Server(repository.path, f"--backend-directory={BACKENDS}", prefix=prefix, environment=ENVIRONMENT) as server:
                place = f"/proc/{server.pid}/root/dev/shm"
                state = os.statvfs(place)
                self.assertEqual(state.f_blocks * state.f_frsize, 1 << 20)
                for module, address in ((httpclient, server.http), (grpcclient, server.grpc)):
                    with module.InferenceServerClient(address) as client:
                        for first in (-3, 7):
                            array = numpy.arange(8_000_000, dtype=numpy.int32)
                            array[0] = first
                            tensor = module.InferInput("INPUT0", list(array.shape), "INT32")
                            tensor.set_data_from_numpy(array)
                            found = client.infer("plain", [tensor]).as_numpy("OUTPUT0")
                            numpy.testing.assert_array_equal(found, array + (2 if first == -3 else 1))
                (stub, *_) = children_of(server.pid)
                os.kill(stub, signal.SIGKILL)
                until_equal(lambda: stub in children_of(server.pid), False, "whether the killed stub is there")
                self.assertEqual(os.listdir(place), [])


if __name__ == "__main__":
    unittest.main()
