"""`conch check`: what it says of broken and good repositories, beside what the server itself says of the same ones."""

import hashlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

import server as servers
from bucket import Bucket
from case import conch_only, needs_library
from repository import Repository, identity, tensors
from test_refused_models import IN_THE_LOG, TOLD
from test_remote import Mount, environment

PROGRAM = os.environ.get("CONCH", str(servers.built("conch")))
# The interpreter of this suite has numpy, which models in Python need.
ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}

TENSORS = tensors("input", [("INPUT0", "FP32", (-1,))]) + tensors("output", [("OUTPUT0", "FP32", (-1,))])
OWN = 'backend: "identity"\n' + TENSORS
LABELLED = OWN.replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels.txt"')
PYTHON = 'backend: "python"\n' + TENSORS
MODEL = b"""
class TritonPythonModel:
    def initialize(self, args):
        %s

    def execute(self, requests):
        raise RuntimeError("not this time")
"""


def step(model, source="INPUT0", target="OUTPUT0"):
    return (f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{source}" }} '
            f'output_map {{ key: "OUTPUT0" value: "{target}" }} }}\n')


def ensemble(*steps, data_type="FP32"):
    return ('platform: "ensemble"\n' + tensors("input", [("INPUT0", data_type, (-1,))]) + tensors("output", [("OUTPUT0", data_type, (-1,))])
            + f"ensemble_scheduling {{\n{''.join(steps)}}}\n")


def one(text, **more):
    """A repository with one model."""
    return lambda repository: repository.model("m", text, **more)


def beside_good(text):
    return lambda repository: repository.model("good", identity()).model("m", text)


def fifo(place, text=OWN):
    """A FIFO in place of one of the model's files: who opens it without care waits for ever."""
    def make(repository):
        repository.model("m", text)
        os.mkfifo(repository.path / "m" / place)
    return make


def linked_nowhere(repository):
    repository.model("m", None)
    (repository.path / "m/config.pbtxt").symlink_to("nowhere")


def circle(repository):
    repository.model("m", ensemble(step("n"))).model("n", ensemble(step("m")))


