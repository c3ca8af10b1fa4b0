"""The gpu_elementwise backend on the double of the driver: where bytes pass, what runs beside each other, and what a driver that fails does.

With CONCH_CUDA=real the tests that do not look into the double run on the machine's GPU."""

import concurrent.futures
import json
import unittest

import numpy as np

import cuda
import elementwise
import server as servers
from case import conch_only, needs_library
from elementwise import edges, listed, model
from region import FLAG, part
from repository import Repository, identity, tensors
from test_gpus import GpuCase, families
from waiting import until, until_equal

ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719
POOL = "conch_gpu_memory_pool_used_bytes"
PIXELS, MEAN, SCALE = (32, 24), (120.0, 110.0, 100.0), (0.02, 0.03, 0.04)
IMAGE = (*PIXELS, 3)
COUNT = 3 * PIXELS[0] * PIXELS[1]


def steps(*rows):
    """The steps of an ensemble: (model, input, read, output, made)."""
    return "ensemble_scheduling {\n" + "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "{key}" value: "{read}" }} output_map {{ key: "{output}" value: "{made}" }} }}\n'
        for name, key, read, output, made in rows) + "}\n"


def add_models(repository):
    gpu = {"kind": "KIND_GPU"}
    repository.model("normalize", model("normalize_image", [("A", "UINT8", (-1, -1, 3))], [("O", "FP32", (3, -1, -1))], batch=8,
                                        mean=listed(MEAN), scale=listed(SCALE), **gpu))
    repository.model("middle", identity([("INPUT0", "FP32", (3, -1, -1))], batch=8).replace("KIND_CPU", "KIND_GPU"))
    repository.model("half", model("cast", [("A", "FP32", (3, -1, -1))], [("O", "FP16", (3, -1, -1))], batch=8, **gpu))
    repository.model("on_the_cpu", model("cast", [("A", "FP32", (3, -1, -1))], [("O", "FP16", (3, -1, -1))], batch=8))
    for name, last in (("pipeline", "half"), ("pipeline_to_the_cpu", "on_the_cpu")):
        repository.model(name, 'platform: "ensemble"\nmax_batch_size: 8\n' + tensors("input", [("IMAGE", "UINT8", (-1, -1, 3))])
                         + tensors("output", [("RESULT", "FP16", (3, -1, -1))])
                         + steps(("normalize", "A", "IMAGE", "O", "t1"), ("middle", "INPUT0", "t1", "OUTPUT0", "t2"), (last, "A", "t2", "O", "RESULT")))
    batching = "dynamic_batching { max_queue_delay_microseconds: 300000 preferred_batch_size: [ 4 ] }\n"
    repository.model("batched", model("affine", [("A", "INT8", (3, -1))], [("O", "FP32", (3, -1))], batch=4, channel_axis="0", extra=batching,
                                      scale="1,2,3", offset="0.5", **gpu))
    repository.model("add", model("add", [("A", "FP32", (-1,)), ("B", "FP32", (-1,))], [("O", "FP32", (-1,))], **gpu))
    repository.model("cast", model("cast", [("A", "FP32", (-1,))], [("O", "INT8", (-1,))], **gpu))


@needs_library("gpu_elementwise")
class DeviceCase(GpuCase):
    """Requests with tensors in bodies or in regions."""

    settings = {"devices": 1}
    models = staticmethod(add_models)
    flags = (FLAG, "--metrics-interval-ms=50")

    def ask(self, name, inputs, output="O", target=None):
        """Status, the head of the answer, the bytes of its output. `inputs`: name -> (type, shape, bytes or the part of a region)."""
        rows, tail = [], b""
        for tensor, (kind, shape, given) in inputs.items():
            where = given if isinstance(given, dict) else {"binary_data_size": len(given)}
            tail += b"" if isinstance(given, dict) else given
            rows.append({"name": tensor, "datatype": kind, "shape": list(shape), "parameters": where})
        wanted = {"name": output, "parameters": target or {"binary_data": True}}
        status, headers, reply = self.infer({"inputs": rows, "outputs": [wanted]}, tail, model=name)
        length = int(headers.get("inference-header-content-length", len(reply)))
        return status, json.loads(reply[:length]), reply[length:]

    def cast(self, values):
        return self.ask("cast", {"A": ("FP32", values.shape, values.tobytes())})

    def assert_casts(self, values):
        status, head, found = self.cast(values)
        self.assertEqual((status, found), (200, elementwise.cast(values, "FP32", "INT8").tobytes()), head)


