"""Panics of a Rust backend, and errors and exceptions of caches, repository agents and batching libraries in C++, in each of their
entry points and in a running server: an answer to those concerned, a line in the log, and nothing to anybody else. What backends in
C++ do is in the tests of src/ffi."""

import json
import pathlib
import struct
import tempfile
import threading
import unittest

import server as servers
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity, tensors
from test_authors import ABI, output


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
    may_panic = True
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
            self.server.wait_for_match(f"failed to load '{place}' version 1: .*as ordered, in {place}")
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
                server.wait_for_match(f"{line}: .*panic in the backend: as ordered, in {place or setting}")


class PluginCase(unittest.TestCase):
    """Plug-ins in C++ that fail where they are told to: compiled as their authors would, one server per fault."""

    source = library = None

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-faulty-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.path = cls.directory / "faulty" / cls.library
        stub = cls.directory / "stub"
        stub.mkdir()
        cls.path.parent.mkdir()
        empty = "".join(f"void {name}(void) {{}}\n" for name in (ABI / "exports.txt").read_text().split())
        shared = ("-shared", "-fPIC", "-o")
        output("gcc", "-Wl,-soname,libtritonserver.so", *shared, stub / "libtritonserver.so", "-x", "c", "-", input=empty)
        output("g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fvisibility=hidden", f"-I{ABI}/include",
               servers.ROOT / "tests/capi" / cls.source, *shared, cls.path, f"-L{stub}", "-ltritonserver")

    def serve(self, config, *flags, fault="", files=None):
        """A server with the models `watched`, which has the plug-in to do with, and `other`."""
        repository = Repository()
        self.addCleanup(repository.close)
        repository.model("watched", config, files=files).model("other", identity(batch=8))
        server = servers.Server(repository, "--exit-on-error=false", "--strict-readiness=false", *flags, environment={"FAULTY": fault})
        self.addCleanup(server.kill)
        return server

    def infer(self, server, *values, model="watched"):
        value = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}]}
        status, _, reply = server.request("POST", f"/v2/models/{model}/infer", json.dumps(value).encode())
        self.assertEqual(status, 200, reply)
        return json.loads(reply)["outputs"][0]["data"]

    def faults(self, *steps):
        """Each step, once with an error and once with an exception: what is ordered, and the words that must be told."""
        for step in steps:
            for how, told in (("fail", "failed"), ("throw", "threw")):
                yield f"{how}_{step}", f"{step} {told}"

    def assert_not_loaded(self, server, reason):
        """The model of the plug-in is not there, for this reason; the other one serves."""
        self.assertNotEqual(listed(server)["watched"].get("state"), "READY")
        self.assertEqual(self.infer(server, 1, 2, model="other"), [1, 2])
        self.assertEqual(server.terminate(), 0)
        server.wait_for_match(reason)

    def assert_serves_and_tells(self, server, line):
        """All is served right, the server ends well, and the log has the line."""
        for value in range(5):
            self.assertEqual(self.infer(server, value, 7), [value, 7])
            self.assertEqual(self.infer(server, value, 8, model="other"), [value, 8])
        self.assertEqual(server.terminate(), 0)
        server.wait_for_match(line)


@conch_only
class Caches(PluginCase):
    source, library = "faulty_cache.cc", "libtritoncache_faulty.so"

    def start(self, fault):
        flags = (f"--cache-directory={self.directory}", f"--cache-config=faulty,fault={fault}")
        return self.serve(identity(batch=8, extra="response_cache { enable: true }\n"), *flags)

    def test_the_server_does_not_start_without_the_cache_it_was_told_to_use(self):
        for fault, reason in self.faults("initialize"):
            with self.assertRaises(servers.StartFailed) as failed:
                self.start(fault)
            self.assertIn(reason, failed.exception.output)
            self.assertGreater(failed.exception.code, 0, "an ordinary end")

    def test_requests_are_served_as_without_it(self):
        for fault, reason in self.faults("lookup", "insert", "finalize"):
            self.assert_serves_and_tells(self.start(fault), reason)


@conch_only
class Agents(PluginCase):
    source, library = "faulty_agent.cc", "libtritonrepoagent_faulty.so"

    def start(self, fault):
        config = identity(batch=8, extra='model_repository_agents { agents { name: "faulty" } }\n')
        return self.serve(config, f"--repoagent-directory={self.directory}", fault=fault)

    def test_a_model_is_not_loaded_for_the_reason(self):
        for fault, reason in self.faults("initialize", "model_initialize", "action"):
            self.assert_not_loaded(self.start(fault), reason)

    def test_an_end_is_told(self):
        for fault, reason in self.faults("model_finalize", "finalize"):
            self.assert_serves_and_tells(self.start(fault), reason)


@conch_only
class BatchingLibraries(PluginCase):
    source, library = "faulty_batcher.cc", "batchstrategy.so"

    def start(self, fault):
        config = identity(batch=8, extra="dynamic_batching { max_queue_delay_microseconds: 1000 }\n")
        return self.serve(config, fault=fault, files={"1/batchstrategy.so": self.path})

    def test_a_model_is_not_loaded_for_the_reason(self):
        for fault, reason in self.faults("batcher_initialize"):
            self.assert_not_loaded(self.start(fault), reason)

    def test_requests_are_served_as_without_it(self):
        for fault, reason in self.faults("initialize", "include", "finalize", "batcher_finalize"):
            self.assert_serves_and_tells(self.start(fault), reason)


if __name__ == "__main__":
    unittest.main()
