"""Upstream's perf_analyzer, unmodified, in each of its modes, and the way Model Analyzer drives it: what it reports of the server is what the
server counted, to the request where a run has a set number of requests. The same runs are tried with the real Triton."""

import csv
import itertools
import json
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import server as servers
from case import IS_TRITON, ServerCase, needs_library, needs_peer
from region import FLAG, listed
from repository import identity
from test_stream import square
from waiting import until_equal

REQUESTS = 1000
COUNTED = f"--request-count={REQUESTS}"
# Short windows that are never too unsteady.
WINDOWS = ("--measurement-interval=300", "--stability-percentage=999", "--max-trials=8")
VALUES = [index / 2 for index in range(16)]
PARTS = re.compile(r"Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec"
                   r" \+ compute infer (\d+) usec \+ compute output (\d+) usec\)")
WORDS = ["", "a b", "words of some length", "\u00e4\u20ac"]


def models(repository):
    repository.model("identity", identity([("INPUT0", "FP32", (16,))], batch=8))
    repository.model("words", identity([("INPUT0", "STRING", (4,))], batch=8))
    repository.model("square", square())


class Report:
    """What one run printed: a section for each load, with what the client and the server counted in it."""

    def __init__(self, printed, rows):
        self.printed = printed
        # The lines of the summary, which begin alike, go on behind the figure.
        sections = re.split(r"^Request (?:concurrency|Rate): (?=[0-9.]+(?: inference requests per seconds)?$)", printed, flags=re.MULTILINE)[1:]
        by_load = {float(row.get("Concurrency") or row["Request Rate"]): row for row in rows}
        self.loads = [float(re.match(r"[0-9.]+", section)[0]) for section in sections]
        if not sections:  # a run by given intervals has no heading
            sections, self.loads = [printed], list(by_load)
        # The rows of the table are ordered by throughput.
        self.rows = [by_load[load] for load in self.loads]
        self.sections = [{name: float(value) for name, value in re.findall(r"^ +([A-Z][A-Za-z ]+): ([0-9.]+)(?: |$)", section, re.MULTILINE)}
                         for section in sections]
        self.parts = [[int(value) for value in PARTS.search(section).groups()] for section in sections]


