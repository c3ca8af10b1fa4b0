"""Clients that give up: what becomes of their requests while these wait and while they execute, and of everybody else's.

An execution here ends when it sees a cancel, else long after every test's patience: what a test sees before that happened while the
instance was busy.
"""

import concurrent.futures
import json
import queue
import unittest

import grpc
import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

import wire
from case import conch_only, needs_library
from probe import ProbeCase, probe
from waiting import until

# How long an execution waits for a cancel, and how long a test waits for what ought to come, in seconds.
PATIENCE, WAIT = 300, 30
NUMBERS = numpy.arange(4, dtype=numpy.int32).reshape(1, 4)
# With these an execution fails at once, whatever it is asked to wait for.
FAILING = NUMBERS - 1


def inputs(module, array=NUMBERS):
    tensor = module.InferInput("INPUT0", list(array.shape), "INT32")
    tensor.set_data_from_numpy(array)
    return [tensor]


@conch_only
@needs_library("probe")
class Cancellation(ProbeCase):
    @classmethod
    def models(cls, repository):
        patience = PATIENCE * 1000
        repository.model("alone", probe(batch=1, await_cancel_ms=patience))
        repository.model("pairs", probe(batch=2, await_cancel_ms=patience, extra="dynamic_batching { preferred_batch_size: 2 "
                                        "max_queue_delay_microseconds: 60000000 }\n"))
        repository.model("ordered", probe(batch=1, count=2, await_cancel_ms=patience, extra="dynamic_batching { preserve_ordering: true }\n"))

    def setUp(self):
        self.rpc = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(self.rpc.close)
        self.answers = queue.Queue()
        self.wait_until_idle()
        self.executed = self.count("begin", "Execute")
        self.seen = self.count("begin", "SeeCancel")

    def count(self, edge, call):
        return len([event for event in self.record.events(call) if event.edge == edge])

    def ended(self):
        """Executions that are over, for good or not."""
        return self.count("end", "Execute") + self.count("fail", "Execute")

    def wait_until_idle(self):
        until(lambda: (self.ended(), self.count("begin", "Execute")), "as many ends of executions as begins", WAIT,
              lambda counts: counts[0] == counts[1])

    def submit(self, model, array=NUMBERS, **more):
        """A request by upstream's client; its answer goes into the queue."""
        return self.rpc.async_infer(model, inputs(grpcclient, array), lambda result, error: self.answers.put((result, error)), **more)

    def stream(self, model):
        """A request on a stream of its own, which the caller can cancel."""
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        message = pb.ModelInferRequest(model_name=model, raw_input_contents=[NUMBERS.tobytes()])
        message.inputs.add(name="INPUT0", datatype="INT32", shape=NUMBERS.shape)
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]))

    def post(self, model, value=None, path="infer"):
        """A request on an HTTP connection that the caller can close."""
        link = wire.connect(self.server)
        value = value or {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [0, 1, 2, 3]}]}
        link.sendall(wire.post(f"/v2/models/{model}/{path}", json.dumps(value).encode()))
        return link

    def generate(self, model, stream):
        return self.post(model, {"INPUT0": [0, 1, 2, 3]}, "generate_stream" if stream else "generate")

    def wait_until_executing(self, count=1):
        self.record.wait_for(self.executed + count, "begin", "Execute", WAIT)

    def assert_cancel_seen(self):
        """The backend saw the cancel, and its execution ended then."""
        self.record.wait_for(self.seen + 1, "begin", "SeeCancel", WAIT)
        self.wait_until_idle()

    def settled(self, model):
        """The numbers of a model once nothing of it is in flight: (success, fail, executions)."""
        self.server.wait_for_pending(model, 0)
        numbers = self.server.statistics(model)
        stats = numbers["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"], numbers["execution_count"]

    def failures(self, model):
        """nv_inference_request_failure by reason."""
        metrics = self.server.metrics()
        return {reason: metrics.get(f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}}', 0)
                for reason in ("CANCELED", "REJECTED", "BACKEND", "OTHER")}

    def assert_serves_on(self, model):
        """The next request executes, and nobody else's cancel is taken for its own: its answer is what it asked for."""
        with httpclient.InferenceServerClient(self.server.http) as client:
            with self.assertRaisesRegex(InferenceServerException, "probe: ordered to fail"):
                client.infer(model, inputs(httpclient, FAILING))
        executed, seen = self.count("begin", "Execute"), self.count("begin", "SeeCancel")
        call = self.submit(model)
        self.record.wait_for(executed + 1, "begin", "Execute", WAIT)
        self.assertEqual(self.count("begin", "SeeCancel"), seen)
        call.cancel()
        self.record.wait_for(seen + 1, "begin", "SeeCancel", WAIT)
        self.wait_until_idle()

    def check_executing(self, leave):
        """A request is given up by `leave` while it executes; `leave` begins with one in flight."""
        before, reasons = self.settled("alone"), self.failures("alone")
        quit_it = leave()
        self.wait_until_executing()
        quit_it()
        self.assert_cancel_seen()
        self.assertEqual([after - now for after, now in zip(self.settled("alone"), before)][:2], [0, 1])
        gained = {reason: after - reasons[reason] for reason, after in self.failures("alone").items()}
        self.assertEqual(sum(gained.values()), 1, gained)
        self.assert_serves_on("alone")

    def test_grpc_cancel_while_executing(self):
        self.check_executing(lambda: self.submit("alone").cancel)
        _, error = self.answers.get(timeout=WAIT)
        self.assertEqual(error.status(), "StatusCode.CANCELLED")

    def test_grpc_connection_lost_while_executing(self):
        other = grpcclient.InferenceServerClient(self.server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)])

        def begin():
            other.async_infer("alone", inputs(grpcclient), lambda result, error: self.answers.put((result, error)))
            return other.close
        self.check_executing(begin)

    def test_stream_cancel_while_executing(self):
        self.check_executing(lambda: self.stream("alone").cancel)

    def test_http_disconnect_while_executing(self):
        self.check_executing(lambda: self.post("alone").close)

    def test_generate_disconnect_while_executing(self):
        self.check_executing(lambda: self.generate("alone", False).close)

    def test_generate_stream_disconnect_while_executing(self):
        self.check_executing(lambda: self.generate("alone", True).close)

    def test_grpc_deadline_while_executing(self):
        before = self.settled("alone")
        with self.assertRaises(InferenceServerException) as caught:
            self.rpc.infer("alone", inputs(grpcclient), client_timeout=2)
        self.assertEqual(caught.exception.status(), "StatusCode.DEADLINE_EXCEEDED")
        self.assert_cancel_seen()
        self.assertEqual([after - now for after, now in zip(self.settled("alone"), before)][:2], [0, 1])
        self.assert_serves_on("alone")

    def test_http_client_timeout_while_executing(self):
        with httpclient.InferenceServerClient(self.server.http, network_timeout=2) as client:
            with self.assertRaises(Exception):
                client.infer("alone", inputs(httpclient))
        self.assert_cancel_seen()

    def check_waiting(self, begin):
        """Requests that are given up while another executes are never executed, and their place is free before that one ends."""
        before, reasons = self.settled("alone"), self.failures("alone")
        busy = self.submit("alone")
        self.wait_until_executing()
        leavers = [begin() for _ in range(5)]
        self.server.wait_for_pending("alone", 5)
        for leave in leavers:
            leave()
        self.server.wait_for_pending("alone", 0)
        self.assertEqual(self.server.statistics("alone")["inference_stats"]["fail"]["count"] - before[1], 5)
        gained = {reason: after - reasons[reason] for reason, after in self.failures("alone").items()}
        self.assertEqual(gained, {"CANCELED": 5, "REJECTED": 0, "BACKEND": 0, "OTHER": 0})
        # The instance was busy all the time, and is.
        self.assertEqual((self.count("begin", "Execute"), self.ended()), (self.executed + 1, self.executed))
        self.assertEqual(self.count("begin", "SeeCancel"), self.seen)
        busy.cancel()
        self.assert_cancel_seen()
        self.assertEqual([after - now for after, now in zip(self.settled("alone"), before)][:2], [0, 6])
        self.assertEqual(self.count("begin", "Execute"), self.executed + 1)
        self.assert_serves_on("alone")

    def test_grpc_cancel_while_waiting(self):
        self.check_waiting(lambda: self.submit("alone").cancel)

    def test_stream_cancel_while_waiting(self):
        self.check_waiting(lambda: self.stream("alone").cancel)

    def test_http_disconnect_while_waiting(self):
        self.check_waiting(lambda: self.post("alone").close)

    def test_generate_disconnect_while_waiting(self):
        self.check_waiting(lambda: self.generate("alone", False).close)

    def test_generate_stream_disconnect_while_waiting(self):
        self.check_waiting(lambda: self.generate("alone", True).close)

    def test_the_rest_of_a_batch_is_answered(self):
        call = self.submit("pairs")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with httpclient.InferenceServerClient(self.server.http) as client:
                other = pool.submit(client.infer, "pairs", inputs(httpclient, NUMBERS + 10))
                self.wait_until_executing()
                call.cancel()
                self.assertEqual(other.result(WAIT).as_numpy("OUTPUT0").tolist(), (NUMBERS + 10).tolist())
        executions = [event for event in self.record.events("Execute") if event.edge == "begin"]
        self.assertEqual(executions[-1].detail, "requests=2")
        self.assertEqual(self.answers.get(timeout=WAIT)[1].status(), "StatusCode.CANCELLED")
        self.assertEqual(self.count("begin", "SeeCancel"), self.seen + 1)

    def test_preserved_order_does_not_wait_for_it(self):
        call = self.submit("ordered")
        self.wait_until_executing(1)
        failed = self.count("fail", "Execute")
        self.submit("ordered", FAILING)
        self.record.wait_for(failed + 1, "fail", "Execute", WAIT)
        self.assertTrue(self.answers.empty(), "it waits for the first")
        call.cancel()
        self.record.wait_for(self.seen + 1, "begin", "SeeCancel", WAIT)
        errors = [self.answers.get(timeout=WAIT)[1] for _ in range(2)]
        self.assertEqual([error.status() for error in errors], ["StatusCode.CANCELLED", "StatusCode.INTERNAL"])
        self.submit("ordered", FAILING)
        self.assertEqual(self.answers.get(timeout=WAIT)[1].status(), "StatusCode.INTERNAL")


if __name__ == "__main__":
    unittest.main()
