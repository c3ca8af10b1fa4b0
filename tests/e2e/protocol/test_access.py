"""Who may use what: restricted APIs and protocols, on every listener and in every spelling."""

import json
import unittest

import grpc
import server as servers
import wire
from case import KIND, ServerCase, conch_only
from repository import identity

# Each category: HTTP routes (verb and path) and gRPC methods that belong to it.
HTTP = {
    "health": [("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("GET", "/v2/models/identity/ready"),
               ("GET", "/v2/models/identity/versions/1/ready")],
    "metadata": [("GET", "/v2"), ("GET", "/v2/models/identity"), ("GET", "/v2/models/identity/versions/1")],
    "inference": [("POST", "/v2/models/identity/infer"), ("POST", "/v2/models/identity/versions/1/infer"),
                  ("POST", "/v2/models/identity/generate"), ("POST", "/v2/models/identity/generate_stream")],
    "shared-memory": [(verb, f"/v2/{kind}sharedmemory{region}/{action}") for kind in ("system", "cuda")
                      for verb, region, action in (("GET", "", "status"), ("GET", "/region/r", "status"),
                                                   ("POST", "/region/r", "register"), ("POST", "/region/r", "unregister"),
                                                   ("POST", "", "unregister"))],
    "model-config": [("GET", "/v2/models/identity/config"), ("GET", "/v2/models/identity/versions/1/config")],
    "model-repository": [("POST", "/v2/repository/index"), ("POST", "/v2/repository/r/index"),
                         ("POST", "/v2/repository/models/identity/load"), ("POST", "/v2/repository/models/identity/unload"),
                         ("POST", "/v2/repository/r/models/identity/load")],
    "statistics": [("GET", "/v2/models/stats"), ("GET", "/v2/models/identity/stats"), ("GET", "/v2/models/identity/versions/1/stats")],
    "trace": [("GET", "/v2/trace/setting"), ("POST", "/v2/trace/setting"), ("GET", "/v2/models/identity/trace/setting")],
    "logging": [("GET", "/v2/logging"), ("POST", "/v2/logging")],
}
GRPC = {
    "health": ["ServerLive", "ServerReady", "ModelReady", "/grpc.health.v1.Health/Check"],
    "metadata": ["ServerMetadata", "ModelMetadata"],
    "inference": ["ModelInfer", "ModelStreamInfer"],
    "shared-memory": [f"{kind}SharedMemory{action}" for kind in ("System", "Cuda") for action in ("Status", "Register", "Unregister")],
    "model-config": ["ModelConfig"],
    "model-repository": ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"],
    "statistics": ["ModelStatistics"],
    "trace": ["TraceSetting"],
    "logging": ["LogSettings"],
}


def http_refusal(header):
    return {"error": f"This API is restricted, expecting header '{header}'"}


def grpc_refusal(key):
    return f"This protocol is restricted, expecting header 'triton-grpc-protocol-{key}'"


def call(server, method, *metadata):
    """Any method with an empty message: (status code, message)."""
    path = method if method.startswith("/") else f"/inference.GRPCInferenceService/{method}"
    with grpc.insecure_channel(server.grpc) as channel:
        stream = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)
        try:
            list(stream(iter([b""]), metadata=metadata, timeout=10))
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return error.code(), error.details()


