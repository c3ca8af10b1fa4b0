"""The SageMaker listener, in conch and in the real Triton: one model at /invocations, and many by /models."""

import http.client
import json
import os
import pathlib
import shutil
import subprocess
import threading
import time
import unittest
import uuid

import server as servers
import wire
from case import IS_TRITON, KIND, ListenerCase, conch_only, pack
from repository import Repository, identity
from waiting import until, until_equal

MIME = "application/vnd.sagemaker-triton.binary+json;json-header-size="
MODELS = pathlib.Path("/opt/ml/models")
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
BINARY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}],
          "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}


def port_flags():
    if IS_TRITON:
        return ("--allow-sagemaker=true", f"--sagemaker-port={servers.free_port()}")
    return ("--allow-sagemaker=true", "--sagemaker-address=127.0.0.1", "--sagemaker-port=0")


def find_port(server):
    server.ports["sagemaker"] = int(server.wait_for_line(r"Started Sagemaker HTTPService at [0-9.]+:(\d+)")[1])


class SageMakerCase(ListenerCase):
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "identity"}
    port = "sagemaker"
    port_flags, find_port = staticmethod(port_flags), staticmethod(find_port)


class Single(SageMakerCase):
    def test_ping(self):
        self.assertEqual(self.ask("GET", "/ping")[::2], (200, b""))
        status, _, body = self.ask("POST", "/ping")
        self.assertEqual((status, json.loads(body)), (405, {"error": "Method Not Allowed"}))

    def test_invocations_with_json(self):
        status, headers, body = self.ask("POST", "/invocations", BODY)
        self.assertEqual((status, json.loads(body)["outputs"][0]["data"]), (200, [1, 2]))
        self.assertEqual(headers["content-type"].split(";")[0], "application/json")
        self.assertEqual(self.ask("GET", "/invocations")[0], 405)

    def test_invocations_with_binary_tensors(self):
        text = json.dumps(BINARY).encode()
        status, headers, body = self.ask("POST", "/invocations", text + pack([1, 2]), {"Content-Type": f"{MIME}{len(text)}"})
        self.assertEqual(status, 200, body)
        self.assertTrue(headers["content-type"].startswith(MIME), headers)
        self.assertNotIn("inference-header-content-length", headers)
        json_length = int(headers["content-type"][len(MIME):])
        self.assertEqual(json.loads(body[:json_length])["outputs"][0]["shape"], [2])
        self.assertEqual(body[json_length:], pack([1, 2]))

    def test_chunks_with_binary_tensors(self):
        text = json.dumps(BINARY).encode()
        raw = wire.post("/invocations", b"", f"Content-Type: {MIME}{len(text)}", "Transfer-Encoding: chunked", length=False)
        body = text + pack([1, 2])
        raw += b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.assertEqual(wire.exchange(self.server, raw, port="sagemaker")[0], 200)

    def test_raw_binary(self):
        status, headers, body = self.ask("POST", "/invocations", pack([1, 2]), {"Content-Type": f"{MIME}0"})
        self.assertEqual(status, 200, body)
        self.assertEqual(body[int(headers["content-type"][len(MIME):]):], pack([1, 2]))

    def test_bad_lengths(self):
        """T18: what is no length of the body is refused."""
        text = json.dumps(BODY)
        count = len(text)
        newer = () if IS_TRITON else (
            (f"{MIME}x", "Unable to parse inference header size, got: x"),
            (f"{MIME}", "Unable to parse inference header size, got: "),
            (f"{MIME}99999999999", "Unable to parse inference header size, value is out of range, got: 99999999999"),
        )
        for value, message in (
            *newer,
            (f"{MIME}-1", f"inference header size should be in range (0, {count}), got: -1"),
            (f"{MIME}{count + 1}", f"inference header size should be in range (0, {count}), got: {count + 1}"),
            (f"x {MIME}1", f"expect MIME type for binary data starts with '{MIME}', got: x {MIME}1"),
        ):
            with self.subTest(value):
                status, _, body = self.ask("POST", "/invocations", text, {"Content-Type": value})
                self.assertEqual((status, json.loads(body)["error"]), (400, message))

    def test_tritons_own_header_means_nothing_here(self):
        status, _, body = self.ask("POST", "/invocations", BODY, {"Inference-Header-Content-Length": "3"})
        self.assertEqual(status, 200, body)

    def test_what_is_not_there(self):
        for verb, path in (("GET", "/"), ("GET", "/v2"), ("POST", "/v2/models/identity/infer"), ("GET", "/metrics"), ("GET", "/ping/"),
                           ("PUT", "/models"), ("PUT", "/models/x")):
            with self.subTest(path, verb=verb):
                self.assertEqual(self.ask(verb, path)[::2], (400, b""))

    def test_the_model_list_is_empty(self):
        self.assertEqual(self.ask("GET", "/models")[::2], (200, b'{"models":[]}'))
        for verb, path in (("GET", "/models/x"), ("POST", "/models/x/invoke"), ("DELETE", "/models/x"), ("POST", "/models/identity/invoke")):
            self.assertEqual(self.ask(verb, path)[::2], (404, b""), path)

    def test_no_load_without_explicit_mode(self):
        status, _, body = self.ask("POST", "/models", {"model_name": "x", "url": "/opt/ml/models/x/model"})
        self.assertEqual(status, 400, body)


