"""Instances that keep batches in flight: how many, in which order, what ends with them, and a device that hangs.

A backend in C, which the real Triton loads as well, has the clock for a device. The identity backend runs on the double of the driver
in src/testkit/cuda, whose copies take as long as a test wants."""

import itertools
import json
import os
import pathlib
import shutil
import tempfile
import threading
import time
import unittest
from unittest import mock

import cuda
import region
import server as servers
from c_backend import compiled
from case import IS_TRITON, ServerCase, conch_only, needs_library
from processes import threads_of
from repository import tensors
from test_identity_gpu import IdentityCase, chain, content, on, single
from waiting import until, until_equal

SMALL = 64
# As src/backends/identity/lib.rs has it.
DEPTH_MAX = 4
STAGES = ["CONCH_DEVICE_STAGE_IN_START", "CONCH_DEVICE_COMPUTE_START", "CONCH_DEVICE_STAGE_OUT_START", "CONCH_DEVICE_STAGE_OUT_END"]


def in_c(repository):
    config = ('backend: "stream"\n' + tensors("input", [("INPUT0", "INT32", (1,))]) + tensors("output", [("OUTPUT0", "INT32", (1,))])
              + "instance_group [ { count: 1 kind: KIND_CPU } ]\n")
    repository.model("plain", config)
    repository.model("sequences", config.replace("instance_group", "sequence_batching { direct { } }\ninstance_group"))
    repository.model("oldest", config.replace("instance_group", "sequence_batching { oldest { max_candidate_sequences: 8 } }\ninstance_group"))