def expected_pipeline(images):
    return elementwise.cast(elementwise.normalized(images, "FP32", SCALE, MEAN), "FP32", "FP16")


@conch_only
class Places(DeviceCase):
    """Wherever inputs and outputs lie."""

    def test_regions_and_bodies(self):
        a, b = edges("FP32", 1000, 1), edges("FP32", 1000, 2)
        expected = elementwise.paired(np.add, a, b, "FP32").tobytes()
        target = self.array(8192)
        self.registered("out", target)
        # One that begins at an address that no element may have, and one behind it.
        self.registered("in", self.array(12288, bytes(2) + a.tobytes() + bytes(1022) + b.tobytes()))
        for first in (a.tobytes(), part("in", 2, 4000)):
            for second in (b.tobytes(), part("in", 5024, 4000)):
                for place in (None, part("out", 16, 4000), part("out", 3, 4000)):
                    with self.subTest(first=type(first), second=type(second), place=place):
                        target.write(b"\xee" * 8192)
                        inputs = {"A": ("FP32", [1000], first), "B": ("FP32", [1000], second)}
                        status, head, found = self.ask("add", inputs, target=place)
                        self.assertEqual(status, 200, head)
                        at = place["shared_memory_offset"] if place else 0
                        found = target.read(at, 4000) if place else found
                        self.assertTrue(found == expected)
                        if place:
                            self.assertEqual(target.read(0, at) + target.read(at + 4000, 8), b"\xee" * (at + 8), "nothing beside it")

    def test_in_place(self):
        a = edges("FP32", 1000, 3)
        array = self.array(4000, a.tobytes())
        self.registered("r", array)
        inputs = {name: ("FP32", [1000], part("r", 0, 4000)) for name in "AB"}
        status, head, _ = self.ask("add", inputs, target=part("r", 0, 4000))
        self.assertEqual(status, 200, head)
        self.assertTrue(array.read() == elementwise.paired(np.add, a, a, "FP32").tobytes())

    def test_pipelines(self):
        images = edges("UINT8", 2 * COUNT).reshape(2, *IMAGE)
        for name in ("pipeline", "pipeline_to_the_cpu"):
            status, head, found = self.ask(name, {"IMAGE": ("UINT8", images.shape, images.tobytes())}, "RESULT")
            self.assertEqual((status, found), (200, expected_pipeline(images).tobytes()), head)


