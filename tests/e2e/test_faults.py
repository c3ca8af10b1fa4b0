"""Panics of a Rust backend in each of its entry points, in a running server: an answer to those concerned, a line in the log, and
nothing to anybody else. What C++ backends do is in the tests of src/ffi."""

import json
import struct
import threading
import unittest

import server as servers
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity, tensors


def faulty(place="", batch=0, extra=""):
    """OUTPUT0 is INPUT0, UINT8 of any length; the backend panics in `place`."""
    text = f'backend: "faulty"\nmax_batch_size: {batch}\n'
    text += tensors("input", [("INPUT0", "UINT8", (-1,))]) + tensors("output", [("OUTPUT0", "UINT8", (-1,))])
    text += "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    return text + (f'parameters {{ key: "panic" value {{ string_value: "{place}" }} }}\n' if place else "") + extra


def body(*values, batch=False):
    shape = [1, len(values)] if batch else [len(values)]
    return {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": shape, "data": list(values)}]}


def listed(server):
    """The index of the repository, by name."""
    status, reply = server.post_json("/v2/repository/index", {})
    assert status == 200, reply
    return {model["name"]: model for model in json.loads(reply)}


@conch_only
@needs_library("faulty")
class Panics(ServerCase):
    flags = ("--exit-on-error=false", "--strict-readiness=false")

    @classmethod
    def models(cls, repository):
        repository.model("fine", faulty())
        repository.model("identity", identity(batch=8))
        for place in ("model_initialize", "instance_initialize", "ready", "execute"):
            repository.model(place, faulty(place))
        repository.model("batches", faulty("execute", batch=8, extra="dynamic_batching { max_queue_delay_microseconds: 200000 }"))

    def assert_others_served(self):
        status, _, reply = self.infer(body(1, 2, 3), model="fine")
        self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [1, 2, 3]))
        self.assert_serves()

    def test_a_load_fails_with_the_reason(self):
        index = listed(self.server)
        for place in ("model_initialize", "instance_initialize"):
            self.assertEqual(index[place]["state"], "UNAVAILABLE")
            self.assertIn(f"panic in the backend: as ordered, in {place}", index[place]["reason"])
            self.assertRegex(self.server.output, f"failed to load '{place}' version 1: .*as ordered, in {place}")
            status, _, reply = self.infer(body(0), model=place)
            self.assertEqual(status, 404, reply)
        self.assert_others_served()

    def test_readiness_says_no(self):
        self.assertEqual(self.server.get("/v2/models/ready/ready")[0], 400)
        self.assertEqual(self.server.get("/v2/models/fine/ready")[0], 200)
        status, _, reply = self.infer(body(5), model="ready")
        self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [5]), "it serves all the same")

    def test_an_execution_fails_alone(self):
        for _ in range(3):
            status, _, reply = self.infer(body(0, 7), model="execute")
            self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [0, 7]))
            # The request that is executed by itself was answered before the panic.
            status, _, reply = self.infer(body(1, 7), model="execute")
            self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [1, 7]))
        self.server.wait_for_line("panic in the backend: as ordered, in execute")
        self.assert_others_served()

    def test_each_of_a_batch_gets_an_answer_of_its_own(self):
        """Of each batch the first request is answered and the others fail; nobody gets another's bytes."""
        answers, lock = [], threading.Lock()

        def ask(value):
            # The mark is in every request, so that whichever comes last makes its batch fail.
            payload = list(struct.pack("<BI", 1, value))
            status, _, reply = self.infer(body(*payload, batch=True), model="batches")
            with lock:
                answers.append((status, payload, json.loads(reply)))

        threads = [threading.Thread(target=ask, args=(value,)) for value in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        good = [answer for answer in answers if answer[0] == 200]
        for _, payload, reply in good:
            self.assertEqual(reply["outputs"][0]["data"], payload)
        bad = [reply["error"] for status, _, reply in answers if status == 500]
        self.assertEqual(len(good) + len(bad), 40, answers)
        self.assertEqual(set(bad), {"panic in the backend: as ordered, in execute"})
        self.assertGreaterEqual(len(good), 5, "one of each batch of at most eight")
        self.assert_others_served()


@conch_only
@needs_library("faulty")
class AtTheEnds(unittest.TestCase):
    """Where a panic concerns the whole backend, or comes when nobody is left to tell."""

    def start(self, place="", setting=""):
        repository = Repository()
        self.addCleanup(repository.close)
        repository.model("faulty", faulty(place))
        repository.model("identity", identity(batch=8))
        flags = ["--exit-on-error=false", "--strict-readiness=false"]
        if setting:
            flags.append(f"--backend-config=faulty,panic={setting}")
        server = servers.Server(repository, *flags)
        self.addCleanup(server.kill)
        return server

    def infer(self, server, model, value):
        return server.request("POST", f"/v2/models/{model}/infer", json.dumps(value).encode())[0]

    def test_the_backend_is_not_loaded(self):
        for place in ("initialize", "attributes"):
            with self.subTest(place):
                server = self.start(setting=place)
                index = listed(server)
                self.assertIn(f"panic in the backend: as ordered, in {place}", index["faulty"]["reason"])
                numbers = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
                self.assertEqual(self.infer(server, "identity", numbers), 200)
                self.assertEqual(server.terminate(), 0)

    def test_the_server_ends_well(self):
        for place, setting, line in (
                ("instance_finalize", "", "failed finalizing model instance 'faulty.*'"),
                ("model_finalize", "", "failed finalizing model 'faulty' version 1"),
                ("", "finalize", "failed finalizing backend 'faulty'")):
            with self.subTest(place or setting):
                server = self.start(place, setting)
                self.assertEqual(self.infer(server, "faulty", body(1)), 200)
                self.assertEqual(server.terminate(), 0)
                self.assertRegex(server.output, f"{line}: .*panic in the backend: as ordered, in {place or setting}")


if __name__ == "__main__":
    unittest.main()