class Environment(unittest.TestCase):
    """Other values of the variables."""

    def run_with(self, **environment):
        import repository
        found = repository.Repository()
        self.addCleanup(found.close)
        found.model("identity", identity())
        server = servers.Server(found.path, *port_flags(), kind=KIND, environment=environment)
        self.addCleanup(server.kill)
        find_port(server)
        return server

    def test_no_default_model(self):
        server = self.run_with()
        status, _, body = server.request("POST", "/invocations", json.dumps(BODY), port="sagemaker")
        self.assertEqual(status, 404)
        self.assertIn("unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", body.decode())

    def test_ping_for_life(self):
        server = self.run_with(SAGEMAKER_TRITON_PING_MODE="live")
        self.assertEqual(server.request("GET", "/ping", port="sagemaker")[0], 200)

    @conch_only
    def test_generate(self):
        """As the newest upstream."""
        for kind, media_type in (("generate", "application/json"), ("generate_stream", "text/event-stream")):
            with self.subTest(kind):
                server = self.run_with(SAGEMAKER_TRITON_INFERENCE_TYPE=kind, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="identity")
                status, headers, body = server.request("POST", "/invocations", json.dumps({"INPUT0": [1, 2]}), port="sagemaker")
                self.assertEqual((status, headers["content-type"].split(";")[0]), (200, media_type), body)
                self.assertEqual(json.loads(body.decode().removeprefix("data: "))["OUTPUT0"], [1, 2])

    @conch_only
    def test_a_bad_inference_type(self):
        with self.assertRaises(servers.StartFailed) as failed:
            self.run_with(SAGEMAKER_TRITON_INFERENCE_TYPE="guess")
        self.assertIn("Must be one of: infer, generate, generate_stream.", failed.exception.output)
        self.assertEqual(failed.exception.code, 1)

    def test_ports(self):
        """Other listeners on SageMaker's address keep to the range; with the same port nothing starts."""
        for flags, message in (
            (("--http-address=0.0.0.0", "--http-port=7999", "--sagemaker-safe-port-range=8000-9000"),
             "The server cannot listen to HTTP requests at port 7999, allowed port range is [8000, 9000]"),
            (("--http-address=0.0.0.0", "--http-port=8080"),
             "The server cannot listen to HTTP requests and SageMaker requests at the same address and port 0.0.0.0:8080"),
        ):
            with self.subTest(message), self.assertRaises(servers.StartFailed) as failed:
                servers.Server("/tmp", "--allow-sagemaker=true", *flags, kind=KIND)
            self.assertIn(message, failed.exception.output)
            self.assertEqual(failed.exception.code, 1)


def may_write():
    try:
        MODELS.mkdir(parents=True, exist_ok=True)
        return True
    except OSError:
        return False


