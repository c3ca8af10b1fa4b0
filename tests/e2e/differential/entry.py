"""How an entry of the table is written down, sent, and what came back of it."""

import collections

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import wire
from . import outcome

# `steps` are called one after the other with a Side; each returns an answer as a map from paths to values.
Entry = collections.namedtuple("Entry", "world name rows steps")
TIMEOUT = 20


class Side:
    """One of the two servers, with a gRPC channel to it."""

    def __init__(self, server):
        self.server = server
        self.channel = grpc.insecure_channel(server.grpc)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def close(self):
        self.channel.close()

    def answer(self, entry):
        """Every step's answer, as one map."""
        seen = {}
        for index, step in enumerate(entry.steps):
            prefix = f"{index}: " if len(entry.steps) > 1 else ""
            try:
                answer = step(self)
            except (OSError, EOFError) as error:
                answer = {"connection": type(error).__name__}
            seen.update((prefix + path, value) for path, value in answer.items())
        return seen


def raw(data, has_body=True):
    """Bytes on a connection of their own; the answer to the first request among them."""
    def step(side):
        status, headers, body, is_closed = wire.exchange(side.server, data, timeout=TIMEOUT, has_body=has_body)
        return {**outcome.http(status, headers, body), "closed": is_closed}
    return step


def send(verb, path, body=b"", **headers):
    """One HTTP request by a client library, which also reads chunked answers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def step(side):
        return outcome.http(*side.server.request(verb, path, body=body, headers=named, timeout=TIMEOUT))
    return step


def get(path, **headers):
    return send("GET", path, None, **headers)


def post(path, body=b"", **headers):
    return send("POST", path, body, **headers)


def call(method, message, metadata=(), compression=None):
    """A unary gRPC call."""
    def step(side):
        try:
            answer = getattr(side.stub, method)(message, timeout=TIMEOUT, metadata=metadata, compression=compression)
            return {"code": "OK", **outcome.message(answer)}
        except grpc.RpcError as error:
            return outcome.failure(error)
    return step


def other_call(path, payload=b"", metadata=()):
    """A unary call of any path, with a payload as it is."""
    def step(side):
        try:
            answer = side.channel.unary_unary(path)(payload, timeout=TIMEOUT, metadata=metadata)
            return {"code": "OK", "payload": answer}
        except grpc.RpcError as error:
            return outcome.failure(error)
    return step


def fold(answers):
    """The same answers, with the end of a request told by its last answer: a model of models may tell it so or by an empty one, whichever comes
    first."""
    folded = []
    for answer in answers:
        response = answer.infer_response
        is_final = FINAL in response.parameters and response.parameters[FINAL].bool_param
        if folded and not response.outputs and is_final and folded[-1].infer_response.id == response.id:
            folded[-1].infer_response.parameters[FINAL].bool_param = True
        else:
            folded.append(answer)
    return folded


FINAL = "triton_final_response"


def stream(messages, metadata=(), compression=None, folds=False):
    """ModelStreamInfer with these requests: all responses, then how it ended."""
    def step(side):
        seen = {}
        answers = side.stub.ModelStreamInfer(iter(messages), timeout=TIMEOUT, metadata=metadata, compression=compression)
        try:
            for index, answer in enumerate(fold(answers) if folds else answers):
                seen.update((f"[{index}].{path}", value) for path, value in outcome.message(answer).items())
            seen["code"] = "OK"
        except grpc.RpcError as error:
            seen.update(outcome.failure(error))
        return seen
    return step


def entry(world, name, rows, *steps):
    return Entry(world, name, rows.split(), steps)


def infer_message(model="identity", shape=(1, 4), name="INPUT0", datatype="FP32", raw=None, version="", **more):
    """A ModelInferRequest with one input; typed contents unless `raw` has its bytes."""
    value = pb.ModelInferRequest(model_name=model, model_version=version, **more)
    tensor = value.inputs.add(name=name, datatype=datatype, shape=shape)
    if raw is None:
        tensor.contents.fp32_contents.extend([1.0] * 4)
    else:
        value.raw_input_contents.append(raw)
    return value
