"""What the server lets in: bounds of the live requests of the server, of each model and of each tenant, on every listener; and who is first
where a model goes by deadlines. Requests are held by executions that end when they see a cancel: what a test sees depends on no clock."""

import json
import queue
import threading
import unittest

import grpc
import numpy
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import server as servers
import test_sagemaker
import test_vertex_ai
from case import conch_only, needs_library
from probe import ProbeCase, probe
from repository import Repository, identity
from waiting import until

# How long an execution waits for a cancel, and how long a test waits for what ought to come, in seconds.
PATIENCE, WAIT = 300, 30
NUMBERS = numpy.arange(4, dtype=numpy.int32).reshape(1, 4)
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
HELD = probe(batch=1, count=3, await_cancel_ms=PATIENCE * 1000)
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def message(model, request_id=""):
    """An inference of `model`: of the probe's numbers, or of the identity's."""
    made = pb.ModelInferRequest(model_name=model, id=request_id)
    if model.startswith("held"):
        made.inputs.add(name="INPUT0", datatype="INT32", shape=NUMBERS.shape)
        made.raw_input_contents.append(NUMBERS.tobytes())
    else:
        made.inputs.add(name="INPUT0", datatype="FP32", shape=[2])
        made.raw_input_contents.append(numpy.ones(2, numpy.float32).tobytes())
    return made


@conch_only
@needs_library("probe")
class LimitCase(ProbeCase):
    @classmethod
    def setUpClass(cls):
        if cls is LimitCase:
            raise unittest.SkipTest("what the cases below share")
        super().setUpClass()
        channel = grpc.insecure_channel(cls.server.grpc)
        cls.addClassCleanup(channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def setUp(self):
        self.held = []
        self.addCleanup(self.release)

    def hold(self, model, **metadata):
        """A request that executes until it is released."""
        before = len([event for event in self.record.events("Execute") if event.edge == "begin"])
        self.held.append(self.stub.ModelInfer.future(message(model), metadata=list(metadata.items())))
        self.record.wait_for(before + 1, "begin", "Execute", WAIT)

    def release(self):
        for call in self.held:
            call.cancel()
        self.held.clear()

    def infer_grpc(self, model, **metadata):
        """The code of the answer and its details."""
        try:
            self.stub.ModelInfer(message(model, "7"), metadata=list(metadata.items()), timeout=WAIT)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    def until_served(self, serve):
        """Its place is free as soon as a request is over, and that is soon after it was cancelled."""
        until(serve, "a request that is served", WAIT)

    def rejected(self, model):
        return self.server.metrics().get(f'nv_inference_request_failure{{model="{model}",reason="REJECTED",version="1"}}', 0)

    def assert_told_to_come_again(self, reply, who, bound, request_id="<id_unknown>"):
        status, headers, body = reply
        text = f"[request id: {request_id}] {who} has as many live requests as it may have ({bound}), try again later"
        self.assertEqual((status, json.loads(body)), (429, {"error": text}))
        self.assertEqual(headers["retry-after"], "1")


class OfTheServer(LimitCase):
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "identity", **test_vertex_ai.ROUTES}
    flags = ("--server-requests-max=2", *test_sagemaker.port_flags(), *test_vertex_ai.port_flags(),
             "--vertex-ai-default-model=identity")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test_sagemaker.find_port(cls.server)
        test_vertex_ai.find_port(cls.server)

    @classmethod
    def models(cls, repository):
        repository.model("held", HELD)
        repository.model("identity", identity())

    def post(self, path, body=None, port="http"):
        return self.server.request("POST", path, json.dumps(body or BODY), port=port)

    def test_every_listener_refuses_and_serves_again(self):
        before = self.rejected("identity")
        self.hold("held")
        self.assertEqual(self.infer_grpc("identity")[0], grpc.StatusCode.OK, "one place is left, also after it was used")
        self.hold("held")
        text = "[request id: 7] the server has as many live requests as it may have (2), try again later"
        self.assertEqual(self.infer_grpc("identity"), (EXHAUSTED, text))
        self.assert_told_to_come_again(self.post("/v2/models/identity/infer", {"id": "7", **BODY}), "the server", 2, "7")
        for path in ("generate", "generate_stream"):
            reply = self.post(f"/v2/models/identity/{path}", {"INPUT0": [1, 2]})
            self.assert_told_to_come_again(reply, "the server", 2)
        self.assert_told_to_come_again(self.post("/invocations", port="sagemaker"), "the server", 2)
        self.assert_told_to_come_again(self.post("/predict", port="vertex"), "the server", 2)
        self.assertEqual(self.rejected("identity") - before, 6)
        # What needs no model's execution goes on.
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
        self.release()
        self.until_served(lambda: self.post("/v2/models/identity/infer")[0] == 200)
        self.until_served(lambda: self.infer_grpc("identity")[0] == grpc.StatusCode.OK)

    def test_a_stream_goes_on_after_a_refusal(self):
        requests, answers = queue.Queue(), queue.Queue()
        call = self.stub.ModelStreamInfer(iter(requests.get, None))
        reader = threading.Thread(target=lambda: [answers.put(answer) for answer in call], daemon=True)
        reader.start()

        def ask():
            requests.put(message("identity", "7"))
            return answers.get(timeout=WAIT)

        self.assertEqual(ask().error_message, "")
        self.hold("held")
        self.hold("held")
        refused = ask()
        self.assertRegex(refused.error_message, "^.request id: 7. the server has as many live requests as it may have .2.")
        self.assertEqual(refused.infer_response.id, "7")
        self.release()
        self.until_served(lambda: ask().error_message == "")
        requests.put(None)
        reader.join(WAIT)
        self.assertEqual(call.code(), grpc.StatusCode.OK)


