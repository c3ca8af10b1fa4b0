"""Model control: loading, reloading and unloading by request, and by what lies in the repositories."""

import base64
import json
import os
import pathlib
import threading
import time
import unittest

import grpc
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import onnx_model
import server as servers
from case import IS_TRITON, KIND, ServerCase, conch_only, needs_library
from repository import Repository, identity, tensors
from waiting import until, until_equal

NOT_POLLED = "failed to load '{}', failed to poll from model repository"
BACKEND = ("load failed for model 'bad': version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend library for "
           "backend 'no_such', try specifying runtime on the model configuration.;\n")
VERSIONS = "load failed for model '{0}': at least one version must be available under the version policy of model '{0}'\n"
EXPLICIT = "--model-control-mode=explicit"


def configuration(name="", **more):
    """The configuration of an identity model as JSON, for loads that bring their own."""
    def tensor(place):
        return [{"name": f"{place}0", "data_type": "TYPE_FP32", "dims": [-1]}]
    config = {"backend": "identity", "max_batch_size": 8, "input": tensor("INPUT"), "output": tensor("OUTPUT"),
              "instance_group": [{"count": 1, "kind": "KIND_CPU"}]}
    return json.dumps({"name": name, **config, **more})


def parameters(**values):
    """The body of a load; two underscores stand for a colon."""
    return json.dumps({"parameters": {key.replace("__", ":", 1): value for key, value in values.items()}})


class Asking:
    """Requests for model control, for any test with a server."""

    def control(self, name, action, body=""):
        status, headers, reply = self.server.request("POST", f"/v2/repository/models/{name}/{action}", body)
        self.assertEqual(headers["content-type"], "application/json")
        return status, json.loads(reply)["error"] if reply else ""

    def load(self, name, body=""):
        return self.control(name, "load", body)

    def unload(self, name, body=""):
        return self.control(name, "unload", body)

    def rows(self):
        status, reply = self.server.post_json("/v2/repository/index", "")
        self.assertEqual(status, 200, reply)
        return json.loads(reply)

    def index(self):
        """`name`, `name:version state` or `name:version reason`, of models that nobody is unloading."""
        until(lambda: all(row.get("state") != "UNLOADING" for row in self.rows()), self.rows)

        def show(row):
            version = f":{row['version']} " if "version" in row else ""
            return row["name"] + version + (row.get("reason") or row.get("state", ""))
        return sorted(show(row) for row in self.rows())

    def is_ready(self, name):
        return self.server.get(f"/v2/models/{name}/ready")[0] == 200


