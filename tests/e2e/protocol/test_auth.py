"""Callers, known by bearer tokens or by names in their certificates, and what each may use (`--auth-config`)."""

import hashlib
import json
import pathlib
import signal
import tempfile
import threading
import unittest

import grpc
import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import certificates
import server as servers
import wire
from case import KIND, ServerCase, conch_only, needs_library
from repository import Repository, identity
from test_access import GRPC, HTTP, call
from test_https import tls_flags
from waiting import until

UNKNOWN = "the bearer token is not known"
NEEDED = "this needs a bearer token"


def hashed(token):
    return hashlib.sha256(token.encode()).hexdigest()


def caller(name, apis, models=("*",), tokens=None, **more):
    return {"name": name, "tokens_sha256": [hashed(token) for token in (tokens or [f"token of {name}"])], "apis": list(apis), "models": list(models), **more}


def bearer(name):
    return {"Authorization": f"Bearer token of {name}"}


def http_error(body):
    return json.loads(body)["error"]


class AuthCase(ServerCase):
    callers = ()
    unnamed = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.file = pathlib.Path(folder.name, "callers.json")
        cls.write(cls.callers, cls.unnamed)
        cls.flags = (f"--auth-config={cls.file}", *cls.more_flags)
        super().setUpClass()

    more_flags = ()

    @classmethod
    def write(cls, callers, unnamed=None):
        cls.file.write_text(json.dumps({"callers": list(callers), **({"unnamed": unnamed} if unnamed else {})}))

    @classmethod
    def models(cls, repository):
        repository.model("identity", identity(batch=8)).model("other", identity(batch=8))


