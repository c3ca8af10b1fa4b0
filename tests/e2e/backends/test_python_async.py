"""Models in Python whose `execute` is a coroutine, that answer from elsewhere after it, or that are executed again."""

import pathlib
import queue
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from python_script import PLACES, ScriptCase, everywhere, inputs, ours
from test_python_backend import python
from test_python_calls import DECOUPLED
from waiting import until, until_equal

NUMBERS = [("X", "INT32", (1,))], [("Y", "INT32", (1,))]

DOUBLES = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0] < 0:
                raise ValueError("ordered to raise")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x)]))
        return responses
'''

# The sum of what another model makes of n numbers, all asked for at once.
GATHERS = '''
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        count = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
        calls = [pb_utils.InferenceRequest(model_name="doubles", requested_output_names=["Y"],
                                           inputs=[pb_utils.Tensor("X", np.array([number], np.int32))]) for number in range(count)]
        responses = await asyncio.gather(*[call.async_exec() for call in calls])
        first = await calls[0].async_exec()
        numbers = [int(pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()[0]) for response in [*responses, first]]
        assert numbers[:-1] == [2 * number for number in range(count)], numbers
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([sum(numbers)], np.int32))])
'''

# Decoupled. 0 waits until 1 has come, in one event loop; -1 raises after its first response; others are counted up to, by another model.
STREAMS = '''
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.event = None

    async def execute(self, requests):
        if self.event is None:
            self.event = asyncio.Event()
        await asyncio.gather(*[self.answer(request) for request in requests])

    async def answer(self, request):
        count, sender = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0]), request.get_response_sender()
        if count == 0:
            sender.send(self.response(100))
            await self.event.wait()
        if count == 1:
            self.event.set()
        if count == -1:
            sender.send(self.response(1))
            raise ValueError("ordered to raise")
        for number in range(count):
            call = pb_utils.InferenceRequest(model_name="doubles", requested_output_names=["Y"],
                                             inputs=[pb_utils.Tensor("X", np.array([number], np.int32))])
            answer = await call.async_exec()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", answer.output_tensors()[0].as_numpy())]))
        sender.send(flags=FINAL)

    def response(self, number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([number], np.int32))])
'''

# Decoupled, from threads: counts up, with the last number in the final response; or -1: waits until its request is cancelled.
THREADS = '''
import os
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
            if count == -2:
                request.get_response_sender().send(self.response(5))
                raise ValueError("ordered to raise")
            if count == -3:
                return []
            work = self.wait if count < 0 else self.count
            threading.Thread(target=work, args=(request.get_response_sender(), count), daemon=True).start()

    def response(self, number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([number], np.int32))])

    def count(self, sender, count):
        for number in range(count):
            sender.send(self.response(number), FINAL if number + 1 == count else 0)
        if count == 0:
            sender.send(flags=FINAL)
        texts = []
        for again in (lambda: sender.send(self.response(0)), lambda: sender.send(flags=FINAL)):
            try:
                again()
            except pb_utils.TritonModelException as error:
                texts.append(str(error))
        self.write("refused", "\\n".join(texts))

    def wait(self, sender, _):
        self.write("begun", "")
        end = time.monotonic() + 60
        while not sender.is_cancelled() and time.monotonic() < end:
            time.sleep(0.01)  # a model's own pause: it has only this process to look from
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("it was cancelled", pb_utils.TritonError.CANCELLED)), FINAL)
        self.write("ended", str(sender.is_cancelled()))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path + ".part", "w") as file:
            file.write(text)
        os.rename(path + ".part", path)
'''

# Is executed as often as its input says, and answers with that; or, decoupled, with a response each time.
AGAIN = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(__import__("json").loads(args["model_config"]))

    def execute(self, requests):
        responses = [self.answer(request) for request in requests]
        return None if self.is_decoupled else responses

    def answer(self, request):
        # The server does not tell the correlation id that it makes up.
        key, wanted = request.request_id(), int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])
        if self.counts.get(key, 0) == 0:
            assert request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, request.flags()
        else:
            assert request.flags() == 0, request.flags()
        self.counts[key] = count = self.counts.get(key, 0) + 1
        response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[count]], np.int32))])
        if self.is_decoupled:
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if count == wanted else 0)
        if count < wanted:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        del self.counts[key]
        return response
'''


