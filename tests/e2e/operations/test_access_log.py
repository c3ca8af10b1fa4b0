"""`--access-log-rate`: a line for one in so many HTTP requests and gRPC calls."""

import json
import re
import socket
import tempfile
import unittest

import grpc
import numpy
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import server as servers
import wire
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity
from test_stream import Call, floats
from waiting import until

FLOATS = [("INPUT0", "FP32", (-1,))]


def body(request_id=""):
    return {"id": request_id, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def lines_of(server):
    return [line for line in list(server.lines) if "access: " in line]


def line_with(server, *texts):
    """The line with all of these, once it was written, as a map."""
    line = until(lambda: next((line for line in lines_of(server) if all(text in line for text in texts)), None), f"a line with {texts}")
    return dict(re.findall(r"(\w+)=([^ \"]+)", line))


@conch_only
@needs_library("identity")
class Lines(ServerCase):
    flags = ("--access-log-rate=1",)

    @staticmethod
    def models(repository):
        repository.model("identity", identity(FLOATS, batch=4))

    def test_an_inference_over_http(self):
        status, _, reply = self.infer(body("a1"))
        self.assertEqual(status, 200)
        found = line_with(self.server, "[request id: a1] access: ")
        self.assertGreater(int(found.pop("duration_us")), 0)
        self.assertGreater(int(found.pop("received_bytes")), 50)
        self.assertEqual(found, {"client": "127.0.0.1", "protocol": "HTTP", "method": "POST", "path": "/v2/models/identity/infer",
                                 "status": "200", "sent_bytes": str(len(reply))})

    def test_what_is_refused(self):
        self.assertEqual(self.server.get("/v2/models/other/config?secret=7")[0], 404)
        found = line_with(self.server, "path=/v2/models/other/config")
        self.assertEqual((found["method"], found["status"]), ("GET", "404"))
        self.assertFalse([line for line in lines_of(self.server) if "secret" in line], "queries may hold what is nobody's business")
        self.assertEqual(self.infer({"id": "a2", "inputs": []})[0], 400)
        self.assertEqual(line_with(self.server, "[request id: a2] access: ")["status"], "400")

    def test_a_generated_stream(self):
        status, _ = self.server.post_json("/v2/models/identity/generate_stream", {"id": "a3", "INPUT0": 1.0})
        self.assertEqual(status, 200)
        found = line_with(self.server, "[request id: a3] access: ")
        self.assertEqual((found["status"], "sent_bytes" in found), ("200", False))

    def test_metrics_are_requests(self):
        self.server.metrics()
        self.assertEqual(line_with(self.server, "path=/metrics")["status"], "200")

    def test_a_client_that_leaves(self):
        connection = wire.connect(self.server)
        connection.sendall(b"POST /v2/models/left/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
        connection.close()
        self.assertEqual(line_with(self.server, "path=/v2/models/left/infer")["status"], "unanswered")

    def test_over_grpc(self):
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(numpy.ones((1, 2), numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.infer("identity", [tensor], request_id="g1")
        found = line_with(self.server, "[request id: g1] access: ")
        self.assertGreater(int(found.pop("duration_us")), 0)
        self.assertEqual(found, {"client": "127.0.0.1", "protocol": "gRPC", "path": "/inference.GRPCInferenceService/ModelInfer", "status": "OK"})
        with grpc.insecure_channel(self.server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with self.assertRaises(grpc.RpcError):
                stub.ModelConfig(pb.ModelConfigRequest(name="missing"))
            call = Call(channel).send(floats("s1", 1.0)).end()
            self.assertEqual(len(call.rest()), 1)
        self.assertEqual(line_with(self.server, "/ModelConfig")["status"], "NOT_FOUND")
        self.assertEqual(line_with(self.server, "/ModelStreamInfer")["status"], "OK")
        self.assertFalse([line for line in lines_of(self.server) if "s1" in line], "requests of a stream have no line")

    def test_no_client_forges_a_line(self):
        with socket.create_connection(("127.0.0.1", int(self.server.http.rsplit(":", 1)[1]))) as connection:
            connection.sendall(b"GET /v2/forged%0Aaccess:%20client=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            while connection.recv(65536):
                pass
        self.assertEqual(self.infer(body('x"\naccess: client=2'))[0], 200)
        line_with(self.server, "path=/v2/forged")
        line_with(self.server, "client=2")
        for line in lines_of(self.server):
            self.assertRegex(line, r'^I\d{4} .*\] "(\[request id: .*\] )?access: client=127\.0\.0\.1 ')


@conch_only
@needs_library("identity")
class Settings(unittest.TestCase):
    def server(self, *flags):
        repository = Repository()
        self.addCleanup(repository.close)
        repository.model("identity", identity(FLOATS, batch=4))
        return servers.Server(repository.path, *flags)

    def test_one_in_so_many(self):
        with self.server("--access-log-rate=10", "--shards=1") as server:
            for _ in range(200):
                self.assertEqual(server.get("/v2/models/identity")[0], 200)
        found = lines_of(server)
        # The wait for the server's start is some requests, too.
        self.assertGreaterEqual(len(found), 20)
        self.assertLess(len([line for line in found if "path=/v2/models/identity " in line]), 22)

    def test_unix_sockets_and_json(self):
        with tempfile.TemporaryDirectory(prefix="conch-access-") as folder:
            path = f"{folder}/metrics"
            with self.server("--access-log-rate=1", "--log-format=json", f"--metrics-address=unix:{path}") as server:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(path)
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    while connection.recv(65536):
                        pass
                self.assertEqual(server.post_json("/v2/models/identity/infer", body("j1"))[0], 200)
                line_with(server, "client=user:", "/metrics")
                line_with(server, "j1")
        for line in lines_of(server):
            self.assertEqual(json.loads(line)["level"], "INFO")
        self.assertEqual([json.loads(line)["request_id"] for line in lines_of(server) if "j1" in line], ["j1"])

    def test_off_by_default(self):
        for flags in ([], ["--access-log-rate=0"]):
            with self.server(*flags) as server:
                self.assertEqual(server.post_json("/v2/models/identity/infer", body("o1"))[0], 200)
            self.assertEqual(lines_of(server), [])


if __name__ == "__main__":
    unittest.main()
