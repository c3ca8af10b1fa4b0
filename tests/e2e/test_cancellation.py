"""Clients that give up: what becomes of their requests while these wait and while they execute, and of everybody else's."""

import concurrent.futures
import queue
import time
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import wire
from case import ServerCase, conch_only, needs_library
from probe import Record, probe

# How long an execution waits for a cancel, and within which time it must see one.
PATIENCE, NOTICE = 1.5, 0.75
NUMBERS = numpy.arange(4, dtype=numpy.int32).reshape(1, 4)


def inputs(module, array=NUMBERS):
    tensor = module.InferInput("INPUT0", list(array.shape), "INT32")
    tensor.set_data_from_numpy(array)
    return [tensor]


@conch_only
@needs_library("probe")
class Cancellation(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = (cls.record.flag,)
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        patience = int(PATIENCE * 1000)
        repository.model("alone", probe(batch=1, await_cancel_ms=patience))
        repository.model("pairs", probe(batch=2, await_cancel_ms=patience, extra="dynamic_batching { preferred_batch_size: 2 "
                                        "max_queue_delay_microseconds: 5000000 }\n"))
        repository.model("ordered", probe(batch=1, count=2, await_cancel_ms=patience, extra="dynamic_batching { preserve_ordering: true }\n"))

    def setUp(self):
        self.rpc = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(self.rpc.close)
        self.answers = queue.Queue()
        self.executed = self.count("begin", "Execute")
        self.seen = self.count("begin", "SeeCancel")

    def count(self, edge, call):
        return len([event for event in self.record.events(call) if event.edge == edge])

    def submit(self, model, array=NUMBERS, **more):
        """A request by upstream's client; its answer goes into the queue."""
        return self.rpc.async_infer(model, inputs(grpcclient, array), lambda result, error: self.answers.put((result, error)), **more)

    def post(self, model):
        """A request on an HTTP connection that the caller can close."""
        link = wire.connect(self.server)
        value = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [0, 1, 2, 3]}]}
        link.sendall(wire.infer_json(value, b"", f"/v2/models/{model}/infer"))
        return link

    def wait_until_executing(self, count=1):
        self.record.wait_for(self.executed + count, "begin", "Execute")

    def assert_cancel_seen(self, since):
        """The backend saw the cancel, and its execution ended then."""
        self.record.wait_for(self.seen + 1, "begin", "SeeCancel", NOTICE)
        self.record.wait_for(self.executed + 1, "end", "Execute", NOTICE)
        self.assertLess(time.monotonic() - since, NOTICE)

    def settled(self, model, live=0):
        """The numbers of a model once nothing of it is in flight: (success, fail, executions)."""
        deadline = time.monotonic() + 10
        while True:
            numbers = self.server.statistics(model)
            pending = self.server.metrics()[f'nv_inference_pending_request_count{{model="{model}",version="1"}}']
            if pending == 0 or time.monotonic() > deadline:
                self.assertEqual(pending, 0)
                stats = numbers["inference_stats"]
                return stats["success"]["count"], stats["fail"]["count"], numbers["execution_count"]
            time.sleep(0.01)

    def failures(self, model):
        """nv_inference_request_failure by reason."""
        metrics = self.server.metrics()
        return {reason: metrics.get(f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}}', 0)
                for reason in ("CANCELED", "REJECTED", "BACKEND", "OTHER")}

    def assert_serves_on(self, model):
        """The next request, by HTTP, is answered well and waits its full time: nobody else's cancel is taken for its own."""
        started = time.monotonic()
        with httpclient.InferenceServerClient(self.server.http) as client:
            result = client.infer(model, inputs(httpclient)).as_numpy("OUTPUT0")
        self.assertEqual(result.tolist(), NUMBERS.tolist())
        self.assertGreaterEqual(time.monotonic() - started, PATIENCE)

    def check_executing(self, leave):
        """A request is given up by `leave` while it executes; `leave` begins with one in flight."""
        before, reasons = self.settled("alone"), self.failures("alone")
        quit_it = leave()
        self.wait_until_executing()
        since = time.monotonic()
        quit_it()
        self.assert_cancel_seen(since)
        self.assertEqual([after - now for after, now in zip(self.settled("alone"), before)][:2], [0, 1])
        gained = {reason: after - reasons[reason] for reason, after in self.failures("alone").items()}
        self.assertEqual(sum(gained.values()), 1, gained)
        self.assert_serves_on("alone")
        self.assertEqual(self.settled("alone")[0] - before[0], 1)
        self.assertEqual(self.count("begin", "SeeCancel"), self.seen + 1)

    def test_grpc_cancel_while_executing(self):
        self.check_executing(lambda: self.submit("alone").cancel)
        _, error = self.answers.get(timeout=5)
        self.assertEqual(error.status(), "StatusCode.CANCELLED")

    def test_grpc_connection_lost_while_executing(self):
        other = grpcclient.InferenceServerClient(self.server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)])

        def begin():
            other.async_infer("alone", inputs(grpcclient), lambda result, error: self.answers.put((result, error)))
            return other.close
        self.check_executing(begin)

    def test_http_disconnect_while_executing(self):
        self.check_executing(lambda: self.post("alone").close)

    def test_grpc_deadline_while_executing(self):
        before = self.settled("alone")
        started = time.monotonic()
        with self.assertRaises(InferenceServerException) as caught:
            self.rpc.infer("alone", inputs(grpcclient), client_timeout=0.3)
        self.assertEqual(caught.exception.status(), "StatusCode.DEADLINE_EXCEEDED")
        self.assert_cancel_seen(started + 0.3)
        self.assertEqual([after - now for after, now in zip(self.settled("alone"), before)][:2], [0, 1])
        self.assert_serves_on("alone")

    def test_http_client_timeout_while_executing(self):
        with httpclient.InferenceServerClient(self.server.http, network_timeout=0.3) as client:
            with self.assertRaises(Exception):
                client.infer("alone", inputs(httpclient))
        self.record.wait_for(self.seen + 1, "begin", "SeeCancel", NOTICE)

    def check_waiting(self, begin):
        """Requests that are given up while another executes are never executed, and their place is free at once."""
        before, reasons = self.settled("alone"), self.failures("alone")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.assert_serves_on, "alone")
            self.wait_until_executing()
            leavers = [begin() for _ in range(5)]
            name = 'nv_inference_pending_request_count{model="alone",version="1"}'
            deadline = time.monotonic() + 1
            while self.server.metrics()[name] != 5:
                self.assertLess(time.monotonic(), deadline, self.server.metrics()[name])
            for leave in leavers:
                leave()
            while self.server.metrics()[name] != 0:
                self.assertFalse(first.done(), "their places are free before the execution ends")
                time.sleep(0.005)
            self.assertEqual(self.server.statistics("alone")["inference_stats"]["fail"]["count"] - before[1], 5)
            first.result()
        self.assert_serves_on("alone")
        self.assertEqual([after - now for after, now in zip(self.settled("alone"), before)], [2, 5, 2])
        gained = {reason: after - reasons[reason] for reason, after in self.failures("alone").items()}
        self.assertEqual(gained, {"CANCELED": 5, "REJECTED": 0, "BACKEND": 0, "OTHER": 0})
        self.assertEqual((self.count("begin", "Execute"), self.count("begin", "SeeCancel")), (self.executed + 2, self.seen))

    def test_grpc_cancel_while_waiting(self):
        self.check_waiting(lambda: self.submit("alone").cancel)

    def test_http_disconnect_while_waiting(self):
        self.check_waiting(lambda: self.post("alone").close)

    def test_the_rest_of_a_batch_is_answered(self):
        call = self.submit("pairs")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with httpclient.InferenceServerClient(self.server.http) as client:
                other = pool.submit(client.infer, "pairs", inputs(httpclient, NUMBERS + 10))
                self.wait_until_executing()
                call.cancel()
                self.assertEqual(other.result(5).as_numpy("OUTPUT0").tolist(), (NUMBERS + 10).tolist())
        executions = [event for event in self.record.events("Execute") if event.edge == "begin"]
        self.assertEqual(executions[-1].detail, "requests=2")
        self.assertEqual(self.answers.get(timeout=5)[1].status(), "StatusCode.CANCELLED")
        self.assertEqual(self.count("begin", "SeeCancel"), self.seen + 1)

    def test_preserved_order_does_not_wait_for_it(self):
        call = self.submit("ordered")
        self.wait_until_executing(1)
        self.submit("ordered", NUMBERS + 1)
        self.wait_until_executing(2)
        call.cancel()
        self.record.wait_for(self.seen + 1, "begin", "SeeCancel", NOTICE)
        outcomes = [self.answers.get(timeout=5) for _ in range(2)]
        self.assertEqual(outcomes[0][1].status(), "StatusCode.CANCELLED")
        self.assertIsNone(outcomes[1][1])
        self.assertEqual(outcomes[1][0].as_numpy("OUTPUT0").tolist(), (NUMBERS + 1).tolist())
        for index in range(3):
            self.submit("ordered", NUMBERS + index)
            self.assertEqual(self.answers.get(timeout=5)[0].as_numpy("OUTPUT0").tolist(), (NUMBERS + index).tolist())


if __name__ == "__main__":
    unittest.main()
