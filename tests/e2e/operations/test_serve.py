"""scripts/serve, as a new user calls it. What it builds is there already: cargo is a stand-in that builds nothing."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import server as servers
from case import conch_only, needs_library
from repository import Repository, identity

SCRIPT = servers.ROOT / "scripts/serve"
PORTS = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0")


class Scripted:
    """scripts/serve, running in a directory of its own."""

    def __init__(self, folder, *flags):
        stand_in = pathlib.Path(folder) / "bin/cargo"
        stand_in.parent.mkdir()
        stand_in.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec {shutil.which("cargo")} --version\n')
        stand_in.chmod(0o755)
        environment = {**os.environ, "CONCH_PROFILE": servers.PROFILE, "PATH": f"{stand_in.parent}:{os.environ['PATH']}"}
        self.process = subprocess.Popen([SCRIPT, *flags], cwd=folder, env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines = []

    def wait_for(self, pattern):
        timer = threading.Timer(60, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                self.lines.append(line)
                if match := re.search(pattern, line):
                    return match
        finally:
            timer.cancel()
        raise AssertionError(f"no line matches {pattern!r}:\n{''.join(self.lines)}")

    def index(self):
        address = self.wait_for(r'"serving: HTTP (http://\S+),')[1]
        # It logs on.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        request = urllib.request.Request(f"{address}/v2/repository/index", method="POST")
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.read().decode()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()


@conch_only
@needs_library("onnxruntime")
@unittest.skipIf(os.geteuid() != 0 and not shutil.which("gcc"), "system packages are missing")
class Serve(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="conch-serve-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_repository_of_the_callers(self):
        """A relative path is the caller's, and the examples are not beside it."""
        with Repository().model("own", identity()) as repository:
            (self.folder / "mine").symlink_to(repository.path)
            script = Scripted(self.folder, "--model-repository=mine", *PORTS)
            self.addCleanup(script.process.kill)
            index = script.index()
            self.assertIn('"own"', index)
            self.assertNotIn("addsub", index)
            self.assertEqual(script.end(), 0)

    def test_the_examples(self):
        script = Scripted(self.folder, *PORTS)
        self.addCleanup(script.process.kill)
        index = script.index()
        self.assertIn('"addsub"', index)
        self.assertRegex("".join(script.lines), "examples that are there:.* addsub .*simple_identity")
        self.assertEqual(script.end(), 0)

    def test_a_port_that_is_taken(self):
        """It is seen before anything is built."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            script = Scripted(self.folder, *PORTS[:2], f"--http-port={port}", *PORTS[3:])
            output = script.process.communicate(timeout=60)[0]
        self.assertEqual(script.process.returncode, 1)
        self.assertIn(f"127.0.0.1:{port}", output)
        self.assertNotIn("build conch", output)


@conch_only
class Fetch(unittest.TestCase):
    def test_without_an_answer(self):
        """It says what it fetches, and does not wait for ever for a package index that says nothing."""
        with socket.socket() as silent, tempfile.TemporaryDirectory() as folder:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
            done = subprocess.run([servers.ROOT / "scripts/fetch-runtime", folder], capture_output=True, text=True, timeout=120,
                                  check=False, env={**os.environ, "PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": "",
                                                    "PIP_NO_INDEX": "", "PIP_CONFIG_FILE": os.devnull})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"fetching ONNX Runtime [0-9.]+ \(24 MB\)")
        self.assertIn("pip could not fetch onnxruntime", done.stderr)

    def fetch(self, *words, **environment):
        return subprocess.run([servers.ROOT / "scripts/fetch-runtime", *words], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, **environment})

    def test_what_there_is(self):
        done = self.fetch("--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"onnxruntime +[0-9.]+ +24 MB to load.*\n +MIT")
        done = self.fetch("nonesuch")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"there is no engine 'nonesuch' to fetch. Those that are: .*onnxruntime")
        self.assertEqual(done.stdout, "")

    def test_on_another_machine(self):
        """It says in a line that no engine is pinned for a machine of another kind, for each that is."""
        names = [file.stem for file in sorted((servers.ROOT / "scripts/runtimes").glob("*.sh"))]
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "uname")
            other.write_text("#!/bin/sh\necho Linux aarch64\n")
            other.chmod(0o755)
            for name in names:
                with self.subTest(name):
                    done = self.fetch(name, PATH=f"{folder}:{os.environ['PATH']}")
                    self.assertEqual((done.returncode, done.stdout), (1, ""))
                    self.assertRegex(done.stderr.strip(), r"^fetch-runtime: no .* is pinned for Linux aarch64\. [^\n]*$")


if __name__ == "__main__":
    unittest.main()
