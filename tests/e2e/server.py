"""Starts a server under test, waits until it is ready, watches it, and stops it.

The same handle runs conch and, where a machine has it, the real Triton, so that an expectation can be proved against both.
Every server listens on loopback only, on ports that the kernel chose.
"""

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

from waiting import until, until_equal

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
PEERS = pathlib.Path(os.environ.get("PEERS_DIR", pathlib.Path.home() / ".cache/peers"))
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROFILE = os.environ.get("CONCH_PROFILE", "ci")
BACKENDS = ("identity", "onnxruntime", "probe", "faulty", "forward", "repeat", "square", "gpu_elementwise", "fil", "pytorch", "tensorflow", "openvino", "dali", "tensorrt")

# Within which the end of a server's output follows the end of its process, unless a process of its own holds the pipes.
END_OF_OUTPUT_S = 5

STARTED = {
    "http": re.compile(r"Started HTTPService at ([0-9.]+):(\d+)"),
    "grpc": re.compile(r"Started GRPCInferenceService at ([0-9.]+):(\d+)"),
    "metrics": re.compile(r"Started Metrics Service at ([0-9.]+):(\d+)"),
}


def built(name):
    """The path of something that cargo built, in the profile under test."""
    return TARGET / PROFILE / name


def backend_directory():
    """A backend directory laid out as servers expect it. Hard links: a server may resolve symbolic ones before it looks beside them."""
    directory = CACHE / "backends" / PROFILE
    for backend in BACKENDS:
        library = built(f"libtriton_{backend}.so")
        if library.exists():
            place(directory / backend / library.name, library)
    place_python(directory / "python")
    for script in sorted((ROOT / "scripts/runtimes").glob("*.sh")):
        engine, backend = CACHE / script.stem, directory / script.stem
        if engine.is_dir() and backend.is_dir():
            for file in engine.rglob("*"):
                inside = file.relative_to(engine)
                if file.is_file() and inside.parts[0] != "include" and file.suffix != ".part":
                    (backend / inside).parent.mkdir(parents=True, exist_ok=True)
                    place(backend / inside, file)
    return directory


def place_python(folder):
    """The parts of the Python backend: its library, the stub's, and what the stub runs."""
    for name in ("libtriton_python.so", "libconch_python_stub.so"):
        if built(name).exists():
            place(folder / name, built(name))
    runtime = ROOT / "src/backends/python/runtime"
    for source in sorted(runtime.glob("*/*.py")):
        place(folder / source.relative_to(runtime), source)