class Analyzing(ServerCase):
    """Runs it, and compares."""

    flags = () if IS_TRITON else (FLAG,)
    models = staticmethod(models)

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def figures(self, model):
        """(requests, inferences, executions) that the server counted."""
        row = self.server.statistics(model)
        self.assertEqual(row["inference_stats"]["fail"]["count"], 0)
        return row["inference_stats"]["success"]["count"], row["inference_count"], row["execution_count"]

    def analyze(self, *words, model="identity", protocol="http"):
        """Runs it: what it reports, and how much the server's counts grew."""
        report = self.directory / "report.csv"
        command = [str(servers.PEERS / "perf_analyzer"), "-m", model, "-i", protocol, "-u", self.server.address(protocol),
                   "-f", str(report), "--verbose-csv", *words]
        before, done = self.run_to_its_end(command, model, COUNTED in words)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertNotIn("failed", done.stdout.lower())
        with report.open() as file:
            return Report(done.stdout, list(csv.DictReader(file))), [new - old for new, old in zip(self.figures(model), before)]

    def run_to_its_end(self, command, model, is_counted):
        """What the server had counted before, and the outcome. A run of so many requests may wait for ever, with all of them answered and all of its
        threads gone: it has sent them before it begins to count. Then it runs again."""
        for attempt in range(4):
            before = self.figures(model)
            try:
                return before, subprocess.run(command, capture_output=True, text=True, timeout=40 if is_counted else 120, check=False)
            except subprocess.TimeoutExpired:
                if not is_counted or attempt == 3 or self.figures(model)[0] - before[0] != REQUESTS:
                    raise
        raise AssertionError("unreachable")

    def assert_adds_up(self, report, grown, load, batch=1):
        """What it shows of the server goes together, and with what the server counted."""
        self.assertGreater(len(report.sections), 0)
        for row, section, parts in zip(report.rows, report.sections, report.parts):
            self.assertGreater(section["Request count"], 0)
            self.assertGreater(float(row["Inferences/Second"]), 0)
            self.assertGreater(section["Successful request count"], 0)
            # The real Triton may be asked in the middle of a count.
            self.assertAlmostEqual(section["Inference count"], section["Successful request count"] * batch, delta=(load + 2) * batch)
            self.assertTrue(0 < section["Execution count"] <= section["Successful request count"] + load + 2)
            self.assertAlmostEqual(parts[0], sum(parts[1:]), delta=5)
            self.assertEqual([int(row[f"Server {name}"]) for name in ("Queue", "Compute Input", "Compute Infer", "Compute Output")], parts[2:])
        self.assertLessEqual(sum(section["Successful request count"] for section in report.sections), grown[0])

    def assert_same_windows(self, report, load):
        """Client and server count the same, but for what is sent between the moments in which it asks the server and those in which its
        window begins and ends."""
        for section in report.sections:
            self.assertAlmostEqual(section["Successful request count"], section["Request count"],
                                   delta=2 * load + 2 + section["Request count"] / 4)

    def check(self, *words, batch=1, **more):
        """A run of so many requests: exactly these were sent, answered and counted by the server. (What it shows as the server's lacks the
        first ones: it sends them while it asks for the figures that it begins with.)"""
        report, grown = self.analyze(*words, COUNTED, "-b", str(batch), **more)
        self.assertEqual(grown[:2], [REQUESTS, REQUESTS * batch])
        section, = report.sections
        self.assertEqual(section["Request count"], REQUESTS)
        if "Response Throughput" not in section:  # else its client measures up to the first response
            # What the server spent lies within what the client waited.
            spent = report.parts[0][0] * section["Successful request count"]
            self.assertLessEqual(spent, (section["Avg latency"] + 1) * REQUESTS)
        self.assert_adds_up(report, grown, 0, batch)
        return report


