"""The readiness hook of backends: who is asked, what an answer gives on the wire, and what a hook that hangs holds up."""

import concurrent.futures
import json
import threading
import time
import unittest

import grpc
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2, service_pb2_grpc

import server as servers
import wire
from case import ServerCase, conch_only, needs_library
from probe import Record, probe
from repository import Repository, identity
from waiting import until, until_equal

NUMBERS = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]}]}
# `grpc.health.v1`, without its stubs: HealthCheckResponse.status, which is 1 for SERVING.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class ProbeCase(ServerCase):
    """Two models of the probe with two instances each, of which each can be ordered to be ready or not; and one without the hook."""

    strict = True

    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = (cls.record.flag, f"--strict-readiness={str(cls.strict).lower()}")
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        for name in ("first", "second"):
            repository.model(name, probe(count=2, readiness=cls.record.folder / name, execute_ms=0 if name == "first" else 500))
        repository.model("identity", identity(batch=8))

    def setUp(self):
        self.addCleanup(self.order, "first", None)
        self.addCleanup(self.order, "second", None)
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self.check = channel.unary_unary("/grpc.health.v1.Health/Check")
        self.watch = channel.unary_stream("/grpc.health.v1.Health/Watch")

    def order(self, model, what):
        """What the hook of a model does from now on; None: it is ready."""
        path = self.record.folder / model
        if what is None:
            path.unlink(missing_ok=True)
        else:
            fresh = path.with_name(f".{model}")
            fresh.write_text(what)
            fresh.rename(path)

    def asked(self, model):
        """How often the hook of a model was called."""
        return sum(event.edge == "begin" and event.object.startswith(model) for event in self.record.events("Ready"))

    def model_answers(self, model):
        """What each way to ask for one model says: (HTTP status, body, gRPC)."""
        with httpclient.InferenceServerClient(self.server.http) as http, grpcclient.InferenceServerClient(self.server.grpc) as rpc:
            status, body = self.server.get(f"/v2/models/{model}/ready")
            versioned, _ = self.server.get(f"/v2/models/{model}/versions/1/ready")
            self.assertEqual(versioned, status)
            self.assertEqual(http.is_model_ready(model), status == 200)
            return status, body, rpc.is_model_ready(model)

    def server_answers(self):
        """(HTTP status, ServerReady, health service)"""
        status, body = self.server.get("/v2/health/ready")
        self.assertEqual(body, b"")
        return status, self.stub.ServerReady(service_pb2.ServerReadyRequest()).ready, self.check(b"")


NOT_READY = (400, b'{"error":"Model version not ready"}', False)
READY = (200, b"", True)


