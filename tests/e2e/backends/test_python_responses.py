"""What models in Python answer with: errors of every code, outputs that were not asked for or are not in the configuration, returns that are
none, parameters, and inputs that are optional or ragged."""

import json
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from python_script import everywhere, inputs, ours
from test_python_backend import python

# Each value asks for one kind of answer.
ORDERS = '''
import numpy as np
import triton_python_backend_utils as pb_utils

CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")


class TritonPythonModel:
    def execute(self, requests):
        values = [int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0]) for request in requests]
        whole = {200: 5, 201: [], 202: [5] * len(requests), 203: (None,), 204: [None] * (len(requests) + 1)}
        if values[0] in whole:
            return whole[values[0]]
        return [self.answer(request, value) for request, value in zip(requests, values)]

    def answer(self, request, value):
        x = np.array([value], np.int32)
        good = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)])
        sender = request.get_response_sender()
        if value == 100:
            raise ValueError("ordered to raise")
        if value == 101:
            raise pb_utils.TritonModelException("ordered as the package's")
        if value == 102:
            pb_utils.Tensor("", x)
        if value == 103:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)], pb_utils.TritonError("both"))
        if value == 104:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(""))
        if value == 300:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x), pb_utils.Tensor("OTHER", x)])
        if value == 301:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.astype(np.float32))])
        if value == 302:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((2, 3), np.int32))])
        if value == 303:
            return pb_utils.InferenceResponse([])
        if value == 304:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], object))])
        if value == 400:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return good
        if value == 401:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        if value == 402:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
            return good
        if value == 500:
            sender.send(good, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        if value == 501:
            sender.send(good, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return good
        if value == 502:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("sent", pb_utils.TritonError.NOT_FOUND)), 1)
            return None
        if value == 503:
            sender.send(good)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        if value < len(CODES):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"ordered {value}", getattr(pb_utils.TritonError, CODES[value])))
        return good
'''
# By number: what HTTP and gRPC make of it.
CODES = [("400", "UNKNOWN"), ("500", "INTERNAL"), ("404", "NOT_FOUND"), ("400", "INVALID_ARGUMENT"), ("503", "UNAVAILABLE"),
         ("501", "UNIMPLEMENTED"), ("400", "ALREADY_EXISTS"), ("400", "CANCELLED")]
NUMBERS = [("X", "INT32", (1,))], [("Y", "INT32", (1,))]


def orders(repository):
    repository.model("orders", python(*NUMBERS), files={"1/model.py": ORDERS.encode()})
    repository.model("silent", python(*NUMBERS), files={"1/model.py": b"class TritonPythonModel:\n    pass\n"})


