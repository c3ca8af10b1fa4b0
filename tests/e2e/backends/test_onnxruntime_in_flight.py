"""The onnxruntime backend on GPUs leaves its runs on their streams: batches overlap, in order, and nothing leaves or is freed early.

Device and execution providers are the doubles of test_onnxruntime_gpu. Their record tells when a run is enqueued and when its stream has
computed it: what is between is in flight."""

import concurrent.futures
import contextlib
import queue
import threading
import unittest

import numpy
import tritonclient.grpc as grpcclient

import cuda
import onnx_faults
import onnx_model
from framework import parameters
from onnx_model import STRING
from region import part
from repository import tensors
from test_batch_tensors import CONFIG as RAGGED, shown
from test_onnxruntime_gpu import BACKEND, PAIRS, ROWS, OnnxGpuCase, accelerated, on_gpu, times
from waiting import until

BATCHING = BACKEND + "max_batch_size: 8\n" + ROWS
KEEPS = "instance '{}_0_{}' keeps up to {} batches in flight on GPU {}"
BLOCKS = "instance '{}_0_{}' executes one batch at a time on GPU {}"


class InFlightCase(OnnxGpuCase):
    """Runs that take a while on their stream."""

    orders = "run_us=30000"

    def events(self):
        """Starts (+1) and ends (-1) of runs that were left on their streams, in order."""
        entries = self.told("run", "computed")
        return [1 if entry["event"] == "run" else -1 for entry in entries if entry["event"] == "computed" or entry["enqueued"]]

    def most_in_flight(self, events):
        count = most = 0
        for event in events:
            count += event
            most = max(most, count)
        self.assertEqual(count, 0, "all that began has ended")
        return most

    def crowd(self, model, clients=6, turns=4):
        """Clients at once, whose rows tell them apart."""
        def ask(number):
            for turn in range(turns):
                self.assert_times(model, numpy.full((1 + number % 3, 4), 100 * number + turn, numpy.float32))
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            list(pool.map(ask, range(clients)))


class Overlap(InFlightCase):
    """How many batches are on a stream at a time."""

    @staticmethod
    def models(repository):
        for name, config in (("two", on_gpu()), ("three", on_gpu() + parameters(batches_in_flight=3)), ("far", on_gpu(1)),
                             ("one", on_gpu() + parameters(batches_in_flight=1))):
            repository.model(name, BATCHING + config, files={"1/model.onnx": onnx_faults.SOUND})

    def test_batches_are_enqueued_while_others_run(self):
        for model, depth in (("two", 2), ("three", 3), ("far", 2)):
            with self.subTest(model):
                begun = len(self.events())
                self.crowd(model)
                events = until(lambda: self.events(), "the ends of all runs", 10, lambda found: len(found) == begun + 48)[begun:]
                most = self.most_in_flight(events)
                self.assertGreaterEqual(most, 2, "a batch is enqueued while the one before runs")
                self.assertLessEqual(most, depth)

    def test_one_at_a_time_where_the_configuration_says_so(self):
        begun = len(self.told("run"))
        self.crowd("one", clients=3, turns=2)
        runs = self.told("run")[begun:]
        self.assertEqual([run["enqueued"] for run in runs], [False] * 6)

    def test_threads(self):
        """Each instance has a thread that made it. Those that enqueue are driven by that of their GPU, those that block by their own."""
        def threads(name):
            """State and waits of each instance's thread."""
            found = {}
            for row in self.server.threads().splitlines():
                thread, own_name, *_, state, _, waits, _ = row.split()
                # Threads of the engine have the name of the one that made them, which came first.
                if own_name.startswith(f"{name}_") and int(thread) < found.get(own_name, (1 << 30,))[0]:
                    found[own_name] = int(thread), state, int(waits.strip("[',"))
            self.assertEqual(len(found), 3, self.server.threads())
            return list(found.values())

        def waits(name):
            """How often they waited, once they wait: those that have just made an instance may be on their way."""
            found = until(lambda: threads(name), "all of them wait", 20, lambda found: all(state == "S" for _, state, _ in found))
            return sum(count for *_, count in found)
        for name, config, works in (("sharing", "", False), ("blocking", parameters(batches_in_flight=1), True)):
            self.serve(name, BATCHING + on_gpu(count=3) + config)
            before = waits(name)
            self.crowd(name, clients=4, turns=2)
            self.assertEqual(waits(name) > before, works, name)


