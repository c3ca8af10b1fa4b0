"""What the package of models calls: the server, by way of the channel."""

import itertools
import json
import os

import numpy as np

from triton_python_backend_utils import InferenceResponse, Tensor, TritonError, TritonModelException, _native, _types
from triton_python_backend_utils._errors import valid_text


class Connection:
    """The server that this process serves for. Any thread may call."""

    def __init__(self, start):
        self.model_dir = os.path.dirname(start["model_path"])
        # Of the instance, and of its model.
        self.name, self._model_name = start["name"], start["model_name"]
        self.takes_calls = False
        # Of calls of decoupled models.
        self._numbers = itertools.count(1)

    def ask(self, call, **fields):
        """The server's answer, a dict."""
        return self._ask(call, fields, ())

    def _ask(self, call, fields, tensors):
        try:
            answer = _native.call(_text(call, fields), tensors)
        except MemoryError as error:
            raise TritonModelException(str(error)) from None
        if answer is None:
            raise TritonModelException("the server gave no answer")
        answer = json.loads(answer)
        if "e" in answer:
            raise TritonModelException(answer["e"][1])
        return answer

    def drop(self, kind, handle):
        """Tells the server that an object is not used any more."""
        try:
            _native.post(_text("drop_" + kind, {"h": handle}))
        except Exception:  # noqa: BLE001 the server drops what is left when this process ends
            pass

    def log(self, level, file, line, message):
        _native.post(_text("log", {"l": level, "f": file, "n": line, "m": message}))

    def is_cancelled(self, handle):
        return self.ask("is_cancelled", h=handle)["v"]

    def send(self, request, response, flags):
        """Sends a response of a request, or its end; returns before the server has it."""
        try:
            _native.send(request, response, flags)
        except MemoryError as error:
            raise TritonModelException(str(error)) from None

    def infer(self, request, decoupled):
        """Sends a request to another model: the response, or, if `decoupled`, the call."""
        if not self.takes_calls:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        # A request that the server sent may be sent on, to this same model.
        request._model_name = request._model_name or self._model_name
        number = next(self._numbers) if decoupled else 0
        try:
            response = _native.infer(request, number)
        except MemoryError as error:
            return FailedCall(str(error)) if decoupled else _failed(str(error))
        return PendingCall(self, number) if decoupled else response

    def load_model(self, name, config, files):
        fields = {"m": name, "c": config, "i": []}
        tensors, end = [], 0
        for path, content in files.items():
            content = np.frombuffer(content, np.uint8)
            tensors.append(Tensor(str(path), content))
            fields["i"].append([str(path), _types.UINT8, content.shape, end, content.nbytes])
            end += (content.nbytes + 63) // 64 * 64
        self._ask("load", fields, tensors)

    def settle(self):
        """Returns when the server has handled all that was posted before."""
        self.ask("settle")


def _text(kind, fields):
    """A message. What JSON has no text for does not get into it."""
    return valid_text(json.dumps({"k": kind, **fields}, ensure_ascii=False))


def _failed(message):
    return InferenceResponse(error=TritonError(message))


class FailedCall:
    """A call that was not sent: its only response is the error."""

    def __init__(self, message):
        self._message = message

    def next(self):
        return _failed(self._message), True

    def cancel(self):
        pass

    def close(self):
        pass


class PendingCall:
    """A call of a decoupled model whose responses are fetched one by one."""

    def __init__(self, connection, handle):
        self._connection, self._handle = connection, handle

    def next(self):
        if self._handle is None:
            return None, True
        try:
            response, is_last = _native.fetch(self._handle)
        except MemoryError as error:
            raise TritonModelException(str(error)) from None
        if is_last:
            self.close()
        return response, is_last

    def cancel(self):
        if self._handle is not None:
            self._connection.ask("cancel", h=self._handle)

    def close(self):
        handle, self._handle = self._handle, None
        if handle is not None:
            self._connection.drop("call", handle)