@everywhere
class Answers:
    """Answers of models to their clients."""

    models = staticmethod(orders)

    def refused(self, value, model="orders"):
        return self.refusals(model, {"X": numpy.array([value], numpy.int32)})

    def answers(self, value):
        """(name, data type, shape, elements) of each output by HTTP and by gRPC, which must agree."""
        found = []
        for module, address in self.clients():
            with module.InferenceServerClient(address) as client:
                result = client.infer("orders", inputs(module, {"X": numpy.array([value], numpy.int32)}))
            response = result.get_response()
            rows = response["outputs"] if isinstance(response, dict) else [
                {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)} for output in response.outputs]
            found.append([(row["name"], row["datatype"], row["shape"], result.as_numpy(row["name"]).tolist()) for row in rows])
        self.assertEqual(found[0], found[1])
        return found[0]

    def test_codes(self):
        for value, (status, code) in enumerate(CODES):
            with self.subTest(code):
                self.assertEqual(self.refused(value), [(status, f"ordered {value}"), (code, f"ordered {value}")])
        self.assertEqual(self.refused(103), [("500", "both"), ("INTERNAL", "both")])
        self.assertEqual([code for code, _ in self.refused(104)], ["500", "INTERNAL"])

    def assert_fails(self, value, text, model="orders"):
        for (status, message), expected in zip(self.refused(value, model), ("500", "INTERNAL")):
            self.assertEqual(status, expected)
            self.assertEqual(message, f"Failed to process the request(s) for model '{model}_0_0', message: {text}")

    def test_exceptions(self):
        """Their text, and where they came from, the innermost first."""
        path = self.repository.path / "orders/1/model.py"
        lines = {name: 1 + next(index for index, line in enumerate(ORDERS.splitlines()) if part in line) for name, part in (
            ("call", "self.answer(request, value) for"), (100, "ordered to raise"), (101, "ordered as the package's"), (102, 'Tensor("", x)'))}
        for value, text in ((100, "ValueError: ordered to raise"), (101, "TritonModelException: ordered as the package's"),
                            (102, "TritonModelException: Tensor name cannot be an empty string.")):
            with self.subTest(value):
                frames = [(lines[value], "answer"), (lines["call"], "<listcomp>"), (lines["call"], "execute")]
                places = "".join(f"  {path}({line}): {name}\n" for line, name in frames)
                self.assert_fails(value, f"{text}\n\nAt:\n{places}")

    def test_returns_that_are_none(self):
        number = "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:1, and " \
                 "InferenceResponse(s) size is:"
        for value, text in (
                (200, "Expected a list in the execute return, found type '<class 'int'>'."), (201, f"{number}0\n"), (204, f"{number}2\n"),
                (202, "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."),
                (203, "Expected a list in the execute return, found type '<class 'tuple'>'.")):
            with self.subTest(value):
                self.assert_fails(value, text)
        self.assertEqual(self.answers(40), [("Y", "INT32", [1], [41])])

    def test_a_model_without_execute(self):
        self.assert_fails(1, f"Python model {self.repository.path}/silent/1/model.py does not implement `execute` method.", "silent")

    def test_outputs(self):
        """What the configuration does not have is dropped; what it has otherwise is sent as the model made it."""
        self.assertEqual(self.answers(300), [("Y", "INT32", [1], [300])])
        self.assertEqual(self.answers(301), [("Y", "FP32", [1], [301.0])])
        self.assertEqual(self.answers(302), [("Y", "INT32", [2, 3], [[0] * 3] * 2)])
        self.assertEqual(self.answers(303), [])
        self.assertEqual(self.answers(304), [("Y", "BYTES", [1], [b"304"])])

    def test_senders(self):
        """A sender in place of a return; the first final response counts."""
        for value in (500, 501):
            self.assertEqual(self.answers(value), [("Y", "INT32", [1], [value + 1])])
        self.assertEqual(self.refused(502), [("404", "sent"), ("NOT_FOUND", "sent")])

    def test_what_senders_refuse(self):
        prefix = "TritonModelException: Unable to send response. "
        send = "sender = request.get_response_sender(); sender.send({})"
        self.check_failures(
            (send.format(""), "TritonModelException: Inference Response object must be provided when the response flags is set to zero."),
            (send.format("flags=5"), prefix + "Unsupported flag provided."),
            (send.format("pb_utils.InferenceResponse([]), 2"), prefix + "Unsupported flag provided."),
            (send.format("flags=1"), prefix + "Non-decoupled model cannot send complete final before sending a response."),
        )
        self.assertTrue(self.failure(send.format("3")).startswith("TypeError: "))
        request = ("pb_utils.InferenceRequest(inputs=[], requested_output_names=['Y'], model_name='orders').get_response_sender()"
                   ".send(pb_utils.InferenceResponse([]), 1)")
        self.assertEqual(self.failure(request), prefix + "Response sender has no reference to the decoupled state of the model.")

    def test_a_response_to_a_request_that_is_executed_again(self):
        for status, message in self.refused(400):
            self.assertIn(status, ("500", "INTERNAL"))
            self.assertRegex(message, "Expected a None object in the execute function return list for reschduled request, found type '<class '.*"
                                      "InferenceResponse'>'.")
        self.assertEqual(self.answers(402), [("Y", "INT32", [1], [403])])

    def test_responses(self):
        self.check(
            ("(lambda r: [r.output_tensors(), r.has_error(), r.error()])(pb_utils.InferenceResponse())", [[], False, None]),
            ("(lambda r: [r.has_error(), r.error().message(), len(r.output_tensors())])("
             "pb_utils.InferenceResponse([pb_utils.Tensor('A', np.zeros(1))], pb_utils.TritonError('m')))", [True, "m", 1]),
            ("len(pb_utils.InferenceResponse(output_tensors=(pb_utils.Tensor('A', np.zeros(1)),)).output_tensors())", 1),
            ("[pb_utils.get_output_tensor_by_name(r, n) is not None for r in [pb_utils.InferenceResponse([pb_utils.Tensor('A', np.zeros(1))])] "
             "for n in 'AB']", [True, False]),
        )
        self.assertEqual(self.failure("pb_utils.InferenceResponse([None])"),
                         "TritonModelException: Output tensor for inference response should not be empty.")
        for wrong in ("[3]", "[], 'm'"):
            self.assertTrue(self.failure(f"pb_utils.InferenceResponse({wrong})").startswith("TypeError: "))

    def test_errors(self):
        self.check(
            ("[[str(c), int(c)] for c in (pb_utils.TritonError('x').code(), pb_utils.TritonError(message='x', "
             "code=pb_utils.TritonError.CANCELLED).code())]", [["__ErrorCode.INTERNAL", 1], ["__ErrorCode.CANCELLED", 7]]),
            ("pb_utils.TritonError('x').message()", "x"),
        )
        self.assertTrue(self.failure("pb_utils.TritonError(None)").startswith("TypeError: "))


@ours
class OwnAnswers:
    """Where upstream's process, or the request, hangs or ends."""

    models = staticmethod(orders)
    refused, answers = Answers.refused, Answers.answers

    def test_no_model_for_requests_that_are_executed_again(self):
        text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a flag."
        self.assertEqual(self.refused(401), [("400", text), ("INVALID_ARGUMENT", text)])

    def test_a_response_and_then_its_end(self):
        self.assertEqual(self.answers(503), [("Y", "INT32", [1], [504])])

    def test_texts_that_are_none(self):
        """Surrogates on their own, such as names of files have."""
        self.assertEqual(self.script("pb_utils.TritonError('a\\udcffb').message()"), "a?b")
        self.assertEqual(self.failure("raise pb_utils.TritonModelException(pb_utils.TritonError('\\udcff').message())"), "TritonModelException: ?")
        self.script("pb_utils.Logger.log_info('told of a\\udcffb')")
        self.server.wait_for_text("told of a?b")
        self.assertEqual(self.script("pb_utils.is_model_ready('\\udcff')"), False)


