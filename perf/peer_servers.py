"""The servers that perf/peers compares: how each is installed, started and asked.

Of each: its packages (all in a virtual environment of its own, below .cache), the command that starts it, and the request to the same model in
the format that it takes. Servers of the open inference protocol take the same JSON; conch, Triton and KServe's take binary tensors too."""

import collections
import json
import os
import pathlib

import engine_programs
import machine
import real_models
import server as servers

PROGRAMS = pathlib.Path(__file__).resolve().parent / "peer_programs"
# The same as the others' library (scripts/runtimes).
ONNXRUNTIME = "onnxruntime==1.31.1"
MODEL = real_models.MODELS["magika"]
BATCH_MAX = 8
PROTOCOL_PATH = f"/v2/models/{MODEL.name}/infer"
JSON = ("Content-Type: application/json",)

# `name` and what its requests are made of; `packages`: none for those that are built or installed otherwise.
Peer = collections.namedtuple("Peer", "name format packages path request answer")


def protocol_json():
    return real_models.json_request(MODEL)


def protocol_binary():
    return real_models.binary_request(MODEL)


def row_json():
    """One row, as the programs of LitServe and Ray Serve take it."""
    return json.dumps({"bytes": MODEL.arrays()["bytes"][0].tolist()}, separators=(",", ":")).encode(), None


def rows_json():
    """A batch of one, as a batchable API of BentoML takes it."""
    return json.dumps({"rows": MODEL.arrays()["bytes"].tolist()}, separators=(",", ":")).encode(), None


def of_protocol(reply, _):
    return json.loads(reply)["outputs"][0]["data"]


def of_binary(reply, headers):
    import numpy
    return numpy.frombuffer(reply[int(headers["inference-header-content-length"]):], "<f4")


def of_row(reply, _):
    return json.loads(reply)[MODEL.outputs[0][0]]


def of_rows(reply, _):
    return json.loads(reply)[0]


def litserve(port, directory):
    return program("litserve", "magika_litserve.py")


def ray(port, directory):
    return program("ray", "magika_ray.py")


def kserve(port, directory):
    return program("kserve", "magika_kserve.py")


def bentoml(port, directory):
    return [python("bentoml").with_name("bentoml"), "serve", "magika_bentoml:Magika", "--host", "127.0.0.1", "--port", str(port), "--quiet"]


def mlserver(port, directory):
    """With one inference worker, which it recommends for models that compute, and adaptive batching."""
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": servers.free_port(), "metrics_port": servers.free_port(), "parallel_workers": 1,
                "debug": False, "logging_settings": {"version": 1, "disable_existing_loggers": True, "root": {"level": "ERROR"}}}
    model = {"name": MODEL.name, "implementation": "magika_mlserver.Magika", "max_batch_size": BATCH_MAX, "max_batch_time": 0.001}
    (directory / "settings.json").write_text(json.dumps(settings))
    (directory / "model-settings.json").write_text(json.dumps(model))
    return [python("mlserver").with_name("mlserver"), "start", str(directory)]


COMMANDS = {function.__name__: function for function in (litserve, ray, kserve, bentoml, mlserver)}
V2 = ("json", PROTOCOL_PATH, protocol_json, of_protocol)
BINARY = ("binary", PROTOCOL_PATH, protocol_binary, of_binary)


def peer(name, packages, kind):
    format_, path, request, answer = kind
    return Peer(name, format_, packages and (*packages, ONNXRUNTIME), path, request, answer)


PEERS = [
    peer("conch", (), V2), peer("conch", (), BINARY), peer("triton", (), V2), peer("triton", (), BINARY),
    # Newer versions of uvloop make no event loop for its workers any more.
    peer("mlserver", ("mlserver==1.7.1", "uvloop==0.21.0"), V2),
    peer("kserve", ("kserve==0.21.0",), V2), peer("kserve", ("kserve==0.21.0",), BINARY),
    peer("litserve", ("litserve==0.2.19",), ("json", "/predict", row_json, of_row)),
    peer("bentoml", ("bentoml==1.4.40",), ("json", "/predict", rows_json, of_rows)),
    peer("ray", ("ray[serve]==2.60.0",), ("json", "/", row_json, of_row)),
]


def place(name):
    return f"venv-peers-{name}"


def python(name):
    return servers.CACHE / place(name) / "bin/python"


def install(chosen):
    """All that those need which run in Python."""
    for one in chosen:
        if one.packages:
            engine_programs.environment(place(one.name), one.packages)


def program(name, file):
    return [python(name), PROGRAMS / file]


def command(one, port, directory, threads):
    """What starts it on this port, and its environment."""
    if one.packages:
        environment = {"MODEL": MODEL.file(), "THREADS": threads, "BATCH_MAX": BATCH_MAX, "PORT": port, "PYTHONPATH": PROGRAMS, "OMP_NUM_THREADS": threads,
                       # Nobody is told of these runs.
                       "BENTOML_DO_NOT_TRACK": "True", "RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1",
                       # Ray's processes must not become more than the server's CPUs bear; names that they write to lie in the directory.
                       "RAY_TMPDIR": directory, "BENTOML_HOME": directory / "bentoml", "PATH": f"{python(one.name).parent}:{os.environ['PATH']}"}
        words = COMMANDS[one.name](port, directory)
    else:
        version = directory / "repository" / MODEL.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(real_models.config(MODEL, threads, BATCH_MAX))
        (version / "model.onnx").symlink_to(MODEL.file())
        executable = os.environ.get("CONCH", servers.built("conch")) if one.name == "conch" else servers.PEERS / "triton"
        words = [executable, f"--model-repository={directory / 'repository'}", f"--backend-directory={servers.backend_directory()}",
                 "--http-address=127.0.0.1", f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
        environment = {}
    return [str(word) for word in words], {**os.environ, **{name: str(value) for name, value in environment.items()}}


def is_there(one):
    return bool(one.packages) or one.name == "conch" or (servers.PEERS / "triton").exists()


def bound(words, cpus):
    return [*machine.bound_to(cpus), *words]
