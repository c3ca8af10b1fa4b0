"""Sequences through ensembles: steps that batch sequences are told of them as if they had been asked themselves. Each adds what it gets to a
state of the sequence, so what comes out of two of them is the sum of sums."""

import itertools
import unittest

from case import conch_only, needs_library
from test_ensembles import chain, ensemble
from test_sequences import IDLE, NUMBERS, ZEROS, Sequences, told

TEXTS = NUMBERS.replace("data_type: TYPE_UINT64", "data_type: TYPE_STRING")
TENSOR = [("INPUT0", "INT32", (4,))], [("OUTPUT0", "INT32", (4,))]


def sums(values):
    return list(itertools.accumulate(values))


@needs_library("probe")
class Ensembles(Sequences):
    @classmethod
    def models(cls, repository):
        repository.model("direct", cls.batching("direct", f"direct {{ }} {NUMBERS} {IDLE} {ZEROS}", batch=2))
        repository.model("oldest", cls.batching("oldest", f"oldest {{ max_candidate_sequences: 4 }} {NUMBERS} {IDLE} {ZEROS}", batch=4, count=2))
        repository.model("narrow", cls.batching("narrow", f"direct {{ }} {NUMBERS} {IDLE} {ZEROS}", batch=1))
        repository.model("words", cls.batching("words", f"oldest {{ max_candidate_sequences: 4 }} {TEXTS} {IDLE} {ZEROS}", batch=4))
        repository.model("plain", cls.batching("plain", "", batch=4).split("sequence_batching")[0])
        for name, steps, batch in (("one", ("plain", "direct"), 2), ("two", ("oldest", "plain", "direct"), 2), ("thin", ("narrow", "direct"), 1),
                                   ("spoken", ("plain", "words"), 4)):
            repository.model(name, ensemble(chain(*steps), *TENSOR, batch=batch))

    def tell(self, model, before):
        return [told(rows) for _, rows in self.executions(model)[before:]]

    def count(self, *models):
        return [len(self.executions(model)) for model in models]

    def test_flags_and_ids_reach_the_steps(self):
        oldest, direct = self.count("oldest", "direct")
        for marks, value in (("<", 1), ("", 2), (">", 3)):
            self.infer("two", 7, marks, value)
        self.assertEqual(self.tell("oldest", oldest), ["7<", "7", "7>"])
        self.assertEqual(self.tell("direct", direct), ["7<", "7", "7>"])
        # Who does not start is refused by the first step, in its words.
        error = self.refused("two", 7)
        self.assertIn("inference request for sequence 7 to model 'oldest' must specify the START flag", error.message())
        self.assertIn("must specify a non-zero or non-empty correlation ID", self.refused("two", 0).message())

    @conch_only  # Upstream's ensembles may send a sequence's second request to the next step before its first.
    def test_sequences_keep_apart_and_in_order(self):
        for model, depth in (("one", 1), ("two", 2)):
            with self.subTest(model):
                values = {11: [1, 2, 3, 4, 5, 6], 12: [10, 20, 30, 40, 50, 60]}
                expected = dict(values)
                for _ in range(depth):
                    expected = {sequence: sums(numbers) for sequence, numbers in expected.items()}
                # All at once: nobody waits for an answer.
                for place in range(6):
                    for sequence, numbers in values.items():
                        marks = "<" if place == 0 else ">" if place == 5 else ""
                        self.send(model, sequence, marks, numbers[place], request_id=f"{sequence}-{place}")
                answers = {}
                for _ in range(12):
                    answer = self.answer()
                    sequence, place = map(int, answer.get_response().id.split("-"))
                    answers[sequence, place] = answer.as_numpy("OUTPUT0")[0].tolist()
                self.assertEqual(answers, {(sequence, place): [number] * 4 for sequence, numbers in expected.items()
                                           for place, number in enumerate(numbers)})

    def test_an_end_frees_the_slots_of_all_steps(self):
        narrow, = self.count("narrow")
        self.assertEqual(self.infer("thin", 1, "<", 1), [1] * 4)
        self.send("thin", 2, "<", 10)
        self.server.wait_for_pending("narrow", 1)
        self.assertEqual(self.infer("thin", 1, ">", 1), [1 + 2] * 4)
        self.assertEqual(self.answer().as_numpy("OUTPUT0")[0].tolist(), [10] * 4)
        self.assertEqual(self.infer("thin", 2, ">", 10), [10 + 20] * 4)
        self.assertEqual(self.tell("narrow", narrow), ["1<", "1>", "2<", "2>"])

    def test_ids_may_be_words(self):
        words, = self.count("words")
        for marks, value, total in (("<", 1, 1), ("", 2, 3), (">", 3, 6)):
            self.assertEqual(self.infer("spoken", "ünique", marks, value), [total] * 4)
        rows = [rows for _, rows in self.executions("words")[words:]]
        self.assertEqual([len(batch) for batch in rows], [1, 1, 1])
        for batch in rows:
            self.assertIn("ünique", batch[0]["ID"][1])


if __name__ == "__main__":
    unittest.main()