# What is wrong, and what both say of it. Found without loading anything.
BROKEN = {
    "an unknown field": (one("max_batch_sizes: 8\n" + OWN), 'has no field named "max_batch_sizes"'),
    "an open brace": (one(OWN + "dynamic_batching {\n"), 'Expected "}", found "end of file".'),
    "a number that is none": (one(OWN + "max_batch_size: eight\n"), "max_batch_size: Expected integer, got: eight"),
    "a data type that is none": (one(OWN.replace("TYPE_FP32", "FP32")), 'Unknown enumeration value of "FP32"'),
    "a field twice": (one(OWN + "max_batch_size: 1\nmax_batch_size: 2\n"), 'Non-repeated field "max_batch_size" is specified multiple times.'),
    "bytes that are no text": (one(None, files={"config.pbtxt": b"\x7fELF\x00\x01"}), "failed to read text proto from|Invalid|Expected"),
    "another name": (one('name: "other"\n' + OWN), "unexpected directory name 'm' for model 'other'"),
    "a negative batch": (one("max_batch_size: -1\n" + OWN), "'max_batch_size' must be non-negative value for m"),
    "no backend": (one(TENSORS), "Could not determine backend for model 'm'"),
    "a backend that is not there": (one('backend: "nope"\n' + TENSORS), "unable to find backend library for backend 'nope'"),
    "a platform that goes with another backend": (one('backend: "onnxruntime" platform: "pytorch_libtorch"\n' + TENSORS),
                                                  "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime"),
    "a library that is not there": (one('runtime: "none.so"\n' + OWN), "unable to find backend library 'none.so' for model 'm'"),
    "no version folder": (one(OWN, versions=()), "at least one version must be available under the version policy of model 'm'"),
    "a version policy for others": (one(OWN + "version_policy { specific { versions: [ 7 ] } }\n"),
                                    "at least one version must be available under the version policy of model 'm'"),
    "a reshape to another size": (one('backend: "identity"\ninput { name: "X" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 5 ] } }\n'
                                      + tensors("output", [("Y", "FP32", (5,))])), "model input 'X' has different size for dims and reshape"),
    "too many instances": (one(OWN + "instance_group { kind: KIND_CPU count: 5000 }\n"),
                           "model 'm' asks for 5000 instances, at most 1024 are allowed"),
    "labels that are not there": (one(LABELLED), "labels.txt"),
    "warm-up data that is not there": (one(OWN + 'model_warmup { name: "w" batch_size: 1 inputs { key: "INPUT0" value { '
                                                 'data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "x" } } }\n'), "warmup/x"),
    "a FIFO as configuration": (fifo("config.pbtxt", None), "it is no regular file"),
    "a FIFO as labels": (fifo("labels.txt", LABELLED), "labels.txt: it is no file"),
    "a FIFO as model": (fifo("1/model.x"), "'model.x' is no regular file"),
    "a link to nowhere": (linked_nowhere, "Could not determine backend for model 'm'"),
    "a step of no model": (beside_good(ensemble(step("none"))), "ensemble m contains models that are not available or ambiguous: none"),
    "a circle of ensembles": (circle, "circular dependency between ensembles: m -> ... -> n -> m"),
    "types that do not fit": (beside_good(ensemble(step("good"), data_type="INT32")),
                              "in ensemble m, ensemble tensor INPUT0: inconsistent data type: TYPE_INT32 is inferred from model m "
                              "while TYPE_FP32 is inferred from model good"),
    "a step of a model that fails": (lambda repository: repository.model("bad", 'backend: "nope"\n' + TENSORS).model("m", ensemble(step("bad"))),
                                     "ensemble 'm' depends on 'bad' which has no loaded version."),
    "an agent that is not there": (one(OWN + 'model_repository_agents { agents { name: "none" } }\n'),
                                   "unable to find 'libtritonrepoagent_none.so' for repo agent 'none'"),
    "no model file": (one('backend: "onnxruntime"\n'), "model.onnx' for model"),
}
# Found by loading: what is wrong, and what both say of it.
UNLOADABLE = {
    "dims that the backend refuses": (one('backend: "identity"\n' + tensors("input", [("X", "FP32", (4,))]) + tensors("output", [("Y", "FP32", (5,))])),
                                      "expected input and output shape to match"),
    "a model that fails to initialize": (one(PYTHON, files={"1/model.py": MODEL % b'raise ValueError("no weights today")'}), "no weights today"),
    "a model that does not compile": (one(PYTHON, files={"1/model.py": b"def broken(:\n"}), "SyntaxError|invalid syntax"),
    "a model without a class": (one(PYTHON, files={"1/model.py": b"pass\n"}), "TritonPythonModel"),
    "a module that is not there": (one(PYTHON, files={"1/model.py": b"import no_such_module\n"}), "No module named 'no_such_module'"),
    "a warm-up that fails": (one(PYTHON + 'model_warmup { name: "w" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 '
                                          'dims: [ 1 ] zero_data: true } } }\n', files={"1/model.py": MODEL % b"pass"}),
                             "failed to run warmup sample 'w': .*not this time"),
    "a model file that is none": (one('backend: "onnxruntime"\n', files={"1/model.onnx": b"no model"}), "model 'm'|onnx|protobuf"),
    "a GPU": (one(OWN + "instance_group { kind: KIND_GPU }\n"), "has kind KIND_GPU but no GPUs are available"),
}


