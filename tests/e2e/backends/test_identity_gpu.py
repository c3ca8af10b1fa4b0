"""The identity backend on GPUs: wherever inputs and outputs lie, their bytes arrive, and what lies on devices stays there.

Runs against the double of the driver in src/testkit/cuda, or against the machine's driver with CONCH_CUDA=real."""

import contextlib
import itertools
import json
import queue
import random
import threading
import unittest

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import cuda
import region
import server as servers
import wire
from case import conch_only, needs_library
from region import part
from repository import Repository, identity, tensors
from test_control import EXPLICIT, Asking
from test_gpus import GpuCase, families
from waiting import until, until_equal

DEVICES = (0,) if cuda.IS_REAL else (0, 1)
SMALL, LARGE = 64, 1 << 20
SIZES = (0, 1, 64, 4095, 65537, LARGE, 16 << 20)
TYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32, "INT64": np.int64}
PINNED = "nv_pinned_memory_pool_used_bytes"
POOL = "conch_gpu_memory_pool_used_bytes"
INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700


def content(byte_size, seed=0):
    return random.Random(f"{byte_size} {seed}").randbytes(byte_size)


def on(device, config):
    """The configuration with its instances on one device, or on all of them."""
    gpus = "" if device is None else f" gpus: [ {device} ]"
    return config.replace("kind: KIND_CPU", f"kind: KIND_GPU{gpus}")


def single(data_type="UINT8", **more):
    return identity([("INPUT0", data_type, (-1,))], **more)


def models(repository):
    for device in DEVICES:
        repository.model(f"gpu{device}", on(device, single()))
    repository.model("cpu", single())
    for name in (*TYPES, "STRING"):
        repository.model(name.lower(), on(0, single(name)))


@needs_library("identity")
class IdentityCase(GpuCase):
    """A server with the models, and requests whose answers repeat what was asked."""

    models = staticmethod(models)
    flags = (region.FLAG, "--metrics-interval-ms=50")

    def copy(self, model, given=b"", source=None, target=None, shape=None, parameters=None):
        """One inference over HTTP: (status, the head of the reply, the bytes of the output)."""
        tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [len(given)] if shape is None else shape,
                  "parameters": source or {"binary_data_size": len(given)}}
        output = {"name": "OUTPUT0", "parameters": target or {"binary_data": True}}
        body = {"inputs": [tensor], "outputs": [output], "parameters": parameters or {}}
        status, headers, reply = self.infer(body, b"" if source else given, model=model)
        length = int(headers.get("inference-header-content-length", len(reply)))
        return status, json.loads(reply[:length]), reply[length:]

    def assert_repeats(self, model, given, source=None, target=None, into=None, shape=None):
        """An inference whose output comes in the body, or in the region `target` over the array `into`."""
        shape = [len(given)] if shape is None else shape
        status, head, output = self.copy(model, b"" if source else given, source, target, shape)
        self.assertEqual(status, 200, head)
        found = output if target is None else into.read(target["shared_memory_offset"], len(given))
        self.assertTrue(found == given, f"{model} repeats {len(given)} bytes")

    def used(self):
        """Bytes in use of the pools of the devices."""
        return families(self.server).get(POOL, {})


@conch_only
class Updates(Asking, IdentityCase):
    """Instances that share the thread of a GPU come and go while their model serves."""

    flags = (*IdentityCase.flags, EXPLICIT)
    counts = (1, 3, 2)

    @staticmethod
    def models(repository):
        repository.model("busy", on(0, single()))

    def test_under_traffic(self):
        self.assertEqual(self.load("busy"), (200, ""))
        is_over, answers = threading.Event(), []

        def ask():
            given = content(SMALL, threading.get_ident())
            while not is_over.is_set():
                status, head, output = self.copy("busy", given)
                answers.append((status, head.get("error"), output == given))
        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        for count in self.counts * 2:
            seen = len(answers)
            until(lambda: len(answers) > seen + 20, "no traffic")
            self.repository.model("busy", on(0, single()).replace("count: 1", f"count: {count}"))
            self.assertEqual(self.load("busy"), (200, ""))
            self.assertEqual(self.server.get_json("/v2/models/busy/config")["instance_group"][0]["count"], count)
        is_over.set()
        for client in clients:
            client.join()
        self.assertEqual(set(answers), {(200, None, True)})
        # A reload would have begun them anew.
        self.assertEqual(self.server.statistics("busy")["inference_stats"]["success"]["count"], len(answers))


