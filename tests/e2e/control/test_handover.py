"""Sequences that are under way while their model is loaded anew, or while its instances come and go: none is lost, and none mixed up. The
probe adds what it gets to an implicit state, so each answer is the sum of all that its sequence has sent."""

import threading
import unittest

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from case import conch_only, needs_library
from test_control import EXPLICIT, Asking
from test_sequences import IDLE, NUMBERS, OPEN, WAIT, ZEROS, Sequences, told
from waiting import until

STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 8 }"}
POLLED = "--model-control-mode=poll"
MISSING = "must specify the START flag on the first request of the sequence"


class Handover(Asking, Sequences):
    def ends(self, call, model):
        return sum(event.edge == "end" and event.object.startswith(f"{model}:") for event in self.record.events(call))

    def wait_for_ends(self, call, model, count):
        until(lambda: self.ends(call, model) == count, lambda: f"{self.ends(call, model)} of {count} {call}")

    def touch(self, model):
        self.touched = getattr(self, "touched", 0) + 1
        self.repository.model(model, None, files={f"1/file-{self.touched}": b""})

    def reload(self, model):
        self.touch(model)
        self.assertEqual(self.load(model), (200, ""))

    def lost(self, model, sequence):
        self.assertIn(MISSING, self.refused(model, sequence).message())

    def speak(self, model, sequences, is_over, finished, failures):
        """Sequence after sequence, each of five requests, until it is enough."""
        client = grpcclient.InferenceServerClient(self.server.grpc)
        turn = 0
        try:
            while not is_over.is_set():
                sequence, total = sequences[turn % len(sequences)], 0
                for step in range(5):
                    value = turn % 7 + step
                    total += value
                    result = client.infer(model, self.tensor(value), sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 4)
                    if result.as_numpy("OUTPUT0")[0].tolist() != [total] * 4:
                        failures.append((sequence, step, result.as_numpy("OUTPUT0")[0].tolist(), total))
                turn += 1
                finished[sequences[0]] = turn
        except InferenceServerException as error:
            failures.append((sequences, str(error)))
        finally:
            client.close()

    def among_speakers(self, model, changes):
        """Makes changes while eight speakers are under way, each after all have begun anew."""
        is_over, finished, failures = threading.Event(), {}, []
        speakers = []
        for index in range(8):
            sequences = [100 * (index + 1) + more for more in range(3)]
            finished[sequences[0]] = 0
            speakers.append(threading.Thread(target=self.speak, args=(model, sequences, is_over, finished, failures)))
        for speaker in speakers:
            speaker.start()
        try:
            for change in changes:
                seen = dict(finished)
                until(lambda: failures or all(finished[name] >= seen[name] + 2 for name in seen), lambda: (seen, finished), WAIT)
                change()
        finally:
            is_over.set()
            for speaker in speakers:
                speaker.join()
        self.assertEqual(failures, [])
        return sum(finished.values())


