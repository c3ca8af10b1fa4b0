"""Models in Python with tensors on GPUs: inputs that stay on the device, outputs that begin there, and what becomes of both.

Runs against the double of the driver in src/testkit/cuda, or against the machine's driver with CONCH_CUDA=real."""

import json
import os
import pathlib
import re
import signal
import threading
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import cuda
import region
import server as servers
from case import ServerCase, conch_only
from region import part
from repository import Repository, identity
from test_gpus import GpuCase
from test_identity_gpu import on
from test_python_backend import python
from test_python_own import ENVIRONMENT, needs_python
from waiting import until, until_equal

DEVICES = (0,) if cuda.IS_REAL else (0, 1)
SMALL, LARGE = 16, 1 << 20
TENSORS = [("X", "FP32", (-1,))], [("Y", "FP32", (-1,)), ("FACTS", "STRING", (1,)), ("Z", "FP32", (-1,))]
NO, YES = ("parameters {{ key: \"FORCE_CPU_ONLY_INPUT_TENSORS\" value {{ string_value: \"{}\" }} }}\n".format(word) for word in ("no", "yes"))
INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700

# What a framework does, by the driver alone: reads tensors on GPUs, and makes them.
MEMORY = '''
import ctypes
import numpy as np
from triton_python_backend_utils import _dlpack, _types

_library, _contexts = None, {}


def call(name, *arguments):
    global _library
    if _library is None:
        _library = ctypes.CDLL("libcuda.so.1")
        call("cuInit", 0)
    code = getattr(_library, name)(*arguments)
    assert code == 0, (name, code)


def enter(device):
    if device not in _contexts:
        if not _contexts:
            call("cuInit", 0)
        _contexts[device] = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(_contexts[device]), device)
    call("cuCtxSetCurrent", _contexts[device])


def read(capsule):
    """The device and the values of a tensor on a GPU."""
    tensor = _dlpack.Imported(capsule)
    kind, device = tensor.device
    assert kind == _dlpack.CUDA, kind
    enter(device)
    values = np.empty(tensor.shape, np.float32)
    call("cuMemcpyDtoHAsync_v2", values.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(tensor.address), ctypes.c_size_t(values.nbytes), None)
    call("cuStreamSynchronize", None)
    return device, values


class Array:
    """Values on a GPU. There are some values in front of them: a tensor need not begin where its memory does."""

    LEAD = 64
    live = 0

    def __init__(self, values, device=0):
        self.device, self.shape = device, values.shape
        enter(device)
        self.base = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.base), ctypes.c_size_t(self.LEAD + values.nbytes))
        self.address = self.base.value + self.LEAD
        # Nobody waits for it here.
        self.values = np.ascontiguousarray(values)
        call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.address), self.values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes),
             None)
        Array.live += 1

    def __dlpack_device__(self):
        return _dlpack.CUDA, self.device

    def __dlpack__(self, stream=None):
        return _dlpack.export(self.address, self.shape, _types.FP32, self.__dlpack_device__(), self)

    def __del__(self):
        enter(self.device)
        call("cuMemFree_v2", self.base)
        Array.live -= 1
'''

