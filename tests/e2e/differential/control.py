"""Loads, unloads and what comes of them, in servers that obey (explicit mode); and several models of one name."""

import base64
import json

from tritonclient.grpc import service_pb2 as pb

from .entry import call, entry, get, infer_message, post

ENTRIES = []
LOAD, UNLOAD = "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"


def add(name, rows, *steps, world="control"):
    ENTRIES.append(entry(world, name, rows, *steps))


def load(model, **parameters):
    return post(LOAD.format(model), json.dumps({"parameters": parameters}).encode() if parameters else b"")


def unload(model, **parameters):
    return post(UNLOAD.format(model), json.dumps({"parameters": parameters}).encode() if parameters else b"")


def load_message(model, **parameters):
    value = pb.RepositoryModelLoadRequest(model_name=model)
    for name, (field, content) in parameters.items():
        setattr(value.parameters[name], field, content)
    return value


CONFIG = json.dumps({"backend": "identity", "max_batch_size": 4, "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                     "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                     "instance_group": [{"count": 1, "kind": "KIND_CPU"}]})
NO_VERSION = json.dumps({**json.loads(CONFIG), "version_policy": {"specific": {"versions": [7]}}})
FILE = base64.b64encode(b"content").decode()

add("load_and_unload", "http-repo", load("pair"), get("/v2/models/pair/ready"), post("/v2/repository/index"), unload("pair"), get("/v2/models/pair/ready"))
add("load_twice", "http-repo", load("half"), load("half"), unload("half"), unload("half"))
add("load_unknown", "repository/unknown-model", load("absent"), call("RepositoryModelLoad", load_message("absent")))
add("load_broken", "repository/load-failed", load("broken"), call("RepositoryModelLoad", load_message("broken")), post("/v2/repository/index", b'{"ready":true}'))
add("load_bad_names", "repository/bad-name lookup/empty-name", load(".."), load("a%2Fb"), call("RepositoryModelLoad", load_message("")),
    call("RepositoryModelLoad", load_message("../identity")), call("RepositoryModelLoad", load_message("a/b")), unload(".."),
    call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="../x")))
add("load_with_config", "http-repo", load("brain", config=CONFIG), get("/v2/models/brain/config"), unload("brain"))
add("load_with_bad_config", "repository/unknown-model", load("brain", config="{"), load("brain", config='{"nothing":1}'))
add("load_with_handmade_config", "http-repo", *[load("brain", config=text) for text in (
    CONFIG.replace('"backend"', "backend"), CONFIG.replace('"', "'"), CONFIG[:-1] + ",}", CONFIG.replace("[-1]", "[-1,]"), CONFIG.replace("[-1]", "-1"),
    CONFIG.replace("[-1]", "[[-1],null]"), CONFIG + "\0{", CONFIG.replace(": 4", ": 04"), CONFIG.replace("[-1]", "[,-1]"), CONFIG + "}", "")],
    get("/v2/models/brain/config"), unload("brain"))
add("load_without_version", "repository/no-version", load("brain", config=NO_VERSION))
add("load_files_without_config", "repository/files-without-config", load("whole2", **{"file:1/model.x": FILE}),
    call("RepositoryModelLoad", load_message("whole2", **{"file:1/model.x": ("bytes_param", b"x")})))
add("load_file_is_a_directory", "repository/file-is-a-directory", load("whole2", config=CONFIG, **{"file:1/model.x": FILE, "file:1": FILE}))
add("load_kinds", "repository/parameter-kind repository/unknown-parameter", load("wide", config=1), load("wide", other="x"), load("wide", **{"file:1/x": 7}),
    call("RepositoryModelLoad", load_message("wide", other=("string_param", "x"))), call("RepositoryModelLoad", load_message("wide", config=("int64_param", 1))))
add("reload_after_override", "repository/reload-after-override", load("flags", config=CONFIG), load("flags"), get("/v2/models/flags/config"), unload("flags"))
add("unload_unknown", "repository/unload-unknown", unload("absent"), call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="absent")))
add("unload_kinds", "repository/unload-dependents-kind", unload("absent", unload_dependents=1), unload("absent", unload_dependents=True))
add("unloaded", "lookup/no-version-ready", load("natural"), unload("natural"), get("/v2/models/natural"), get("/v2/models/natural/config"),
    get("/v2/models/natural/stats"), call("ModelInfer", infer_message("natural", datatype="UINT32", raw=bytes(16))), get("/v2/models/natural/ready"),
    call("ModelReady", pb.ModelReadyRequest(name="natural")))
add("spaces_unknown", "lookup/unknown-model-with-namespaces", get("/v2/models/absent"), call("ModelMetadata", pb.ModelMetadataRequest(name="absent")),
    post("/v2/models/absent/infer", b"{}"), world="spaces")
add("spaces_unloaded", "lookup/no-identifier-left", unload("own"), get("/v2/models/own"), post("/v2/models/own/infer", b"{}"), call("ModelMetadata", pb.ModelMetadataRequest(name="own")),
    world="spaces")
