"""A GPU that fails under a backend's kernels: one that never ends, no memory in the middle of a batch, a broken device.

Runs against the double of the driver in src/testkit/cuda, or against the machine's driver with CONCH_CUDA=real. The faults are made by
requests to a backend in C, gpu_fault_backend.c, so that they are the driver's own on a GPU."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import time
import unittest
from unittest import mock

import cuda
import elementwise
import numpy as np
import server as servers
from c_backend import compiled
from case import conch_only, needs_library
from repository import Repository, identity, tensors
from test_gpus import GpuCase, families
from waiting import until, until_equal

SOURCE = pathlib.Path(__file__).with_name("gpu_fault_backend.c")
# What a request does, as `enum Operation` has it; a larger number is a count of bytes.
ANSWER, HANG, BREAK, END, TAKE, GIVE = range(6)
SMALL = 4096
POOL_BYTES = 1 << 20
POOL = "conch_gpu_memory_pool_used_bytes"
TIMEOUT_S = 2
# A model goes on to answer while another hangs: within this, far below what a hang would take.
ANSWER_S = 10
# The driver lets streams share 8 queues unless told otherwise, and then work may wait behind a kernel of another stream.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def backends():
    """A backend directory with the backend, and those whose models are to go on."""
    path = compiled("gpu_fault", SOURCE)
    for name in ("identity", "gpu_elementwise"):
        library = f"libtriton_{name}.so"
        servers.place(path / name / library, servers.built(library))
    return path


def faulty(kind="KIND_GPU gpus: [ 0 ]", batch=0, extra="", **parameters):
    """The configuration of a model of the backend."""
    text = f'backend: "gpu_fault"\nmax_batch_size: {batch}\n' + tensors("input", [("INPUT0", "INT32", (1,))])
    text += tensors("output", [("OUTPUT0", "INT32", (1,))]) + f"instance_group [ {{ count: 1 kind: {kind} }} ]\n" + extra
    for key, value in parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text


def others(repository):
    """Models beside those that fail."""
    repository.model("control", faulty("KIND_CPU"))
    config = identity([("INPUT0", "FP32", (-1,))])
    repository.model("cpu", config)
    repository.model("identity", config.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: [ 0 ]"))
    repository.model("cast", elementwise.model("cast", [("A", "FP32", (-1,))], [("O", "INT8", (-1,))], kind="KIND_GPU"))


@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
@needs_library("identity")
@needs_library("gpu_elementwise")
class FaultCase(GpuCase):
    """A server with the backend and models of others."""

    settings = {"devices": 1}
    flags = ("--model-control-mode=explicit", "--load-model=*", f"--cuda-memory-pool-byte-size=0:{POOL_BYTES}", "--metrics-interval-ms=50")

    @classmethod
    def setUpClass(cls):
        cls.environment = {**QUEUES, **(cls.environment or {})}
        with mock.patch.dict(os.environ, {"CONCH_TEST_BACKENDS": str(backends())}):
            super().setUpClass()

    def do(self, model, operation, server=None):
        """One request: its status, and its reply."""
        shape = [1, 1] if model == "batched" else [1]
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": [operation]}]}
        status, reply = (server or self.server).post_json(f"/v2/models/{model}/infer", body)
        return status, json.loads(reply)

    def assert_does(self, model, operation=ANSWER):
        status, reply = self.do(model, operation)
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["outputs"][0]["data"], [operation])
        return reply["parameters"]["batch"]

    def assert_fails(self, model, operation, code, reason):
        status, reply = self.do(model, operation)
        self.assertEqual(status, code, reply)
        self.assertRegex(reply["error"], reason)

    def cast(self, count):
        """One request of so many elements to the model with kernels of the server's own backend: its status, its reply, whether it is right."""
        values = np.arange(count, dtype=np.float32) % 100
        head = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": values.nbytes}}],
                "outputs": [{"name": "O", "parameters": {"binary_data": True}}]}
        status, headers, reply = self.infer(head, values.tobytes(), model="cast")
        length = int(headers.get("inference-header-content-length", len(reply)))
        return status, json.loads(reply[:length]), reply[length:] == values.astype(np.int8).tobytes()

    def assert_casts(self, count=SMALL):
        status, head, is_right = self.cast(count)
        self.assertEqual((status, is_right), (200, True), head)

    def assert_others_answer(self):
        """On the same GPU and on the CPU."""
        self.assert_casts()
        self.assert_serves("identity", (4,))
        self.assert_serves("cpu", (4,))

    def control(self, action, model):
        status, reply = self.server.post_json(f"/v2/repository/models/{model}/{action}", {})
        return status, reply.decode()

    def state(self, model):
        rows = json.loads(self.server.post_json("/v2/repository/index", {})[1])
        row, = [row for row in rows if row["name"] == model]
        return row.get("state", ""), row.get("reason", "")