# Twice the values, on `memory` of the request's parameters: `cpu`, or the number of a GPU; and what it was given.
DOUBLES = '''
import gc
import json
import os
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils
import gpu_memory


def facts_of(tensor):
    facts = {"is_cpu": tensor.is_cpu(), "device": list(tensor.__dlpack_device__()), "pid": os.getpid(), "live": gpu_memory.Array.live}
    facts["libcuda"] = "libcuda" in open("/proc/self/maps").read()
    try:
        values = tensor.as_numpy()
    except pb_utils.TritonModelException as error:
        facts["as_numpy"] = str(error)
        facts["read_on"], values = gpu_memory.read(tensor.to_dlpack())
        again = pb_utils.Tensor.from_dlpack("again", tensor)
        assert again._address == tensor._address and not again.is_cpu()
        assert (gpu_memory.read(tensor.__dlpack__())[1] == values).all()
    return facts, values


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = json.loads(request.parameters())
        tensor = pb_utils.get_input_tensor_by_name(request, "X")
        facts, values = facts_of(tensor)
        if parameters.get("keep"):
            self.kept.append(tensor)
        if parameters.get("forget"):
            facts["kept"] = [float(gpu_memory.read(kept.to_dlpack())[1].sum()) for kept in self.kept]
            self.kept.clear()
        memory = parameters.get("memory", "cpu")
        if memory == "cpu":
            output = pb_utils.Tensor("Y", 2 * values)
        elif memory == "echo":
            output = pb_utils.Tensor.from_dlpack("Y", tensor)
        else:
            output = pb_utils.Tensor.from_dlpack("Y", gpu_memory.Array(2 * values, int(memory)))
            assert not output.is_cpu()
        gc.collect()
        text = np.array([json.dumps(facts)], dtype=np.object_)
        return pb_utils.InferenceResponse([output, pb_utils.Tensor("FACTS", text), pb_utils.Tensor("Z", 3 * values)])
'''

# Takes the GPUs for itself, as vLLM does: finds them by the driver, and has a tensor on the last of them.
TAKES_GPUS = '''
import ctypes
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils
import gpu_memory


class TritonPythonModel:
    def initialize(self, args):
        count = ctypes.c_int()
        gpu_memory.call("cuDeviceGetCount", ctypes.byref(count))
        self.facts = {"kind": args["model_instance_kind"], "device": args["model_instance_device_id"], "count": count.value,
                      "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        output = pb_utils.Tensor.from_dlpack("Y", gpu_memory.Array(2 * values, self.facts["count"] - 1))
        text = np.array([json.dumps(self.facts)], dtype=np.object_)
        return pb_utils.InferenceResponse([output, pb_utils.Tensor("FACTS", text), pb_utils.Tensor("Z", 3 * values)])
'''

# A response for each of the first values, all of which lie on a GPU.
STREAMS = '''
import json
import threading
import numpy as np
import triton_python_backend_utils as pb_utils
import gpu_memory


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            threading.Thread(target=self.send, args=(request.get_response_sender(), values)).start()

    def send(self, sender, values):
        for value in values:
            array = gpu_memory.Array(np.full(4096, value, np.float32))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", array)]))
            del array
            # What was sent is needed no more when `send` returns.
            assert gpu_memory.Array.live == 0, gpu_memory.Array.live
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

# Asks `identity` with a tensor on a GPU.
CALLS = '''
import numpy as np
import triton_python_backend_utils as pb_utils
import gpu_memory


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            given = pb_utils.Tensor.from_dlpack("INPUT0", gpu_memory.Array(values))
            call = pb_utils.InferenceRequest(model_name="identity", requested_output_names=["OUTPUT0"], inputs=[given])
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            found, = answer.output_tensors()
            assert found.is_cpu()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", found.as_numpy())]))
        return responses
'''

# Says of its output on a GPU what the request's parameters say.
LIES = '''
import json
import os
import signal
import threading
import numpy as np
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import _gpu
import gpu_memory

export = _gpu.export


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = json.loads(request.parameters())
        values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()

        def lie(tensor):
            place, owner = export(tensor)
            device, number, offset, handle = _gpu._PLACE.unpack(place)
            device = parameters.get("device", device)
            offset = int(parameters.get("offset", offset))
            handle = bytes.fromhex(parameters.get("handle", handle.hex()))
            return _gpu._PLACE.pack(device, number, offset, handle), owner

        _gpu.export = lie
        output = pb_utils.Tensor.from_dlpack("Y", gpu_memory.Array(values))
        return pb_utils.InferenceResponse([output])
