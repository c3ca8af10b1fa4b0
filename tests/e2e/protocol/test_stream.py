"""ModelStreamInfer: many requests and responses on one call, of one-to-one and of decoupled models; errors within, clients that leave and
clients that do not read. What upstream does too is tried there as well (`--server=triton`)."""

import itertools
import pathlib
import queue
import re
import subprocess
import tempfile
import time
import unittest

import grpc as grpcio
import numpy
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import server as servers
import wire
from case import IS_TRITON, Cancelling, ServerCase, conch_only, needs_library, needs_peer
from repository import identity, tensors
from waiting import until

CODE = grpcio.StatusCode
FINAL = "triton_final_response"
EMPTY_FINAL = "triton_enable_empty_final_response"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
REPEAT = ('backend: "repeat"\nmax_batch_size: 0\n'
          + tensors("input", [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))])
          + tensors("output", [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))])
          + DECOUPLED + "instance_group [ { count: 1 kind: KIND_CPU } ]\n")


def square(batch=0, **parameters):
    text = (f'backend: "square"\nmax_batch_size: {batch}\n' + tensors("input", [("IN", "INT32", (1,))])
            + tensors("output", [("OUT", "INT32", (1,))]) + DECOUPLED + "instance_group [ { count: 1 kind: KIND_CPU } ]\n")
    for key, value in parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text


def models(repository):
    fp32 = [("INPUT0", "FP32", (-1,))]
    repository.model("identity", identity(fp32))
    repository.model("slow", identity(fp32, parameters={"execute_delay_ms": "300"}))
    repository.model("repeat", REPEAT)
    repository.model("single", REPEAT.replace(DECOUPLED, ""))
    repository.model("square", square())
    # Twenty responses per second.
    repository.model("steady", square(CUSTOM_INFER_DELAY_NS=50_000_000))
    # Responses to a request follow all of those to the requests before it. Each instance sends on a thread of its own.
    repository.model("ordered", REPEAT.replace("count: 1", "count: 2") + "dynamic_batching { preserve_ordering: true }\n")
    # A model of its own: its instance's thread is held up.
    repository.model("flooding", square())