def check(*words, within=60, prefix=(), environment=None):
    """Runs `conch check` to its end: (exit code, standard output, standard error)."""
    command = [*prefix, PROGRAM, "check", *map(str, words), f"--backend-directory={servers.backend_directory()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False, env={**ENVIRONMENT, **(environment or {})})
    return done.returncode, done.stdout, done.stderr


def served(repository):
    """What a server says that is started with the repository, and ends because of it."""
    command = [PROGRAM, f"--model-repository={repository}", f"--backend-directory={servers.backend_directory()}", "--http-port=0",
               "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT)
    return done.returncode, done.stdout + done.stderr


def reasons(report, name="m"):
    """All that a report says of a model, or of repositories."""
    models = [model for model in report["models"] if model["name"] == name]
    return "\n".join(error["message"] for holder in (report, *models) for error in holder["errors"])


@conch_only
@needs_library("identity")
class Broken(unittest.TestCase):
    """Each repository of the tables is refused by the check and by a server, for the same reason."""

    def compare(self, make, reason, *flags):
        pattern = reason if "|" in reason or ".*" in reason else re.escape(reason)
        with Repository() as repository:
            make(repository)
            code, out, errors = check(repository, "--json", *flags)
            self.assertEqual(code, 1, out + errors)
            said = reasons(json.loads(out))
            self.assertRegex(said, pattern)
            code, log = served(repository)
            self.assertEqual(code, 1, log)
            self.assertRegex(log, pattern)
            # Word for word, but for the place, which stands before it.
            last = said.rsplit("version 1: ", 1)[-1].splitlines()[0]
            if not flags and "model.onnx" not in last:  # the check says that in its own words
                self.assertIn(last, log)

    def test_without_loading(self):
        for title, (make, reason) in BROKEN.items():
            with self.subTest(title):
                self.compare(make, reason)

    def test_by_loading(self):
        for title, (make, reason) in BROKEN.items():
            with self.subTest(title):
                self.compare(make, reason, "--load")

    @needs_library("python")
    @needs_library("onnxruntime")
    def test_what_only_a_load_shows(self):
        for title, (make, reason) in UNLOADABLE.items():
            with self.subTest(title):
                with Repository() as repository:
                    make(repository)
                    code, out, errors = check(repository)
                    self.assertEqual(code, 0, out + errors)
                self.compare(make, reason, "--load")

    def test_refused_models_in_one_repository(self):
        """The tables of `test_refused_models`, which say what a server says, and the real Triton."""
        names = {**IN_THE_LOG, **TOLD}
        with Repository() as repository:
            repository.model("good", identity())
            for name, (text, _) in names.items():
                repository.model(name, text)
            for flags in ((), ("--load",)):
                code, out, _ = check(repository, "--json", *flags)
                self.assertEqual(code, 1)
                report = json.loads(out)
                for name, (_, reason) in names.items():
                    if name in ("no_gpus", "gpu_of_no_number") and not flags:
                        continue
                    with self.subTest(name, flags=flags):
                        expected = reason.format(name=name).removeprefix("version 1 is at UNAVAILABLE state: ").removesuffix(";")
                        self.assertIn(expected, reasons(report, name))
                good = [model for model in report["models"] if model["state"] != "FAILED"]
                self.assertEqual([model["name"] for model in good], ["good"] if flags else ["good", "gpu_of_no_number", "no_gpus"])

    def test_places(self):
        rows = [
            ("# a comment\nbackend: \"identity\"\n  no_such: 1\n", 3, 3),
            (OWN + "max_batch_size: x\n", 4, 17),
            ('input {\n  name: "X"\n  dims: [ 1, y ]\n}\n', 3, 14),
            ("dynamic_batching {\n\n", 3, 1),
        ]
        for text, line, column in rows:
            with self.subTest(text), Repository().model("m", text) as repository:
                file = repository.path / "m/config.pbtxt"
                code, out, _ = check(repository)
                self.assertEqual(code, 1)
                self.assertTrue(out.startswith(f"FAIL m: {file}:{line}:{column}: "), out)
                _, out, _ = check(repository, "--json")
                error = json.loads(out)["models"][0]["errors"][0]
                self.assertEqual((error["file"], error["line"], error["column"]), (str(file), line, column))
                self.assertIn(f"{line}:{column}: {error['message']}", served(repository)[1])
        with Repository().model("m", None, files={"config.json": b'{\n "backend": "identity",\n "no_such": 1 }'}) as repository:
            _, out, _ = check(repository)
            self.assertRegex(out, rf"^FAIL m: {repository}/m/config\.json:3:\d+: ")

    def test_two_repositories(self):
        with Repository().model("m", identity()).model("a", identity()) as first, Repository().model("m", identity()) as second:
            code, out, _ = check(first, second)
            self.assertEqual(code, 1)
            for repository in (first, second):
                self.assertIn(f"FAIL m: {repository}/m: model appears in two or more repositories\n", out)
            self.assertIn("ok   a (version 1)\n", out)
            # Told apart they are two models.
            code, out, _ = check(first, f"--model-repository={second}", "--model-namespacing=true")
            self.assertEqual(code, 0, out)
            self.assertEqual(len(re.findall("^ok   ", out, re.MULTILINE)), 3)

    def test_repositories_that_are_none(self):
        with Repository() as empty, Repository().model("m", identity()) as good:
            file = good.path / "m/config.pbtxt"
            for place, reason in [(empty, "there is no model in the model repository"), (file, "a model repository is a directory"),
                                  ("/nonexistent/models", "it is given as a model repository"),
                                  (good.path / "m", "looks like a model, not like a model repository")]:
                with self.subTest(str(place)):
                    code, out, _ = check(place)
                    self.assertEqual(code, 1)
                    self.assertRegex(out, f"FAIL repository: {place}: .*{reason}")
                    # The others are looked at all the same.
                    code, out, _ = check(good, place, "--load")
                    self.assertEqual(code, 1)
                    self.assertIn("ok   m (version 1), READY\n", out)

    def test_folders_that_cannot_be_read(self):
        with Repository().model("good", identity()).model("m", OWN) as repository:
            folder = repository.path / "m"
            prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
            for mode, reason in [(0o300, f"failed to open directory {folder}: Permission denied"), (0o000, "Permission denied")]:
                folder.chmod(mode)
                try:
                    code, out, errors = check(repository, prefix=prefix)
                finally:
                    folder.chmod(0o755)
                self.assertEqual(code, 1, errors)
                self.assertIn("ok   good (version 1)\n", out)
                self.assertRegex(out, f"FAIL m: .*{reason}")
            repository.path.chmod(0o000)
            try:
                code, out, _ = check(repository, prefix=prefix)
            finally:
                repository.path.chmod(0o755)
            self.assertEqual(code, 1)
            self.assertRegex(out, f"FAIL repository: {repository}: .*Permission denied")


@conch_only
@needs_library("identity")
class Good(unittest.TestCase):
    """Good repositories, the options, and the forms of the report."""

    def test_good_models(self):
        with Repository() as repository:
            repository.model("versions", identity() + "version_policy { all { } }\n", versions=("1", "3", "12"))
            repository.model("latest", identity(batch=8), versions=("1", "3"))
            repository.model("some", identity() + "version_policy { specific { versions: [ 1, 9 ] } }\n", versions=("1", "2"))
            repository.model("pipeline", ensemble(step("versions", target="MIDDLE"), step("latest", source="MIDDLE")))
            repository.model("warm", OWN + 'model_warmup { name: "w" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 '
                                           'dims: [ 4 ] random_data: true } } }\n')
            lines = ["ok   latest (version 3)", "ok   pipeline (version 1)", "ok   some (version 1)",
                     "     note: version 9 is specified, but the version directory is not present", "ok   versions (versions 1, 3, 12)",
                     "ok   warm (version 1)", "5 models: 5 ok, 0 failed"]
            self.assertEqual(check(repository), (0, "\n".join(lines) + "\n", ""))
            ready = [line + ", READY" if line.startswith("ok ") else line for line in lines]
            code, out, log = check(repository, "--load")
            self.assertEqual((code, out), (0, "\n".join(ready) + "\n"))
            self.assertIn("successfully loaded 'pipeline'", log)
            self.assertIn("successfully unloaded 'latest' version 3", log)
            self.assertNotIn("Started ", log, "nothing listens")

    def test_json(self):
        with Repository().model("m", identity(), versions=("1", "2")).model("bad", 'backend: "nope"\n' + TENSORS) as repository:
            for flags, state in ((), "OK"), (("--load",), "READY"):
                code, out, _ = check(repository, "--json", *flags)
                self.assertEqual(code, 1)
                report = json.loads(out)
                bad, good = report["models"]
                self.assertEqual(good, {"repository": str(repository), "name": "m", "versions": [2], "state": state, "errors": [], "notes": []})
                self.assertEqual((report["repositories"], report["errors"]), ([str(repository)], []))
                self.assertEqual((bad["name"], bad["state"], bad["versions"]), ("bad", "FAILED", [1]))
                [error] = bad["errors"]
                self.assertEqual(error.keys(), {"file", "line", "column", "message"})

    @needs_library("python")
    def test_what_models_print_does_not_mix_with_the_report(self):
        printing = MODEL % b'import os; print("hello from the model"); os.write(1, b"hello from its process\\n")'
        with Repository().model("m", PYTHON, files={"1/model.py": printing}) as repository:
            code, out, _ = check(repository, "--load", "--json")
            self.assertEqual(code, 0, out)
            self.assertEqual(json.loads(out)["models"][0]["state"], "READY")

    def test_what_a_backend_completes(self):
        with Repository().model("m", 'backend: "identity"\n').model("e", ensemble(step("m"))) as repository:
            code, out, _ = check(repository)
            self.assertEqual(code, 0, out)
            self.assertEqual(out.count("     note: "), 2)
            # A strict server leaves nothing to backends.
            code, strict, _ = check(repository, "--disable-auto-complete-config")
            self.assertNotIn("     note: its backend", strict)

    def test_startup_models(self):
        with Repository() as repository:
            repository.model("good", identity()).model("bad", "no_such: 1\n").model("e", ensemble(step("good")))
            explicit = "--model-control-mode=explicit"
            self.assertEqual(check(repository, explicit)[0], 1)
            code, out, _ = check(repository, explicit, "--load-model=e")
            self.assertEqual((code, out), (0, "ok   e (version 1)\nok   good (version 1)\n2 models: 2 ok, 0 failed\n"))
            code, out, _ = check(repository, explicit, "--load-model=none")
            self.assertEqual(code, 1)
            self.assertIn("failed to poll model 'none': model not found in any model repository.", out)

    def test_a_repository_in_a_bucket(self):
        mount = Mount()
        self.addCleanup(mount.close)
        with Bucket() as bucket, Repository().model("good", identity(), files={"1/weights": b"1"}) as repository:
            repository.model("bad", 'backend: "nope"\n' + TENSORS, files={"1/weights": b"1"})
            repository.model("text", "no_such: 1\n", files={"1/weights": b"1"})
            bucket.put("models", repository)
            uri = bucket.s3("models")
            for flags, good in ((), "ok   good (version 1)\n"), (("--load",), "ok   good (version 1), READY\n"):
                code, out, errors = check(uri, *flags, environment=environment(mount))
                self.assertEqual(code, 1, errors)
                self.assertIn(good, out)
                self.assertRegex(out, f"FAIL bad: {re.escape(uri)}/bad.*: unable to find backend library for backend 'nope'")
                self.assertRegex(out, f'FAIL text: {re.escape(uri)}/text: .*1:1: .*has no field named "no_such"')
                self.assertEqual(list(mount.path.iterdir()), [], "copies are removed")
            code, out, _ = check(bucket.s3("nothing"), environment=environment(mount))
            self.assertEqual(code, 1)
            self.assertIn("there is no model in repository 's3://", out)

    def test_agents(self):
        """Without `--load` an agent is only looked for."""
        library = servers.built("libtritonrepoagent_checksum.so")
        if not library.exists():
            self.skipTest(f"{library} is not built")
        with tempfile.TemporaryDirectory() as agents, Repository() as repository:
            servers.place(pathlib.Path(agents) / "checksum" / library.name, library)
            for name, digest in (("good", hashlib.md5(b"weights").hexdigest()), ("changed", "0" * 32)):
                entry = f'model_repository_agents {{ agents {{ name: "checksum" parameters {{ key: "MD5:1/weights" value: "{digest}" }} }} }}\n'
                repository.model(name, identity() + entry, files={"1/weights": b"weights"})
            code, out, _ = check(repository, f"--repoagent-directory={agents}")
            self.assertEqual((code, out.count("agents are asked when it is loaded")), (0, 2), out)
            code, out, _ = check(repository, f"--repoagent-directory={agents}", "--load")
            self.assertEqual(code, 1)
            self.assertIn("ok   good (version 1), READY\n", out)
            self.assertRegex(out, "FAIL changed: .*[Mm]ismatched MD5 hash")

    def test_another_configuration(self):
        with Repository().model("m", "no_such: 1\n", files={"configs/other.pbtxt": OWN.encode()}) as repository:
            self.assertEqual(check(repository)[0], 1)
            self.assertEqual(check(repository, "--model-config-name=other")[0], 0)

    def test_names_do_not_break_lines(self):
        with Repository().model("two\nlines\x1b[31m", OWN) as repository:
            code, out, _ = check(repository)
            self.assertEqual((code, out), (0, "ok   two\\nlines\\u{1b}[31m (version 1)\n1 model: 1 ok, 0 failed\n"))

    def test_a_server_beside_it(self):
        """No port is taken, whatever the options say."""
        with socket.socket() as taken, Repository().model("m", identity()) as repository:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, out, _ = check(repository, "--load", f"--http-port={port}", "--http-address=127.0.0.1")
            self.assertEqual(code, 0, out)

    def test_usage(self):
        for words, reason in [((), "--model-repository must be specified"), (("m", "--no-such"), "There is no such option"),
                              (("m", "--http-port=x"), "Invalid option value")]:
            with self.subTest(words):
                done = subprocess.run([PROGRAM, "check", *words], capture_output=True, text=True, timeout=20, check=False)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(reason, done.stderr)
                self.assertIn("Usage: conch check REPOSITORY... [--load] [--json] [options]", done.stderr)
        for flag in ("--help", "-h"):
            done = subprocess.run([PROGRAM, "check", flag], capture_output=True, text=True, timeout=20, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, r"(?s)Usage: conch check .*--load\n.*--json\n.*--backend-directory")
        usage = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=20, check=False).stdout
        self.assertIn("conch check REPOSITORY...", usage)


if __name__ == "__main__":
    unittest.main()