@conch_only  # Upstream loses sequences when a model is loaded anew.
@needs_library("probe")
class Reloads(Handover):
    @classmethod
    def models(cls, repository):
        cls.flags = (*cls.flags, EXPLICIT)
        for name, strategy in STRATEGIES.items():
            repository.model(name, cls.batching(name, f"{strategy} {NUMBERS} {IDLE} {ZEROS}", batch=4, count=2))
        repository.model("story", cls.batching("story", f"direct {{ }} {NUMBERS} {IDLE} {ZEROS}", batch=2))
        repository.model("brief", cls.batching("brief", f"direct {{ }} {ZEROS} max_sequence_idle_microseconds: 100000", batch=1, count=2))
        repository.model("waiting", cls.batching("waiting", f"direct {{ }} {NUMBERS} {IDLE} {ZEROS}", batch=1))
        repository.model("kind", cls.batching("kind", f"direct {{ }} {NUMBERS} {IDLE} {ZEROS}", batch=1))
        repository.model("rounds", cls.batching("rounds", f"oldest {{ }} iterative_sequence: true {ZEROS} {IDLE}", batch=2, iterates=1)
                         + "model_transaction_policy { decoupled: true }\n")

    def test_speakers_do_not_notice(self):
        for model in STRATEGIES:
            with self.subTest(model):
                self.assertEqual(self.load(model), (200, ""))
                count = self.among_speakers(model, [lambda: self.reload(model)] * 12)
                self.assertGreater(count, 8 * 12)
                self.wait_for_ends("ModelFinalize", model, 12)
                self.assertEqual(self.ends("ModelInitialize", model), 13)
                self.assertEqual(self.index().count(f"{model}:1 READY"), 1)

    def test_who_goes_where(self):
        self.assertEqual(self.load("story"), (200, ""))
        self.assertEqual(self.infer("story", 1, "<", 5), [5] * 4)
        self.assertEqual(self.infer("story", 2, "<", 7), [7] * 4)
        self.reload("story")
        self.assertEqual(self.infer("story", 1, "", 1), [6] * 4)
        self.assertEqual(self.infer("story", 3, "<", 100), [100] * 4)
        # Anew under the same name: elsewhere, from nothing.
        self.assertEqual(self.infer("story", 2, "<", 2), [2] * 4)
        self.reload("story")
        for sequence, total in ((1, 7), (2, 3), (3, 101)):
            self.assertEqual(self.infer("story", sequence, "", 1), [total] * 4)
        self.assertEqual(self.ends("ModelFinalize", "story"), 0)
        self.assertEqual(self.infer("story", 1, ">", 1), [8] * 4)
        self.wait_for_ends("ModelFinalize", "story", 1)
        self.lost("story", 1)
        for sequence, total in ((2, 4), (3, 102)):
            self.assertEqual(self.infer("story", sequence, ">", 1), [total] * 4)
        self.wait_for_ends("ModelFinalize", "story", 2)
        # An unload waits for nobody.
        self.infer("story", 4, "<")
        self.reload("story")
        self.assertEqual(self.unload("story"), (200, ""))
        self.wait_for_ends("ModelFinalize", "story", 4)

    def test_who_falls_silent_keeps_nothing(self):
        self.assertEqual(self.load("brief"), (200, ""))
        for sequence in (1, 2):
            self.infer("brief", sequence, "<")
        self.reload("brief")
        self.wait_for_ends("ModelFinalize", "brief", 1)
        self.lost("brief", 1)

    def test_what_waits_is_executed_in_its_order(self):
        self.assertEqual(self.load("waiting"), (200, ""))
        self.gate("waiting", 0)
        self.send("waiting", 1, "<", 1)
        self.wait_for_executions("waiting", 1)
        # One waits for its turn, another for a slot.
        for sequence, marks, value in ((1, "", 2), (2, "<", 10)):
            self.send("waiting", sequence, marks, value)
        self.server.wait_for_pending("waiting", 2)
        self.reload("waiting")
        for sequence, marks, value in ((2, "", 20), (1, ">", 3), (2, ">", 30)):
            self.send("waiting", sequence, marks, value)
        self.gate("waiting", OPEN)
        sums = [self.answer().as_numpy("OUTPUT0")[0].tolist()[0] for _ in range(6)]
        self.assertEqual(sorted(sums), [1, 3, 6, 10, 30, 60])
        order = [told(rows) for _, rows in self.executions("waiting")]
        self.assertEqual(order, ["1<", "1", "1>", "2<", "2", "2>"])
        self.wait_for_ends("ModelFinalize", "waiting", 1)

    def test_what_runs_in_rounds_runs_on(self):
        self.assertEqual(self.load("rounds"), (200, ""))
        before = len(self.executions("rounds"))
        self.gate("rounds", before)
        self.rpc.async_stream_infer("rounds", self.tensor(4), request_id="long")
        self.wait_for_executions("rounds", before + 1)
        self.reload("rounds")
        self.gate("rounds", OPEN)
        tokens = [int(self.answer().as_numpy("OUTPUT0")[0][0]) for _ in range(4)]
        self.assertEqual(tokens, [1, 2, 3, 4])
        self.wait_for_ends("ModelFinalize", "rounds", 1)

    def test_another_kind_of_model_is_no_heir(self):
        self.assertEqual(self.load("kind"), (200, ""))
        self.infer("kind", 1, "<", 1)
        text = (self.repository.path / "kind" / "config.pbtxt").read_text()
        self.repository.model("kind", text.replace("max_sequence_idle_microseconds: 15000000", "max_sequence_idle_microseconds: 15000001")
                              + "model_transaction_policy { decoupled: true }\n")
        self.assertEqual(self.load("kind"), (200, ""))
        self.wait_for_ends("ModelFinalize", "kind", 1)
        self.rpc.async_stream_infer("kind", self.tensor(1), sequence_id=1)
        self.assertIn(MISSING, self.answers.get(timeout=WAIT)[1].message())


