"""Our Python backend: all that upstream's is tried with, in conch and in the real Triton, and what it does beyond that: processes that are
watched and started again, memory without names, any interpreter.

The stubs run in the interpreter of these tests, which has numpy."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import server as servers
import test_python_backend
import test_python_calls
from case import conch_only, needs_library, needs_peer
from processes import children_of, is_running
from repository import Repository
from test_python_backend import python
from test_python_calls import NUMBER, call
from waiting import until, until_equal

BACKENDS = servers.backend_directory()
ENVIRONMENT = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
needs_python = needs_library("python")


def ours(test):
    """Has a case of upstream's backend run with ours."""
    test.needs_peer, test.__unittest_skip__ = False, False
    test.backends, test.triton_backends, test.environment = BACKENDS, BACKENDS, ENVIRONMENT
    test.flags = tuple(flag.replace(str(servers.PEERS / "abi/backends"), str(BACKENDS)) for flag in getattr(test, "flags", ()))
    return conch_only(needs_python(test))


@ours
class Python(test_python_backend.Python):
    pass


@ours
class Life(test_python_backend.Life):
    pass


@ours
class Calls(test_python_calls.Calls):
    pass


@ours
class Traced(test_python_calls.Traced):
    pass


@ours
class Stubs(test_python_calls.Stubs):
    pass


@ours
class WrittenInPython(test_python_calls.WrittenInPython):
    pass


class NoNames:
    def test_the_stubs_memory_is_as_configured(self):
        self.assertEqual([path for path in pathlib.Path("/dev/shm").iterdir() if path.name.startswith(self.prefix)], [])
        maps = pathlib.Path(f"/proc/{self.server.pid}/maps").read_text()
        self.assertEqual(len(re.findall("/memfd:conch python (?:requests|responses) ", maps)), 2)


@ours
class Told(NoNames, test_python_calls.ToldInConch):
    pass


@needs_peer("triton")
@ours
class ToldInTriton(NoNames, test_python_calls.ToldInTriton):
    # Another than that of upstream's backend, which leaves a name behind when its server is killed.
    prefix = f"told_{os.getpid()}o"


@needs_peer("triton")
@ours
class InTriton(test_python_calls.InTriton):
    pass