@conch_only
class Tensors(IdentityCase):
    """Where inputs and outputs lie."""

    def test_bodies(self):
        for byte_size, device in itertools.product(SIZES, DEVICES):
            with self.subTest(byte_size=byte_size, device=device):
                self.assert_repeats(f"gpu{device}", content(byte_size, device))

    def test_types_of_both_protocols(self):
        chosen = random.Random(5)
        for module, url in ((httpclient, self.server.http), (grpcclient, self.server.grpc)):
            with module.InferenceServerClient(url) as client:
                for name, count in itertools.product(TYPES, (0, 1, 1000, chosen.randrange(1 << 20))):
                    with self.subTest(module=module.__name__, type=name, count=count):
                        values = np.random.default_rng(count).integers(0, 100, count).astype(TYPES[name])
                        given = module.InferInput("INPUT0", [count], name)
                        given.set_data_from_numpy(values)
                        found = client.infer(name.lower(), [given]).as_numpy("OUTPUT0")
                        self.assertTrue(np.array_equal(found, values))
                texts = np.array([chosen.randbytes(size).hex().encode() for size in (0, 3, 70_000)], dtype=np.object_)
                given = module.InferInput("INPUT0", [3], "BYTES")
                given.set_data_from_numpy(texts)
                self.assertEqual(list(client.infer("string", [given]).as_numpy("OUTPUT0")), list(texts))

    def test_one_side_on_a_device(self):
        for device, byte_size in itertools.product(DEVICES, (1, 4095, LARGE, 16 << 20)):
            given = content(byte_size, device)
            target = self.array(byte_size + 24, device=device)
            self.registered("in", self.array(byte_size + 8, bytes(8) + given, device))
            self.registered("out", target)
            for own in DEVICES:
                with self.subTest(model=own, device=device, byte_size=byte_size):
                    target.write(b"\xee" * target.byte_size)
                    self.assert_repeats(f"gpu{own}", given, source=part("in", 8, byte_size))
                    self.assert_repeats(f"gpu{own}", given, target=part("out", 8, byte_size), into=target)
                    self.assertEqual((target.read(0, 8), target.read(8 + byte_size)), (b"\xee" * 8, b"\xee" * 16), "nothing beside it")
            self.unregister()

    def test_both_sides_on_devices(self):
        for from_device, to_device, byte_size in itertools.product(DEVICES, DEVICES, (1, SMALL, 16 << 20)):
            given, target = content(byte_size, from_device), self.array(byte_size, device=to_device)
            self.registered("in", self.array(byte_size, given, from_device))
            self.registered("out", target)
            for model in (*(f"gpu{device}" for device in DEVICES), "cpu"):
                with self.subTest(model=model, source=from_device, target=to_device, byte_size=byte_size):
                    target.write(bytes(byte_size))
                    self.assert_repeats(model, given, part("in", 0, byte_size), part("out", 0, byte_size), target)
            self.unregister()

    def test_in_place(self):
        """The output is where the input is, or overlaps with it."""
        given, array = content(4096), self.array(8192)
        self.registered("r", array)
        array.write(given)
        self.assert_repeats("gpu0", given, part("r", 0, 4096), part("r", 0, 4096), array)
        status, head, _ = self.copy("gpu0", b"", part("r", 0, 4096), part("r", 100, 4096), [4096])
        self.assertEqual(status, 200, head)

    def test_system_shared_memory(self):
        given = content(LARGE)
        with region.Object(2 * LARGE, given) as shared:
            self.assertEqual(region.register(self.server, "system", shared.key, 2 * LARGE), (200, b""))
            self.addCleanup(region.unregister, self.server, "system")
            target = self.array(LARGE)
            self.registered("out", target)
            self.assert_repeats("gpu0", given, part("system", 0, LARGE), part("out", 0, LARGE), target)
            status, head, _ = self.copy("gpu0", b"", part("out", 0, LARGE), part("system", LARGE, LARGE), [LARGE])
            self.assertEqual(status, 200, head)
            self.assertTrue(shared.read(LARGE, LARGE) == given)

    def test_devices_at_the_same_time(self):
        errors = []
        arrays = {}
        for device in DEVICES:
            arrays[device] = self.array(LARGE, device=device)
            self.registered(f"out{device}", arrays[device])

        def ask(device, turns):
            try:
                for turn in range(turns):
                    given = content(LARGE, f"{device} {turn}")
                    self.assert_repeats(f"gpu{device}", given, target=part(f"out{device}", 0, LARGE), into=arrays[device])
                    self.assert_repeats(f"gpu{device}", given)
            except AssertionError as error:
                errors.append(f"{device}: {error}")
        askers = [threading.Thread(target=ask, args=(device, 10)) for device in DEVICES]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(errors, [])

    def test_nothing_leaks(self):
        given, target = content(LARGE), self.array(LARGE)
        self.registered("in", self.array(LARGE, given))
        self.registered("out", target)
        here, there = part("in", 0, LARGE), part("out", 0, LARGE)
        ways = ((None, None), (here, None), (None, there), (here, there))

        def ask(turns):
            for (source, goal), _ in itertools.product(ways, range(turns)):
                self.assert_repeats("gpu0", given, source, goal, target)
        ask(1)
        used, pinned = self.used(), self.server.metrics()[PINNED]
        ask(30)
        until_equal(self.used, used, "the bytes in use of the devices' pools")
        until_equal(lambda: self.server.metrics()[PINNED], pinned, "the pinned bytes in use")



