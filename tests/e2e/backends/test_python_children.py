"""Requests of models in Python to other models: what goes along, how they fail, and models that answer many times."""

import pathlib
import unittest

from python_script import SCRIPT, SCRIPT_TENSORS, everywhere, ours
from test_python_backend import python
from test_python_calls import DECOUPLED
from waiting import until

NUMBERS = [("X", "INT32", (1,))], [("Y", "INT32", (1,))]

# Tells what it knows of its request.
TELLS = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("T", np.array([json.dumps(self.told(request))], object)),
                                            pb_utils.Tensor("U", np.array([b"u"], object))]) for request in requests]

    def told(self, request):
        return [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), json.loads(request.parameters()),
                sorted(request.requested_output_names())]
'''

# Adds one; 100 and more fail with the code of that number, 200 by an exception.
ADDS = '''
import numpy as np
import triton_python_backend_utils as pb_utils

CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(int(request.inputs()[0].as_numpy()[0])) for request in requests]

    def answer(self, value):
        if value == 200:
            raise ValueError("ordered to raise")
        if value >= 100:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"ordered {value}", getattr(pb_utils.TritonError, CODES[value - 100])))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value + 1], np.int32))])
'''

# Decoupled: counts up to its number; -1: until it is cancelled.
COUNTS = '''
import os
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            count = int(request.inputs()[0].as_numpy()[0])
            threading.Thread(target=self.count, args=(request.get_response_sender(), count), daemon=True).start()

    def count(self, sender, count):
        if count < 0:
            sender.send(self.response(0))
            end = time.monotonic() + 60
            while not sender.is_cancelled() and time.monotonic() < end:
                time.sleep(0.01)  # a model's own pause: it has only this process to look from
            open(os.path.join(self.folder, f"cancelled{sender.is_cancelled()}"), "w").close()
        for number in range(count):
            sender.send(self.response(number))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([number], np.int32))])
'''

# Sums up what the requests of a sequence bring.
SUMS = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        key, value = request.correlation_id(), int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[key] = 0
        self.sums[key] = self.sums.get(key, 0) + value
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[self.sums[key]]], np.int32))])
'''

# The factorial of a number, by itself.
RECURSES = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(int(request.inputs()[0].as_numpy()[0])) for request in requests]

    def answer(self, value):
        if value == 0:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([1], np.int32))])
        response = pb_utils.InferenceRequest(model_name="recurses", requested_output_names=["Y"],
                                             inputs=[pb_utils.Tensor("X", np.array([value - 1], np.int32))]).exec()
        if response.has_error():
            return response
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", value * response.output_tensors()[0].as_numpy())])
'''

# Tries to call a model when it must not, and keeps what it is told.
EARLY = SCRIPT.replace('self.args, self.kept = args, {}', '''self.args, self.kept = args, {"early": self.call()}

    def call(self):
        try:
            response = pb_utils.InferenceRequest(model_name="adds", requested_output_names=["Y"],
                                                 inputs=[pb_utils.Tensor("X", np.array([1], np.int32))]).exec()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return response.error().message()

    def finalize(self):
        print("finalised:", self.call(), flush=True)''')

REQUEST = '''
def ask(model, value=1, name="X", kind=np.int32, outputs=("Y",), **more):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=list(outputs),
                                     inputs=[pb_utils.Tensor(name, np.array([value], kind))], **more)

def shown(response):
    if response.has_error():
        return response.error().message()
    return [[tensor.name(), tensor.as_numpy().tolist()] for tensor in response.output_tensors()]

