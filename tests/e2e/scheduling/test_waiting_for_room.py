"""Requests over a limit of live requests wait for room before they are refused (--limit-wait-ms): how many, for how long, in which order, and
what goes on meanwhile. Requests hold their places by executions that end when they see a cancel."""

import collections
import concurrent.futures
import contextlib
import json
import queue
import threading
import time
import unittest

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import wire
from case import conch_only, needs_library
from probe import ProbeCase
from repository import identity
from test_limits import BODY, EXHAUSTED, HELD, WAIT, message
from waiting import until

WAITS = "waits for room beside"
# Longer than any test.
LONG_MS = 600_000


def infer_text(model="identity", request_id=""):
    """An HTTP request in full."""
    return wire.post(f"/v2/models/{model}/infer", json.dumps({"id": request_id, **BODY}).encode())


@conch_only
@needs_library("probe")
class RoomCase(ProbeCase):
    """A server that tells in its log which requests wait."""

    @classmethod
    def setUpClass(cls):
        if cls is RoomCase:
            raise unittest.SkipTest("what the cases below share")
        cls.flags = (*cls.flags, "--log-verbose=1")
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        repository.model("held", HELD)
        repository.model("identity", identity())

    def setUp(self):
        self.channels = contextlib.ExitStack()
        self.addCleanup(self.channels.close)
        self.stub = self.client()

    def client(self):
        """A stub on a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = self.channels.enter_context(grpc.insecure_channel(self.server.grpc, options=options))
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def begun(self, call="Execute"):
        return len([event for event in self.record.events(call) if event.edge == "begin"])

    def hold(self, stub=None):
        """A call that executes until it is cancelled."""
        before = self.begun()
        call = (stub or self.stub).ModelInfer.future(message("held"))
        self.record.wait_for(before + 1, "begin", "Execute", WAIT)
        return call

    def waiting_count(self):
        return self.server.output.count(WAITS)

    @contextlib.contextmanager
    def one_more_waits(self):
        """What is asked within has to wait, as the log says."""
        before = self.waiting_count()
        yield
        until(lambda: self.waiting_count() > before, "a request that waits for room", WAIT)

    def post(self):
        return self.server.request("POST", "/v2/models/identity/infer", json.dumps(BODY), timeout=WAIT)

    def serves(self):
        return self.post()[0] == 200

    def rejected(self, model="identity"):
        return self.server.metrics().get(f'nv_inference_request_failure{{model="{model}",reason="REJECTED",version="1"}}', 0)


class Crowd(RoomCase):
    """Far more clients than places, on two shards."""

    flags = ("--server-requests-max=3", f"--limit-wait-ms={LONG_MS}", "--shards=2")
    client_count, request_count = 48, 10

    def check_all(self, ask):
        """Each client asks again and again; every request is answered."""
        before = self.rejected()

        def work(number):
            return [ask(number) for _ in range(self.request_count)]

        with concurrent.futures.ThreadPoolExecutor(self.client_count) as pool:
            outcomes = [outcome for row in pool.map(work, range(self.client_count)) for outcome in row]
        self.assertEqual(set(outcomes), {"served"})
        self.assertEqual(len(outcomes), self.client_count * self.request_count)
        self.assertEqual(self.rejected(), before)

    def test_http(self):
        links = [wire.connect(self.server, timeout=WAIT) for _ in range(self.client_count)]
        for link in links:
            self.addCleanup(link.close)
        replies = [wire.Replies(link) for link in links]

        def ask(number):
            links[number].sendall(infer_text())
            return "served" if replies[number].next()[0] == 200 else "refused"

        self.check_all(ask)

    def test_grpc_calls_of_few_connections(self):
        stubs = [self.client() for _ in range(3)]

        def ask(number):
            stubs[number % 3].ModelInfer(message("identity"), timeout=WAIT)
            return "served"

        self.check_all(ask)

    def test_streams(self):
        def ask(number):
            answers = self.stub.ModelStreamInfer(iter([message("identity", str(number))] * 3), timeout=WAIT)
            texts = {answer.error_message for answer in answers}
            return "served" if texts == {""} else f"refused: {texts}"

        self.check_all(ask)


class Reloads(RoomCase):
    """A model with two places that is reloaded and unloaded while many clients wait for these."""

    flags = ("--model-control-mode=explicit", "--load-model=identity", f"--limit-wait-ms={LONG_MS}", "--shards=2")
    client_count = 48

    @staticmethod
    def config(number):
        return identity(parameters={"execute_delay_ms": "2", "CONCH_REQUESTS_MAX": "2", "number": str(number)})

    @classmethod
    def models(cls, repository):
        repository.model("identity", cls.config(0))

    def setUp(self):
        super().setUp()
        self.control("load")
        links = [wire.connect(self.server, timeout=WAIT) for _ in range(self.client_count)]
        for link in links:
            self.addCleanup(link.close)
        self.links = [(link, wire.Replies(link)) for link in links]

    def control(self, action):
        self.assertEqual(self.server.post_json(f"/v2/repository/models/identity/{action}", {}), (200, b""))

    @contextlib.contextmanager
    def crowd(self):
        """Half of the clients ask over HTTP and half over gRPC, again and again for as long as this lasts. Yields what they are told."""
        told, is_over = collections.Counter(), threading.Event()

        def ask(number):
            if number % 2:
                link, replies = self.links[number]
                link.sendall(infer_text())
                status, _, body = replies.next()
                return "served" if status == 200 else f"{status} {json.loads(body)['error']}"
            try:
                self.stub.ModelInfer(message("identity"), timeout=WAIT)
                return "served"
            except grpc.RpcError as error:
                return f"{error.code().name} {error.details()}"

        def work(number):
            row = collections.Counter()
            while not is_over.is_set():
                row[ask(number)] += 1
            return row

        with concurrent.futures.ThreadPoolExecutor(self.client_count) as pool:
            rows = [pool.submit(work, number) for number in range(self.client_count)]
            try:
                yield told
            finally:
                is_over.set()
        for row in rows:
            told.update(row.result())

    def many_more_wait(self):
        before = self.waiting_count()
        until(lambda: self.waiting_count() >= before + 2 * self.client_count, "requests that wait for room", WAIT)

    def test_those_who_wait_go_to_what_takes_the_place(self):
        with self.crowd() as told:
            for number in range(1, 9):
                self.many_more_wait()
                self.repository.model("identity", self.config(number))
                self.control("load")
                shown = self.server.get_json("/v2/models/identity/config")["parameters"]["number"]
                self.assertEqual(shown, {"string_value": str(number)})
            self.many_more_wait()
        self.assertEqual(set(told), {"served"}, told)

    def test_without_a_model_they_are_told_that_it_is_gone(self):
        with self.crowd() as told:
            self.many_more_wait()
            self.control("unload")
        unready = "Request for unknown model: 'identity' version 1 is not at ready state"
        absent = "Request for unknown model: 'identity' has no available versions"
        expected = {"served", f"503 {unready}", f"UNAVAILABLE {unready}", f"404 {absent}", f"NOT_FOUND {absent}"}
        self.assertLessEqual(set(told), expected)
        # Those that waited, or were on their way.
        self.assertLessEqual({f"503 {unready}", f"UNAVAILABLE {unready}"}, set(told))


class OnePlace(RoomCase):
    """One place, and requests that wait for it until they get it."""

    flags = ("--server-requests-max=1", f"--limit-wait-ms={LONG_MS}", "--shards=1", "--http-timeout-header=x-timeout-ms")

    def test_connections_take_turns(self):
        executing, (a, b, c) = self.hold(), [self.client() for _ in range(3)]
        calls = []
        for stub in (a, a, a, b, c, b):
            with self.one_more_waits():
                calls.append(stub.ModelInfer.future(message("held")))
        begun = self.begun()
        for number in (0, 3, 4, 1, 5, 2):
            # The backend sees the cancel of what it executes; a request that waits would be withdrawn, and nobody would see it.
            seen = self.begun("SeeCancel")
            executing.cancel()
            self.record.wait_for(seen + 1, "begin", "SeeCancel", WAIT)
            begun += 1
            self.record.wait_for(begun, "begin", "Execute", WAIT)
            executing = calls[number]
        executing.cancel()
        until(self.serves, "a request that is served", WAIT)

    def test_everything_else_goes_on_meanwhile(self):
        executing = self.hold()
        stub = self.client()
        with self.one_more_waits():
            waiting = stub.ModelInfer.future(message("identity"))
        link = wire.connect(self.server, timeout=WAIT)
        self.addCleanup(link.close)
        with self.one_more_waits():
            link.sendall(infer_text())
        # On the connection of the call that waits, and on others.
        for any_stub in (stub, self.stub):
            self.assertTrue(any_stub.ServerReady(pb.ServerReadyRequest(), timeout=WAIT).ready)
            any_stub.ModelMetadata(pb.ModelMetadataRequest(name="identity"), timeout=WAIT)
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/identity", "/v2/models/identity/stats"):
            self.assertEqual(self.server.get(path)[0], 200, path)
        self.assertEqual(self.server.get("/metrics", port="metrics")[0], 200)
        status, _, _ = self.server.request("POST", "/v2/repository/index", "{}")
        self.assertEqual(status, 200)
        self.assertFalse(waiting.done())
        executing.cancel()
        waiting.result(timeout=WAIT)
        self.assertEqual(wire.Replies(link).next()[0], 200)

    def test_a_stream_waits_and_holds_no_other_call_up(self):
        executing, requests, answers = self.hold(), queue.Queue(), queue.Queue()
        stub = self.client()
        call = stub.ModelStreamInfer(iter(requests.get, None))
        reader = threading.Thread(target=lambda: [answers.put(answer) for answer in call], daemon=True)
        reader.start()
        with self.one_more_waits():
            for number in range(3):
                requests.put(message("identity", str(number)))
        stub.ServerLive(pb.ServerLiveRequest(), timeout=WAIT)
        self.assertTrue(answers.empty())
        executing.cancel()
        for number in range(3):
            answer = answers.get(timeout=WAIT)
            self.assertEqual((answer.error_message, answer.infer_response.id), ("", str(number)))
        requests.put(None)
        reader.join(WAIT)
        self.assertEqual(call.code(), grpc.StatusCode.OK)

    def test_who_leaves_gives_the_place_in_line_up(self):
        executing, served = self.hold(), self.server.statistics("identity")["inference_stats"]["success"]["count"]
        links = []
        for _ in range(2):
            links.append(wire.connect(self.server, timeout=WAIT))
            self.addCleanup(links[-1].close)
            with self.one_more_waits():
                links[-1].sendall(infer_text())
        stub = self.client()
        with self.one_more_waits():
            call = stub.ModelInfer.future(message("identity"))
        with self.one_more_waits():
            last = self.stub.ModelInfer.future(message("identity"))
        before = self.server.file_count()
        links[0].close()
        until(lambda: self.server.file_count() < before, "the end of a connection", WAIT)
        call.cancel()
        # Behind the cancel on its connection.
        stub.ServerLive(pb.ServerLiveRequest(), timeout=WAIT)
        executing.cancel()
        self.assertEqual(wire.Replies(links[1]).next()[0], 200)
        last.result(timeout=WAIT)
        until(self.serves, "a request that is served", WAIT)
        now = self.server.statistics("identity")["inference_stats"]["success"]["count"]
        self.assertEqual(now - served, 3, "those that left were not executed")

    def test_a_deadline_of_the_clients_own_ends_the_wait(self):
        executing = self.hold()
        with self.assertRaises(grpc.RpcError) as failed, self.one_more_waits():
            self.stub.ModelInfer(message("identity"), timeout=0.3)
        self.assertEqual(failed.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        reply = self.server.request("POST", "/v2/models/identity/infer", json.dumps(BODY), {"x-timeout-ms": "300"})
        self.assertEqual(reply[0], 504, reply)
        executing.cancel()
        until(self.serves, "a request that is served", WAIT)


class Bounded(RoomCase):
    """Requests wait for some time, then they are refused."""

    flags = ("--server-requests-max=1", "--model-requests-max=1", "--limit-wait-ms=300")

    def test_who_waited_in_vain_is_refused(self):
        executing = self.hold()
        text = "[request id: 7] the server has as many live requests as it may have (1), try again later"
        before, rejected = time.monotonic(), self.rejected()
        with self.assertRaises(grpc.RpcError) as failed, self.one_more_waits():
            self.stub.ModelInfer(message("identity", "7"), timeout=WAIT)
        self.assertEqual((failed.exception.code(), failed.exception.details()), (EXHAUSTED, text))
        with self.one_more_waits():
            status, headers, body = self.server.request("POST", "/v2/models/identity/infer", json.dumps({"id": "7", **BODY}))
        self.assertEqual((status, headers["retry-after"], json.loads(body)), (429, "1", {"error": text}))
        with self.one_more_waits():
            status, headers, body = self.server.request("POST", "/v2/models/identity/generate", json.dumps({"INPUT0": [1, 2]}))
        self.assertEqual(status, 429, body)
        self.assertGreaterEqual(time.monotonic() - before, 0.9, "each waited")
        self.assertEqual(self.rejected() - rejected, 3)
        executing.cancel()
        until(self.serves, "a request that is served", WAIT)


class AtOnce(RoomCase):
    """Without a wait."""

    flags = ("--server-requests-max=1", "--limit-wait-ms=0")

    def test_nobody_waits(self):
        executing = self.hold()
        for _ in range(5):
            self.assertEqual(self.post()[0], 429)
            with self.assertRaises(grpc.RpcError) as failed:
                self.stub.ModelInfer(message("identity"), timeout=WAIT)
            self.assertEqual(failed.exception.code(), EXHAUSTED)
        self.assertEqual(self.waiting_count(), 0)
        executing.cancel()
        until(self.serves, "a request that is served", WAIT)


class OfTenantsAndModels(RoomCase):
    """Who waits for room of a tenant or of a model holds up nobody else."""

    flags = ("--tenant-requests-max=1", "--tenant-header=x-tenant", f"--limit-wait-ms={LONG_MS}", "--shards=1")

    @classmethod
    def models(cls, repository):
        super().models(repository)
        repository.model("held_single", HELD + 'parameters { key: "CONCH_REQUESTS_MAX" value { string_value: "1" } }\n')

    def ask(self, model, tenant):
        return self.stub.ModelInfer.future(message(model), metadata=[("x-tenant", tenant)])

    def hold_for(self, model, tenant):
        before = self.begun()
        call = self.ask(model, tenant)
        self.record.wait_for(before + 1, "begin", "Execute", WAIT)
        return call

    def test_others_are_served(self):
        of_tenant, of_model = self.hold_for("held", "a"), self.hold_for("held_single", "b")
        with self.one_more_waits():
            waiting = self.ask("identity", "a")
        with self.one_more_waits():
            second = self.ask("held_single", "c")
        # Neither the tenant nor the model of those that wait.
        self.ask("identity", "d").result(timeout=WAIT)
        self.assertFalse(waiting.done() or second.done())
        of_tenant.cancel()
        waiting.result(timeout=WAIT)
        begun = self.begun()
        of_model.cancel()
        self.record.wait_for(begun + 1, "begin", "Execute", WAIT)
        second.cancel()


if __name__ == "__main__":
    unittest.main()