@unittest.skipUnless(may_write(), f"{MODELS} cannot be made here")
@conch_only
class Serve(unittest.TestCase):
    """The script that starts a container."""

    SCRIPT = servers.ROOT / "scripts/sagemaker-serve"

    def run_script(self, models, **environment):
        port = servers.free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SAGEMAKER_")}
        process = subprocess.Popen(
            [self.SCRIPT, "serve"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**clean, "CONCH": os.environ.get("CONCH", str(servers.built("conch"))), "CONCH_SAGEMAKER_MODEL": str(models),
                 "SAGEMAKER_BIND_TO_PORT": str(port), "SAGEMAKER_TRITON_LOG_VERBOSE": "false",
                 "SAGEMAKER_TRITON_ADDITIONAL_ARGS":
                     f"--backend-directory={servers.backend_directory()} --sagemaker-address=127.0.0.1", **environment})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, port

    def ask(self, process, port, method, path, body=None):
        def answer():
            if process.poll() is not None:
                self.fail(process.stdout.read())
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request(method, path, body and json.dumps(body))
                response = connection.getresponse()
                return response.status, response.read()
            except ConnectionRefusedError:
                return None
            finally:
                connection.close()
        return until(answer, f"an answer to {path}", 60)

    def test_the_only_model(self):
        with Repository() as repository:
            repository.model("only", identity())
            process, port = self.run_script(repository)
            until_equal(lambda: self.ask(process, port, "GET", "/ping")[0], 200, "the status of /ping", 60)
            status, body = self.ask(process, port, "POST", "/invocations", BODY)
            self.assertEqual((status, json.loads(body)["model_name"]), (200, "only"))
            process.terminate()
            self.assertEqual(process.wait(30), 0)

    def test_many_models(self):
        process, port = self.run_script("/nowhere", SAGEMAKER_MULTI_MODEL="true")
        self.assertEqual(self.ask(process, port, "GET", "/ping")[0], 200)
        self.assertEqual(json.loads(self.ask(process, port, "GET", "/models")[1]), {"models": []})

    def test_what_cannot_be_served(self):
        with Repository() as none, Repository() as two:
            two.model("a", identity()).model("b", identity())
            for models, environment, words in (
                    (none, {}, f"ERROR: No model found in model repository {none}"),
                    (two, {}, f"ERROR: More than 1 model directory found in model repository {two} (a b)"),
                    (two, {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "c"}, f"ERROR: Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME c does not exist: there is no {two}/c"),
                    (two.path / "a", {}, f"ERROR: Incorrect directory structure: {two}/a is a model, and must hold the model's directory instead"),
                    (two, {"SAGEMAKER_TRITON_INFERENCE_TYPE": "x"}, "ERROR: Invalid SAGEMAKER_TRITON_INFERENCE_TYPE 'x': it must be one of infer, generate, generate_stream")):
                with self.subTest(words):
                    process, _ = self.run_script(models, **environment)
                    output, _ = process.communicate(timeout=30)
                    self.assertEqual(process.returncode, 1, output)
                    self.assertIn(words, output)


