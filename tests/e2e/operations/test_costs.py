"""What a request and a model cost, counted. At the C boundary: instructions and allocations of one round trip (Execute of the identity
backend on one request, with all its calls into the server), by the difference of runs of different length. On the wire: how often the
server's threads slept, and how many system calls move a large tensor. Of a model: its memory."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import unittest

from tritonclient.grpc import service_pb2 as pb

import server as servers
import wire
from callgrind import Callgrind
from case import conch_only, needs_library
from repository import Repository, identity
from waiting import until

ENSEMBLE = """platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "first" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "one" } },
  { model_name: "second" model_version: -1 input_map { key: "INPUT0" value: "one" } output_map { key: "OUTPUT0" value: "two" } },
  { model_name: "third" model_version: -1 input_map { key: "INPUT0" value: "two" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""

# Of the executable's allocator, by its functions that the Rust code calls.
ALLOCATION = r"mi_(malloc|zalloc|realloc)_aligned"

PROGRAM = servers.built("ffi-round-trip")


@conch_only
@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM.name} is not built in profile {servers.PROFILE}")
@unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
@needs_library("identity")
class RoundTrip(unittest.TestCase):
    def count(self, tool, pattern, requests, until):
        done = subprocess.run(["valgrind", f"--tool={tool}", *(["--callgrind-out-file=/dev/null"] if tool == "callgrind" else []),
                               str(PROGRAM), f"--backends={servers.backend_directory()}", f"--requests={requests}", f"--until={until}"],
                              capture_output=True, text=True, timeout=300, check=False, cwd=tempfile.gettempdir())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return int(re.search(pattern, done.stderr)[1].replace(",", ""))

    def per_request(self, tool, pattern, until):
        few, many = (self.count(tool, pattern, requests, until) for requests in (1000, 3000))
        return (many - few) / 2000

    def boundary(self, tool, pattern):
        """Of a round trip alone: without what admission costs."""
        return self.per_request(tool, pattern, "execute") - self.per_request(tool, pattern, "admit")

    def test_allocations(self):
        """The response, and an output's bytes with what they are kept by, which leave together; nothing else is allocated once it runs, but for
        a few by other threads."""
        self.assertLess(self.boundary("memcheck", r"total heap usage: ([\d,]+) allocs"), 2.1)

    @unittest.skipIf(servers.PROFILE == "debug", "says nothing about unoptimised code")
    def test_instructions(self):
        """About 7,000 in profile ci; the bound leaves room for other compilers and C libraries."""
        self.assertLess(self.boundary("callgrind", r"Collected : ([\d,]+)"), 9500)


@conch_only
@needs_library("identity")
class Wire(unittest.TestCase):
    """One client that sends one request after the other: the shard executes them itself, and sleeps once per request."""

    def sleeps(self, server):
        """How often threads of the server gave up their CPU to wait."""
        tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
        return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.MULTILINE)[1]) for task in tasks)

    def small_requests(self, server, model="identity", is_binary=False):
        """Sends as many small requests as asked over one HTTP connection, each in one piece."""
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [4]}
        if is_binary:
            body = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 16}}],
                               "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
            length = b"Inference-Header-Content-Length: %d\r\n" % len(body)
            body += struct.pack("<4f", 1, 2, 3, 4)
        else:
            body, length = json.dumps({"inputs": [{**tensor, "data": [1, 2, 3, 4]}]}).encode(), b""
        request = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: conch\r\n%bContent-Length: %d\r\n\r\n%b" % (
            model.encode(), length, len(body), body)
        host, port = server.http.split(":")
        connection = socket.create_connection((host, int(port)))
        self.addCleanup(connection.close)

        def send(count):
            for _ in range(count):
                connection.sendall(request)
                self.assertEqual(connection.recv(65536)[:12], b"HTTP/1.1 200")
        send(200)
        return send

    def sleeps_per_request(self, repository, model):
        """Where an execution is interrupted the core gets the next ones: the quietest of some runs is meant."""
        with servers.Server(repository) as server:
            send = self.small_requests(server, model)

            def run():
                before = self.sleeps(server)
                send(1000)
                return (self.sleeps(server) - before) / 1000
            return min(run() for _ in range(5))

    def test_sleeps(self):
        with Repository().model("identity", identity()) as repository:
            self.assertLess(self.sleeps_per_request(repository, "identity"), 1.2)

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    @unittest.skipIf(servers.PROFILE == "debug", "says nothing about unoptimised code")
    def test_allocations_and_instructions_of_small_requests(self):
        """What the server allocates and executes for a binary request, with all that its threads do meanwhile."""
        count = 500
        profiles = []
        with (tempfile.TemporaryDirectory(prefix="conch-costs-") as folder, Repository().model("identity", identity()) as repository):
            callgrind = Callgrind(folder)
            with servers.Server(repository, "--shards=1", prefix=callgrind.prefix) as server:
                send = self.small_requests(server, is_binary=True)
                with callgrind.counting(server, profiles):
                    send(count)
        allocations = profiles[0].call_count(ALLOCATION) / count
        # The body, the decoded request, the engine's, the output, the response and the message that it comes in. Threads that look
        # after the server allocate now and then.
        self.assertTrue(5.9 <= allocations <= 6.5, allocations)
        # About 22,000 in profile release, and 29,000 in profile ci, which asserts more and inlines less.
        self.assertLess(profiles[0].instruction_count / count, 40_000)

    def core_sleeps(self, repository, model, steps, count):
        """How often the cores of `steps` sleep per request, of `count` that come at once, from as many connections."""
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}).encode()
        request = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: conch\r\nContent-Length: %d\r\n\r\n%b" % (model.encode(), len(body), body)
        # Where shard and cores share a CPU, the shard alone executes what is brief.
        prefix = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
        with servers.Server(repository, "--shards=1", prefix=prefix) as server:
            host, port = server.http.split(":")
            connections = [socket.create_connection((host, int(port))) for _ in range(count)]
            for connection in connections:
                self.addCleanup(connection.close)

            def send(rounds):
                for _ in range(rounds):
                    for connection in connections:
                        connection.sendall(request)
                    for connection in connections:
                        self.assertEqual(connection.recv(65536)[:12], b"HTTP/1.1 200")

            def sleeps():
                tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
                cores = [task for task in tasks if (task / "comm").read_text().startswith(steps)]
                self.assertEqual(len(cores), len(steps))
                return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (core / "status").read_text(), re.MULTILINE)[1]) for core in cores)

            def run():
                before = sleeps()
                send(50)
                return (sleeps() - before) / (50 * count)
            send(20)
            # What interrupts executions makes them seem long, and leaves the next ones to the core: the quietest run is meant.
            return min(run() for _ in range(10))

    def test_many_at_a_time_wake_no_core(self):
        """The shard executes sixteen requests itself, and the core sleeps on. Woken for each burst, it would sleep 0.06 times per request."""
        with Repository().model("identity", identity()) as repository:
            self.assertLess(self.core_sleeps(repository, "identity", ("identity",), 16), 0.02)

    def test_many_of_an_ensemble_wake_no_core(self):
        """The same for the steps of sixty-four requests, which take longer than a turn of the shard."""
        steps = ("first", "second", "third")
        with Repository() as repository:
            for name in steps:
                repository.model(name, identity())
            repository.model("ensemble", ENSEMBLE)
            self.assertLess(self.core_sleeps(repository, "ensemble", steps, 64), 0.02)

    def test_sleeps_of_an_ensemble(self):
        """The shard executes its steps one after the other."""
        with Repository() as repository:
            for name in ("first", "second", "third"):
                repository.model(name, identity())
            repository.model("ensemble", ENSEMBLE)
            self.assertLess(self.sleeps_per_request(repository, "ensemble"), 1.2)

    def calls(self, server, count, send):
        """How often the server makes each system call that is of the data plane, for one of the `count` requests of `send`."""
        with tempfile.NamedTemporaryFile("r") as table:
            tracer = subprocess.Popen(["strace", "-f", "-c", "-o", table.name, "-e",
                                       "trace=recvfrom,recvmsg,sendto,sendmsg,futex,sched_yield,io_uring_enter,write", "-p",
                                       str(server.process.pid)], stderr=subprocess.PIPE, text=True)
            try:
                line = tracer.stderr.readline()
                if "attached" not in line:
                    self.skipTest(f"strace may not look at other processes here: {line.strip()}")
                send()
            finally:
                tracer.send_signal(signal.SIGINT)
                tracer.communicate(timeout=60)
            rows = [line.split() for line in table.read().splitlines()]
        return {row[-1]: int(row[3]) / count for row in rows if len(row) > 4 and row[3].isdigit()}

    @unittest.skipUnless(shutil.which("strace"), "there is no strace")
    def test_calls_of_small_requests(self):
        """One client that sends one request after the other over HTTP: the shard receives, executes and sends, with one call each."""
        count = 500
        # An execution that is interrupted leaves the next ones to the core: the quietest run is meant. How often the shard enters the
        # kernel stands below: the tracer's stops at each call make turns longer than a turn may be.
        allowed = {"recvfrom": 1.02, "sendmsg": 1.02, "io_uring_enter": 2.2, "futex": 0.2, "sched_yield": 0.1, "write": 0.05}
        with Repository().model("identity", identity()) as repository, servers.Server(repository) as server:
            send = self.small_requests(server)
            runs = [self.calls(server, count, lambda: send(count)) for _ in range(3)]
        calls = min(runs, key=lambda calls: sum(calls.get(name, 0) for name in allowed if name != "io_uring_enter"))
        self.assertLessEqual(calls.keys(), {*allowed, "total"}, calls)
        for name, most in allowed.items():
            self.assertLessEqual(calls.get(name, 0), most, runs)

    @unittest.skipUnless(shutil.which("strace"), "there is no strace")
    def test_turns_of_small_requests(self):
        """The same client: the shard enters the kernel once per request. Only these calls stop for the tracer, so no turn is longer for it."""
        count = 500
        with tempfile.NamedTemporaryFile("r") as lines, Repository().model("identity", identity()) as repository:
            tracer = ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", lines.name, "-e", "trace=io_uring_enter"]
            probe = subprocess.run([*tracer, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            if probe.returncode or probe.stderr:
                self.skipTest(f"strace may not look at other processes here: {probe.stderr.strip()}")
            with servers.Server(repository, prefix=tracer) as server:
                send = self.small_requests(server)

                def run():
                    lines.seek(0, os.SEEK_END)
                    send(count)
                    # The first line may begin in the middle. Where threads' calls overlap, one is told in two lines.
                    return sum("io_uring_enter(" in line for line in lines.readlines()) / count
                runs = [run() for _ in range(5)]
        self.assertGreater(min(runs), 0.5, "the tracer told nothing")
        # Timers make a few more, and so does what interrupts a turn: the quietest run is meant.
        self.assertLessEqual(min(runs), 1.1, runs)

    def exchange(self, link, stream, request):
        """One ModelInfer in frames of 16 KiB, as clients of most libraries send and take them; the bytes of the answer's tensor."""
        message = request.SerializeToString()
        message = b"\0" + struct.pack(">I", len(message)) + message
        parts = [message[at:at + 16384] for at in range(0, len(message), 16384)]
        link.send(wire.frame(wire.HEADERS, 4, stream, wire.call_head("ModelInfer")),
                  *(wire.frame(wire.DATA, int(part is parts[-1]), stream, part) for part in parts))
        answer = b""
        while True:
            kind, flags, _, payload = link.wait_for(wire.DATA, wire.HEADERS)
            answer += payload if kind == wire.DATA else b""
            if flags & 1:
                return pb.ModelInferResponse.FromString(answer[5:]).raw_output_contents[0]

    @unittest.skipUnless(shutil.which("strace"), "there is no strace")
    def test_calls_of_large_tensors(self):
        """A tensor of 600 KB each way over gRPC: its DATA frames are received and sent many at a time."""
        count, element_count = 20, 150_000
        tensor = bytes(range(250)) * (element_count * 4 // 250)
        request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[tensor], inputs=[
            pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[element_count])])
        streams = itertools.count(1, 2)
        with Repository().model("identity", identity()) as repository, servers.Server(repository) as server, wire.Http2(server) as link:
            link.send(wire.PREFACE, wire.frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 24)),
                      wire.frame(wire.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))).wait_for(wire.SETTINGS)
            link.send(wire.frame(wire.SETTINGS, 1, 0))

            def send():
                for _ in range(count):
                    self.assertEqual(self.exchange(link, next(streams), request), tensor)
            send()
            calls = self.calls(server, count, send)
        received = calls.get("recvfrom", 0) + calls.get("recvmsg", 0)
        sent = calls.get("sendto", 0) + calls.get("sendmsg", 0)
        # One frame at a time it is 37 frames each way, each received in two parts. How many it takes depends on what is there each time.
        self.assertTrue(1 <= received <= 20, calls)
        self.assertTrue(1 <= sent <= 12, calls)