# What the value asks for: 1 an exit, 2 a kill, 3 to be executed and printed; 4 a thread that answers later; 5 nothing at all.
UNRULY = '''
import os
import sys
import threading
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        if os.path.exists(os.path.join(args["model_repository"], "refuse")):
            raise ValueError("not today")
        self.is_ready_file = os.path.join(args["model_repository"], "unready")

    def is_ready(self):
        return not os.path.exists(self.is_ready_file)

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            value = int(array[0])
            if value == 1:
                os._exit(7)
            if value == 2:
                os.kill(os.getpid(), 9)
            if value == 3:
                print("printed", value)
                print("to the other stream", file=sys.stderr)
            if value == 4:
                threading.Timer(0.05, self.later, (request.get_response_sender(), array)).start()
                responses.append(None)
                continue
            if value == 5:
                responses.append(None)
                continue
            if value == 6:
                self.kept.append(array)
            if value == 7:
                sys.exit("the model wants to go")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]))
        return responses

    def later(self, sender, array):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

WIDE = [("INPUT0", "INT32", (-1,))], [("OUTPUT0", "INT32", (-1,))]


class OwnCase(test_python_backend.PythonCase):
    backends, environment = BACKENDS, ENVIRONMENT
    flags = (f"--backend-directory={BACKENDS}",)

    def ask(self, value, model="unruly"):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            return int(call(client, grpcclient, model, value).as_numpy("OUTPUT0")[0])

    def refusal(self, value, model="unruly"):
        with self.assertRaises(InferenceServerException) as caught:
            self.ask(value, model)
        return caught.exception.message()

    def wait_until_ready(self, model):
        """Waits until the stubs of a model run: one that ended is started again."""
        with httpclient.InferenceServerClient(self.server.http) as client:
            until(lambda: client.is_model_ready(model), f"{model} is ready", 60)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))


@conch_only
@needs_python
class Supervision(OwnCase):
    """Processes that end when they should not."""

    flags = (*OwnCase.flags, "--backend-config=python,stub-restart-pause-ms=1")

    @staticmethod
    def models(repository):
        repository.model("unruly", python(*NUMBER), files={"1/model.py": UNRULY.encode()})

    def setUp(self):
        # The test before may have ended the stub.
        self.wait_until_ready("unruly")

    def test_an_end_fails_its_requests_only(self):
        for value in (1, 2, 7, 1):
            (before,) = self.children()
            self.assertEqual(self.refusal(value), "Stub process 'unruly_0_0' is not healthy.")
            self.assertEqual(self.ask(10), 11)
            (after,) = self.children()
            self.assertNotEqual(before, after)
        self.server.wait_for_text("Stub process 'unruly_0_0' is unhealthy and it will be restarted: it exited with code 7")
        self.server.wait_for_text("Stub process 'unruly_0_0' is unhealthy and it will be restarted: it was killed (signal 9")

    def test_nothing_is_left_of_many(self):
        self.assertEqual(self.ask(1000), 1001)
        files = self.descriptors()
        for _ in range(10):
            self.refusal(2)
            self.assertEqual(self.ask(1000), 1001)
        self.assertEqual(len(self.children()), 1)
        # No memory has a name; that nothing is left in /dev/shm is shown where the server has one of its own (test_python_survival).
        for pid in (self.server.pid, *self.children()):
            self.assertNotIn("/dev/shm/", pathlib.Path(f"/proc/{pid}/maps").read_text())
        until(self.descriptors, f"{files} descriptors", accept=lambda count: count <= files)

    def test_what_is_printed(self):
        self.assertEqual(self.ask(3), 4)
        self.server.wait_for_text("unruly_0_0: printed 3")
        self.server.wait_for_text("unruly_0_0: to the other stream")

    def test_answers_after_the_execution(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(self.ask, [4] * 20)), [5] * 20)

    def test_a_request_that_is_given_up(self):
        self.assertEqual(self.refusal(5), "the backend gave up before the last response")

    def test_readiness(self):
        file = self.repository.path / "unruly/unready"
        with httpclient.InferenceServerClient(self.server.http) as client:
            self.assertTrue(client.is_model_ready("unruly"))
            file.touch()
            try:
                self.assertFalse(client.is_model_ready("unruly"))
            finally:
                file.unlink()
            self.assertTrue(client.is_model_ready("unruly"))


@conch_only
@needs_python
class GivenUp(OwnCase):
    """A model that cannot be started any more."""

    flags = (*OwnCase.flags, "--backend-config=python,stub-restart-pause-ms=1", "--backend-config=python,stub-restart-limit=2")

    @staticmethod
    def models(repository):
        repository.model("unruly", python(*NUMBER), files={"1/model.py": UNRULY.encode()})

    def test_the_limit(self):
        (self.repository.path / "unruly/refuse").touch()
        self.assertEqual(self.refusal(2), "Stub process 'unruly_0_0' is not healthy.")
        self.server.wait_for_text("it ended 3 times in a row and is not started again (stub-restart-limit=2)")
        self.assertRegex(self.refusal(10), "is not started again")
        with httpclient.InferenceServerClient(self.server.http) as client:
            self.assertFalse(client.is_model_ready("unruly"))
        self.assertEqual(self.children(), set())


@conch_only
@needs_python
class Memory(OwnCase):
    """A model that keeps its inputs fills its own memory, and no other's."""

    flags = (*OwnCase.flags, f"--backend-config=python,shm-max-byte-size={4 << 20}")

    @staticmethod
    def models(repository):
        for name in ("unruly", "other"):
            repository.model(name, python(*WIDE), files={"1/model.py": UNRULY.encode()})

    def send(self, value, model):
        with httpclient.InferenceServerClient(self.server.http) as client:
            tensor = httpclient.InferInput("INPUT0", [250_000], "INT32")
            tensor.set_data_from_numpy(numpy.full(250_000, value, numpy.int32))
            return int(client.infer(model, [tensor]).as_numpy("OUTPUT0")[7])

    def test_inputs_that_are_kept(self):
        for _ in range(50):
            self.assertEqual(self.send(8, "unruly"), 9, "what is let go makes room")
        with self.assertRaises(InferenceServerException) as caught:
            for _ in range(6):
                self.assertEqual(self.send(6, "unruly"), 7)
        self.assertRegex(caught.exception.message(), "the shared memory of the model has no room for 1000000 bytes of inputs")
        self.assertEqual(self.send(8, "other"), 9)


@needs_python
@conch_only
class Starts(unittest.TestCase):
    """Models that cannot be loaded, and what is said of them."""

    def refused(self, text, *flags, config="", within=30):
        with Repository() as repository:
            repository.model("m", python(*NUMBER, extra=config), files={"1/model.py": text.encode()})
            with servers.Server(repository.path, f"--backend-directory={BACKENDS}", "--exit-on-error=false", *flags, environment=ENVIRONMENT,
                                expect_ready=False, ready_within=within) as server:
                reasons = {}

                def is_settled():
                    index = server.post_json("/v2/repository/index", {})[1]
                    reasons.update({row["name"]: row.get("reason", "") for row in json.loads(index)})
                    return reasons.get("m") not in (None, "", "loading")
                until(is_settled, "the reason of the failure", within)
                until_equal(lambda: children_of(server.pid), set(), "the stubs of a model that is not loaded")
                return reasons["m"]

    def test_a_missing_module(self):
        reason = self.refused("import no_such_module\n\nclass TritonPythonModel:\n    pass\n")
        self.assertRegex(reason, r"No module named 'no_such_module' \(the interpreter .*python3?.*, Python 3\.[0-9.]+, has no module 'no_such_module'\)")

    def test_no_interpreter(self):
        parameter = 'parameters { key: "python-interpreter" value { string_value: "/no/such/python" } }\n'
        self.assertRegex(self.refused(UNRULY, config=parameter), "with the interpreter '/no/such/python': No such file or directory")

    def test_a_hang(self):
        text = "import time\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(600)\n"
        reason = self.refused(text, "--backend-config=python,initialize-timeout-seconds=1")
        self.assertRegex(reason, r"'initialize' took longer than 1 s \(initialize-timeout-seconds\)")

    def test_an_exit(self):
        reason = self.refused("import os\nos._exit(3)\n")
        self.assertRegex(reason, "the process exited with code 3")

    def test_no_file(self):
        config = 'default_model_filename: "other.py"\n'
        self.assertRegex(self.refused(UNRULY, config=config), r"Python model file not found in '.*/m/1/other\.py'")


@conch_only
@needs_python
class Environments(OwnCase):
    """Interpreters of a model's own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-environment-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        programs = cls.folder / "env/bin"
        programs.mkdir(parents=True)
        # An environment that is told from others by a variable.
        program = programs / "python3"
        program.write_text(f'#!/bin/sh\nexport ENVIRONMENT_OF_TEST=own\nexec {sys.executable} "$@"\n')
        program.chmod(0o755)
        cls.archive = shutil.make_archive(str(cls.folder / "packed"), "gztar", cls.folder / "env")
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        text = UNRULY.replace("array + 1)", "array + len(os.environ.get('ENVIRONMENT_OF_TEST', '')))")
        places = {"folder": cls.folder / "env", "archive": cls.archive, "relative": "$$TRITON_MODEL_DIRECTORY/env"}
        for name, place in places.items():
            parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{place}" }} }}\n'
            repository.model(name, python(*NUMBER, extra=parameter), files={"1/model.py": text.encode()})
        shutil.copytree(cls.folder / "env", repository.path / "relative/env")
        repository.model("plain", python(*NUMBER), files={"1/model.py": text.encode()})

    def test_each_model_has_its_own(self):
        for model, expected in (("folder", 13), ("archive", 13), ("relative", 13), ("plain", 10)):
            with self.subTest(model):
                self.assertEqual(self.ask(10, model), expected)


@conch_only
@needs_python
class Ends(OwnCase):
    """What is left of stubs when the server is gone."""

    @staticmethod
    def models(repository):
        repository.model("unruly", python(*NUMBER, count=2), files={"1/model.py": UNRULY.encode()})

    def test_nothing_outlives_a_killed_server(self):
        stubs = self.children()
        self.assertEqual(len(stubs), 2)
        self.assertEqual(self.ask(10), 11)
        os.kill(self.server.pid, signal.SIGKILL)

        def left():
            return set(filter(is_running, stubs))
        until_equal(left, set(), "the stubs that outlive the server")

    @classmethod
    def tearDownClass(cls):
        """The test has killed the server."""


if __name__ == "__main__":
    unittest.main()
