"""The models of perf/chaos-python: each answer can be told from the request."""

import sys

from repository import tensors

ECHO = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]) for array in arrays]
'''

# An exception if the first number is negative and even, an error of the request alone if it is odd.
FAILS = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            first = int(array[0])
            if first < 0 and first % 2 == 0:
                raise ValueError(f"ordered to raise {first}")
            error = pb_utils.TritonError(f"ordered to fail {first}") if first < 0 else None
            responses.append(pb_utils.InferenceResponse([] if error else [pb_utils.Tensor("OUTPUT0", array + 1)], error))
        return responses
'''

TEXTS = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            turned = numpy.array([text[::-1] for text in texts], dtype=numpy.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", turned)]))
        return responses
'''

# As many responses as the input says, from a thread of its own.
STREAM = '''
import threading
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            first, count, size = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().astype(int)
            threading.Thread(target=self.send, args=(request.get_response_sender(), int(first), int(count), int(size)), daemon=True).start()

    def send(self, sender, first, count, size):
        for index in range(count):
            array = numpy.full(size, first + index, numpy.float32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

# Asks `echo`, and adds the responses of `stream` to what it says.
CALLER = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]

    def answer(self, array):
        found = self.ask("echo", array).exec()
        if found.has_error():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("called: " + found.error().message()))
        result = pb_utils.get_output_tensor_by_name(found, "OUTPUT0").as_numpy()
        if int(array[0]) % 4 == 0:
            for response in self.ask("stream", numpy.array([7, 3, 1], numpy.float32)).exec(decoupled=True):
                if response.has_error():
                    return pb_utils.InferenceResponse(error=pb_utils.TritonError("called: " + response.error().message()))
                if response.output_tensors():
                    result = result + pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", result)])

    def ask(self, model, array):
        tensor = pb_utils.Tensor("INPUT0", array)
        return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor])
'''


def config(data_type="FP32", batch=0, count=1, extra=""):
    return (f'backend: "python"\nmax_batch_size: {batch}\n' + tensors("input", [("INPUT0", data_type, (-1,))])
            + tensors("output", [("OUTPUT0", data_type, (-1,))]) + f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"
            + f'parameters {{ key: "python-interpreter" value {{ string_value: "{sys.executable}" }} }}\n' + extra)


def place(repository):
    """Puts the models into a repository."""
    for name, text, settings in (
            ("echo", ECHO, config(count=2)),
            ("batched", ECHO, config(batch=8, extra="dynamic_batching { max_queue_delay_microseconds: 500 }\n")),
            ("texts", TEXTS, config("STRING")), ("fails", FAILS, config()), ("caller", CALLER, config()),
            ("stream", STREAM, config(extra="model_transaction_policy { decoupled: true }\n")),
            ("comes", ECHO, config()), ("changes", ECHO, config())):
        repository.model(name, settings, files={"1/model.py": text.encode()})
