"""The process: start, readiness, what it refuses to start with, signals and draining, memory, CPU, and model repositories."""

import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import grpc
import hpack
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import server as servers
import wire
from case import KIND, ServerCase, conch_only, pack
from repository import Repository, identity
from waiting import until, until_equal

HERE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("CONCH", str(servers.built("conch")))


def run(*arguments, within=20, **more):
    """Runs the executable to its end: (exit code, standard output, standard error)."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=within, check=False, **more)
    return done.returncode, done.stdout, done.stderr


def free_flags():
    return ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]


@conch_only
class CommandLine(unittest.TestCase):
    """Everything the command line refuses: the flag and the reason on standard error, with the way to all flags; exit code 1."""

    def check(self, arguments, reason):
        code, out, errors = run(*arguments)
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(errors, reason)
        self.assertLessEqual(len(errors.splitlines()), 3, "what matters is not lost in a page of help")
        self.assertIn("--help", errors.splitlines()[-1])

    def test_unknown_flag(self):
        self.check(["--no-such-flag"], "no-such-flag")

    def test_did_you_mean(self):
        self.check(["--http-prot=1"], r"Did you mean --http-port\?")
        self.check(["--model_repository=m"], r"Did you mean --model-repository\?")
        self.check(["--grpc-use=1"], "Several options begin so: --grpc-use-ssl, --grpc-use-ssl-mutual")

    def test_choices(self):
        self.check(["--model-control-mode=x"], "invalid argument for --model-control-mode. It takes one of: none, poll, explicit")

    def test_version(self):
        for flags in (["--version"], ["--model-repository=m", "--version"]):
            code, out, errors = run(*flags)
            self.assertEqual((code, errors), (0, ""))
            self.assertRegex(out, r"^conch \d+\.\d+\.\d+ \(interfaces of Triton 2\.\d+\.\d+\)\n$")
        version = out.split()[1]
        self.assertIn(f"conch {version} ", run("--help")[1])
        with Repository().model("identity", identity()) as repository, servers.Server(repository) as server:
            server.wait_for_match(f'"conch {version} ')
            self.assertLessEqual({"conch", f"conch({version})"}, set(server.get_json("/v2")["extensions"]))

    def test_stray_word(self):
        self.check(["--model-repository=/nonexistent", "stray"], "Unexpected argument: stray")

    def test_bad_bool(self):
        self.check(["--allow-http=2"], "invalid value for bool option: 2")

    def test_bad_number(self):
        self.check(["--http-port=abc"], "Invalid option value. Got abc")

    def test_number_out_of_range(self):
        self.check(["--http-port=99999999999999"], "Provided option value is out of bound. Got 99999999999999")

    def test_help(self):
        for flag in ("--help", "-h"):
            code, out, errors = run(flag)
            self.assertEqual((code, errors), (0, ""))
            self.assertRegex(out, "(?s)Usage: .*--model-repository")

    def test_port_clash(self):
        with Repository() as repository:
            code, _, errors = run(f"--model-repository={repository}", "--http-port=7999", "--grpc-port=7999")
        self.assertEqual(code, 1)
        self.assertRegex(errors, r"The server cannot listen to .* requests and .* requests at the same address and port")

    def test_flag_forms(self):
        with Repository().model("identity", identity()) as repository:
            with servers.Server(repository, "--allow-metrics", "FALSE", "--i", "other", "--log-verbose=1") as server:
                self.assertEqual(server.get_json("/v2")["name"], "other")
                self.assertNotIn("Started Metrics Service", server.output)

    def test_deprecated_flag(self):
        """In upstream's words, on the console, whatever the log shows."""
        removed = "has been deprecated and will be removed in future releases. Please use"
        expected = [
            "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.",
            f"Warning: '--trace-rate' {removed} '--trace-config rate=<rate value> instead.",
            f"Warning: '--trace-level' {removed} '--trace-config level=<OFF|TIMESTAMPS|TENSORS> instead.",
            "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of '--disable-auto-complete-config'!",
            "Warning: Overriding deprecated '--trace-rate' in favor of provided rate value in --trace-config!",
        ]
        with Repository().model("identity", identity()) as repository:
            with servers.Server(repository, "--strict-model-config=false", "--trace-rate=3", "--trace-level=OFF",
                                "--disable-auto-complete-config", "--trace-config=rate=4", "--log-warning=false") as server:
                told = [line for line in server.lines if line.startswith("Warning: ")]
                self.assertEqual(told, expected)
                self.assertEqual(server.get_json("/v2/trace/setting")["trace_rate"], "4")

    def test_what_upstream_starts_with(self):
        with Repository().model("identity", identity()) as repository:
            with servers.Server(repository, "--grpc-port", "-47", "--allow-grpc", "0", "--model-load-thread-count=0",
                                "--log-file=/nonexistent/log", "--trace-config=rate=-1") as server:
                server.wait_for_match("--log-file: .*/nonexistent/log")
                self.assertEqual(server.get_json("/v2/trace/setting")["trace_rate"], "4294967295")

    def test_gpu_limit(self):
        for value, reason in (("-1:0.6", "expects device ID >= 0, got -1"),
                              ("0:-0.4", r"expects limit fraction to be in range \[0\.0, 1\.0\], got -0\.4")):
            self.check(["--model-repository=m", f"--model-load-gpu-limit={value}"],
                       "error: setting model load GPU limit: Invalid argument - " + reason)


