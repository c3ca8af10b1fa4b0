"""Starts a server on a model repository, on free ports, and stops it. Shared by the tests of this folder.

The server is given as a command line; it must take Triton's options --model-repository, --backend-directory, --http-port,
--grpc-port and --metrics-port. So the same test runs against conch and against Triton itself.
"""

import contextlib
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request


def free_ports(count):
    """Different ports that nobody listens on, from below the range that the kernel gives to outgoing connections: those would take them
    again."""
    ports = set()
    while len(ports) < count:
        port = random.randrange(15_000, 32_000)
        with contextlib.closing(socket.socket()) as listener, contextlib.suppress(OSError):
            listener.bind(("0.0.0.0", port))
            ports.add(port)
    return ports


class Server:
    def __init__(self, command, repository, backends, options=(), environment=None, is_ready_expected=True):
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        arguments = shlex.split(command) + [
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            *options,
        ]
        self.process = subprocess.Popen(
            arguments, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        self.is_ready_expected = is_ready_expected

    @property
    def http(self):
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self):
        return f"127.0.0.1:{self.grpc_port}"

    def log_text(self):
        with open(self.log.name) as file:
            return file.read()

    def wait(self, seconds=120):
        path = "ready" if self.is_ready_expected else "live"
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}:\n{self.log_text()[-4000:]}")
            try:
                with urllib.request.urlopen(f"http://{self.http}/v2/health/{path}", timeout=1) as reply:
                    if reply.status == 200:
                        return self
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"server not {path} after {seconds} s:\n{self.log_text()[-4000:]}")

    def stop(self, seconds=60):
        """Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise RuntimeError(f"server did not stop within {seconds} s:\n{self.log_text()[-4000:]}")
        self.log.close()
        return self.process.returncode

    def __enter__(self):
        try:
            return self.wait()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.log_text()[-4000:], file=sys.stderr)
        status = self.stop()
        log = self.log_text()
        os.unlink(self.log.name)
        # A crash while backends are finalised would otherwise go unseen.
        if kind is None and status != 0:
            raise RuntimeError(f"server ended with {status}:\n{log[-4000:]}")


def write_model(repository, name, config, version_files=()):
    """Writes a model's configuration and the files of its version 1, given as (name, bytes)."""
    version = os.path.join(repository, name, "1")
    os.makedirs(version, exist_ok=True)
    with open(os.path.join(repository, name, "config.pbtxt"), "w") as file:
        file.write(config)
    for file_name, content in version_files:
        with open(os.path.join(version, file_name), "wb") as file:
            file.write(content)


class Skipped(Exception):
    """Raised by a check of something that the server says it does not serve."""


def needs_extension(client, name):
    """Skips the check unless the server's metadata announces the extension: a server that announces one must pass its checks."""
    announced = client.get_server_metadata()["extensions"]
    if name not in announced:
        raise Skipped(f"the server does not announce the extension '{name}'")


def run_checks(prefix, checks):
    """Runs all checks, so that one that fails hides no other; the process ends with 1 if any did. They are functions by name, and may
    return something worth telling."""
    failed = []
    for name, check in checks.items():
        try:
            told = check()
        except Skipped as reason:
            print(f"{prefix}: {name}: skipped: {reason}", flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            print(f"{prefix}: {name}: FAILED", flush=True)
        else:
            print(f"{prefix}: {name}: ok{f' ({told})' if told else ''}", flush=True)
    if failed:
        sys.exit(f"{prefix}: failed: {', '.join(failed)}")