def request(model, rows, request_id="", version="", **parameters):
    """A request with raw contents; rows are (name, type, array)."""
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for name, kind, array in rows:
        made.inputs.add(name=name, datatype=kind, shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    for key, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(made.parameters[key], field, value)
    return made


def floats(request_id, *values, model="identity", **more):
    return request(model, [("INPUT0", "FP32", numpy.array(values, numpy.float32))], request_id, **more)


def repeat(request_id, values, delays=None, wait=0, model="repeat", **more):
    delays = delays or [0] * len(values)
    return request(model, [("IN", "INT32", numpy.array(values, numpy.int32)), ("DELAY", "UINT32", numpy.array(delays, numpy.uint32)),
                              ("WAIT", "UINT32", numpy.array([wait], numpy.uint32))], request_id, **more)


def squared(request_id, count, model="square", **more):
    return request(model, [("IN", "INT32", numpy.array([count], numpy.int32))], request_id, **more)


def final(message):
    """What the message says of being final; None if it says nothing."""
    parameters = message.infer_response.parameters
    return parameters[FINAL].bool_param if FINAL in parameters else None


class Call:
    """One call, driven by hand: requests are sent when asked, and answers read when asked."""

    def __init__(self, channel, metadata=(), timeout=60):
        self._requests = queue.Queue()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self.call = stub.ModelStreamInfer(iter(self._requests.get, None), metadata=metadata, timeout=timeout)

    def send(self, *requests):
        for one in requests:
            self._requests.put(one)
        return self

    def end(self):
        self._requests.put(None)
        return self

    def read(self, count=1):
        return list(itertools.islice(self.call, count))

    def rest(self):
        """All that comes until the end, which must be good."""
        rows = list(self.call)
        assert self.call.code() == CODE.OK, self.call.code()
        return rows

    def failure(self):
        """What comes until the call fails, and (code, details)."""
        rows = []
        try:
            for row in self.call:
                rows.append(row)
        except grpcio.RpcError as error:
            return rows, (error.code(), error.details())
        raise AssertionError(f"the call ended well after {rows}")


class StreamCase(Cancelling, ServerCase):
    models = staticmethod(models)
    channel_options = ()

    def setUp(self):
        self.channel = grpcio.insecure_channel(self.server.grpc, options=self.channel_options)
        self.addCleanup(self.channel.close)

    def open(self, **more):
        call = Call(self.channel, **more)
        self.addCleanup(call.end)
        self.addCleanup(call.call.cancel)
        return call

    def assert_answer(self, message, request_id, values, is_final, output="OUT", code=numpy.int32, model=None):
        self.assertEqual(message.error_message, "")
        inner = message.infer_response
        self.assertEqual((inner.id, final(message), inner.model_version), (request_id, is_final, "1"))
        if model:
            self.assertEqual(inner.model_name, model)
        self.assertEqual(inner.outputs[0].name, output)
        self.assertEqual(numpy.frombuffer(inner.raw_output_contents[0], code).tolist(), list(values))


@needs_library("repeat")
@needs_library("square")
class Streams(StreamCase):
    def test_an_empty_stream_ends_well(self):
        self.assertEqual(self.open().end().rest(), [])

    def test_one_to_one(self):
        call = self.open().send(floats("a", 1, 2), floats("b", 3), floats("", 4)).end()
        for message, request_id, values in zip(call.rest(), ("a", "b", ""), ([1, 2], [3], [4]), strict=True):
            self.assert_answer(message, request_id, values, True, "OUTPUT0", numpy.float32, "identity")

    def test_large_and_small_tensors(self):
        rows = [numpy.arange(size, dtype=numpy.float32) for size in (0, 1, 1023, 1024, 5000, 300_000, 3)]
        call = self.open().send(*(floats(str(len(row)), *row) for row in rows)).end()
        for message, row in zip(call.rest(), rows, strict=True):
            self.assert_answer(message, str(len(row)), row, True, "OUTPUT0", numpy.float32)

    def test_one_to_one_keeps_the_order_of_requests(self):
        """The slow one comes first, though the others are ready long before."""
        call = self.open().send(floats("slow", 1, model="slow"), *(floats(str(i), i) for i in range(20))).end()
        self.assertEqual([row.infer_response.id for row in call.rest()], ["slow", *map(str, range(20))])

    def test_decoupled_does_not_wait_for_the_line(self):
        call = self.open().send(floats("slow", 1, model="slow"), floats("next", 2), repeat("r", [7])).end()
        self.assertEqual([row.infer_response.id for row in call.rest()], ["r", "slow", "next"])

    def test_decoupled(self):
        call = self.open().send(repeat("r", [4, 2, 0], [0, 30, 0])).end()
        rows = call.rest()
        self.assertEqual(len(rows), 3)
        for row, value in zip(rows, (4, 2, 0)):
            self.assert_answer(row, "r", [value], False, model="repeat")

    def test_decoupled_streams_mix(self):
        call = self.open().send(repeat("slow", [1, 2], [0, 500]), repeat("quick", [3], [100])).end()
        values = [(row.infer_response.id, numpy.frombuffer(row.infer_response.raw_output_contents[0], numpy.int32)[0]) for row in call.rest()]
        self.assertEqual(values, [("slow", 1), ("quick", 3), ("slow", 2)])

    def test_empty_final_response(self):
        call = self.open().send(repeat("r", [4], **{EMPTY_FINAL: True}), repeat("v", [], version="1", **{EMPTY_FINAL: True}),
                                repeat("no", [], **{EMPTY_FINAL: False})).end()
        by_id = {}
        for row in call.rest():
            by_id.setdefault(row.infer_response.id, []).append(row)
        self.assertEqual({key: len(rows) for key, rows in by_id.items()}, {"r": 2, "v": 1})
        self.assert_answer(by_id["r"][0], "r", [4], False)
        for key, version in (("r", ""), ("v", "1")):
            last = by_id[key][-1]
            inner = last.infer_response
            self.assertEqual((last.error_message, final(last), inner.model_name, inner.model_version), ("", True, "repeat", version))
            self.assertEqual((len(inner.outputs), len(inner.raw_output_contents)), (0, 0))

    def test_it_changes_nothing_for_one_to_one(self):
        row, = self.open().send(floats("a", 1, **{EMPTY_FINAL: True})).end().rest()
        self.assert_answer(row, "a", [1], True, "OUTPUT0", numpy.float32)

    def test_requests_that_are_not_accepted(self):
        """Each is an error message within the stream, which goes on; of one-to-one models in their place."""
        call = self.open().send(
            floats("slow", 1, model="slow"), floats("x", 1, model="absent"), floats("v", 1, version="7"),
            request("identity", [("INPUT0", "INT32", numpy.array([1], numpy.int32))], "t"),
            floats("p", 1, triton_other=1), floats("good", 2)).end()
        rows = call.rest()
        self.assertEqual([row.infer_response.id for row in rows], ["slow", "x", "v", "t", "p", "good"])
        texts = {row.infer_response.id: row.error_message for row in rows}
        self.assertIn("Request for unknown model: 'absent' is not found", texts["x"])
        self.assertIn("Request for unknown model: 'identity' version 7 is not found", texts["v"])
        self.assertIn("inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'", texts["t"])
        self.assertIn("parameter keys starting with 'triton_' are reserved for Triton usage", texts["p"])
        for row in rows[1:5]:
            inner = row.infer_response
            self.assertEqual((inner.model_name, inner.model_version, final(row)), ("", "", None))
        self.assert_answer(rows[0], "slow", [1], True, "OUTPUT0", numpy.float32)
        self.assert_answer(rows[5], "good", [2], True, "OUTPUT0", numpy.float32)

    def test_a_decoupled_request_that_is_not_accepted(self):
        bad = request("repeat", [("IN", "INT32", numpy.array([1], numpy.int32))], "bad")
        call = self.open().send(floats("slow", 1, model="slow"), bad).end()
        rows = call.rest()
        self.assertEqual([row.infer_response.id for row in rows], ["bad", "slow"])
        self.assertIn("expected 3 inputs but got 1 inputs for model 'repeat'", rows[0].error_message)
        self.assertEqual(final(rows[0]), None)

    def test_an_empty_message_is_a_request(self):
        rows = self.open().send(pb.ModelInferRequest(), floats("b", 1)).end().rest()
        self.assertIn("Request for unknown model: '' is not found", rows[0].error_message)
        self.assert_answer(rows[1], "b", [1], True, "OUTPUT0", numpy.float32)

    @conch_only  # the peer takes it for the client's last request and ends well, whatever follows
    def test_bytes_that_are_no_message_end_the_call(self):
        method = self.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        for bad in (b"\xff\xff\xff", b"\x0a\x05a", floats("a", 1).SerializeToString() + b"\x1a\x01\xff"):
            call = method(iter([bad, floats("b", 1).SerializeToString()]), timeout=10)
            with self.assertRaises(grpcio.RpcError):
                list(call)
            self.assertEqual((call.code(), call.details()), (CODE.INTERNAL, "Unable to parse request"))

    def test_inferences_that_fail(self):
        """Of a decoupled model, after good responses; the stream goes on."""
        delays = request("repeat", [("IN", "INT32", numpy.array([1, 2], numpy.int32)), ("DELAY", "UINT32", numpy.array([0], numpy.uint32)),
                                    ("WAIT", "UINT32", numpy.array([0], numpy.uint32))], "bad", version="1")
        call = self.open().send(delays)
        row, = call.read()
        self.assertIn("expected IN and DELAY shape to match", row.error_message)
        inner = row.infer_response
        self.assertEqual((inner.id, inner.model_name, inner.model_version, final(row)), ("bad", "repeat", "1", True))
        call.send(repeat("good", [5])).end()
        row, = call.rest()
        self.assert_answer(row, "good", [5], False)

    def test_several_responses_of_a_one_to_one_model(self):
        """The first is passed on, the others are dropped."""
        rows = self.open().send(repeat("r", [7, 8, 9, 10], model="single"), floats("f", 1)).end().rest()
        self.assertEqual([row.infer_response.id for row in rows], ["r", "f"])
        # Upstream says of the first that it is not the last.
        self.assert_answer(rows[0], "r", [7], not IS_TRITON)
        # Over a call with one answer it is an error.
        with self.assertRaises(grpcio.RpcError) as caught:
            service_pb2_grpc.GRPCInferenceServiceStub(self.channel).ModelInfer(repeat("r", [7, 8], model="single"), timeout=10)
        self.assertIn("expected a single response, got 2", caught.exception.details())

    def test_a_client_that_cancels(self):
        """What executes is cancelled, what waits is not executed, and the next request is answered."""
        before, executed = self.figures("steady"), self.server.statistics("slow")["execution_count"]
        call = self.open().send(squared("long", 1000, model="steady"), *(floats(str(i), 1, model="slow") for i in range(20)))
        call.read()
        call.call.cancel()
        self.assertEqual(call.failure()[1][0], CODE.CANCELLED)
        self.assert_cancelled("steady", before)
        self.assertLessEqual(self.server.statistics("slow")["execution_count"] - executed, 3)
        row, = self.open().send(repeat("next", [9])).end().rest()
        self.assert_answer(row, "next", [9], False)

    def test_a_client_that_is_gone(self):
        with grpcio.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            before = self.figures("steady")
            call = Call(channel).send(squared("long", 1000, model="steady"))
            call.read()
        call.end()
        self.assert_cancelled("steady", before)

    def test_a_deadline_is_the_streams(self):
        before = self.figures("steady")
        call = self.open(timeout=0.5).send(squared("long", 1000, model="steady"))
        rows, (code, _) = call.failure()
        self.assertEqual(code, CODE.DEADLINE_EXCEEDED)
        self.assertGreater(len(rows), 0)
        self.assert_cancelled("steady", before)

    def test_unary_calls_are_refused(self):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        with self.assertRaises(grpcio.RpcError) as caught:
            stub.ModelInfer(repeat("r", [1]))
        self.assertEqual((caught.exception.code(), caught.exception.details()),
                         (CODE.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"))

    def test_many_requests_at_once(self):
        """More than are taken in at once, written before anything is read."""
        call = self.open().send(*(floats(str(i), i) for i in range(1500))).end()
        time.sleep(0.5)  # the client's pause before it reads
        self.assertEqual([row.infer_response.id for row in call.rest()], [str(i) for i in range(1500)])

    def test_many_responses(self):
        rows = self.open().send(squared("s", 5000, **{EMPTY_FINAL: True})).end().rest()
        self.assertEqual([final(row) for row in rows], [False] * 5000 + [True])

    def test_upstreams_client(self):
        answers = queue.Queue()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            value = grpcclient.InferInput("IN", [1], "INT32")
            value.set_data_from_numpy(numpy.array([3], numpy.int32))
            client.async_stream_infer("square", [value], request_id="s", enable_empty_final_response=True)
            for is_last in (False, False, False, True):
                result, error = answers.get(timeout=10)
                self.assertIsNone(error)
                response = result.get_response()
                self.assertEqual((response.id, response.parameters[FINAL].bool_param), ("s", is_last))
                self.assertEqual(result.as_numpy("OUT"), None if is_last else 3)
            client.stop_stream()
            self.assertTrue(answers.empty())

    def test_upstreams_client_cancels(self):
        answers = queue.Queue()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            before = self.figures("steady")
            value = grpcclient.InferInput("IN", [1], "INT32")
            value.set_data_from_numpy(numpy.array([1000], numpy.int32))
            client.async_stream_infer("steady", [value])
            self.assertIsNone(answers.get(timeout=10)[1])
            client.stop_stream(cancel_requests=True)
        self.assert_cancelled("steady", before)


@conch_only  # the peer gives the same status and text, and then ends with a SIGSEGV
@needs_library("repeat")
@needs_library("square")
class ErrorsAsStatuses(StreamCase):
    def test_errors_as_statuses(self):
        """`triton_grpc_error`: the first inference that fails ends the call; a request that is not accepted does not."""
        bad = request("repeat", [("IN", "INT32", numpy.array([1, 2], numpy.int32)), ("DELAY", "UINT32", numpy.array([0], numpy.uint32)),
                                 ("WAIT", "UINT32", numpy.array([0], numpy.uint32))], "bad")
        call = self.open(metadata=[("triton_grpc_error", "true")])
        call.send(floats("x", 1, model="absent"))
        row, = call.read()
        self.assertIn("unknown model", row.error_message)
        call.send(floats("good", 1))
        row, = call.read()
        self.assert_answer(row, "good", [1], True, "OUTPUT0", numpy.float32)
        call.send(bad)
        rows, (code, details) = call.failure()
        self.assertEqual((rows, code), ([], CODE.INVALID_ARGUMENT))
        self.assertIn("expected IN and DELAY shape to match", details)
        # Any other value means nothing.
        row, = self.open(metadata=[("triton_grpc_error", "1")]).send(bad).end().rest()
        self.assertIn("expected IN and DELAY", row.error_message)

    def test_a_failure_cancels_the_others(self):
        bad = request("repeat", [("IN", "INT32", numpy.array([1, 2], numpy.int32)), ("DELAY", "UINT32", numpy.array([0], numpy.uint32)),
                                 ("WAIT", "UINT32", numpy.array([0], numpy.uint32))], "bad")
        before = self.figures("steady")
        call = self.open(metadata=[("triton_grpc_error", "true")])
        call.send(squared("long", 1000, model="steady"))
        call.read()
        call.send(bad)
        self.assertEqual(call.failure()[1][0], CODE.INVALID_ARGUMENT)
        self.assert_cancelled("steady", before)


@conch_only
@needs_library("square")
class SlowReaders(StreamCase):
    """Upstream keeps for a client all that it does not read."""

    # Little may wait beyond the credits.
    flags = ("--memory-limit-bytes=268435456", "--stream-patience-ms=1000")
    # A window that does not grow with what the client thinks of the connection: on a busy machine it could hold the whole flood.
    channel_options = (("grpc.http2.bdp_probe", 0),)
    FLOOD = 200_000

    def flood(self):
        """A stream of which nothing is read."""
        call = self.open(timeout=120)
        call.send(squared("flood", self.FLOOD, model="flooding", **{EMPTY_FINAL: True}))
        return call

    def test_what_is_held_is_bounded_and_the_end_is_clear(self):
        before, figures = self.server.resident_bytes(), self.figures("flooding")
        call = self.flood().end()
        self.assert_cancelled("flooding", figures)
        # The client's window holds a thousand responses, which are not with the server any more.
        self.assertLess(self.server.resident_bytes() - before, 30 << 20)
        rows = call.rest()
        self.assertLess(len(rows), self.FLOOD / 2)
        self.assertGreater(len(rows), 256)
        for row in rows[:-1]:
            self.assertEqual((row.error_message, final(row)), ("", False))
        self.assertIn("the request was cancelled: its responses were read too slowly", rows[-1].error_message)
        self.assertEqual((rows[-1].infer_response.id, final(rows[-1])), ("flood", True))

    def test_others_are_not_slowed(self):
        """Streams of other models, on the same shard and connection, while one is not read."""
        before, call = self.figures("flooding"), self.flood()
        other = self.open()
        durations = []
        for _ in range(50):
            start = time.monotonic()
            other.send(floats("a", 1), repeat("r", [1]))
            other.read(2)
            durations.append(time.monotonic() - start)
        # What waits for the flood waits for its patience, a second.
        self.assertLess(sorted(durations)[len(durations) // 2], 0.5)
        call.call.cancel()
        call.failure()
        # The tests that follow count as well.
        self.assert_cancelled("flooding", before)

    def test_the_same_instance_goes_on(self):
        """Requests behind it wait for no longer than its patience."""
        before = self.figures("flooding")
        call, last = self.flood(), None
        deadline = time.monotonic() + 10
        while (now := self.figures("flooding")) != last and time.monotonic() < deadline:
            last = now
            time.sleep(0.1)  # time must pass with no response sent: then the credits are spent
        start = time.monotonic()
        rows = self.open().send(squared("next", 3, model="flooding")).end().rest()
        self.assertEqual(len(rows), 3)
        self.assertLess(time.monotonic() - start, 10, "its patience is a second; the flood has no end")
        self.assert_cancelled("flooding", before)
        call.call.cancel()

    def test_a_reader_that_pauses_is_waited_for(self):
        call = self.flood_of(30_000)
        call.read(1)
        time.sleep(0.5)  # the reader's pause
        rows = call.end().rest()
        self.assertEqual(len(rows), 30_000, rows[-1].error_message)
        self.assertEqual(final(rows[-1]), True)

    def flood_of(self, count):
        return self.open(timeout=120).send(squared("flood", count, model="flooding", **{EMPTY_FINAL: True}))


@conch_only
@needs_library("square")
class PausingReaders(StreamCase):
    """What a client does not read for a while waits with the server, and no thread of the backend waits with it."""

    # One request's part of it is 64 MiB.
    flags = ("--memory-limit-bytes=1073741824",)
    COUNT = 20_000

    def test_responses_beyond_the_credits_wait_and_others_are_served(self):
        before = self.figures("flooding")
        message = squared("flood", self.COUNT, model="flooding").SerializeToString()
        # A client with the smallest usual window, which holds some 700 of them.
        link = wire.Http2(self.server, timeout=60).start()
        self.addCleanup(link.close)
        link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelStreamInfer")),
                  wire.frame(wire.DATA, 1, 1, b"\0" + len(message).to_bytes(4, "big") + message))
        until(lambda: self.figures("flooding")["success"] - before["success"], f"{self.COUNT} responses are made", 60,
              lambda count: count >= self.COUNT)
        # Its only instance has time for others.
        self.assertEqual(len(self.open().send(squared("next", 3, model="flooding")).end().rest()), 3)
        time.sleep(1.5)  # the reader's pause: more than the patience with one that stands still
        window = (1 << 30).to_bytes(4, "big")
        link.send(wire.frame(wire.WINDOW_UPDATE, 0, 0, window), wire.frame(wire.WINDOW_UPDATE, 0, 1, window))
        received = b""
        while True:
            kind, flags, _, payload = link.wait_for(wire.DATA, wire.HEADERS)
            if kind == wire.DATA:
                received += payload
            elif flags & 1:
                break
        rows = []
        while received:
            length = int.from_bytes(received[1:5], "big")
            rows.append(pb.ModelStreamInferResponse.FromString(received[5:5 + length]))
            received = received[5 + length:]
        self.assertEqual(len(rows), self.COUNT)
        self.assertEqual({row.error_message for row in rows}, {""})
        self.assertEqual(self.figures("flooding")["cancel"], before["cancel"])


@needs_library("repeat")
@needs_library("square")
class PreservedOrder(StreamCase):
    """Two decoupled requests, whose responses are made at the same time by two instances."""

    def ask(self, wait_ms, count):
        """What the second gets, of `count` responses that are there at once, while the first waits for so long."""
        values = list(range(count))
        first = repeat("first", [7, 8], [100, wait_ms - 100], wait=100, model="ordered", **{EMPTY_FINAL: True})
        second = repeat("second", values, model="ordered", **{EMPTY_FINAL: True})
        rows = self.open().send(first, second).end().rest()
        self.assertEqual([row.infer_response.id for row in rows], ["first"] * 3 + ["second"] * (len(rows) - 3))
        for row, value in zip(rows, (7, 8)):
            self.assert_answer(row, "first", [value], False)
        self.assertEqual(final(rows[2]), True)
        for row, value in zip(rows[3:-1], values):
            self.assert_answer(row, "second", [value], False)
        self.assertEqual((final(rows[-1]), rows[-1].infer_response.id), (True, "second"))
        return len(rows) - 4, rows[-1].error_message

    def test_the_second_waits_for_its_turn(self):
        self.assertEqual(self.ask(600, 200), (200, ""))

    def test_more_than_its_credits_wait_with_the_backend(self):
        self.assertEqual(self.ask(600, 1000), (1000, ""))

    def test_more_than_its_credits_wait_for_long(self):
        self.assertEqual(self.ask(2500, 1000), (1000, ""))


@conch_only  # upstream keeps all that waits
@needs_library("repeat")
@needs_library("square")
class BoundedOrder(PreservedOrder):
    # A sixteenth of it is room for 512 small responses beyond the credits.
    flags = ("--memory-limit-bytes=16777216", "--stream-patience-ms=1000")

    def test_more_than_its_credits_wait_for_long(self):
        """It is cancelled, and told so in its turn, after what was on its way."""
        count, error = self.ask(2500, 1000)
        self.assertEqual(count, 256 + 512)
        self.assertIn("the request was cancelled: its responses were read too slowly, 256 of them", error)
        # Later requests have credits of their own.
        self.assertEqual(self.ask(200, 300), (300, ""))


@conch_only
class UnreadAnswers(StreamCase):
    def test_requests_wait_with_the_client(self):
        """Large answers of a one-to-one model are not read: the requests behind stay in the client's hands, and none is lost."""
        before = self.server.resident_bytes()
        call = self.open(timeout=120)
        row = numpy.arange(65536, dtype=numpy.float32)
        call.send(*(request("identity", [("INPUT0", "FP32", row)], str(i)) for i in range(1200))).end()
        time.sleep(3)  # the reader's pause: all that the server would take too much of comes meanwhile
        # 512 of 256 KB, and what is on its way; the whole would be 315 MB.
        self.assertLess(self.server.resident_bytes() - before, 200 << 20)
        self.assertLess(self.server.statistics("identity")["inference_count"], 700)
        self.assertEqual([row.infer_response.id for row in call.rest()], [str(i) for i in range(1200)])


@conch_only
@needs_library("repeat")
@needs_library("square")
class Draining(StreamCase):
    def test_streams_are_served_to_their_end(self):
        """What is in flight is answered, what comes later is refused within the stream, and an idle stream is ended."""
        idle, busy = self.open(), self.open()
        self.assert_answer(idle.send(floats("a", 1)).read()[0], "a", [1], True, "OUTPUT0", numpy.float32)
        busy.send(repeat("r", [1, 2, 3], [0, 400, 400]))
        self.assert_answer(busy.read()[0], "r", [1], False)
        self.server.process.terminate()
        rows, (code, _) = idle.failure()
        self.assertEqual((rows, code), ([], CODE.UNAVAILABLE))
        busy.send(floats("late", 1))
        rows, (code, _) = busy.failure()
        self.assertEqual(code, CODE.UNAVAILABLE)
        by_id = {}
        for row in rows:
            by_id.setdefault(row.infer_response.id, []).append(row)
        self.assertEqual([len(by_id["r"]), len(by_id["late"])], [2, 1])
        self.assertIn("GRPC server is shutting down", by_id["late"][0].error_message)
        self.assertEqual(self.server.process.wait(20), 0)

    @classmethod
    def tearDownClass(cls):
        """The server has ended already."""


@needs_peer("perf_analyzer")
@needs_library("square")
class PerfAnalyzer(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("square", square())

    def test_streaming(self):
        with tempfile.TemporaryDirectory() as directory:
            data = pathlib.Path(directory) / "data.json"
            data.write_text('{"data": [{"IN": [4]}]}')
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", "square", "-i", "grpc", "-u", self.server.grpc, "--streaming", "--async",
                 "--input-data", str(data), "--concurrency-range", "2", "--measurement-interval", "1000",
                 "--stability-percentage", "999", "--max-trials", "8"],
                capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        requests, responses = (float(re.search(rf"^ +{name}: ([0-9.]+) infer/sec", done.stdout, re.MULTILINE)[1])
                               for name in ("Throughput", "Response Throughput"))
        self.assertAlmostEqual(responses / requests, 4, delta=0.1)
        self.assertNotIn("failed", done.stdout.lower())
        stats = self.server.statistics("square")
        self.assertGreater(stats["inference_count"], 100)


if __name__ == "__main__":
    unittest.main()
