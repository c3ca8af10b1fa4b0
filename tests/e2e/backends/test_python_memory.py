"""What the shared memory of models in Python takes up counts in the server's memory limit."""

import unittest

import numpy
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from case import conch_only
from test_python_own import OwnCase, needs_python
from test_python_backend import python
from waiting import until

LIMIT_BYTES = 64 << 20
COUNT = 1 << 20
# Keeps each input, or lets all go.
KEEPER = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def __init__(self):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if array[0] < 0:
                self.kept.clear()
            else:
                self.kept.append(array)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numpy.array([len(self.kept)], numpy.int32))]))
        return responses
'''


@conch_only
@needs_python
class ServersLimit(OwnCase):
    flags = (*OwnCase.flags, f"--memory-limit-bytes={LIMIT_BYTES}")

    @staticmethod
    def models(repository):
        for name in ("first", "second"):
            repository.model(name, python([("INPUT0", "INT32", (-1,))], [("OUTPUT0", "INT32", (1,))]), files={"1/model.py": KEEPER.encode()})

    def send(self, model, value, count=COUNT):
        """How many inputs the model keeps then; none if the request was refused for want of memory."""
        with httpclient.InferenceServerClient(self.server.http) as client:
            tensor = httpclient.InferInput("INPUT0", [count], "INT32")
            tensor.set_data_from_numpy(numpy.full(count, value, numpy.int32))
            try:
                return int(client.infer(model, [tensor]).as_numpy("OUTPUT0")[0])
            except InferenceServerException as error:
                self.assertRegex(error.message(), "has no room for 4194304 bytes of inputs")
                return None

    def fill(self, model):
        """Sends inputs of 4 MiB until one is refused; how many were kept."""
        for index in range(LIMIT_BYTES // (4 * COUNT) + 1):
            if self.send(model, 1) is None:
                return index
        return self.fail("the model keeps more than the server may have")

    def test_what_a_model_keeps_counts(self):
        kept = self.fill("first")
        self.assertGreater(kept, 4)
        self.assertEqual(self.send("second", 1, 16), 1, "small requests of others have room")
        # Another model finds only what is left.
        self.assertLess(self.fill("second"), kept)
        self.assertEqual(self.send("first", -1, 16), 0)
        # Memory goes back once it was not used for a while.
        until(lambda: self.send("second", 1), "room for the other model", 60)


if __name__ == "__main__":
    unittest.main()