# Tells the parameters of its request, and answers with those that it is asked for.
PARAMETERS = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            told = np.array([request.parameters()], object)
            wanted = json.loads(request.parameters()).get("wanted", "{}")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", told)], parameters=json.loads(wanted)))
        return responses
'''


@ours
class Parameters:
    """Parameters of requests and responses; upstream's binary of 24.10 does not know the latter."""

    @staticmethod
    def models(repository):
        repository.model("parameters", python(NUMBERS[0], [("Y", "STRING", (1,))]), files={"1/model.py": PARAMETERS.encode()})

    def exchanged(self, module, address, parameters):
        """The parameters of the request as the model was told, and those of the response."""
        with module.InferenceServerClient(address) as client:
            result = client.infer("parameters", inputs(module, {"X": numpy.array([1], numpy.int32)}), parameters=parameters)
        response = result.get_response()
        if isinstance(response, dict):
            back = response.get("parameters", {})
            back.pop("binary_data_output", None)
        else:
            back = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}
        return result.as_numpy("Y")[0].decode(), back

    def test_both_ways(self):
        wanted = {"flag": True, "count": -5, "large": 2**40, "text": "αβγ \"quoted\"\n", "off": False, "empty": ""}
        if self.kind == "conch":
            # Of Triton's C interface only newer versions have it.
            wanted["number"] = 0.5
        for module, address in self.clients():
            with self.subTest(module.__name__):
                given = {"flag": True, "count": 7, "text": "αβγ", "wanted": json.dumps(wanted)}
                told, back = self.exchanged(module, address, given)
                self.assertEqual(json.loads(told), given)
                self.assertEqual(back, wanted)
                self.assertEqual(self.exchanged(module, address, {}), ("{}", {}))

    def test_what_is_refused(self):
        make = "pb_utils.InferenceResponse([], parameters={}).parameters()"
        self.check(
            (make.format("None"), "{}"), (make.format("{}"), "{}"), (make.format("{'a': 1, 'b': True, 'c': 'x'}"), '{"a": 1, "b": true, "c": "x"}'),
        )
        self.check_failures(
            (make.format("[1]"), "TritonModelException: Expect dict, got <class 'list'>"),
            (make.format("{1: 2}"), "TritonModelException: Expect parameters keys to have type str, found type <class 'int'>"),
            (make.format("{'a': [1]}"), "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'list'>"),
            (make.format("{'a': None}"), "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
            (make.format("{'a': 1 << 63}"), "TritonModelException: The parameter 'a' is 9223372036854775808, which no message can carry"),
            (make.format("{'a': float('inf')}"), "TritonModelException: The parameter 'a' is inf, which no message can carry"),
        )


# Tells the shapes of its batch.
SHAPES = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        shapes = sorted([tensor.shape() for tensor in request.inputs()] for request in requests)
        text = np.array([[json.dumps(shapes)]], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)]) for _ in requests]
'''


@everywhere
class Batches:
    """Requests of a batch come to the model as they are, whatever their shapes."""

    @staticmethod
    def models(repository):
        ragged = ('input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }\n'
                  'input { name: "MORE" data_type: TYPE_INT32 dims: [ 1 ] optional: true }\n')
        batching = "dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 30000000 }\n"
        lengths = 'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "LENGTHS" data_type: TYPE_FP32 source_input: "X" }\n'
        repository.model("shapes", python([], [("Y", "STRING", (1,))], 3, extra=ragged + batching + lengths),
                         files={"1/model.py": SHAPES.encode()})

    def test_ragged(self):
        with httpclient.InferenceServerClient(self.server.http, concurrency=3) as client:
            calls = [client.async_infer("shapes", inputs(httpclient, {"X": numpy.zeros((1, length), numpy.int32)})) for length in (2, 5, 3)]
            told = {call.get_result().as_numpy("Y")[0, 0].decode() for call in calls}
        self.assertEqual(told, {json.dumps([[[1, 2]], [[1, 3]], [[1, 5]]])})

    def test_optional(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            result = client.infer("shapes", inputs(httpclient, {"X": numpy.zeros((3, 2), numpy.int32), "MORE": numpy.zeros((3, 1), numpy.int32)}))
        self.assertEqual(json.loads(result.as_numpy("Y")[0, 0]), [[[3, 2], [3, 1]]])

    def test_outputs_that_are_not_wanted(self):
        """A model is told, and what it makes nevertheless is dropped."""
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            arrays = inputs(grpcclient, {"X": numpy.zeros((3, 4), numpy.int32)})
            result = client.infer("shapes", arrays, outputs=[grpcclient.InferRequestedOutput("Y")])
        self.assertEqual(json.loads(result.as_numpy("Y")[0, 0]), [[[3, 4]]])


if __name__ == "__main__":
    unittest.main()
