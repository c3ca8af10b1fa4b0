"""perf_analyzer, unmodified, on an ensemble: its figures of each step, and of the whole, add up."""

import re
import subprocess
import unittest

import server as servers
from case import IS_TRITON, ServerCase, needs_library, needs_peer
from repository import identity
from test_ensembles import chain, ensemble

INPUT, OUTPUT = [("INPUT0", "FP32", (16,))], [("OUTPUT0", "FP32", (16,))]


def figures(text):
    """Counts and microseconds of one part of the report."""
    count = int(re.search(r"Successful request count: (\d+)", text)[1])
    line = re.search(r"Avg request latency: (\d+) usec \((.*)\)", text)
    parts = {name.strip(): int(value) for name, value in re.findall(r"([a-z ]+) (\d+) usec", line[2])}
    compute = sum(value for name, value in parts.items() if name.startswith("compute"))
    return {"count": count, "whole": int(line[1]), "overhead": parts["overhead"], "queue": parts["queue"], "compute": compute}


@needs_peer("perf_analyzer")
@needs_library("identity")
class PerfEnsemble(ServerCase):
    @staticmethod
    def models(repository):
        for name in "abc":
            repository.model(name, identity(INPUT, batch=8))
        repository.model("pipeline", ensemble(chain("a", "b", "c"), INPUT, OUTPUT, batch=8))

    def check(self, protocol, mode, concurrency):
        done = subprocess.run(
            [str(servers.PEERS / "perf_analyzer"), "-m", "pipeline", "-i", protocol, "-u", self.server.address(protocol), f"--{mode}",
             "--concurrency-range", str(concurrency), "--measurement-mode", "count_windows", "--measurement-request-count", "200",
             "--stability-percentage", "999", "--max-trials", "5", "-v"], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertNotIn("failed", done.stdout.lower())
        head, _, rest = done.stdout.partition("Composing models:")
        whole = figures(head[head.index("Server:"):])
        steps = {name: figures(text) for name, text in re.findall(r"\n  ([a-c]), version: 1\n(.*?)(?=\n\n)", rest, re.DOTALL)}
        self.assertEqual(sorted(steps), ["a", "b", "c"], done.stdout)
        for name, one in {"pipeline": whole, **steps}.items():
            # Upstream's steps count time in their queues that its ensemble does not: it has 0 of overhead where they are more than the whole.
            if IS_TRITON and name == "pipeline" and one["overhead"] == 0:
                continue
            # Each is an average that was rounded down.
            self.assertAlmostEqual(one["whole"], one["overhead"] + one["queue"] + one["compute"], delta=0.05 * one["whole"] + 6, msg=(name, one))
            self.assertAlmostEqual(one["count"], whole["count"], delta=2 * concurrency, msg=name)
        # It asks for one model's figures after the other's: a slow request may be in some of them only.
        for part in ("queue", "compute"):
            self.assertAlmostEqual(whole[part], sum(one[part] for one in steps.values()), delta=0.2 * whole["whole"] + 6, msg=(part, whole, steps))
        self.assertGreater(whole["whole"], sum(one["whole"] for one in steps.values()) * 0.8 - 6)

    def test_http(self):
        self.check("http", "sync", 2)

    def test_grpc(self):
        self.check("grpc", "async", 8)


if __name__ == "__main__":
    unittest.main()