@conch_only
@needs_library("identity")
class Categories(AuthCase):
    """One caller for each category, who may use nothing else, and one for the metrics."""

    callers = (*(caller(name, [name]) for name in HTTP), caller("watcher", ["metrics"]), caller("all", ["*"]))

    def test_every_http_route_of_a_category(self):
        for name, routes in HTTP.items():
            other = "logging" if name != "logging" else "trace"
            for verb, path in routes:
                with self.subTest(path, verb=verb):
                    if name != "health":
                        status, headers, body = self.server.request(verb, path)
                        self.assertEqual((status, headers["www-authenticate"], http_error(body)), (401, "Bearer", NEEDED))
                    for wrong, words in ((f"Bearer token of {name}s", UNKNOWN), ("Bearer ", "the authorization must be 'Bearer <token>'"),
                                         (f"Basic token of {name}", "the authorization must be 'Bearer <token>'"), (f"Bearer {hashed(f'token of {name}')}", UNKNOWN)):
                        status, _, body = self.server.request(verb, path, headers={"Authorization": wrong})
                        self.assertEqual((status, http_error(body)), (401, words))
                    status, _, body = self.server.request(verb, path, headers=bearer(other))
                    self.assertEqual((status, http_error(body)), (403, f"'{other}' may not use {name}"))
                    for known in (name, "all"):
                        status, _, body = self.server.request(verb, path, headers=bearer(known))
                        self.assertNotIn(status, (401, 403), body)

    def test_every_grpc_method_of_a_category(self):
        for name, methods in GRPC.items():
            other = "logging" if name != "logging" else "trace"
            for method in methods:
                with self.subTest(method):
                    if name != "health":
                        self.assertEqual(call(self.server, method), (grpc.StatusCode.UNAUTHENTICATED, NEEDED))
                    self.assertEqual(call(self.server, method, ("authorization", "Bearer x")), (grpc.StatusCode.UNAUTHENTICATED, UNKNOWN))
                    self.assertEqual(call(self.server, method, ("authorization", f"Bearer token of {other}")),
                                     (grpc.StatusCode.PERMISSION_DENIED, f"'{other}' may not use {name}"))
                    for known in (name, "all"):
                        code, message = call(self.server, method, ("authorization", f"bearer token of {known}"))
                        self.assertNotIn(code, (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED), message)

    def test_metrics(self):
        self.assertEqual(self.server.get("/metrics", port="metrics")[0], 401)
        self.assertEqual(self.server.request("GET", "/metrics", headers=bearer("statistics"), port="metrics")[0], 403)
        self.assertEqual(self.server.request("GET", "/metrics", headers=bearer("watcher"), port="metrics")[0], 200)

    def test_what_is_not_there_is_not_there_for_anybody(self):
        for headers in ({}, bearer("all"), {"Authorization": "nonsense"}):
            self.assertEqual(self.server.request("GET", "/v2/nowhere", headers=headers)[0], 404)

    def test_a_refused_body_does_not_become_a_request(self):
        hidden = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        with wire.connect(self.server) as link:
            link.sendall(wire.post("/v2/models/identity/infer", hidden) + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            replies = wire.Replies(link)
            self.assertEqual([replies.next()[0] for _ in range(2)], [401, 404])

    def test_secrets_are_not_logged(self):
        self.assertNotIn("token of", self.server.output)
        self.assertNotIn(hashed("token of all"), self.server.output)


@conch_only
@needs_library("identity")
class Models(AuthCase):
    """Who may use some models only, with upstream's own clients."""

    callers = (caller("team", ["inference", "metadata", "model-config", "statistics", "model-repository", "trace", "health"], ["iden*"]),
               caller("all", ["*"]))
    unnamed = {"apis": ["health", "inference"], "models": ["other"]}
    more_flags = ("--model-control-mode=explicit", "--load-model=*")

    def test_http(self):
        for path in ("/v2/models/other", "/v2/models/other/config", "/v2/models/other/stats", "/v2/models/other/versions/1/stats",
                     "/v2/models/other/trace/setting"):
            status, _, body = self.server.request("GET", path, headers=bearer("team"))
            self.assertEqual((status, http_error(body)), (403, "'team' may not use model 'other'"), path)
            status, _, body = self.server.request("GET", path.replace("other", "identity"), headers=bearer("team"))
            self.assertEqual(status, 200, body)
        for verb, path in (("GET", "/v2/models/stats"), ("POST", "/v2/repository/index"), ("GET", "/v2/trace/setting")):
            status, _, body = self.server.request(verb, path, headers=bearer("team"))
            self.assertEqual((status, http_error(body)), (403, "'team' may not use what concerns all models"), path)
        status, _, body = self.server.request("POST", "/v2/repository/models/other/unload", headers=bearer("team"))
        self.assertEqual(status, 403)
        self.assertEqual(self.server.get("/v2/models/other/ready")[0], 200)

    def infer(self, kind, model, metadata, stream=False):
        """Whether the tensor comes back; else what the client says."""
        module, url = (httpclient, self.server.http) if kind == "http" else (grpcclient, self.server.grpc)
        value = np.arange(8, dtype=np.float32).reshape(1, 8)
        tensor = module.InferInput("INPUT0", value.shape, "FP32")
        tensor.set_data_from_numpy(value)
        client = module.InferenceServerClient(url)
        try:
            if not stream:
                answer = client.infer(model, [tensor], headers=metadata)
            else:
                outcomes, arrived = [], threading.Event()

                def note(result, error):
                    outcomes.append(error or result)
                    arrived.set()

                client.start_stream(note, headers=metadata)
                client.async_stream_infer(model, [tensor])
                self.assertTrue(arrived.wait(20))
                client.stop_stream()
                if isinstance(outcomes[0], Exception):
                    raise outcomes[0]
                answer = outcomes[0]
            return np.array_equal(answer.as_numpy("OUTPUT0"), value)
        except (httpclient.InferenceServerException, grpcclient.InferenceServerException) as error:
            return str(error)
        finally:
            client.close()

    def test_inferences(self):
        for kind, stream in (("http", False), ("grpc", False), ("grpc", True)):
            with self.subTest(kind, stream=stream):
                own = {"authorization": "Bearer token of team"} if kind == "grpc" else bearer("team")
                self.assertIs(self.infer(kind, "identity", own, stream), True)
                self.assertIn("'team' may not use model 'other'", self.infer(kind, "other", own, stream))
                self.assertIs(self.infer(kind, "other", {}, stream), True)
                self.assertIn(NEEDED, self.infer(kind, "identity", {}, stream))

    def test_a_stream_goes_on_after_a_refusal(self):
        value = np.arange(8, dtype=np.float32).reshape(1, 8)
        tensor = grpcclient.InferInput("INPUT0", value.shape, "FP32")
        tensor.set_data_from_numpy(value)
        outcomes, lock = [], threading.Condition()

        def note(result, error):
            with lock:
                outcomes.append(error or result)
                lock.notify()

        client = grpcclient.InferenceServerClient(self.server.grpc)
        client.start_stream(note, headers={"authorization": "Bearer token of team"})
        for number in range(20):
            client.async_stream_infer("identity" if number % 2 else "other", [tensor])
        with lock:
            self.assertTrue(lock.wait_for(lambda: len(outcomes) == 20, 20))
        client.stop_stream()
        client.close()
        refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        self.assertEqual(len(refused), 10)
        for error in refused:
            self.assertIn("may not use model 'other'", str(error))

    def test_grpc_control(self):
        own = {"authorization": "Bearer token of team"}
        client = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(client.close)
        calls = (client.get_model_metadata, client.get_model_config, client.get_inference_statistics, client.get_trace_settings, client.load_model)
        for ask in calls:
            with self.subTest(ask.__name__):
                ask("identity", headers=own)
                with self.assertRaises(grpcclient.InferenceServerException) as refused:
                    ask("other", headers=own)
                self.assertEqual(refused.exception.status(), "StatusCode.PERMISSION_DENIED")
                self.assertIn("'team' may not use model 'other'", refused.exception.message())
        for ask in (client.get_inference_statistics, client.get_trace_settings, client.get_model_repository_index):
            with self.subTest(ask.__name__), self.assertRaises(grpcclient.InferenceServerException) as refused:
                ask(headers=own)
            self.assertIn("'team' may not use what concerns all models", refused.exception.message())
        with self.assertRaises(grpcclient.InferenceServerException):
            client.unload_model("other", headers=own)
        self.assertTrue(client.is_model_ready("other"))


@conch_only
@needs_library("identity")
class CertificateNames(unittest.TestCase):
    """Callers whose certificates name them, on every listener with mutual TLS."""

    def test_names(self):
        files = certificates.shared()
        with Repository() as repository, tempfile.TemporaryDirectory() as folder:
            repository.model("identity", identity(batch=8))
            rules = pathlib.Path(folder, "callers.json")
            nobody = caller("nobody", [])
            rules.write_text(json.dumps({"callers": [{"name": "host", "certificates": ["localhost"], "apis": ["*"], "models": ["*"]}, nobody]}))
            own = (files.client, files.client_key)
            context = files.context(*own)
            flags = [flag for prefix in ("http", "metrics", "grpc") for flag in tls_flags(prefix, files, is_mutual=True)]
            with servers.Server(repository.path, f"--auth-config={rules}", "--file-reload-secs=0", *flags, kind=KIND, tls={"http": context, "metrics": context}) as server:
                credentials = grpc.ssl_channel_credentials(files.root.read_bytes(), files.client_key.read_bytes(), files.client.read_bytes())

                def ask(*metadata):
                    with grpc.secure_channel(f"localhost:{server.ports['grpc']}", credentials) as channel:
                        unary = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata", request_serializer=bytes, response_deserializer=bytes)
                        try:
                            unary(b"", metadata=metadata, timeout=10)
                            return grpc.StatusCode.OK
                        except grpc.RpcError as error:
                            return error.code()

                self.assertEqual(server.get("/v2/models/identity")[0], 200)
                self.assertEqual(server.get("/metrics", port="metrics")[0], 200)
                self.assertEqual(ask(), grpc.StatusCode.OK)
                # A token says more than a certificate.
                self.assertEqual(server.request("GET", "/v2/models/identity", headers=bearer("nobody"))[0], 403)
                self.assertEqual(ask(("authorization", "Bearer token of nobody")), grpc.StatusCode.PERMISSION_DENIED)
                # The name means another from the next request on, on open connections as well.
                rules.write_text(json.dumps({"callers": [{"name": "host", "certificates": ["elsewhere"], "apis": ["*"], "models": ["*"]}]}))
                server.process.send_signal(signal.SIGHUP)
                server.wait_for_text("requests are judged by the rules as they are now: 1 callers")
                self.assertEqual(server.get("/v2/models/identity")[0], 401)
                self.assertEqual(ask(), grpc.StatusCode.UNAUTHENTICATED)


@conch_only
@needs_library("identity")
class Reload(AuthCase):
    """A file that changes while requests come."""

    callers = (caller("team", ["metadata"], tokens=["old"]),)
    more_flags = ("--file-reload-secs=1",)

    def test_a_token_that_is_replaced_under_load(self):
        stop, counts, failures = threading.Event(), [0, 0], []
        tokens = [["old"], ["old", "new"], ["new"]]
        current = ["old"]

        def ask(index):
            while not stop.is_set():
                status = self.server.request("GET", "/v2/models/identity", headers={"Authorization": f"Bearer {current[0]}"})[0]
                counts[index] += 1
                if status != 200:
                    failures.append(status)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        try:
            for place in (1, 2):
                self.write([caller("team", ["metadata"], tokens=tokens[place])])
                until(lambda: self.server.output.count("requests are judged by the rules as they are now") == place, "the new rules", 20)
                # The old token is good until all use the new one.
                current[0] = "new"
                before = list(counts)
                until(lambda: all(now > then + 2 for now, then in zip(counts, before)), "requests by the new rules")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(self.server.request("GET", "/v2/models/identity", headers={"Authorization": "Bearer old"})[0], 401)
        # What is of no use changes nothing, and is told once.
        self.file.write_text("{")
        refused = f"the rules stay as they were: '{self.file}' (--auth-config) is of no use: EOF while parsing"
        self.server.wait_for_text(refused)
        self.assertEqual(self.server.request("GET", "/v2/models/identity", headers={"Authorization": "Bearer new"})[0], 200)
        self.server.process.send_signal(signal.SIGHUP)
        until(lambda: self.server.output.count(refused) == 2, "it is told again when asked for")


@conch_only
class Start(unittest.TestCase):
    def test_files_of_no_use(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "callers.json")
            for text, message in ((None, "No such file"), ("[]", "invalid length 0"), ('{"callers": [{"name": "a", "apis": ["infer"]}]}', "unknown api 'infer'")):
                if text is not None:
                    file.write_text(text)
                with self.subTest(text), self.assertRaises(servers.StartFailed) as failed:
                    servers.Server(folder, f"--auth-config={file}", kind=KIND)
                self.assertIn(f"'{file}' (--auth-config) is of no use: ", failed.exception.output)
                self.assertIn(message, failed.exception.output)
                self.assertEqual(failed.exception.code, 1)