'''


def with_memory(model):
    return {"1/model.py": model.encode(), "1/gpu_memory.py": MEMORY.encode()}


def models(repository):
    for device in DEVICES:
        repository.model(f"wanted{device}", on(device, python(*TENSORS, extra=NO)), files=with_memory(DOUBLES))
    repository.model("forced", on(0, python(*TENSORS, extra=YES)), files=with_memory(DOUBLES))
    repository.model("default", on(0, python(*TENSORS)), files=with_memory(DOUBLES))
    repository.model("on_cpu", python(*TENSORS, extra=NO), files=with_memory(DOUBLES))
    numbers = ([("X", "FP32", (-1,))], [("Y", "FP32", (-1,))])
    repository.model("streams", on(0, python(*numbers, extra="model_transaction_policy { decoupled: true }\n")), files=with_memory(STREAMS))
    repository.model("calls", on(0, python(*numbers)), files=with_memory(CALLS))
    repository.model("lies", on(0, python(*numbers)), files=with_memory(LIES))
    repository.model("identity", identity())
    repository.model("gpu", on(0, identity()))
    step = 'step { model_name: "%s" model_version: -1 input_map { key: "%s" value: "%s" } output_map { key: "%s" value: "%s" } }\n'
    steps = step % ("gpu", "INPUT0", "X", "OUTPUT0", "between") + step % ("wanted0", "X", "between", "Y", "Y")
    steps = steps.replace('value: "Y" } }', 'value: "Y" } output_map { key: "FACTS" value: "FACTS" } }')
    repository.model("ensemble", python(TENSORS[0], TENSORS[1][:2]).replace('backend: "python"', 'platform: "ensemble"').replace(
        "instance_group [ { count: 1 kind: KIND_CPU } ]", "ensemble_scheduling { " + steps + " }"))


@needs_python
class PythonGpuCase(GpuCase):
    """A server with the models, and requests of numbers."""

    models = staticmethod(models)
    environment = ENVIRONMENT
    flags = (region.FLAG,)

    def values(self, count, seed=1):
        return numpy.random.default_rng(seed).integers(-1000, 1000, count).astype(numpy.float32)

    def on_device(self, name, values, device=0):
        """A region with values, and the parameters of the tensor in it."""
        self.registered(name, self.array(values.nbytes + 256, bytes(256) + values.tobytes(), device))
        return part(name, 256, values.nbytes)

    def ask(self, model, values, source=None, target=None, **parameters):
        """One request: (status, the error, or the facts, the values of Y)."""
        tensor = {"name": "X", "datatype": "FP32", "shape": [len(values)], "parameters": source or {"binary_data_size": values.nbytes}}
        outputs = [{"name": "Y", "parameters": target or {"binary_data": True}}, {"name": "FACTS", "parameters": {"binary_data": False}}]
        body = {"inputs": [tensor], "outputs": outputs[:1] if model in ("calls", "lies") else outputs, "parameters": parameters}
        status, headers, reply = self.infer(body, b"" if source else values.tobytes(), model=model)
        length = int(headers.get("inference-header-content-length", len(reply)))
        head = json.loads(reply[:length])
        if status != 200:
            return status, head["error"], None
        facts = [json.loads(row["data"][0]) for row in head["outputs"] if row["name"] == "FACTS"]
        return status, facts[0] if facts else None, numpy.frombuffer(reply[length:], numpy.float32)

    def assert_doubles(self, model, values, source=None, factor=2, **parameters):
        """The facts of a good request."""
        status, facts, found = self.ask(model, values, source, **parameters)
        self.assertEqual(status, 200, facts)
        numpy.testing.assert_array_equal(found, factor * values)
        return facts

    def assert_refused(self, message, model, values, *asked, **parameters):
        status, error, _ = self.ask(model, values, *asked, **parameters)
        self.assertNotEqual(status, 200)
        self.assertRegex(error, message)

    def memory(self):
        """Bytes of each allocation of the double that the server has, or has mapped, by inode."""
        rows = pathlib.Path(f"/proc/{self.server.pid}/maps").read_text()
        found = re.findall("^([0-9a-f]+)-([0-9a-f]+) .* ([0-9]+) +/memfd:conch-cuda-double", rows, re.MULTILINE)
        return {inode: int(end, 16) - int(begin, 16) for begin, end, inode in found}


@conch_only
class Inputs(PythonGpuCase):
    """Where models get their inputs."""

    def test_inputs_stay_on_the_device(self):
        for count in (1, SMALL, LARGE):
            for device in DEVICES:
                values = self.values(count, device)
                source = self.on_device("in", values, device)
                for own in DEVICES:
                    with self.subTest(count=count, region=device, instance=own):
                        for _ in range(3):
                            facts = self.assert_doubles(f"wanted{own}", values, source)
                        self.assertEqual((facts["is_cpu"], facts["device"], facts["read_on"]), (False, [2, own], own))
                        self.assertEqual(facts["as_numpy"], "Tensor is stored in GPU and cannot be converted to NumPy.")
                self.unregister("in")

    def test_inputs_in_main_memory(self):
        values = self.values(SMALL)
        source = self.on_device("in", values)
        for model, where in (("forced", source), ("default", source), ("on_cpu", source), ("forced", None), ("default", None)):
            with self.subTest(model=model, region=where is not None):
                facts = self.assert_doubles(model, values, where)
                self.assertEqual((facts["is_cpu"], facts["device"], facts["libcuda"]), (True, [1, 0], False))
        self.assertTrue(self.assert_doubles("wanted0", values)["is_cpu"], "what is not on a GPU does not go there")

    def test_no_elements(self):
        self.assertTrue(self.assert_doubles("wanted0", self.values(0), memory="0")["is_cpu"])

    def test_steps_of_an_ensemble(self):
        for count in (SMALL, LARGE):
            facts = self.assert_doubles("ensemble", self.values(count))
            self.assertEqual((facts["is_cpu"], facts["device"]), (False, [2, 0]))

    def test_inputs_are_kept(self):
        sums = []
        for turn in range(5):
            values = self.values(LARGE, turn)
            source = self.on_device("in", values)
            self.assert_doubles("wanted0", values, source, keep=True)
            sums.append(float(values.sum(dtype=numpy.float32)))
            self.unregister("in")
        values = self.values(SMALL)
        facts = self.assert_doubles("wanted0", values, self.on_device("in", values), forget=True)
        numpy.testing.assert_allclose(facts["kept"], sums, rtol=1e-2, atol=100)

    def test_many_at_once(self):
        failures = []

        def ask(seed):
            try:
                values = self.values(1000 + seed, seed)
                with httpclient.InferenceServerClient(self.server.http) as client:
                    tensor = httpclient.InferInput("X", [len(values)], "FP32")
                    tensor.set_shared_memory(f"in{seed}", values.nbytes, offset=256)
                    for turn in range(20):
                        memory = ("cpu", "0", "echo")[turn % 3]
                        found = client.infer("wanted0", [tensor], parameters={"memory": memory}).as_numpy("Y")
                        numpy.testing.assert_array_equal(found, values if memory == "echo" else 2 * values)
            except Exception as error:  # noqa: BLE001 told by the test
                failures.append(error)

        for seed in range(4):
            self.on_device(f"in{seed}", self.values(1000 + seed, seed))
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_a_wrong_parameter(self):
        with Repository() as repository:
            repository.model("wrong", python(*TENSORS, extra=NO.replace('"no"', '"maybe"')), files=with_memory(DOUBLES))
            with servers.Server(repository.path, "--exit-on-error=false", environment=ENVIRONMENT, expect_ready=False) as server:
                server.wait_for_text("Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'", within=60)


@conch_only
class Outputs(PythonGpuCase):
    """Tensors on GPUs that models answer with."""

    def test_to_a_client(self):
        for count in (1, SMALL, LARGE):
            values = self.values(count)
            for model, memory in ((model, str(device)) for model in ("wanted0", "default", "on_cpu") for device in DEVICES):
                with self.subTest(count=count, model=model, memory=memory):
                    for _ in range(3):
                        facts = self.assert_doubles(model, values, memory=memory)
                    self.assertEqual(facts["live"], 0, "nothing is kept of the outputs before")

    def test_an_input_is_the_output(self):
        values = self.values(LARGE)
        source = self.on_device("in", values)
        for _ in range(3):
            self.assertFalse(self.assert_doubles("wanted0", values, source, factor=1, memory="echo")["is_cpu"])

    def test_to_regions(self):
        for count, device in ((count, device) for count in (SMALL, LARGE) for device in DEVICES):
            values = self.values(count, device)
            source, target = self.on_device("in", values, device), self.array(values.nbytes + 24, device=device)
            self.registered("out", target)
            for memory in ("cpu", "echo", *map(str, DEVICES)):
                with self.subTest(count=count, region=device, memory=memory):
                    target.write(b"\xee" * target.byte_size)
                    status, error, _ = self.ask("wanted0", values, source, part("out", 8, values.nbytes), memory=memory)
                    self.assertEqual(status, 200, error)
                    expected = values if memory == "echo" else 2 * values
                    self.assertTrue(target.read() == b"\xee" * 8 + expected.tobytes() + b"\xee" * 16, "the bytes and nothing beside them")
            self.unregister()

    def test_beside_outputs_in_main_memory(self):
        values = self.values(LARGE)
        with httpclient.InferenceServerClient(self.server.http) as client:
            tensor = httpclient.InferInput("X", [len(values)], "FP32")
            tensor.set_data_from_numpy(values)
            for _ in range(10):
                result = client.infer("default", [tensor], parameters={"memory": "0"})
                for name, factor in (("Y", 2), ("Z", 3)):
                    numpy.testing.assert_array_equal(result.as_numpy(name), factor * values)

    def test_streams(self):
        values, found = self.values(20), []
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            tensor = grpcclient.InferInput("X", [len(values)], "FP32")
            tensor.set_data_from_numpy(values)
            is_over = threading.Event()

            def receive(result, error):
                if error or len(result.get_response().outputs) == 0:
                    found.append(error)
                    return is_over.set()
                found.append(result.as_numpy("Y"))

            client.start_stream(receive)
            client.async_stream_infer("streams", [tensor], enable_empty_final_response=True)
            self.assertTrue(is_over.wait(30))
        self.assertIsNone(found.pop())
        self.assertEqual(len(found), len(values))
        for value, array in zip(values, found):
            numpy.testing.assert_array_equal(array, numpy.full(4096, value, numpy.float32))

    def test_inputs_of_calls(self):
        values = self.values(LARGE)
        status, error, found = self.ask("calls", values)
        self.assertEqual(status, 200, error)
        numpy.testing.assert_array_equal(found, values)


@conch_only
class Hostile(PythonGpuCase):
    """What a stub says of its memory is not trusted."""

    def test_lies(self):
        values = self.values(SMALL)
        for lie, message in (({"handle": "00" * 64}, "output 'Y' on a GPU: no memory of another process: GPU 0: cuIpcOpenMemHandle"),
                             ({"handle": "ff" * 64}, "output 'Y' on a GPU: no memory of another process: GPU 0: cuIpcOpenMemHandle"),
                             ({"device": 99}, "there is no GPU 99"), ({"device": 0xffffffff}, "output 'Y' on a GPU: there is no such GPU"),
                             ({"offset": str(1 << 40)}, "output 'Y' on a GPU: 64 bytes at 1099511627776 do not lie in an allocation of "),
                             ({"offset": str(2 ** 64 - 1)}, "do not lie in an allocation"), ({"offset": "65"}, "do not lie in an allocation")):
            with self.subTest(lie):
                self.assert_refused(message, "lies", values, **lie)
                status, error, found = self.ask("lies", values)
                self.assertEqual(status, 200, error)
                numpy.testing.assert_array_equal(found, values)
        self.assertNotIn("unhealthy", self.server.output)


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the memory of the double")
class Life(PythonGpuCase):
    """Nothing is left on a device."""

    flags = (region.FLAG, "--model-control-mode=explicit")

    def control(self, action, model):
        self.assertEqual(self.server.post_json(f"/v2/repository/models/{model}/{action}", {})[0], 200)

    def test_unload(self):
        values = self.values(LARGE)
        source = self.on_device("in", values)
        for _ in range(3):
            self.control("load", "wanted0")
            for memory in ("0", "echo", "cpu"):
                self.assert_doubles("wanted0", values, source, factor=1 if memory == "echo" else 2, memory=memory)
            self.control("unload", "wanted0")
            until_equal(lambda: len(self.memory()), 2, "the pool of the device, and the client's region")

    def test_what_a_model_frees_is_unmapped(self):
        self.control("load", "default")
        self.addCleanup(self.control, "unload", "default")
        for turn in range(20):
            self.assert_doubles("default", self.values(LARGE, turn), memory="0")
        self.assertLessEqual(len(self.memory()), 1 + 8)
        until_equal(lambda: len(self.memory()), 1, "the pool of the device alone", 30)

    def test_memory_of_unused_buffers_is_bounded(self):
        self.control("load", "wanted0")
        self.addCleanup(self.control, "unload", "wanted0")
        sizes = [(8 << 20) + (turn << 22) for turn in range(6)]
        for turn, byte_size in enumerate(sizes):
            values = self.values(byte_size // 4, turn)
            self.assert_doubles("wanted0", values, self.on_device("in", values))
            self.unregister("in")
        # The pool of the device is as large as what the stub keeps of unused buffers.
        until(lambda: sum(self.memory().values()), "buffers that are not used are freed", accept=lambda found: found <= 2 * (64 << 20))


class FaultCase(PythonGpuCase):
    """A driver that is told to fail: that of the server, and those of its stubs."""

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = {**ENVIRONMENT, **cls.faults.environment}
        super().setUpClass()


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the faults of the double")
class Faults(FaultCase):
    """Calls of the driver that fail."""

    def test_copies_of_inputs(self):
        values = self.values(LARGE)
        source = self.on_device("in", values)
        self.assert_doubles("wanted0", values, source)
        with self.faults.failing(f"copy:0:1:{INVALID_VALUE}"):
            self.assert_refused("GPU 0: cu[A-Za-z]+: CUDA_ERROR_INVALID_VALUE|AssertionError", "wanted0", values, source)
        for _ in range(3):
            self.assert_doubles("wanted0", values, source)

    def test_no_memory_for_inputs(self):
        # Of a length for which there is no buffer.
        values = self.values(3 * LARGE)
        source = self.on_device("in", values)
        with self.faults.failing("cuMemAlloc_v2:0:1000:2"):
            self.assert_refused("GPU 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY", "wanted0", values, source)
        self.assert_doubles("wanted0", values, source)

    def test_a_handle_that_the_stub_cannot_open(self):
        values = self.values(5 * LARGE)
        source = self.on_device("in", values)
        with self.faults.failing("cuIpcOpenMemHandle_v2:0:1000:1"):
            self.assert_refused("Tensor 'X' cannot be used: GPU 1: cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE", "wanted1", values, source)
        self.assert_doubles("wanted1", values, source)

    def test_memory_that_cannot_be_exported_is_copied(self):
        values = self.values(LARGE)
        # The first is that of the tensor, the second that of the copy.
        for _ in range(3):
            with self.faults.failing("cuIpcGetMemHandle:0:1:801"):
                self.assert_doubles("default", values, memory="0")


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the faults of the double")
class Broken(FaultCase):
    """A device whose errors are sticky."""

    def test_a_device_breaks(self):
        values = self.values(LARGE)
        far = self.on_device("far", values, 1)
        self.assert_doubles("wanted1", values, far)
        with self.faults.failing(f"device:0:0:1:{ILLEGAL_ADDRESS}"):
            self.assert_refused("CUDA_ERROR_ILLEGAL_ADDRESS|AssertionError", "default", values, memory="0")
            self.assert_doubles("wanted1", values, far, memory="1")
            self.assert_doubles("on_cpu", values)


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class Killed(PythonGpuCase):
    """A stub ends while its memory is copied."""

    settings = {"devices": 2, "copy_us": 100_000}

    def test_killed(self):
        values = self.values(LARGE)
        source = self.on_device("in", values)
        pid = self.assert_doubles("wanted0", values, source, memory="0")["pid"]
        for pause in (0.02, 0.15, 0.3, 0.45, 0.6):
            answers = []
            thread = threading.Thread(target=lambda: answers.append(self.ask("wanted0", values, source, memory="0")))
            thread.start()
            thread.join(pause)  # the test itself: somewhere in what it does
            os.kill(pid, signal.SIGKILL)
            thread.join(60)
            (status, error, found), = answers
            if status == 200:
                numpy.testing.assert_array_equal(found, 2 * values)
            else:
                self.assertRegex(error, "is not healthy")
            pid = until(lambda: self.ask("wanted0", values, source), "it answers again", 60,
                        accept=lambda answer: answer[0] == 200)[1]["pid"]
        until_equal(lambda: self.ask("on_cpu", values)[0], 200, "the others answer")
        # A pool for each device and the region; a buffer and a mapping of the last process.
        until(lambda: len(self.memory()), "nothing is left of the processes that ended", accept=lambda count: count <= 5)


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the devices of the double")
class LeftToTheModel(PythonGpuCase):
    """Instances of KIND_MODEL, as those of vLLM: the model has all GPUs, and the server takes nothing of them."""

    @staticmethod
    def models(repository):
        own = python(*TENSORS).replace("kind: KIND_CPU", "kind: KIND_MODEL")
        repository.model("own", own, files=with_memory(TAKES_GPUS))

    def test_the_model_has_the_gpus(self):
        values = self.values(SMALL)
        status, facts, found = self.ask("own", values)
        self.assertEqual(status, 200, facts)
        self.assertEqual(facts, {"kind": "MODEL", "device": "0", "count": 2, "visible": None})
        numpy.testing.assert_array_equal(found, 2 * values)
        target = self.array(values.nbytes, device=1)
        self.registered("out", target)
        self.assertEqual(self.ask("own", values, None, part("out", 0, values.nbytes))[0], 200)
        self.assertEqual(target.read(), (2 * values).tobytes())

    def test_those_that_the_server_was_left(self):
        with Repository() as repository:
            self.models(repository)
            environment = {**self.environment, "CUDA_VISIBLE_DEVICES": "1"}
            with servers.Server(repository.path, environment=environment) as server:
                tensor = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}
                body = {"inputs": [tensor], "outputs": [{"name": "FACTS"}]}
                status, reply = server.post_json("/v2/models/own/infer", body)
                self.assertEqual(status, 200, reply)
                facts = json.loads(json.loads(reply)["outputs"][0]["data"][0])
                self.assertEqual((facts["count"], facts["visible"]), (1, "1"))
                self.assertNotIn("CUDA memory pool is created", server.output, "nothing is taken before a tensor leaves")


@conch_only
@needs_python
class WithoutDriver(ServerCase):
    """No driver: nothing is loaded, and a tensor on a GPU is refused."""

    environment = ENVIRONMENT

    @staticmethod
    def models(repository):
        code = DOUBLES.replace("gpu_memory.Array(2 * values, int(memory))", "Fake()").replace("import gpu_memory", '''
from triton_python_backend_utils import _dlpack


class gpu_memory:
    class Array:
        live = 0


class Fake:
    def __dlpack_device__(self):
        return _dlpack.CUDA, 0

    def __dlpack__(self, stream=None):
        return _dlpack.export(4096, (4,), 11, (2, 0), self)
''')
        repository.model("model", python(*TENSORS, extra=NO), files={"1/model.py": code.encode()})

    @unittest.skipIf(cuda.IS_REAL, "there is a driver")
    def test_refused(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            tensor = httpclient.InferInput("X", [4], "FP32")
            tensor.set_data_from_numpy(numpy.arange(4, dtype=numpy.float32))
            message = "DLPack capsule passed pointer to memory allocated on GPU device, when GPU is not available: libcuda.so.1: "
            with self.assertRaisesRegex(InferenceServerException, message):
                client.infer("model", [tensor], parameters={"memory": "0"})
            self.assertFalse(json.loads(client.infer("model", [tensor]).as_numpy("FACTS")[0])["libcuda"])
        self.assertFalse(cuda.maps_driver(self.server))


if __name__ == "__main__":
    unittest.main()
