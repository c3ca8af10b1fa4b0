"""A backend in C that computes on GPUs: where its inputs, outputs and working memory lie, and what becomes of it when the driver fails.

Runs against the double of the driver in src/testkit/cuda, or against the machine's driver with CONCH_CUDA=real."""

import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import threading
import unittest
from unittest import mock

import cuda
import numpy
import server as servers
import tritonclient.grpc as grpcclient
from c_backend import compiled
from case import conch_only, needs_library
from region import part
from repository import Repository, identity, tensors
from test_gpus import GpuCase
from waiting import until, until_equal

SOURCE = pathlib.Path(__file__).with_name("gpu_backend.c")
# Numbers of TRITONSERVER_MemoryType.
CPU, PINNED, GPU = 0, 1, 2
MEMORIES = ("cpu", "pinned", "gpu")
SMALL, LARGE = 64, 1 << 20
DEVICES = (0,) if cuda.IS_REAL else (0, 1)
# Instance groups by name: their text, and the device of the instance.
GROUPS = {"cpu": ("kind: KIND_CPU", 0), **{f"gpu{device}": (f"kind: KIND_GPU gpus: [ {device} ]", device) for device in DEVICES}}
POOL_BYTES = 4 << 20
OVERSIZE = 1 << 60
USED = "nv_pinned_memory_pool_used_bytes"
POOL_USED = "conch_gpu_memory_pool_used_bytes"
INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 1, 2, 700


def backends():
    """A backend directory with the backend, and `identity`."""
    path = compiled("gpu_backend", SOURCE)
    servers.place(path / "identity" / "libtriton_identity.so", servers.built("libtriton_identity.so"))
    return path


def copier(group, count=1, **parameters):
    """The configuration of a model of the backend."""
    text = 'backend: "gpu_backend"\n' + tensors("input", [("INPUT0", "UINT8", (-1,))]) + tensors("output", [("OUTPUT0", "UINT8", (-1,))])
    text += f"instance_group [ {{ count: {count} {group} }} ]\n"
    for key, value in parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text


def pools(byte_size, pinned_bytes=None):
    """The flags for pools of this many bytes."""
    flags = [f"--cuda-memory-pool-byte-size={device}:{byte_size}" for device in DEVICES]
    return (*flags, f"--pinned-memory-pool-byte-size={byte_size if pinned_bytes is None else pinned_bytes}", "--allow-client-shm=true")


def content(byte_size, seed=0):
    return random.Random(f"{byte_size} {seed}").randbytes(byte_size)


@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
@needs_library("identity")
class BackendCase(GpuCase):
    """A server with the backend."""

    @classmethod
    def setUpClass(cls):
        with mock.patch.dict(os.environ, {"CONCH_TEST_BACKENDS": str(backends())}):
            super().setUpClass()

    def copy(self, model, given=b"", source=None, target=None, byte_size=None, request_id=""):
        """One inference: (status, the head of the reply, the bytes of the output). Input and output lie in the bodies, or in regions."""
        tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [len(given) if byte_size is None else byte_size],
                  "parameters": source or {"binary_data_size": len(given)}}
        output = {"name": "OUTPUT0", "parameters": target or {"binary_data": True}}
        body = {"id": request_id, "inputs": [tensor], "outputs": [output]}
        status, headers, reply = self.infer(body, b"" if source else given, model=model)
        length = int(headers.get("inference-header-content-length", len(reply)))
        return status, json.loads(reply[:length]), reply[length:]

    def facts(self, model, given, **more):
        """What the backend tells of a good inference, whose output comes in the body and repeats what was given."""
        source = more.get("source")
        status, head, output = self.copy(model, b"" if source else given, byte_size=len(given), **more)
        self.assertEqual(status, 200, head)
        self.assertEqual(len(output), len(given))
        self.assertTrue(output == given, "the output repeats the input")
        return head["parameters"]

    def assert_refused(self, model, given, code, message):
        status, head, _ = self.copy(model, given)
        self.assertEqual(status, code, head)
        self.assertRegex(head["error"], message)

    def assert_works(self, model, byte_size=SMALL):
        self.facts(model, content(byte_size))

    def pinned_bytes(self):
        return self.server.metrics()[USED]