@conch_only
@needs_library("probe")
class Strict(ProbeCase):
    def test_a_model_that_is_not_ready(self):
        self.assertEqual(self.model_answers("first"), READY)
        self.order("first", "the stub died")
        self.assertEqual(self.model_answers("first"), NOT_READY)
        self.assertEqual(self.model_answers("second"), READY)
        self.assertEqual(self.model_answers("identity"), READY)
        self.assertEqual(self.server_answers(), (400, False, NOT_SERVING))
        self.assertEqual(self.server.get("/v2/health/live")[0], 200)
        # It is still served, and stands in the index as before.
        status, reply = self.server.post_json("/v2/models/first/infer", NUMBERS)
        self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [1, 2, 3, 4]))
        states = {row["name"]: row["state"] for row in json.loads(self.server.post_json("/v2/repository/index", {})[1])}
        self.assertEqual(states["first"], "READY")
        self.order("first", None)
        self.assertEqual(self.model_answers("first"), READY)
        self.assertEqual(self.server_answers(), (200, True, SERVING))

    def test_each_instance_is_asked(self):
        before = len(self.record.events("Ready"))
        self.assertEqual(self.server.get("/v2/models/first/ready")[0], 200)
        events = self.record.events("Ready")[before:]
        self.assertEqual([(event.edge, event.object.split(":")[0]) for event in events], [("begin", "first"), ("end", "first")] * 2)
        self.order("first", "no")
        before = len(self.record.events("Ready"))
        self.assertEqual(self.server.get("/v2/models/first/ready")[0], 400)
        self.assertEqual([event.edge for event in self.record.events("Ready")[before:]], ["begin", "fail"])

    def test_asked_while_it_executes(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            begun = len(self.record.wait_for(0, "begin", "Execute"))
            waiting = [pool.submit(self.server.post_json, "/v2/models/second/infer", NUMBERS) for _ in range(2)]
            executions = self.record.wait_for(begun + 2, "begin", "Execute")[-2:]
            self.assertEqual(self.model_answers("second"), READY)
            self.assertFalse(any(call.done() for call in waiting), "both instances were executing meanwhile")
            asked = self.record.events("Ready")[-1]
            self.assertNotIn(asked.thread, [event.thread for event in executions])
            self.assertEqual([call.result()[0] for call in waiting], [200, 200])

    def test_a_slow_hook_holds_up_nobody_else(self):
        self.order("first", "delay 2500")
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            before = self.asked("first")
            slow = [pool.submit(self.server.get, "/v2/models/first/ready") for _ in range(64)]
            until(lambda: self.asked("first"), "a call of the hook", accept=lambda asked: asked != before)
            for _ in range(20):
                self.assert_serves()
                self.assertEqual(self.server.get("/v2/health/live")[0], 200)
                self.assertEqual(self.model_answers("second"), READY)
            # Of two instances, one after the other.
            self.assertFalse(any(call.done() for call in slow), "nothing of this waited for the hook")
            self.order("first", None)
            self.assertEqual({call.result()[0] for call in slow}, {200})
            # Who came during a round shares it. Those who missed it share the next.
            self.assertLessEqual(self.asked("first") - before, 2 * 3)

    def test_a_client_that_does_not_wait(self):
        self.order("first", "delay 700")
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelReady(service_pb2.ModelReadyRequest(name="first"), timeout=0.2)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        for _ in range(3):
            with wire.connect(self.server) as link:
                link.sendall(b"GET /v2/models/first/ready HTTP/1.1\r\nHost: test\r\n\r\n")
            call = self.stub.ModelReady.future(service_pb2.ModelReadyRequest(name="first"))
            time.sleep(0.05)  # a client that leaves at any time: before, while or after the hook is called
            call.cancel()
        self.assert_serves()
        self.assertEqual(self.model_answers("first"), READY)

    def test_requests_behind_a_question(self):
        """On one connection answers keep their order, though the first takes time."""
        self.order("first", "delay 200")
        with wire.connect(self.server) as link:
            link.sendall(b"GET /v2/models/first/ready HTTP/1.1\r\nHost: test\r\n\r\n"
                         b"GET /v2/models/absent/ready HTTP/1.1\r\nHost: test\r\n\r\n"
                         b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n")
            replies = wire.Replies(link)
            self.assertEqual([replies.next()[0] for _ in range(3)], [200, 404, 200])

    def test_watch(self):
        seen = []
        changed = threading.Condition()

        def read(stream):
            try:
                for message in stream:
                    with changed:
                        seen.append(message)
                        changed.notify_all()
            except grpc.RpcError:
                pass

        stream = self.watch(b"")
        reader = threading.Thread(target=read, args=(stream,))
        reader.start()
        self.addCleanup(reader.join)
        self.addCleanup(stream.cancel)
        for count, order in enumerate((None, "no", None), 1):
            self.order("second", order)
            with changed:
                self.assertTrue(changed.wait_for(lambda: len(seen) >= count, 10), seen)
        self.assertEqual(seen, [SERVING, NOT_SERVING, SERVING])


@conch_only
@needs_library("probe")
class Lenient(ProbeCase):
    strict = False

    def test_only_the_model_is_not_ready(self):
        self.order("first", "no")
        self.assertEqual(self.model_answers("first"), NOT_READY)
        self.assertEqual(self.server_answers(), (200, True, SERVING))

    def test_a_hook_that_hangs(self):
        """Whoever waits gets an answer in bounded time; later ones at once; and the server recovers with the hook."""
        self.order("first", "delay 5000")  # each of two instances: 10 s
        started = time.monotonic()
        self.assertEqual(self.server.get("/v2/models/first/ready"), NOT_READY[:2])
        self.assertTrue(5.5 < time.monotonic() - started < 9.5, f"{time.monotonic() - started} s: the bound of 6 s, and less than the hook takes")
        self.order("first", None)
        started = time.monotonic()
        self.assertEqual(self.model_answers("first"), NOT_READY)
        self.assertLess(time.monotonic() - started, 5, "less than another wait of 6 s")
        self.server.wait_for_line("the backend of model 'first' version 1 does not say within 6 s")
        until_equal(lambda: self.server.get("/v2/models/first/ready")[0], 200, "the status of the model's readiness")


@conch_only
@needs_library("probe")
class End(unittest.TestCase):
    def test_the_server_ends_during_a_question(self):
        """An instance is not finalised while its hook runs, and who waits gets an answer."""
        record = Record()
        self.addCleanup(record.close)
        with Repository().model("probe", probe(readiness=record.folder / "probe")) as repository:
            with servers.Server(repository, record.flag) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
                begun = len(record.events("Ready"))  # of the wait until it was ready
                (record.folder / "probe").write_text("delay 1500")
                waiting = pool.submit(server.get, "/v2/models/probe/ready")
                until(lambda: len(record.events("Ready")), "a call of the hook", accept=lambda count: count > begun)
                self.assertEqual(server.terminate(), 0)
                self.assertIn(waiting.result()[0], (200, 400, 503))
        rows = [(event.edge, event.call) for event in record.events("Ready", "InstanceFinalize")]
        self.assertEqual(rows[-4:], [("begin", "Ready"), ("end", "Ready"), ("begin", "InstanceFinalize"), ("end", "InstanceFinalize")])


if __name__ == "__main__":
    unittest.main()
