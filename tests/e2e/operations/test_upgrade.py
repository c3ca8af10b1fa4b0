"""Another executable in a running server's place (SIGUSR2): nobody's request is lost, and one that does not come up changes nothing."""

import http.client
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
import unittest

import numpy as np
import tritonclient.grpc as grpcclient

import server as servers
import wire
from case import KIND, conch_only, needs_library
from repository import Repository, identity
from waiting import until

STREAM_COUNT = 16


class Load:
    """Clients that count what they get: HTTP on connections that they keep, single calls and short streams of gRPC."""

    def __init__(self, ports):
        self.ports, self.stop, self.failures = ports, threading.Event(), []
        self.counts = {"http": 0, "unary": 0, "stream": 0}
        self.threads = [threading.Thread(target=self.run, args=(kind,)) for kind in ("http", "http", "unary", "unary", "stream", "stream")]
        self.value = np.arange(16, dtype=np.float32).reshape(1, 16)

    def run(self, kind):
        try:
            getattr(self, kind)()
        except Exception as error:  # shown by the test
            self.failures.append(f"{kind}: {error!r}")

    def http(self):
        head = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
        connection = None
        while not self.stop.is_set():
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=30)
            connection.request("POST", "/v2/models/identity/infer", head)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or b'"data":[1.0,2.0]' not in body:
                self.failures.append(f"http: {answer.status} {body[:200]}")
            if answer.will_close:
                connection.close()
                connection = None
            self.counts["http"] += 1

    def tensor(self):
        made = grpcclient.InferInput("INPUT0", self.value.shape, "FP32")
        made.set_data_from_numpy(self.value)
        return made

    def unary(self):
        with grpcclient.InferenceServerClient(f"127.0.0.1:{self.ports['grpc']}") as client:
            while not self.stop.is_set():
                answer = client.infer("identity", [self.tensor()], client_timeout=30)
                if not np.array_equal(answer.as_numpy("OUTPUT0"), self.value):
                    self.failures.append("unary: another tensor")
                self.counts["unary"] += 1

    def stream(self):
        with grpcclient.InferenceServerClient(f"127.0.0.1:{self.ports['grpc']}") as client:
            while not self.stop.is_set():
                answers, done = [], threading.Event()

                def note(result, error):
                    answers.append(error or result)
                    if len(answers) == STREAM_COUNT:
                        done.set()

                client.start_stream(note)
                for _ in range(STREAM_COUNT):
                    client.async_stream_infer("identity", [self.tensor()])
                if not done.wait(30):
                    self.failures.append(f"stream: {len(answers)} answers")
                client.stop_stream()
                self.failures += [f"stream: {answer}" for answer in answers if isinstance(answer, Exception)]
                self.counts["stream"] += 1

    def wait_for_more(self):
        before = dict(self.counts)
        until(lambda: self.failures or all(self.counts[kind] > count + 3 for kind, count in before.items()), "requests of each kind", 60)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