class Http(Asking, ServerCase):
    flags = (EXPLICIT, "--load-model=start")

    def models(repository):
        for name in ("start", "a", "m", "counted"):
            repository.model(name, identity(batch=8))
        repository.model("many", identity(batch=8), versions=("1", "2", "3"))
        repository.model("policy", identity(batch=8), versions=("1", "2", "3"))
        repository.model("bad", 'backend: "no_such"\n')
        repository.model("syntax", "no_such_field: 1\n")

    def test_startup_models(self):
        ready = json.loads(self.server.post_json("/v2/repository/index", {"ready": True})[1])
        self.assertIn({"name": "start", "version": "1", "state": "READY"}, ready)

    def test_loads_and_unloads(self):
        self.assertIn("a", self.index())
        for _ in range(2):
            self.assertEqual(self.load("a"), (200, ""))
            self.assert_serves("a")
        for _ in range(2):
            self.assertEqual(self.unload("a"), (200, ""))
            self.assertIn("a:1 unloaded", self.index())
        status, body = self.server.get("/v2/models/a")
        self.assertEqual((status, json.loads(body)["error"]), (404, "Request for unknown model: 'a' has no available versions"))
        status, body = self.server.get("/v2/models/a/versions/1")
        self.assertEqual((status, json.loads(body)["error"]), (503, "Request for unknown model: 'a' version 1 is not at ready state"))
        self.assertEqual(self.load("a", "{}"), (200, ""))
        self.assert_serves("a")

    def test_refused_loads(self):
        rows = [
            ("absent", "", 500, NOT_POLLED.format("absent")),
            ("syntax", "", 500, NOT_POLLED.format("syntax")),
            ("bad", "", 400, BACKEND),
            ("%2e%2e", "", 500, NOT_POLLED.format("%2e%2e")),
            ("start", parameters(config="{"), 500, NOT_POLLED.format("start")),
            ("start", parameters(config=configuration(no_such_field=1)), 500, NOT_POLLED.format("start")),
            ("start", parameters(config=configuration("other")), 500, NOT_POLLED.format("start")),
            ("start", parameters(other="x"), 500, "unexpected error on creating Triton parameter"),
            ("start", '{"parameters":{"file:1/model":"AAAA"}}', 500, NOT_POLLED.format("start")),
            ("start", json.dumps({"parameters": {"config": configuration(), "file:../x": "AAAA"}}), 500, NOT_POLLED.format("start")),
            ("start", json.dumps({"parameters": {"config": configuration(), "file:1": "AAAA", "file:1/x": "AAAA"}}), 500,
             NOT_POLLED.format("start")),
            ("start", json.dumps({"parameters": {"config": configuration(), "file:x": "AAAA"}}), 400, VERSIONS.format("start")),
            ("start", '{"parameters":[]}', 500, "attempt to get members for non-object"),
        ]
        for name, body, status, message in rows:
            with self.subTest(name=name, body=body):
                self.assertEqual(self.load(name, body), (status, message))
                self.assert_serves("start")
        if not IS_TRITON:  # since a later release
            self.assertEqual(self.load(".."), (400, "invalid model name '..', model name must not contain path traversal characters"))
        self.assertFalse((pathlib.Path(self.repository.path).parent / "x").exists())

    def test_unloads_that_change_nothing(self):
        for name in ("absent", "syntax"):
            self.assertEqual(self.unload(name), (200, ""))
        for body in ('{"parameters":{"unload_dependents":true}}', '{"parameters":{"unload_dependents":1}}'):
            self.assertEqual(self.unload("absent", body), (200, ""))

    def test_configuration_and_files_of_a_load(self):
        every = {"version_policy": {"all": {}}}
        self.assertEqual(self.load("many", parameters(config=configuration(**every))), (200, ""))
        rows = [row for row in self.index() if row.startswith("many")]
        self.assertEqual(rows, ["many:1 READY", "many:2 READY", "many:3 READY"])
        # It stays until a file changes.
        self.assertEqual(self.load("many"), (200, ""))
        self.assertEqual([row for row in self.index() if row.startswith("many")], rows)
        if IS_TRITON:
            time.sleep(1.1)  # time must pass: it looks at whole seconds on some file systems
        (self.repository.path / "many/config.pbtxt").touch()
        self.assertEqual(self.load("many"), (200, ""))
        rows = [row for row in self.index() if row.startswith("many")]
        self.assertEqual(rows, ["many:1 unloaded", "many:2 unloaded", "many:3 READY"])
        body = json.dumps({"parameters": {"config": configuration(), "file:7/a/b": base64.b64encode(b"contents").decode()}})
        self.assertEqual(self.load("many", body), (200, ""))
        self.assert_serves("many")
        self.assertEqual(self.server.get_json("/v2/models/many")["versions"], ["7"])
        self.assertEqual(self.load("many"), (200, ""))
        self.assertEqual(self.server.get_json("/v2/models/many")["versions"], ["3"])
        # One that lies in no repository serves, and is not listed.
        self.assertEqual(self.load("fresh", body), (200, ""))
        self.assert_serves("fresh")
        self.assertFalse([row for row in self.index() if row.startswith("fresh")])
        self.assertEqual(self.load("fresh"), (500, NOT_POLLED.format("fresh")))
        self.assert_serves("fresh")
        self.assertEqual(self.unload("fresh"), (200, ""))

    def test_another_policy_loads_only_what_is_new(self):
        config = self.repository.path / "policy/config.pbtxt"

        def want(versions):
            config.write_text(identity(batch=8, extra=f"version_policy {{ specific {{ versions: [ {versions} ] }} }}\n"))
            self.assertEqual(self.load("policy"), (200, ""))
        want("1, 2")
        value = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        self.assertEqual(self.server.post_json("/v2/models/policy/versions/2/infer", value)[0], 200)
        if IS_TRITON:
            time.sleep(1.1)  # time must pass: it looks at whole seconds on some file systems
        want("2, 3")
        rows = [row for row in self.index() if row.startswith("policy")]
        self.assertEqual(rows, ["policy:1 unloaded", "policy:2 READY", "policy:3 READY"])
        self.assertEqual(self.server.statistics("policy", "2")["inference_count"], 1, "it is the one that was there before")

    @conch_only
    def test_a_failed_reload_keeps_what_serves(self):
        self.assertEqual(self.load("m"), (200, ""))
        config = self.repository.path / "m/config.pbtxt"
        good = config.read_text()
        for bad in (good.replace("identity", "no_such"), "no_such_field: 1\n"):
            config.write_text(bad)
            self.assertNotEqual(self.load("m")[0], 200)
            self.assert_serves("m")
        config.write_text(good)
        self.assertEqual(self.load("m"), (200, ""))
        self.assert_serves("m")

    def test_metrics_count_on_through_a_reload(self):
        name = 'nv_inference_count{model="counted",version="1"}'
        self.assertEqual(self.load("counted"), (200, ""))
        for total, tag in ((1, "a"), (2, "b"), (3, "c")):
            self.assert_serves("counted")
            self.assertEqual(self.server.metrics()[name], total)
            config = configuration(parameters={"tag": {"string_value": tag}})
            self.assertEqual(self.load("counted", parameters(config=config)), (200, ""))
            self.assertEqual(self.server.metrics()[name], total)
            self.assertEqual(self.server.statistics("counted")["inference_count"], 0, "statistics begin anew")

    def test_extensions(self):
        extensions = self.server.get_json("/v2")["extensions"]
        self.assertLessEqual({"model_repository", "model_repository(unload_dependents)"}, set(extensions))

    def test_upstreams_client(self):
        client = triton_http.InferenceServerClient(self.server.http)
        client.load_model("many", config=configuration(), files={"file:5/model": b"contents"})
        self.assertTrue(client.is_model_ready("many", "5"))
        client.unload_model("many", unload_dependents=True)
        self.assertFalse(client.is_model_ready("many", "5"))
        client.close()