def all_models(repository):
    for (name, (group, _)), memory in itertools.product(GROUPS.items(), MEMORIES):
        repository.model(f"{name}_{memory}", copier(group, memory=memory))
    for name, (group, _) in GROUPS.items():
        repository.model(f"{name}_host", copier(group, memory="pinned", output="cpu"))


@conch_only
class GpuBackend(BackendCase):
    """Where tensors and working memory lie."""

    models = staticmethod(all_models)
    # A quarter of it holds a large body.
    flags = pools(2 * POOL_BYTES)

    def test_bodies(self):
        for model, byte_size in itertools.product((f"{name}_{memory}" for name in GROUPS for memory in MEMORIES), (0, SMALL, LARGE)):
            with self.subTest(model=model, byte_size=byte_size):
                facts = self.facts(model, content(byte_size, model))
                given = PINNED if model.startswith("gpu") and byte_size == LARGE else CPU
                self.assertEqual((facts["input_memory"], facts["attributes_memory"], facts["output_memory"]), (given, given, PINNED))
                self.assertEqual(facts["context_moved"], 0)
        self.assertEqual(self.pinned_bytes(), 0)

    def test_tensors_of_grpc(self):
        model = "gpu0_gpu"
        for byte_size, expected in ((SMALL, CPU), (LARGE, PINNED), (9 * POOL_BYTES // 8, CPU)):
            with self.subTest(byte_size=byte_size), grpcclient.InferenceServerClient(self.server.grpc) as client:
                given = numpy.frombuffer(content(byte_size, "grpc"), numpy.uint8)
                tensor = grpcclient.InferInput("INPUT0", [byte_size], "UINT8")
                tensor.set_data_from_numpy(given)
                result = client.infer(model, [tensor])
                self.assertTrue(numpy.array_equal(result.as_numpy("OUTPUT0"), given))
                self.assertEqual(result.get_response().parameters["input_memory"].int64_param, expected)
        self.assertEqual(self.pinned_bytes(), 0)

    def test_inputs_on_devices(self):
        for device, byte_size in itertools.product(DEVICES, (SMALL, LARGE)):
            given = content(byte_size, device)
            self.registered("in", self.array(256 + byte_size, bytes(256) + given, device))
            for name, memory in itertools.product(GROUPS, MEMORIES):
                with self.subTest(group=name, memory=memory, device=device, byte_size=byte_size):
                    facts = self.facts(f"{name}_{memory}", given, source=part("in", 256, byte_size))
                    expected = (CPU, 0) if name == "cpu" else (GPU, device)
                    self.assertEqual((facts["input_memory"], facts["input_device"], facts["input_buffers"]), (*expected, 1))
                    self.assertEqual((facts["attributes_memory"], facts["attributes_device"]), (GPU, device), "where the client has it")
            self.unregister("in")

    def test_outputs_on_devices(self):
        for device, byte_size in itertools.product(DEVICES, (SMALL, LARGE)):
            target = self.array(byte_size + 24, device=device)
            self.registered("out", target)
            for (name, (_, own)), kind in itertools.product(GROUPS.items(), (*MEMORIES, "host")):
                with self.subTest(group=name, model=kind, device=device, byte_size=byte_size):
                    target.write(b"\xee" * target.byte_size)
                    given = content(byte_size, f"{name} {kind}")
                    status, head, _ = self.copy(f"{name}_{kind}", given, target=part("out", 8, byte_size))
                    self.assertEqual(status, 200, head)
                    expected = (GPU, device) if device == own else (PINNED, 0)
                    if kind == "host":
                        expected = (CPU, 0)
                    facts = head["parameters"]
                    self.assertEqual((facts["output_memory"], facts["output_device"]), expected)
                    self.assertTrue(target.read() == b"\xee" * 8 + given + b"\xee" * 16, "the bytes and nothing beside them")
            self.unregister("out")

    def test_both_on_devices(self):
        for source_device, target_device in itertools.product(DEVICES, DEVICES):
            given = content(LARGE, f"{source_device} {target_device}")
            target = self.array(LARGE, device=target_device)
            self.registered("in", self.array(LARGE, given, source_device))
            self.registered("out", target)
            for model in (f"{name}_{kind}" for name in GROUPS for kind in (*MEMORIES, "host")):
                with self.subTest(model=model, source=source_device, target=target_device):
                    target.write(bytes(LARGE))
                    status, head, _ = self.copy(model, source=part("in", 0, LARGE), target=part("out", 0, LARGE), byte_size=LARGE)
                    self.assertEqual(status, 200, head)
                    self.assertTrue(target.read() == given)
            self.unregister()

    def test_handles_of_regions(self):
        """Attributes of buffers in a client's memory name it; those of bodies and of host memory have no handle."""
        given = content(SMALL)
        source, target = self.array(SMALL, given), self.array(SMALL)
        self.registered("in", source)
        self.registered("out", target)
        here, there = part("in", 0, SMALL), part("out", 0, SMALL)
        for model, read, written, expected in (
                ("gpu0_gpu", None, None, ("", "")), ("gpu0_gpu", here, None, (source.handle().hex(), "")),
                ("gpu0_gpu", here, there, (source.handle().hex(), target.handle().hex())), ("gpu0_host", None, there, ("", "")),
                ("cpu_cpu", here, None, (source.handle().hex(), ""))):
            with self.subTest(model=model, read=read, written=written):
                status, head, _ = self.copy(model, b"" if read else given, read, written, SMALL)
                self.assertEqual(status, 200, head)
                self.assertEqual((head["parameters"]["input_handle"], head["parameters"]["output_handle"]), expected)

    def test_instances_at_the_same_time(self):
        models = [f"{name}_{memory}" for name in GROUPS for memory in MEMORIES]
        errors = []

        def ask(model):
            try:
                for turn in range(5):
                    self.facts(model, content(40_000, f"{model} {turn}"))
            except AssertionError as error:
                errors.append(f"{model}: {error}")
        askers = [threading.Thread(target=ask, args=(model,)) for model in models]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.pinned_bytes(), 0)


@conch_only
@unittest.skipIf(len(DEVICES) < 2, "needs two devices")
class GpuBackendContext(BackendCase):
    """The backend's context stays current on its thread, whatever the server does on another device meanwhile."""

    models = staticmethod(lambda repository: [
        repository.model("pooled", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu", memory_device=1)),
        repository.model("cpu", copier("kind: KIND_CPU", memory="cpu"))])
    flags = pools(65536)

    def test_memory_of_another_device(self):
        for byte_size in (SMALL, LARGE):
            with self.subTest(byte_size=byte_size):
                self.assertEqual(self.facts("pooled", content(byte_size))["context_moved"], 0)

    def test_host_copies_from_another_device(self):
        given = content(SMALL)
        self.registered("in", self.array(SMALL, given, 1))
        self.assertEqual(self.facts("cpu", given, source=part("in", 0, SMALL))["context_moved"], 0)


def ensemble(steps, outputs):
    """The configuration of an ensemble; a step is (model, the tensor that it reads, the one that it makes)."""
    text = 'platform: "ensemble"\n' + tensors("input", [("INPUT0", "UINT8", (-1,))])
    text += tensors("output", [(name, "UINT8", (-1,)) for name in outputs]) + "ensemble_scheduling {\n"
    for model, read, made in steps:
        text += (f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{read}" }} '
                 f'output_map {{ key: "OUTPUT0" value: "{made}" }} }}\n')
    return text + "}\n"


def ensembles(repository):
    repository.model("gpu", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu"))
    repository.model("cpu", copier("kind: KIND_CPU", memory="cpu"))
    repository.model("one", ensemble([("gpu", "INPUT0", "OUTPUT0")], ["OUTPUT0"]))
    repository.model("to_cpu", ensemble([("gpu", "INPUT0", "between"), ("cpu", "between", "OUTPUT0")], ["OUTPUT0"]))
    repository.model("to_gpu", ensemble([("cpu", "INPUT0", "between"), ("gpu", "between", "OUTPUT0")], ["OUTPUT0"]))
    repository.model("through", ensemble([("cpu", "INPUT0", "OUTPUT0")], ["INPUT0", "OUTPUT0"]))


@conch_only
class GpuBackendEnsembles(BackendCase):
    """Tensors on devices at both ends of ensembles."""

    models = staticmethod(ensembles)
    flags = pools(POOL_BYTES)

    def setUp(self):
        self.given, self.target = content(SMALL), self.array(SMALL)
        self.registered("in", self.array(SMALL, self.given))
        self.registered("out", self.target)

    def test_steps(self):
        here, there = part("in", 0, SMALL), part("out", 0, SMALL)
        for model, (source, target) in itertools.product(("one", "to_cpu", "to_gpu"), ((here, None), (None, there), (here, there))):
            with self.subTest(model=model, source=source, target=target):
                self.target.write(bytes(SMALL))
                status, head, output = self.copy(model, b"" if source else self.given, source, target, SMALL)
                self.assertEqual(status, 200, head)
                self.assertEqual(self.target.read() if target else output, self.given)

    def test_an_input_that_is_an_output(self):
        tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [SMALL], "parameters": part("in", 0, SMALL)}
        with self.subTest("in the body"):
            status, _, reply = self.infer({"inputs": [tensor], "outputs": [{"name": "INPUT0"}]}, model="through")
            self.assertEqual(status, 200, reply)
            self.assertEqual(bytes(json.loads(reply)["outputs"][0]["data"]), self.given)
        with self.subTest("in a region"):
            output = {"name": "INPUT0", "parameters": part("out", 0, SMALL)}
            status, _, reply = self.infer({"inputs": [tensor], "outputs": [output]}, model="through")
            self.assertEqual(status, 200, reply)
            self.assertEqual(self.target.read(), self.given)


def between(repository):
    """Ensembles of two steps: what the first makes lies where the second expects it."""
    last = len(DEVICES) - 1
    repository.model("maker", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu"))
    for name, group, expected in (("near", "kind: KIND_GPU gpus: [ 0 ]", "gpu"), ("far", f"kind: KIND_GPU gpus: [ {last} ]", "gpu"),
                                  ("host", "kind: KIND_CPU", "pinned")):
        repository.model(name, copier(group, memory="gpu", input=expected))
        repository.model(f"to_{name}", ensemble([("maker", "INPUT0", "between"), (name, "between", "OUTPUT0")], ["OUTPUT0"]))
    repository.model("both", ensemble([("maker", "INPUT0", "OUTPUT0"), ("near", "OUTPUT0", "OUTPUT1")], ["OUTPUT0", "OUTPUT1"]))
    repository.model("twice", ensemble([("maker", "INPUT0", "between"), ("near", "between", "OUTPUT0"), ("far", "between", "OUTPUT1")],
                                       ["OUTPUT0", "OUTPUT1"]))
    repository.model("any", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu"))
    repository.model("to_any", ensemble([("maker", "INPUT0", "between"), ("any", "between", "OUTPUT0")], ["OUTPUT0"]))
    repository.model("cached", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu") + "response_cache { enable: true }\n")
    repository.model("to_cached", ensemble([("maker", "INPUT0", "between"), ("cached", "between", "OUTPUT0")], ["OUTPUT0"]))
    repository.model("from_cached", ensemble([("cached", "INPUT0", "between"), ("any", "between", "OUTPUT0")], ["OUTPUT0"]))


@conch_only
class GpuBackendBetween(BackendCase):
    """Tensors between steps stay on the device if the model that reads them runs there."""

    models = staticmethod(between)
    flags = (*pools(POOL_BYTES), "--cache-config=local,size=16777216")

    def pool_bytes(self):
        return sum(value for name, value in self.server.metrics().items() if name.startswith(POOL_USED))

    def test_it_lies_where_it_is_read(self):
        for model, byte_size in itertools.product(("to_near", "to_far", "to_host"), (1, SMALL, LARGE)):
            with self.subTest(model=model, byte_size=byte_size):
                self.facts_of(model, content(byte_size, model))
        self.assertEqual((self.pool_bytes(), self.pinned_bytes()), (0, 0))

    def facts_of(self, model, given):
        status, head, output = self.copy(model, given)
        self.assertEqual(status, 200, head)
        self.assertTrue(output == given)

    def test_one_that_clients_want_too(self):
        for model, byte_size in itertools.product(("both", "twice"), (SMALL, LARGE)):
            given = content(byte_size, model)
            body = {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [byte_size],
                                "parameters": {"binary_data_size": byte_size}}],
                    "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("OUTPUT0", "OUTPUT1")]}
            status, headers, reply = self.infer(body, given, model=model)
            self.assertEqual(status, 200, reply[:300])
            self.assertTrue(reply[int(headers["inference-header-content-length"]):] == given + given)

    def test_caches_keep_host_memory(self):
        for model in ("from_cached", "to_cached"):
            for turn in range(3):
                with self.subTest(model=model, turn=turn):
                    self.facts_of(model, content(SMALL, model))
        self.assertGreaterEqual(self.server.metrics()['nv_cache_num_hits_per_model{model="cached",version="1"}'], 2)

    def test_a_pool_without_room_is_no_failure(self):
        # Five outputs of a quarter of the pool at the same time.
        given, errors = content(LARGE), []

        def ask():
            try:
                for _ in range(10):
                    self.facts_of("to_any", given)
            except AssertionError as error:
                errors.append(str(error))
        askers = [threading.Thread(target=ask) for _ in range(6)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(errors, [])
        self.assertEqual((self.pool_bytes(), self.pinned_bytes()), (0, 0))


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class GpuBackendGauge(BackendCase):
    """The gauge of pinned memory while copies take long."""

    settings = {"devices": 1, "copy_us": 500_000}
    models = staticmethod(lambda repository: repository.model("pinned", copier("kind: KIND_GPU gpus: [ 0 ]", memory="pinned")))
    flags = pools(POOL_BYTES)

    def test_used_and_free_again(self):
        self.assertEqual(self.pinned_bytes(), 0)
        outcome = []
        asker = threading.Thread(target=lambda: outcome.append(self.copy("pinned", content(LARGE))))
        asker.start()
        until(self.pinned_bytes, "pinned memory in use", accept=lambda used: used >= LARGE)
        asker.join()
        self.assertEqual(outcome[0][0], 200, outcome[0][1])
        self.assertEqual(self.pinned_bytes(), 0)


@conch_only
@unittest.skipIf(cuda.IS_REAL, "counts the streams of the double")
class GpuBackendLife(BackendCase):
    """Instances come and go."""

    models = staticmethod(lambda repository: [
        repository.model("gpu", copier("kind: KIND_GPU", count=2, memory="gpu")),
        repository.model("bad", copier("kind: KIND_GPU", memory="nowhere")),
        repository.model("unsafe", copier("kind: KIND_GPU", memory="cpu", fail="bad-free"))])
    flags = (*pools(POOL_BYTES), "--model-control-mode=explicit")

    def streams(self):
        """Each is a thread of the double."""
        return sum("cuda-double" in row for row in self.server.threads().splitlines())

    def control(self, action, model="gpu"):
        status, reply = self.server.post_json(f"/v2/repository/models/{model}/{action}", {})
        return status, reply.decode()

    def test_loaded_and_unloaded(self):
        for turn in range(5):
            self.assertEqual(self.control("load"), (200, ""))
            until_equal(self.streams, 4, "the number of streams: two instances on each device")
            self.facts("gpu", content(SMALL, turn))
            self.assertEqual(self.control("unload"), (200, ""))
            until_equal(self.streams, 0, "the number of streams")

    def test_refused_instances_leave_nothing(self):
        for model, message in (("bad", "memory: nowhere"), ("unsafe", "bad-free: needs memory pinned or gpu")):
            status, reply = self.control("load", model)
            self.assertNotEqual(status, 200)
            self.assertIn(message, reply)
        until_equal(self.streams, 0, "the number of streams")


def scarce_models(repository):
    repository.model("identity", identity([("INPUT0", "FP32", (-1,))], batch=8))
    for memory in MEMORIES:
        repository.model(memory, copier("kind: KIND_GPU gpus: [ 0 ]", memory=memory))
        repository.model(f"{memory}_oversize", copier("kind: KIND_GPU gpus: [ 0 ]", memory=memory, fail="oversize"))
    repository.model("far", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu", memory_device=7))
    for memory in ("pinned", "gpu"):
        repository.model(f"{memory}_bad_free", copier("kind: KIND_GPU gpus: [ 0 ]", memory=memory, fail="bad-free"))


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has a small device of the double")
class GpuBackendExhaustion(BackendCase):
    """Too little memory: pools of four 16 KiB parts, and a device that holds one buffer of 1 MB beside its pool."""

    settings = {"devices": 1, "bytes": 2 << 20}
    models = staticmethod(scarce_models)
    flags = ("--cuda-memory-pool-byte-size=0:65536", "--pinned-memory-pool-byte-size=65536", "--allow-client-shm=true")

    def test_gpu_memory_beyond_the_pool_comes_from_the_driver(self):
        self.assert_works("gpu", LARGE)
        self.assert_refused("gpu", content(2 * LARGE), 503, "^failed to allocate 2097152 bytes on GPU 0: cuMemAlloc_v2: "
                            "CUDA_ERROR_OUT_OF_MEMORY: out of memory$")
        self.assert_works("gpu", LARGE)

    def test_pinned_memory_beyond_the_pool_is_refused(self):
        self.assert_works("pinned", 65536)
        self.assert_refused("pinned", content(LARGE), 503, "^failed to allocate 1048576 bytes of pinned memory: the pool has no room "
                            r"\(--pinned-memory-pool-byte-size\)$")
        self.assert_works("pinned", 65536)
        self.assertEqual(self.pinned_bytes(), 0)

    def test_oversize(self):
        for memory, message in (("cpu", "^CPU memory allocation failed$"),
                                ("pinned", f"^failed to allocate {OVERSIZE} bytes of pinned memory: the pool has no room"),
                                ("gpu", f"^failed to allocate {OVERSIZE} bytes on GPU 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")):
            with self.subTest(memory=memory):
                self.assert_refused(f"{memory}_oversize", content(SMALL), 503, message)
                self.assert_works(memory)
        self.assertEqual(self.pinned_bytes(), 0)
        self.assert_serves()

    def test_memory_of_no_device(self):
        self.assert_refused("far", content(SMALL), 400, "^there is no GPU 7$")
        self.assert_works("gpu")

    def test_bad_free(self):
        for memory, byte_size in (("pinned", SMALL), ("gpu", SMALL), ("gpu", LARGE)):
            with self.subTest(memory=memory, byte_size=byte_size):
                self.assert_refused(f"{memory}_bad_free", content(byte_size), 400, "^no memory of this type was allocated at 0x[0-9a-f]+$")
                self.assert_works(memory, byte_size)
        self.assertEqual(self.pinned_bytes(), 0)
        self.assert_serves()

    def test_nothing_leaks(self):
        # 200 parts of 16 KiB neither fit into a pool, nor, beside it, on the device.
        for memory, byte_size in (("pinned", 16384), ("gpu", 16384), ("gpu", LARGE)):
            with self.subTest(memory=memory, byte_size=byte_size):
                for turn in range(200):
                    self.facts(memory, content(byte_size, turn % 4))
                self.assertEqual(self.pinned_bytes(), 0)

    def test_nothing_leaks_of_what_is_refused(self):
        for _ in range(50):
            for model in ("pinned_oversize", "gpu_oversize", "pinned_bad_free", "gpu_bad_free"):
                self.assertNotEqual(self.copy(model, content(16384))[0], 200)
        self.assert_works("pinned", 65536)
        self.assert_works("gpu", LARGE)

    def test_nothing_leaks_on_devices(self):
        given = content(LARGE)
        source, target = self.array(LARGE, given), self.array(LARGE)
        self.registered("in", source)
        self.registered("out", target)
        for _ in range(50):
            status, head, _ = self.copy("gpu", source=part("in", 0, LARGE), target=part("out", 0, LARGE), byte_size=LARGE)
            self.assertEqual(status, 200, head)
        self.assertTrue(target.read() == given)


def faulty_models(repository):
    repository.model("identity", identity([("INPUT0", "FP32", (-1,))], batch=8))
    repository.model("cpu", copier("kind: KIND_CPU", memory="cpu"))
    repository.model("host", copier("kind: KIND_GPU gpus: [ 0 ]", memory="gpu", output="cpu"))
    for name, memory in itertools.product(("gpu0", "gpu1"), ("pinned", "gpu")):
        repository.model(f"{name}_{memory}", copier(GROUPS[name][0], memory=memory))


class FaultCase(BackendCase):
    """A server whose driver fails as a file says."""

    settings = {"devices": 2, "bytes": 2 << 20}
    flags = ("--cuda-memory-pool-byte-size=0:65536", "--cuda-memory-pool-byte-size=1:65536", "--pinned-memory-pool-byte-size=65536",
             "--allow-client-shm=true")
    models = staticmethod(faulty_models)

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    @contextlib.contextmanager
    def failing(self, *faults):
        with self.faults.failing(*faults):
            yield
        self.assert_works("gpu1_gpu")

    def assert_others_work(self):
        """Models on the CPU, and on the other device."""
        self.assert_serves()
        self.assert_works("gpu1_gpu")
        self.assert_works("gpu1_pinned")

    def assert_healthy(self):
        for model in ("gpu0_pinned", "gpu0_gpu", "gpu1_pinned", "gpu1_gpu", "cpu", "host"):
            self.assert_works(model, 16384)
        self.assert_works("gpu0_gpu", LARGE)
        self.assertEqual(self.pinned_bytes(), 0)
        self.assert_serves()


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the faults of the double")
class GpuBackendFaults(FaultCase):
    """A driver that fails: only the requests concerned do."""

    def test_no_memory_once(self):
        with self.failing(f"cuMemAlloc_v2:0:1:{OUT_OF_MEMORY}"):
            self.assert_refused("gpu0_gpu", content(LARGE), 503, "^failed to allocate 1048576 bytes on GPU 0: cuMemAlloc_v2: "
                                "CUDA_ERROR_OUT_OF_MEMORY: out of memory$")
            self.assert_works("gpu0_gpu", LARGE)
            self.assert_others_work()
        self.assert_healthy()

    def test_one_copy_fails(self):
        for after in (0, 1):
            for model in ("gpu0_gpu", "gpu0_pinned"):
                with self.subTest(after=after, model=model), self.failing(f"copy:{after}:1:{INVALID_VALUE}"):
                    self.assert_refused(model, content(SMALL), 500, "CUDA_ERROR_INVALID_VALUE$")
                    self.assert_works(model)
                    self.assert_others_work()
        self.assert_healthy()

    def test_copies_that_fail_leak_nothing(self):
        with self.failing(f"copy:0:1000:{INVALID_VALUE}"):
            for _ in range(20):
                for model, byte_size in (("gpu0_gpu", LARGE), ("gpu0_gpu", 16384), ("gpu0_pinned", 16384)):
                    self.assert_refused(model, content(byte_size), 500, "CUDA_ERROR_INVALID_VALUE$")
            self.assertEqual(self.pinned_bytes(), 0)
        self.assert_healthy()

    def test_a_device_breaks(self):
        with self.failing(f"copy:0:1:{ILLEGAL_ADDRESS}"):
            for model in ("gpu0_gpu", "gpu0_gpu", "gpu0_pinned"):
                self.assert_refused(model, content(SMALL), 500, "CUDA_ERROR_ILLEGAL_ADDRESS$")
            self.assert_others_work()
            self.assertEqual(self.pinned_bytes(), 0)
            self.assertEqual(self.server.get("/v2/health/live")[0], 200)
        self.assert_healthy()

    def test_a_broken_device_and_regions(self):
        source, target = self.array(SMALL, content(SMALL)), self.array(SMALL)
        self.registered("in", source)
        self.registered("out", target)
        with self.failing(f"device:0:0:1:{ILLEGAL_ADDRESS}"):
            for model in ("gpu0_gpu", "cpu"):
                status, head, _ = self.copy(model, source=part("in", 0, SMALL), byte_size=SMALL)
                self.assertEqual(status, 500, head)
                self.assertIn("CUDA_ERROR_ILLEGAL_ADDRESS", head["error"])
            status, head, _ = self.copy("gpu1_gpu", content(SMALL), target=part("out", 0, SMALL))
            self.assertEqual(status, 500, head)
            self.assertIn("GPU 0: ", head["error"])
            self.assert_others_work()
        self.facts("cpu", content(SMALL), source=part("in", 0, SMALL))
        self.assert_healthy()

    def test_a_host_copy_fails(self):
        given = content(SMALL)
        self.registered("in", self.array(SMALL, given))
        with self.failing(f"copy:0:1:{INVALID_VALUE}"):
            status, head, _ = self.copy("cpu", source=part("in", 0, SMALL), byte_size=SMALL)
            self.assertEqual(status, 500, head)
            self.assertRegex(head["error"], "GPU 0: cu[A-Za-z]+: CUDA_ERROR_INVALID_VALUE")
            self.facts("cpu", given, source=part("in", 0, SMALL))
            self.assert_others_work()
        self.assert_healthy()

    def test_a_copy_to_a_region_fails(self):
        given, target = content(SMALL), self.array(SMALL)
        self.registered("out", target)
        # The backend copies twice; the third copy is the server's.
        with self.failing(f"copy:2:1:{INVALID_VALUE}"):
            status, head, _ = self.copy("host", given, target=part("out", 0, SMALL))
            self.assertEqual(status, 500, head)
            self.assertRegex(head["error"], "GPU 0: cu[A-Za-z]+: CUDA_ERROR_INVALID_VALUE")
            status, head, _ = self.copy("host", given, target=part("out", 0, SMALL))
            self.assertEqual((status, target.read()), (200, given), head)
            self.assert_others_work()
        self.assert_healthy()

    def test_a_broken_device_does_not_hold_up_the_end(self):
        faults = cuda.FaultFile(self.faults.path.parent, "own")
        with Repository() as repository:
            faulty_models(repository)
            environment = {**self.environment, **faults.environment}
            with servers.Server(repository.path, *self.flags, environment=environment, backends=str(backends())) as server:
                faults.order(f"device:0:0:1:{ILLEGAL_ADDRESS}")
                head = {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [1], "data": [1]}]}
                status, reply = server.post_json("/v2/models/gpu0_gpu/infer", head)
                self.assertEqual(status, 500, reply)
                self.assertEqual(server.terminate(), 0, server.output[-3000:])


if __name__ == "__main__":
    unittest.main()
