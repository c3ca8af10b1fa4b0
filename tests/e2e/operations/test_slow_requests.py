"""`--slow-request-us`: a line for each slow inference, with the time that its stages took."""

import concurrent.futures
import json
import re
import time
import unittest

import grpc
import numpy
import tritonclient.grpc as grpcclient

import server as servers
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity
from test_ensembles import chain, ensemble
from test_stream import REPEAT, Call, repeat
from waiting import until

FLOATS = [("INPUT0", "FP32", (-1,))]
DELAY_US = 150_000
EXECUTED = ["check", "inbox", "batch_wait", "execute", "input", "infer", "output", "return", "encode", "write"]
# What lies within another stage.
PARTS = {"input", "infer", "output"}


def body(request_id="", **more):
    return {"id": request_id, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}], **more}


class Slow(ServerCase):
    flags = ("--slow-request-us=100000",)

    @staticmethod
    def models(repository):
        delay = {"execute_delay_ms": str(DELAY_US // 1000)}
        repository.model("quick", identity(FLOATS, batch=4))
        repository.model("slow", identity(FLOATS, batch=4, parameters=delay, extra="dynamic_batching { max_queue_delay_microseconds: 20000 }"))
        repository.model("impatient", identity(FLOATS, batch=4, parameters=delay, extra="""dynamic_batching {
            default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 110000 } }"""))
        repository.model("pair", ensemble(chain("quick", "slow"), batch=4))
        repository.model("repeat", REPEAT)

    def line(self, request_id, server=None):
        """The line about that request, once it was written: its text and the numbers in it."""
        prefix = f"[request id: {request_id}] slow request: "
        lines = (server or self.server).lines
        text = until(lambda: next((line.split(prefix)[1].rstrip('"') for line in list(lines) if prefix in line), None), f"a line of {request_id}")
        return text, self.durations(text.split(" steps=[")[0])

    @staticmethod
    def durations(text):
        return {name: int(value) for name, value in re.findall(r"(\w+)_us=(\d+)", text)}

    def assert_adds_up(self, found):
        """The stages follow each other, so their times are the whole but for what was cut off each."""
        parts = sum(value for name, value in found.items() if name != "total" and name not in PARTS)
        self.assertLessEqual(parts, found["total"])
        self.assertGreater(parts, found["total"] * 0.9, found)


@conch_only
@needs_library("identity")
@needs_library("repeat")
class Lines(Slow):
    def test_over_http(self):
        self.assertEqual(self.infer(body("h1"), model="slow")[0], 200)
        text, found = self.line("h1")
        self.assertEqual(list(found), ["total", "read", "decode", *EXECUTED])
        self.assertGreaterEqual(found["execute"], DELAY_US)
        self.assert_adds_up(found)
        self.assertRegex(text, r"^total_us=\d+ model=slow version=1 outcome=ok read_us=.* batch_size=1 instance=slow_0_0$")

    def test_over_grpc(self):
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(numpy.ones((1, 2), numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            # What a call waits for its request is not the request's.
            client.infer("slow", [tensor], request_id="g1")
        text, found = self.line("g1")
        self.assertEqual(list(found), ["total", "read", "decode", *EXECUTED])
        self.assertGreaterEqual(found["execute"], DELAY_US)
        self.assert_adds_up(found)
        self.assertIn("model=slow version=1 outcome=ok", text)

    def test_a_stream_counts_from_its_request_to_its_last_response(self):
        with grpc.insecure_channel(self.server.grpc) as channel:
            call = Call(channel)
            # What the call waits for its request is not the request's.
            time.sleep(0.5)
            call.send(repeat("s1", [1, 2, 3], [0, 60, 60])).end()
            self.assertEqual(len(call.rest()), 3)
        found = self.line("s1")[1]
        self.assertGreaterEqual(found["total"], 120_000)
        self.assertLess(found["read"], 500_000)

    def test_generate(self):
        request = {"id": "n1", "INPUT0": 5.0}
        status, reply = self.server.post_json("/v2/models/slow/generate", request)
        self.assertEqual(status, 200, reply)
        self.assertGreaterEqual(self.line("n1")[1]["execute"], DELAY_US)

    def test_a_batch(self):
        with self.server.telling_states(), concurrent.futures.ThreadPoolExecutor(5) as pool:
            # One executes, the others wait for it and go together.
            first = pool.submit(self.infer, body("b0"), model="slow")
            self.server.wait_for_state("b0", "EXECUTING")
            others = [pool.submit(self.infer, body(f"b{index}"), model="slow") for index in range(1, 4)]
            self.assertEqual({each.result()[0] for each in [first, *others]}, {200})
        texts = [self.line(f"b{index}") for index in range(1, 4)]
        self.assertEqual({re.search(r"batch_size=(\d+)", text)[1] for text, _ in texts}, {"3"})
        for _, found in texts:
            self.assertGreater(found["batch_wait"], 0)

    def test_an_ensemble_tells_of_its_steps(self):
        self.assertEqual(self.infer(body("e1"), model="pair")[0], 200)
        text, found = self.line("e1")
        self.assertGreaterEqual(found["execute"], DELAY_US)
        self.assert_adds_up(found)
        quick, slow = re.search(r" steps=\[quick (.*), slow (.*)\]$", text).groups()
        self.assertGreaterEqual(self.durations(slow)["execute"], DELAY_US)
        self.assertLess(self.durations(quick)["execute"], found["total"] - DELAY_US)
        self.assertTrue(slow.endswith("batch_size=1 instance=slow_0_0"), slow)

    def test_refused_while_it_waited(self):
        with self.server.telling_states(), concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(self.infer, body("r0"), model="impatient")
            self.server.wait_for_state("r0", "EXECUTING")
            second = pool.submit(self.infer, body("r1"), model="impatient")
            self.assertEqual([first.result()[0], second.result()[0]], [200, 503])
        text, found = self.line("r1")
        self.assertIn("outcome=Unavailable", text)
        self.assertNotIn("execute", found)
        self.assertNotIn("instance=", text)
        self.assertGreaterEqual(found["batch_wait"] + found["inbox"], 100_000)

    def test_quick_requests_are_not_told(self):
        for _ in range(20):
            self.assertEqual(self.infer(body("q1"), model="quick")[0], 200)
        self.assertEqual(self.infer(body("q2"), model="slow")[0], 200)
        self.line("q2")
        # A machine that stops for a tenth of a second makes them slow.
        told = [line for line in self.server.lines if "[request id: q1]" in line]
        for line in told:
            self.assertGreaterEqual(self.durations(line)["total"], 100_000)
        self.assertLess(len(told), 20)


@conch_only
@needs_library("identity")
class Settings(unittest.TestCase):
    def server(self, *flags):
        repository = Repository()
        self.addCleanup(repository.close)
        repository.model("quick", identity(FLOATS, batch=4))
        return servers.Server(repository.path, *flags)

    def test_lines_are_bounded(self):
        with self.server("--slow-request-us=1") as server:
            self.ask_many(server)

    def ask_many(self, server):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda index: server.post_json("/v2/models/quick/infer", body(f"f{index}"))[0], range(3000)))
        self.assertEqual(set(replies), {200})
        time.sleep(1.1)
        self.assertEqual(server.post_json("/v2/models/quick/infer", body("last"))[0], 200)
        last = until(lambda: next((line for line in list(server.lines) if "[request id: last]" in line), None), "the last")
        lines = [line for line in server.lines if "slow request: " in line]
        told = sum(int(count) for line in lines for count in re.findall(r"\((\d+) slow requests before it were not logged\)", line))
        self.assertIn("model=quick", last)
        self.assertEqual(len(lines) + told, 3001, "each is logged or counted")

    def test_in_json_and_beside_a_trace(self):
        with self.server("--slow-request-us=1", "--log-format=json", "--trace-config=triton,file=/dev/null", "--trace-config=rate=1",
                         "--trace-config=level=TIMESTAMPS") as server:
            self.assertEqual(server.post_json("/v2/models/quick/infer", body("j1"))[0], 200)
            line = until(lambda: next((line for line in list(server.lines) if "slow request: " in line), None), "the line")
        found = json.loads(line)
        self.assertEqual((found["level"], found["request_id"], found["model"]), ("WARNING", "j1", "quick"))
        self.assertRegex(found["message"], r"^\[request id: j1\] slow request: total_us=.* trace_id=1$")

    def test_off_by_default(self):
        for flags in ([], ["--slow-request-us=0"]):
            with self.server(*flags) as server:
                self.assertEqual(server.post_json("/v2/models/quick/infer", body("o1"))[0], 200)
            self.assertFalse([line for line in server.lines if "slow request" in line])


if __name__ == "__main__":
    unittest.main()
