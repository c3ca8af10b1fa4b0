"""The commands that the README prints give the answers that it prints."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import server as servers
from case import ServerCase, conch_only, needs_library
from test_models import EXAMPLES


def blocks(language):
    """(code, printed answer) of each fenced block of a language that is followed by one of `text`."""
    text = (servers.ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n((?:(?!```).)*?)```\n\n```text\n(.*?)```", text, re.S)


@conch_only
@needs_library("onnxruntime")
class Readme(ServerCase):
    repository_path = EXAMPLES
    flags = ("--exit-on-error=false", "--strict-readiness=false")

    def run_block(self, command, code):
        code = code.replace("localhost:8000", self.server.http).replace("localhost:8001", self.server.grpc)
        return subprocess.run([*command, code], capture_output=True, text=True, check=True, timeout=30).stdout

    def test_curl(self):
        (code, printed), = blocks("sh")
        self.assertEqual(json.loads(self.run_block(["bash", "-c"], code)), json.loads(printed))

    def test_python(self):
        (code, printed), = blocks("python")
        self.assertEqual(self.run_block([sys.executable, "-c"], code).split(), printed.split())


@conch_only
@needs_library("onnxruntime")
class YourModel(unittest.TestCase):
    """docs/YOUR_MODEL.md, step by step."""

    def test_every_step(self):
        text = (servers.ROOT / "docs/YOUR_MODEL.md").read_text()
        commands = re.findall(r"```sh\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.S)
        (prepare, _), *asked = commands
        with tempfile.TemporaryDirectory() as folder:
            def run(command, server=None):
                if server:
                    command = command.replace("localhost:8000", server.http)
                return subprocess.run(["bash", "-ec", command], cwd=folder, capture_output=True, text=True, check=True, timeout=30).stdout

            run(prepare.replace("docs/examples", f"{servers.ROOT}/docs/examples"))
            repository = pathlib.Path(folder) / "my_models"
            with servers.Server(repository) as server:
                answered = [(json.loads(run(command, server)), printed) for command, printed in asked]
            for answer, printed in answered:
                if printed:
                    self.assertEqual(answer, json.loads(printed))
            config = re.search(r"```protobuf\n(.*?)```", text, re.S)[1]
            (repository / "my_model/config.pbtxt").write_text(config)
            with servers.Server(repository) as server:
                completed = json.loads(run(asked[-1][0], server))
                self.assertEqual(run(asked[1][0], server) and len(completed["input"]), 2)
            self.assertEqual((completed["max_batch_size"], completed["instance_group"][0]["count"]), (32, 2))


@conch_only
@needs_library("python")
class PythonModel(unittest.TestCase):
    """docs/PYTHON.md from a function to an answer; the environment of the tests stands for the one that it makes."""

    def test_every_step(self):
        text = (servers.ROOT / "docs/PYTHON.md").read_text().partition("\n## Processes")[0]
        (prepare, ask), (printed,) = re.findall(r"```sh\n(.*?)```", text, re.S), re.findall(r"```text\n(.*?)```", text, re.S)
        with tempfile.TemporaryDirectory() as folder:
            run = lambda command: subprocess.run(["bash", "-ec", command], cwd=folder, capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: E731
            run("\n".join(line for line in prepare.splitlines() if "model-env" not in line))
            for place, language in (("config.pbtxt", "protobuf"), ("1/model.py", "python")):
                path = re.search(rf"`(models/\S*{re.escape(place)})`", text)[1]
                (pathlib.Path(folder) / path).write_text(re.search(rf"```{language}\n(.*?)```", text, re.S)[1])
            self.assertEqual(text.count("--backend-config=python,python-interpreter=$PWD/model-env/bin/python3"), 2)
            with servers.Server(f"{folder}/models", f"--backend-config=python,python-interpreter={sys.executable}") as server:
                self.assertEqual(json.loads(run(ask.replace("localhost:8000", server.http))), json.loads(printed))


class Backends(unittest.TestCase):
    """The commands of docs/BACKENDS.md; scripts/check-examples follows them."""

    def test_programs_and_repositories_are_named(self):
        text = (servers.ROOT / "docs/BACKENDS.md").read_text()
        commands = [line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.replace("\\\n", " ").splitlines()]
        serving = [command for command in commands if command.startswith("scripts/serve")]
        self.assertGreaterEqual(len(serving), 6)
        for command in serving:
            self.assertRegex(command, r"^scripts/serve --model-repository=\S+( +--backend-config=\S+)*$")
        paths = [word for command in commands for word in command.split() if word.startswith(("scripts/", "docs/"))]
        self.assertEqual([path for path in paths if not (servers.ROOT / path).exists()], [])


if __name__ == "__main__":
    unittest.main()
