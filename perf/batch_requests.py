"""Requests that carry a whole batch of a model of perf/real_models.py, and their answers: over HTTP, gRPC, and with tensors in CUDA shared memory."""

import json
import struct

import numpy

import bodies
import region

REGION = "engines"
# Of tensors in a region, as engines and their kernels like it.
ALIGNMENT = 256
# Ways of a request, each with the memory that the engine's bare loop has its tensors in.
WAYS = {"http": "host", "grpc": "host", "http cuda": "device"}


def rows(model, count):
    """Inputs, each row another one."""
    if model.name == "magika":
        given, = model.arrays()["bytes"]
        return numpy.stack([numpy.roll(given, 16 * row) for row in range(count)])
    (_, _, dims), = model.inputs
    return numpy.random.default_rng(18).normal(0, 1, (count, *dims)).astype(numpy.float32)


class BatchRequest:
    """One request of so many rows, by one of the WAYS. With tensors in CUDA shared memory `array` is the region, which it fills."""

    def __init__(self, model, content, way, array):
        self.model, self.content, self.way, self.array = model, content, way, array
        (self.input, self.type, _), = model.inputs
        (self.output, _, (self.count,)), = model.outputs
        self.answer_bytes = 4 * len(content) * self.count
        self.body = getattr(self, f"_{way.replace(' ', '_')}")()
        self.protocol = way.partition(" ")[0]

    @staticmethod
    def region_bytes(content, model):
        (_, _, (count,)), = model.outputs
        return content.nbytes + ALIGNMENT + 4 * len(content) * count

    def _tensor(self, parameters):
        return {"name": self.input, "datatype": self.type, "shape": list(self.content.shape), "parameters": parameters}

    def _http(self):
        head = json.dumps({"inputs": [self._tensor({"binary_data_size": self.content.nbytes})],
                           "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
        return head + self.content.tobytes(), len(head)

    def _grpc(self):
        dims = b"".join(map(bodies.varint, self.content.shape))
        described = bodies.field(1, self.input.encode()) + bodies.field(2, self.type.encode()) + bodies.field(3, dims)
        return bodies.framed(bodies.field(1, self.model.name.encode()) + bodies.field(5, described) + bodies.field(7, self.content.tobytes())), None

    def _http_cuda(self):
        self.answer_offset = -(-self.content.nbytes // ALIGNMENT) * ALIGNMENT
        self.array.write(self.content.tobytes())
        self.array.write(bytes(self.answer_bytes), self.answer_offset)
        return json.dumps({"inputs": [self._tensor(region.part(REGION, 0, self.content.nbytes))],
                           "outputs": [{"name": self.output, "parameters": region.part(REGION, self.answer_offset, self.answer_bytes)}]},
                          separators=(",", ":")).encode(), None

    def ask(self, server):
        """Sends it once; the answers."""
        body, json_bytes = self.body
        if self.protocol == "grpc":
            return self._answers(ask_grpc(server, body))
        headers = {"Inference-Header-Content-Length": str(json_bytes)} if json_bytes else {}
        status, headers, reply = server.request("POST", f"/v2/models/{self.model.name}/infer", body, headers, timeout=120)
        if status != 200:
            raise Unanswered(f"{self.model.name}: {status} {reply[:300]!r}")
        if self.way == "http cuda":
            return self._answers(self.array.read(self.answer_offset, self.answer_bytes))
        return self._answers(reply[int(headers["inference-header-content-length"]):])

    def _answers(self, content):
        if len(content) != self.answer_bytes:
            raise Unanswered(f"{self.model.name}: {len(content)} bytes of answers instead of {self.answer_bytes}")
        return numpy.frombuffer(content, "<f4").reshape(len(self.content), self.count)


class Unanswered(Exception):
    """A request that was not answered as it should."""


def ask_grpc(server, body):
    """The raw tensor of the answer to a framed message."""
    import grpc
    from tritonclient.grpc import service_pb2
    length, = struct.unpack_from(">I", body, 1)
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, unlimited) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", lambda message: message, service_pb2.ModelInferResponse.FromString)
        try:
            reply = call(body[5:5 + length], timeout=120)
        except grpc.RpcError as error:
            raise Unanswered(f"{error.code()}: {error.details()}") from None
    return reply.raw_output_contents[0]