class Many(SageMakerCase):
    """A multi-model endpoint: models are loaded from below /opt/ml/models."""

    more_flags = ("--model-control-mode=explicit", "--load-model=identity")

    def setUp(self):
        self.hash = "test_" + uuid.uuid4().hex
        self.home = MODELS / self.hash
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)

    def place(self, path="model", **config):
        """Puts an identity model below this test's directory; returns the path."""
        target = self.home / path
        (target / "1").mkdir(parents=True)
        (target / "config.pbtxt").write_text(identity(**config))
        return target

    def load(self, url, name=None, **headers):
        return self.ask("POST", "/models", {"model_name": name or self.hash, "url": str(url)}, headers)[::2]

    def end(self, name=None):
        return self.ask("DELETE", f"/models/{name or self.hash}")[0]

    def invoke(self, name=None, body=BODY, **headers):
        status, _, reply = self.ask("POST", f"/models/{name or self.hash}/invoke", body, headers)
        return status, reply

    def test_the_life_of_a_model(self):
        self.place()
        self.assertEqual(self.load(self.home / "model"), (200, b""))
        described = {"modelName": self.hash, "modelUrl": str(self.home)}
        self.assertEqual(json.loads(self.ask("GET", f"/models/{self.hash}")[2]), described)
        self.assertIn(described, json.loads(self.ask("GET", "/models")[2])["models"])
        status, reply = self.invoke()
        self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, [1, 2]))
        self.assertEqual(self.load(self.home / "model")[0], 409)
        self.assertEqual(self.end(), 200)
        self.assertEqual(self.end(), 404)
        self.assertEqual(self.invoke(), (404, b""))
        self.assertEqual(self.ask("GET", f"/models/{self.hash}")[::2], (404, b""))
        self.assertNotIn(described, json.loads(self.ask("GET", "/models")[2])["models"])
        # And again.
        self.assertEqual(self.load(self.home / "model")[0], 200)
        self.assertEqual(self.end(), 200)

    def test_a_model_below_the_directory(self):
        self.place("model/inner")
        self.assertEqual(self.load(self.home / "model"), (200, b""))
        self.assertEqual(json.loads(self.ask("GET", f"/models/{self.hash}")[2])["modelUrl"], str(self.home / "model"))
        self.assertEqual(self.invoke()[0], 200)
        self.assertEqual(self.end(), 200)

    def test_a_target_model(self):
        self.place()
        header = {"X-Amzn-SageMaker-Target-Model": f"{self.hash}.tar.gz"}
        self.assertEqual(self.load(self.home / "model", **header)[0], 200)
        status, reply = self.invoke(**header)
        self.assertEqual((status, json.loads(reply)["model_name"]), (200, f"{self.hash}.tar.gz"))
        self.assertEqual(self.ask("DELETE", f"/models/{self.hash}", headers=header)[0], 200)

    def test_binary_tensors(self):
        self.place()
        self.assertEqual(self.load(self.home / "model")[0], 200)
        text = json.dumps(BINARY).encode()
        status, reply = self.invoke(body=text + pack([1, 2]), **{"Content-Type": f"{MIME}{len(text)}"})
        self.assertEqual(status, 200, reply)
        self.assertTrue(reply.endswith(pack([1, 2])))
        self.assertEqual(self.end(), 200)

    def test_what_goes_wrong_is_a_400(self):
        self.place()
        self.assertEqual(self.load(self.home / "model")[0], 200)
        status, reply = self.invoke(body={"inputs": []})
        self.assertEqual(status, 400, reply)
        # This would be a 500 on the HTTP listener.
        self.assertEqual(self.invoke(body="{")[0], 400)
        self.assertEqual(self.invoke(**{"X-Amzn-SageMaker-Target-Model": "none"})[0], 400)
        self.assertEqual(self.end(), 200)

    def test_a_model_without_memory_is_a_507(self):
        self.place(parameters={"enable_request_controls": "true"})
        self.assertEqual(self.load(self.home / "model")[0], 200)
        for message, expected in (("CUDA out of memory. Tried to allocate", 507), ("no memory of it", 400)):
            status, reply = self.invoke(body={**BODY, "parameters": {"error": message}})
            self.assertEqual((status, json.loads(reply)), (expected, {"error": message}))
        self.assertEqual(self.end(), 200)

    def test_loads_that_fail_leave_nothing(self):
        (self.home / "model" / "1").mkdir(parents=True)
        (self.home / "model" / "config.pbtxt").write_text("nonsense: 1")
        for _ in range(2):
            status, body = self.load(self.home / "model")
            self.assertEqual(status, 400, body)
            self.assertIn("error", json.loads(body))
            self.assertEqual(self.invoke(), (404, b""))

    @conch_only
    def test_wrong_json(self):
        """The real Triton at hand ends on these."""
        for body in ("{", '{"model_name": 1}', '{"url": []}', "[]"):
            with self.subTest(body):
                self.assertEqual(self.ask("POST", "/models", body)[0], 400)

    @conch_only
    def test_t1_no_path_leads_out(self):
        """T1: whatever the URL is, nothing but <root>/<hash>/model[/<subdirectory>] is opened."""
        self.place()
        outside = self.repository.path
        for url in ("", "/", "model", str(outside), "/opt/ml/models", f"/opt/ml/models/{self.hash}", f"{self.home}/model/..",
                    f"{self.home}/model/../", f"{self.home}/model/../../../../..{outside}", f"/opt/ml/models/..{outside}",
                    f"/opt/ml/models/../../..{outside}", "/dev/shm", "/proc/self/cwd", "/sys/kernel", f"file://{self.home}/model",
                    f"{self.home}/model\0", f"{self.home}/mod\u2025el", f"{self.home}/model/a/b", f"/opt/ml//models/../models/{self.hash}/x"):
            with self.subTest(url):
                self.assertEqual(self.load(url)[0], 400)
        self.assertEqual(self.invoke(), (404, b""))

    @conch_only
    def test_t1_links_and_names(self):
        target = self.home / "model"
        self.home.mkdir(parents=True)
        target.symlink_to(self.repository.path / "other")
        status, body = self.load(target)
        self.assertEqual(status, 400)
        self.assertIn("expected a path of the form", body.decode())
        target.unlink()
        self.place()
        for name in ("..", ".", "a/b", "../other", ""):
            with self.subTest(name):
                body = {"model_name": name, "url": str(target)}
                self.assertEqual(self.ask("POST", "/models", body)[0], 400)
        for name in ("..", "../other", "a/b"):
            with self.subTest(target=name):
                self.assertEqual(self.load(target, **{"X-Amzn-SageMaker-Target-Model": name})[0], 400)
        for name in ("model..", "...", "..model"):
            with self.subTest(valid=name):
                self.assertEqual(self.load(target, **{"X-Amzn-SageMaker-Target-Model": name}), (200, b""))
                self.assertEqual(self.end(), 200)

    @conch_only
    def test_t13_loads_unloads_and_inferences_at_once(self):
        """Whatever comes in which order: an inference is served, or told that there is no such model; at the end nothing is left."""
        self.place()
        stop, seen = time.monotonic() + 4, set()

        def storm(act):
            while time.monotonic() < stop:
                seen.add((act.__name__, act()))

        def load():
            return self.load(self.home / "model")[0]

        def unload():
            return self.end()

        def invoke():
            return self.invoke()[0]

        workers = [threading.Thread(target=storm, args=(act,)) for act in (load, load, unload, unload, invoke, invoke, invoke)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        allowed = {("load", 200), ("load", 409), ("unload", 200), ("unload", 404), ("unload", 409),
                   ("invoke", 200), ("invoke", 404), ("invoke", 400)}
        self.assertLessEqual(seen, allowed)
        self.assertLessEqual({("load", 200), ("unload", 200)}, seen)
        self.end()
        self.assertEqual(self.invoke(), (404, b""))
        self.assertEqual(self.load(self.home / "model")[0], 200)
        self.assertEqual(self.invoke()[0], 200)
        self.assertEqual(self.end(), 200)


@conch_only  # and the newest upstream
class Restricted(SageMakerCase):
    """T19: the restrictions of HTTP hold here as well."""

    more_flags = tuple(f"--http-restricted-api={name}:key-{name}=secret" for name in ("inference", "model-repository"))

    def test_t19_restricted_here_too(self):
        for name, verb, path in (("inference", "POST", "/invocations"), ("model-repository", "GET", "/models"),
                                 ("model-repository", "GET", "/models/x"), ("model-repository", "POST", "/models"),
                                 ("model-repository", "DELETE", "/models/x")):
            with self.subTest(path, verb=verb):
                status, _, body = self.ask(verb, path, "{}")
                self.assertEqual((status, json.loads(body)["error"]),
                                 (403, f"This API is restricted, expecting header 'key-{name}'"))
                self.assertNotEqual(self.ask(verb, path, "{}", {f"key-{name}": "secret"})[0], 403)
        self.assertEqual(self.ask("GET", "/ping")[0], 200)

    @conch_only
    def test_t19_before_anything_is_said(self):
        """Upstream tells which models there are before it looks."""
        self.assertEqual(self.ask("POST", "/models/x/invoke")[0], 403)