@conch_only
class Refusals(unittest.TestCase):
    """What the host does not give: a message that names it, and exit code 1."""

    def setUp(self):
        self.repository = Repository().model("identity", identity())
        self.addCleanup(self.repository.close)
        self.flags = [f"--model-repository={self.repository}", f"--backend-directory={servers.backend_directory()}"]

    def check(self, reason, *flags, **more):
        code, out, errors = run(*self.flags, *flags, **more)
        self.assertEqual(code, 1, errors)
        self.assertRegex(out + errors, reason)
        self.assertNotIn("panicked", out + errors)
        return out + errors, errors.splitlines()[-1]

    def test_port_in_use(self):
        for name in ("http", "grpc", "metrics"):
            with self.subTest(name), socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                flags = [flag for flag in free_flags() if not flag.startswith(f"--{name}-port")]
                output, last = self.check(rf"Socket '127.0.0.1:{port}' already in use", *flags, f"--{name}-port={port}")
                service = {"http": "HTTP", "grpc": "GRPC", "metrics": "Metrics"}[name]
                told = f"failed to start {service} service: Unavailable - Socket '127.0.0.1:{port}' already in use "
                self.assertRegex(last, f'^E[^"]*"{told}"$')
                self.assertEqual(output.count(told), 1)
                log = ["--log-file=/dev/null", f"--{name}-port={port}"]
                self.assertEqual(self.check(told, *flags, *log)[1], told, "who does not look into the log is told, too")
                self.assertNotIn("loading: identity", output, "models are loaded only where they can be served")

    def test_an_address_that_is_not_ours(self):
        _, last = self.check("192.0.2.1", *free_flags(), "--http-address=192.0.2.1")
        self.assertRegex(last, "failed to start HTTP service: Unavailable - cannot listen on 192.0.2.1:0: .*assign requested address")
        self.assertNotIn("in use", last)

    def test_no_repository(self):
        code, _, errors = run(*free_flags())
        self.assertEqual(code, 1)
        self.assertRegex(errors, "model-repository")

    def test_missing_repository(self):
        self.flags[0] = "--model-repository=/nonexistent/models"
        _, last = self.check("/nonexistent/models", *free_flags())
        self.assertRegex(last, "^error: creating server: Internal - failed to stat file /nonexistent/models")

    @unittest.skipUnless(os.geteuid() == 0, "only root may become nobody, whose locked memory counts")
    def test_little_locked_memory_is_enough(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (32 << 10, 32 << 10))
        code, out, errors = run_as_nobody(PROGRAM, *self.flags, *free_flags(), "--shards=2", preexec=limit, until='"serving: ')
        self.assertEqual(code, 0, out + errors)

    def test_io_uring_denied(self):
        for number in (1, 38, 12):  # EPERM, ENOSYS, ENOMEM
            with self.subTest(os.strerror(number)):
                done = subprocess.run([sys.executable, str(HERE / "deny.py"), "io_uring_setup", str(number), PROGRAM,
                                       *self.flags, *free_flags()], capture_output=True, text=True, timeout=20, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stdout + done.stderr, "io_uring")
                self.assertNotIn("panicked", done.stdout + done.stderr)


