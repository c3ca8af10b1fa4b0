"""Repository agents: the shipped checksum agent, and one in C++ that writes down how a server calls it. Run in conch, and where it is
installed in the real Triton, with the same expectations."""

import hashlib
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import server as servers
from case import conch_only, needs_peer
from repository import Repository, identity
from waiting import until

LIBRARY = "libtritonrepoagent_{}.so"
# What the recorder writes of one load: each call of the interface with its outcome.
LOOK = """ModelInitialize
  update: Invalid argument: location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is not set
LOAD
  lies in {name}
  parameter beyond: Invalid argument: index out of range for model parameters{parameters}
  config 1: names the backend
  config 2: Invalid argument: model configuration version 2 not supported, supported versions are: 1
  agent's state of the agent
  model's state of the model
  acquired one directory
  release: ok
  which is gone
  release again: Unavailable: No mutable location to be deleted
  acquire elsewhere: Invalid argument: Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'
  parameter beyond: Invalid argument: index out of range for model parameters"""
COMPLETE = """LOAD_COMPLETE
  parameter beyond: Invalid argument: index out of range for model parameters
  update: Invalid argument: location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is \
TRITONREPOAGENT_ACTION_LOAD_COMPLETE"""
BEYOND = "  parameter beyond: Invalid argument: index out of range for model parameters"
FAIL = f"LOAD_FAIL\n{BEYOND}"
GONE = "ModelFinalize\nFinalize"
END = f"UNLOAD\n{BEYOND}\nUNLOAD_COMPLETE\n{BEYOND}\nModelFinalize"


def look(name, *parameters):
    return LOOK.format(name=name, parameters="".join(f"\n  parameter {key}" for key in sorted(parameters)))


def agent(name, **parameters):
    """The part of a configuration that names an agent; `__` in a parameter's name stands for a colon."""
    rows = "".join(f'parameters {{ key: "{key}" value: "{value}" }}\n' for key, value in parameters.items())
    return f'model_repository_agents {{ agents {{ name: "{name}"\n{rows} }} }}\n'


class Bed:
    """A repository, a directory of agents, and a server that reads both."""

    def __init__(self, kind):
        self.kind, self.repository = kind, Repository()
        self._directory = tempfile.TemporaryDirectory(prefix="conch-agents-")
        self.agents = pathlib.Path(self._directory.name)
        self.log = self.agents / "log"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.repository.close()
        self._directory.cleanup()

    def recorder(self):
        library = self.agents / "recorder" / LIBRARY.format("recorder")
        library.parent.mkdir()
        source = servers.ROOT / "tests/peers/recorder_agent.cc"
        subprocess.run(["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=default",
                        f"-I{servers.ROOT}/src/abi/include", source, "-o", library], check=True)

    def checksum(self):
        library = servers.built(LIBRARY.format("checksum"))
        if not library.exists():
            raise unittest.SkipTest(f"{library} is not built")
        servers.place(self.agents / "checksum" / library.name, library)

    def serve(self, *flags, **more):
        return servers.Server(self.repository, "--model-control-mode=explicit", f"--repoagent-directory={self.agents}", *flags,
                              kind=self.kind, environment={"AGENT_LOG": str(self.log)}, **more)

    def heard(self):
        """What was written since the last time."""
        text = self.log.read_text() if self.log.exists() else ""
        self.log.write_text("")
        return text.strip()


def load(server, name, body=b"{}"):
    status, reply = server.post_json(f"/v2/repository/models/{name}/load", body)
    return status, reply.decode()


def unload(server, name):
    status, reply = server.post_json(f"/v2/repository/models/{name}/unload", b"{}")
    assert status == 200, reply


