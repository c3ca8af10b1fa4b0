"""`--log-format=json`: whatever the server logs is one object per line, whatever a client puts into it."""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import server as servers
from case import ServerCase, conch_only, needs_library
from repository import Repository, identity
from waiting import until

MEMBERS = ["time", "level", "pid", "file", "line", "request_id", "model", "message"]
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z")
# What tells lines, members and terminals apart.
HOSTILE = 'a"},\n{"level":"ERROR"}\r\u2028\x1b[31m\\'


class JsonLines(unittest.TestCase):
    def objects(self, lines):
        """Each line, parsed and checked."""
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                self.fail(f"no JSON: {line!r}")
            names = list(found[-1])
            self.assertEqual(names, [name for name in MEMBERS if name in names], line)
            self.assertRegex(found[-1]["time"], TIME)
            self.assertIn(found[-1]["level"], ("INFO", "WARNING", "ERROR", "VERBOSE"))
        return found


@conch_only
@needs_library("identity")
class Running(JsonLines, ServerCase):
    flags = ("--log-format=json", "--log-verbose=2", "--model-control-mode=explicit", "--load-model=identity")

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=4))
        repository.model("broken", "backend: \"identity\"\nmax_batch_size: -7\n")

    def told(self, accept):
        """The first object that is accepted, once it was written."""
        return until(lambda: next(filter(accept, self.objects(list(self.server.lines))), None), "a line")

    def test_the_start(self):
        messages = [each["message"] for each in self.objects(self.server.lines)]
        for wanted in ("successfully loaded 'identity'", "Started HTTPService at"):
            self.assertTrue(any(wanted in message for message in messages), wanted)
        # A table is one message of several lines.
        [table] = [message for message in messages if "| identity" in message and "READY" in message]
        self.assertGreater(table.count("\n"), 3)
        self.assertEqual({each["pid"] for each in self.objects(self.server.lines)}, {self.server.pid})

    def test_names_of_clients(self):
        request = {"id": HOSTILE, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        status, _, reply = self.infer(request, model="identity")
        self.assertEqual(status, 200, reply)
        self.assertEqual(self.told(lambda each: each.get("request_id") == HOSTILE and "model" in each)["model"], "identity")
        self.server.get("/v2/models/%22%0A%7B%7D/ready?%1b")
        self.server.post_json("/v2/repository/models/broken/load", {})
        self.assertEqual(self.told(lambda each: "'broken'" in each["message"])["level"], "ERROR")

    def test_long_ids_are_cut(self):
        request = {"id": "x" * 5000, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        self.assertEqual(self.infer(request, model="identity")[0], 200)
        line = self.told(lambda each: each.get("request_id", "").startswith("xxx"))
        self.assertRegex(line["request_id"], r"^x{768,1024}\.\.\.$")

    def test_the_format_changes_while_it_runs(self):
        try:
            for format in ("default", "json"):
                status, reply = self.server.post_json("/v2/logging", {"log_format": format})
                self.assertEqual((status, json.loads(reply)["log_format"]), (200, format))
                self.server.get(f"/mark/{format}")
                self.server.wait_for_text(f"/mark/{format}")
            [plain] = [line for line in self.server.lines if "/mark/default" in line]
            self.assertRegex(plain, r'^I\d{4} .*\] "')
            [written] = [line for line in self.server.lines if "/mark/json" in line]
            self.objects([written])
        finally:
            # Others of this class read all lines.
            self.server.lines[:] = [line for line in self.server.lines if line.startswith("{")]
        for format in ("JSON", "xml"):
            status, reply = self.server.post_json("/v2/logging", {"log_format": format})
            self.assertNotEqual(status, 200, reply)


@conch_only
@needs_library("identity")
class Starts(JsonLines):
    def test_a_start_that_fails(self):
        with Repository() as repository, self.assertRaises(servers.StartFailed) as raised:
            repository.model("broken", "backend: \"nowhere\"\n")
            servers.Server(repository, "--log-format=json", "--exit-on-error=true", "--http-thread-count=3", "--strict-model-config=true")
        lines = raised.exception.output.splitlines()
        levels = [each["level"] for each in self.objects(lines[-20:])]
        self.assertIn("ERROR", levels)

    def test_a_file(self):
        with tempfile.TemporaryDirectory() as folder, Repository().model("identity", identity()) as repository:
            path = pathlib.Path(folder, "log")
            command = [str(servers.built("conch")), f"--model-repository={repository.path}", f"--backend-directory={servers.backend_directory()}",
                       "--log-format=json", f"--log-file={path}", *(f"--{name}-port=0" for name in ("http", "grpc", "metrics")),
                       "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-thread-count=3"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                try:
                    until(lambda: path.exists() and "Started Metrics Service" in path.read_text(), "a log file")
                finally:
                    process.terminate()
                self.objects(process.stdout.read().splitlines())
                self.assertEqual(process.wait(30), 0)
            self.assertGreater(len(self.objects(path.read_text().splitlines())), 5)


if __name__ == "__main__":
    unittest.main()