@conch_only
@needs_library("identity")
class Memory(unittest.TestCase):
    COUNT = 100

    def assert_resident(self, count, bytes_max):
        """A server with so many models holds no more once it rests: what its start has freed is given back when it is ready."""
        repository = Repository()
        for number in range(count):
            repository.model(f"model_{number}", identity())
        with repository, servers.Server(repository) as server:
            until(server.resident_bytes, f"at most {bytes_max} bytes for {count} models", accept=lambda value: value <= bytes_max)

    def test_models(self):
        """Each has a thread, which keeps two pages of memory for every size that it has ever asked for."""
        self.assert_resident(1, 12_000_000)
        self.assert_resident(self.COUNT, 12_000_000 + self.COUNT * 90_000)

    def test_a_busy_moment(self):
        """Sixteen large bodies at a time: their blocks are kept for the next ones, and given back when nobody has needed them."""
        count, element_count = 16, 700_000
        tensor = bytes(4 * element_count)
        request = wire.infer_json({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [element_count],
                                               "parameters": {"binary_data_size": len(tensor)}}]}, tensor)
        with Repository().model("identity", identity()) as repository, servers.Server(repository) as server, contextlib.ExitStack() as stack:
            links = [stack.enter_context(wire.connect(server)) for _ in range(count)]
            for link in links:
                link.sendall(request[:-1])
            for link in links:
                link.sendall(request[-1:])
                self.assertEqual(wire.Replies(link).next()[0], 200)
            busy = server.resident_bytes()
            self.assertGreater(busy, count * len(tensor))
            until(server.resident_bytes, f"half of the bodies are given back of {busy} bytes", seconds=60,
                  accept=lambda value: value < busy - count * len(tensor) / 2)


if __name__ == "__main__":
    unittest.main()