@conch_only
@needs_library("identity")
class Upgrade(unittest.TestCase):
    def setUp(self):
        self.repository = Repository()
        self.addCleanup(self.repository.close)
        self.repository.model("identity", identity(batch=8))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "conch"
        shutil.copy(servers.built("conch"), self.program)
        self.processes = []

    def start(self, *flags):
        before, os.environ["CONCH"] = os.environ.get("CONCH"), str(self.program)
        try:
            server = servers.Server(self.repository.path, *flags, kind=KIND)
        finally:
            os.environ.pop("CONCH")
            if before:
                os.environ["CONCH"] = before
        self.addCleanup(server.kill)
        # Before that: they hold the output that it reads to the end.
        self.addCleanup(self.end_processes)
        self.processes.append(server.pid)
        return server

    def end_processes(self):
        for process in self.processes[1:]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def replace(self, server):
        """Has the latest process replaced; the number of the new one, when the old one is gone."""
        old = self.processes[-1]
        os.kill(old, signal.SIGUSR2)
        started = rf"starts as process (\d+), to take this one's place"
        until(lambda: len(re.findall(started, server.output)) == len(self.processes), "the start of a new process", 30)
        new = int(re.findall(started, server.output)[-1])
        self.processes.append(new)
        server.wait_for_text(f"process {new} serves in this one's place", 60)
        if old == server.pid:
            self.assertEqual(server.process.wait(60), 0)
        else:
            until(lambda: not pathlib.Path(f"/proc/{old}").exists() or "Z" in pathlib.Path(f"/proc/{old}/stat").read_text().rsplit(")", 1)[1][:3], "the end of the old process", 60)
        return new

    def test_three_upgrades_under_load(self):
        server = self.start()
        with Load(server.ports) as load:
            load.wait_for_more()
            for number in range(3):
                fresh = self.folder / f"conch-{number}"
                shutil.copy(servers.built("conch"), fresh)
                identity_of = fresh.stat().st_ino
                # As package managers replace a file that runs.
                fresh.rename(self.program)
                new = self.replace(server)
                self.assertEqual(os.stat(f"/proc/{new}/exe").st_ino, identity_of)
                load.wait_for_more()
                self.assertEqual(load.failures, [])
        self.assertEqual(load.failures, [])
        os.kill(self.processes[-1], signal.SIGTERM)
        until(lambda: "SIGTERM received, stopping" in server.output, "the end")

    def test_a_program_that_does_not_come_up_changes_nothing(self):
        server = self.start()
        broken = self.folder / "broken"
        broken.write_text("#!/bin/sh\nexit 3\n")
        broken.chmod(0o755)
        broken.rename(self.program)
        with Load(server.ports) as load:
            os.kill(server.pid, signal.SIGUSR2)
            server.wait_for_match(r"process \d+ does not serve, this one goes on: it ended before that: exit status: 3")
            self.program.unlink()
            os.kill(server.pid, signal.SIGUSR2)
            server.wait_for_text("cannot be started in this process's place: No such file or directory")
            load.wait_for_more()
        self.assertEqual(load.failures, [])
        # And a sound one still does.
        shutil.copy(servers.built("conch"), self.program)
        self.processes.append(0)
        self.processes.append(0)
        os.kill(server.pid, signal.SIGUSR2)
        server.wait_for_match(r"process \d+ serves in this one's place", 60)
        new = int(re.findall(r"process (\d+) serves in this one's place", server.output)[-1])
        self.processes = [server.pid, new]
        self.assertEqual(server.process.wait(60), 0)
        self.assertEqual(server.get("/v2/health/ready")[0], 200)

    def test_one_at_a_time_and_none_that_outlives_a_stop(self):
        server = self.start()
        slow = self.folder / "slow"
        slow.write_text("#!/bin/sh\nexec sleep 600\n")
        slow.chmod(0o755)
        slow.rename(self.program)
        os.kill(server.pid, signal.SIGUSR2)
        server.wait_for_match(r"starts as process (\d+), to take this one's place")
        self.processes.append(int(re.search(r"starts as process (\d+),", server.output)[1]))
        os.kill(server.pid, signal.SIGUSR2)
        server.wait_for_text(f"process {self.processes[-1]} is being started in this one's place already")
        self.assertEqual(server.get("/v2/health/ready")[0], 200)
        self.assertEqual(server.terminate(), 0)
        until(lambda: not pathlib.Path(f"/proc/{self.processes[-1]}").exists(), "the end of the process that was started")

    def test_sockets_of_the_file_system(self):
        paths = {name: self.folder / f"{name}.sock" for name in ("http", "grpc")}
        server = self.start(*(f"--{name}-address=unix:{path}" for name, path in paths.items()))
        inodes = {path: path.stat().st_ino for path in paths.values()}
        self.replace(server)
        for path, inode in inodes.items():
            found = path.stat()
            self.assertTrue(stat.S_ISSOCK(found.st_mode))
            self.assertEqual(found.st_ino, inode)
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            link.connect(str(paths["http"]))
            link.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(wire.Replies(link).next()[0], 200)
        with grpcclient.InferenceServerClient(f"unix:{paths['grpc']}") as client:
            self.assertTrue(client.is_server_ready())

    def test_connections_that_rest_are_told_to_go(self):
        """One that was used a moment ago gets an answer to its next request, one that has rested for long is closed."""
        server = self.start()
        rested, used = wire.connect(server), wire.connect(server)
        self.addCleanup(rested.close)
        self.addCleanup(used.close)
        ask = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        for link in (rested, used):
            link.sendall(ask)
            self.assertEqual(wire.Replies(link).next()[0], 200)
        stop = threading.Event()
        outcome = []

        def go_on():
            replies = wire.Replies(used)
            while not stop.is_set():
                used.sendall(ask)
                status, headers, _ = replies.next()
                outcome.append((status, headers.get("connection", "")))
                if "close" in outcome[-1][1].lower():
                    return
                time.sleep(0.05)

        thread = threading.Thread(target=go_on)
        time.sleep(1.5)
        thread.start()
        try:
            self.replace(server)
        finally:
            stop.set()
            thread.join()
        self.assertEqual({status for status, _ in outcome}, {200})
        self.assertIn("close", outcome[-1][1].lower())
        self.assertEqual(rested.recv(1), b"")


if __name__ == "__main__":
    unittest.main()
