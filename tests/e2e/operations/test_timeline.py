"""perf/timeline on the double of the driver: what its traces say of batches in flight and of batches one at a time."""

import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import cuda
import server as servers
from case import conch_only, needs_library

PROGRAM = servers.ROOT / "perf/timeline"


@conch_only
@needs_library("gpu_elementwise")
@unittest.skipIf(cuda.IS_REAL, "counts on the double, which overlaps for sure")
@unittest.skipUnless(servers.built("load").exists(), "the load generator is not built")
class Timeline(unittest.TestCase):
    def test_batches_in_flight_overlap_and_blocking_ones_do_not(self):
        with tempfile.TemporaryDirectory(prefix="conch-timeline-") as directory:
            place = pathlib.Path(directory)
            done = subprocess.run([sys.executable, str(PROGRAM), "--double", "--in-flight=4", "--seconds=1", f"--svg={place}",
                                   f"--json={place / 'rows.json'}"], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows = {(row["memory"], row["instance"]): row for row in json.loads((place / "rows.json").read_text())["rows"]}
            drawings = {path.name: xml.etree.ElementTree.parse(path).getroot() for path in place.glob("*.svg")}
        self.assertEqual(set(rows), set(itertools.product(("host", "cuda"), ("in flight", "blocking"))))
        self.assertEqual([row["failed"] for row in rows.values()], [0] * 4)
        # What overlaps is the order of work, not its speed.
        for memory in ("host", "cuda"):
            self.assertGreater(rows[memory, "in flight"]["overlap"], 0)
            self.assertEqual(rows[memory, "blocking"]["overlap"], 0)
        self.assertEqual(set(drawings), {f"{memory}-{kind}-4.svg" for memory in ("host", "cuda") for kind in ("in-flight", "blocking")})
        for name, root in drawings.items():
            bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("class", "").startswith("stage")]
            self.assertGreater(len(bars), 3 + 3 * 2, f"{name} has bars of several batches beside the legend")


if __name__ == "__main__":
    unittest.main()
