"""Models that come when they are asked for, within a budget of memory: on every listener, with many more models than fit, and refusals."""

import concurrent.futures
import json
import random
import threading
import time
import unittest

import grpc
import numpy
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2_grpc

import server as servers
import test_sagemaker
import test_vertex_ai
from case import ServerCase, conch_only, needs_library
from probe import Record, probe
from repository import Repository, identity
from test_limits import BODY, PATIENCE, WAIT, message
from waiting import until_equal

WEIGHTS = 100_000
MODELS, FIT = 24, 4


def weighty(repository, name, config=None):
    repository.model(name, config or identity(), files={"1/weights": bytes(WEIGHTS)})


def flags(fit, *more):
    # A configuration takes some hundred bytes.
    return ("--model-control-mode=explicit", f"--model-memory-budget-bytes={fit * WEIGHTS + WEIGHTS // 2}", *more)


def states(server):
    """Name to state, of the index."""
    status, reply = server.post_json("/v2/repository/index", {})
    assert status == 200, reply
    return {row["name"]: row.get("state", "") for row in json.loads(reply)}


@conch_only
@needs_library("identity")
class Listeners(ServerCase):
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "sage", **test_vertex_ai.ROUTES}
    flags = flags(1, *test_sagemaker.port_flags(), *test_vertex_ai.port_flags(), "--vertex-ai-default-model=vertex",
                  "--load-model=vertex")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test_sagemaker.find_port(cls.server)
        test_vertex_ai.find_port(cls.server)
        channel = grpc.insecure_channel(cls.server.grpc)
        cls.addClassCleanup(channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    @classmethod
    def models(cls, repository):
        for name in ("http", "generated", "events", "sage", "vertex", "unary", "stream"):
            weighty(repository, name)

    def post(self, path, body=None, port="http"):
        return self.server.request("POST", path, json.dumps(body or BODY), port=port)

    def test_each_brings_its_model_in(self):
        asks = {
            "http": lambda: self.post("/v2/models/http/infer")[0] == 200,
            "generated": lambda: self.post("/v2/models/generated/generate", {"INPUT0": [1, 2]})[0] == 200,
            "events": lambda: self.post("/v2/models/events/generate_stream", {"INPUT0": [1, 2]})[0] == 200,
            "sage": lambda: self.post("/invocations", port="sagemaker")[0] == 200,
            "vertex": lambda: self.post("/predict", port="vertex")[0] == 200,
            "unary": lambda: self.stub.ModelInfer(message("unary"), timeout=WAIT).model_name == "unary",
            "stream": lambda: [answer.error_message for answer in self.stub.ModelStreamInfer(iter([message("stream")]), timeout=WAIT)] == [""],
        }
        for name, ask in asks.items():
            with self.subTest(name):
                # What does not infer brings nothing in, and says what is there.
                if name != "vertex":  # it had to be there at the start, and has gone since
                    self.assertEqual(states(self.server)[name], "")
                self.assertEqual(self.server.get(f"/v2/models/{name}/ready")[0], 404)
                self.assertTrue(ask())
                self.assertEqual(self.server.get(f"/v2/models/{name}/ready")[0], 200)
                ready = [other for other, state in states(self.server).items() if state == "READY"]
                self.assertEqual(ready, [name], "there is room for one")
                self.assertEqual(self.server.get("/v2/health/ready")[0], 200)

    def test_refusals(self):
        status, _, body = self.post("/v2/models/nobody/infer")
        self.assertEqual((status, json.loads(body)), (404, {"error": "Request for unknown model: 'nobody' is not found"}))
        status, _, body = self.post("/v2/models/http/versions/7/infer")
        self.assertEqual(status, 404, body)
        with self.assertRaises(grpc.RpcError) as failed:
            self.stub.ModelInfer(message("nobody"), timeout=WAIT)
        self.assertEqual(failed.exception.code(), grpc.StatusCode.NOT_FOUND)
        [answer] = self.stub.ModelStreamInfer(iter([message("nobody")]), timeout=WAIT)
        self.assertIn("Request for unknown model: 'nobody'", answer.error_message)


@conch_only
@needs_library("probe")
class Room(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = (*flags(1, "--model-wait-secs=1"), cls.record.flag)
        super().setUpClass()
        channel = grpc.insecure_channel(cls.server.grpc)
        cls.addClassCleanup(channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    @classmethod
    def models(cls, repository):
        weighty(repository, "held", probe(batch=1, await_cancel_ms=PATIENCE * 1000))
        weighty(repository, "other")
        repository.model("huge", identity(), files={"1/weights": bytes(2 * WEIGHTS)})

    def test_what_is_in_use_stays_and_others_hear_why(self):
        call = self.stub.ModelInfer.future(message("held"))
        self.record.wait_for(1, "begin", "Execute", WAIT)
        status, _, body = self.server.request("POST", "/v2/models/other/infer", json.dumps(BODY))
        self.assertEqual((status, json.loads(body)["error"]),
                         (503, "there was no room for model 'other' within 1 s: the models that take it are in use"))
        status, _, body = self.server.request("POST", "/v2/models/huge/infer", json.dumps(BODY))
        self.assertEqual(status, 503)
        self.assertRegex(json.loads(body)["error"], "^model 'huge' takes 200.* bytes, and all models together may take 150000 ")
        self.assertFalse(call.done())
        call.cancel()
        # What could not be loaded is tried again a few seconds later.
        until_equal(lambda: self.server.request("POST", "/v2/models/other/infer", json.dumps(BODY))[0], 200, "the status of an inference", WAIT)
        self.assertNotEqual(states(self.server)["held"], "READY")


@conch_only
@needs_library("identity")
class Turnover(ServerCase):
    flags = flags(FIT)

    @classmethod
    def models(cls, repository):
        for number in range(MODELS):
            weighty(repository, f"m{number}")

    def test_no_request_fails_while_models_turn_over(self):
        """Requests on four connections, over HTTP and gRPC, to many more models than fit."""
        is_over = threading.Event()
        most = []

        def watch():
            while not is_over.is_set():
                most.append(sum(state != "UNAVAILABLE" and state != "" for state in states(self.server).values()))
                time.sleep(0.002)  # a sample now and then, for as long as the requests last

        def over_http(seed):
            chance = random.Random(seed)
            with httpclient.InferenceServerClient(self.server.http, network_timeout=WAIT, connection_timeout=WAIT) as client:
                for _ in range(100):
                    value = numpy.array([chance.random(), 2], numpy.float32)
                    tensor = httpclient.InferInput("INPUT0", [2], "FP32")
                    tensor.set_data_from_numpy(value)
                    result = client.infer(f"m{chance.randrange(MODELS)}", [tensor])
                    numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), value)

        def over_grpc(seed):
            chance = random.Random(seed)
            with grpc.insecure_channel(self.server.grpc) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                for _ in range(100):
                    name = f"m{chance.randrange(MODELS)}"
                    self.assertEqual(stub.ModelInfer(message(name), timeout=WAIT).model_name, name)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                senders = [pool.submit(work, seed) for seed, work in enumerate((over_http, over_grpc, over_http, over_grpc))]
                for sender in senders:
                    sender.result()
        finally:
            is_over.set()
            watcher.join()
        self.assertLessEqual(max(most), FIT)
        self.assertGreater(self.server.output.count("to make room for"), MODELS)
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)


@conch_only
class Flags(unittest.TestCase):
    def test_it_needs_explicit_mode(self):
        with Repository() as repository, self.assertRaises(servers.StartFailed) as failed:
            servers.Server(repository, "--model-memory-budget-bytes=1000").kill()
        self.assertIn("needs --model-control-mode=explicit", failed.exception.output)


if __name__ == "__main__":
    unittest.main()