@conch_only
@unittest.skipUnless(os.geteuid() == 0, "only root may hide /sys in a namespace of its own")
class WithoutSys(unittest.TestCase):
    def test_it_serves(self):
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
        with Repository().model("identity", identity()) as repository, servers.Server(repository, prefix=hidden) as server:
            request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
            status, reply = server.post_json("/v2/models/identity/infer", request)
            self.assertEqual(status, 200, reply)


def run_as_nobody(*command, preexec=None, until=None):
    """Runs a command without any privilege, so that limits count: (exit code, standard output, standard error). It gets SIGTERM once it
    has written a line with `until` to standard output."""
    def drop():
        if preexec:
            preexec()
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with Repository() as place:
        os.chmod(place.path, 0o755)
        # The checkout may lie where nobody can look: the program is copied to a place of its own.
        copy = place.path / "conch"
        copy.write_bytes(pathlib.Path(command[0]).read_bytes())
        copy.chmod(0o755)
        models = place.path / "models/identity"
        (models / "1").mkdir(parents=True)
        (models / "config.pbtxt").write_text(identity())
        arguments = [f"--model-repository={models.parent}" if part.startswith("--model-repository") else part
                     for part in command[1:]]
        with subprocess.Popen([str(copy), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=drop,
                              cwd="/") as process:
            kill = threading.Timer(20, process.kill)
            kill.start()
            lines = []
            if until:
                for line in process.stdout:
                    lines.append(line)
                    if until in line:
                        process.terminate()
                        break
            output, errors = process.communicate()
            kill.cancel()
    return process.returncode, "".join(lines) + output, errors


@conch_only
class Signals(unittest.TestCase):
    def setUp(self):
        self.repository = Repository().model("identity", identity(batch=8))
        self.repository.model("slow", identity(parameters={"execute_delay_ms": "700"}))
        self.addCleanup(self.repository.close)

    def start(self, *flags, **more):
        server = servers.Server(self.repository, *flags, **more)
        self.addCleanup(server.kill)
        return server

    def test_both_signals_end_well(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                server = self.start()
                self.assertEqual(server.terminate(signal_number=number), 0)

    def slow_request(self, server, answers):
        body = {"id": "slow", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
        answers.append(server.post_json("/v2/models/slow/infer", body))

    def test_what_is_in_flight_is_answered(self):
        server, answers = self.start("--log-verbose=1"), []
        sender = threading.Thread(target=self.slow_request, args=(server, answers))
        sender.start()
        server.wait_for_state("slow", "EXECUTING")
        code = server.terminate()
        sender.join(10)
        self.assertEqual((code, answers[0][0]), (0, 200))
        self.assertEqual(json.loads(answers[0][1])["outputs"][0]["data"], [1, 2])

    def test_drain_delay(self):
        server = self.start("--drain-delay-secs=1")
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        until_equal(lambda: server.get("/v2/health/ready"), (503, b'{"error":"Server exiting"}'), "the readiness")
        self.assertEqual(server.get("/v2/health/live")[0], 200)
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        self.assertEqual(server.post_json("/v2/models/identity/infer", body)[0], 200)
        self.assertEqual(server.terminate(), 0)
        self.assertGreater(time.monotonic() - begun, 0.9)

    def test_idle_connections_do_not_hold_the_exit(self):
        server = self.start()
        links = [wire.connect(server) for _ in range(20)]
        for link in links:
            link.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
            self.assertEqual(wire.Replies(link).next()[0], 200)
        begun = time.monotonic()
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - begun, 15, "half of the time that an exit may take")
        for link in links:
            link.close()

    def test_connection_close_while_draining(self):
        """Through the delay connections stay; then each answer says that it is the last on its connection."""
        self.repository.model("slower", identity(parameters={"execute_delay_ms": "2000"}))
        server = self.start("--drain-delay-secs=2", "--exit-timeout-secs=10")
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
        with wire.connect(server) as busy, wire.connect(server) as half:
            answers = {busy: wire.Replies(busy), half: wire.Replies(half)}
            server.process.send_signal(signal.SIGTERM)
            until_equal(lambda: server.get("/v2/health/ready")[0], 503, "the status of the readiness")
            busy.sendall(wire.post("/v2/models/identity/infer", body.replace(b"[2]", b"[1, 2]")))
            status, headers, _ = answers[busy].next()
            self.assertEqual((status, headers.get("connection")), (200, None))
            time.sleep(1.4)  # most of the delay; what follows begins in it and ends after it
            busy.sendall(wire.post("/v2/models/slower/infer", body))  # ends long after the delay does
            half.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n")
            time.sleep(1)  # past the delay's end
            half.sendall(b"\r\n")
            for link, expected in ((half, 503), (busy, 200)):
                status, headers, _ = answers[link].next()
                self.assertEqual((status, headers.get("connection", "").lower()), (expected, "close"))
                self.assertTrue(answers[link].is_closed())
        self.assertEqual(server.terminate(), 0)

    def test_a_drain_says_what_it_waits_for_and_serves_metrics(self):
        self.repository.model("slower", identity(parameters={"execute_delay_ms": "2000"}))
        server, answers = self.start("--log-verbose=1"), []
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
        sender = threading.Thread(target=lambda: answers.append(server.post_json("/v2/models/slower/infer", body)[0]))
        sender.start()
        server.wait_for_line("Setting state from PENDING to EXECUTING")
        with wire.connect(server, port="metrics"):
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_line(r"Timeout \d+: Found 1 HTTP service connections")
            server.wait_for_line(r"Model 'slower' \(version 1\) has 1 in-flight inferences")
            self.assertEqual(server.get("/metrics", port="metrics")[0], 200)
            sender.join(10)
            self.assertEqual(answers, [200])
            # A connection to the metrics that stays is not waited for.
            self.assertEqual(server.terminate(within=10), 0)
        self.assertNotIn("did not finish in time", server.output)

    def test_exit_timeout(self):
        self.repository.model("hangs", identity(parameters={"execute_delay_ms": "20000"}))
        server = self.start("--exit-timeout-secs=1", "--log-verbose=1")

        def call():
            try:
                server.post_json("/v2/models/hangs/infer", {"id": "hangs", "inputs": [
                    {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]})
            except (OSError, EOFError):
                pass
            except Exception as error:  # http.client's own family
                self.assertIn(type(error).__module__, ("http.client",))
        sender = threading.Thread(target=call)
        sender.start()
        server.wait_for_state("hangs", "EXECUTING")
        begun = time.monotonic()
        self.assertEqual(server.terminate(within=20), 1)
        self.assertLess(time.monotonic() - begun, 15, "less than the execution takes")
        server.wait_for_text("Exit timeout expired")
        sender.join(10)


# Of a server with one model, 2 shards and no connections: 2.3 MB.
OWN_BYTES_MAX = 4_000_000
# Of a model: 120 KB.
MODEL_BYTES_MAX = 180_000
# Of a connection: 5 KB.
CONNECTION_BYTES_MAX = 8_000


@conch_only
class Footprint(ServerCase):
    """What an idle server costs, and that load leaves nothing behind. Figures hold for the release profile too."""

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))

    def test_ready_soon(self):
        fastest = self.server.ready_after
        for _ in range(4):
            with servers.Server(self.repository) as server:
                fastest = min(fastest, server.ready_after)
        self.assertLess(fastest, 0.1)

    def test_idle_memory(self):
        with servers.Server(self.repository) as server:
            self.assertLess(server.resident_bytes(), 25_000_000)

    def own_bytes(self, server):
        """Memory that the process has for itself: without pages of files, which depend on how far the kernel reads ahead."""
        rollup = pathlib.Path(f"/proc/{server.pid}/smaps_rollup").read_text()
        return 1024 * int(re.search(r"\nAnonymous:\s+(\d+) kB", rollup)[1])

    def test_own_memory(self):
        with servers.Server(self.repository, "--shards=2") as server:
            until(lambda: self.own_bytes(server), "what the start needed is given back", 10, lambda size: size < OWN_BYTES_MAX)

    def test_memory_of_models(self):
        """What a model without requests takes: its thread, its queue, its configuration and its names."""
        repository = Repository()
        self.addCleanup(repository.close)
        sizes = []
        for count in (20, 220):
            for number in range(count):
                repository.model(f"model_{number:03}", identity(batch=8))
            with servers.Server(repository, "--shards=2") as server:
                sizes.append(self.own_bytes(server))
        self.assertLess((sizes[1] - sizes[0]) / 200, MODEL_BYTES_MAX)

    def test_memory_of_connections(self):
        """What a connection takes that has had an answer and rests."""
        with servers.Server(self.repository, "--shards=2") as server, contextlib.ExitStack() as links:
            def rest(count):
                for _ in range(count):
                    link = links.enter_context(socket.create_connection(("127.0.0.1", server.ports["http"])))
                    link.sendall(b"GET /v2/models/identity/ready HTTP/1.1\r\nHost: test\r\n\r\n")
                    self.assertIn(b"200 OK", link.recv(1 << 16))
            rest(200)  # what the first few need is not theirs
            before = self.own_bytes(server)
            rest(1000)
            self.assertLess((self.own_bytes(server) - before) / 1000, CONNECTION_BYTES_MAX)

    def test_idle_cpu(self):
        before, begun = self.server.cpu_seconds(), time.monotonic()
        time.sleep(8)  # the idleness itself
        share = (self.server.cpu_seconds() - before) / (time.monotonic() - begun)
        self.assertLess(share, 0.005)

    def test_load_leaves_no_memory_behind(self):
        """The second of two equal series of mixed requests grows the resident memory by less than 2 MiB."""
        count = int(os.environ.get("SOAK_REQUESTS", "100000"))
        self.mixed_load(count)
        first, files = self.server.resident_bytes(), self.server.file_count()
        self.mixed_load(count)
        grown = self.server.resident_bytes() - first
        self.assertLess(grown, 2 << 20)
        self.assertLessEqual(self.server.file_count(), files + 2)

    def mixed_load(self, count):
        good = wire.infer_json({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
        tail = pack([1.0] * 1024)
        binary = wire.infer_json({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1024],
                                              "parameters": {"binary_data_size": len(tail)}}],
                                  "parameters": {"binary_data_output": True}}, tail)
        bad = wire.infer_json({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})
        broken = wire.infer_json(b"{")
        batch = (good * 6 + binary * 2 + bad + broken, 10)
        for _ in range(0, count, 1000):  # new connections for each thousand
            with wire.connect(self.server) as link:
                replies = wire.Replies(link)
                for _ in range(80):
                    link.sendall(batch[0])
                    statuses = [replies.next()[0] for _ in range(batch[1])]
                    self.assertEqual(statuses, [200] * 8 + [400, 500])
            self.grpc_load(200)

    def grpc_load(self, count):
        """Calls of which every tenth is refused, twenty at once, on one connection. They fit into its first window."""
        def call(name):
            value = pb.ModelInferRequest(model_name="identity", raw_input_contents=[pack([1.0] * 4)])
            value.inputs.add(name=name, datatype="FP32", shape=[1, 4])
            body = value.SerializeToString()
            return b"\0" + len(body).to_bytes(4, "big") + body
        head, good, bad = wire.call_head("ModelInfer"), call("INPUT0"), call("X")
        decoder, statuses = hpack.Decoder(), []
        with wire.Http2(self.server).start() as link:
            for first in range(0, count, 20):
                for index in range(first, first + 20):
                    stream, body = 2 * index + 1, bad if index % 10 == 9 else good
                    link.send(wire.frame(wire.HEADERS, 4, stream, head), wire.frame(wire.DATA, 1, stream, body))
                while len(statuses) < first + 20:
                    _, flags, _, block = link.wait_for(wire.HEADERS)
                    fields = dict(decoder.decode(block))
                    if flags & 1:
                        statuses.append(fields["grpc-status"])
        self.assertEqual((statuses.count("0"), statuses.count("3")), (count * 9 // 10, count // 10))


@conch_only
class OneCpu(ServerCase):
    """A one-CPU container is a common deployment."""

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository().model("identity", identity(batch=8, count=2))
        cls.addClassCleanup(cls.repository.close)
        cls.server = servers.Server(cls.repository, prefix=("taskset", "-c", "0"))
        cls.addClassCleanup(cls.server.kill)

    def test_it_serves(self):
        for _ in range(200):
            self.assert_serves()

    def test_its_threads_stay_on_it(self):
        for task in pathlib.Path(f"/proc/{self.server.pid}/task").iterdir():
            allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())[1]
            self.assertEqual(allowed, "0", task)


class Repositories(unittest.TestCase):
    """Which models, versions and configurations a server starts with."""

    def serve(self, repository, *flags, **more):
        return servers.Server(repository, *flags, kind=KIND, **more)

    def index(self, server):
        rows = json.loads(server.post_json("/v2/repository/index", b"")[1])
        return {(row["name"], row.get("version")): row.get("state") for row in rows}

    def ready(self, server):
        return {key for key, state in self.index(server).items() if state == "READY"}

    def test_version_policies(self):
        policies = {"latest": "", "two": "version_policy { latest { num_versions: 2 } }", "all": "version_policy { all {} }",
                    "some": "version_policy { specific { versions: [1, 3] } }"}
        with Repository() as repository:
            for name, policy in policies.items():
                repository.model(name, identity(extra=policy), versions=("1", "2", "3"))
            with self.serve(repository) as server:
                self.assertEqual(self.ready(server), {
                    ("latest", "3"), ("two", "2"), ("two", "3"), ("all", "1"), ("all", "2"), ("all", "3"),
                    ("some", "1"), ("some", "3")})
                self.assertEqual(server.get_json("/v2/models/all")["versions"], ["1", "2", "3"])
                self.assertEqual(server.get("/v2/models/latest/versions/1/ready")[0], 400 if KIND == "triton" else 404)

    def test_what_is_not_a_version(self):
        with Repository() as repository:
            repository.model("identity", identity(extra="version_policy { all {} }"),
                             versions=("1", "02", "abc", "warmup", "initial_state", "configs", "4x"))
            (repository.path / "a-file-in-the-root").write_text("x")
            with self.serve(repository) as server:
                self.assertEqual(self.ready(server), {("identity", "1"), ("identity", "4")})

    def test_two_repositories(self):
        with Repository().model("one", identity()) as first, Repository().model("two", identity()) as second:
            with self.serve([first, second]) as server:
                self.assertEqual(self.ready(server), {("one", "1"), ("two", "1")})

    def test_one_name_in_two_repositories(self):
        with Repository().model("same", identity()) as first, Repository().model("same", identity()) as second:
            first.model("other", identity())
            with self.serve([first, second], "--exit-on-error=false", "--strict-readiness=false") as server:
                self.assertEqual(self.ready(server), {("other", "1")})

    BROKEN = {
        "typo": identity(extra="max_batch_sice: 3\n"),
        "twice": identity(extra='backend: "identity"\n'),
        "other_name": 'name: "another"\n' + identity(),
        "no_backend": 'backend: "no_such_backend"\n',
        "negative": identity().replace("max_batch_size: 0", "max_batch_size: -1"),
        "zero_dim": identity([("INPUT0", "FP32", (0,))]),
        "no_version": identity(),
    }

    def broken(self):
        repository = Repository().model("good", identity(batch=8))
        for name, text in self.BROKEN.items():
            repository.model(name, text, versions=() if name == "no_version" else ("1",))
        return repository

    def test_broken_models_do_not_hide_the_others(self):
        with self.broken() as repository:
            with self.serve(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
                self.assertEqual(self.ready(server), {("good", "1")})

    def test_strict_readiness(self):
        with self.broken() as repository:
            with self.serve(repository, "--exit-on-error=false", expect_ready=False) as server:
                until_equal(lambda: server.get("/v2/models/good/ready")[0], 200, "the status of the model's readiness")
                self.assertEqual(server.get("/v2/health/ready")[0], 400)

    @conch_only
    def test_errors_name_the_place(self):
        with self.broken() as repository:
            with self.serve(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
                output = server.output
        self.assertRegex(output, r"typo/config\.pbtxt: 7:1: .*max_batch_sice")
        self.assertRegex(output, r"twice/config\.pbtxt: 7:1: .*backend")
        self.assertRegex(output, "unexpected directory name 'other_name' for model 'another'")
        self.assertIn("no_such_backend", output)

    @conch_only
    def test_start_up_tables(self):
        with self.broken() as repository:
            with self.serve(repository, "--exit-on-error=false", "--strict-readiness=false") as server:
                server.wait_for_match(r"\| Backend +\| Path")
                server.wait_for_match(r"\| good +\| 1 +\| READY")
                server.wait_for_match(r"\| no_backend +\| 1 +\| UNAVAILABLE: ")
                server.wait_for_match(r"\| server_id +\| triton")
                server.wait_for_match(r"\| shard-0[ a-z0-9-]* \| \d")
                server.wait_for_match(r"\| cores +\| \d")

    @conch_only
    def test_exit_on_error(self):
        with self.broken() as repository:
            code, out, errors = run(f"--model-repository={repository}", f"--backend-directory={servers.backend_directory()}",
                                    *free_flags())
        self.assertEqual(code, 1)
        self.assertRegex(errors.splitlines()[-1], "^error: creating server: Internal - failed to load all models: model '.*; and . more")

    @conch_only
    def test_the_last_line_names_the_cause(self):
        backends = servers.backend_directory()
        for name, config, cause in (
                ("typo", self.BROKEN["typo"], r"model 'typo': .*config\.pbtxt.*max_batch_sice"),
                ("no_backend", self.BROKEN["no_backend"],
                 "model 'no_backend', version 1: .*unable to find backend library for backend 'no_such_backend'")):
            with self.subTest(name), Repository().model(name, config) as repository:
                code, _, errors = run(f"--model-repository={repository}", f"--backend-directory={backends}", *free_flags())
                self.assertEqual(code, 1)
                self.assertRegex(errors.splitlines()[-1], "^error: creating server: .*" + cause)
                if name == "no_backend":
                    self.assertIn(f"there is no 'libtriton_no_such_backend.so' in the model's directories, nor in 'no_such_backend' of the "
                                  f"backend directory '{backends}'", errors)
        with Repository().model("good", identity()) as repository:
            _, _, errors = run(f"--model-repository={repository}", "--backend-directory=/nonexistent/b", *free_flags())
            self.assertIn("of the backend directory '/nonexistent/b', which does not exist", errors)
            _, _, errors = run(f"--model-repository={repository}", "--model-control-mode=explicit", "--load-model=absent",
                               f"--backend-directory={backends}", *free_flags())
            self.assertIn("model 'absent' is in no model repository", errors.splitlines()[-1])

    @conch_only
    def test_misplaced_models(self):
        """One warning names the path that is expected."""
        def told(repository, *flags):
            with self.serve(repository, "--exit-on-error=false", "--strict-readiness=false", *flags) as server:
                return [line for line in server.lines if "expected at" in line or "looks like a model" in line]

        with Repository() as repository:
            place = repository.path
            self.assertIn(f"'{place}/<model>/1/<model file>'", *told(repository))
            (place / "model.onnx").write_text("x")
            self.assertIn(f"'{place}/<model>/1/model.onnx'", *told(repository))
            (place / "model.onnx").unlink()
            (place / "m").mkdir()
            (place / "m/model.onnx").write_text("x")
            self.assertIn(f"'{place}/m/1/model.onnx'", *told(repository))
        with Repository().model("good", identity()) as repository:
            self.assertEqual(told(repository), [])
            self.assertIn(f"--model-repository={repository.path}", *told(repository.path / "good"))

    @conch_only
    def test_the_line_that_says_it_serves(self):
        with Repository().model("good", identity()) as repository, self.serve(repository) as server:
            line = server.wait_for_line('"serving: (.*)"')
            self.assertEqual(line[1], f"HTTP http://{server.http}, gRPC {server.grpc}, "
                                      f"metrics http://{server.address('metrics')}/metrics")
            self.assertIn("serving: ", [line for line in server.lines if line.startswith("I")][-1])

    def test_a_server_without_its_repository(self):
        """It is neither live nor ready, serves nothing, and says who it is."""
        with Repository().model("good", identity()) as repository:
            with self.serve([repository.path, "/nonexistent/models"], "--exit-on-error=false", "--strict-readiness=false",
                            expect_ready=False) as server:
                if KIND == "triton":
                    server.wait_for_line("Started Metrics Service")
                    until_equal(lambda: server.get("/v2/health/live")[0], 400, "the status of the liveness")
                self.assertEqual(server.get("/v2/health/live"), (400, b""))
                self.assertEqual(server.get("/v2/health/ready"), (400, b""))
                self.assertEqual(server.get_json("/v2")["name"], "triton")
                not_ready = (503, b'{"error":"Server not ready"}')
                for path in ("/v2/models/good", "/v2/models/good/config", "/v2/models/stats"):
                    self.assertEqual(server.get(path), not_ready, path)
                self.assertEqual(server.post_json("/v2/repository/index", b""), not_ready)
                with grpc.insecure_channel(server.grpc) as channel:
                    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                    self.assertFalse(stub.ServerLive(pb.ServerLiveRequest()).live)
                    self.assertFalse(stub.ServerReady(pb.ServerReadyRequest()).ready)
                    self.assertEqual(stub.ServerMetadata(pb.ServerMetadataRequest()).name, "triton")

    def test_custom_config_name(self):
        with Repository() as repository:
            repository.model("both", identity(batch=2), files={"configs/small.pbtxt": identity(batch=7).encode()})
            repository.model("plain", identity(batch=3))
            with self.serve(repository, "--model-config-name=small") as server:
                self.assertEqual(server.get_json("/v2/models/both/config")["max_batch_size"], 7)
                self.assertEqual(server.get_json("/v2/models/plain/config")["max_batch_size"], 3)

    def test_library_beside_the_model(self):
        library = servers.built("libtriton_identity.so")
        with Repository().model("near", identity(), files={"libtriton_identity.so": library}) as repository:
            with Repository() as empty, self.serve(repository, backends=empty.path) as server:
                self.assertEqual(self.ready(server), {("near", "1")})


if __name__ == "__main__":
    unittest.main()
