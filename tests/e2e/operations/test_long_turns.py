"""Turns of network threads that last for a millisecond or longer, counted by cause. Each test makes some of a known cause, until the metrics tell."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

import onnx_model
from case import ServerCase, conch_only, needs_library
from exposition import check_by_promtool, check_families
from repository import identity, tensors
from waiting import until

COUNT, DURATION = "conch_shard_long_turns_total", "conch_shard_long_turn_seconds_total"
# Of the loop of the model: some milliseconds of computation.
TURNS_MANY = 10_000


def counting_config():
    """A model that the shard may execute itself, however long that takes."""
    return ('backend: "onnxruntime"\nmax_batch_size: 0\n' + tensors("input", [("X", "FP32", (-1, 1))]) + tensors("output", [("Y", "FP32", (-1, 1))])
            + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
            + 'parameters { key: "CONCH_INLINE" value { string_value: "true" } }\n')


def request(name, shape, value):
    return json.dumps({"inputs": [{"name": name, "datatype": "FP32", "shape": shape, "data": [value]}]})


class LongTurnCase(ServerCase):
    flags = ("--shards=1", "--shard-affinity=pinned")

    @staticmethod
    def models(repository):
        repository.model("identity", identity())

    def told(self):
        """How many long turns there were, and how long they were together in microseconds, by cause; the shard is the first."""
        families = {COUNT: {}, DURATION: {}}
        for name, value in self.server.metrics().items():
            if match := re.fullmatch(r'(\w+)\{shard="0",cause="(\w+)"\}', name):
                families[match[1]][match[2]] = value
        return families[COUNT], families[DURATION]

    def connect(self):
        host, port = self.server.http.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self.addCleanup(connection.close)
        return connection

    def infer(self, connection, model, body):
        connection.request("POST", f"/v2/models/{model}/infer", body)
        answer = connection.getresponse()
        content = answer.read()
        self.assertEqual(answer.status, 200, content)
        return json.loads(content)["outputs"][0]["data"]

    def keep_busy(self, count):
        """Asks for as much as the shard serves, on so many connections, until the end of the test."""
        is_over = threading.Event()
        body = request("INPUT0", [1], 7)

        def ask(connection):
            while not is_over.is_set():
                self.infer(connection, "identity", body)

        threads = [threading.Thread(target=ask, args=(self.connect(),)) for _ in range(count)]

        def end():
            is_over.set()
            for thread in threads:
                thread.join()

        self.addCleanup(end)
        for thread in threads:
            thread.start()

    def wait_for(self, cause, provoke):
        """Provokes turns of that cause until one is told, with its duration."""
        def is_told():
            provoke()
            return self.told()[0].get(cause, 0) > 0
        until(is_told, lambda: f"a long turn of cause {cause}; there are {self.told()}", 120)
        counts, durations = self.told()
        for each, count in counts.items():
            self.assertGreaterEqual(durations[each], 0.000999 * count, (counts, durations))


@conch_only
class Stopped(LongTurnCase):
    def test_a_process_that_is_stopped(self):
        """It sleeps inside of a turn, as far as the system counts; where others want the CPU it is as likely told as one that lost it."""
        self.keep_busy(1)

        def stop_for_a_while():
            os.kill(self.server.pid, signal.SIGSTOP)
            time.sleep(0.005)  # the test itself: how long the turn lasts
            os.kill(self.server.pid, signal.SIGCONT)
            time.sleep(0.002)  # turns pass, so that the next is cut elsewhere
        self.wait_for("suspended", stop_for_a_while)
        # These families are on the page from now on, for a collector to read.
        _, page = self.server.get("/metrics", port="metrics")
        self.assertIn(COUNT, check_families(page.decode()))
        if shutil.which("promtool"):
            check_by_promtool(page.decode())


@conch_only
class Preempted(LongTurnCase):
    def test_a_cpu_that_others_want(self):
        """Busy loops on the shard's own CPU: it loses the CPU when its time slice is used up, in the middle of a turn."""
        tasks = pathlib.Path(f"/proc/{self.server.pid}/task").iterdir()
        [shard] = [task for task in tasks if (task / "comm").read_text().startswith("shard-0")]
        [home] = re.search(r"^Cpus_allowed_list:\s*(\d+)$", (shard / "status").read_text(), re.MULTILINE).groups()
        program = f"import os; os.sched_setaffinity(0, [{home}])\nwhile True: pass"
        for _ in range(2):
            loop = subprocess.Popen([sys.executable, "-c", program])
            self.addCleanup(loop.wait)
            self.addCleanup(loop.kill)
        self.keep_busy(8)
        self.wait_for("not_scheduled", lambda: time.sleep(0.1))  # the busy connections provoke
        waited = until(lambda: self.server.metrics().get('conch_shard_cpu_wait_seconds_total{shard="0"}', 0), "the time for which the shard waited")
        self.assertGreater(waited, 0)


@conch_only
@needs_library("onnxruntime")
class Inline(LongTurnCase):
    @staticmethod
    def models(repository):
        repository.model("counting", counting_config(), files={"1/model.onnx": onnx_model.counting()})

    def test_a_model_that_a_shard_executes(self):
        connection = self.connect()
        tasks = pathlib.Path(f"/proc/{self.server.pid}/task").iterdir()
        # Threads that it started have its name.
        core = min((task for task in tasks if (task / "comm").read_text().strip() == "counting_0_0"), key=lambda task: int(task.name))

        def is_left_alone():
            """A short request, of which the instance's own thread heard nothing."""
            def sleeps():
                return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (core / "status").read_text(), re.MULTILINE)[1])
            before = sleeps()
            self.assertEqual(self.infer(connection, "counting", request("X", [1, 1], 1)), [2])
            return sleeps() == before

        def execute():
            # After an execution that took long the shard leaves many to that thread.
            until(is_left_alone, "the shard executes by itself", 60)
            self.assertEqual(self.infer(connection, "counting", request("X", [1, 1], TURNS_MANY)), [2 * TURNS_MANY])
        self.wait_for("inline_execution", execute)


if __name__ == "__main__":
    unittest.main()