def out_of_service(model):
    return f"instance '{model}_0_0' is out of service: an execution did not end on its device within {TIMEOUT_S} s"


def hanging(repository):
    others(repository)
    timeout = {"CONCH_EXECUTION_TIMEOUT_SECONDS": TIMEOUT_S}
    repository.model("hangs", faulty(**timeout))
    repository.model("again", faulty(**timeout, CONCH_RELOADS_MAX=1))


@conch_only
class Hang(FaultCase):
    """A kernel that never ends."""

    models = staticmethod(hanging)

    def setUp(self):
        # Libraries and the driver load at first use what they need, for which they may wait for the device.
        self.assert_others_answer()
        self.addCleanup(self.assert_does, "control", END)

    def test_only_its_requests_fail(self):
        self.assert_does("hangs")
        answered = 0
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(self.do, "hangs", HANG) for _ in range(3)]
            is_ready = lambda: self.server.get("/v2/models/hangs/ready")[0] == 200
            deadline = time.monotonic() + 10 * TIMEOUT_S
            while is_ready() and time.monotonic() < deadline:
                begun = time.monotonic()
                self.assert_others_answer()
                self.assertLess(time.monotonic() - begun, ANSWER_S)
                answered += 1
            answers = [future.result(timeout=30) for future in asked]
        # Two were on the device, and one waited.
        self.assertEqual(sorted(status for status, _ in answers), [500, 500, 503], answers)
        self.assertEqual({reply["error"] for _, reply in answers}, {out_of_service("hangs")})
        self.assertGreaterEqual(answered, 2, "others answered while it hung")
        # The kernel still runs.
        self.assertEqual(self.state("hangs"), ("UNAVAILABLE", f"Unavailable: {out_of_service('hangs')}"))
        self.assert_fails("hangs", ANSWER, 503, out_of_service("hangs"))
        self.assertEqual([self.server.get(f"/v2/{path}")[0] for path in ("health/ready", "health/live", "models/cast/ready")], [400, 200, 200])
        self.assert_others_answer()
        # It ends, into memory that is still its own.
        self.assert_does("control", END)
        self.assertEqual(self.control("load", "hangs"), (200, ""))
        self.assertEqual(self.state("hangs"), ("READY", ""))
        for _ in range(10):
            self.assert_does("hangs")
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
        self.assert_others_answer()

    def test_loaded_again_by_itself_while_the_kernel_runs(self):
        self.assert_does("again")
        self.assert_fails("again", HANG, 500, out_of_service("again"))
        until_equal(lambda: self.state("again"), ("READY", ""), "the state of the model")
        # Another stream of the same context.
        self.assert_does("again")
        self.assert_others_answer()
        self.assert_fails("again", HANG, 500, out_of_service("again"))
        until_equal(lambda: self.state("again"), ("UNAVAILABLE", f"Unavailable: {out_of_service('again')}"), "the state of the model")
        self.server.wait_for_text("model 'again' is not loaded again by itself: CONCH_RELOADS_MAX is 1")
        self.assert_does("control", END)
        self.assertEqual(self.control("load", "again"), (200, ""))
        self.assert_does("again")


@conch_only
class End(FaultCase):
    """The server ends while a kernel runs that never does."""

    models = staticmethod(lambda repository: None)
    flags = ("--exit-timeout-secs=3",)

    @contextlib.contextmanager
    def serving(self, timeout_s):
        with Repository() as repository:
            repository.model("hangs", faulty(CONCH_EXECUTION_TIMEOUT_SECONDS=timeout_s))
            server = servers.Server(repository.path, *self.flags, environment=self.environment, backends=str(backends()))
            try:
                yield server
            finally:
                server.kill()

    def test_with_an_instance_that_is_left_aside(self):
        with self.serving(1) as server:
            status, reply = self.do("hangs", HANG, server)
            self.assertEqual(status, 500, reply)
            self.assertEqual(server.terminate(), 0, server.output[-3000:])

    def test_with_a_request_on_the_device(self):
        with self.serving(600) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
            with server.telling_states():
                asked = pool.submit(self.do, "hangs", HANG, server)
                server.wait_for_match("Setting state from [A-Z]+ to EXECUTING", 20)
            # As upstream: what is in flight did not end in time, and the process ends at its bound all the same.
            self.assertEqual(server.terminate(15), 1, server.output[-3000:])
            self.assertIn("Exit timeout expired. Exiting immediately.", server.output)
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.assertNotEqual(asked.result(timeout=10)[0], 200)


def scarce(repository):
    others(repository)
    repository.model("batched", faulty(batch=4, extra="dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5000000 }\n"))