class InC(ServerCase):
    """A backend in C: with the functions of conch/extension.h in conch, without them in Triton."""

    models = staticmethod(in_c)

    @classmethod
    def setUpClass(cls):
        if shutil.which("gcc") is None:
            raise unittest.SkipTest("there is no gcc")
        source = servers.ROOT / "tests/e2e/backends/stream_backend.c"
        with mock.patch.dict(os.environ, {"CONCH_TEST_BACKENDS": str(compiled("stream", source))}):
            super().setUpClass()

    def ask(self, model, value, **parameters):
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [value]}], "parameters": parameters}
        status, _, reply = self.infer(body, model=model)
        reply = json.loads(reply)
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["outputs"][0]["data"], [value])
        return reply["parameters"]["taken_by"], reply["parameters"]["in_flight"]

    def test_batches_in_flight(self):
        found = []
        askers = [threading.Thread(target=lambda value=value: found.append(self.ask("plain", value))) for value in range(12)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(len(found), 12)
        if IS_TRITON:
            self.assertEqual(set(found), {("execute", 1)})
        else:
            self.assertEqual({taken_by for taken_by, _ in found}, {"enqueue"})
            depths = [in_flight for _, in_flight in found]
            # Two at first, and no more than the backend allows.
            self.assertIn(max(depths), (2, 3))
            self.assertGreaterEqual(sum(depth > 1 for depth in depths), 6, depths)
        self.assertEqual(self.server.statistics("plain")["execution_count"], 12)

    def test_different_sequences_overlap(self):
        found = []

        def run(sequence):
            for step in range(6):
                found.append(self.ask("oldest", step, sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 5)[1])
        askers = [threading.Thread(target=run, args=(sequence,)) for sequence in range(1, 7)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(len(found), 36)
        self.assertIn(max(found), (1,) if IS_TRITON else (2, 3))
        self.assertEqual(self.server.statistics("oldest")["execution_count"], 36)

    def test_direct_sequences_have_one(self):
        def run(sequence):
            for step in range(4):
                self.assertEqual(self.ask("sequences", step, sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 3)[1], 1)
        askers = [threading.Thread(target=run, args=(sequence,)) for sequence in (1, 2)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        self.assertEqual(self.server.statistics("sequences")["execution_count"], 8)


class StreamCase(IdentityCase):
    """Requests whose input lies in a body and whose output lies on the device, so that each is one copy of the device's."""

    names = itertools.count()

    def target(self):
        """Memory of the device for an output, and its region. Each has a name of its own: a request that a device hangs on keeps its
        region for good."""
        array, name = self.array(SMALL), f"out{next(self.names)}"
        self.registered(name, array)
        return array, region.part(name, 0, SMALL)

    def together(self, model, count):
        """Sends as many requests at once; returns the threads and their results, a (status, head) each."""
        targets = [self.target() for _ in range(count)]
        given = [content(SMALL, index) for index in range(count)]
        results = [None] * count

        def run(index):
            array, target = targets[index]
            status, head, _ = self.copy(model, given[index], target=target)
            results[index] = (status, head, array.read() == given[index] if status == 200 else None)
        askers = [threading.Thread(target=run, args=(index,)) for index in range(count)]
        for asker in askers:
            asker.start()
        return askers, results

    def state(self, model):
        rows = json.loads(self.server.post_json("/v2/repository/index", {})[1])
        row, = [row for row in rows if row["name"] == model]
        return row.get("state", ""), row.get("reason", "")


@conch_only
@needs_library("identity")
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class Overlap(StreamCase):
    """The next batch is on the stream before the device is done with the one before."""

    settings = {"devices": 1, "copy_us": 20_000}
    models = staticmethod(lambda repository: repository.model("gpu", on(0, single())))

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-streams-")
        cls.addClassCleanup(directory.cleanup)
        cls.file = pathlib.Path(directory.name) / "trace.json"
        cls.flags = (region.FLAG, f"--trace-config=triton,file={cls.file}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1",
                     "--trace-config=triton,log-frequency=1")
        super().setUpClass()

    def traces(self, count):
        """Times by name, of each traced request, in the order in which the device began them."""
        def read():
            by_id = {}
            # One file for each trace, whole once it is there.
            for path in self.file.parent.iterdir():
                for row in json.loads(path.read_text() or "[]"):
                    for stamp in row.get("timestamps", ()):
                        by_id.setdefault(row["id"], {})[stamp["name"]] = stamp["ns"]
            return {key: times for key, times in by_id.items() if STAGES[-1] in times and "COMPUTE_START" in times}
        until(lambda: len(read()) >= count, f"{count} traces are written")
        return sorted(read().values(), key=lambda times: times[STAGES[0]])

    def test_batches_overlap_and_stay_in_order(self):
        count = 12
        askers, results = self.together("gpu", count)
        for asker in askers:
            asker.join()
        self.assertEqual([result[0] for result in results], [200] * count, results)
        self.assertEqual([result[2] for result in results], [True] * count, "each answer has its bytes")
        traces = self.traces(count)
        for times in traces:
            stages = [times[name] for name in STAGES]
            self.assertEqual(stages, sorted(stages))
            # The server counts as computation what the device's clock calls so.
            self.assertEqual((times["COMPUTE_INPUT_END"], times["COMPUTE_OUTPUT_START"]), (stages[1], stages[2]))
            self.assertGreaterEqual(stages[0], times["COMPUTE_START"], "it was enqueued before the device began it")
            self.assertGreaterEqual(times["COMPUTE_END"], stages[3], "it was answered after the device was done")
        # One after the other on the device.
        for before, after in zip(traces, traces[1:]):
            self.assertGreaterEqual(after[STAGES[0]], before[STAGES[3]])
        # But on the stream before: enqueued while the one before was there.
        enqueued = [after["COMPUTE_START"] < before[STAGES[3]] for before, after in zip(traces, traces[1:])]
        self.assertGreaterEqual(sum(enqueued), count // 2, traces)
        # Each counts itself and those whose time on the stream its own begins in.
        in_flight = [sum(other["COMPUTE_START"] <= times["COMPUTE_START"] < other[STAGES[3]] for other in traces) for times in traces]
        self.assertLessEqual(max(in_flight), DEPTH_MAX, traces)
        self.assertGreaterEqual(max(in_flight), 2, traces)


@conch_only
@needs_library("identity")
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class Drain(StreamCase):
    """What is in flight and queued is answered before its model goes."""

    settings = {"devices": 1, "copy_us": 100_000}
    models = staticmethod(lambda repository: repository.model("gpu", on(0, single(count=2))))
    flags = (region.FLAG, "--model-control-mode=explicit", "--load-model=gpu")

    def test_unload_and_reload_with_batches_in_flight(self):
        for action in ("unload", "load"):
            with self.subTest(action=action):
                before = self.server.statistics("gpu")["execution_count"]
                askers, results = self.together("gpu", 8)
                until(lambda: self.server.statistics("gpu")["execution_count"] > before, "some are answered")
                self.assertEqual(self.server.post_json(f"/v2/repository/models/gpu/{action}", {})[0], 200)
                for asker in askers:
                    asker.join()
                self.assertEqual([(status, is_same) for status, _, is_same in results], [(200, True)] * 8, results)
                if action == "unload":
                    until_equal(lambda: self.state("gpu"), ("UNAVAILABLE", "unloaded"), "the state of the model")
                    self.assertEqual(self.server.post_json("/v2/repository/models/gpu/load", {})[0], 200)


@conch_only
@needs_library("identity")
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class Shared(StreamCase):
    """All models of a GPU that keep batches in flight are driven by one thread, while there are any. On a machine that is very busy it may
    seem blocked in one model's turn; then that model has another, and never each its own."""

    settings = {"devices": 1, "copy_us": 20_000}
    names_of_models = ("one", "two", "three")
    models = staticmethod(lambda repository: [repository.model(name, on(0, single())) for name in Shared.names_of_models])
    flags = (region.FLAG, "--model-control-mode=explicit", *(f"--load-model={name}" for name in names_of_models))

    def core_count(self):
        return sum(name == "gpu-0-core" for _, name in threads_of(self.server.pid))

    def test_one_thread_for_all_models_while_there_are_any(self):
        until_equal(self.core_count, 1, "the cores of the GPU")
        running = [self.together(name, 4) for name in self.names_of_models]
        for askers, results in running:
            for asker in askers:
                asker.join()
            self.assertEqual([(status, is_same) for status, _, is_same in results], [(200, True)] * 4, results)
        self.assertIn(self.core_count(), (1, 2))
        one, *others = self.names_of_models
        for name in others:
            askers, results = self.together(one, 2)
            self.assertEqual(self.server.post_json(f"/v2/repository/models/{name}/unload", {})[0], 200)
            for asker in askers:
                asker.join()
            self.assertEqual([status for status, _, _ in results], [200] * 2, results)
            self.assertGreaterEqual(self.core_count(), 1)
        self.assertEqual(self.server.post_json(f"/v2/repository/models/{one}/unload", {})[0], 200)
        until_equal(self.core_count, 0, "the cores of the GPU")
        self.assertEqual(self.server.post_json(f"/v2/repository/models/{one}/load", {})[0], 200)
        self.assert_repeats(one, content(SMALL))
        until_equal(self.core_count, 1, "the cores of the GPU")


def hanging(repository):
    timeout = {"CONCH_EXECUTION_TIMEOUT_SECONDS": "1"}
    repository.model("hangs", on(0, single(parameters=timeout)))
    repository.model("sequences", on(0, single(parameters=timeout, extra="sequence_batching { }\n")))
    repository.model("again", on(0, single(parameters={**timeout, "CONCH_RELOADS_MAX": "1"})))
    repository.model("step", on(0, single(parameters=timeout)))
    repository.model("inner", chain("step"))
    repository.model("outer", chain("inner"))
    repository.model("cpu", single())


@conch_only
@needs_library("identity")
@unittest.skipIf(cuda.IS_REAL, "has the delay of the double")
class Hang(StreamCase):
    """Work that does not end in time: its requests get an error, its model serves no more, nothing else waits."""

    settings = {"devices": 1, "copy_us": 4_000_000}
    models = staticmethod(hanging)
    flags = (region.FLAG, "--model-control-mode=explicit", "--load-model=*")
    REASON = "instance 'hangs_0_0' is out of service: an execution did not end on its device within 1 s"

    def test_a_device_that_hangs(self):
        askers, results = self.together("hangs", 3)
        until(lambda: self.server.get("/v2/models/hangs/ready")[0] != 200, "the model is not ready")
        for asker in askers:
            asker.join()
        # Two were on the device, and one waited.
        self.assertEqual(sorted(status for status, _, _ in results), [500, 500, 503], results)
        self.assertEqual({head["error"] for _, head, _ in results}, {self.REASON})
        self.assertEqual(self.state("hangs"), ("UNAVAILABLE", f"Unavailable: {self.REASON}"))
        status, head, _ = self.copy("hangs", b"abc")
        self.assertEqual((status, head["error"]), (503, self.REASON))
        self.assertEqual(self.server.get("/v2/health/ready")[0], 400)
        self.assert_repeats("cpu", b"abc")
        # Its files are as they were, and yet it is made anew; then the old instance is left aside for good.
        self.assertEqual(self.server.post_json("/v2/repository/models/hangs/load", {})[0], 200)
        self.assertEqual(self.state("hangs"), ("READY", ""))
        self.assertEqual(self.server.get("/v2/models/hangs/ready")[0], 200)
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
        self.assert_repeats("hangs", b"abc")
        self.assertEqual(self.server.post_json("/v2/repository/models/hangs/unload", {})[0], 200)
        until_equal(lambda: self.state("hangs"), ("UNAVAILABLE", "unloaded"), "the state of the model")
        self.assert_repeats("cpu", b"abc")
        # The copies end after all, into memory that is still theirs.
        time.sleep(4)
        self.assert_repeats("cpu", content(1 << 20))

    def test_a_sequence_on_a_device_that_hangs(self):
        _, target = self.target()
        ask = lambda: self.copy("sequences", content(SMALL), target=target, parameters={"sequence_id": 7, "sequence_start": True})
        status, head, _ = ask()
        self.assertEqual((status, head["error"]), (500, self.REASON.replace("hangs", "sequences")))
        self.assertEqual(ask()[0], 503)
        self.assertEqual(self.server.post_json("/v2/repository/models/sequences/unload", {})[0], 200)
        until_equal(lambda: self.state("sequences"), ("UNAVAILABLE", "unloaded"), "the state of the model")

    def test_ensembles_around_a_step_that_hangs(self):
        _, target = self.target()
        source = {"shared_memory_region": target["shared_memory_region"], "shared_memory_byte_size": SMALL}
        status, head, _ = self.copy("outer", source=source, shape=[SMALL])
        reason = self.REASON.replace("hangs", "step")
        self.assertEqual((status, head["error"]), (500, f"in ensemble 'outer', in ensemble 'inner', {reason}"))
        # Nobody waits for the request, though its memory stays.
        for model in ("outer", "inner", "step"):
            self.assertEqual(self.server.post_json(f"/v2/repository/models/{model}/unload", {})[0], 200)
            until_equal(lambda: self.state(model), ("UNAVAILABLE", "unloaded"), f"the state of {model}")

    def test_a_model_is_loaded_again_as_often_as_it_says(self):
        _, target = self.target()
        ask = lambda: self.copy("again", content(SMALL), target=target)
        self.assertEqual(ask()[0], 500)
        until_equal(lambda: self.state("again"), ("READY", ""), "the state of the model")
        self.assert_repeats("again", b"abc")
        self.assertEqual(ask()[0], 500)
        reason = self.REASON.replace("hangs", "again")
        until_equal(lambda: self.state("again"), ("UNAVAILABLE", f"Unavailable: {reason}"), "the state of the model")
        until(lambda: "model 'again' is not loaded again by itself: CONCH_RELOADS_MAX is 1" in self.server.output, "the log says why")
        self.assertEqual(self.server.post_json("/v2/repository/models/again/unload", {})[0], 200)
