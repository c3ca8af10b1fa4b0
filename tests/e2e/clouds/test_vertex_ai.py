"""The Vertex AI listener, in conch and in the real Triton: its two routes, and what the redirect header leads to."""

import json
import unittest
import unittest.mock

import server as servers
import wire
from case import IS_TRITON, KIND, ListenerCase, conch_only, pack
from repository import Repository, identity

MIME = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


def port_flags():
    if IS_TRITON:
        return ("--allow-vertex-ai=true", f"--vertex-ai-port={servers.free_port()}")
    return ("--allow-vertex-ai=true", "--vertex-ai-address=127.0.0.1", "--vertex-ai-port=0")


def find_port(server):
    server.ports["vertex"] = int(server.wait_for_line(r"Started Vertex AI HTTPService at [0-9.]+:(\d+)")[1])


class VertexCase(ListenerCase):
    environment = ROUTES
    more_flags = ("--vertex-ai-default-model=identity",)
    port = "vertex"
    port_flags, find_port = staticmethod(port_flags), staticmethod(find_port)

    def redirect(self, target, body=None, method="POST", headers=None):
        status, _, reply = self.ask(method, "/predict", body, {REDIRECT: target, **(headers or {})})
        return status, reply


class Routes(VertexCase):
    def test_health(self):
        self.assertEqual(self.ask("GET", "/health")[::2], (200, b""))
        self.assertEqual(self.ask("POST", "/health")[0], 405)

    def test_predict(self):
        status, _, body = self.ask("POST", "/predict", BODY)
        self.assertEqual((status, json.loads(body)["model_name"], json.loads(body)["outputs"][0]["data"]), (200, "identity", [1, 2]))
        self.assertEqual(self.ask("GET", "/predict")[0], 405)

    def test_predict_with_binary_tensors(self):
        value = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}],
                 "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
        text = json.dumps(value).encode()
        status, headers, body = self.ask("POST", "/predict", text + pack([1, 2]), {"Content-Type": f"{MIME}{len(text)}"})
        self.assertEqual(status, 200, body)
        # The answer is as on the HTTP listener.
        self.assertEqual(headers["content-type"].split(";")[0], "application/octet-stream")
        self.assertEqual(body[int(headers["inference-header-content-length"]):], pack([1, 2]))

    def test_bad_lengths(self):
        text = json.dumps(BODY)
        count = len(text)
        for value, message in (
            (f"{MIME}-1", f"inference header size should be in range (0, {count}), got: -1"),
            (f"{MIME}{count + 1}", f"inference header size should be in range (0, {count}), got: {count + 1}"),
            (f"x {MIME}1", f"expect MIME type for binary data starts with '{MIME}', got: x {MIME}1"),
        ):
            status, _, body = self.ask("POST", "/predict", text, {"Content-Type": value})
            self.assertEqual((status, json.loads(body)["error"]), (400, message))

    def test_what_is_not_there(self):
        for verb, path in (("GET", "/"), ("GET", "/v2"), ("GET", "/metrics"), ("POST", "/predict/"), ("GET", "/health/x"),
                           ("POST", "/v2/models/identity/infer")):
            self.assertEqual(self.ask(verb, path)[::2], (400, b""), path)

    def test_redirects_to_what_reads(self):
        for target, expected in (
            ("v2", lambda found: found["version"]), ("v2/models/other", lambda found: found["name"] == "other"),
            ("v2/models/other/versions/1", lambda found: found["name"] == "other"),
            ("v2/models/other/config", lambda found: found["name"] == "other"),
            ("v2/models/stats", lambda found: len(found["model_stats"]) == 2),
            ("v2/models/other/stats", lambda found: found["model_stats"][0]["name"] == "other"),
            ("v2/repository/index", lambda found: len(found) == 2),
        ):
            with self.subTest(target):
                status, body = self.redirect(target)
                self.assertEqual(status, 200, body)
                self.assertTrue(expected(json.loads(body)), body)
        for target in ("v2/health/live", "v2/health/ready", "v2/models/other/ready"):
            self.assertEqual(self.redirect(target), (200, b""), target)
        status, body = self.redirect("metrics")
        self.assertEqual((status, b"nv_inference_request_success" in body), (200, True))

    def test_redirects_to_an_inference(self):
        status, body = self.redirect("v2/models/other/infer", BODY)
        self.assertEqual((status, json.loads(body)["model_name"]), (200, "other"))
        self.assertEqual(self.redirect("v2/models/none/infer", BODY)[0], 404)

    def test_redirects_need_a_post(self):
        self.assertEqual(self.redirect("v2", method="GET"), (405, b""))

    def test_redirects_that_lead_nowhere(self):
        for target in ("/v2", "v2/", "", "v3", "v2/models/other/generate", "v2/trace/setting", "v2/models/other/trace/setting", "v2/logging",
                       "http://x/v2", "/metrics", "metrics/"):
            with self.subTest(target):
                self.assertEqual(self.redirect(target), (400, b""))

    @conch_only
    def test_redirects_to_what_changes_something(self):
        """As the newest upstream; older ones went there."""
        for target in ("v2/repository/models/other/load", "v2/repository/models/other/unload", "v2/repository/r/models/other/load",
                       "v2/systemsharedmemory/region/r/register", "v2/systemsharedmemory/unregister",
                       "v2/cudasharedmemory/region/r/register", "v2/cudasharedmemory/region/r/unregister"):
            with self.subTest(target):
                self.assertEqual(self.redirect(target), (403, b""))