@needs_peer("perf_analyzer")
@needs_library("square")
class Modes(Analyzing):
    def write(self, name, content):
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def test_sync_and_async(self):
        for protocol, mode, concurrency in itertools.product(("http", "grpc"), ("--sync", "--async"), (1, 8)):
            with self.subTest(f"{protocol} {mode} {concurrency}"):
                report = self.check(mode, "--concurrency-range", str(concurrency), protocol=protocol)
                self.assertEqual(report.loads, [concurrency])

    def test_batches(self):
        for protocol in ("http", "grpc"):
            self.check("--concurrency-range=4", batch=8, protocol=protocol)

    def test_compressed(self):
        for algorithm in ("gzip", "deflate"):
            self.check("--grpc-compression-algorithm", algorithm, protocol="grpc")

    def test_json(self):
        """Tensors in JSON, there and back."""
        self.check("--input-tensor-format=json", "--output-tensor-format=json")

    def test_shared_memory(self):
        for protocol, more in (("http", ()), ("grpc", ()), ("grpc", ("--async", "--streaming")), ("http", ("--async",))):
            with self.subTest(f"{protocol} {more}"):
                self.check("--shared-memory=system", "--output-shared-memory-size=1024", "--concurrency-range=4", *more, batch=2,
                           protocol=protocol)
                self.assertEqual(listed(self.server), [], "it unregisters what it registered")
        self.check("--shared-memory=system", "--output-shared-memory-size=2048", "--string-data=some", model="words", protocol="grpc")

    def test_streaming_of_a_decoupled_model(self):
        data = self.write("data.json", {"data": [{"IN": [4]}]})
        for concurrency in (1, 4):
            report = self.check("--streaming", "--async", "--input-data", str(data), "--concurrency-range", str(concurrency),
                                model="square", protocol="grpc")
            section, = report.sections
            self.assertAlmostEqual(section["Response Throughput"] / section["Throughput"], 4, delta=0.01)

    def test_streaming_of_a_one_to_one_model(self):
        self.check("--streaming", "--async", "--concurrency-range=4", protocol="grpc")

    def test_request_rates(self):
        for protocol, kind in itertools.product(("http", "grpc"), ("constant", "poisson")):
            with self.subTest(f"{protocol} {kind}"):
                report, grown = self.analyze("--request-rate-range=100:300:200", f"--request-distribution={kind}", *WINDOWS, protocol=protocol)
                self.assertEqual(report.loads, [100, 300])
                self.assert_adds_up(report, grown, 4)
                self.assert_same_windows(report, 4)
                for section in report.sections:  # the pace is the client's, and the machine's
                    self.assertGreater(section["Throughput"], 0)

    def test_request_intervals(self):
        intervals = self.write("intervals", b"5000\n")
        report, grown = self.analyze("--request-intervals", str(intervals), *WINDOWS)
        self.assert_adds_up(report, grown, 4)
        self.assert_same_windows(report, 4)
        self.assertGreater(report.sections[0]["Throughput"], 0)

    def test_binary_search(self):
        """The limit on latency is met throughout: both ends are measured, and the upper one is the answer."""
        for protocol in ("http", "grpc"):
            report, grown = self.analyze("--concurrency-range=1:8:2", "--binary-search", "--latency-threshold=1000", *WINDOWS, protocol=protocol)
            self.assertEqual((report.loads[0], report.loads[-1]), (1, 8))
            self.assert_adds_up(report, grown, 8)
            self.assert_same_windows(report, 8)
        report, grown = self.analyze("--request-rate-range=50:250:50", "--binary-search", "--latency-threshold=1000", *WINDOWS)
        self.assertEqual((report.loads[0], report.loads[-1]), (50, 250))
        self.assert_adds_up(report, grown, 4)
        self.assert_same_windows(report, 4)

    def test_metrics(self):
        """It reads the metrics page beside the load; the figures that it looks for are those of GPUs, and there is none here."""
        for protocol in ("http", "grpc"):
            report, grown = self.analyze("--collect-metrics", "--metrics-url", self.server.address("metrics") + "/metrics",
                                         "--metrics-interval=50", *WINDOWS, protocol=protocol)
            self.assert_adds_up(report, grown, 1)
            self.assert_same_windows(report, 1)
            self.assertIn("Server Prometheus Metrics", report.printed)
            self.assertIn("Avg GPU Utilization", report.rows[0])
        self.assertEqual(self.server.metrics()['nv_inference_request_success{model="identity",version="1"}'], self.figures("identity")[0])

    def test_input_of_a_file(self):
        """It compares the outputs with those that the file expects."""
        swapped = VALUES[::-1]
        data = {"data": [{"INPUT0": VALUES}, {"INPUT0": {"content": swapped, "shape": [16]}}],
                "validation_data": [{"OUTPUT0": VALUES}, {"OUTPUT0": swapped}]}
        path = self.write("data.json", data)
        for protocol in ("http", "grpc"):
            self.check("--input-data", str(path), "--concurrency-range=2", protocol=protocol)
        data["validation_data"][1]["OUTPUT0"] = VALUES
        path = self.write("wrong.json", data)
        with self.assertRaisesRegex(AssertionError, "Output doesn't match expected output"):
            self.check("--input-data", str(path), "--concurrency-range=2")

    def test_input_of_a_directory(self):
        self.write("inputs/INPUT0", struct.pack("<16f", *VALUES))
        for protocol in ("http", "grpc"):
            self.check("--input-data", str(self.directory / "inputs"), protocol=protocol)

    def test_strings(self):
        self.write("inputs/INPUT0", "\n".join(WORDS).encode() + b"\n")
        # Bytes are compared as a backend has them, each string behind its length: the file says what comes back.
        file = self.write("words.json", {"data": [{"INPUT0": WORDS}]})
        for protocol in ("http", "grpc"):
            for more in (("--string-length=40",), ("--string-data=hello",), ("--input-data", str(file)),
                         ("--input-data", str(self.directory / "inputs"))):
                with self.subTest(f"{protocol} {more[0]}"):
                    self.check(*more, "--concurrency-range=2", model="words", protocol=protocol)

    def test_exported_requests(self):
        """The profile that Model Analyzer and GenAI-Perf read: each request with its times and contents."""
        path = self.write("data.json", {"data": [{"INPUT0": VALUES}]})
        for protocol in ("http", "grpc"):
            export = self.directory / f"{protocol}.json"
            self.check("--input-data", str(path), "--profile-export-file", str(export), protocol=protocol)
            experiment, = json.loads(export.read_text())["experiments"]
            self.assertEqual(len(experiment["requests"]), REQUESTS)
            for row in experiment["requests"]:
                answered, = row["response_timestamps"]
                self.assertGreater(answered, row["timestamp"])

    def test_trace_settings(self):
        """It sets them before it begins."""
        self.check("--trace-level=OFF", "--trace-rate=10", "--trace-count=5", "--log-frequency=3")
        shown = self.server.get_json("/v2/models/identity/trace/setting")
        self.assertEqual([shown[name] for name in ("trace_rate", "trace_count", "log_frequency")], ["10", "5", "3"])


