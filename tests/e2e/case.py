"""What every end-to-end test class shares: one server per class, requests that must work, and plain skips."""

import json
import os
import struct
import time
import unittest

import server as servers
import wire
from repository import Repository, identity
from waiting import until

KIND = os.environ.get("CONCH_TEST_SERVER", "conch")
IS_TRITON = KIND == "triton"


def pack(values, code="f"):
    return struct.pack(f"<{len(values)}{code}", *values)


def needs_peer(name):
    """Skips, with the reason printed, where the peer has not been set up, and marks the test as one that needs it."""
    missing = not (servers.PEERS / name).exists()
    skip = unittest.skipIf(missing, f"{servers.PEERS / name} is not there; set PEERS_DIR or run scripts/test --peers")

    def mark(test):
        test.needs_peer = True
        return skip(test)

    return mark


def needs_library(name):
    missing = not servers.built(f"libtriton_{name}.so").exists()
    return unittest.skipIf(missing, f"libtriton_{name}.so is not built in profile {servers.PROFILE}")


conch_only = unittest.skipIf(IS_TRITON, "says what conch does, not what upstream does")


class ServerCase(unittest.TestCase):
    """Starts one server for all tests of the class. `models` fills its repository, `flags` are its own."""

    flags = ()
    # A command that starts the server, such as taskset.
    launcher = ()
    environment = None
    models = None
    # With what header the server is asked whether it is ready.
    ready_headers = None
    repository_path = None
    # Whether a backend of these tests panics on purpose.
    may_panic = False

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        if cls.models:
            cls.models(cls.repository)
        path = cls.repository_path or cls.repository.path
        cls.server = servers.Server(path, *cls.flags, kind=KIND, prefix=cls.launcher, environment=cls.environment,
                                    ready_headers=cls.ready_headers)
        cls.addClassCleanup(cls.server.kill)

    @classmethod
    def tearDownClass(cls):
        if not cls.server.is_alive():
            raise AssertionError(f"the server died with code {cls.server.process.returncode}\n{cls.server.output[-4000:]}")
        code = cls.server.terminate()
        if code != 0 and not IS_TRITON:
            raise AssertionError(f"the server ended with code {code}\n{cls.server.output[-4000:]}")
        panics = [line for line in cls.server.output.splitlines() if "panicked" in line]
        if panics and not cls.may_panic and not IS_TRITON:
            raise AssertionError(f"the server panicked: {panics}")

    # Requests

    def infer(self, value, tail=b"", model="identity", headers=None):
        """An HTTP inference: (status, headers, body)."""
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        more = dict(headers or {})
        if tail:
            more["Inference-Header-Content-Length"] = str(len(text))
        return self.server.request("POST", f"/v2/models/{model}/infer", text + tail, more)

    def assert_serves(self, model="identity", shape=(1, 4)):
        """A good request right now must be answered well: the sign that an earlier bad one did no harm."""
        count = 1
        for dim in shape:
            count *= dim
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": list(shape), "data": list(range(count))}]}
        status, _, reply = self.infer(body, model=model)
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"][0]["data"], list(range(count)))

    def exchange(self, raw, **more):
        return wire.exchange(self.server, raw, **more)


class Cancelling:
    """For cases of models whose backends report each response (`square`): whether a request was cancelled shows in its statistics."""

    def figures(self, model):
        """What the model's statistics say of its responses, all indices together: counts by kind."""
        counts = dict.fromkeys(("success", "cancel"), 0)
        for response in self.server.statistics(model).get("response_stats", {}).values():
            for kind in counts:
                counts[kind] += response[kind]["count"]
        return counts

    def assert_cancelled(self, model, before, within=60):
        """One request more was cancelled while it executed, and no response is made for it any more. A look at the statistics of many
        thousand responses takes a second on a busy machine."""
        after = until(lambda: self.figures(model), f"a request more of {model} that was cancelled than in {before}", within,
                      lambda now: now["cancel"] != before["cancel"])
        if after["cancel"] != before["cancel"] + 1:
            statistics = self.server.statistics(model)
            statistics.pop("response_stats", None)
            self.fail(f"before {before}, after {after}, statistics {statistics}")
        time.sleep(0.2)  # the test itself: nothing more may come
        self.assertEqual(self.figures(model), after)


class ListenerCase(ServerCase):
    """A further HTTP listener: `port` is its name, `port_flags` gives the flags that open it, `find_port` reads its port from the log."""

    port = port_flags = find_port = None
    more_flags = ()

    @classmethod
    def setUpClass(cls):
        cls.flags = (*cls.port_flags(), *cls.more_flags)
        super().setUpClass()
        cls.find_port(cls.server)

    @classmethod
    def models(cls, repository):
        repository.model("identity", identity())
        repository.model("other", identity())

    def ask(self, method, path, body=None, headers=None):
        body = json.dumps(body) if isinstance(body, (dict, list)) else body
        return self.server.request(method, path, body, headers, port=self.port)
