"""GPUs: which are used, what memory is taken of them, and tensors of clients on them (CUDA shared memory).

Runs against the double of the driver in src/testkit/cuda, or against the machine's driver with CONCH_CUDA=real."""

import base64
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc as grpcio
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import cuda
import server as servers
from case import ServerCase, conch_only
from region import FLAG, part, path, unregister
from repository import Repository, identity
from waiting import until, until_equal

VALUES = [1.5, -2.0, 3.25, 4.0]
BYTES = struct.pack("<4f", *VALUES)
UNKNOWN = "Unable to find cuda shared memory region: '{}'"


def on(kind, config):
    """The configuration with instances of another kind."""
    return config.replace("kind: KIND_CPU", kind)


def models(repository):
    repository.model("identity", identity([("INPUT0", "FP32", (-1,))], batch=8))
    repository.model("gpu", on("kind: KIND_GPU", identity([("INPUT0", "FP32", (-1,))], batch=8)))
    repository.model("strings", identity([("INPUT0", "STRING", (-1,))], batch=8))
    repository.model("slow", identity([("INPUT0", "FP32", (-1,))], parameters={"execute_delay_ms": "500"}))


class GpuCase(ServerCase):
    """A server with these settings of the double."""

    settings = {"devices": 2}
    flags = (FLAG,)
    models = staticmethod(models)

    @classmethod
    def setUpClass(cls):
        if not cuda.IS_REAL and not cuda.DOUBLE.exists():
            raise unittest.SkipTest(f"{cuda.DOUBLE} is not built")
        cls.environment = {**cuda.environment(**cls.settings), **(cls.environment or {})}
        super().setUpClass()

    def array(self, byte_size=16, content=b"", device=0):
        array = cuda.DeviceArray(byte_size, content, device)
        self.addCleanup(array.close)
        return array

    def register(self, name, array, byte_size=None, device=None, handle=None):
        handle = array.handle() if handle is None else handle
        body = {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "byte_size": array.byte_size if byte_size is None else byte_size,
                "device_id": array.device if device is None else device}
        return self.server.post_json(path("register", name, "cuda"), body)

    def registered(self, name, array, **more):
        self.assertEqual(self.register(name, array, **more), (200, b""))
        self.addCleanup(self.unregister, name)

    def unregister(self, name=None):
        self.assertEqual(self.server.post_json(path("unregister", name, "cuda"), b""), (200, b""))

    def listed(self):
        return self.server.get_json(path("status", kind="cuda"))

    def ask(self, source, target=None, model="identity", shape=(1, 4), datatype="FP32"):
        body = {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": list(shape), "parameters": source}]}
        if target is not None:
            body["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
        status, _, reply = self.infer(body, model=model)
        return status, json.loads(reply)

    def devices(self):
        """The numbers of the server's devices."""
        return list(range(cuda.device_count() if cuda.IS_REAL else self.settings["devices"]))

    def instances(self, model):
        return self.server.get_json(f"/v2/models/{model}/config")["instance_group"]


@conch_only
class Devices(GpuCase):
    """Which devices are used, and for what."""

    def test_groups_get_their_gpus(self):
        group, = self.instances("gpu")
        self.assertEqual((group["kind"], group["gpus"], group["count"]), ("KIND_GPU", self.devices(), 1))
        group, = self.instances("identity")
        self.assertEqual((group["kind"], group["gpus"]), ("KIND_CPU", []))

    def test_both_kinds_answer(self):
        for model in ("identity", "gpu"):
            self.assert_serves(model)

    def test_unknown_devices_are_refused(self):
        with Repository() as repository:
            repository.model("far", on("kind: KIND_GPU gpus: [ 7 ]", identity()))
            repository.model("auto", on("kind: KIND_AUTO", identity()))
            with servers.Server(repository.path, "--exit-on-error=false", environment=cuda.environment(devices=2),
                                expect_ready=False) as server:
                until(lambda: server.get("/v2/models/auto/ready")[0] == 200, "model auto is ready")
                reasons = {row["name"]: row.get("reason", "") for row in json.loads(server.post_json("/v2/repository/index", {})[1])}
                self.assertIn("instance group far_0 of model far specifies invalid or unsupported gpu id 7. GPUs with at least the "
                              f"minimum required CUDA compute compatibility of 6.000000 are: {', '.join(map(str, self.devices()))}", reasons["far"])
                group, = server.get_json("/v2/models/auto/config")["instance_group"]
                self.assertEqual(group["kind"], "KIND_GPU")

    @unittest.skipIf(cuda.IS_REAL, "has the devices of the double")
    def test_old_devices_are_left_alone(self):
        with Repository() as repository:
            repository.model("auto", on("kind: KIND_AUTO", identity()))
            with servers.Server(repository.path, "--min-supported-compute-capability=9.1",
                                environment=cuda.environment(devices=2, capability="9.0")) as server:
                server.wait_for_text("compute capability 9.0 is below 9.1", within=30)
                group, = server.get_json("/v2/models/auto/config")["instance_group"]
                self.assertEqual(group["kind"], "KIND_CPU")

    @unittest.skipIf(cuda.IS_REAL, "needs a device of its own")
    def test_load_limit(self):
        with Repository() as repository:
            repository.model("gpu", on("kind: KIND_GPU", identity()))
            flags = ("--exit-on-error=false", "--model-load-gpu-limit=0:0.01", "--cuda-memory-pool-byte-size=0:50000000")
            with servers.Server(repository.path, *flags, environment=cuda.environment(devices=1, bytes=100_000_000),
                                expect_ready=False) as server:
                row, = until(lambda: [row for row in json.loads(server.post_json("/v2/repository/index", {})[1]) if "reason" in row],
                             "the model is refused")
                self.assertIn("can not create model 'gpu_0_0': memory limit set for GPU 0 has exceeded, model loading is rejected.",
                              row["reason"])


@conch_only
class Memory(GpuCase):
    """What the server takes of a device, and when."""

    def test_nothing_is_taken_before_a_device_is_used(self):
        with Repository() as repository:
            repository.model("identity", identity())
            with servers.Server(repository.path, environment=cuda.environment(devices=2)) as server:
                self.assertNotIn("memory pool is created", server.output)

    def test_pools_are_made_with_the_first_user(self):
        region = self.array()
        self.registered("r", region)
        self.server.wait_for_text("CUDA memory pool is created on device 0 with size 67108864", within=30)
        self.server.wait_for_match(r"Pinned memory pool is created at '0x[0-9a-f]+' with size 268435456", within=30)

    @unittest.skipIf(cuda.IS_REAL, "needs a device of its own")
    def test_a_device_without_room_has_no_pool(self):
        with Repository() as repository:
            repository.model("identity", identity([("INPUT0", "FP32", (-1,))], batch=8))
            with servers.Server(repository.path, FLAG, environment=cuda.environment(devices=1, bytes=1 << 20)) as server:
                region = self.array(content=BYTES)
                body = {"raw_handle": {"b64": base64.b64encode(region.handle()).decode()}, "byte_size": 16, "device_id": 0}
                self.assertEqual(server.post_json(path("register", "r", "cuda"), body), (200, b""))
                server.wait_for_text("GPU 0 has no pool of 67108864 bytes: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY", within=30)


@conch_only
class Metrics(GpuCase):
    """What the metrics say of devices."""

    # No device is in use at first.
    models = staticmethod(lambda repository: repository.model("identity", identity()))
    flags = (FLAG, "--metrics-interval-ms=50")
    FAMILIES = ("nv_gpu_utilization", "nv_gpu_memory_total_bytes", "nv_gpu_memory_used_bytes", "nv_gpu_power_usage", "nv_gpu_power_limit",
                "nv_energy_consumption")

    def test_every_family_has_every_device(self):
        rows = families(self.server)
        uuids = {labels for labels in rows["nv_gpu_utilization"]}
        self.assertTrue(all(re.fullmatch('gpu_uuid="GPU-[-0-9a-f]{36}"', labels) for labels in uuids), uuids)
        for family in self.FAMILIES:
            self.assertEqual(set(rows[family]), uuids, family)
        if not cuda.IS_REAL:
            self.assertEqual(len(uuids), 2)

    def test_figures_follow(self):
        before = sum(families(self.server)["nv_gpu_memory_used_bytes"].values())
        self.registered("r", self.array())
        until(lambda: sum(families(self.server)["nv_gpu_memory_used_bytes"].values()) >= before + (64 << 20), "the pool is seen")
        until(lambda: min(families(self.server)["nv_energy_consumption"].values()) > 0, "energy is used")
        self.assertEqual(list(families(self.server)["conch_gpu_memory_pool_total_bytes"].values()), [64 << 20])

    def test_off(self):
        with Repository() as repository:
            repository.model("identity", identity())
            with servers.Server(repository.path, "--allow-gpu-metrics=false", environment=cuda.environment()) as server:
                self.assertEqual([family for family in families(server) if "gpu" in family], [])


@conch_only
class ModelMetrics(GpuCase):
    """Which of a model's figures have the label of a device: what its instances on GPUs report."""

    FAMILIES = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count", "nv_inference_request_duration_us",
                "nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us",
                "nv_inference_compute_output_duration_us", "nv_inference_pending_request_count", "nv_model_load_duration_secs")

    @staticmethod
    def models(repository):
        config = identity([("INPUT0", "FP32", (-1,))], batch=8)
        repository.model("cpu", config)
        repository.model("gpu", on("count: 2 kind: KIND_GPU", config.replace("count: 1 kind", "kind")))
        repository.model("first", on("kind: KIND_GPU gpus: [ 0 ]", config))
        repository.model("both", on("kind: KIND_GPU }, { count: 1 kind: KIND_CPU", config))

    def rows(self, family, model):
        """The values of a family by its label `gpu_uuid`; None is the row without one."""
        found = {}
        for name, value in self.server.metrics().items():
            if name.startswith(family + "{") and f'model="{model}"' in name and 'reason="' not in name:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
                self.assertEqual(list(labels), sorted(labels), "labels are sorted")
                found[labels.get("gpu_uuid")] = value
        return found

    def uuids(self):
        return {labels.split('"')[1] for labels in families(self.server)["nv_gpu_utilization"]}

    def test_rows(self):
        for model, devices in (("cpu", set()), ("gpu", self.uuids()), ("both", self.uuids())):
            for family in self.FAMILIES:
                self.assertEqual(self.rows(family, model).keys(), {None, *devices}, (model, family))
        self.assertEqual(len(self.rows("nv_inference_request_success", "first")), 2, "no row of a GPU without an instance")

    def test_failures_have_all_reasons(self):
        rows = [name for name in self.server.metrics() if name.startswith("nv_inference_request_failure{") and 'model="gpu"' in name]
        self.assertEqual(len(rows), 4 * (1 + len(self.uuids())), rows)
        for name in rows:
            labels = re.findall(r'(\w+)="', name)
            self.assertEqual(labels, sorted(labels))

    def test_counts(self):
        count = 12
        for model in ("cpu", "gpu", "first", "both"):
            before = self.rows("nv_inference_request_success", model)
            for _ in range(count):
                self.assert_serves(model)
            for family in ("nv_inference_request_success", "nv_inference_count"):
                rows = self.rows(family, model)
                self.assertEqual(sum(rows.values()), sum(before.values()) + count, (model, family, rows))
                if model in ("gpu", "first"):
                    self.assertEqual(rows[None], 0, (model, family, rows))
            self.assertEqual(self.server.statistics(model)["inference_stats"]["success"]["count"], sum(before.values()) + count)
        self.assertGreater(self.rows("nv_model_load_duration_secs", "gpu")[None], 0)

    def test_what_no_instance_reports_has_no_device(self):
        self.assertEqual(self.rows("nv_inference_pending_request_count", "gpu"), {None: 0, **dict.fromkeys(self.uuids(), 0)})


def families(server):
    """family -> labels -> value, of the families that have a device each."""
    found = {}
    for line in server.get("/metrics", port="metrics")[1].decode().splitlines():
        row = re.fullmatch(r"(\w+)\{(gpu_uuid=[^,}]*)\} (\S+)", line)
        if row:
            found.setdefault(row[1], {})[row[2]] = float(row[3])
    return found


@conch_only
class Traces(GpuCase):
    """Tensors on a GPU in traces: they are copied to the host."""

    def test_tensors_on_a_gpu_are_shown(self):
        text = "1.5,-2,3.25,4"
        for model, target_device in (("identity", 0), ("gpu", 0), ("gpu", 0 if cuda.IS_REAL else 1)):
            with self.subTest(model=model, target=target_device), tempfile.TemporaryDirectory() as directory:
                file = pathlib.Path(directory) / "trace.json"
                with Repository() as repository:
                    models(repository)
                    flags = (FLAG, f"--trace-config=triton,file={file}", "--trace-config=rate=1", "--trace-config=level=TENSORS")
                    with servers.Server(repository.path, *flags, environment=cuda.environment(**self.settings)) as server:
                        source, target = self.array(16, BYTES), self.array(16, device=target_device)
                        for name, array in (("in", source), ("out", target)):
                            body = {"raw_handle": {"b64": base64.b64encode(array.handle()).decode()}, "byte_size": 16,
                                    "device_id": array.device}
                            self.assertEqual(server.post_json(path("register", name, "cuda"), body), (200, b""))
                        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": part("in")}],
                                "outputs": [{"name": "OUTPUT0", "parameters": part("out")}]}
                        status, reply = server.post_json(f"/v2/models/{model}/infer", body)
                        self.assertEqual(status, 200, reply)
                        # The trace shows what was there then, not what a client writes later.
                        source.write(bytes(16))
                        target.write(bytes(16))
                shown = [(entry["activity"], entry["tensor"]["name"], entry["tensor"]["data"])
                         for entry in json.loads(file.read_text()) if "tensor" in entry]
                self.assertEqual(shown, [("TENSOR_QUEUE_INPUT", "INPUT0", text), ("TENSOR_BACKEND_INPUT", "INPUT0", text),
                                         ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", text)])


@conch_only
class NoDriver(ServerCase):
    """A machine without a driver."""

    environment = {"LD_LIBRARY_PATH": ""}
    models = staticmethod(lambda repository: repository.model("identity", identity([("INPUT0", "FP32", (-1,))], batch=8)))

    @unittest.skipIf(cuda.IS_REAL, "this machine has one")
    def test_nothing_is_loaded(self):
        self.assertFalse(cuda.maps_driver(self.server))
        self.server.wait_for_text("no GPU is used: libcuda.so.1 is not installed", within=30)
        self.assert_serves()


@conch_only
class Regions(GpuCase):
    """CUDA shared memory."""

    def test_life_of_a_region(self):
        first, second = self.array(4096), self.array(100, device=0 if cuda.IS_REAL else 1)
        self.assertEqual(self.listed(), [])
        self.registered("a", first)
        self.registered("b", second, byte_size=64)
        rows = [{"name": "a", "device_id": 0, "byte_size": 4096}, {"name": "b", "device_id": second.device, "byte_size": 64}]
        self.assertEqual(self.listed(), rows)
        self.assertEqual(self.server.get_json(path("status", "b", "cuda")), rows[1:])
        self.assertEqual(self.server.get_json(path("status")), [], "none of the system")
        self.assertEqual(unregister(self.server, "a"), (200, b""))
        self.assertEqual(self.listed(), rows, "unregistering the other kind changes nothing")
        self.unregister("a")
        self.assertEqual(self.listed(), rows[1:])
        self.unregister()
        self.assertEqual(self.listed(), [])

    def test_one_allocation_under_two_names(self):
        array = self.array(16, BYTES)
        self.registered("a", array)
        self.registered("b", array)
        self.unregister("a")
        status, reply = self.ask(part("b"))
        self.assertEqual((status, reply["outputs"][0]["data"]), (200, VALUES))

    def test_refused_registrations(self):
        region = self.array(4096)
        self.registered("taken", region)
        refused = "failed to register CUDA shared memory region 'r': "
        for more, status, message in [
                ({"device": 9}, 400, refused + "there is no GPU 9"),
                ({"byte_size": 1 << 40}, 400, refused + "the allocation has "),
                ({"handle": b"\1" * 64}, 400, refused + "failed to open CUDA IPC handle: cuIpcOpenMemHandle_v2: CUDA_ERROR_"),
                ({"handle": b"short"}, 400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")]:
            with self.subTest(message):
                other = self.array(4096)
                got, reply = self.register("r", other, **more)
                self.assertEqual(got, status)
                self.assertTrue(json.loads(reply)["error"].startswith(message), reply)
        status, reply = self.register("taken", self.array(16))
        self.assertEqual((status, json.loads(reply)["error"]), (400, "shared memory region 'taken' already in manager"))
        self.assertEqual([row["name"] for row in self.listed()], ["taken"])
        missing = self.server.get(path("status", "nobody", "cuda"))
        self.assertEqual((missing[0], json.loads(missing[1])["error"]), (404, UNKNOWN.format("nobody")))

    def test_tensors_in_place(self):
        for device in (0,) if cuda.IS_REAL else (0, 1):
            for model in ("identity", "gpu"):
                with self.subTest(model=model, device=device):
                    source, target = self.array(16, BYTES, device), self.array(32, b"\xee" * 32, device)
                    self.registered("in", source)
                    self.registered("out", target)
                    status, reply = self.ask(part("in"), part("out", 8), model=model)
                    self.assertEqual(status, 200, reply)
                    self.assertNotIn("data", reply["outputs"][0])
                    self.assertEqual(target.read(), b"\xee" * 8 + BYTES + b"\xee" * 8)
                    self.unregister()

    def test_one_side_on_the_device(self):
        source, target = self.array(16, BYTES), self.array(16)
        self.registered("in", source)
        self.registered("out", target)
        status, reply = self.ask(part("in"))
        self.assertEqual((status, reply["outputs"][0]["data"]), (200, VALUES))
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": VALUES}],
                "outputs": [{"name": "OUTPUT0", "parameters": part("out")}]}
        status, _, reply = self.infer(body)
        self.assertEqual((status, target.read()), (200, BYTES), reply)

    def test_bytes_are_checked_before_they_are_used(self):
        good = struct.pack("<I", 3) + b"abc" + struct.pack("<I", 1) + b"d"
        for content, expected in [(good, (200, ["abc", "d"])), (struct.pack("<I", 99) + good[4:], (400, None))]:
            source = self.array(len(good), content)
            self.registered("in", source)
            status, reply = self.ask(part("in", 0, len(good)), model="strings", shape=(1, 2), datatype="BYTES")
            self.assertEqual(status, expected[0], reply)
            if expected[1]:
                self.assertEqual(reply["outputs"][0]["data"], expected[1])
            self.unregister("in")

    def test_bounds(self):
        self.registered("in", self.array(16, BYTES))
        for source, message in [
                (part("in", 16), "Invalid offset for shared memory region: 'in'"),
                (part("in", 4), "Invalid offset + byte size for shared memory region: 'in'"),
                (part("in", 0, 12), "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 12"),
                (part("gone"), "Unable to find shared memory region: 'gone'")]:
            with self.subTest(message):
                status, reply = self.ask(source)
                self.assertIn(status, (400, 404))
                self.assertIn(message, reply["error"])
        self.registered("small", self.array(8))
        status, reply = self.ask(part("in"), part("small", 0, 8))
        self.assertNotEqual(status, 200)
        self.assertIn("should be at least 16 bytes to hold the results", reply["error"])

    def test_grpc_and_upstreams_clients(self):
        source, target = self.array(16, BYTES), self.array(16)
        for module, url in ((grpcclient, self.server.grpc), (httpclient, self.server.http)):
            with self.subTest(module.__name__), module.InferenceServerClient(url) as client:
                target.write(bytes(16))
                client.register_cuda_shared_memory("in", base64.b64encode(source.handle()), 0, 16)
                client.register_cuda_shared_memory("out", base64.b64encode(target.handle()), 0, 16)
                given, wanted = module.InferInput("INPUT0", [1, 4], "FP32"), module.InferRequestedOutput("OUTPUT0")
                given.set_shared_memory("in", 16)
                wanted.set_shared_memory("out", 16)
                client.infer("gpu", [given], outputs=[wanted])
                self.assertEqual(target.read(), BYTES)
                if module is grpcclient:
                    rows = client.get_cuda_shared_memory_status().regions
                    self.assertEqual({name: (row.device_id, row.byte_size) for name, row in rows.items()}, {"in": (0, 16), "out": (0, 16)})
                    with self.assertRaises(InferenceServerException) as refused:
                        client.register_cuda_shared_memory("r", base64.b64encode(b"short"), 0, 16)
                    self.assertEqual(refused.exception.status(), str(grpcio.StatusCode.INVALID_ARGUMENT))
                client.unregister_cuda_shared_memory()

    def test_unregistered_while_in_use(self):
        source, target = self.array(16, BYTES), self.array(16)
        self.registered("in", source)
        self.registered("out", target)
        body = {"id": "in-use", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": part("in")}],
                "outputs": [{"name": "OUTPUT0", "parameters": part("out")}]}
        outcome = []
        asker = threading.Thread(target=lambda: outcome.append(self.infer(body, model="slow")))
        with self.server.telling_states():
            asker.start()
            self.server.wait_for_state("in-use", "EXECUTING")
        self.unregister()
        self.assertEqual([row["name"] for row in self.listed()], ["in", "out"], "until the last request is done")
        asker.join()
        self.assertEqual(outcome[0][0], 200, outcome)
        self.assertEqual(target.read(), BYTES)
        until_equal(self.listed, [], "the list of regions")

    def test_a_client_that_dies_leaves_its_memory_until_it_is_unregistered(self):
        program = ("import sys, cuda\narray = cuda.DeviceArray(16, bytes.fromhex(sys.argv[1]))\n"
                   "sys.stdout.write(array.handle().hex() + chr(10)); sys.stdout.flush(); sys.stdin.readline()")
        here = os.path.dirname(os.path.abspath(cuda.__file__))
        client = subprocess.Popen([sys.executable, "-c", program, BYTES.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "PYTHONPATH": here})
        try:
            handle = bytes.fromhex(client.stdout.readline().strip())
            self.registered("in", self.array(16), handle=handle)
        finally:
            client.kill()
            client.wait()
            client.stdin.close()
            client.stdout.close()
        status, reply = self.ask(part("in"))
        self.assertEqual((status, reply["outputs"][0]["data"]), (200, VALUES))