def behaving(repository):
    controls = {"enable_request_controls": "true"}
    repository.model("controls", on(0, single(parameters=controls)))
    repository.model("decoupled", on(0, single(parameters=controls, extra="model_transaction_policy { decoupled: true }\n")))
    parameters = {"example_response_parameters": None, "echo_request_parameters": "true"}
    repository.model("parameters", on(0, single(parameters=parameters)))
    batching = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 500000 }\n"
    repository.model("batched", on(0, single(batch=4, extra=batching, parameters=controls)))
    inputs = [("INPUT0", "UINT8", (-1,)), ("INPUT1", "FP32", (3,))]
    config = identity(inputs).replace("dims: [ 3 ] }\noutput", "dims: [ 3 ] optional: true }\noutput")
    repository.model("optional", on(0, config))


@conch_only
class Behaviour(IdentityCase):
    """What the backend does besides copying."""

    models = staticmethod(behaving)
    may_panic = True

    def together(self, *asks):
        """Runs the requests at the same time, so that they make one batch; returns what they return."""
        results = [None] * len(asks)

        def run(index, ask):
            results[index] = ask()
        before = self.server.statistics("batched")["execution_count"]
        askers = [threading.Thread(target=run, args=pair) for pair in enumerate(asks)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        return results, self.server.statistics("batched")["execution_count"] - before

    def test_batches(self):
        given = [content(LARGE, index) for index in range(4)]
        arrays = [self.array(LARGE, given[0]), self.array(LARGE, given[1], DEVICES[-1])]
        targets = [self.array(LARGE, device=device) for device in (0, DEVICES[-1])]
        for index, (array, target) in enumerate(zip(arrays, targets)):
            self.registered(f"in{index}", array)
            self.registered(f"out{index}", target)
        shape = [1, LARGE]
        results, execution_count = self.together(
            lambda: self.copy("batched", b"", part("in0", 0, LARGE), None, shape),
            lambda: self.copy("batched", b"", part("in1", 0, LARGE), part("out0", 0, LARGE), shape),
            lambda: self.copy("batched", given[2], None, part("out1", 0, LARGE), shape),
            lambda: self.copy("batched", given[3], None, None, shape))
        self.assertEqual([status for status, _, _ in results], [200] * 4, [head for _, head, _ in results])
        self.assertEqual(execution_count, 1, "one batch")
        found = [results[0][2], targets[0].read(), targets[1].read(), results[3][2]]
        self.assertEqual([found[index] == given[index] for index in range(4)], [True] * 4)

    def test_one_of_a_batch_fails(self):
        given, shape = [content(SMALL, index) for index in range(4)], [1, SMALL]
        asks = [lambda index=index: self.copy("batched", given[index], shape=shape,
                                              parameters={"error": "no", "error_code": "unavailable"} if index == 2 else {})
                for index in range(4)]
        results, execution_count = self.together(*asks)
        self.assertEqual(([status for status, _, _ in results], execution_count), ([200, 200, 503, 200], 1))
        self.assertEqual([output for _, _, output in results], [given[0], given[1], b"", given[3]])

    def test_controls(self):
        for parameters, status, message in [
                ({"error": "as ordered", "error_code": "not_found"}, 404, "as ordered"),
                ({"execute_error": "all of it"}, 500, "all of it"),
                ({"panic": True}, 500, "ordered by the request"),
                ({"delay_us": -1}, 400, "expected a count")]:
            with self.subTest(message):
                found, head, _ = self.copy("controls", b"abc", parameters=parameters)
                self.assertEqual(found, status, head)
                self.assertIn(message, head["error"])
                self.assert_repeats("controls", b"abc")

    def test_parameters(self):
        status, head, output = self.copy("parameters", b"abc", parameters={"mine": "yours"})
        self.assertEqual((status, output), (200, b"abc"))
        self.assertEqual(head["parameters"], {"param0": "an example string parameter", "param1": 42, "param2": False,
                                              "param3": 123.123, "mine": "yours"})

    def test_absent_inputs_are_zeros(self):
        target = self.array(12, b"\xee" * 12)
        self.registered("out", target)
        body = {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [2], "data": [1, 2]}]}
        status, _, reply = self.infer(body, model="optional")
        self.assertEqual(status, 200, reply)
        outputs = {output["name"]: output["data"] for output in json.loads(reply)["outputs"]}
        self.assertEqual(outputs, {"OUTPUT0": [1, 2], "OUTPUT1": [0.0] * 3})
        body["outputs"] = [{"name": "OUTPUT1", "parameters": part("out", 0, 12)}]
        self.assertEqual(self.infer(body, model="optional")[0], 200)
        self.assertEqual(target.read(), bytes(12))

    def test_decoupled(self):
        target, answers = self.array(8), queue.Queue()
        self.registered("out", target)
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for place in ("body", "out"):
                given = grpcclient.InferInput("INPUT0", [8], "UINT8")
                given.set_data_from_numpy(np.arange(8, dtype=np.uint8))
                wanted = grpcclient.InferRequestedOutput("OUTPUT0")
                if place == "out":
                    wanted.set_shared_memory("out", 8)
                client.async_stream_infer("decoupled", [given], outputs=[wanted], parameters={"response_count": 3})
                for _ in range(3):
                    result, error = answers.get(timeout=30)
                    self.assertIsNone(error)
                    if place == "body":
                        self.assertEqual(list(result.as_numpy("OUTPUT0")), list(range(8)))
                self.assertEqual(target.read(), bytes(range(8)) if place == "out" else target.read())
            client.stop_stream()


