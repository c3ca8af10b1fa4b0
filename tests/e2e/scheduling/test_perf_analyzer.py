"""Upstream's perf_analyzer, unmodified: HTTP and gRPC, sync and async, one and sixteen at a time; its server-side figures add up."""

import csv
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import server as servers
from case import ServerCase, conch_only, needs_peer
from repository import Repository, identity


@needs_peer("perf_analyzer")
class PerfAnalyzer(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("identity", identity([("INPUT0", "FP32", (16,))], batch=8))

    def check(self, protocol, mode, concurrency):
        with tempfile.TemporaryDirectory() as directory:
            report = pathlib.Path(directory) / "report.csv"
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", "identity", "-i", protocol,
                 "-u", self.server.address("http" if protocol == "http" else "grpc"), f"--{mode}",
                 "--concurrency-range", str(concurrency), "--measurement-mode", "count_windows",
                 "--measurement-request-count", "200", "--stability-percentage", "999", "--max-trials", "5", "-f", str(report),
                 "--verbose-csv"], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            with report.open() as file:
                row, = csv.DictReader(file)
        self.assertEqual(int(row["Concurrency"]), concurrency)
        self.assertGreater(float(row["Inferences/Second"]), 0)
        parts = sum(float(row[f"Server {name}"]) for name in ("Queue", "Compute Input", "Compute Infer", "Compute Output"))
        self.assertGreater(parts, 0)
        # What the server says it spent lies within what the client saw.
        client = float(row["Avg latency"]) if "Avg latency" in row else float(row["p50 latency"]) * 2
        self.assertLessEqual(parts, client)
        self.assertNotIn("failed", done.stdout.lower())
        return done.stdout


for protocol in ("http", "grpc"):
    for mode in ("sync", "async"):
        for concurrency in (1, 16):
            setattr(PerfAnalyzer, f"test_{protocol}_{mode}_{concurrency}",
                    lambda self, entry=(protocol, mode, concurrency): self.check(*entry))


@conch_only
@needs_peer("perf_analyzer")
@unittest.skipUnless(servers.built("libtritonserver.so").exists(), f"libtritonserver.so is not built in profile {servers.PROFILE}")
class InProcess(unittest.TestCase):
    """It opens our library RTLD_LOCAL and drives the server through the C API, with an allocator of its own."""

    def check(self, concurrency, batch):
        with tempfile.TemporaryDirectory() as directory, Repository() as repository:
            install = pathlib.Path(directory)
            # Laid out as an installation of Triton is.
            for name in ("lib", "repoagents"):
                (install / name).mkdir()
            shutil.copyfile(servers.built("libtritonserver.so"), install / "lib/libtritonserver.so")
            (install / "backends").symlink_to(servers.backend_directory())
            repository.model("identity", identity([("INPUT0", "FP32", (16,))], batch=8))
            report = install / "report.csv"
            # Short windows: its own evaluation takes a time that is quadratic in the requests of one, 20 to 120 s for 250 ms.
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", "identity", "--service-kind=triton_c_api",
                 f"--triton-server-directory={install}", f"--model-repository={repository}", "-b", str(batch),
                 "--concurrency-range", str(concurrency), "--measurement-interval", "100", "--stability-percentage", "999",
                 "--max-trials", "6", "-f", str(report), "--verbose-csv"], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            with report.open() as file:
                row, = csv.DictReader(file)
        self.assertEqual(int(row["Concurrency"]), concurrency)
        self.assertGreater(float(row["Inferences/Second"]), 0)
        # The statistics that it read from the library.
        self.assertGreater(float(row["Server Queue"]), 0)
        self.assertIn("Successful request count", done.stdout)
        self.assertNotIn("failed", done.stdout.lower())

    def test_one(self):
        self.check(1, 1)

    def test_sixteen_of_eight(self):
        self.check(16, 8)


if __name__ == "__main__":
    unittest.main()
