"""Upstream's Python backend, unmodified: models that call other models, answer over time, count metrics, are cancelled or killed, and
backends that are themselves written in Python.
"""

import concurrent.futures
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import tempfile
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import server as servers
from case import conch_only, needs_library, needs_peer
from repository import Repository, identity, tensors
from test_python_backend import DIRECTORY, ENVIRONMENT, TEXTS, PythonCase, python
from trace_paths import model_paths
from waiting import until, until_equal

# Calls the model that a parameter names, so often as another says: one after the other, all at once, or as one with many responses.
CALLER = '''
import asyncio
import json
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def request(self, value, parameters):
        tensor = pb_utils.Tensor("INPUT0", numpy.array([value], dtype=numpy.int32))
        return pb_utils.InferenceRequest(model_name=parameters["model"], requested_output_names=["OUTPUT0"], inputs=[tensor])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = json.loads(request.parameters())
        value = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
        calls = [self.request(value + index, parameters) for index in range(int(parameters["count"]))]
        mode = parameters["mode"]
        if mode == "one by one":
            responses = [call.exec() for call in calls]
        elif mode == "at once":
            async def gather():
                return await asyncio.gather(*[call.async_exec() for call in calls])
            responses = asyncio.run(gather())
        else:
            responses = [response for call in calls for response in call.exec(decoupled=True)]
        total = 0
        for response in responses:
            if response.has_error():
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("called: " + response.error().message()))
            if response.output_tensors():
                total += int(pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()[0])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numpy.array([total], dtype=numpy.int32)),
                                           pb_utils.Tensor("RESPONSES", numpy.array([len(responses)], dtype=numpy.int32))])
'''

# Tells what it knows of each request.
TELLER = '''
import json
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            told = {
                "id": request.request_id(), "correlation_id": request.correlation_id(), "flags": request.flags(),
                "timeout": request.timeout(), "outputs": sorted(request.requested_output_names()),
                "parameters": json.loads(request.parameters()),
                "cancelled": request.is_cancelled()}
            text = numpy.array([json.dumps(told)], dtype=numpy.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
            pb_utils.Logger.log_warn("told of " + request.request_id())
        return responses
'''

# Doubles, and counts what it did.
DOUBLER = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        def metric(kind, name, buckets=None):
            family = pb_utils.MetricFamily(name=name, description="of a test", kind=kind)
            self.families.append(family)
            return family.Metric(labels={"model": args["model_name"]}, **({"buckets": buckets} if buckets else {}))
        self.families = []
        self.calls = metric(pb_utils.MetricFamily.COUNTER, "test_calls")
        self.last = metric(pb_utils.MetricFamily.GAUGE, "test_last")

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            self.calls.increment(1)
            self.last.set(float(value[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value * 2)]))
        return responses
'''

# Answers n times with n, from a thread of its own after execute has returned.
REPEATS = '''
import threading
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            threading.Thread(target=self.send, args=(request.get_response_sender(), value)).start()

    def send(self, sender, value):
        for _ in range(int(value[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

# Waits until its request is cancelled, at most 20 s, and writes down how that went; or dies.
WAITS = '''
import os
import time
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if value[0] == 1:
                open(os.path.join(self.directory, "waiting"), "w").close()
                end = time.monotonic() + 20
                while not request.is_cancelled() and time.monotonic() < end:
                    time.sleep(0.01)  # a model's own pause: it has only this process to look from
                with open(os.path.join(self.directory, "outcome"), "w") as file:
                    file.write("cancelled" if request.is_cancelled() else "in time")
                responses.append(pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("it was cancelled", pb_utils.TritonError.CANCELLED)))
                continue
            if value[0] == 2:
                os.kill(os.getpid(), 9)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value + 1)]))
        return responses
'''

# A whole backend: the model's own directory holds a number to add.
ADDING_BACKEND = '''
import json
import os
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        assert config["backend"] == "adding" and config["runtime"] == "model.py", config
        with open(os.path.join(args["model_repository"], args["model_version"], "number")) as file:
            self.number = int(file.read())

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", (
            pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() + self.number).astype(numpy.int32))])
                for request in requests]
'''

NUMBER = ([("INPUT0", "INT32", (1,))], [("OUTPUT0", "INT32", (1,))])
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def call(client, module, model, value, **more):
    tensor = module.InferInput("INPUT0", [1], "INT32")
    tensor.set_data_from_numpy(numpy.array([value], numpy.int32))
    return client.infer(model, [tensor], **more)


# Of the shared memory of these tests: that of other programs comes and goes.
PREFIX = f"stubs_{os.getpid()}"


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith(PREFIX)}


# Makes the first of its two outputs only.
PARTIAL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())])
                for request in requests]