class Restricted(ServerCase):
    """Every category is restricted, each by a header of its own."""

    ready_headers = {"Key-health": "secret of health"}
    flags = tuple(flag for name in HTTP for flag in (
        f"--http-restricted-api={name}:Key-{name}=secret of {name}", f"--grpc-restricted-protocol={name}:{name}=secret of {name}"))

    @classmethod
    def models(cls, repository):
        repository.model("identity", identity())

    def test_t19_every_http_route_of_a_category(self):
        for name, routes in HTTP.items():
            key = f"Key-{name}"
            for verb, path in routes:
                with self.subTest(path, verb=verb):
                    for headers in ({}, {key: "wrong"}, {key: f"secret of {name} "[:-2]}, {key: ""}, {"Key-other": f"secret of {name}"}):
                        status, more, body = self.server.request(verb, path, headers=headers)
                        self.assertEqual((status, json.loads(body)), (403, http_refusal(key)), headers)
                        self.assertEqual(more["content-type"].split(";")[0], "text/plain")
                    status, _, body = self.server.request(verb, path, headers={key.upper(): f"secret of {name}"})
                    self.assertNotEqual(status, 403, body)

    def test_t19_every_grpc_method_of_a_category(self):
        for name, methods in GRPC.items():
            key = f"triton-grpc-protocol-{name}"
            for method in methods:
                with self.subTest(method):
                    for metadata in ((), ((key, "wrong"),), ((name, f"secret of {name}"),), ((key, ""),)):
                        self.assertEqual(call(self.server, method, *metadata), (grpc.StatusCode.UNAVAILABLE, grpc_refusal(name)))
                    code, message = call(self.server, method, (key, f"secret of {name}"))
                    self.assertNotIn("restricted", message or "", code)

    def test_the_verb_does_not_matter(self):
        for name, routes in HTTP.items():
            for verb in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                status, _, body = self.server.request(verb, routes[0][1])
                self.assertEqual((status, json.loads(body)), (403, http_refusal(f"Key-{name}")), f"{verb} {routes[0][1]}")

    def test_t19_no_spelling_leads_around(self):
        """Other cases, slashes and percent signs name nothing, or the same thing."""
        for path, expected in (
            ("/v2/health/live?x=y", 403), ("/v2?", 403), ("/v2/models/identity/config?x=/v2/health/live", 403),
            ("/v2/", 404), ("//v2", 404), ("/V2", 404), ("/v2/health/LIVE", 404), ("/v2/health//live", 404), ("/v2/health/live/", 404),
            ("/v2/./health/live", 404), ("/v2/x/../health/live", 404), ("/%76%32", 404), ("/v2%2fhealth%2flive", 404),
            ("/v2/health/live%00", 404), ("/v2;x/health/live", 404), ("/v2/models/%69dentity/config", 403),
        ):
            with self.subTest(path):
                status = self.exchange(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0]
                # Upstream lets percent signs of a path stand for what they encode; then it is restricted, too.
                self.assertIn(status, (expected, 403), path)

    @conch_only
    def test_an_absolute_address_is_the_same_path(self):
        for target in ("http://other/v2/health/live", "http://v2/v2/health/live"):
            self.assertEqual(self.exchange(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0], 403)

    def test_the_first_of_several_headers_counts(self):
        rows = ("Key-health: wrong", "Key-health: secret of health")
        for order, expected in ((rows, 403), (rows[::-1], 200)):
            raw = "\r\n".join(("GET /v2/health/live HTTP/1.1", "Host: x", *order, "", "")).encode()
            self.assertEqual(self.exchange(raw)[0], expected)

    @conch_only
    def test_a_refused_body_does_not_become_a_request(self):
        hidden = b"GET /v2/health/live HTTP/1.1\r\nKey-health: secret of health\r\n\r\n"
        with wire.connect(self.server) as link:
            link.sendall(wire.post("/v2/models/identity/infer", hidden) + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            replies = wire.Replies(link)
            self.assertEqual([replies.next()[0] for _ in range(2)], [403, 404])

    def test_a_whole_stream_is_refused(self):
        """The refusal is the call's status, not a message within the stream; one with the key goes on."""
        key = ("triton-grpc-protocol-inference", "secret of inference")
        self.assertEqual(call(self.server, "ModelStreamInfer"), (grpc.StatusCode.UNAVAILABLE, grpc_refusal("inference")))
        self.assertEqual(call(self.server, "ModelStreamInfer", key)[0], grpc.StatusCode.OK)

    def test_metrics_are_not_restricted(self):
        self.assertEqual(self.server.get("/metrics", port="metrics")[0], 200)

    @conch_only
    def test_a_watch_belongs_to_health(self):
        self.assertEqual(call(self.server, "/grpc.health.v1.Health/Watch"), (grpc.StatusCode.UNAVAILABLE, grpc_refusal("health")))

    @conch_only
    def test_secrets_are_not_logged(self):
        self.assertNotIn("secret of", self.server.output)


class BadFlags(unittest.TestCase):
    """What the command line refuses, in upstream's words."""

    def test_bad_restrictions(self):
        for flag, message in (
            ("--http-restricted-api=all:k=v", "unknown restricted api 'all'"),
            ("--grpc-restricted-protocol=x:k=v", "unknown restricted protocol 'x'"),
            ("--http-restricted-api=health,health:k=v", "restricted api 'health' can not be specified in multiple config groups"),
            ("--http-restricted-api=health", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health"),
            ("--grpc-restricted-protocol=health:k=", "--grpc-restricted-protocol option format is"),
        ):
            with self.subTest(flag), self.assertRaises(servers.StartFailed) as failed:
                servers.Server("/tmp", flag, kind=KIND)
            self.assertIn(message, failed.exception.output)
            self.assertEqual(failed.exception.code, 1)