class Grpc(Asking, ServerCase):
    flags = (EXPLICIT,)

    def models(repository):
        repository.model("m", identity(batch=8), versions=("1", "2"))
        repository.model("bad", 'backend: "no_such"\n')

    def setUp(self):
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def refused(self, call, request):
        with self.assertRaises(grpc.RpcError) as raised:
            call(request, timeout=30)
        return raised.exception.code().name, raised.exception.details()

    def test_loads_and_unloads(self):
        self.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="m"))
        self.assertTrue(self.is_ready("m"))
        ready = self.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models
        self.assertEqual([(row.name, row.version, row.state) for row in ready], [("m", "2", "READY")])
        unload = pb.RepositoryModelUnloadRequest(model_name="m")
        unload.parameters["unload_dependents"].bool_param = True
        self.stub.RepositoryModelUnload(unload)
        self.assertEqual(self.index(), ["bad", "m:2 unloaded"])
        self.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="absent"))

    def test_refused_loads(self):
        def load(name, **values):
            request = pb.RepositoryModelLoadRequest(model_name=name)
            for key, (kind, value) in values.items():
                setattr(request.parameters[key.replace("__", ":", 1)], kind, value)
            return self.refused(self.stub.RepositoryModelLoad, request)
        self.assertEqual(load("absent"), ("INTERNAL", NOT_POLLED.format("absent")))
        self.assertEqual(load("bad"), ("INVALID_ARGUMENT", BACKEND))
        self.assertEqual(load("m", config=("string_param", "{")), ("INTERNAL", NOT_POLLED.format("m")))
        self.assertEqual(load("m", file__1=("bytes_param", b"x")), ("INTERNAL", NOT_POLLED.format("m")))
        self.assertEqual(load("m", other=("string_param", "x")), ("INVALID_ARGUMENT", "unrecognized load parameter 'other'."))
        if not IS_TRITON:  # since a later release
            self.assertEqual(load(" "), ("INVALID_ARGUMENT", "Model name cannot be empty. Please enter a valid name to deploy."))

    @needs_library("onnxruntime")
    @unittest.skipIf(IS_TRITON, "asks for the onnxruntime backend of this repository")
    def test_a_model_that_comes_whole(self):
        """A model of more than the 4 MiB that other calls may have, by upstream's client."""
        client = triton_grpc.InferenceServerClient(self.server.grpc)
        config = json.dumps({"backend": "onnxruntime"})
        files = {"file:1/model.onnx": onnx_model.mixed(), "file:1/assets/large": bytes(9 << 20)}
        client.load_model("whole", config=config, files=files)
        self.assertTrue(client.is_model_ready("whole", "1"))
        client.unload_model("whole")
        client.close()
        self.server.wait_for_line("successfully unloaded 'whole' version 1")


