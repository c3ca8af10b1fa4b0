"""The commands that the README prints give the answers that it prints."""

import json
import re
import subprocess
import sys
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


if __name__ == "__main__":
    unittest.main()