'''
PAIR = (NUMBER[0], [("OUTPUT0", "INT32", (1,)), ("OUTPUT1", "INT32", (1,))])
AROUND = ('platform: "ensemble"\n' + tensors("input", PAIR[0]) + tensors("output", PAIR[1])
          + 'ensemble_scheduling { step { model_name: "partial" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } '
            'output_map { key: "OUTPUT0" value: "OUTPUT0" } output_map { key: "OUTPUT1" value: "OUTPUT1" } } }\n')


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
@needs_library("identity")
class Traced(unittest.TestCase):
    """A model that hands the trace of its request on to the model that it calls."""

    backends, environment = DIRECTORY, ENVIRONMENT

    def test_a_call_has_a_trace_below_its_request(self):
        caller = CALLER.replace("inputs=[tensor])", "inputs=[tensor], trace=self.asked.trace())").replace(
            "        value = int(", "        self.asked = request\n        value = int(", 1)
        self.assertIn("trace=self.asked", caller)
        telling = identity([("INPUT0", "INT32", (1,))], parameters={"enable_custom_tracing": "true"})
        with tempfile.TemporaryDirectory(prefix="conch-traced-") as directory, Repository() as repository:
            backends, file = pathlib.Path(directory) / "backends", pathlib.Path(directory) / "trace.json"
            shutil.copytree(self.backends / "python", backends / "python")
            shutil.copytree(servers.backend_directory() / "identity", backends / "identity")
            repository.model("caller", python(NUMBER[0], [*NUMBER[1], ("RESPONSES", "INT32", (1,))]), files={"1/model.py": caller.encode()})
            repository.model("echo", telling)
            step = 'model_name: "echo" input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
            number = tensors("input", NUMBER[0]) + tensors("output", NUMBER[1])
            repository.model("around", f'platform: "ensemble"\n{number}ensemble_scheduling {{ step {{ {step} model_version: -1 }} }}\n')
            flags = [f"--backend-directory={backends}", f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS",
                     "--trace-config=rate=1"]
            with servers.Server(repository.path, *flags, environment=self.environment) as server:
                with grpcclient.InferenceServerClient(server.grpc) as client:
                    for model in ("echo", "around"):
                        parameters = {"model": model, "mode": "one by one", "count": 2}
                        result = call(client, grpcclient, "caller", 5, parameters=parameters)
                        self.assertEqual(int(result.as_numpy("OUTPUT0")[0]), 11)
            entries = json.loads(file.read_text())
        paths = model_paths(entries)
        self.assertEqual(sorted(paths.values()), ["caller", "caller", *["caller/around"] * 2, *["caller/around/echo"] * 2, *["caller/echo"] * 2])
        stations = {}
        for entry in entries:
            stations.setdefault(entry["id"], []).extend(row["name"] for row in entry.get("timestamps", []))
        for number, path in paths.items():
            self.assertIn("REQUEST_START", stations[number])
            self.assertIn("REQUEST_END", stations[number])
            self.assertEqual("CUSTOM_SINGLE_ACTIVITY" in stations[number], path.endswith("echo"))


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
@needs_library("identity")
class Calls(PythonCase):
    """Models that call models of the server that runs them."""

    @staticmethod
    def models(repository):
        repository.model("caller", python(NUMBER[0], [*NUMBER[1], ("RESPONSES", "INT32", (1,))], count=2), files={"1/model.py": CALLER.encode()})
        repository.model("doubler", python(*NUMBER), files={"1/model.py": DOUBLER.encode()})
        repository.model("repeats", python(*NUMBER, extra=DECOUPLED), files={"1/model.py": REPEATS.encode()})
        repository.model("partial", python(*PAIR), files={"1/model.py": PARTIAL.encode()})
        repository.model("around", AROUND)
        (repository.path / "echo/1").mkdir(parents=True)
        (repository.path / "echo/config.pbtxt").write_text(identity([("INPUT0", "INT32", (1,))]))

    @classmethod
    def setUpClass(cls):
        # Both kinds of backends in one directory, as users have them.
        cls.directory = tempfile.TemporaryDirectory(prefix="conch-backends-")
        cls.addClassCleanup(cls.directory.cleanup)
        shutil.copytree(cls.backends / "python", pathlib.Path(cls.directory.name) / "python")
        shutil.copytree(servers.backend_directory() / "identity", pathlib.Path(cls.directory.name) / "identity")
        cls.flags = (f"--backend-directory={cls.directory.name}", "--log-verbose=1")
        super().setUpClass()

    def ask(self, model, mode, value, count=1):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            result = call(client, grpcclient, "caller", value, parameters={"model": model, "mode": mode, "count": count})
        return int(result.as_numpy("OUTPUT0")[0]), int(result.as_numpy("RESPONSES")[0])

    def test_calls(self):
        for model, factor in (("echo", 1), ("doubler", 2)):
            for mode in ("one by one", "at once"):
                with self.subTest(model=model, mode=mode):
                    self.assertEqual(self.ask(model, mode, 10, 5), (factor * (10 + 11 + 12 + 13 + 14), 5))
        self.assertGreaterEqual(self.server.statistics("echo")["inference_count"], 10)

    def test_many_responses(self):
        """A decoupled model seen by its caller: four responses and the empty final one, after its execute has returned."""
        total, responses = self.ask("repeats", "many", 4)
        self.assertEqual(total, 16)
        self.assertIn(responses, (4, 5), "the four, and perhaps an empty one that ends them")
        self.assertEqual(self.ask("repeats", "many", 0)[0], 0)

    def test_stream(self):
        """The same model seen by a client: its responses one by one, in the order in which it sends them, and their end."""
        answers = queue.Queue()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(callback=lambda result, error: answers.put((result, error)))
            for value in (3, 0, 2):
                tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
                tensor.set_data_from_numpy(numpy.array([value], numpy.int32))
                client.async_stream_infer("repeats", [tensor], request_id=str(value), enable_empty_final_response=True)
            seen = {"3": [], "0": [], "2": []}
            for _ in range(3 + 0 + 2 + 3):
                result, error = answers.get(timeout=20)
                self.assertIsNone(error)
                response = result.get_response()
                is_final = response.parameters["triton_final_response"].bool_param
                seen[response.id].append("end" if is_final else int(result.as_numpy("OUTPUT0")[0]))
            client.stop_stream()
        self.assertEqual(seen, {"3": [3, 3, 3, "end"], "0": ["end"], "2": [2, 2, "end"]})

    def test_a_call_that_fails(self):
        for model, words in (("nobody", "Model 'nobody' is not ready"), ("repeats", "decoupled")):
            with self.subTest(model=model), self.assertRaises(InferenceServerException) as caught:
                self.ask(model, "one by one", 3)
            self.assertIn(words, caught.exception.message())
        self.assertEqual(self.ask("doubler", "one by one", 3), (6, 1))

    def test_an_output_that_no_step_made(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            outputs = [grpcclient.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
            result = call(client, grpcclient, "around", 7, outputs=outputs)
        self.assertEqual([int(value) for value in result.as_numpy("OUTPUT0")], [7])
        self.assertIsNone(result.as_numpy("OUTPUT1"))
        self.server.wait_for_line("Composing models did not output tensor OUTPUT1")

    def test_under_load(self):
        """Callers and called on few instances, all at once: nothing waits for itself, no answer goes to another's question."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda value: self.ask("doubler", "at once", value, 3)[0], range(40)))
        self.assertEqual(results, [2 * (3 * value + 3) for value in range(40)])

    def test_metrics(self):
        calls = lambda: self.server.metrics().get('test_calls{model="doubler"}', 0)
        before = calls()
        self.ask("doubler", "one by one", 21)
        self.assertEqual(calls(), before + 1)
        self.assertEqual(self.server.metrics()['test_last{model="doubler"}'], 21)
        text = self.server.get("/metrics", port="metrics")[1].decode()
        self.assertIn("# TYPE test_calls counter\n", text)
        self.assertIn("# HELP test_last of a test\n", text)


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
class Stubs(PythonCase):
    """The processes that run the models."""

    flags = (*PythonCase.flags, "--model-control-mode=explicit", "--load-model=*", f"--backend-config=python,shm-region-prefix-name={PREFIX}")

    @staticmethod
    def models(repository):
        repository.model("waits", python(*NUMBER), files={"1/model.py": WAITS.encode()})

    def wait_for(self, file):
        path = self.repository.path / "waits" / file
        until(lambda: path.exists() and (file != "outcome" or path.read_text()), f"the file {file}")
        text = path.read_text()
        path.unlink()
        return text

    def test_cancelled(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
            tensor.set_data_from_numpy(numpy.array([1], numpy.int32))
            answers = []
            running = client.async_infer("waits", [tensor], callback=lambda result, error: answers.append(error))
            self.wait_for("waiting")
            running.cancel()
            self.assertEqual(self.wait_for("outcome"), "cancelled")
            self.assertEqual(int(call(client, grpcclient, "waits", 5).as_numpy("OUTPUT0")[0]), 6)

    def test_killed(self):
        """The request whose stub dies is answered; what follows is served, or the model says that it is not ready."""
        before = shared_memory()
        with httpclient.InferenceServerClient(self.server.http, network_timeout=60) as client:
            with self.assertRaises(InferenceServerException) as caught:
                call(client, httpclient, "waits", 2)
            self.assertTrue(caught.exception.message(), "an error says what happened")

            def is_settled():
                try:
                    self.assertEqual(int(call(client, httpclient, "waits", 7).as_numpy("OUTPUT0")[0]), 8)
                    return True
                except InferenceServerException:
                    return not client.is_model_ready("waits")
            until(is_settled, "a model that serves, or is not ready", 30)
            # A model that lost its stub comes back by a reload.
            client.unload_model("waits")
            client.load_model("waits")
            self.assertEqual(int(call(client, httpclient, "waits", 8).as_numpy("OUTPUT0")[0]), 9)
        self.assertLessEqual(len(shared_memory()), len(before) + 1)

    def test_inheritance(self):
        """A stub has no blocked signal, none of the server's sockets and rings, and the CPUs of its instance."""
        (stub,) = self.children()
        def signals(process, field):
            status = pathlib.Path(f"/proc/{process}/status").read_text()
            return int(re.search(rf"{field}:\s*([0-9a-f]+)", status)[1], 16)

        for field in ("SigBlk", "SigIgn"):
            number = signals(stub, field)
            # Python itself ignores SIGPIPE and SIGXFSZ; whoever started these tests may have had them ignore more, as nohup does.
            # And posix_spawn has processes ignore the two signals that the C library keeps to itself.
            own = (1 << 31) | (1 << 32)
            allowed = 0 if field == "SigBlk" else (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1) | own | signals("self", field)
            self.assertEqual(number & ~allowed, 0, f"{field} {number:x}")
        links = [os.readlink(f"/proc/{stub}/fd/{name}") for name in os.listdir(f"/proc/{stub}/fd")]
        for link in links:
            self.assertNotRegex(link, "^socket:|io_uring|eventfd|eventpoll")
        self.assertEqual(os.sched_getaffinity(stub), os.sched_getaffinity(0))

    def test_unload_leaves_nothing(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            client.unload_model("waits")
            until_equal(self.children, set(), "the stubs that outlive their model")
            before, files = shared_memory(), self.server.file_count()
            for _ in range(3):
                client.load_model("waits")
                self.assertEqual(int(call(client, httpclient, "waits", 8).as_numpy("OUTPUT0")[0]), 9)
                client.unload_model("waits")
            # What a connection or an unload had open goes a moment after what it was for.
            until(lambda: (self.children(), shared_memory() ^ before, self.server.file_count()),
                  f"no stubs, no more shared memory, and {files} files", accept=lambda left: not left[0] and not left[1] and left[2] <= files)
            client.load_model("waits")


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
class WrittenInPython(PythonCase):
    """A backend directory that holds a `model.py` instead of a library."""

    @staticmethod
    def models(repository):
        for name, number in (("adds5", 5), ("adds7", 7)):
            repository.model(name, 'backend: "adding"\n', files={"1/number": str(number).encode()})

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="conch-backends-")
        cls.addClassCleanup(cls.directory.cleanup)
        folder = pathlib.Path(cls.directory.name)
        shutil.copytree(cls.backends / "python", folder / "python")
        (folder / "adding").mkdir()
        (folder / "adding/model.py").write_text(ADDING_BACKEND)
        cls.flags = (f"--backend-directory={folder}",)
        super().setUpClass()

    def test_serves(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            for name, number in (("adds5", 5), ("adds7", 7)):
                self.assertEqual(int(call(client, httpclient, name, 100).as_numpy("OUTPUT0")[0]), 100 + number)
            config = client.get_model_config("adds5")
            self.assertEqual((config["backend"], config["runtime"]), ("adding", "model.py"))

    def test_start_up_table(self):
        folder = pathlib.Path(self.directory.name).resolve()
        self.server.wait_for_text(f"| adding  | {folder}/adding/model.py ")
        self.server.wait_for_text(f"| python  | {folder}/python/libtriton_python.so ")


class Told:
    """What a model in Python learns of its request; with sizes of the stubs' shared memory that are not the defaults."""

    FLAGS = ("--backend-config=python,shm-default-byte-size=4194304", "--backend-config=python,shm-growth-byte-size=2097152",
             "--backend-config=python,stub-timeout-seconds=60", "--backend-config=python,shm-region-prefix-name={}",
             "--backend-config=python,thread-pool-size=3")

    @staticmethod
    def teller(repository):
        repository.model("teller", python([("INPUT0", "INT32", (1,))], [("TEXT", "STRING", (1,))]), files={"1/model.py": TELLER.encode()})

    def told(self, module, address, **more):
        tensor = module.InferInput("INPUT0", [1], "INT32")
        tensor.set_data_from_numpy(numpy.array([1], numpy.int32))
        with module.InferenceServerClient(address) as client:
            result = client.infer("teller", [tensor], outputs=[module.InferRequestedOutput("TEXT")], **more)
        return json.loads(result.as_numpy("TEXT")[0])

    def test_what_a_model_learns_of_its_request(self):
        for module, address in ((httpclient, self.server.http), (grpcclient, self.server.grpc)):
            told = self.told(module, address, request_id="r-1", sequence_id=42, sequence_start=True, timeout=5_000_000,
                             parameters={"text": "x", "count": 3, "is_odd": True})
            self.assertEqual(
                {key: told[key] for key in ("id", "correlation_id", "flags", "timeout", "outputs", "cancelled")},
                {"id": "r-1", "correlation_id": 42, "flags": 1, "timeout": 5_000_000, "outputs": ["TEXT"], "cancelled": False})
            self.assertEqual(told["parameters"], {"text": "x", "count": 3, "is_odd": True})
            self.server.wait_for_line("told of r-1")

    def test_the_stubs_memory_is_as_configured(self):
        prefix = self.prefix
        regions = [path for path in pathlib.Path("/dev/shm").iterdir() if path.name.startswith(prefix)]
        self.assertTrue(regions, "named as configured")
        self.assertIn(4_194_304, {region.stat().st_size for region in regions}, "the default is 1 MiB")


@conch_only
@needs_peer("abi/backends/python/libtriton_python.so")
class ToldInConch(Told, PythonCase):
    models = staticmethod(Told.teller)
    prefix = f"told_{os.getpid()}c"
    flags = (*PythonCase.flags, *(flag.format(f"told_{os.getpid()}c") for flag in Told.FLAGS))


@conch_only
@needs_peer("triton")
@needs_peer("backends/python/libtriton_python.so")
class ToldInTriton(Told, unittest.TestCase):
    """The baseline."""

    prefix = f"told_{os.getpid()}t"
    triton_backends, environment = servers.PEERS / "backends", ENVIRONMENT

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        cls.teller(cls.repository)
        flags = [flag.format(cls.prefix) for flag in cls.FLAGS]
        cls.server = servers.Server(cls.repository.path, *flags, kind="triton", backends=str(cls.triton_backends),
                                    environment=cls.environment)
        cls.addClassCleanup(cls.server.kill)


@conch_only
@needs_peer("triton")
@needs_peer("backends/python/libtriton_python.so")
class InTriton(unittest.TestCase):
    """The baseline: the same models by the same binary in the real Triton."""

    triton_backends, environment = servers.PEERS / "backends", ENVIRONMENT

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        Calls.models(cls.repository)
        shutil.rmtree(cls.repository.path / "echo")  # Triton has no identity backend here
        cls.repository.model("texts", python([("TEXT", "STRING", (-1,))], [("TURNED", "STRING", (-1,)), ("LENGTH", "INT64", (-1,))], 4),
                             files={"1/model.py": TEXTS.encode()})
        cls.server = servers.Server(cls.repository.path, kind="triton", backends=str(cls.triton_backends), environment=cls.environment)
        cls.addClassCleanup(cls.server.kill)

    ask = Calls.ask
    test_many_responses = Calls.test_many_responses
    test_metrics = Calls.test_metrics
    test_stream = Calls.test_stream

    def test_calls(self):
        for mode in ("one by one", "at once"):
            self.assertEqual(self.ask("doubler", mode, 10, 5), (2 * (10 + 11 + 12 + 13 + 14), 5))

    def test_texts(self):
        texts = numpy.array([["stressed", "", "αβγ"]], dtype=numpy.object_)
        tensor = httpclient.InferInput("TEXT", [1, 3], "BYTES")
        tensor.set_data_from_numpy(texts)
        with httpclient.InferenceServerClient(self.server.http) as client:
            result = client.infer("texts", [tensor])
        self.assertEqual(result.as_numpy("TURNED").tolist(), [[text.encode()[::-1] for text in texts[0]]])


if __name__ == "__main__":
    unittest.main()