class Single(VertexCase):
    """The only model is the default one."""

    more_flags = ()

    @classmethod
    def models(cls, repository):
        repository.model("lonely", identity())

    def test_the_default_model(self):
        status, _, body = self.ask("POST", "/predict", BODY)
        self.assertEqual((status, json.loads(body)["model_name"]), (200, "lonely"))


class Patterns(VertexCase):
    environment = {"AIP_PREDICT_ROUTE": "/(predict|p/[0-9]+)", "AIP_HEALTH_ROUTE": "/h.*"}

    def test_routes_are_patterns(self):
        for path, expected in (("/predict", 200), ("/p/17", 200), ("/p/x", 400), ("/predict/p/1", 400)):
            self.assertEqual(self.ask("POST", path, BODY)[0], expected, path)
        for path, expected in (("/h", 200), ("/health/x", 200), ("/x/h", 400)):
            self.assertEqual(self.ask("GET", path)[0], expected, path)


class Mode(unittest.TestCase):
    """What AIP_MODE=PREDICTION changes, and what must be there."""

    def setUp(self):
        self.repository = Repository()
        self.addCleanup(self.repository.close)
        self.repository.model("identity", identity())

    def start(self, *flags, **environment):
        server = servers.Server(self.repository.path, *flags, kind=KIND, environment=environment, expect_ready=False)
        self.addCleanup(server.kill)
        return server

    def fails(self, message, *flags, **environment):
        with self.assertRaises(servers.StartFailed) as failed:
            self.start(*flags, **environment)
        self.assertIn(message, failed.exception.output)
        self.assertEqual(failed.exception.code, 1)

    @conch_only
    def test_prediction_mode(self):
        """HTTP and gRPC are off, the port is AIP_HTTP_PORT, the repository AIP_STORAGE_URI."""
        port = servers.free_port()
        with unittest.mock.patch.object(servers.Server, "_wait_for_ports", lambda *_: None):
            server = servers.Server([], "--vertex-ai-address=127.0.0.1", kind=KIND, expect_ready=False, environment={
                **ROUTES, "AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": str(port), "AIP_STORAGE_URI": str(self.repository.path)})
        self.addCleanup(server.kill)
        find_port(server)
        self.assertEqual(server.ports["vertex"], port)
        status, _, body = server.request("POST", "/predict", json.dumps(BODY), port="vertex")
        self.assertEqual(status, 200, body)
        server.wait_for_line("Started Metrics Service")
        self.assertNotIn("Started HTTPService", server.output)
        self.assertNotIn("Started GRPCInferenceService", server.output)

    def test_what_must_be_there(self):
        self.fails("API_PREDICT_ROUTE is not defined for Vertex AI endpoint", *port_flags(), AIP_HEALTH_ROUTE="/health")
        self.fails("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint", *port_flags(), AIP_PREDICT_ROUTE="/predict")
        self.fails("Expect the default model 'none' is loaded", *port_flags(), "--vertex-ai-default-model=none", **ROUTES)
        self.repository.model("second", identity())
        self.fails("Expect the model repository contains only a single model if default model is not specified", *port_flags(), **ROUTES)

    @conch_only
    def test_bad_values(self):
        self.fails("malformed", *port_flags(), AIP_PREDICT_ROUTE="/(", AIP_HEALTH_ROUTE="/h")
        self.fails("AIP_HTTP_PORT is no port: x", AIP_HTTP_PORT="x")


@conch_only  # and the newest upstream
class Restricted(VertexCase):
    """T19: the restrictions of HTTP hold for what a request is redirected to."""

    CATEGORIES = ("health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics")
    more_flags = ("--vertex-ai-default-model=identity",
                  *(f"--http-restricted-api={name}:key-{name}=secret" for name in CATEGORIES if name != "health"))

    def test_t19_restricted_here_too(self):
        for name, target in (("metadata", "v2"), ("metadata", "v2/models/other"), ("inference", "v2/models/other/infer"),
                             ("model-config", "v2/models/other/config"), ("statistics", "v2/models/stats"),
                             ("statistics", "v2/models/other/stats"), ("model-repository", "v2/repository/index"),
                             ("shared-memory", "v2/systemsharedmemory/status"), ("shared-memory", "v2/cudasharedmemory/region/r/status")):
            with self.subTest(target):
                status, body = self.redirect(target, "{}")
                self.assertEqual((status, json.loads(body)["error"]), (403, f"This API is restricted, expecting header 'key-{name}'"))
                self.assertNotEqual(self.redirect(target, "{}", headers={f"key-{name}": "secret"})[0], 403)
        self.assertEqual(self.ask("POST", "/predict", BODY)[0], 403)
        self.assertEqual(self.ask("POST", "/predict", BODY, {"key-inference": "secret"})[0], 200)

    def test_t19_two_redirects_are_one(self):
        """The first counts, for the check as for what is done."""
        raw = wire.post("/predict", b"", f"{REDIRECT}: v2/health/live", f"{REDIRECT}: v2")
        self.assertEqual(wire.exchange(self.server, raw, port="vertex")[0], 200)
        raw = wire.post("/predict", b"", f"{REDIRECT}: v2", f"{REDIRECT}: v2/health/live")
        self.assertEqual(wire.exchange(self.server, raw, port="vertex")[0], 403)
