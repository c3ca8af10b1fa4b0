"""Listeners on Unix sockets: HTTP, gRPC and metrics over them, the files they leave, and what clashes."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import tempfile
import threading
import unittest

import numpy
import tritonclient.grpc as grpcclient

import server as servers
from case import conch_only
from repository import Repository, identity
from waiting import until

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}]})


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def ask(path, method, target, body=None):
    with contextlib.closing(UnixConnection(path)) as connection:
        connection.request(method, target, body)
        reply = connection.getresponse()
        return reply.status, reply.read()


@conch_only
class UnixSockets(unittest.TestCase):
    def setUp(self):
        self.repository = Repository().model("plain", identity(batch=8))
        self.addCleanup(self.repository.close)
        # Short: a path has 107 bytes at most.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.paths = {name: self.folder / f"{name}.sock" for name in ("http", "grpc", "metrics")}

    def start(self, *flags, names=("http", "grpc", "metrics"), **more):
        flags = [*(f"--{name}-address=unix:{self.paths[name]}" for name in names), *flags]
        server = servers.Server(self.repository, *flags, expect_ready="http" not in names, **more)
        self.addCleanup(server.kill)
        if "http" in names:
            until(lambda: ask(self.paths["http"], "GET", "/v2/health/ready")[0] == 200, "a server that is ready")
        return server

    def infer(self):
        status, body = ask(self.paths["http"], "POST", "/v2/models/plain/infer", BODY)
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["outputs"][0]["data"], [1, 2])

    def infer_grpc(self, authority=None):
        """By default the C core sends the path, in the notation of URLs, as the authority of its calls."""
        channel_args = [("grpc.default_authority", authority)] if authority else None
        with contextlib.closing(grpcclient.InferenceServerClient(f"unix:{self.paths['grpc']}", channel_args=channel_args)) as client:
            given = grpcclient.InferInput("INPUT0", [2, 1], "FP32")
            values = numpy.array([[3], [4]], numpy.float32)
            given.set_data_from_numpy(values)
            self.assertEqual(client.infer("plain", [given]).as_numpy("OUTPUT0").tolist(), values.tolist())

    def test_all_protocols(self):
        with self.start() as server:
            self.infer()
            self.infer_grpc()
            status, page = ask(self.paths["metrics"], "GET", "/metrics")
            self.assertEqual(status, 200)
            self.assertIn(b'nv_inference_request_success{model="plain",version="1"} 2\n', page)
            self.assertIn(f"Started HTTPService at unix:{self.paths['http']}", server.output)
            self.assertIn(f"HTTP unix:{self.paths['http']}, gRPC unix:{self.paths['grpc']}", server.output)
        self.assertEqual(list(self.folder.iterdir()), [], "the files go with the server")

    def test_an_authority_that_is_no_path(self):
        with self.start(names=("http", "grpc")):
            self.infer_grpc("localhost")

    def test_large_bodies_of_many_clients(self):
        with self.start(names=("http",)):
            values = list(range(50_000))
            body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}]})
            failures = []

            def some():
                try:
                    for _ in range(5):
                        status, answer = ask(self.paths["http"], "POST", "/v2/models/plain/infer", body)
                        assert status == 200 and json.loads(answer)["outputs"][0]["data"] == values, answer[:200]
                        self.infer()
                except Exception as error:  # noqa: BLE001: told by the test's thread
                    failures.append(error)
            threads = [threading.Thread(target=some) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])

    def test_permissions(self):
        with self.start("--unix-socket-mode=0660"):
            for path in self.paths.values():
                self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o660)
        for mode in ("8", "1777", "rw"):
            with self.subTest(mode), self.assertRaises(servers.StartFailed) as raised:
                self.start(f"--unix-socket-mode={mode}")
            self.assertIn("octal, 777 at most", raised.exception.output)

    def test_a_file_that_a_killed_server_left(self):
        first = self.start(names=("http",))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        self.assertTrue(self.paths["http"].exists())
        with self.start(names=("http",)):
            self.infer()
            # One that is served is nobody else's.
            with self.assertRaises(servers.StartFailed) as raised:
                servers.Server(self.repository, f"--http-address=unix:{self.paths['http']}")
            self.assertIn(f"Socket 'unix:{self.paths['http']}' already in use", raised.exception.output)
            self.infer()
        self.assertFalse(self.paths["http"].exists())

    def test_what_is_no_socket_stays(self):
        self.paths["http"].write_text("mine")
        with self.assertRaises(servers.StartFailed) as raised:
            servers.Server(self.repository, f"--http-address=unix:{self.paths['http']}")
        self.assertIn("the file is there, and is no socket", raised.exception.output)
        self.assertEqual(self.paths["http"].read_text(), "mine")

    def test_refusals(self):
        same = self.paths["http"]
        for flags, words in (
            ((f"--http-address=unix:{same}", f"--grpc-address=unix://{same}"),
             f"HTTP requests and GRPC requests at the same address and port unix:{same}"),
            (("--http-address=unix:/nonexistent/folder/s",), "No such file or directory"),
            ((f"--http-address=unix:{self.folder}/{'x' * 108}",), "File name too long"),
        ):
            with self.subTest(flags), self.assertRaises(servers.StartFailed) as raised:
                servers.Server(self.repository, *flags)
            self.assertIn(words, raised.exception.output)

    def test_metrics_listen_on_the_loopback_unless_told(self):
        with self.start(names=("http",)) as server:
            self.assertRegex(server.output, r"Started Metrics Service at 127\.0\.0\.1:")

    def test_a_drain_ends_what_was_begun(self):
        with self.start(names=("http",)) as server:
            connection = UnixConnection(self.paths["http"])
            self.addCleanup(connection.close)
            connection.request("GET", "/v2/health/live")
            self.assertEqual(connection.getresponse().read(), b"")
            os.kill(server.pid, signal.SIGTERM)
            server.process.wait(timeout=30)
            self.assertEqual(server.process.returncode, 0, server.output)
            self.assertEqual(connection.sock.recv(1), b"")
            self.assertFalse(self.paths["http"].exists())
