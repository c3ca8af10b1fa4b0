"""The bodies of requests that the programs in this folder send: HTTP with binary tensors or JSON, and framed gRPC messages."""

import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
import region  # noqa: E402


def tensor(count):
    """The bytes of FP32[1,count]."""
    period = struct.pack("<251f", *(i / 8 for i in range(251)))
    return (period * (count // 251 + 1))[:4 * count]


def http_binary(count):
    """A request with one binary FP32[1,count] tensor and a binary reply: (body, length of its JSON)."""
    head = json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, count],
                    "parameters": {"binary_data_size": 4 * count}}],
        "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    return head + tensor(count), len(head)


def http_json(count):
    """A request with one FP32[1,count] tensor as JSON, and a reply in JSON."""
    values = [i % 251 / 8 for i in range(count)]
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "data": values}]}
    return json.dumps(body, separators=(",", ":")).encode(), None


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def framed(message):
    return b"\0" + struct.pack(">I", len(message)) + message


def grpc_binary(count, model=b"identity"):
    """A framed ModelInferRequest with one raw FP32[1,count] tensor."""
    described = field(1, b"INPUT0") + field(2, b"FP32") + field(3, varint(1) + varint(count))
    return framed(field(1, model) + field(5, described) + field(7, tensor(count))), None


def http_region(count, source, target):
    """A request whose tensors lie in shared memory; a place is (region, offset)."""
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "parameters": region.part(*source, 4 * count)}],
            "outputs": [{"name": "OUTPUT0", "parameters": region.part(*target, 4 * count)}]}
    return json.dumps(body, separators=(",", ":")).encode(), None


def grpc_region(count, source, target, model=b"identity"):
    """The same for gRPC."""
    def parameters(number, place):
        values = {name: field(3, value.encode()) if isinstance(value, str) else varint(2 << 3) + varint(value)
                  for name, value in region.part(*place, 4 * count).items()}
        return b"".join(field(number, field(1, name.encode()) + field(2, value)) for name, value in values.items())

    described = field(1, b"INPUT0") + field(2, b"FP32") + field(3, varint(1) + varint(count)) + parameters(4, source)
    output = field(6, field(1, b"OUTPUT0") + parameters(2, target))
    return framed(field(1, model) + field(5, described) + output), None