@conch_only
class Traffic(Asking, ServerCase):
    """What goes on beside model control."""

    flags = (EXPLICIT, "--load-model=steady", "--load-model=m")

    def models(repository):
        repository.model("steady", identity(batch=8))
        repository.model("m", identity(batch=8, count=2))
        repository.model("slow", identity(batch=8, parameters={"creation_delay_sec": "3"}))
        repository.model("held", identity(batch=8, parameters={"execute_delay_ms": "3000"}))

    def test_no_request_fails_while_its_model_is_reloaded(self):
        is_over, problems, counts = threading.Event(), [], []
        value = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}

        def over_http():
            client = triton_http.InferenceServerClient(self.server.http)
            count = 0
            while not is_over.is_set():
                status, reply = self.server.post_json("/v2/models/m/infer", value)
                if status != 200:
                    problems.append((status, reply))
                count += 1
            counts.append(count)
            client.close()

        def over_grpc():
            channel = grpc.insecure_channel(self.server.grpc)
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(16)])
            request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
            count = 0
            while not is_over.is_set():
                try:
                    stub.ModelInfer(request, timeout=30)
                except grpc.RpcError as error:
                    problems.append((error.code(), error.details()))
                count += 1
            counts.append(count)
            channel.close()

        threads = [threading.Thread(target=work) for work in (over_http, over_grpc, over_http)]
        for thread in threads:
            thread.start()
        try:
            for number in range(40):
                config = configuration(metric_tags={"load": str(number)})
                self.assertEqual(self.load("m", parameters(config=config)), (200, ""))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(problems, [])
        self.assertGreater(min(counts), 40, counts)
        self.assertEqual(self.index().count("m:1 READY"), 1)
        until_equal(lambda: self.server.output.count("successfully unloaded 'm' version 1"), 40, "the count of unloads in the log")

    def test_loading_holds_nothing_up(self):
        loads = [threading.Thread(target=self.load, args=("slow",)) for _ in range(4)]
        started = time.monotonic()
        for load in loads:
            load.start()
        until(lambda: ("slow", "LOADING") in [(row["name"], row.get("state")) for row in self.rows()], self.index)
        slowest, count = 0, 0
        while loads[0].is_alive():
            before = time.monotonic()
            self.assert_serves("steady")
            self.assertEqual(self.load("m"), (200, ""))
            slowest, count = max(slowest, time.monotonic() - before), count + 1
        for load in loads:
            load.join()
        self.assertGreater(time.monotonic() - started, 2.5, "it is as slow as it says")
        self.assertGreater(count, 3)
        self.assertLess(slowest, 2.5, "less than the slow one takes")
        self.assertEqual(self.server.output.count("loading: slow:1"), 1, "four asked, one load")
        self.assert_serves("slow")
        self.assertEqual(self.unload("slow"), (200, ""))

    def test_what_executes_is_answered_before_the_model_goes(self):
        self.assertEqual(self.load("held"), (200, ""))
        answers = []
        value = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        asking = threading.Thread(target=lambda: answers.append(self.server.post_json("/v2/models/held/infer", {**value, "id": "held"})))
        with self.server.telling_states():
            asking.start()
            self.server.wait_for_state("held", "EXECUTING")
        self.assertEqual(self.unload("held"), (200, ""))
        self.assertEqual(answers, [], "an unload does not wait for requests")
        status, reply = self.server.post_json("/v2/models/held/infer", value)
        self.assertIn(status, (404, 503), reply)
        asking.join()
        self.assertEqual(answers[0][0], 200)
        self.server.wait_for_line("successfully unloaded 'held' version 1")