class Departures(InFlightCase):
    """Models and clients that go while batches are in flight. Nothing is left behind, so no model stays whose last batch is kept."""

    def assert_unloads(self, name):
        """Unloads the model, whose session ends without a tensor of any run."""
        ended = len(self.told("session_end"))
        self.assertEqual(self.server.post_json(f"/v2/repository/models/{name}/unload", {})[0], 200)
        gone = until(lambda: self.told("session_end")[ended:], "the session ends")
        self.assertEqual([(session["live_bindings"], session["live_values"]) for session in gone], [(0, 0)])

    def test_a_model_goes_with_batches_in_flight(self):
        """Each request has its answer, or is refused since the model is gone."""
        for _ in range(3):
            self.serve("leaving", BATCHING + on_gpu())
            answers = []

            def ask(number):
                with contextlib.suppress(ConnectionError):
                    answers.append((number, *self.send("leaving", numpy.full((2, 4), number, numpy.float32))))
            begun = len(self.told("run"))
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            until(lambda: self.told("run")[begun + 1:], "runs are enqueued")
            self.assert_unloads("leaving")
            for thread in threads:
                thread.join(30)
            self.assertEqual(len(answers), 8)
            for number, status, head, output in answers:
                if status == 200:
                    numpy.testing.assert_array_equal(numpy.frombuffer(output, numpy.float32), [0, number, 2 * number, 3 * number] * 2)
                else:
                    self.assertIn("leaving", head["error"])

    def test_clients_go_with_batches_in_flight(self):
        """What is enqueued for them is computed, into memory that stays until then, and others have their answers."""
        self.serve("left", BATCHING + on_gpu() + parameters(batches_in_flight=3))
        begun = len(self.events())
        rows = numpy.full((2, 4), 7, numpy.float32)
        given = grpcclient.InferInput("X", [2, 4], "FP32").set_data_from_numpy(rows)
        outcomes = queue.Queue()
        client = self.client(grpcclient)
        calls = [client.async_infer("left", [given], lambda result, error: outcomes.put((result, error))) for _ in range(6)]
        until(lambda: self.events()[begun:], "a run is enqueued")
        for call in calls:
            call.cancel()
        self.crowd("left", clients=3, turns=2)
        for result, error in [outcomes.get(timeout=10) for _ in calls]:
            if error is None:
                numpy.testing.assert_array_equal(result.as_numpy("Y"), times(rows))
            else:
                self.assertEqual(error.status(), "StatusCode.CANCELLED")
        until(self.events, "the ends of all runs", 10, lambda found: sum(found) == 0)
        self.assertEqual({run["error"] for run in self.told("computed")}, {None})
        self.assert_unloads("left")


