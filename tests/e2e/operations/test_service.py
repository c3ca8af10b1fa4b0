"""As a service of systemd: sockets that are passed at the start, and what the service manager is told. The manager is this process."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import server as servers
from case import conch_only
from repository import Repository, identity
from test_unix_sockets import BODY, ask

# Becomes the server, with the descriptors of the first word as 3, 4 and so on, and with their names, if the second has any.
PASSER = """
import fcntl, os, sys
numbers, names, process, *command = sys.argv[1:]
numbers = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in numbers.split(",")]
for place, number in enumerate(numbers, 3):
    os.dup2(number, place)
    os.close(number)
os.environ.update(LISTEN_PID=process or str(os.getpid()), LISTEN_FDS=str(len(numbers)))
if names:
    os.environ["LISTEN_FDNAMES"] = names
os.execv(command[0], command)
"""


def listening(family=socket.AF_INET, address=("127.0.0.1", 0)):
    held = socket.socket(family)
    held.bind(address)
    held.listen(64)
    return held


def passer(sockets, names="", process=""):
    """What stands before the server's command, to pass `sockets`."""
    return [sys.executable, "-c", PASSER, ",".join(str(held.fileno()) for held in sockets), names, process]


@conch_only
class PassedSockets(unittest.TestCase):
    def setUp(self):
        self.repository = Repository().model("plain", identity(batch=8))
        self.addCleanup(self.repository.close)

    def hold(self, *more, **named):
        held = listening(*more, **named)
        self.addCleanup(held.close)
        return held

    def start(self, sockets, *flags, names="", process="", **more):
        server = servers.Server(self.repository, *flags, prefix=passer(sockets, names, process), pass_fds=[held.fileno() for held in sockets],
                                **more)
        self.addCleanup(server.kill)
        return server

    def refused(self, sockets, *flags, names=""):
        """The output of a server that does not start."""
        with self.assertRaises(servers.StartFailed) as raised:
            self.start(sockets, *flags, names=names)
        self.assertEqual(raised.exception.code, 1, raised.exception.output)
        return raised.exception.output

    def infer(self, server):
        status, body = server.post_json("/v2/models/plain/infer", BODY)
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["outputs"][0]["data"], [1, 2])

    def test_by_name(self):
        sockets = {name: self.hold() for name in ("grpc", "metrics", "http")}
        with self.start(list(sockets.values()), names=":".join(sockets)) as server:
            self.assertEqual(server.ports, {name: held.getsockname()[1] for name, held in sockets.items()})
            self.infer(server)
            self.assertEqual(server.metrics()['nv_inference_request_success{model="plain",version="1"}'], 1)

    def test_by_port_and_the_others_are_bound(self):
        held = self.hold()
        port = held.getsockname()[1]
        # As systemd names what it is told no name for.
        with self.start([held], f"--http-port={port}", names="conch.socket") as server:
            self.assertEqual(server.ports["http"], port)
            self.assertNotIn(port, (server.ports["grpc"], server.ports["metrics"]))
            self.infer(server)

    def test_several_for_one_listener(self):
        sockets = [self.hold(), self.hold()]
        with self.start(sockets, names="http:http") as server:
            for held in sockets:
                server.ports["http"] = held.getsockname()[1]
                self.infer(server)

    def test_unix_socket_by_path(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        path = folder / "http.sock"
        held = self.hold(socket.AF_UNIX, str(path))
        with self.start([held], f"--http-address=unix:{path}", expect_ready=False):
            status, body = ask(path, "POST", "/v2/models/plain/infer", BODY)
            self.assertEqual(status, 200, body)
        self.assertTrue(path.exists(), "the file is the manager's")

    def test_connections_wait_for_the_next_server(self):
        held = self.hold()
        with self.start([held], names="http") as server:
            self.infer(server)
        # Nobody serves: it is taken by the kernel, and by the server that comes.
        with contextlib.closing(http.client.HTTPConnection(*held.getsockname(), timeout=60)) as waiting:
            waiting.request("GET", "/v2/health/live")
            with self.start([held], names="http"):
                self.assertEqual(waiting.getresponse().status, 200)

    def test_what_nobody_serves_is_refused(self):
        held = self.hold()
        self.assertIn("the socket 'conch.socket' at 127.0.0.1:", self.refused([held], names="conch.socket"))
        self.assertIn("was passed, but no listener is to be there; name it http,", self.refused([held]))
        self.assertIn("was passed, but that listener is off", self.refused([held], "--allow-grpc=false", names="grpc"))

    def test_what_does_not_listen_is_refused(self):
        connected = socket.create_connection(self.hold().getsockname())
        self.addCleanup(connected.close)
        output = self.refused([connected], names="http")
        self.assertIn("the socket 'http', descriptor 3, is of no use: it is no stream socket that listens", output)
        self.assertIn("has 2 names for 1 sockets", self.refused([self.hold()], names="http:grpc"))

    def test_sockets_of_another_process_are_left(self):
        held = self.hold()
        with self.start([held], names="http", process="1") as server:
            self.assertNotEqual(server.ports["http"], held.getsockname()[1])
            self.infer(server)


@conch_only
class Manager(unittest.TestCase):
    """What a server tells, in order."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.settimeout(60)

    def told(self):
        return dict(line.split("=", 1) for line in self.manager.recv(4096).decode().splitlines())

    def check(self, address):
        with Repository().model("plain", identity()) as repository, \
                servers.Server(repository, environment={"NOTIFY_SOCKET": address}) as server:
            self.assertEqual(self.told(), {"STATUS": "loading models"})
            ready = self.told()
            self.assertEqual(ready.pop("STATUS"), f"serving: HTTP http://{server.http}, gRPC {server.grpc}, "
                                                  f"metrics http://{server.address('metrics')}/metrics")
            self.assertEqual(ready, {"READY": "1"})
            server.process.send_signal(signal.SIGHUP)
            reloading = self.told()
            self.assertGreater(int(reloading.pop("MONOTONIC_USEC")), 0)
            self.assertEqual(reloading, {"RELOADING": "1"})
            self.assertEqual(self.told(), {"READY": "1"})
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(self.told()["STOPPING"], "1")

    def test_by_path(self):
        path = str(self.folder / "notify")
        self.manager.bind(path)
        self.check(path)

    def test_by_abstract_name(self):
        name = f"conch-notify-{os.getpid()}"
        self.manager.bind("\0" + name)
        self.check("@" + name)

    def test_a_manager_that_is_gone_is_told_of_in_the_log(self):
        for address in (str(self.folder / "nobody"), "vsock:2:1"):
            with self.subTest(address), Repository().model("plain", identity()) as repository, \
                    servers.Server(repository, environment={"NOTIFY_SOCKET": address}) as server:
                server.wait_for_text("the service manager ")


class Units(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_systemd_takes_them(self):
        """But for the executable, which is not installed here."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-units-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        for unit in ("conch.service", "conch.socket"):
            text = (servers.ROOT / "scripts/packaging" / unit).read_text()
            (folder / unit).write_text(text.replace("/opt/tritonserver/bin/conch", "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", folder / "conch.service", folder / "conch.socket"], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
