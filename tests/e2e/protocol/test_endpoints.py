"""The commands of docs/ENDPOINTS.md have the statuses and answers that stand behind them, and no endpoint is left out there."""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import uuid

import server as servers
import test_sagemaker
import test_vertex_ai
from case import ServerCase, conch_only, needs_library
from region import FLAG
from test_models import EXAMPLES
from test_stream import square

Command = collections.namedtuple("Command", "text status answer")


def sections():
    """Heading -> the commands below it."""
    found = {}
    for part in re.split(r"^## ", (servers.ROOT / "docs/ENDPOINTS.md").read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        found[heading] = commands = []
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            lines = []
            for line in block.splitlines():
                if expected := re.match(r"# (\d{3})(?: (.*))?$", line):
                    commands.append(Command("\n".join(lines), int(expected[1]), expected[2]))
                    lines = []
                else:
                    lines.append(line)
            if lines:
                raise ValueError(f"{heading}: {lines} have no status")
    return found


SECTIONS = sections()
M = "v2/models/[a-z_]+"
V = "(/versions/1)"
# All that can be asked for: verb and path.
ENDPOINTS = [
    *(f"GET 8000/{path}" for path in (
        "v2", "v2/health/live", "v2/health/ready", "v2/models/stats", "v2/logging", "v2/trace/setting", f"{M}/trace/setting",
        "v2/systemsharedmemory/status", "v2/systemsharedmemory/region/[a-z]+/status", "v2/cudasharedmemory/status",
        "v2/cudasharedmemory/region/[a-z]+/status")),
    *(f"GET 8000/{M}{version}{rest}" for version in ("", V) for rest in ("", "/ready", "/config", "/stats")),
    *(f"POST 8000/{M}{version}/{rest}" for version in ("", V) for rest in ("infer", "generate", "generate_stream")),
    *(f"POST 8000/{path}" for path in (
        "v2/repository/index", "v2/repository/models/[a-z]+/load", "v2/repository/models/[a-z]+/unload", "v2/logging", "v2/trace/setting",
        f"{M}/trace/setting")),
    *(f"POST 8000/v2/{kind}sharedmemory/{rest}" for kind in ("system", "cuda")
      for rest in ("region/[a-z]+/register", "region/[a-z]+/unregister", "unregister")),
    "GET 8002/metrics", "GET 8000/metrics", "GET 8002/dashboard", "GET 8002/dashboard/events", "GET 8080/ping", "POST 8080/invocations", "GET 8080/models", "GET 8080/models/h1", "POST 8080/models",
    "POST 8080/models/h1/invoke", "DELETE 8080/models/h1", "GET 8081/health", "POST 8081/predict",
]


def asked(command):
    """`VERB port/path` of a command."""
    verb = re.search(r"-X (\w+)", command.text)
    has_body = re.search(r" (-d|--data-binary) ", command.text)
    return f"{verb[1] if verb else 'POST' if has_body else 'GET'} {re.search(r'localhost:([^ ]+)', command.text)[1]}"


@unittest.skipUnless(shutil.which("curl"), "there is no curl")
@conch_only
@needs_library("square")
class Endpoints(ServerCase):
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple_identity", **test_vertex_ai.ROUTES}

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        # curl reads its options from there: the status is printed, the answer goes into a file.
        (cls.directory / ".curlrc").write_text(f'silent\nshow-error\noutput = "{cls.directory}/answer"\nwrite-out = "%{{http_code}}"\n')
        cls.flags = ("--model-control-mode=explicit", "--load-model=simple_identity", "--load-model=square", FLAG, "--allow-http=true",
                     "--allow-grpc=true", "--metrics-on-http=true", "--dashboard", f"--trace-config=triton,file={directory.name}/trace.json", *test_sagemaker.port_flags(),
                     *test_vertex_ai.port_flags(), "--vertex-ai-default-model=simple_identity")
        super().setUpClass()
        test_sagemaker.find_port(cls.server)
        test_vertex_ai.find_port(cls.server)

    @staticmethod
    def models(repository):
        config = (EXAMPLES / "simple_identity/config.pbtxt").read_text()
        repository.model("simple_identity", config).model("spare", config).model("square", square())

    def setUp(self):
        (self.directory / "answer").write_bytes(b"")
        self.hash = "test_" + uuid.uuid4().hex

    def place_below_sagemaker(self):
        if not test_sagemaker.may_write():
            self.skipTest(f"{test_sagemaker.MODELS} cannot be made here")
        home = test_sagemaker.MODELS / self.hash
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        (home / "model/1").mkdir(parents=True)
        shutil.copy(EXAMPLES / "simple_identity/config.pbtxt", home / "model")

    def play(self, heading):
        if heading == "SageMaker":
            self.place_below_sagemaker()
        for command in SECTIONS[heading]:
            with self.subTest(command.text):
                text, answer_due = (re.sub(r"\bh1\b", self.hash, value or "").replace("conch_example", f"conch_{self.hash}")
                                    for value in (command.text, command.answer))
                for port, name in ((8000, "http"), (8002, "metrics"), (8080, "sagemaker"), (8081, "vertex")):
                    text = text.replace(f"localhost:{port}", self.server.address(name))
                done = subprocess.run(["bash", "-c", text], env={**os.environ, "CURL_HOME": str(self.directory)}, capture_output=True,
                                      text=True, timeout=30, check=True)
                answer = (self.directory / "answer").read_bytes()
                self.assertEqual(done.stdout, str(command.status), answer)
                if answer_due:
                    self.assertEqual(json.loads(answer), json.loads(answer_due))

    def test_no_endpoint_is_left_out(self):
        got = {asked(command) for commands in SECTIONS.values() for command in commands}
        self.assertEqual([row for row in ENDPOINTS if not any(re.fullmatch(row, entry) for entry in got)], [])
        self.assertEqual([entry for entry in got if not any(re.fullmatch(row, entry) for row in ENDPOINTS)], [], "unknown to this list")


for heading in SECTIONS:
    setattr(Endpoints, f"test_{re.sub('[^a-z]+', '_', heading.lower())}", lambda self, heading=heading: self.play(heading))


if __name__ == "__main__":
    unittest.main()