@needs_peer("perf_analyzer")
@needs_library("identity")
class ModelAnalyzer(Analyzing):
    """What Model Analyzer does with a remote server: load a variant of a model, wait for it, measure it, unload it, and so on."""

    flags = ("--model-control-mode=explicit",)

    @staticmethod
    def variant(count, batch, is_dynamic):
        config = {"name": "identity", "backend": "identity", "max_batch_size": batch,
                  "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [16]}],
                  "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [16]}],
                  "instance_group": [{"count": count, "kind": "KIND_CPU"}]}
        return config | ({"dynamic_batching": {}} if is_dynamic else {})

    def wait_until(self, client, is_ready):
        until_equal(lambda: client.is_model_ready("identity"), is_ready, "the readiness")

    def loop(self, client, protocol):
        for count, batch, is_dynamic in ((1, 1, False), (2, 4, True), (1, 8, True), (2, 8, False)):
            with self.subTest(f"{protocol} {count} {batch} {is_dynamic}"):
                client.load_model("identity", config=json.dumps(self.variant(count, batch, is_dynamic)))
                self.wait_until(client, True)
                shown = self.server.get_json("/v2/models/identity/config")
                self.assertEqual((shown["max_batch_size"], shown["instance_group"][0]["count"], "dynamic_batching" in shown),
                                 (batch, count, is_dynamic))
                # A model that was loaded anew counts from the beginning.
                self.assertEqual(self.figures("identity"), (0, 0, 0))
                self.check("--concurrency-range=4", batch=batch, protocol=protocol)
                self.assertIn("nv_cpu_utilization", self.server.get("/metrics", port="metrics")[1].decode())
                client.unload_model("identity", unload_dependents=True)
                until_equal(lambda: [row for row in client_index(client) if row.get("state") in ("READY", "UNLOADING")], [], "models that are left")

    def test_over_http(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            self.loop(client, "http")
        self.assertTrue(self.server.is_alive())

    def test_over_grpc(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            self.loop(client, "grpc")
        self.assertTrue(self.server.is_alive())

    def test_nothing_stays_behind(self):
        """Threads and open files after many rounds are those after one."""
        with httpclient.InferenceServerClient(self.server.http) as client:
            held = []
            for _ in range(3):
                self.loop(client, "http")
                held.append((self.server.file_count(), len(self.server.threads().splitlines())))
        self.assertLessEqual(held[-1][0], held[0][0] + 2, held)
        self.assertLessEqual(held[-1][1], held[0][1] + 2, held)


def client_index(client):
    index = client.get_model_repository_index() if isinstance(client, httpclient.InferenceServerClient) else (
        client.get_model_repository_index(as_json=True)["models"])
    return [row for row in index if row["name"] == "identity"]


if __name__ == "__main__":
    unittest.main()
