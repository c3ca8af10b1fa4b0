"""What every end-to-end test class shares: one server per class, requests that must work, and plain skips."""

import os
import pathlib
import struct
import unittest

import server as servers
import wire
from repository import Repository

KIND = os.environ.get("CONCH_TEST_SERVER", "conch")
IS_TRITON = KIND == "triton"


def pack(values, code="f"):
    return struct.pack(f"<{len(values)}{code}", *values)


def needs_peer(name):
    """Skips, with the reason printed, where the peer has not been set up."""
    missing = not (servers.PEERS / name).exists()
    return unittest.skipIf(missing, f"{servers.PEERS / name} is not there; set PEERS_DIR or run scripts/test --peers")


def needs_library(name):
    missing = not servers.built(f"libtriton_{name}.so").exists()
    return unittest.skipIf(missing, f"libtriton_{name}.so is not built in profile {servers.PROFILE}")


conch_only = unittest.skipIf(IS_TRITON, "says what conch does, not what upstream does")


class ServerCase(unittest.TestCase):
    """Starts one server for all tests of the class. `models` fills its repository, `flags` are its own."""

    flags = ()
    environment = None
    models = None
    repository_path = None

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        if cls.models:
            cls.models(cls.repository)
        path = cls.repository_path or cls.repository.path
        cls.server = servers.Server(path, *cls.flags, kind=KIND, environment=cls.environment)
        cls.addClassCleanup(cls.server.kill)

    @classmethod
    def tearDownClass(cls):
        if not cls.server.is_alive():
            raise AssertionError(f"the server died with code {cls.server.process.returncode}\n{cls.server.output[-4000:]}")
        code = cls.server.terminate()
        if code != 0 and not IS_TRITON:
            raise AssertionError(f"the server ended with code {code}\n{cls.server.output[-4000:]}")

    # Requests

    def infer(self, value, tail=b"", model="identity", headers=None):
        """An HTTP inference: (status, headers, body)."""
        import json
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        more = dict(headers or {})
        if tail:
            more["Inference-Header-Content-Length"] = str(len(text))
        return self.server.request("POST", f"/v2/models/{model}/infer", text + tail, more)

    def assert_serves(self, model="identity", shape=(1, 4)):
        """A good request right now must be answered well: the sign that an earlier bad one did no harm."""
        import json
        count = 1
        for dim in shape:
            count *= dim
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": list(shape), "data": list(range(count))}]}
        status, _, reply = self.infer(body, model=model)
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"][0]["data"], list(range(count)))

    def exchange(self, raw, **more):
        return wire.exchange(self.server, raw, **more)
