"""Requests and responses as messages: JSON texts whose tensors lie behind them."""

import json

import numpy as np

from triton_python_backend_utils import InferenceResponse, Tensor, TritonError, TritonModelException, _types

# Texts of names as JSON; models use few.
_quoted = {}
_QUOTED_MAX = 4096


def _quote(name):
    text = _quoted.get(name)
    if text is None:
        text = json.dumps(name)
        if len(_quoted) < _QUOTED_MAX:
            _quoted[name] = text
    return text


def inputs_of(rows, base, block):
    """The tensors of one request, whose bytes lie at `base` in `block`."""
    return [Tensor._at(name, number, tuple(shape), base + offset, byte_size, block) for name, number, shape, offset, byte_size in rows]


class MessageWriter:
    """Collects tensors while the text of a message that names them is made."""

    __slots__ = ("parts", "_offset", "kept")

    def __init__(self):
        self.parts, self._offset, self.kept = [], 0, None

    def tensors(self, tensors):
        """The JSON of a list of tensors, each [name, type, shape, offset, bytes]."""
        rows = []
        for tensor in tensors:
            if not tensor.is_cpu():
                raise TritonModelException(f"Tensor '{tensor.name()}' is stored in GPU, when GPU is not available")
            byte_size = tensor._byte_size
            shape = ",".join(map(str, tensor._shape))
            rows.append(f"[{_quote(tensor._name)},{tensor._number},[{shape}],{self._offset},{byte_size}]")
            self.parts.append((tensor._address, byte_size))
            self._offset += (byte_size + 63) // 64 * 64
        return "[" + ",".join(rows) + "]"

    def response(self, response, wanted):
        """The JSON of a response, with those outputs that are wanted."""
        error = response._error
        if error is not None:
            return f'{{"e":[{int(error.code())},{json.dumps(error.message())}]}}'
        tensors = [tensor for tensor in response._outputs if tensor._name in wanted]
        parameters = f',"p":{response._parameters}' if response._parameters else ""
        return f'{{"o":{self.tensors(tensors)}{parameters}}}'


def bytes_tensor(name, content):
    """The bytes of a file, as a tensor."""
    content = np.frombuffer(content, np.uint8)
    return Tensor._at(name, _types.UINT8, content.shape, content.ctypes.data, content.nbytes, content)


def response_of(message, block, channel):
    """The response of another model."""
    error = message.get("e")
    if error is not None:
        return InferenceResponse._received([], TritonError(error[1], error[0]), "")
    outputs = []
    for name, number, shape, output_block, offset, byte_size in message.get("o", ()):
        owner = channel.block_at(output_block) if output_block else block
        outputs.append(Tensor._at(name, number, tuple(shape), channel.requests_address(offset), byte_size, owner))
    parameters = message.get("p")
    return InferenceResponse._received(outputs, None, json.dumps(parameters) if parameters else "")
