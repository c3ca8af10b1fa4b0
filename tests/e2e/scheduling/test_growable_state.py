"""Implicit states in memory of a GPU that grows in place (use_growable_memory): where they lie, how far they grow, and when their memory goes.

Runs against the double of the driver in src/testkit/cuda, or against the machine's driver with CONCH_CUDA=real."""

import json
import os
import random
import shutil
import threading
import unittest
from unittest import mock

import cuda
import server as servers
from c_backend import compiled
from case import conch_only
from repository import Repository, tensors
from test_gpus import GpuCase
from waiting import until_equal

SOURCE = servers.ROOT / "tests/e2e/backends/growable_backend.c"
GPU = 2
MIB = 1 << 20
# What the driver maps at least.
GRANULE = 2 * MIB
LIMIT = 4 * MIB
USED = "nv_gpu_memory_used_bytes"
IDLE_US = 200_000
OUT_OF_MEMORY = 2
HUNDRED = bytes(range(100))


def backends():
    """A backend directory with the backend."""
    return compiled("growable", SOURCE)


def growing(strategy="", start="zero_data: true", group="kind: KIND_GPU gpus: [ 0 ]", batch=1, same="true", idle_us=60_000_000, count=1):
    """The configuration of a model whose state begins with 100 bytes."""
    return (f'backend: "growable"\nmax_batch_size: {batch}\n' + tensors("input", [("INPUT0", "UINT8", (-1,))])
            + tensors("output", [("OUTPUT0", "UINT8", (-1,))]) + f"instance_group [ {{ count: {count} {group} }} ]\n"
            + f"sequence_batching {{ {strategy} max_sequence_idle_microseconds: {idle_us}\n"
            + 'state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_UINT8 dims: [ -1 ] use_growable_memory: true '
            + f'use_same_buffer_for_input_output: {same} initial_state {{ name: "s" data_type: TYPE_UINT8 dims: [ 100 ] {start} }} }} }}\n')


def models(repository):
    repository.model("direct", growing("direct { }"))
    repository.model("oldest", growing("oldest { max_candidate_sequences: 4 }", 'data_file: "hundred"'),
                     files={"initial_state/hundred": HUNDRED})
    repository.model("brief", growing("direct { }", idle_us=IDLE_US))
    repository.model("rows", growing("direct { max_queue_delay_microseconds: 0 }", batch=2))
    if not cuda.IS_REAL:
        repository.model("everywhere", growing("direct { }", group="kind: KIND_GPU gpus: [ 0, 1 ]"))