class HeldMemory(InFlightCase):
    """Copies that take longer than runs: the outputs of a batch are copied while the next ones are computed."""

    orders = "run_us=2000"
    settings = {"devices": 2, "copy_us": 15_000}

    @staticmethod
    def models(repository):
        repository.model("times", BATCHING + on_gpu(), files={"1/model.onnx": onnx_faults.SOUND})
        repository.model("joined", BATCHING + "dynamic_batching { max_queue_delay_microseconds: 5000 }\n" + on_gpu(),
                         files={"1/model.onnx": onnx_faults.SOUND})
        repository.model("whole", PAIRS, files={"1/model.onnx": onnx_model.pairs()})

    def test_answers_are_those_of_their_batch(self):
        for model in ("times", "joined"):
            self.crowd(model, clients=8, turns=6)

    def test_regions_are_read_and_written_in_place(self):
        arrays, targets = ([self.array(32) for _ in range(6)] for _ in range(2))
        for number, (given, target) in enumerate(zip(arrays, targets)):
            self.registered(f"in{number}", given)
            self.registered(f"out{number}", target)

        def ask(number):
            for turn in range(4):
                rows = numpy.full((2, 4), 10 * number + turn, numpy.float32)
                arrays[number].write(rows.tobytes())
                self.assert_times("times", rows, part(f"in{number}", 0, 32), part(f"out{number}", 0, 32), targets[number])
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, range(6)))
        self.assertTrue(all(run["outputs"][0][1] == "device given" for run in self.told("run")[-24:]))

    def test_a_size_that_is_known_after_the_run(self):
        def ask(number):
            rows = numpy.full((4, 4), number, numpy.float32)
            for _ in range(3):
                status, head, output = self.send("whole", rows)
                self.assertEqual((status, numpy.frombuffer(output, numpy.float32).tolist()), (200, [0.25] * 16), head)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))