'''


def models(repository):
    for name, text, tensors, more in (
            ("adds", ADDS, NUMBERS, {}), ("counts", COUNTS, NUMBERS, {"extra": DECOUPLED}), ("recurses", RECURSES, NUMBERS, {"count": 2}),
            ("tells", TELLS, (NUMBERS[0], [("T", "STRING", (1,)), ("U", "STRING", (1,))]), {}),
            ("sums", SUMS, NUMBERS, {"batch": 4, "extra": "sequence_batching { oldest { max_candidate_sequences: 8 } control_input { "
                                     'name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }\n'}),
            ("early", EARLY, SCRIPT_TENSORS, {})):
        repository.model(name, python(*tensors, **more), files={"1/model.py": text.encode()})


@everywhere
class Children:
    """Calls by `exec`."""

    models = staticmethod(models)

    def check_calls(self, *rows):
        self.check(*[(REQUEST + f"result = {code}", expected) for code, expected in rows])

    def test_responses(self):
        self.check_calls(
            ("shown(ask('adds', 4).exec())", [["Y", [5]]]), ("shown(ask('adds', 4, outputs=()).exec())", [["Y", [5]]]),
            ("shown(ask('adds', 4, model_version=1).exec(decoupled=False))", [["Y", [5]]]),
            ("shown(ask('adds', preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)).exec())", [["Y", [2]]]),
            ("shown(ask('adds', trace=request.trace()).exec())", [["Y", [2]]]),
            ("[tensor.name() for tensor in ask('tells', outputs=['U']).exec().output_tensors()]", ["U"]),
            ("shown(ask('recurses', 0).exec())", [["Y", [1]]]), ("shown(ask('recurses', 1).exec())", [["Y", [1]]]),
        )

    def test_what_goes_along(self):
        told = "json.loads(ask('tells', outputs=['T'], {}).exec().output_tensors()[0].as_numpy()[0])"
        self.check_calls(
            (told.format(""), ["", 0, 0, 0, {}, ["T"]]),
            (told.format("request_id='r', correlation_id=2**63, flags=1, timeout=5_000_000"), ["r", 2**63, 1, 5_000_000, {}, ["T"]]),
            (told.format("correlation_id='αβγ', flags=3"), ["", "αβγ", 3, 0, {}, ["T"]]),
            (told.format("parameters={'a': 1, 'b': 'x', 'c': True}"), ["", 0, 0, 0, {"a": 1, "b": "x", "c": True}, ["T"]]),
        )

    def test_errors(self):
        """What the server refuses has a prefix; what the other model answers has not."""
        prefix = "Model {} - Error when running inference: "
        unready = "Failed for execute the inference request. Model '{}' is not ready."
        self.check_calls(
            ("shown(ask('nope').exec())", prefix.format("nope") + unready.format("nope")),
            ("shown(ask('adds', model_version=7).exec())", prefix.format("adds") + unready.format("adds")),
            ("shown(ask('adds', outputs=['NO']).exec())", prefix.format("adds") + "unexpected inference output 'NO' for model 'adds'"),
            ("shown(ask('adds', name='NO').exec())", prefix.format("adds") + "unexpected inference input 'NO' for model 'adds'"),
            ("shown(ask('adds', kind=np.float32).exec())", prefix.format("adds")
             + "[request id: <id_unknown>] inference input 'X' data-type is 'FP32', but model 'adds' expects 'INT32'"),
            ("shown(ask('counts', 1).exec())", prefix.format("counts")
             + "Model counts is using the decoupled. The current BLS request call doesn't support "
             "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
             "models.'"),
            ("[shown(response) for response in ask('nope').exec(decoupled=True)]", [prefix.format("nope") + unready.format("nope")]),
            ("[shown(ask('adds', 100 + code).exec()) for code in range(8)]", [f"ordered {100 + code}" for code in range(8)]),
            ("ask('adds', 200).exec().error().message().split('\\n')[0]",
             "Failed to process the request(s) for model 'adds_0_0', message: ValueError: ordered to raise"),
        )

    def test_many_responses(self):
        """The end without outputs is a response as well; a second iteration repeats them."""
        self.check_calls(
            ("[shown(response) for response in ask('counts', 3).exec(decoupled=True)]", [[["Y", [number]]] for number in range(3)] + [[]]),
            ("[shown(response) for response in ask('counts', 0).exec(decoupled=True)]", [[]]),
            ("[shown(response) for response in ask('adds', 3).exec(decoupled=True)]", [[["Y", [4]]]]),
            ("[shown(response) for response in ask('adds', 103).exec(decoupled=True)]", ["ordered 103"]),
            ("(lambda responses: [len(list(responses)), len(list(responses)), type(responses).__name__])(ask('counts', 2).exec(decoupled=True))",
             [3, 3, "ResponseIterator"]),
            ("(lambda responses: [shown(next(iter(responses))), shown(next(iter(responses))), len(list(responses))])(ask('counts', 4)"
             ".exec(decoupled=True))", [[["Y", [0]]], [["Y", [1]]], 3]),
        )

    def test_sequences(self):
        """Steps of two sequences, with numbers and texts as ids."""
        steps = REQUEST + ("def step(value, key, flags):\n    request = pb_utils.InferenceRequest(model_name='sums', requested_output_names=['Y'], "
                           "correlation_id=key, flags=flags, inputs=[pb_utils.Tensor('X', np.array([[value]], np.int32))])\n"
                           "    response = request.exec()\n    return response.error().message() if response.has_error() else "
                           "int(response.output_tensors()[0].as_numpy()[0, 0])\n")
        start, end = "pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", "pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END"
        self.check((steps + f"result = [step(1, 7, {start}), step(10, 8, {start}), step(2, 7, 0), step(20, 8, 0), step(3, 7, {end}), "
                            f"step(30, 8, {end})]", [1, 10, 3, 30, 6, 60]))

    def test_many_threads(self):
        self.check((REQUEST + "found = {}\ndef work(number):\n    found[number] = [shown(ask('adds', number % 50).exec()) for _ in range(5)]\n"
                    "threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]\n"
                    "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
                    "result = all(found[number] == [[['Y', [number % 50 + 1]]]] * 5 for number in range(24))", True))

    def test_memory_of_responses(self):
        """Outputs stay as long as they are referred to."""
        self.check((REQUEST + "arrays = [ask('adds', number).exec().output_tensors()[0].as_numpy() for number in range(50)]; gc.collect()\n"
                    "result = [int(array[0]) for array in arrays] == list(range(1, 51))", True))

    def test_outside_of_executions(self):
        """In `initialize`, as an error of the response or as an exception."""
        self.assertEqual(self.script("kept['early']", "early"), "TritonModelException: BLS is only supported during the 'execute' function.")
        self.assertEqual(self.script("1 + 1", "early"), 2)

    def test_requests(self):
        make = "pb_utils.InferenceRequest(inputs=[pb_utils.Tensor('X', np.zeros(1))], requested_output_names=['Y', 'A', 'Y'], model_name='m', {})"
        self.check(
            (f"(lambda r: [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), sorted(r.requested_output_names()), "
             f"type(r.requested_output_names()).__name__, len(r.inputs()), r.trace().get_context()])({make.format('')})",
             ["", 0, 0, 0, "{}", ["A", "Y"], "set", 1, None]),
            ("(lambda r: [r.request_id(), r.correlation_id(), r.flags(), r.timeout()])(pb_utils.InferenceRequest('id', 7, [], ['O'], 'm', 2, 1, 5))",
             ["id", 7, 1, 5]),
            (f"r = {make.format('')}; r.set_flags(2); result = r.flags()", 2),
            ("[request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.parameters(), "
             "list(request.requested_output_names()), request.is_cancelled(), request.get_response_sender().is_cancelled()]",
             ["", 0, 0, 0, "{}", ["RESULT"], False, False]),
        )
        self.check_failures(
            (make.format("correlation_id=1.5"), "TritonModelException: Correlation ID must be integer or string"),
            ("pb_utils.InferenceRequest(inputs=[], requested_output_names=[''], model_name='m')",
             "TritonModelException: Requested output name for request with id '' and model name 'm' should not be empty."),
            ("pb_utils.InferenceRequest(request_id='9', inputs=[None], requested_output_names=['Y'], model_name='m')",
             "TritonModelException: Input tensor for request with id '9' and model name 'm' should not be empty."),
            (make.format("parameters={1: 2}"), "TritonModelException: Expect parameters keys to have type str, found type <class 'int'>"),
            (make.format("parameters={'a': []}"),
             "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        )
        for wrong in ("flags=-1", "timeout=-1", "flags=1 << 32", "nothing=1"):
            self.assertTrue(self.failure(make.format(wrong)).startswith("TypeError: "), wrong)


@ours
class OwnChildren:
    """What upstream's binary of 24.10 does not have, or what ends its server."""

    models = staticmethod(models)
    check_calls = Children.check_calls

    def test_codes(self):
        self.check_calls(("[int(ask('adds', 100 + code).exec().error().code()) for code in range(8)]", list(range(8))))

    def test_cancelled(self):
        """A call of a decoupled model is cancelled by its iterator, or by its end."""
        folder = pathlib.Path(self.repository.path) / "counts"
        for end in ("responses.cancel()", "del responses; gc.collect()"):
            self.check((REQUEST + f"responses = ask('counts', -1).exec(decoupled=True); iterator = iter(responses); first = shown(next(iterator))\n"
                        f"del iterator; {end}\nresult = first", [["Y", [0]]]))
            seen = until(lambda: list(folder.glob("cancelled*")), "a model that has seen the end of its caller", 60)
            self.assertEqual([file.name for file in seen], ["cancelledTrue"])
            seen[0].unlink()

    def test_a_request_that_is_not_the_servers(self):
        self.assertEqual(self.failure(REQUEST + "ask('adds').is_cancelled()"), "TritonModelException: Cannot determine request cancellation")

    def test_priority_and_memory(self):
        self.check_calls(("shown(ask('adds', priority=1).exec())", [["Y", [2]]]),
                         ("shown(ask('adds', preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU)).exec())", [["Y", [2]]]))


@everywhere
class Ending:
    """A model that calls while it ends."""

    models = staticmethod(models)

    def test_finalize(self):
        self.assertEqual(self.script("1 + 1", "early"), 2)
        self.server.terminate()
        self.server.wait_for_text("finalised: TritonModelException: BLS is only supported during the 'execute' function.")

    @classmethod
    def tearDownClass(cls):
        """The test has stopped the server."""


if __name__ == "__main__":
    unittest.main()
