"""What a request costs, counted. At the C boundary: instructions and allocations of one round trip (Execute of the identity backend on one
request, with all its calls into the server), by the difference of runs of different length. On the wire: how often the server's threads
slept."""

import http.client
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import server as servers
from case import conch_only, needs_library
from repository import Repository, identity

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
        """An output's bytes and their owner, which leave with the answer; nothing else is allocated once it runs, but for a few by other threads."""
        self.assertLess(self.boundary("memcheck", r"total heap usage: ([\d,]+) allocs"), 2.1)

    @unittest.skipIf(servers.PROFILE == "debug", "says nothing about unoptimised code")
    def test_instructions(self):
        """About 7,300 in profile ci; the bound leaves room for other compilers and C libraries."""
        self.assertLess(self.boundary("callgrind", r"Collected : ([\d,]+)"), 9500)


@conch_only
@needs_library("identity")
class Wire(unittest.TestCase):
    """One client that sends one request after the other: the shard executes them itself, and sleeps once per request."""

    def sleeps(self, server):
        """How often threads of the server gave up their CPU to wait."""
        tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
        return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.MULTILINE)[1]) for task in tasks)

    def test_sleeps(self):
        with Repository().model("identity", identity()) as repository, servers.Server(repository) as server:
            body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]})
            connection = http.client.HTTPConnection(server.http)
            self.addCleanup(connection.close)

            def send(count):
                for _ in range(count):
                    connection.request("POST", "/v2/models/identity/infer", body)
                    self.assertEqual(connection.getresponse().read()[:2], b'{"')
            send(100)
            before = self.sleeps(server)
            send(1000)
            self.assertLess((self.sleeps(server) - before) / 1000, 1.6)


if __name__ == "__main__":
    unittest.main()