class Which(InFlightCase):
    """What an instance says of itself when it is made."""

    orders = ""

    def said(self, name, config, count=1, model=onnx_faults.SOUND):
        """So many lines."""
        self.assertEqual(self.load(name, config, model), (200, None))

        def lines():
            found = self.server.output.splitlines()
            return [line for line in found if f"instance '{name}_0_" in line and ("in flight" in line or "at a time" in line)]
        return until(lines, "the lines of all instances", 10, lambda found: len(found) == count)

    def test_what_keeps_batches_in_flight(self):
        for name, config, expected in (
                ("plain", BATCHING + on_gpu(), [KEEPS.format("plain", 0, 2, 0)]),
                ("pair", BATCHING + on_gpu(1, 2), [KEEPS.format("pair", number, 2, 1) for number in range(2)]),
                ("deep", BATCHING + on_gpu() + parameters(batches_in_flight=4), [KEEPS.format("deep", 0, 4, 0)]),
                ("tensorrt", BATCHING + on_gpu() + accelerated(("tensorrt", {})), [KEEPS.format("tensorrt", 0, 2, 0)]),
                ("cpu", BATCHING + "instance_group { kind: KIND_CPU }\n", [])):
            with self.subTest(name):
                lines = self.said(name, config, len(expected))
                for line, words in zip(sorted(lines, key=lambda line: line.partition("instance '")[2]), expected):
                    self.assertIn(words, line)
                self.assert_times(name, [[1, 2, 3, 4]])

    def test_what_executes_one_at_a_time(self):
        strings = BACKEND + tensors("input", [("X", "STRING", (-1,))]) + tensors("output", [("Y", "STRING", (-1,))]) + on_gpu()
        echo = onnx_model.model([("X", STRING, ("n",))], [("Y", STRING, ("n",))], [onnx_model.node("Identity", ["X"], ["Y"])])
        shrinks = 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }\n'
        cases = (
            ("set", BATCHING + on_gpu() + parameters(batches_in_flight=1), onnx_faults.SOUND, "batches_in_flight is 1"),
            ("texts", strings, echo, "input 'X' is of BYTES, which is in main memory"),
            ("told", RAGGED.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: [ 0 ]"), shown(), "describes the batch, and is in main memory"),
            ("graphs", BATCHING + on_gpu() + accelerated(("cuda", {"enable_cuda_graph": 1})), onnx_faults.SOUND, "it replays CUDA graphs"),
            ("streams", BATCHING + on_gpu() + accelerated(("cuda", {"do_copy_in_default_stream": 0})), onnx_faults.SOUND, "do_copy_in_default_stream is 0"),
            ("shrinks", BATCHING + on_gpu() + shrinks, onnx_faults.SOUND, "memory.enable_memory_arena_shrinkage gives memory back after each run"))
        for name, config, model, reason in cases:
            with self.subTest(name):
                line, = self.said(name, config, 1, model)
                self.assertIn(BLOCKS.format(name, 0, 0) + ": ", line)
                self.assertIn(reason, line)
        self.assert_times("graphs", [[1, 2, 3, 4]])
        self.assertFalse(any(run["enqueued"] for run in self.told("run")))

    def test_numbers_that_cannot_be(self):
        for value in (0, 5, "some"):
            self.assertIn("batches_in_flight", self.refused(f"bad{value}", BATCHING + on_gpu() + parameters(batches_in_flight=value)))


class OperatorsOnTheCpu(InFlightCase):
    """Graphs that go to the CPU and back within."""

    orders = "copies=3;partitioned=1"

    def test_they_are_waited_for(self):
        self.serve("mixed", BATCHING + on_gpu())
        self.server.wait_for_text(BLOCKS.format("mixed", 0, 0) + ": ONNX Runtime has 3 copies between the GPU and operators on the CPU within its graph")
        self.serve("parts", BATCHING + on_gpu() + accelerated(("tensorrt", {})))
        self.server.wait_for_text(BLOCKS.format("parts", 0, 0) + ": TensorRT does not run its whole graph")
        # What the instances of a model do is told by the first session, which is too late for their threads.
        self.serve("many", BATCHING + on_gpu(count=2))
        self.server.wait_for_text(BLOCKS.format("many", 1, 0) + ", in turn with others of its model there, unless batches_in_flight is 1: ")
        for model in ("mixed", "parts", "many"):
            self.crowd(model, clients=3, turns=2)
        self.assertFalse(any(run["enqueued"] for run in self.told("run")))


class Faults(InFlightCase):
    """What fails on the stream fails its batch."""

    orders = "run_us=1000"

    @classmethod
    def setUpClass(cls):
        cls.faults = cuda.FaultFile.of_class(cls)
        cls.environment = cls.faults.environment
        super().setUpClass()

    models = staticmethod(lambda repository: [repository.model(name, BATCHING + on_gpu(device), files={"1/model.onnx": onnx_faults.SOUND})
                                              for name, device in (("near", 0), ("far", 1))])

    def test_a_batch_fails_and_the_next_does_not(self):
        for fault in ("host_function:0:1:1", "copy:0:1:1", "cuMemcpyAsync:0:1:1", "cuMemcpyAsync:1:1:1", "cuEventQuery:0:1:1", "cuEventRecord:0:1:1",
                      "cuLaunchHostFunc:0:1:1"):
            with self.subTest(fault):
                with self.faults.failing(fault):
                    status, head, _ = self.send("near", [[1, 2, 3, 4]])
                    self.assertEqual(status, 500, head)
                    self.assertRegex(head["error"], "CUDA_ERROR_INVALID_VALUE|CUDA failure 1:")
                self.assert_times("near", [[1, 2, 3, 4]])

    def test_a_device_breaks_under_a_run(self):
        with self.faults.failing("host_function:0:1:700"):
            for _ in range(3):
                status, head, _ = self.send("near", [[1, 2, 3, 4]])
                self.assertEqual(status, 500, head)
                self.assertRegex(head["error"], "CUDA_ERROR_ILLEGAL_ADDRESS|CUDA failure 700")
            self.assert_times("far", [[1, 2, 3, 4]])
        self.assert_times("near", [[1, 2, 3, 4]])

    def test_a_request_that_is_wrong_fails_alone(self):
        """Of batches at once, those that cannot be enqueued fail, and the others are answered."""
        self.serve("pairs", PAIRS, onnx_model.pairs())

        def ask(number):
            for _ in range(6):
                rows = numpy.ones((2 + number % 2, 4), numpy.float32)
                status, head, _ = self.send("pairs", rows)
                self.assertEqual(status, 500 if number % 2 else 200, head)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))


if __name__ == "__main__":
    unittest.main()
