"""Requests: those that a model is given, and those that it sends to other models."""

import asyncio
import threading

from . import _link
from ._errors import NamedNumber, TritonModelException
from ._responses import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponse, InferenceResponseSender, parameters_json
from ._tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(NamedNumber):
    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Where outputs of a call are wanted."""

    __slots__ = ("_kind", "_device")

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        self._kind, self._device = MemoryType(preferred_memory_type), int(preferred_device_id)


class InferenceTrace:
    """The trace of a request, to hand on to calls."""

    __slots__ = ("_handle", "_context")

    def __init__(self, _handle=0, _context=""):
        self._handle, self._context = _handle, _context

    def get_context(self):
        """The OpenTelemetry context; None if there is none."""
        return self._context or None


def _unsigned(name, value, bits):
    value = int(value)
    if not 0 <= value < 1 << bits:
        raise TypeError(f"{name} is an unsigned number of {bits} bits, got {value}")
    return value


class InferenceRequest:
    """One request."""

    # What a request has that the server sent, unless it says otherwise.
    _handle, _id, _correlation_id, _model_name, _model_version, _flags, _timeout, _priority = 0, "", 0, "", -1, 0, 0, 0
    _preferred, _trace, _parameters, _sender, _request_handle = None, InferenceTrace(), "", None, None
    _release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
    # Of the model that this process serves.
    _is_decoupled = False

    def __init__(self, request_id="", correlation_id=0, inputs=None, requested_output_names=None, model_name=None, model_version=-1, flags=0,
                 timeout=0, preferred_memory=None, trace=None, parameters=None, priority=0):
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("InferenceRequest needs inputs, requested_output_names and model_name")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        if not isinstance(correlation_id, str):
            correlation_id = _unsigned("correlation_id", correlation_id, 64)
        inputs, names = list(inputs), list(requested_output_names)
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"inputs holds Tensor objects, got {type(tensor).__name__}")
        if not all(names):
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not be empty.")
        self._id, self._correlation_id, self._inputs = str(request_id), correlation_id, inputs
        self._outputs, self._model_name, self._model_version = list(dict.fromkeys(names)), str(model_name), int(model_version)
        self._flags, self._timeout = _unsigned("flags", flags, 32), _unsigned("timeout", timeout, 64)
        self._priority, self._preferred = _unsigned("priority", priority, 64), preferred_memory
        if trace is not None:
            self._trace = trace
        self._parameters = parameters_json(parameters)

    def _close(self):
        """The server has, or makes, the final response."""
        if self._request_handle is not None:
            self._request_handle.close()
        if self._sender is not None:
            self._sender._close()

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._id

    def correlation_id(self):
        return self._correlation_id

    def flags(self):
        return self._flags

    def set_flags(self, flags):
        self._flags = _unsigned("flags", flags, 32)

    def timeout(self):
        """In microseconds; 0: none."""
        return self._timeout

    def preferred_memory(self):
        return self._preferred

    def parameters(self):
        """A JSON text."""
        return self._parameters or "{}"

    def requested_output_names(self):
        return set(self._outputs)

    def trace(self):
        return self._trace

    def set_release_flags(self, flags):
        """Has the request executed again (RESCHEDULE) when its response in the list that `execute` returns is None."""
        self._release_flags = _unsigned("flags", flags, 32)

    def get_response_sender(self):
        if self._sender is None:
            self._sender = InferenceResponseSender(self, self._is_decoupled, self._request_handle is None or not self._request_handle.is_open)
        return self._sender

    def is_cancelled(self):
        """Whether the client gave up."""
        if not self._handle:
            raise TritonModelException("Cannot determine request cancellation")
        return _link.connection().is_cancelled(self._handle)

    def exec(self, decoupled=False):
        """Sends the request to its model and waits: for the response, or, if `decoupled`, for nothing: the responses are iterated."""
        call = _link.connection().infer(self, decoupled)
        return ResponseIterator(call) if decoupled else call

    def async_exec(self, decoupled=False):
        """The same as an awaitable of the running event loop."""
        return asyncio.get_running_loop().run_in_executor(None, self.exec, decoupled)


def check_response(request, response):
    """Raises unless the response may answer the request."""
    if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
        raise TritonModelException(
            f"Expected a None object in the execute function return list for reschduled request, found type '{type(response)}'.")
    if not isinstance(response, InferenceResponse):
        raise TritonModelException(f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(response)}'.")
    if request._sender is not None:
        request._sender._count_one(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def settle(request):
    """Has the server handle what was sent of a request before it is executed again, when nothing more may be sent."""
    request._close()
    if request._sender._count:
        _link.connection().settle()


class ResponseIterator:
    """The responses to one call of a decoupled model. A second iteration repeats them."""

    def __init__(self, call):
        self._call, self._responses, self._index, self._is_finished = call, [], 0, False
        self._lock = threading.Lock()

    def __iter__(self):
        if self._is_finished and self._index >= len(self._responses):
            self._index = 0
        return self

    def __next__(self):
        with self._lock:
            if self._is_finished:
                if self._index >= len(self._responses):
                    raise StopIteration
            else:
                response, self._is_finished = self._call.next()
                if response is None:
                    raise StopIteration
                self._responses.append(response)
            self._index += 1
            return self._responses[self._index - 1]

    def cancel(self):
        """Asks the model to stop; responses may still come."""
        if not self._is_finished:
            self._call.cancel()

    def __del__(self):
        call = getattr(self, "_call", None)
        if call is not None:
            call.close()
