"""What one model or client wrote is never in another's answer, also where a backend leaves gaps in its outputs."""

import unittest

from case import ServerCase, conch_only, needs_library
from repository import identity, tensors

SIZES = (64, 4_096, 20_000, 70_000, 300_000)  # Of different classes of the pool: a model's own bytes may show.
SECRET = 0xA5


def leaving(model_parameters=""):
    """A model of the faulty backend that writes the first half of each output."""
    text = 'backend: "faulty"\nmax_batch_size: 0\n' + tensors("input", [("INPUT0", "UINT8", (-1,))])
    text += tensors("output", [("OUTPUT0", "UINT8", (-1,))]) + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    return text + 'parameters { key: "half" value { string_value: "yes" } }\n' + model_parameters


@conch_only
@needs_library("faulty")
class Gaps(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("half", leaving()).model("other-half", leaving())
        repository.model("identity", identity(inputs=(("INPUT0", "UINT8", (-1,)),)))

    def ask(self, model, body):
        head = {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [len(body)], "parameters": {"binary_data_size": len(body)}}],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
        status, headers, reply = self.infer(head, body, model=model)
        self.assertEqual(status, 200, reply[:200])
        return reply[int(headers["inference-header-content-length"]):]

    def test_gaps_show_nothing_of_others(self):
        """The first answers of a model that leaves gaps, after others have used buffers of the same size."""
        self.assertEqual(self.ask("half", bytes([7]) * 10), bytes([7] * 5 + [0] * 5), "it leaves gaps")
        for size in SIZES:
            secret = bytes([SECRET]) * size
            for _ in range(20):
                self.assertEqual(self.ask("identity", secret), secret)
            for model in ("half", "other-half"):
                for _ in range(20):
                    with self.subTest(model=model, size=size):
                        reply = self.ask(model, bytes([7]) * size)
                        self.assertEqual(len(reply), size)
                        self.assertEqual(set(reply[:size // 2]), {7})
                        # What is its own may show, nothing else.
                        self.assertLessEqual(set(reply[size // 2:]), {0, 7})
                # What it wrote is as secret to the next.
                for _ in range(20):
                    self.ask(model, secret)

    def test_two_that_take_turns_see_only_their_own(self):
        for size in SIZES:
            for _ in range(30):
                first = self.ask("half", bytes([1]) * size)
                second = self.ask("other-half", bytes([2]) * size)
                self.assertNotIn(2, first)
                self.assertNotIn(1, second)


if __name__ == "__main__":
    unittest.main()