def place(target, source):
    """Makes `target` the same file as `source`, also while another process does the same."""
    if target.exists() and target.samefile(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        os.link(source, fresh)
    except OSError:  # another file system
        shutil.copyfile(source, fresh)
    os.replace(fresh, target)


GIVEN_PORTS = set()


def free_port():
    """A port that was free a moment ago, for servers that do not take port 0; another one each time, as a server asks for several. From
    below the range that the kernel gives to outgoing connections: those would take it again."""
    if len(GIVEN_PORTS) > 10_000:
        GIVEN_PORTS.clear()
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in GIVEN_PORTS:
                GIVEN_PORTS.add(port)
                return port


class StartFailed(Exception):
    """The server ended, or did not become ready in time. Carries its output and exit code."""

    def __init__(self, reason, code, output):
        super().__init__(f"{reason} (exit code {code})\n{output[-4000:]}")
        self.code, self.output = code, output


class Server:
    """One running server. Use it as a context manager: leaving stops it and checks that it ended well."""

    def __init__(self, repository, *flags, kind="conch", prefix=(), environment=None, ready_within=60, backends=None,
                 expect_ready=True, ready_headers=None, tls=None, pass_fds=()):
        backends = backends or os.environ.get("CONCH_TEST_BACKENDS")
        self.kind, self.lines, self.ports = kind, [], {}
        self.ready_headers = ready_headers  # where the readiness is restricted
        self.tls = tls or {}  # the ssl.SSLContext of each port that has TLS, by name
        self._changed = threading.Condition()
        self._reading = threading.Event()
        self._reading.set()
        repositories = repository if isinstance(repository, list) else [repository]
        arguments = [f"--model-repository={path}" for path in repositories]
        arguments += [f"--backend-directory={backends or backend_directory()}"]
        given = " ".join(flags)
        for name in ("http", "grpc", "metrics"):
            if f"--{name}-address" not in given and name != "metrics":
                arguments.append(f"--{name}-address=127.0.0.1")
            if f"--{name}-port" not in given:
                port = 0 if kind == "conch" else free_port()
                arguments.append(f"--{name}-port={port}")
                self.ports[name] = port
        if kind == "conch":
            program = [os.environ.get("CONCH", str(built("conch")))]
        else:
            program = [str(PEERS / "triton")]
        self.command = [*prefix, *program, *arguments, *flags]
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", pass_fds=pass_fds,
            env={**os.environ, **(environment or {})})
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True)
                         for stream in (self.process.stdout, self.process.stderr)]
        for reader in self._readers:
            reader.start()
        try:
            self._wait_for_ports(flags, ready_within)
            if expect_ready:
                self._wait_until_ready(ready_within)
        except BaseException:
            self.kill()
            raise

    # Output

    def _read(self, stream):
        for line in stream:
            self._reading.wait()
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def stop_reading(self):
        """Stops reading the server's output, so that its pipes fill, until `read_on`."""
        self._reading.clear()

    def read_on(self):
        self._reading.set()

    @property
    def output(self):
        """Everything printed so far, on either stream."""
        return "\n".join(self.lines)

    def wait_for_text(self, text, within=10):
        """Waits until `text` was printed: a thread of its own writes the log, so that a line may follow the answer that it belongs to."""
        self.wait_for_match(re.escape(text), within)

    def wait_for_match(self, pattern, within=10):
        """Waits until what was printed, as a whole, matches."""
        expression = re.compile(pattern)

        def is_printed():
            has_ended = self.process.poll() is not None and not any(reader.is_alive() for reader in self._readers)
            if expression.search(self.output):
                return True
            if has_ended:
                raise AssertionError(f"the server has ended, and nothing matches {pattern!r} in\n{self.output}")
            return False
        until(is_printed, lambda: f"a match of {pattern!r} in\n{self.output}", within)

    def wait_for_line(self, pattern, within=10):
        """Waits for a line of output that matches, and returns the match."""
        deadline, expression = time.monotonic() + within, re.compile(pattern)
        with self._changed:
            while True:
                for line in self.lines:
                    if match := expression.search(line):
                        return match
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not any(r.is_alive() for r in self._readers)):
                    raise StartFailed(f"no line matches {pattern!r}", self.process.poll(), self.output)
                self._changed.wait(min(left, 0.05))

    # Start

    def _wait_for_ports(self, flags, within):
        given = " ".join(flags).lower()
        off = {name for name in STARTED if re.search(rf"--allow-{name}[= ](false|0)", given)}
        for name in STARTED.keys() - off:
            if f"--{name}-address=unix:" in given:
                del self.ports[name]
                self.wait_for_line(STARTED[name].pattern.split(" at ")[0] + " at unix:", within)
                continue
            match = self.wait_for_line(STARTED[name].pattern, within)
            if int(match[2]):
                self.ports[name] = int(match[2])

    def _wait_until_ready(self, within):
        if "http" not in self.ports:
            return

        def is_ready():
            if self.process.poll() is not None:
                raise StartFailed("ended before it was ready", self.process.returncode, self.output)
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/v2/health/ready", headers=self.ready_headers)[0] == 200:
                    if self.kind != "conch" and "metrics" in self.ports:  # logs its address before it listens there
                        self.get("/metrics", port="metrics")
                    return True
            return False
        try:
            until(is_ready, "a server that is ready", within)
        except AssertionError as error:
            raise StartFailed(str(error), None, self.output) from None
        self.ready_after = time.monotonic() - self.started_at

    # Addresses and plain requests

    def address(self, name):
        return f"127.0.0.1:{self.ports[name]}"

    @property
    def http(self):
        return self.address("http")

    @property
    def grpc(self):
        return self.address("grpc")

    def request(self, method, path, body=None, headers=None, port="http", timeout=30):
        """One request on a connection of its own: (status, headers, body)."""
        if port in self.tls:
            connection = http.client.HTTPSConnection("localhost", self.ports[port], timeout=timeout, context=self.tls[port])
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def get(self, path, port="http", **more):
        status, _, body = self.request("GET", path, port=port, **more)
        return status, body

    def get_json(self, path):
        status, body = self.get(path)
        if status != 200:
            raise AssertionError(f"GET {path}: {status} {body!r}")
        return json.loads(body)

    def post_json(self, path, value, headers=None):
        body = value if isinstance(value, (bytes, str)) else json.dumps(value)
        status, _, reply = self.request("POST", path, body=body, headers=headers)
        return status, reply

    def statistics(self, model, version="1"):
        """The statistics of one model version."""
        return self.get_json(f"/v2/models/{model}/versions/{version}/stats")["model_stats"][0]

    def pending_count(self, model, version="1"):
        """How many requests of the model version wait to be executed."""
        return self.metrics().get(f'nv_inference_pending_request_count{{model="{model}",version="{version}"}}')

    def wait_for_pending(self, model, count, seconds=30):
        until_equal(lambda: self.pending_count(model), count, f"the count of pending requests of {model}", seconds)

    @contextlib.contextmanager
    def telling_states(self):
        """Meanwhile the log tells the states of each request, for `wait_for_state`."""
        self.post_json("/v2/logging", {"log_verbose_level": 1})
        try:
            yield
        finally:
            if self.is_alive():
                with contextlib.suppress(OSError):
                    self.post_json("/v2/logging", {"log_verbose_level": 0})

    def wait_for_state(self, request_id, state):
        """Waits until the request is PENDING, or EXECUTING. The log has to tell states: `telling_states`, `--log-verbose=1`."""
        self.wait_for_line(rf"\[request id: {request_id}\] Setting state from [A-Z]+ to {state}", 30)

    def metrics(self):
        """The metrics page as a map from `name{labels}` to its value."""
        status, body = self.get("/metrics", port="metrics")
        if status != 200:
            raise AssertionError(f"metrics: {status}")
        rows = (line.rsplit(" ", 1) for line in body.decode().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    # Resources

    @property
    def pid(self):
        return self.process.pid

    def resident_bytes(self):
        """Memory that the process holds in RAM."""
        fields = pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self):
        """CPU time of all threads, user and system. Resolution: one clock tick, 10 ms."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def file_count(self):
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        """What each thread is called, where in the kernel it waits, its state, and how often it was switched: for reports of a server that
        hangs."""
        rows = []
        for task in sorted(pathlib.Path(f"/proc/{self.pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                status = (task / "status").read_text()
                state, switches = re.search(r"State:\s*(\S)", status)[1], re.findall(r"ctxt_switches:\s*(\d+)", status)
                rows.append(f"{task.name} {(task / 'comm').read_text().strip()} {(task / 'wchan').read_text()} {state} switches {switches}")
        return "\n".join(rows)

    def is_alive(self):
        return self.process.poll() is None

    # Stop

    def terminate(self, within=30, signal_number=signal.SIGTERM):
        """Asks the server to stop and returns its exit code."""
        if self.is_alive():
            self.process.send_signal(signal_number)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not end within {within} s\n{self.threads()}\n{self.output[-4000:]}") from None
        left = self._finish_reading()
        if left and self.kind == "conch":
            raise AssertionError(f"the server ended with code {code} and left processes, which were killed: {'; '.join(left)}")
        return code

    def _heirs(self):
        """{pid: command} of processes that can still write to the server's output: it started them, whoever is their parent now."""
        streams = [stream for stream in (self.process.stdout, self.process.stderr) if not stream.closed]
        pipes = {f"pipe:[{os.fstat(stream.fileno()).st_ino}]" for stream in streams}
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            files = []
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                files = list((entry / "fd").iterdir())
            for file in files:
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(file) in pipes and int(entry.name) != os.getpid():
                        flags = re.search(r"^flags:\s*(\d+)", (entry / "fdinfo" / file.name).read_text(), re.MULTILINE)
                        if int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                            found[int(entry.name)] = command.decode(errors="replace").strip()
        return found

    def _finish_reading(self):
        """Reads what the ended server has printed, to its end. Processes that it left behind may hold the pipes open: after a bound
        they are killed. Returns which there were."""
        self.read_on()
        deadline = time.monotonic() + END_OF_OUTPUT_S
        for reader in self._readers:
            reader.join(max(0, deadline - time.monotonic()))
        if not any(reader.is_alive() for reader in self._readers):
            return []
        left = self._heirs()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for reader in self._readers:
            reader.join(END_OF_OUTPUT_S)
        print(f"the server left processes that held its output; they were killed: {left or 'none was found'}", flush=True)
        return [f"{pid} {command}" for pid, command in left.items()]

    def kill(self):
        """Ends the server at once, whatever state it is in."""
        self.read_on()
        if self.is_alive():
            self.process.kill()
        self.process.wait()
        self._finish_reading()
        for reader, stream in zip(self._readers, (self.process.stdout, self.process.stderr)):
            # Closing a pipe waits for who reads it, without bound; such a reader is left to the end of this process.
            if not reader.is_alive():
                stream.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            if kind is None:
                code = self.terminate()
                if code != 0 and self.kind == "conch":
                    raise AssertionError(f"the server ended with code {code}\n{self.output[-4000:]}")
        finally:
            self.kill()