def chain(*models):
    """The configuration of an ensemble of models that hand one tensor on."""
    names = ["INPUT0", *(f"between{index}" for index in range(1, len(models))), "OUTPUT0"]
    steps = "".join(f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{read}" }} '
                    f'output_map {{ key: "OUTPUT0" value: "{made}" }} }}\n' for model, read, made in zip(models, names, names[1:]))
    text = 'platform: "ensemble"\n' + tensors("input", [("INPUT0", "UINT8", (-1,))]) + tensors("output", [("OUTPUT0", "UINT8", (-1,))])
    return text + f"ensemble_scheduling {{\n{steps}}}\n"


CHAINS = {"near_far": ("gpu0", f"gpu{DEVICES[-1]}"), "far_near_cpu": (f"gpu{DEVICES[-1]}", "gpu0", "cpu"), "cpu_near": ("cpu", "gpu0", "gpu0")}


def chains(repository):
    models(repository)
    for name, steps in CHAINS.items():
        repository.model(name, chain(*steps))


@conch_only
class Ensembles(IdentityCase):
    """Steps on several devices and on the CPU."""

    models = staticmethod(chains)

    def test_bytes_arrive(self):
        for model, byte_size in itertools.product(CHAINS, (0, SMALL, LARGE)):
            given, target = content(byte_size, model), self.array(byte_size + 8)
            self.registered("in", self.array(byte_size + 8, given + bytes(8)))
            self.registered("out", target)
            here, there = part("in", 0, byte_size), part("out", 0, byte_size)
            ways = itertools.product((None, here), (None, there)) if byte_size else ((None, None),)
            for source, goal in ways:
                with self.subTest(model=model, byte_size=byte_size, at=(source, goal)):
                    target.write(bytes(byte_size + 8))
                    self.assert_repeats(model, given, source, goal, target)
            self.unregister()


