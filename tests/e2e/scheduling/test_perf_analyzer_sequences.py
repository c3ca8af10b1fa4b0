"""Upstream's perf_analyzer, unmodified, with sequences: it finds by the configuration that a model has them, and its figures add up."""

import csv
import pathlib
import subprocess
import tempfile

import server as servers
from case import ServerCase, needs_peer
from repository import identity


@needs_peer("perf_analyzer")
class Sequences(ServerCase):
    @staticmethod
    def models(repository):
        for name, strategy in (("direct", "direct { }"), ("oldest", "oldest { max_candidate_sequences: 8 preferred_batch_size: [ 2, 4 ] }")):
            controls = "".join(
                f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }} }}\n'
                for kind in ("START", "END", "READY"))
            repository.model(name, identity([("INPUT0", "FP32", (16,))], batch=4, count=2,
                                            extra=f"sequence_batching {{ {strategy} {controls} }}\n"))

    def check(self, model, protocol, *arguments):
        with tempfile.TemporaryDirectory() as directory:
            report = pathlib.Path(directory) / "report.csv"
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", model, "-i", protocol, "-u", self.server.address(protocol),
                 "--sequence-length", "5", "--measurement-mode", "count_windows", "--measurement-request-count", "100",
                 "--stability-percentage", "999", "--max-trials", "4", "-f", str(report), "--verbose-csv", *arguments],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            with report.open() as file:
                row, = csv.DictReader(file)
        self.assertGreater(float(row["Inferences/Second"]), 0)
        self.assertGreater(sum(float(row[f"Server {name}"]) for name in ("Queue", "Compute Input", "Compute Infer", "Compute Output")), 0)
        self.assertNotIn("failed", done.stdout.lower())
        self.assertRegex(done.stdout, r"Sequence count: \d+")
        # It ends every sequence that it starts, and every request was answered well.
        counts = self.server.get_json(f"/v2/models/{model}/stats")["model_stats"][0]["inference_stats"]
        self.assertEqual(counts["fail"]["count"], 0)
        self.assertGreater(counts["success"]["count"], 100)

    def test_a_rate_of_requests_over_four_sequences(self):
        for model in ("direct", "oldest"):
            for protocol in ("http", "grpc"):
                with self.subTest(model=model, protocol=protocol):
                    # One request of a sequence at a time: over several connections of HTTP, the next might overtake it.
                    self.check(model, protocol, "--request-rate-range", "400", "--num-of-sequences", "4", "--serial-sequences")

    def test_sixteen_at_a_time_on_eight_slots(self):
        self.check("direct", "grpc", "--concurrency-range", "16", "--async", "--streaming")
        self.check("direct", "http", "--concurrency-range", "16", "--sync")
        self.check("oldest", "grpc", "--concurrency-range", "16", "--async", "--streaming", "--sequence-id-range", "1000:2000")