class Life:
    """The expectations, for a `kind` of server."""

    kind = None

    def wait_for(self, bed, end):
        until(lambda: bed.log.exists() and bed.log.read_text().strip().endswith(end),
              lambda: f"{end!r} did not come:\n{bed.log.read_text()}")

    def test_a_life_in_order(self):
        with Bed(self.kind) as bed:
            bed.recorder()
            bed.repository.model("m", identity(batch=8, extra=agent("recorder", a="1", b="2")))
            with bed.serve() as server:
                self.assertEqual(bed.heard(), "")
                self.assertEqual(load(server, "m"), (200, ""))
                self.assertEqual(bed.heard(), f"Initialize 0.1\n{look('m', 'a', 'b')}\n{COMPLETE}")
                self.assertEqual(load(server, "m"), (200, ""))
                self.assertEqual(bed.heard(), "", "nothing changed, nothing is said")
                unload(server, "m")
                self.wait_for(bed, "\nFinalize")
                self.assertEqual(bed.heard(), f"{END}\nFinalize", "the last model takes the agent along")
                self.assertEqual(load(server, "m"), (200, ""))
                bed.heard()
            self.assertEqual(bed.heard(), f"{END}\nFinalize", "so does the end of the server")

    def test_refusals(self):
        refused = (500, '{"error":"failed to load \'m\', failed to poll from model repository"}')
        failed = re.compile("load failed for model 'm': version 1 is at UNAVAILABLE state: ")
        rows = [
            (agent("recorder", fail="LOAD"), "identity", refused, f"{look('m', 'fail')}\n{FAIL}"),
            (agent("recorder"), "no_such_backend", failed, f"{look('m')}\n{FAIL}"),
            (agent("recorder", fail="LOAD_FAIL"), "no_such_backend", failed, f"{look('m', 'fail')}\n{FAIL}"),
            (agent("recorder", fail="LOAD_COMPLETE"), "identity", (200, ""), None),
            (agent("absent"), "identity", refused, ""),
        ]
        if self.kind == "conch":
            # A C++ exception ends upstream's server.
            rows.append((agent("recorder", throw="LOAD"), "identity", refused, f"{look('m', 'throw')}\n{FAIL}"))
            rows.append((agent("recorder", throw="LOAD_COMPLETE"), "identity", (200, ""), None))
        for extra, backend, expected, heard in rows:
            with self.subTest(extra=extra, backend=backend), Bed(self.kind) as bed:
                bed.recorder()
                config = identity(batch=8, extra=extra).replace('"identity"', f'"{backend}"')
                if backend != "identity":  # the recorder looks for the name
                    config += 'parameters { key: "is" value { string_value: "identity" } }\n'
                bed.repository.model("m", config)
                with bed.serve() as server:
                    answer = load(server, "m")
                    if isinstance(expected, tuple):
                        self.assertEqual(answer, expected)
                    else:
                        self.assertRegex(answer[1], expected)
                    if heard:
                        # Of a model whose versions failed, upstream keeps the agent until its next load.
                        end = "" if self.kind == "triton" and answer[0] == 400 else f"\n{GONE}"
                        self.wait_for(bed, end or FAIL)
                        self.assertEqual(bed.heard(), f"Initialize 0.1\n{heard}{end}")
                    elif heard is not None:
                        self.assertEqual(bed.heard(), "")
                    self.assertTrue(server.is_alive())
                    # Another model is none the worse.
                    bed.repository.model("other", identity(batch=8))
                    self.assertEqual(load(server, "other"), (200, ""))

    def test_a_model_is_loaded_from_where_the_agent_says(self):
        with Bed(self.kind) as bed:
            bed.recorder()
            elsewhere = bed.agents / "elsewhere"
            (elsewhere / "7").mkdir(parents=True)
            bed.repository.model("moved", identity(batch=8, extra=agent("recorder", relocate=elsewhere)))
            bed.repository.model("copied", identity(batch=8, extra=agent("recorder", copy="weights")), versions=())
            with bed.serve() as server:
                self.assertEqual(load(server, "moved"), (200, ""))
                self.assertEqual(server.get_json("/v2/models/moved")["versions"], ["7"])
                bed.heard()
                self.assertEqual(load(server, "copied"), (200, ""))
                self.assertEqual(server.get_json("/v2/models/copied")["versions"], ["1"])
                directory = pathlib.Path(re.search(r"copied to (\S+)", bed.heard())[1])
                self.assertTrue((directory / "1/weights").exists(), "it stays as long as the model")
                unload(server, "copied")
                self.wait_for(bed, "ModelFinalize")
                until(lambda: not directory.exists(), f"{directory} stays")

    def test_checksums(self):
        weights = os.urandom(3 << 20)
        good = hashlib.md5(weights).hexdigest()
        rows = [
            ("right", {"MD5:1/weights": good}, None),
            ("wrong", {"MD5:1/weights": hashlib.md5(b"").hexdigest()}, f"Mismatched MD5 hash for file 1/weights, expect: "
             f"{hashlib.md5(b'').hexdigest()}, got: {good}"),
            ("missing", {"MD5:1/none": good}, "failed to open text file for read 1/none: "),
            ("other", {"SHA1:1/weights": good}, "Unsupported checksum algorithm: SHA1"),
            ("plain", {"weights": good}, "failed to parse key: weights"),
        ]
        with Bed(self.kind) as bed:
            bed.checksum()
            for name, sums, _ in rows:
                bed.repository.model(name, identity(batch=8, extra=agent("checksum", **sums)), files={"1/weights": weights})
            with bed.serve("--load-model=right") as server:
                table = server.wait_for_line(r"\| checksum +\| .*libtritonrepoagent_checksum.so")
                self.assertTrue(table)
                for name, _, complaint in rows:
                    with self.subTest(name):
                        status, reply = load(server, name)
                        if complaint is None:
                            self.assertEqual(status, 200, reply)
                            continue
                        self.assertEqual((status, reply), (
                            500, f'{{"error":"failed to load \'{name}\', failed to poll from model repository"}}'))
                        server.wait_for_line(re.escape(f"Poll failed for model directory '{name}': ") + re.escape(complaint))
                # Damage that comes later is found by the next load, and the good one goes on.
                (bed.repository.path / "right/1/weights").write_bytes(b"damaged")
                self.assertEqual(load(server, "right")[0], 500)
                self.assertEqual(server.get("/v2/models/right/ready")[0], 200)


@conch_only
class Conch(Life, unittest.TestCase):
    kind = "conch"


@conch_only
@needs_peer("triton")
class Triton(Life, unittest.TestCase):
    kind = "triton"