@conch_only
@needs_library("probe")
class Polled(Handover):
    @classmethod
    def models(cls, repository):
        cls.flags = (*cls.flags, POLLED, "--repository-poll-secs=1")
        text = f"oldest {{ max_candidate_sequences: 8 }} {NUMBERS} {IDLE} {ZEROS}"
        for name in ("versions", "touched"):
            repository.model(name, cls.batching(name, text, batch=4, count=2))

    def states(self, model):
        return {row["version"]: row["state"] for row in self.rows() if row["name"] == model}

    def test_a_new_version_takes_over(self):
        self.assertEqual(self.infer("versions", 1, "<", 5), [5] * 4)
        self.repository.model("versions", None, files={"2/file": b""})
        until(lambda: self.states("versions") == {"1": "UNLOADING", "2": "READY"}, lambda: self.states("versions"))
        # It stays for its sequence's sake, not because anything is wrong.
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
        result = self.rpc.infer("versions", self.tensor(1), sequence_id=1)
        self.assertEqual((result.get_response().model_version, result.as_numpy("OUTPUT0")[0][0]), ("1", 6))
        result = self.rpc.infer("versions", self.tensor(1), sequence_id=2, sequence_start=True)
        self.assertEqual((result.get_response().model_version, result.as_numpy("OUTPUT0")[0][0]), ("2", 1))
        # Who names a version means it.
        error = self.refused("versions", 1, model_version="1")
        self.assertIn("'versions' version 1 is not at ready state", error.message())
        self.assertIn(MISSING, self.refused("versions", 1, model_version="2").message())
        self.assertEqual(self.infer("versions", 1, ">", 1), [7] * 4)
        until(lambda: self.states("versions") == {"1": "UNAVAILABLE", "2": "READY"}, lambda: self.states("versions"))
        self.assertEqual(self.infer("versions", 2, ">", 1), [2] * 4)

    def test_speakers_do_not_notice(self):
        def touch():
            loads = self.ends("ModelInitialize", "touched")
            self.touch("touched")
            until(lambda: self.ends("ModelInitialize", "touched") > loads, "no poll")
        self.among_speakers("touched", [touch] * 3)
        self.wait_for_ends("ModelFinalize", "touched", 3)


def grouped(text, count):
    return text.replace("{ count: 1 kind", f"{{ count: {count} kind")


@conch_only  # Upstream loads such a model anew, too.
@needs_library("probe")
class Instances(Handover):
    @classmethod
    def models(cls, repository):
        cls.flags = (*cls.flags, EXPLICIT)
        cls.texts = {name: cls.batching(name, f"{strategy} {NUMBERS} {IDLE} {ZEROS}", batch=2) for name, strategy in STRATEGIES.items()}
        cls.texts["one"] = cls.batching("one", f"direct {{ }} {NUMBERS} {IDLE} {ZEROS}", batch=1)
        for name, text in cls.texts.items():
            repository.model(name, text)

    def resize(self, model, count):
        self.repository.model(model, grouped(self.texts[model], count))
        self.assertEqual(self.load(model), (200, ""))

    def test_speakers_do_not_notice(self):
        for model in STRATEGIES:
            with self.subTest(model):
                self.assertEqual(self.load(model), (200, ""))
                counts = [3, 1, 4, 2, 4, 1] * 2
                self.among_speakers(model, [lambda count=count: self.resize(model, count) for count in counts])
                self.wait_for_ends("InstanceFinalize", model, 2 * (2 + 2 + 3))
                self.assertEqual(self.ends("InstanceInitialize", model), 1 + 2 * (2 + 3 + 2))
                self.assertEqual((self.ends("ModelInitialize", model), self.ends("ModelFinalize", model)), (1, 0))

    def test_who_comes_takes_what_waits_and_who_leaves_ends_what_it_has(self):
        self.assertEqual(self.load("one"), (200, ""))
        self.infer("one", 1, "<", 1)
        self.send("one", 2, "<", 10)
        self.server.wait_for_pending("one", 1)
        self.resize("one", 2)
        # For its slot nobody had to go.
        self.assertEqual(self.answer().as_numpy("OUTPUT0")[0].tolist(), [10] * 4)
        instances = {told(rows): instance for instance, rows in self.executions("one")}
        self.assertNotEqual(instances["1<"], instances["2<"])
        self.resize("one", 1)
        self.assertEqual(self.infer("one", 2, "", 10), [20] * 4)
        self.assertEqual(self.infer("one", 1, "", 1), [2] * 4)
        # The one that leaves takes no other.
        self.send("one", 3, "<", 100)
        self.server.wait_for_pending("one", 1)
        self.assertEqual(self.infer("one", 2, ">", 10), [30] * 4)
        self.wait_for_ends("InstanceFinalize", "one", 1)
        self.server.wait_for_pending("one", 1)
        self.assertEqual(self.infer("one", 1, ">", 1), [3] * 4)
        self.assertEqual(self.answer().as_numpy("OUTPUT0")[0].tolist(), [100] * 4)
        self.infer("one", 3, ">")
        self.assertEqual(self.ends("ModelInitialize", "one"), 1)
        events = [event.object for event in self.record.events("InstanceFinalize") if event.edge == "end" and event.object.startswith("one:")]
        self.assertEqual(len(events), 1)


if __name__ == "__main__":
    unittest.main()