@conch_only
@unittest.skipIf(cuda.IS_REAL, "reads what the double counts")
class Ways(IdentityCase):
    """Which memory bytes pass through."""

    @classmethod
    def setUpClass(cls):
        cls.tally = cuda.TallyFile.of_class(cls)
        cls.environment = cls.tally.environment
        super().setUpClass()

    def test_device_to_device_touches_no_host_memory(self):
        for source_device, target_device in itertools.product(DEVICES, DEVICES):
            given, target = content(LARGE, source_device), self.array(LARGE, device=target_device)
            self.registered("in", self.array(LARGE, given, source_device))
            self.registered("out", target)
            with self.subTest(source=source_device, target=target_device):
                ask = lambda: self.assert_repeats(f"gpu{target_device}", given, part("in", 0, LARGE), part("out", 0, LARGE), target)
                self.assertEqual(self.tally.during(ask), {("device", "device"): (1, LARGE)})
            self.unregister()

    def test_bodies_pass_through_pinned_memory(self):
        for byte_size in (LARGE, 20 << 20):
            given, target = content(byte_size), self.array(byte_size)
            self.registered("in", self.array(byte_size, given))
            self.registered("out", target)
            ask = lambda: self.assert_repeats("gpu0", given, target=part("out", 0, byte_size), into=target)
            self.assertEqual(self.tally.during(ask), {("pinned", "device"): (1, byte_size)})
            ask = lambda: self.assert_repeats("gpu0", given, source=part("in", 0, byte_size))
            self.assertEqual(self.tally.during(ask), {("device", "pinned"): (1, byte_size)})
            self.unregister()

    def test_host_to_host_leaves_the_device_alone(self):
        self.assertEqual(self.tally.during(lambda: self.assert_repeats("gpu0", content(LARGE))), {})