class Polling(Asking, unittest.TestCase):
    def test_the_server_follows_the_repository(self):
        with Repository() as repository:
            repository.model("kept", identity(batch=8))
            repository.model("gone", identity(batch=8))
            flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
            with servers.Server(repository, *flags, kind=KIND) as self.server:
                refused = "explicit model load / unload is not allowed if polling is enabled"
                self.assertEqual(self.load("kept"), (503, refused))
                self.assertEqual(self.unload("kept"), (503, refused))
                self.assertEqual(self.index(), ["gone:1 READY", "kept:1 READY"])
                repository.model("new", identity(batch=8))
                (repository.path / "gone/config.pbtxt").unlink()
                (repository.path / "gone/1").rmdir()
                (repository.path / "gone").rmdir()
                (repository.path / "kept/2").mkdir()
                expected = ["kept:1 unloaded", "kept:2 READY", "new:1 READY"]
                until(lambda: self.index() == expected, self.index)
                (repository.path / "kept/config.pbtxt").write_text("no_such_field: 1\n")
                self.server.wait_for_line("Poll failed for model directory 'kept'")
                self.assertTrue(self.is_ready("kept"))
                if IS_TRITON:
                    return
                # A file that an older one replaces is a change as well.
                weights = repository.path / "new/1/weights"
                weights.write_bytes(b"first")
                until(lambda: self.server.output.count("loading: new:1") == 2, "the new file was not seen")
                older = time.time() - 86_400
                (repository.path / "weights").write_bytes(b"older")
                os.utime(repository.path / "weights", (older, older))
                times = {path: os.stat(path) for path in (weights.parent, weights.parent.parent)}
                os.replace(repository.path / "weights", weights)
                for path, before in times.items():
                    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
                until(lambda: self.server.output.count("loading: new:1") == 3, "the older file was not seen")


class Namespaces(Asking, unittest.TestCase):
    def test_models_of_one_name(self):
        with Repository() as first, Repository() as second:
            first.model("same", identity(batch=8))
            second.model("same", identity(batch=8))
            second.model("own", identity(batch=8))
            with servers.Server([first.path, second.path], "--model-namespacing=true", kind=KIND) as self.server:
                self.assertTrue(self.is_ready("own"))
                status, reply = self.server.get("/v2/models/same/config")
                self.assertEqual((status, json.loads(reply)["error"]), (400, (
                    "There are 2 identifiers of model 'same' in global map, model namespace must be provided to resolve ambiguity.")))
                text = self.server.get("/metrics", port="metrics")[1].decode()
                self.assertIn(f'model="same",namespace="{first.path}",version="1"', text)
                rows = json.loads(self.server.post_json("/v2/repository/index", b"")[1])
                self.assertEqual(sorted(row["name"] for row in rows), ["own", "same", "same"], "without their namespaces")


@conch_only
class Soak(Asking, ServerCase):
    """A hundred loads and unloads of each backend leave nothing behind."""

    flags = (EXPLICIT,)
    CYCLES = 100

    def models(repository):
        repository.model("identity", identity(batch=8, count=2))
        repository.model("onnx", 'backend: "onnxruntime"\n', files={"1/model.onnx": onnx_model.mixed()})
        decoupled = "model_transaction_policy { decoupled: true }\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n"
        repository.model("repeat", 'backend: "repeat"\n' + decoupled
                         + tensors("input", [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))])
                         + tensors("output", [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))]))
        repository.model("square", 'backend: "square"\nmax_batch_size: 8\ndynamic_batching { }\n' + decoupled
                         + tensors("input", [("IN", "INT32", (1,))]) + tensors("output", [("OUT", "INT32", (1,))]))

    def cycle(self, name):
        self.assertEqual(self.load(name), (200, ""))
        if name == "identity":
            self.assert_serves(name)
        self.assertEqual(self.unload(name), (200, ""))

    def thread_count(self):
        return len(list(pathlib.Path(f"/proc/{self.server.pid}/task").iterdir()))

    def flat(self, name):
        for _ in range(10):
            self.cycle(name)
        self.index()
        until(lambda: not self.is_ready(name), "it stays")
        before = self.server.resident_bytes(), self.server.file_count(), self.thread_count()
        for _ in range(self.CYCLES):
            self.cycle(name)
        self.index()
        grown_bytes = self.server.resident_bytes() - before[0]
        self.assertLess(grown_bytes, 2 << 20, f"{grown_bytes} bytes in {self.CYCLES} cycles")
        # What the last unload held closes a moment after its answer; a leak is one each cycle.
        until(lambda: self.server.file_count() - before[1], "at most 2 files more are open", accept=lambda more: more <= 2)
        until(lambda: self.thread_count() - before[2], "at most 2 threads more", accept=lambda more: more <= 2)

    @needs_library("identity")
    def test_identity(self):
        self.flat("identity")

    @needs_library("onnxruntime")
    def test_onnxruntime(self):
        self.flat("onnx")

    @needs_library("repeat")
    def test_repeat(self):
        self.flat("repeat")

    @needs_library("square")
    def test_square(self):
        self.flat("square")
