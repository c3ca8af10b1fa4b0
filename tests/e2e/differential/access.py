"""Restricted calls, and headers that become parameters."""

import json

from tritonclient.grpc import service_pb2 as pb

from .entry import call, entry, get, infer_message, other_call, post, stream
from .sound import BYTES, ONE, infer

ENTRIES = []


def add(name, rows, *steps, world="restricted"):
    ENTRIES.append(entry(world, name, rows, *steps))


BODY = json.dumps(ONE).encode()
KEY = (("triton-grpc-protocol-key", "value"),)
PATHS = ["/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/identity", "/v2/models/identity/ready", "/v2/models/identity/config", "/v2/models/stats", "/v2/models/identity/stats", "/v2/logging",
         "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"]
add("http", "http-restrict http-restrict-scope transport/restricted", *[get(path) for path in PATHS], post("/v2/repository/index"), infer(ONE), post("/v2/models/identity/generate", b'{"INPUT0":[1]}'),
    post("/v2/repository/models/identity/load"))
add("http_with_key", "http-restrict http-restrict-scope", *[get(path, key="value") for path in PATHS], post("/v2/repository/index", key="value"), infer(ONE, key="value"),
    infer(ONE, KEY="value"), infer(ONE, key="other"), infer(ONE, key=""))
CALLS = [("ServerLive", pb.ServerLiveRequest()), ("ServerReady", pb.ServerReadyRequest()), ("ModelReady", pb.ModelReadyRequest(name="identity")), ("ServerMetadata", pb.ServerMetadataRequest()),
         ("ModelMetadata", pb.ModelMetadataRequest(name="identity")), ("ModelConfig", pb.ModelConfigRequest(name="identity")), ("RepositoryIndex", pb.RepositoryIndexRequest()),
         ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()), ("LogSettings", pb.LogSettingsRequest()), ("ModelInfer", infer_message(raw=BYTES))]
add("grpc", "grpc-restrict transport/restricted", *[call(*one) for one in CALLS], other_call("/grpc.health.v1.Health/Check"), stream([infer_message(raw=BYTES)]))
add("grpc_with_key", "grpc-restrict", *[call(*one, metadata=KEY) for one in CALLS if one[0] != "ServerMetadata"], other_call("/grpc.health.v1.Health/Check", metadata=KEY),
    stream([infer_message(raw=BYTES)], KEY), call("ModelInfer", infer_message(raw=BYTES), (("triton-grpc-protocol-key", "other"),)))
add("forwarded", "http-forward", infer(ONE, X_Mine="1"), infer(ONE, Other="1"), infer({**ONE, "parameters": {"X-Mine": "own"}}, X_Mine="1"), world="forwarding")
for header in ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output", "triton_x"):
    add(f"reserved_{header}", "transport/reserved-header http-forward grpc-forward", call("ModelInfer", infer_message(raw=BYTES), ((header, "1"),)), world="forwarding")
add("g_forwarded", "grpc-forward", call("ModelInfer", infer_message(raw=BYTES), (("x-mine", "1"),)), stream([infer_message(raw=BYTES)], (("x-mine", "1"),)), world="forwarding")