@conch_only
class Stalled(IdentityCase):
    """Clients that each declare 60 MB for a GPU and stop: they hold little pinned memory, or ordinary one as others do."""

    COUNT, EACH_MAX = 32, 4 << 20
    DECLARED, FEW, MORE = 60_000_000, 100 << 10, (1 << 20) + (64 << 10)
    # A quarter of the pool is for them, and a quarter more of that is lost to its size classes.
    BODIES_MAX = (256 << 20) // 4 * 5 // 4

    def over_http(self, sent):
        link = wire.connect(self.server)
        link.sendall(f"POST /v2/models/gpu0/infer HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: 100\r\n"
                     f"Content-Length: {self.DECLARED}\r\n\r\n".encode() + bytes(sent))
        return link

    def over_grpc(self, sent):
        return wire.Http2(self.server).start().begin_infer("gpu0", self.DECLARED, sent)

    def pinned(self):
        return self.server.metrics()[PINNED]

    def test_they_hold_what_they_sent(self):
        for connect in (self.over_http, self.over_grpc):
            self.assert_repeats("gpu0", content(LARGE))
            until_equal(self.pinned, 0, "the pinned bytes in use")
            with self.subTest(connect.__name__), contextlib.ExitStack() as stack:
                for _ in range(8):
                    stack.enter_context(connect(self.FEW))
                until_equal(self.pinned, 8 << 20, "the pinned bytes in use")
            until_equal(self.pinned, 0, "the pinned bytes in use")
            with self.subTest(connect.__name__), contextlib.ExitStack() as stack:
                before = self.server.resident_bytes()
                for _ in range(self.COUNT):
                    stack.enter_context(connect(self.MORE))
                # Some of it lies where there was memory before.
                until(lambda: self.server.resident_bytes() - before, "what was sent is there", accept=lambda more: more > self.COUNT * self.MORE * 3 // 4)
                self.assertLessEqual(self.pinned(), self.BODIES_MAX)
                self.assertLess(self.server.resident_bytes() - before, self.COUNT * self.EACH_MAX)
                self.assert_repeats("gpu0", content(20 << 20))


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class SlowCopies(IdentityCase):
    """Copies that take long: no answer leaves before its bytes are there."""

    settings = {"devices": 2, "copy_us": 20_000}

    def test_answers_wait_for_their_bytes(self):
        for source_device, target_device in itertools.product(DEVICES, DEVICES):
            given, target = content(LARGE, source_device), self.array(LARGE, device=target_device)
            self.registered("in", self.array(LARGE, given, source_device))
            self.registered("out", target)
            for source, goal in itertools.product((None, part("in", 0, LARGE)), (None, part("out", 0, LARGE))):
                with self.subTest(source=source_device, target=target_device, at=(source, goal)):
                    self.assert_repeats("gpu0", given, source, goal, target)
            self.unregister()


@conch_only
@unittest.skipIf(cuda.IS_REAL, "counts the streams of the double")
class Life(IdentityCase):
    """Instances come and go."""

    models = staticmethod(lambda repository: [
        repository.model("gpu", on(None, single(count=2, extra="optimization { priority: PRIORITY_MAX }\n"))),
        repository.model("cpu", single())])
    flags = (region.FLAG, "--model-control-mode=explicit")

    def streams(self):
        """Each is a thread of the double."""
        return sum("cuda-double" in row for row in self.server.threads().splitlines())

    def control(self, action, model):
        self.assertEqual(self.server.post_json(f"/v2/repository/models/{model}/{action}", {})[0], 200)

    def test_streams_are_those_of_instances_on_gpus(self):
        self.control("load", "cpu")
        self.assert_repeats("cpu", b"abc")
        self.assertEqual(self.streams(), 0)
        for turn in range(3):
            self.control("load", "gpu")
            until_equal(self.streams, 4, "the number of streams: two instances on each device")
            self.assert_repeats("gpu", content(LARGE, turn))
            self.control("unload", "gpu")
            until_equal(self.streams, 0, "the number of streams")
        until_equal(lambda: self.server.metrics().get(PINNED, 0), 0, "the pinned bytes in use")


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the memory of the double")
class Scarcity(IdentityCase):
    """Too little pinned memory: the driver stages by itself."""

    flags = (region.FLAG, "--pinned-memory-pool-byte-size=65536")

    def test_no_room_for_staging(self):
        given, target = content(LARGE), self.array(LARGE)
        self.registered("in", self.array(LARGE, given))
        self.registered("out", target)
        for _ in range(3):
            self.assert_repeats("gpu0", given, target=part("out", 0, LARGE), into=target)
            self.assert_repeats("gpu0", given, source=part("in", 0, LARGE))
            self.assert_repeats("gpu0", given[:SMALL], source=part("in", 0, SMALL))


@conch_only
@unittest.skipIf(cuda.IS_REAL, "has the faults of the double")
class Faults(IdentityCase):
    """A driver that fails: only the requests concerned do."""

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    def regions(self, device=0):
        given, target = content(LARGE, device), self.array(LARGE, device=device)
        self.registered(f"in{device}", self.array(LARGE, given, device))
        self.registered(f"out{device}", target)
        return given, part(f"in{device}", 0, LARGE), part(f"out{device}", 0, LARGE), target

    def assert_refused(self, message, *asked):
        status, head, _ = self.copy(*asked)
        self.assertEqual(status, 500, head)
        self.assertRegex(head["error"], message)

    def test_one_call_fails(self):
        given, source, goal, target = self.regions()
        refused = "^GPU 0: cu[A-Za-z]+: CUDA_ERROR_INVALID_VALUE"
        for call in ("cuMemcpyAsync", "copy", "cuEventQuery"):
            with self.subTest(call), self.faults.failing(f"{call}:0:1:{INVALID_VALUE}"):
                self.assert_refused(refused, "gpu0", b"", source, goal, [LARGE])
                self.assert_repeats("gpu0", given, source, goal, target)
        with self.faults.failing(f"cuEventRecord:0:1:{INVALID_VALUE}"):
            self.assert_repeats("gpu0", given, source, goal, target)

    def test_an_input_that_is_not_on_its_device(self):
        given, source, goal, target = self.regions()
        with self.faults.failing(f"copy:0:1:{INVALID_VALUE}"):
            self.assert_refused("CUDA_ERROR_INVALID_VALUE", "gpu0", b"", source, None, [LARGE])
            self.assert_repeats("gpu0", given, source)
        with self.faults.failing(f"copy:0:1:{INVALID_VALUE}"):
            self.assert_refused("CUDA_ERROR_INVALID_VALUE", "gpu0", given, None, goal, [LARGE])
            self.assert_repeats("gpu0", given, None, goal, target)

    def test_a_device_breaks(self):
        given, source, goal, target = self.regions()
        far, far_source, far_goal, far_target = self.regions(1)
        with self.faults.failing(f"copy:0:1:{ILLEGAL_ADDRESS}"):
            for _ in range(3):
                self.assert_refused("^GPU 0: cu[A-Za-z]+: CUDA_ERROR_ILLEGAL_ADDRESS", "gpu0", b"", source, goal, [LARGE])
            self.assert_repeats("gpu1", far, far_source, far_goal, far_target)
            self.assert_repeats("cpu", given)
            self.assert_repeats("gpu0", given)
        self.assert_repeats("gpu0", given, source, goal, target)

    def test_failures_leak_nothing(self):
        given, source, goal, target = self.regions()
        self.assert_repeats("gpu0", given, source)
        used, pinned = self.used(), self.server.metrics()[PINNED]
        with self.faults.failing(f"copy:0:1000:{INVALID_VALUE}"):
            for way in ((source, None), (None, goal), (source, goal)):
                for _ in range(10):
                    self.assert_refused("CUDA_ERROR_INVALID_VALUE", "gpu0", b"" if way[0] else given, *way, [LARGE])
        self.assert_repeats("gpu0", given, source, goal, target)
        until_equal(self.used, used, "the bytes in use of the devices' pools")
        until_equal(lambda: self.server.metrics()[PINNED], pinned, "the pinned bytes in use")

    def test_no_stream(self):
        faults = cuda.FaultFile(self.faults.path.parent, "own")
        faults.order("cuStreamCreateWithPriority:0:1000:2")
        with Repository() as repository:
            repository.model("gpu", on(0, single()))
            repository.model("cpu", single())
            environment = {**self.environment, **faults.environment}
            with servers.Server(repository.path, "--exit-on-error=false", environment=environment, expect_ready=False) as server:
                server.wait_for_text("GPU 0: cuStreamCreateWithPriority: CUDA_ERROR_OUT_OF_MEMORY", within=30)
                head = {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [1], "data": [1]}]}
                self.assertEqual(server.post_json("/v2/models/cpu/infer", head)[0], 200)


if __name__ == "__main__":
    unittest.main()