@conch_only
class Memory(FaultCase):
    """No memory of the device in the middle of a batch."""

    settings = {"devices": 1, "bytes": 64 << 20}
    models = staticmethod(scarce)
    LARGE = 8 << 20
    # Elements, of five bytes in all.
    LARGE_CAST = 1 << 19

    def together(self, *operations):
        with concurrent.futures.ThreadPoolExecutor(len(operations)) as pool:
            return list(pool.map(lambda operation: self.do("batched", operation), operations))

    def used(self):
        return families(self.server).get(POOL, {})

    def assert_large_ones_answer(self):
        operations = (SMALL, self.LARGE, SMALL, ANSWER)
        for operation, (status, reply) in zip(operations, self.together(*operations)):
            self.assertEqual((status, reply.get("outputs", [{}])[0].get("data")), (200, [operation]), reply)

    def test_only_what_needs_more_fails(self):
        self.assert_others_answer()
        self.assert_large_ones_answer()
        used = self.used()
        self.assert_does("control", TAKE)
        self.addCleanup(self.assert_does, "control", GIVE)
        for _ in range(2):
            # Of one batch.
            small, large, again, last = self.together(SMALL, self.LARGE, SMALL + 4, ANSWER)
            self.assertEqual(large[0], 503, large)
            self.assertRegex(large[1]["error"], f"^failed to allocate {self.LARGE} bytes on GPU 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")
            for (status, reply), operation in ((small, SMALL), (again, SMALL + 4), (last, ANSWER)):
                self.assertEqual(status, 200, reply)
                self.assertEqual((reply["outputs"][0]["data"], reply["parameters"]["batch"]), ([operation], 4))
            # A batch as a whole, of a backend that needs memory for all of it.
            status, head, _ = self.cast(self.LARGE_CAST)
            self.assertEqual(status, 503, head)
            self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", head["error"])
            self.assert_others_answer()
        self.assertEqual([self.server.get(f"/v2/{path}")[0] for path in ("health/ready", "models/batched/ready", "models/cast/ready")], [200] * 3)
        until_equal(self.used, used, "the bytes in use of the device's pool")
        self.assert_does("control", GIVE)
        self.assert_large_ones_answer()
        self.assert_casts(self.LARGE_CAST)


def breaking(repository):
    others(repository)
    repository.model("breaks", faulty())


@conch_only
class Broken(FaultCase):
    """A kernel writes to an address that is none: its context is broken for good."""

    models = staticmethod(breaking)
    ERROR = "CUDA_ERROR_ILLEGAL_ADDRESS"

    def break_device(self):
        self.assert_fails("breaks", BREAK, 500, self.ERROR)

    def test_requests_on_other_devices_go_on(self):
        self.assert_others_answer()
        self.assert_does("breaks")
        self.break_device()
        for _ in range(3):
            self.assert_fails("breaks", ANSWER, 500, self.ERROR)
            status, head, _ = self.cast(SMALL)
            self.assertEqual(status, 500, head)
            self.assertIn(self.ERROR, head["error"])
            # Between places in host memory it copies without the device.
            self.assert_serves("identity", (4,))
            self.assert_serves("cpu", (4,))
        self.assertEqual(self.server.get("/v2/health/live")[0], 200)
        # The models there are not ready, and the index says why.
        for model in ("breaks", "cast", "identity"):
            state, reason = until(lambda: self.state(model), f"a fault of {model}", 10, lambda found: found[0] != "READY")
            self.assertEqual((state, self.server.get(f"/v2/models/{model}/ready")[0]), ("UNAVAILABLE", 400))
            self.assertRegex(reason, fr"^Unavailable: GPU 0 is out of service: cu\w+: {self.ERROR}: ")
        until_equal(lambda: self.server.get("/v2/health/ready")[0], 400, "the readiness of the server")
        self.assertEqual((self.state("cpu"), self.server.get("/v2/models/cpu/ready")[0]), (("READY", ""), 200))
        self.server.wait_for_match(fr"GPU 0 is out of service: cu\w+: {self.ERROR}")
        # They cannot be made anew in this process.
        for model in ("breaks", "cast"):
            status, reply = self.control("load", model)
            self.assertNotEqual(status, 200)
            self.assertIn(self.ERROR, reply)
            self.assertEqual(self.state(model)[0], "UNAVAILABLE")
        self.assert_serves("cpu", (4,))


@unittest.skipIf(cuda.IS_REAL, "no test can take a device away")
class Lost(Broken):
    """A device that is gone."""

    ERROR = "CUDA_ERROR_DEVICE_UNAVAILABLE"

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    def break_device(self):
        self.faults.order("device:0:0:1:46")
        self.assert_fails("breaks", ANSWER, 500, self.ERROR)


if __name__ == "__main__":
    unittest.main()
