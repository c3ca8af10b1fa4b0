"""Warm-up: samples execute on every instance before the version is ready, and a sample that fails fails the load."""

import json
import struct
import threading
import unittest

from case import IS_TRITON, conch_only, needs_library
from probe import ProbeCase, probe
from repository import Repository
from test_control import EXPLICIT, Asking

INVALID = "load failed for model '{0}': version 1 is at UNAVAILABLE state: Invalid argument: {1};\n"
INTERNAL = "load failed for model '{0}': version 1 is at UNAVAILABLE state: Internal: {1};\n"
UNNAMED = "[request id: <id_unknown>] "


def sample(name, inputs, batch_size=1, count=0):
    body = "".join(f'inputs {{ key: "{key}" value {{ {value} }} }} ' for key, value in inputs.items())
    return f'model_warmup {{ name: "{name}" batch_size: {batch_size} count: {count} {body} }}\n'


def int32(source, dims=(4,), data_type="TYPE_INT32"):
    return f"data_type: {data_type} dims: [ {', '.join(map(str, dims))} ] {source}"


ZEROS = {"INPUT0": int32("zero_data: true")}


@needs_library("probe")
class WarmUp(Asking, ProbeCase):
    flags = (EXPLICIT, "--load-model=warm")

    @staticmethod
    def models(repository):
        group = 'instance_group [ { kind: KIND_CPU passive: true name: "p" } ]\n'
        repository.model("warm", probe(batch=4, count=2, extra=(
            sample("zeros", ZEROS, batch_size=3, count=2)
            + sample("skipped", {"INPUT0": int32("zero_data: true", dims=(-1,))}, batch_size=0, count=5)
            + sample("file", {"INPUT0": int32('input_data_file: "numbers"'),
                              "EXTRA": int32("random_data: true", dims=(1, 1))}))),
            files={"warmup/numbers": struct.pack("<5i", 1, 2, 3, 4, -5)})
        repository.model("guarded", probe(count=1, extra=group + sample("zeros", ZEROS, batch_size=1)))
        repository.model("failing", probe(batch=2, extra=(
            sample("good", ZEROS) + sample("bad", {"INPUT0": int32('input_data_file: "negative"')}, batch_size=2, count=9)
            + sample("never", ZEROS))), files={"warmup/negative": struct.pack("<4i", -1, 2, 3, 4)})
        control = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
        ready = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }'
        controls = {**ZEROS, "START": int32("zero_data: true", dims=(1,)), "READY": int32("zero_data: true", dims=(1,), data_type="TYPE_BOOL")}
        repository.model("sequence", probe(batch=4, rows=1, extra=(
            f"sequence_batching {{ direct {{ }} {control} {ready} }}\n" + sample("s", controls))))
        for name, inputs in REFUSED.items():
            repository.model(name, probe(batch=2, extra=sample("s", inputs)), files={"warmup/short": b"0123456"})

    def executions(self, model):
        """Per instance, in order: how many requests an execution had that has ended well; or `fail`."""
        found = {}
        for event in self.record.events("Execute"):
            if event.object.startswith(f"{model}:") and event.edge != "begin":
                found.setdefault(event.object, []).append(event.detail if event.edge == "end" else "fail")
        return found

    def test_controls_of_sequences_have_the_batch_dimension(self):
        self.assertEqual(self.load("sequence"), (200, ""))
        rows, = [json.loads(event.detail) for event in self.record.events("Rows")
                 if event.edge == "begin" and event.object.startswith("sequence:")]
        self.assertEqual([(row["START"][0], row["READY"][0]) for row in rows], [([1, 1], [1, 1])])

    def test_every_instance_executes_every_sample_before_it_serves(self):
        expected = ["requests=3", "requests=3", "requests=1"]
        self.assertEqual(list(self.executions("warm").values()), [expected, expected])
        threads = {event.object: event.thread for event in self.record.events("InstanceInitialize") if event.edge == "begin"}
        for event in self.record.events("Execute"):
            if event.object.startswith("warm:") and not IS_TRITON:
                self.assertEqual(event.thread, threads[event.object])
        # As upstream, what a backend reports of these requests counts.
        statistics = self.server.statistics("warm")
        self.assertEqual((statistics["inference_count"], statistics["execution_count"]), (14, 6))
        self.assertEqual(statistics["inference_stats"]["success"]["count"], 14)

    def test_passive_instances_stay_cold(self):
        self.assertEqual(self.load("guarded"), (200, ""))
        self.assertEqual(list(self.executions("guarded").values()), [["requests=1"]])
        passive = [event for event in self.record.events("InstanceFacts") if event.object.startswith("guarded:")]
        self.assertEqual(len({event.object for event in passive}), 2)

    @conch_only  # The real Triton (2.51) ends with a segmentation fault where Execute returns an error for a sample.
    def test_a_sample_that_fails_fails_the_load(self):
        ordered = "probe: ordered to fail; "
        self.assertEqual(self.load("failing"), (400, INVALID.format("failing", f"failed to run warmup sample 'bad': {ordered * 2}")))
        self.assertEqual(list(self.executions("failing").values()), [["requests=1", "fail"]])
        self.assertFalse(self.is_ready("failing"))
        self.assertIn(f"failing:1 Invalid argument: failed to run warmup sample 'bad': {ordered * 2}", self.index())

    def test_refusals(self):
        path = self.repository.path
        for name, expected in {
            "variable": INVALID.format("variable", "warmup setting expects all variable-size dimensions are specified for input 'INPUT0'"),
            "sourceless": INVALID.format("sourceless", f"{UNNAMED}warmup setting expects input 'INPUT0' to have input_data_type set"),
            "short": INVALID.format("short", f"{UNNAMED}warmup setting expects 16 bytes, but the data provided from shortonly has 7 bytes"),
            "fileless": INTERNAL.format("fileless", f"failed to open text file for read {path}/fileless/warmup/none: "),
            "typed": INVALID.format("typed", f"{UNNAMED}inference input 'INPUT0' data-type is 'FP32', but model 'typed' expects 'INT32'"),
            "shaped": INVALID.format("shaped", f"{UNNAMED}unexpected shape for input 'INPUT0' for model 'shaped'. Expected [-1,4], got [1,5]. "),
            "nameless": INVALID.format("nameless", f"{UNNAMED}expected 1 inputs but got 0 inputs for model 'nameless'. Got input(s) [], but "),
        }.items():
            status, error = self.load(name)
            with self.subTest(name):
                self.assertEqual(status, 400)
                # Longer ones go on with what the system says, or with advice.
                end = len(expected) - 2 if expected.endswith(" ;\n") else len(expected)
                self.assertEqual(error[:end], expected[:end])
                self.assertEqual(self.executions(name), {})

    def test_it_serves_while_another_version_warms_up(self):
        """A reload with a warm-up of its own: whoever asks meanwhile is answered by what was there."""
        with Repository() as scratch:
            scratch.model("slow", probe(batch=4, execute_ms=20))
            target = self.repository.path / "slow"
            (scratch.path / "slow").rename(target)
        self.assertEqual(self.load("slow"), (200, ""))
        before = len(self.record.events("Execute"))
        (target / "config.pbtxt").write_text(probe(batch=4, execute_ms=20, extra=sample("many", ZEROS, count=15)))
        outcome = []
        loader = threading.Thread(target=lambda: outcome.append(self.load("slow")))
        loader.start()
        answered = 0
        while loader.is_alive():
            body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
            status, _, reply = self.infer(body, model="slow")
            self.assertEqual(status, 200, reply)
            answered += 1
        loader.join()
        self.assertEqual(outcome, [(200, "")])
        self.assertGreater(answered, 0)
        self.assertGreaterEqual(len(self.record.events("Execute")) - before, 2 * 15)


REFUSED = {
    "variable": {"INPUT0": int32("zero_data: true", dims=(-1,))},
    "sourceless": {"INPUT0": int32("")},
    "short": {"INPUT0": int32('input_data_file: "short"')},
    "fileless": {"INPUT0": int32('input_data_file: "none"')},
    "typed": {"INPUT0": int32("zero_data: true", data_type="TYPE_FP32")},
    "shaped": {"INPUT0": int32("zero_data: true", dims=(5,))},
    "nameless": {"OTHER": int32("zero_data: true")},
}

if __name__ == "__main__":
    unittest.main()