class Streaming:
    """For models with many responses to a request."""

    def ask(self, model, value):
        return int(self.infer(model, value).as_numpy("Y").ravel()[0])

    def infer(self, model, value):
        with httpclient.InferenceServerClient(self.server.http) as client:
            return client.infer(model, inputs(httpclient, {"X": numpy.array([value], numpy.int32)}))

    def stream(self, model, *values, shape=(1,)):
        """The numbers of the responses to each value, all sent on one stream; an error in place of a number ends a value's."""
        answers, seen, finished = queue.Queue(), {str(index): [] for index in range(len(values))}, 0
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(callback=lambda result, error: answers.put((result, error)))
            for index, value in enumerate(values):
                tensors = inputs(grpcclient, {"X": numpy.full(shape, value, numpy.int32)})
                client.async_stream_infer(model, tensors, request_id=str(index), enable_empty_final_response=True)
            while finished < len(values):
                result, error = answers.get(timeout=60)
                if error is not None:
                    self.assertEqual(len(values), 1, error)
                    return [*seen["0"], error.message()]
                response = result.get_response()
                if response.outputs:
                    seen[response.id].append(int(result.as_numpy("Y").ravel()[0]))
                finished += response.parameters["triton_final_response"].bool_param
        return list(seen.values())


@everywhere
class Coroutines(Streaming):
    """`async def execute`."""

    @staticmethod
    def models(repository):
        repository.model("doubles", python(*NUMBERS, count=2), files={"1/model.py": DOUBLES.encode()})
        repository.model("gathers", python(*NUMBERS), files={"1/model.py": GATHERS.encode()})
        repository.model("streams", python(*NUMBERS, extra=DECOUPLED), files={"1/model.py": STREAMS.encode()})
        repository.model("threads", python(*NUMBERS, extra=DECOUPLED), files={"1/model.py": THREADS.encode()})

    def test_one_response(self):
        self.assertEqual([self.ask("doubles", value) for value in (4, 0, 7)], [8, 0, 14])

    def test_an_exception(self):
        for (status, message), expected in zip(self.refusals("doubles", {"X": numpy.array([-1], numpy.int32)}), ("500", "INTERNAL")):
            self.assertEqual(status, expected)
            self.assertRegex(message, r"^Failed to process the request\(s\) for model 'doubles_0_[01]', message: ValueError: ordered to raise\n\n"
                                      r"At:\n(  .*\n)*  .*/doubles/1/model\.py\(\d+\): execute\n")
        self.assertEqual(self.ask("doubles", 4), 8)

    def test_calls_at_once(self):
        for count in (1, 2, 16, 3):
            self.assertEqual(self.ask("gathers", count), sum(2 * number for number in range(count)))

    def test_many_responses(self):
        self.assertEqual(self.stream("streams", 3, 1, 5), [[0, 2, 4], [0], [0, 2, 4, 6, 8]])

    def test_it_goes_on_while_others_are_executed(self):
        """The first request waits for the second one, which the same instance executes."""
        self.assertEqual(self.stream("streams", 0, 1), [[100], [0]])

    def test_threads(self):
        """Responses after `execute` has returned, and the end of a sender."""
        self.assertEqual(self.stream("threads", 3, 0, 1), [[0, 1, 2], [], [0]])
        closed = "Unable to send response. Response sender has been closed."
        path = self.repository.path / "threads/refused"
        self.assertEqual(until(lambda: path.exists() and path.read_text(), "what a closed sender says"), f"{closed}\n{closed}")

    def test_an_exception_after_a_response(self):
        first, error = self.stream("threads", -2)
        self.assertEqual(first, 5)
        self.assertRegex(error, r"Failed to process the request\(s\) for model 'threads_0_0', message: ValueError: ordered to raise\n\nAt:\n"
                                r"  .*/threads/1/model\.py\(\d+\): execute\n")
        self.assertEqual(self.stream("threads", 2), [[0, 1]])

    def test_a_return_of_a_decoupled_model(self):
        (error,) = self.stream("threads", -3)
        self.assertIn("Python model 'threads_0_0' is using the decoupled mode and the execute function must return None.", error)

    def test_cancelled(self):
        """A sender sees that its client has gone, after `execute` has returned."""
        begun, ended = (self.repository.path / "threads" / name for name in ("begun", "ended"))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(callback=lambda result, error: None)
            client.async_stream_infer("threads", inputs(grpcclient, {"X": numpy.array([-1], numpy.int32)}))
            until(begun.exists, "a model that waits")
            client.stop_stream(cancel_requests=True)
            until(ended.exists, "a model that has seen it", 60)