class GrowableCase(GpuCase):
    """A server with the backend, and no pools on its devices."""

    models = staticmethod(models)
    flags = ("--cuda-virtual-address-size=0:3000000", f"--cuda-virtual-address-size=1:{LIMIT}", "--cuda-memory-pool-byte-size=0:0",
             "--cuda-memory-pool-byte-size=1:0", "--metrics-interval-ms=20")

    @classmethod
    def setUpClass(cls):
        if shutil.which("gcc") is None:
            raise unittest.SkipTest("there is no gcc")
        with mock.patch.dict(os.environ, {"CONCH_TEST_BACKENDS": str(backends())}):
            super().setUpClass()

    def send(self, model, sequence, given, marks="", request_id=""):
        """One request of a sequence: (status, the head of the reply, the state)."""
        parameters = {"sequence_id": sequence, "sequence_start": "<" in marks, "sequence_end": ">" in marks}
        tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [1, len(given)], "parameters": {"binary_data_size": len(given)}}
        body = {"id": request_id, "parameters": parameters, "inputs": [tensor],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
        status, headers, reply = self.infer(body, given, model=model)
        length = int(headers.get("inference-header-content-length", len(reply)))
        return status, json.loads(reply[:length]), reply[length:]

    def append(self, model, sequence, given, marks="", **more):
        """The state after a good request, and what the backend tells."""
        status, head, state = self.send(model, sequence, given, marks, **more)
        self.assertEqual(status, 200, head)
        facts = head["parameters"]
        places = [(facts[f"{what}_memory"], facts[f"{what}_device"]) for what in ("in", "out", "told")]
        self.assertEqual(len(set(places)), 1, places)
        self.assertEqual((places[0][0], facts["moved"]), (GPU, 0))
        return state, facts

    def assert_refused(self, model, sequence, given, message, marks="", **more):
        status, head, _ = self.send(model, sequence, given, marks, **more)
        self.assertEqual(status, 503, head)
        self.assertRegex(head["error"], message)

    def used(self, device=0):
        """Bytes in use on a device, from the library that monitors it."""
        rows = [value for name, value in self.server.metrics().items() if name.startswith(USED)]
        return int(rows[device])


@conch_only
class GrowableState(GrowableCase):
    def test_a_state_grows_in_place(self):
        self.assertEqual(self.append("direct", 1, b"one", "<")[0], bytes(100) + b"one")
        self.assertEqual(self.append("direct", 1, b"two")[0], bytes(100) + b"onetwo")
        large = random.Random(1).randbytes(GRANULE)
        expected = bytes(100) + b"onetwo" + large
        self.assertTrue(self.append("direct", 1, large)[0] == expected, "beyond the first piece")
        self.assertTrue(self.append("direct", 1, b"three", ">")[0] == expected + b"three")

    def test_sequences_have_their_own(self):
        for sequence in (1, 2, 3):
            self.assertEqual(self.append("oldest", sequence, b"%d" % sequence, "<")[0], HUNDRED + b"%d" % sequence)
        for sequence in (3, 1, 2):
            self.assertEqual(self.append("oldest", sequence, b"x")[0], HUNDRED + b"%dx" % sequence)
        self.assertEqual(self.append("oldest", 2, b"anew", "<")[0], HUNDRED + b"anew", "begins anew")
        for sequence in (1, 2, 3):
            self.append("oldest", sequence, b".", ">")

    def test_what_is_not_finished_has_no_effect(self):
        self.append("direct", 5, b"a", "<")
        self.assertEqual(self.append("direct", 5, b"b", request_id="keep")[0], bytes(100) + b"ab")
        self.assertEqual(self.append("direct", 5, b"c", ">")[0], bytes(100) + b"ac")

    def test_the_limit(self):
        self.append("direct", 6, b"begun", "<")
        message = (f"^a growable state cannot have {LIMIT + 1} bytes on GPU 0: the limit is {LIMIT} bytes "
                   r"\(--cuda-virtual-address-size\)$")
        self.assert_refused("direct", 6, b"x", message, request_id=f"ask {LIMIT + 1}")
        self.assert_refused("direct", 6, b"x", "a growable state cannot have 1152921504606846976 bytes", request_id=f"ask {1 << 60}")
        self.assertEqual(self.append("direct", 6, b"z", request_id=f"ask {LIMIT}")[0], bytes(100) + b"begunz")
        # Its value is as long as the buffer that was asked for: one byte more has no place.
        self.assert_refused("direct", 6, b"y", message, ">")

    def test_null_rows(self):
        """One sequence in the second row: the first is filled, with a state of nobody."""
        for sequence in (1, 2):
            self.append("rows", sequence, b"%d" % sequence, "<")
        self.append("rows", 1, b"end", ">")
        for turn in range(3):
            state, facts = self.append("rows", 2, b"%d" % turn)
            self.assertEqual((state, facts["rows"]), (bytes(100) + b"2" + b"012"[:turn + 1], 2))
        self.append("rows", 2, b".", ">")

    @unittest.skipIf(cuda.IS_REAL, "has the two devices of the double")
    def test_a_state_is_on_the_device_of_its_instance(self):
        devices = {sequence: self.append("everywhere", sequence, b"a", "<")[1]["in_device"] for sequence in (1, 2)}
        self.assertEqual(sorted(devices.values()), [0, 1])
        for sequence, device in devices.items():
            state, facts = self.append("everywhere", sequence, b"b", ">")
            self.assertEqual((state, facts["in_device"]), (bytes(100) + b"ab", device))

    def test_many_at_the_same_time(self):
        errors = []

        def run(sequence):
            try:
                expected = HUNDRED
                for turn in range(10):
                    given = random.Random(f"{sequence} {turn}").randbytes(30_000)
                    expected += given
                    marks = "<" * (turn == 0) + ">" * (turn == 9)
                    if self.append("oldest", sequence, given, marks)[0] != expected:
                        errors.append(f"{sequence} {turn}")
            except AssertionError as error:
                errors.append(f"{sequence}: {error}")
        threads = [threading.Thread(target=run, args=(sequence,)) for sequence in range(100, 108)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


@conch_only
@unittest.skipIf(cuda.IS_REAL, "counts the memory of the double")
class GrowableMemory(GrowableCase):
    """What is taken of a device, and given back."""

    settings = {"devices": 1, "bytes": 8 << 20}
    models = staticmethod(lambda repository: [
        repository.model("direct", growing("direct { }", count=2)),
        repository.model("oldest", growing("oldest { max_candidate_sequences: 8 }")),
        repository.model("brief", growing("direct { }", idle_us=IDLE_US))])
    flags = (*GrowableCase.flags[:1], "--cuda-memory-pool-byte-size=0:0", "--metrics-interval-ms=20", "--model-control-mode=explicit",
             "--load-model=*")

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    def setUp(self):
        self.assert_used(0)

    def assert_used(self, pieces):
        until_equal(self.used, pieces * GRANULE, "bytes in use on the device")

    def test_the_end_gives_all_back(self):
        for turn in range(20):
            for sequence in (1, 2):
                self.append("direct", sequence, b"a", "<")
            if turn == 0:
                self.assert_used(2)
            for sequence in (1, 2):
                self.append("direct", sequence, b"b", ">")
        self.assert_used(0)
        self.append("direct", 3, b"at once", "<>")
        self.assert_used(0)

    def test_an_idle_sequence_gives_its_memory_back(self):
        self.append("brief", 1, b"a", "<")
        self.assert_used(1)
        self.assert_used(0)
        self.assertEqual(self.append("brief", 1, b"b", "<>")[0], bytes(100) + b"b")

    def test_out_of_memory(self):
        for sequence in (1, 2, 3, 4):
            self.append("oldest", sequence, b"a", "<")
        self.assert_used(4)
        grown = "^a growable state cannot have .* bytes on GPU 0: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory$"
        self.assert_refused("oldest", 5, b"a", grown, "<")
        self.assert_refused("oldest", 5, b"a", grown)
        self.assert_refused("oldest", 1, b"x", grown, request_id=f"ask {GRANULE + 1}")
        self.assertEqual(self.append("oldest", 1, b"b", ">")[0], bytes(100) + b"ab", "what was there stays")
        self.assert_used(3)
        self.assert_refused("oldest", 5, b"a", grown)
        self.assertEqual(self.append("oldest", 5, b"a", "<>")[0], bytes(100) + b"a")
        for sequence in (2, 3, 4):
            self.append("oldest", sequence, b"b", ">")
        self.assert_used(0)

    def test_a_driver_that_fails(self):
        for function in ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"):
            with self.subTest(function=function), self.faults.failing(f"{function}:0:1:{OUT_OF_MEMORY}"):
                self.assert_refused("direct", 1, b"a", "GPU 0: .*CUDA_ERROR_OUT_OF_MEMORY", "<>")
                self.assertEqual(self.append("direct", 1, b"a", "<>")[0], bytes(100) + b"a")
        self.assert_used(0)

    def test_unloading_gives_all_back(self):
        for sequence in (1, 2):
            self.append("direct", sequence, b"a", "<")
        self.assert_used(2)
        self.assertEqual(self.server.post_json("/v2/repository/models/direct/unload", {}), (200, b""))
        for sequence in (1, 2):
            self.send("direct", sequence, b"a", ">")
        self.assert_used(0)
        self.assertEqual(self.server.post_json("/v2/repository/models/direct/load", {}), (200, b""))
        self.append("direct", 3, b"a", "<>")


@conch_only
class GrowableRefusals(GrowableCase):
    """Configurations that make no sense, and the end of a server with states."""

    models = staticmethod(lambda repository: repository.model("direct", growing("direct { }")))

    def test_configurations(self):
        cases = {"cpu": (growing("direct { }", group="kind: KIND_CPU"), "'use_growable_memory' can only work with KIND_GPU model instances"),
                 "apart": (growing("direct { }", same="false"), "In order to 'use_growable_memory', you must also enable 'use_single_buffer' "
                                                               "for state input name 'STATE_IN'.")}
        with Repository() as repository:
            for name, (config, _) in cases.items():
                repository.model(name, config)
            with servers.Server(repository.path, "--exit-on-error=false", environment=self.environment, backends=str(backends()),
                                expect_ready=False) as server:
                for name, (_, message) in cases.items():
                    server.wait_for_text(message, within=30)

    def test_the_end_of_a_server(self):
        with Repository() as repository:
            repository.model("direct", growing("direct { }"))
            with servers.Server(repository.path, *self.flags, "--exit-timeout-secs=20", environment=self.environment,
                                backends=str(backends())) as server:
                body = {"parameters": {"sequence_id": 1, "sequence_start": True},
                        "inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [1, 1], "data": [1]}]}
                status, reply = server.post_json("/v2/models/direct/infer", body)
                self.assertEqual(status, 200, reply)
                self.assertEqual(server.terminate(), 0, server.output[-3000:])


if __name__ == "__main__":
    unittest.main()
