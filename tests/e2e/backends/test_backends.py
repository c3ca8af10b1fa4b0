"""The shipped backends and the probe, unchanged, in conch and in the real Triton: the programs of tests/peers, one test each."""

import os
import subprocess
import sys
import unittest

import server as servers
from case import conch_only, needs_library, needs_peer

PROGRAMS = servers.ROOT / "tests/peers"
CONCH = os.environ.get("CONCH", str(servers.built("conch")))


def run(test, program, server, *more):
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), "--server", server, "--backends", str(servers.backend_directory()), *more],
        capture_output=True, text=True, timeout=300, check=False)
    test.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-5000:])


def runtime():
    """The arguments of test_onnxruntime.py; skips where ONNX Runtime has not been fetched."""
    found = sorted((servers.CACHE / "onnxruntime").glob("libonnxruntime.so*"))
    if not found:
        raise unittest.SkipTest("ONNX Runtime is not there: run scripts/fetch-runtime")
    return "--library", str(found[0])


@conch_only
class InConch(unittest.TestCase):
    @needs_library("identity")
    def test_identity(self):
        run(self, "test_identity.py", CONCH)

    @needs_library("repeat")
    @needs_library("square")
    def test_decoupled(self):
        run(self, "test_decoupled.py", CONCH)

    @needs_library("probe")
    def test_contract(self):
        run(self, "test_contract.py", CONCH)

    @needs_library("probe")
    def test_batching(self):
        run(self, "test_batching.py", CONCH, "--beyond")

    @needs_library("probe")
    def test_instances(self):
        run(self, "test_instances.py", CONCH)

    @needs_library("onnxruntime")
    def test_onnxruntime(self):
        run(self, "test_onnxruntime.py", CONCH, *runtime())


@conch_only
@needs_peer("triton")
class InTriton(unittest.TestCase):
    @needs_library("identity")
    def test_identity(self):
        run(self, "test_identity.py", str(servers.PEERS / "triton"))

    @needs_library("repeat")
    @needs_library("square")
    def test_decoupled(self):
        run(self, "test_decoupled.py", str(servers.PEERS / "triton"))

    @needs_library("probe")
    def test_contract(self):
        run(self, "test_contract.py", str(servers.PEERS / "triton"))

    @needs_library("probe")
    def test_batching(self):
        run(self, "test_batching.py", str(servers.PEERS / "triton"))

    @needs_library("probe")
    def test_instances(self):
        run(self, "test_instances.py", str(servers.PEERS / "triton"))

    @needs_library("onnxruntime")
    def test_onnxruntime(self):
        run(self, "test_onnxruntime.py", str(servers.PEERS / "triton"), *runtime())


if __name__ == "__main__":
    unittest.main()