@ours
class OwnCoroutines(Streaming):
    """Where upstream leaves a request without an end."""

    models = staticmethod(Coroutines.models)

    def test_an_exception_of_a_stream(self):
        """It is logged, and the request ends."""
        first, error = self.stream("streams", -1)
        self.assertEqual(first, 1)
        self.assertRegex(error, r"^Failed to process the request\(s\) for model 'streams_0_0', message: ValueError: ordered to raise\n\nAt:\n")
        self.server.wait_for_text("ValueError: ordered to raise")
        self.assertEqual(self.stream("streams", 2), [[0, 2]])


@everywhere
class Again(Streaming):
    """Requests that a model has executed again, one step of a sequence at a time."""

    @staticmethod
    def models(repository):
        # The direct strategy fills batches with requests that are none.
        iterative = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 16 } }\n"
        shapes = [("X", "INT32", (1,))], [("Y", "INT32", (1,))]
        repository.model("again", python(*shapes, 4, extra=iterative), files={"1/model.py": AGAIN.encode()})
        repository.model("steps", python(*shapes, 4, extra=iterative + DECOUPLED), files={"1/model.py": AGAIN.encode()})

    def infer(self, model, value):
        with httpclient.InferenceServerClient(self.server.http) as client:
            return client.infer(model, inputs(httpclient, {"X": numpy.array([[value]], numpy.int32)}))

    def test_one_response(self):
        self.assertEqual([self.ask("again", value) for value in (1, 5, 2)], [1, 5, 2])
        # Triton counts an execution after its response.
        until_equal(lambda: self.server.statistics("again")["execution_count"], 8, "executions")

    def test_a_response_for_each_step(self):
        self.assertEqual(self.stream("steps", 3, 1, 4, shape=(1, 1)), [[1, 2, 3], [1], [1, 2, 3, 4]])
        self.assertEqual(self.stream("steps", *[20] * 8, shape=(1, 1)), [list(range(1, 21))] * 8)


# Whether it is ready is told by a file.
READY = '''
import asyncio
import os


class TritonPythonModel:
    def initialize(self, args):
        self.file = os.path.join(args["model_repository"], "answer")

    {}def is_ready(self):
        {}
        if not os.path.exists(self.file):
            return True
        text = open(self.file).read()
        if text == "raise":
            raise ValueError("no weights")
        return {{"no": False, "number": 5}}[text]

    def execute(self, requests):
        return []
'''


class Ready(ScriptCase):
    """`is_ready`, which Triton 2.51 does not ask."""

    @staticmethod
    def models(repository):
        repository.model("plain", python(*NUMBERS), files={"1/model.py": READY.format("", "pass").encode()})
        repository.model("coroutine", python(*NUMBERS), files={"1/model.py": READY.format("async ", "await asyncio.sleep(0)").encode()})

    def test_answers(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            for model in ("plain", "coroutine"):
                file = pathlib.Path(self.repository.path) / model / "answer"
                for text in ("no", "raise", "number"):
                    with self.subTest(model=model, answer=text):
                        self.assertTrue(client.is_model_ready(model))
                        file.write_text(text)
                        self.assertFalse(client.is_model_ready(model))
                        file.unlink()
                self.assertTrue(client.is_model_ready(model))


for mark in PLACES["InConch"][0]:
    Ready = mark(Ready)


if __name__ == "__main__":
    unittest.main()