class OfModels(LimitCase):
    flags = ("--model-requests-max=1",)

    @classmethod
    def models(cls, repository):
        repository.model("held", HELD)
        repository.model("held_more", probe(batch=1, count=3, await_cancel_ms=PATIENCE * 1000, CONCH_REQUESTS_MAX="2"))
        repository.model("identity", identity())

    def test_each_model_has_its_own_bound(self):
        self.hold("held")
        text = "[request id: 7] model 'held' has as many live requests as it may have (1), try again later"
        self.assertEqual(self.infer_grpc("held"), (EXHAUSTED, text))
        self.assertEqual(self.rejected("held"), 1)
        self.assertEqual(self.infer_grpc("identity")[0], grpc.StatusCode.OK)
        self.hold("held_more")
        self.hold("held_more")
        code, details = self.infer_grpc("held_more")
        self.assertEqual(code, EXHAUSTED)
        self.assertIn("(2)", details)


class OfTenants(LimitCase):
    flags = ("--tenant-requests-max=1", "--tenant-header=X-Tenant")

    @classmethod
    def models(cls, repository):
        repository.model("held", HELD)
        repository.model("identity", identity())

    def test_tenants_do_not_stand_in_each_others_way(self):
        def post(tenant):
            headers = {"x-tenant": tenant} if tenant is not None else {}
            return self.server.request("POST", "/v2/models/identity/infer", json.dumps(BODY), headers)

        self.hold("held", **{"x-tenant": "a"})
        self.assert_told_to_come_again(post("a"), "the tenant", 1)
        self.assertEqual(self.infer_grpc("identity", **{"x-tenant": "a"})[0], EXHAUSTED)
        for other in ("b", "A", None):
            self.assertEqual(post(other)[0], 200, other)
        # Requests without the header are one tenant, too.
        self.hold("held")
        self.assert_told_to_come_again(post(None), "the tenant", 1)
        self.assert_told_to_come_again(post(""), "the tenant", 1)
        self.assertEqual(post("b")[0], 200)
        self.release()
        self.until_served(lambda: post("a")[0] == 200)


class Deadlines(LimitCase):
    """`CONCH_DEADLINE_ORDER`: while the only instance executes, requests come in one order and leave in another."""

    @classmethod
    def models(cls, repository):
        def held(**parameters):
            return probe(batch=1, extra="dynamic_batching { }\n", await_cancel_ms=PATIENCE * 1000, **parameters)

        repository.model("held_by_arrival", held())
        repository.model("held_by_deadline", held(CONCH_DEADLINE_ORDER="true"))

    def count(self, call):
        return len([event for event in self.record.events(call) if event.edge == "begin"])

    def check(self, model, expected):
        """In the order of `expected` requests execute that come with timeouts of 900, 500 .. seconds, or none."""
        self.hold(model)
        calls = []
        for timeout in (None, 900, 500, None, 300, 800):
            calls.append(self.stub.ModelInfer.future(message(model), timeout=timeout))
            self.server.wait_for_pending(model, len(calls))
        executed, executing = self.count("Execute"), self.held.pop()
        for number in expected:
            # The backend sees the cancel of what it executes; a request that waits would be withdrawn, and nobody would see it.
            seen = self.count("SeeCancel")
            executing.cancel()
            self.record.wait_for(seen + 1, "begin", "SeeCancel", WAIT)
            executed += 1
            self.record.wait_for(executed, "begin", "Execute", WAIT)
            executing = calls[number]
        self.server.wait_for_pending(model, 0)
        executing.cancel()

    def test_the_order_of_arrival(self):
        self.check("held_by_arrival", range(6))

    def test_the_order_of_deadlines(self):
        self.check("held_by_deadline", (4, 2, 5, 1, 0, 3))


@conch_only
@needs_library("identity")
class Refusals(unittest.TestCase):
    def test_parameters_that_cannot_be(self):
        batching = "dynamic_batching { preserve_ordering: true }\n"
        name = "parameter 'CONCH_DEADLINE_ORDER' of model 'm'"
        for parameters, extra, reason in (
                ({"CONCH_DEADLINE_ORDER": "true"}, "", f"{name} needs dynamic_batching"),
                ({"CONCH_DEADLINE_ORDER": "true"}, batching, f"{name} excludes preserve_ordering"),
                ({"CONCH_DEADLINE_ORDER": "1"}, batching, f"{name} must be true or false, got '1'"),
                ({"CONCH_REQUESTS_MAX": "0"}, "", "parameter 'CONCH_REQUESTS_MAX' of model 'm' must be a number of requests above 0, got '0'")):
            with self.subTest(reason), Repository() as repository:
                repository.model("m", identity(batch=1, extra=extra, parameters=parameters))
                with self.assertRaises(servers.StartFailed) as failed:
                    servers.Server(repository).kill()
                self.assertIn(reason, failed.exception.output)


if __name__ == "__main__":
    unittest.main()