@conch_only
@unittest.skipIf(cuda.IS_REAL, "reads what the double counts")
class Ways(DeviceCase):
    """Which memory bytes pass through, and how many kernels run."""

    @classmethod
    def setUpClass(cls):
        cls.tally = cuda.TallyFile.of_class(cls)
        cls.environment = cls.tally.environment
        super().setUpClass()

    def test_a_pipeline_stays_on_the_device(self):
        images = edges("UINT8", 4 * COUNT).reshape(4, *IMAGE)
        self.registered("in", self.array(images.nbytes, images.tobytes()))
        target = self.array(2 * images.size)
        self.registered("out", target)

        def ask():
            inputs = {"IMAGE": ("UINT8", images.shape, part("in", 0, images.nbytes))}
            status, head, _ = self.ask("pipeline", inputs, "RESULT", part("out", 0, 2 * images.size))
            self.assertEqual(status, 200, head)
        # Identity in the middle copies on the device. The result alone leaves it, as a client may be anywhere, and goes to its region.
        self.assertEqual(self.tally.during(ask), {("device", "device"): (1, 4 * images.size), ("kernel", "elementwise"): (2, 2 * images.size),
                                          ("device", "pinned"): (1, 2 * images.size), ("pinned", "device"): (1, 2 * images.size)})
        self.assertTrue(target.read() == expected_pipeline(images).tobytes())

    def test_a_pipeline_of_bodies_crosses_once_each_way(self):
        images = edges("UINT8", 8 * COUNT).reshape(8, *IMAGE)

        def ask():
            status, head, found = self.ask("pipeline", {"IMAGE": ("UINT8", images.shape, images.tobytes())}, "RESULT")
            self.assertEqual((status, len(found)), (200, 2 * images.size), head)
        work = self.tally.during(ask)
        self.assertEqual(work.pop(("kernel", "elementwise")), (2, 2 * images.size))
        self.assertEqual(work.pop(("device", "device")), (1, 4 * images.size))
        self.assertEqual(sum(size for (source, _), (_, size) in work.items() if source != "device"), images.nbytes, work)
        self.assertEqual(sum(size for (_, target), (_, size) in work.items() if target != "device"), 2 * images.size, work)

    def test_requests_of_a_batch_are_one_launch(self):
        rows = [edges("INT8", 3 * 40, seed).reshape(1, 3, 40) for seed in range(4)]
        scale, offset = np.array([1, 2, 3], np.float32).reshape(1, 3, 1), 0.5

        def ask_all():
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                asked = pool.map(lambda values: self.ask("batched", {"A": ("INT8", values.shape, values.tobytes())}), rows)
                for values, (status, head, found) in zip(rows, asked):
                    self.assertEqual((status, found), (200, elementwise.affine(values, "INT8", "FP32", scale, offset).tobytes()), head)
        work = self.tally.during(ask_all)
        batches = self.server.statistics("batched")["execution_count"]
        launches, threads = work[("kernel", "elementwise")]
        self.assertEqual(launches, batches, "a launch for each batch, whatever its requests")
        self.assertTrue(4 * 120 <= threads < 4 * 120 + 256 * launches, "a thread for each element, in whole blocks")
        self.assertEqual(work[("pinned", "device")], (batches, 4 * 120))

    def test_empty_tensors_run_nothing(self):
        empty = np.zeros(0, np.float32)
        self.assertEqual(self.tally.during(lambda: self.assert_casts(empty)), {})


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the faults of the double")
class Faults(DeviceCase):
    """A driver that fails: the requests concerned are told, and others go on."""

    flags = (*DeviceCase.flags, "--cuda-memory-pool-byte-size=0:4194304")

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    def used(self):
        return families(self.server).get(POOL, {})

    def test_one_call_fails(self):
        values = edges("FP32", 500)
        for call in ("cuMemcpyAsync", "cuLaunchKernel", "cuEventRecord", "copy", "kernel"):
            with self.subTest(call), self.faults.failing(f"{call}:0:1:1"):
                status, head, _ = self.cast(values)
                self.assertEqual(status, 500, head)
                self.assertRegex(head["error"], "^GPU 0: cu[A-Za-z]+: CUDA_ERROR_INVALID_VALUE")
                self.assert_casts(values)

    def test_no_room_on_the_device(self):
        """Neither in the server's pool, nor of the driver."""
        values = edges("FP32", 3 << 20)
        with self.faults.failing("cuMemAlloc_v2:0:1000:2"):
            status, head, _ = self.cast(values)
            self.assertEqual(status, 503, head)
            self.assert_casts(values[:1000])
        self.assert_casts(values)

    def test_a_kernel_that_hangs_ends_with_its_device(self):
        values = edges("FP32", 500)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with self.faults.failing("hang:0:1:0"):
                asked = pool.submit(self.cast, values)
                with self.assertRaises(concurrent.futures.TimeoutError):
                    asked.result(timeout=0.3)
                # The device breaks: the request is told, at last.
                self.faults.order(f"device:0:0:1:{LAUNCH_FAILED}")
                status, head, _ = asked.result(timeout=30)
                self.assertEqual(status, 500, head)
                self.assertIn("CUDA_ERROR_LAUNCH_FAILED", head["error"])
        self.assert_casts(values)

    def test_a_device_breaks(self):
        values = edges("FP32", 500)
        with self.faults.failing(f"kernel:0:1:{ILLEGAL_ADDRESS}"):
            for _ in range(3):
                status, head, _ = self.cast(values)
                self.assertEqual(status, 500, head)
                self.assertIn("CUDA_ERROR_ILLEGAL_ADDRESS", head["error"])
            images = edges("FP32", COUNT).reshape(1, 3, *PIXELS)
            status, head, _ = self.ask("on_the_cpu", {"A": ("FP32", images.shape, images.tobytes())})
            self.assertEqual(status, 200, head)
        self.assert_casts(values)

    def test_failures_leak_nothing(self):
        values = edges("FP32", 5000)
        self.assert_casts(values)
        used = self.used()
        with self.faults.failing("kernel:0:1000:1"):
            for _ in range(20):
                self.assertEqual(self.cast(values)[0], 500)
        self.assert_casts(values)
        until_equal(self.used, used, "the bytes in use of the devices' pools")

    def test_texts_that_the_driver_refuses(self):
        for order, reason in (("cuModuleLoadDataEx:0:1:218", "GPU 0: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX"),
                              ("cuModuleGetFunction:0:1:500", "GPU 0: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND")):
            faults = cuda.FaultFile(self.faults.path.parent, "own")
            faults.order(order)
            with Repository() as repository:
                repository.model("cast", model("cast", [("A", "FP32", (-1,))], [("O", "INT8", (-1,))], kind="KIND_GPU"))
                environment = {**self.environment, **faults.environment}
                with servers.Server(repository.path, "--exit-on-error=false", environment=environment, expect_ready=False) as server:
                    server.wait_for_text(reason, within=30)


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class Slow(DeviceCase):
    """Kernels and copies that take long: no answer leaves before its bytes are there."""

    settings = {"devices": 1, "copy_us": 20_000, "kernel_us": 50_000}

    def test_answers_wait_for_their_bytes(self):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [edges("FP32", 500 + seed, seed) for seed in range(12)]
            for values, (status, head, found) in zip(asked, pool.map(self.cast, asked)):
                self.assertEqual((status, found), (200, elementwise.cast(values, "FP32", "INT8").tobytes()), head)

    def test_models_are_unloaded_with_nothing_lost(self):
        with Repository() as repository:
            repository.model("cast", model("cast", [("A", "FP32", (-1,))], [("O", "INT8", (-1,))], kind="KIND_GPU"))
            with servers.Server(repository.path, "--model-control-mode=explicit", "--load-model=cast", environment=self.environment) as server:
                threads = lambda: sum("cuda-double" in row for row in server.threads().splitlines())
                until(threads, "streams of the instance", 10, lambda count: count >= 3)
                head = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [700], "data": [1.0] * 700}]}
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    asked = [pool.submit(server.post_json, "/v2/models/cast/infer", head) for _ in range(4)]
                    until(lambda: server.statistics("cast")["execution_count"], "a batch that is done, with others behind it", 10)
                    self.assertEqual(server.post_json("/v2/repository/models/cast/unload", {})[0], 200)
                    answers = [future.result(timeout=30) for future in asked]
                for status, answer in answers:
                    self.assertIn(status, (200, 400, 503), answer)
                    if status == 200:
                        self.assertEqual(json.loads(answer)["outputs"][0]["data"], [1] * 700)
                self.assertIn(200, [status for status, _ in answers])
                until_equal(threads, 0, "the number of streams")


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the faults of the double")
class InFlight(DeviceCase):
    """Batches of one instance beside each other."""

    @classmethod
    def setUpClass(cls):
        cls.faults, cls.tally = cuda.FaultFile.of_class(cls), cuda.TallyFile.of_class(cls)
        cls.environment = {**cls.faults.environment, **cls.tally.environment}
        super().setUpClass()

    def launches(self):
        return sum(count for (source, _), (count, _) in self.tally.rows().items() if source == "kernel")

    def test_others_run_while_one_hangs(self):
        """One kernel hangs; those of batches on other streams run meanwhile. All have their answers when it ends."""
        asked = [edges("FP32", 400 + seed, seed) for seed in range(3)]
        for values in asked:
            self.assert_casts(values)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            with self.faults.failing("hang:0:1:0"):
                before = self.launches()
                futures = [pool.submit(self.cast, values) for values in asked]
                until(self.launches, "launches of other batches than the one that hangs", 20, lambda count: count > before)
                done, _ = concurrent.futures.wait(futures, timeout=0.2)
                self.assertLess(len(done), 3)
            for values, future in zip(asked, futures):
                status, head, found = future.result(timeout=30)
                self.assertEqual((status, found), (200, elementwise.cast(values, "FP32", "INT8").tobytes()), head)
        until_equal(self.launches, before + 3, "the number of launches")


if __name__ == "__main__":
    unittest.main()
