"""Responses, and the right to send them."""

import json
import math
import threading

from . import _link
from ._errors import TritonError, TritonModelException, valid_text
from ._tensor import Tensor

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


def parameters_json(parameters):
    """The text of a dict of parameters; empty if there are none."""
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str, float)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -1 << 63 <= value < 1 << 63 or isinstance(value, float) and not math.isfinite(value):
            raise TritonModelException(f"The parameter '{key}' is {value}, which no message can carry")
    return valid_text(json.dumps(parameters, ensure_ascii=False)) if parameters else ""


def _check_output(tensor):
    """Raises unless it is a tensor."""
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"output_tensors holds Tensor objects, got {type(tensor).__name__}")


class InferenceResponse:
    """The outputs of one response, or its error."""

    __slots__ = ("_outputs", "_error", "_parameters")

    def __init__(self, output_tensors=None, error=None, parameters=None):
        outputs = [] if output_tensors is None else list(output_tensors)
        for tensor in outputs:
            if type(tensor) is not Tensor:
                _check_output(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error is a TritonError, got {type(error).__name__}")
        self._outputs = outputs
        self._error = error
        self._parameters = "" if parameters is None else parameters_json(parameters)

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        """A JSON text."""
        return self._parameters or "{}"


class InferenceResponseSender:
    """Sends the responses of one request, from any thread and also after `execute` has returned."""

    __slots__ = ("_request", "_is_decoupled", "_lock", "_is_closed", "_count")

    def __init__(self, request, is_decoupled, is_closed):
        self._request, self._is_decoupled = request, is_decoupled
        self._lock, self._is_closed, self._count = threading.Lock(), is_closed, 0

    def send(self, response=None, flags=0):
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"response is an InferenceResponse, got {type(response).__name__}")
        self._count_one(response, flags)
        _link.connection().send(self._request, response, flags)

    def _count_one(self, response, flags):
        if not self._request._handle:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model.")
        with self._lock:
            if not self._is_decoupled:
                if response is not None and self._count > 0:
                    raise TritonModelException("Unable to send response. Non-decoupled model cannot send more than one response.")
                if response is None and flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL and self._count == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a response.")
            if self._is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL:
                self._is_closed = True
                self._request._request_handle.close()
            self._count += 1

    def _close(self):
        with self._lock:
            self._is_closed = True

    def is_cancelled(self):
        return self._request.is_cancelled()
