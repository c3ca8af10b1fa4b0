"""What the package of models calls: the server, by way of the channel."""

import itertools
import json

from triton_python_backend_utils import InferenceResponse, TritonError, TritonModelException

from . import codec
from .channel import Exhausted


class Connection:
    """The server that this process serves for. Any thread may call."""

    def __init__(self, channel, model_dir):
        self._channel, self.model_dir = channel, model_dir
        self.takes_calls = False
        # Of calls of decoupled models.
        self._numbers = itertools.count(1)

    def _write(self, kind, fields, may_wait=False):
        try:
            return self._channel.write(json.dumps({"k": kind, **fields}).encode(), (), may_wait)
        except Exhausted as error:
            raise TritonModelException(str(error)) from None

    def ask(self, call, **fields):
        """The server's answer, a dict."""
        return self._answer(self._write(call, fields))[0]

    def _answer(self, offset):
        message, block = self._channel.call(offset)
        if message is None:
            raise TritonModelException("the server gave no answer")
        if "e" in message and "o" not in message and message.get("raise", True):
            raise TritonModelException(message["e"][1])
        return message, block

    def drop(self, kind, handle):
        """Tells the server that an object is not used any more."""
        try:
            self._channel.post(self._write("drop_" + kind, {"h": handle}))
        except Exception:  # noqa: BLE001 the server drops what is left when this process ends
            pass

    def log(self, level, file, line, message):
        self._channel.post(self._write("log", {"l": level, "f": file, "n": line, "m": message}, may_wait=True))

    def is_cancelled(self, handle):
        return self.ask("is_cancelled", h=handle)["v"]

    def send(self, request, response, flags):
        """Sends a response of a request, or its end; returns before the server has it."""
        writer = codec.MessageWriter()
        text = "null" if response is None else writer.response(response, request._outputs)
        message = f'{{"k":"send","h":{request._handle},"f":{flags},"r":{text}}}'
        try:
            offset = self._channel.write(message.encode(), writer.parts, may_wait=True)
        except Exhausted as error:
            raise TritonModelException(str(error)) from None
        self._channel.post(offset)

    def infer(self, request, decoupled):
        """Sends a request to another model: the response, or, if `decoupled`, the call."""
        if not self.takes_calls:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        writer, number = codec.MessageWriter(), next(self._numbers) if decoupled else 0
        fields = {"k": "infer", "m": request._model_name, "v": request._model_version, "id": request._id, "c": request._correlation_id,
                  "f": request._flags, "t": request._timeout, "y": request._priority, "x": request._trace._handle,
                  "o": request._outputs, "d": decoupled, "h": number}
        text = json.dumps(fields)[:-1]
        parameters = request.parameters()
        message = f'{text},"p":{parameters},"i":{writer.tensors(request.inputs())}}}'
        try:
            offset = self._channel.write(message.encode(), writer.parts)
        except Exhausted as error:
            return FailedCall(str(error)) if decoupled else _failed(str(error))
        if decoupled:
            self._channel.post(offset)
            return PendingCall(self, number)
        answer, block = self._channel.call(offset)
        if answer is None:
            return _failed("the shared memory of the model has no room for the answer (shm-max-byte-size)")
        return codec.response_of(answer, block, self._channel)

    def next_response(self, handle):
        """The next response of a call: (response or None, whether it is the last)."""
        message, block = self._answer(self._write("next", {"h": handle}))
        response = codec.response_of(message, block, self._channel) if "o" in message or "e" in message else None
        return response, message["z"]

    def load_model(self, name, config, files):
        writer = codec.MessageWriter()
        arrays = []
        for path, content in files.items():
            arrays.append(codec.bytes_tensor(str(path), content))
        message = f'{{"k":"load","m":{json.dumps(name)},"c":{json.dumps(config)},"i":{writer.tensors(arrays)}}}'
        try:
            self._answer(self._channel.write(message.encode(), writer.parts))
        except (Exhausted, TritonModelException) as error:
            raise TritonModelException(f"Failed to load model: {error}") from None


def _failed(message):
    return InferenceResponse._received([], TritonError(message), "")


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
        response, is_last = self._connection.next_response(self._handle)
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
