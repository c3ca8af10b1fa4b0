"""Short runs of perf/neighbour, perf/peers, perf/compare --models and perf/compare --gpu --engines: that they start, ask and tell. Their figures decide nothing
here."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import server as servers
from case import conch_only, needs_library, needs_peer

DOUBLES = [servers.built(f"libconch_testkit_{name}.so") for name in ("cuda", "onnxruntime")]
MAGIKA = servers.ROOT / "docs/examples/model_repository/magika/1/model.onnx"


class ComparisonCase(unittest.TestCase):
    def run_program(self, name, *arguments):
        """What it writes with --json."""
        with tempfile.TemporaryDirectory(prefix="conch-comparison-") as directory:
            figures = pathlib.Path(directory) / "figures"
            done = subprocess.run([sys.executable, str(servers.ROOT / "perf" / name), *arguments, f"--json={figures}"], capture_output=True, text=True,
                                  timeout=300, check=False, env={**os.environ, "CONCH_PROFILE": servers.PROFILE})
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            return json.loads(figures.read_text())


@conch_only
@needs_library("identity")
@needs_library("onnxruntime")
class Neighbours(ComparisonCase):
    @unittest.skipUnless(servers.built("load").exists(), "the load generator is not built")
    def test_a_small_model_beside_one_that_computes(self):
        told = self.run_program("neighbour", "--servers=conch", "--rounds=1", "--seconds=1", "--rate=100")
        self.assertGreater(told["slice_ms"], 0)
        windows = told["servers"]["conch"]["windows"]
        for what in ("alone", "beside"):
            [row] = windows[what]
            self.assertEqual(row["failed"], 0)
            self.assertGreater(row["requests"], 0)
            self.assertGreaterEqual(row["p99_us"], row["p50_us"])
        self.assertGreater(windows["beside"][0]["neighbour_per_second"], 0)


@conch_only
@needs_library("onnxruntime")
@unittest.skipUnless(MAGIKA.exists(), "magika is not there: run scripts/fetch-models")
class Comparisons(ComparisonCase):
    @unittest.skipUnless(shutil.which("wrk"), "wrk is not installed")
    def test_conch_among_the_peers(self):
        rows = self.run_program("peers", "--servers=conch", "--connections=2", "--seconds=1")["rows"]
        self.assertEqual([(row["server"], row["format"], row["failed"]) for row in rows], [("conch", "json", 0), ("conch", "binary", 0)])
        for row in rows:
            for key in ("requests", "p50_us", "p99_us", "cpu_us", "bytes", "start_s"):
                self.assertGreater(row[key], 0, (key, row))

    @unittest.skipUnless(servers.built("load").exists(), "the load generator is not built")
    @unittest.skipUnless(all(double.exists() for double in DOUBLES), "the doubles of the driver and of ONNX Runtime are not built")
    @unittest.skipUnless(shutil.which("cc"), "no compiler is there for the bare loop")
    def test_an_engine_beside_its_bare_loop(self):
        told = self.run_program("compare", "--gpu", "--engines", "--double", "--models=magika", "--batches=1,2", "--connections=2", "--seconds=2",
                                "--warm-up-seconds=0.1", "--bare-seconds=0.1")
        self.assertEqual([(row["batch"], row["way"], row["failed"]) for row in told["rows"]],
                         [(batch, way, 0) for batch in (1, 2) for way in ("http", "grpc", "http cuda")])
        self.assertEqual({(row["batch"], row["memory"], row["lanes"]) for row in told["bare"]},
                         {(batch, memory, lanes) for batch in (1, 2) for memory in ("host", "device") for lanes in (1, 2)})
        for row in (*told["rows"], *told["bare"]):
            for key in ("rows_per_second", "cpu_us"):
                self.assertGreater(row[key], 0, (key, row))
        self.assertIn("pytorch", told["left_out"])

    @needs_peer("triton")
    @unittest.skipUnless(servers.built("load").exists(), "the load generator is not built")
    def test_a_real_model_beside_triton(self):
        with tempfile.TemporaryDirectory(prefix="conch-comparison-") as directory:
            svg = pathlib.Path(directory) / "load.svg"
            told = self.run_program("compare", "--models", "--only=magika", "--rounds=1", "--seconds=1", "--peak-seconds=1", "--warm-up-seconds=0.1",
                                    f"--plot={svg}", "--plot-seconds=0.3")
            root = xml.etree.ElementTree.parse(svg).getroot()
        self.assertEqual([(row["model"], row["server"]) for row in told["rows"]], [("magika", "conch"), ("magika", "triton")])
        for row in told["rows"]:
            self.assertGreater(row["peak"], 0, row)
        curves = {curve.find("{*}title").text for curve in root.iter("{http://www.w3.org/2000/svg}polyline")}
        self.assertEqual(curves, {"conch p50", "conch p99", "triton p50", "triton p99"})


if __name__ == "__main__":
    unittest.main()
