"""gRPC: server and model calls, the standard health service, typed and raw contents, deadlines and cancellation."""

import re
import signal
import time
import unittest

import grpc
import hpack
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import server as servers
import wire
from case import KIND, ServerCase, conch_only, needs_library, pack
from probe import Record, probe
from repository import Repository, identity

# Field of InferTensorContents by data type, and values for it.
TYPED = [
    ("BOOL", "bool_contents", [True, False], "?"), ("INT8", "int_contents", [-128, 127], "b"),
    ("INT16", "int_contents", [-32768, 32767], "h"), ("INT32", "int_contents", [-(2**31), 2**31 - 1], "i"),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], "q"), ("UINT8", "uint_contents", [0, 255], "B"),
    ("UINT16", "uint_contents", [0, 65535], "H"), ("UINT32", "uint_contents", [0, 2**32 - 1], "I"),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], "Q"), ("FP32", "fp32_contents", [-1.5, 2.5], "f"),
    ("FP64", "fp64_contents", [-1e300, 0.1], "d"),
]


class GrpcCase(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.grpc, options=[
            ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
        cls.addClassCleanup(cls.channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(cls.channel)

    def message(self, model="identity", raw=pack([1.0, 2.0]), shape=(1, 2), datatype="FP32", **more):
        value = pb.ModelInferRequest(model_name=model, **more)
        value.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
        value.raw_input_contents.append(raw)
        return value


def models(repository):
    repository.model("identity", identity(batch=8))
    for name, _, _, _ in TYPED:
        repository.model(f"type_{name}", identity([("INPUT0", name, (-1,))]))
    repository.model("type_BYTES", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("slow", identity([("INPUT0", "FP32", (-1, -1))], parameters={"execute_delay_ms": "300"}))


class Calls(GrpcCase):
    models = staticmethod(models)

    def test_live_and_ready(self):
        self.assertTrue(self.stub.ServerLive(pb.ServerLiveRequest()).live)
        self.assertTrue(self.stub.ServerReady(pb.ServerReadyRequest()).ready)
        self.assertTrue(self.stub.ModelReady(pb.ModelReadyRequest(name="identity")).ready)
        self.assertTrue(self.stub.ModelReady(pb.ModelReadyRequest(name="identity", version="1")).ready)

    def test_ready_of_what_is_not_there(self):
        """No error: clients ask for models that may come."""
        for name, version in (("absent", ""), ("absent", "1"), ("identity", "9"), ("", "")):
            self.assertFalse(self.stub.ModelReady(pb.ModelReadyRequest(name=name, version=version)).ready, (name, version))

    def health(self, method, response_kind="unary_unary"):
        return getattr(self.channel, response_kind)(f"/grpc.health.v1.Health/{method}")

    def test_health_check(self):
        for service in (b"", b"\x0a\x01x"):
            self.assertEqual(self.health("Check")(service, timeout=5), b"\x08\x01")

    @conch_only
    def test_health_watch(self):
        stream = self.health("Watch", "unary_stream")(b"", timeout=5)
        self.assertEqual(next(iter(stream)), b"\x08\x01")
        stream.cancel()

    def test_server_metadata(self):
        meta = self.stub.ServerMetadata(pb.ServerMetadataRequest())
        self.assertEqual(meta.name, "triton")
        self.assertIn("binary_tensor_data", meta.extensions)

    def test_model_metadata(self):
        meta = self.stub.ModelMetadata(pb.ModelMetadataRequest(name="identity"))
        self.assertEqual((meta.name, list(meta.versions)), ("identity", ["1"]))
        self.assertEqual([(row.name, row.datatype, list(row.shape)) for row in meta.inputs], [("INPUT0", "FP32", [-1, -1])])
        self.assertEqual([(row.name, row.datatype, list(row.shape)) for row in meta.outputs], [("OUTPUT0", "FP32", [-1, -1])])

    def test_model_config(self):
        config = self.stub.ModelConfig(pb.ModelConfigRequest(name="identity")).config
        self.assertEqual((config.name, config.backend, config.max_batch_size), ("identity", "identity", 8))
        self.assertEqual((config.input[0].name, list(config.input[0].dims)), ("INPUT0", [-1]))
        self.assertEqual(config.version_policy.latest.num_versions, 1)
        self.assertEqual((config.instance_group[0].name, config.instance_group[0].count), ("identity_0", 1))

    def test_statistics(self):
        def read():
            return self.stub.ModelStatistics(pb.ModelStatisticsRequest(name="identity")).model_stats[0]
        before = read()
        self.stub.ModelInfer(self.message(raw=pack([1.0] * 4), shape=(2, 2)))
        after = read()
        self.assertEqual(after.inference_count - before.inference_count, 2)
        self.assertEqual(after.execution_count - before.execution_count, 1)
        self.assertEqual(after.inference_stats.success.count - before.inference_stats.success.count, 1)

    def test_repository_index(self):
        rows = {row.name: row for row in self.stub.RepositoryIndex(pb.RepositoryIndexRequest()).models}
        self.assertEqual((rows["identity"].version, rows["identity"].state), ("1", "READY"))

    def test_raw_contents(self):
        reply = self.stub.ModelInfer(self.message(id="mine"))
        self.assertEqual((reply.id, reply.model_name, reply.model_version), ("mine", "identity", "1"))
        output = reply.outputs[0]
        self.assertEqual((output.name, output.datatype, list(output.shape)), ("OUTPUT0", "FP32", [1, 2]))
        self.assertEqual(list(reply.raw_output_contents), [pack([1.0, 2.0])])

    def test_typed_contents(self):
        for name, field, values, code in TYPED:
            with self.subTest(name):
                value = pb.ModelInferRequest(model_name=f"type_{name}")
                entry = value.inputs.add(name="INPUT0", datatype=name, shape=[2])
                getattr(entry.contents, field).extend(values)
                self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack(values, code))
        value = pb.ModelInferRequest(model_name="type_BYTES")
        entry = value.inputs.add(name="INPUT0", datatype="BYTES", shape=[2])
        entry.contents.bytes_contents.extend([b"", b"\xff\0"])
        self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], b"\0\0\0\0\2\0\0\0\xff\0")

    def test_extra_raw_contents_are_ignored(self):
        value = self.message()
        value.raw_input_contents.append(b"more")
        self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack([1.0, 2.0]))

    def test_zero_size_tensor(self):
        reply = self.stub.ModelInfer(self.message("type_FP32", raw=b"", shape=(0,)))
        self.assertEqual((list(reply.outputs[0].shape), list(reply.raw_output_contents)), ([0], [b""]))

    def test_parameters(self):
        value = self.message()
        value.parameters["sequence_id"].int64_param = 3
        value.parameters["sequence_start"].bool_param = True
        value.parameters["text"].string_param = "x"
        value.parameters["whole"].int64_param = 1
        self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack([1.0, 2.0]))

    def test_large_message(self):
        raw = bytes(range(256)) * (64 << 10)  # 16 MiB, above every default limit of gRPC libraries
        reply = self.stub.ModelInfer(self.message(raw=raw, shape=(1, len(raw) // 4)), timeout=30)
        self.assertTrue(reply.raw_output_contents[0] == raw)

    def test_many_calls_at_once(self):
        calls = [self.stub.ModelInfer.future(self.message(raw=pack([float(i), 0.0]))) for i in range(500)]
        for index, call in enumerate(calls):
            self.assertEqual(call.result(timeout=20).raw_output_contents[0], pack([float(index), 0.0]))

    def test_deadline(self):
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(self.message("slow"), timeout=0.05)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertEqual(self.stub.ModelInfer(self.message("slow"), timeout=5).raw_output_contents[0], pack([1.0, 2.0]))


@conch_only
@needs_library("probe")
class Cancelled(GrpcCase):
    """Calls that are cancelled while another executes, which a file holds until the test lets it go."""

    INT32 = {"raw": pack([1, 2, 3, 4], "i"), "shape": (4,), "datatype": "INT32"}

    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.gate = cls.record.folder / "gate"
        cls.flags = (cls.record.flag,)
        cls.models = staticmethod(lambda repository: repository.model("held", probe(gate=cls.gate)))
        cls.gate.write_text("0")
        super().setUpClass()

    def test_cancelled_requests_are_not_executed(self):
        before = self.server.statistics("held")["execution_count"]
        self.addCleanup(self.gate.write_text, "1000")
        with self.server.telling_states():
            calls = [self.stub.ModelInfer.future(self.message("held", id="cancelled-0", **self.INT32))]
            self.server.wait_for_state("cancelled-0", "EXECUTING")
            calls += [self.stub.ModelInfer.future(self.message("held", id=f"cancelled-{index}", **self.INT32)) for index in range(1, 6)]
            for index in range(1, 6):
                self.server.wait_for_state(f"cancelled-{index}", "PENDING")
            for call in calls[1:]:
                call.cancel()
            for index in range(1, 6):
                self.server.wait_for_state(f"cancelled-{index}", "RELEASED")
            self.gate.write_text("1000")
            calls[0].result(timeout=30)
        self.stub.ModelInfer(self.message("held", **self.INT32), timeout=30)
        self.assertEqual(self.server.statistics("held")["execution_count"] - before, 2, "the first and the last")


class Frames(GrpcCase):
    """The same calls by hand-made frames: in any pieces, over any windows, left at any point."""

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))
        repository.model("slow", identity([("INPUT0", "FP32", (-1, -1))], parameters={"execute_delay_ms": "300"}))
        repository.model("slower", identity([("INPUT0", "FP32", (-1, -1))], parameters={"execute_delay_ms": "3000"}))

    def body(self, **more):
        text = self.message(**more).SerializeToString()
        return b"\0" + len(text).to_bytes(4, "big") + text

    def open(self, settings=b""):
        link = wire.Http2(self.server)
        self.addCleanup(link.close)
        link.link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, settings))
        return link

    def call(self, link, payload, stream=1, head=None, end=True):
        head = head if head is not None else wire.call_head("ModelInfer")
        return link.send(wire.frame(wire.HEADERS, 4, stream, head), wire.frame(wire.DATA, int(end), stream, payload))

    def reply(self, link, stream=1, decoder=None):
        """(fields of head and trailers, message) of a call's answer; fields has `reset` if the stream was."""
        decoder, fields, data = decoder or hpack.Decoder(), {}, b""
        while (frame := link.next()) is not None:
            kind, flags, number, content = frame
            if kind == wire.HEADERS:
                got = decoder.decode(content)
                fields.update(got if number == stream else {})
            if number != stream:
                continue
            if kind == wire.DATA:
                data += content
            if kind == wire.RST_STREAM:
                return {**fields, "reset": int.from_bytes(content, "big")}, data
            if kind in (wire.HEADERS, wire.DATA) and flags & 1:
                return fields, data
        return {**fields, "closed": True}, data

    def assert_answered(self, link, stream=1, raw=pack([1.0, 2.0]), decoder=None):
        fields, data = self.reply(link, stream, decoder)
        self.assertEqual(fields.get("grpc-status"), "0", fields)
        self.assertEqual(pb.ModelInferResponse.FromString(data[5:]).raw_output_contents[0], raw)

    def assert_serves_calls(self):
        self.assertEqual(self.stub.ModelInfer(self.message(), timeout=5).raw_output_contents[0], pack([1.0, 2.0]))

    def test_a_byte_per_frame(self):
        link = self.open()
        link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelInfer")))
        payload = self.body()
        for index, byte in enumerate(payload):
            link.send(wire.frame(wire.DATA, int(index + 1 == len(payload)), 1, bytes([byte])))
        self.assert_answered(link)

    def test_a_byte_per_packet(self):
        link, payload = self.open(), self.body()
        raw = wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelInfer")) + wire.frame(wire.DATA, 1, 1, payload)
        for byte in raw:
            link.link.send(bytes([byte]))
        self.assert_answered(link)

    @conch_only
    def test_padded_and_split_head(self):
        link, head, payload = self.open(), wire.call_head("ModelInfer"), self.body()
        link.send(wire.frame(wire.HEADERS, 0, 1, head[:20]), wire.frame(wire.CONTINUATION, 0, 1, head[20:40]),
                  wire.frame(wire.CONTINUATION, 4, 1, head[40:]),
                  wire.frame(wire.DATA, 8 | 1, 1, bytes([200]) + payload + bytes(200)))
        self.assert_answered(link)

    def test_answer_waits_for_a_window(self):
        """No byte of an answer beyond the windows, and all of it once they open."""
        count = 10_000  # within the windows that a server has to give at first
        raw = pack([float(i % 97) for i in range(count)])
        link = self.open(b"\0\4\0\0\0\0")  # INITIAL_WINDOW_SIZE 0
        payload = self.body(raw=raw, shape=(1, count))
        link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelInfer")))
        for start in range(0, len(payload), 16000):
            link.send(wire.frame(wire.DATA, int(start + 16000 >= len(payload)), 1, payload[start:start + 16000]))
        self.assertIsNotNone(link.wait_for(wire.HEADERS))
        link.link.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            link.wait_for(wire.DATA)
        self.assert_serves_calls()
        link.link.settimeout(10)
        data, window = b"", 0
        for step in (1, 5, 1000, 16_384, 10_000, 40_000):
            link.send(wire.frame(wire.WINDOW_UPDATE, 0, 1, step.to_bytes(4, "big")))
            window += step
            while len(data) < min(window, len(raw)):
                data += link.wait_for(wire.DATA)[3]
            self.assertLessEqual(len(data), window)
        while not (frame := link.next())[1] & 1:
            data += frame[3]
        self.assertEqual(pb.ModelInferResponse.FromString(data[5:]).raw_output_contents[0], raw)

    def test_large_answers_on_one_connection(self):
        """Answers of many frames, several at once: nothing is held back at their ends."""
        count = 150_528
        raw = pack([float(i % 251) for i in range(count)])
        begun = time.monotonic()
        calls = [self.stub.ModelInfer.future(self.message(raw=raw, shape=(1, count))) for _ in range(20)]
        for call in calls:
            self.assertTrue(call.result(timeout=20).raw_output_contents[0] == raw)
        for _ in range(10):  # one after the other: the end of an answer must not wait for the next
            self.assertTrue(self.stub.ModelInfer(self.message(raw=raw, shape=(1, count)), timeout=5).raw_output_contents[0] == raw)
        # An end that waits for something else waits for the deadline of its call.
        self.assertLess(time.monotonic() - begun, 20)

    def test_withdrawn_at_every_point(self):
        link, payload = self.open(), self.body()
        for turn in range(len(payload) + 1):
            stream = 2 * turn + 1
            self.call(link, payload[:turn], stream, end=turn % 2 == 0)
            link.send(wire.frame(wire.RST_STREAM, 0, stream, b"\0\0\0\x08"))
        last = 2 * len(payload) + 3
        self.call(link, payload, last)
        self.assert_answered(link, last)

    def test_gone_at_every_point(self):
        payload = self.body()
        raw = wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0) + wire.frame(
            wire.HEADERS, 4, 1, wire.call_head("ModelInfer")) + wire.frame(wire.DATA, 1, 1, payload)
        for end in range(0, len(raw), 3):
            with wire.connect(self.server, "grpc") as link:
                link.sendall(raw[:end])
        self.assert_serves_calls()

    @conch_only
    def test_gone_while_it_executes(self):
        before = self.server.statistics("slow")["inference_stats"]["success"]["count"]
        with self.server.telling_states():
            for index in range(5):
                link = self.open()
                self.call(link, self.body(model="slow", id=f"gone-{index}"))
                self.server.wait_for_state(f"gone-{index}", "PENDING")
                link.close()
        self.stub.ModelInfer(self.message("slow"), timeout=5)
        done = self.server.statistics("slow")["inference_stats"]["success"]["count"] - before
        self.assertLessEqual(done, 3)  # the last, and what had begun when its client went

    def test_deadline_while_the_message_arrives(self):
        link = self.open()
        begun = time.monotonic()
        link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelInfer", ("grpc-timeout", "200m"))))
        fields, _ = self.reply(link)
        self.assertTrue(fields.get("grpc-status") == "4" or fields.get("reset") == 8, fields)
        self.assertLess(time.monotonic() - begun, 8, "before the link gives up")

    def test_deadline_while_it_executes(self):
        """Kept by the server, whether or not the client keeps its own."""
        link = self.open()
        begun = time.monotonic()
        self.call(link, self.body(model="slower"), head=wire.call_head("ModelInfer", ("grpc-timeout", "100m")))
        fields, _ = self.reply(link)
        self.assertTrue(fields.get("grpc-status") == "4" or fields.get("reset") == 8, fields)
        self.assertLess(time.monotonic() - begun, 3, "before the execution ends")

    def test_deadline_is_past(self):
        for value in ("0n", "1n"):
            link = self.open()
            self.call(link, self.body(model="slow"), head=wire.call_head("ModelInfer", ("grpc-timeout", value)))
            fields, _ = self.reply(link)
            self.assertTrue(fields.get("grpc-status") == "4" or fields.get("reset") == 8, fields)

    @staticmethod
    def head(*fields, verb="POST"):
        return wire.hpack((":method", verb), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer"),
                          (":authority", "t"), *fields)

    def heads(self):
        """Heads of calls, and what the answer says."""
        te, kind = ("te", "trailers"), ("content-type", "application/grpc")
        served, call = {":status": "200", "grpc-status": "0"}, wire.call_head
        yield "te_missing", self.head(kind), served
        yield "content_type_with_codec", self.head(te, ("content-type", "application/grpc+proto")), served
        yield "content_type_missing", self.head(te), {":status": "415", "grpc-status": None}
        yield "content_type_of_json", self.head(te, ("content-type", "application/json")), {":status": "415"}
        yield "verb", self.head(te, kind, verb="PUT"), {":status": "405"}
        yield "metadata_too_long", call("ModelInfer", *((f"x{i}", "y" * 900) for i in range(20))), {":status": "200", "grpc-status": "8"}
        yield "header_list_too_long", call("ModelInfer", *((f"x{i}", "y" * 900) for i in range(80))), {":status": "431"}
        yield "compressor_unknown", call("ModelInfer", ("grpc-encoding", "snappy")), {":status": "200", "grpc-status": "12"}
        yield "compressor_none", call("ModelInfer", ("grpc-encoding", "identity")), served
        yield "metadata", call("ModelInfer", ("x-trace-bin", "AAEC"), ("user-agent", "by hand")), served

    @conch_only
    def test_heads(self):
        for name, head, expected in self.heads():
            with self.subTest(name):
                self.check_head(head, expected)

    def check_head(self, head, expected):
        link, decoder = self.open(), hpack.Decoder()
        # A long head goes over several frames.
        frames = [head[at:at + 16000] for at in range(0, len(head), 16000)]
        for index, part in enumerate(frames):
            kind = wire.CONTINUATION if index else wire.HEADERS
            link.send(wire.frame(kind, 4 if index + 1 == len(frames) else 0, 1, part))
        link.send(wire.frame(wire.DATA, 1, 1, self.body()))
        fields, _ = self.reply(link, 1, decoder)
        self.assertEqual({name: fields.get(name) for name in expected}, expected, fields)
        # The connection lives on.
        self.call(link, self.body(), 3)
        self.assert_answered(link, 3, decoder=decoder)


class Delayed(unittest.TestCase):
    """What upstream's tests ask the environment for."""

    def test_answers_that_are_no_inferences(self):
        with Repository().model("m", identity([("INPUT0", "FP32", (-1, -1))])) as repository:
            with servers.Server(repository, kind=KIND, environment={"TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "2"}) as server:
                with grpc.insecure_channel(server.grpc) as channel:
                    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                    for call in (lambda **more: stub.ServerLive(pb.ServerLiveRequest(), **more),
                                 lambda **more: stub.ModelReady(pb.ModelReadyRequest(name="m"), **more),
                                 lambda **more: stub.RepositoryIndex(pb.RepositoryIndexRequest(), **more)):
                        with self.assertRaises(grpc.RpcError) as caught:
                            call(timeout=0.5)
                        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
                    stub.ServerLive(pb.ServerLiveRequest(), timeout=30)
                    value = pb.ModelInferRequest(model_name="m")
                    value.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 2))
                    value.raw_input_contents.append(pack([1.0, 2.0]))
                    stub.ModelInfer(value, timeout=30)

    @conch_only
    def test_inferences(self):
        environment = {"TRITONSERVER_DELAY_GRPC_PROCESS": "300", "TRITONSERVER_DELAY_RESPONSE_COMPLETION": "200",
                       "TRITONSERVER_DELAY_GRPC_RESPONSE": "250"}
        with Repository().model("m", identity([("INPUT0", "FP32", (-1, -1))])) as repository:
            with servers.Server(repository, environment=environment) as server:
                value = pb.ModelInferRequest(model_name="m")
                value.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 2))
                value.raw_input_contents.append(pack([1.0, 2.0]))
                with grpc.insecure_channel(server.grpc) as channel:
                    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                    start = time.monotonic()
                    stub.ModelInfer(value, timeout=30)
                    self.assertGreaterEqual(time.monotonic() - start, 0.5)
                    start = time.monotonic()
                    self.assertEqual(len(list(stub.ModelStreamInfer(iter([value, value]), timeout=30))), 2)
                    self.assertGreaterEqual(time.monotonic() - start, 0.5)
                for what in ("the submission of an inference by 300 ms", "the answer of an inference by 200 ms", "the write of the response by 250 ms"):
                    server.wait_for_text(f"Delaying {what}...")


@conch_only
class Drain(unittest.TestCase):
    """SIGTERM with connections open: what is in flight is answered, all else is no reason to wait."""

    def start(self, *flags, delay_ms=700):
        repository = Repository().model("slow", identity([("INPUT0", "FP32", (-1, -1))], parameters={
            "execute_delay_ms": str(delay_ms)}))
        self.addCleanup(repository.close)
        server = servers.Server(repository, *flags)
        self.addCleanup(server.kill)
        return server

    def slow(self, channel):
        value = pb.ModelInferRequest(model_name="slow", id="slow")
        value.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 2))
        value.raw_input_contents.append(pack([1.0, 2.0]))
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(value, timeout=20)

    def channel(self, server):
        channel = grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=5)
        return channel

    def test_idle_connections_do_not_hold_the_exit(self):
        """One of each: a library's idle channel, a bare connection that never answers a ping, one that never said a word, and
        an idle HTTP connection."""
        server = self.start()
        self.channel(server)
        bare = wire.Http2(server).start()
        self.addCleanup(bare.close)
        bare.wait_for(wire.SETTINGS)
        for port in ("grpc", "http", "metrics"):
            self.addCleanup(wire.connect(server, port).close)
        idle = wire.connect(server)
        self.addCleanup(idle.close)
        idle.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
        self.assertEqual(wire.Replies(idle).next()[0], 200)
        begun = time.monotonic()
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - begun, 15, "half of the time that an exit may take")
        # The bare one was told, at last with the number of the last call that was served: none.
        last = None
        while frame := bare.wait_for(wire.GOAWAY):
            last = frame
        self.assertEqual(last[3][:8], bytes(8))

    def test_what_is_in_flight_is_answered(self):
        server = self.start("--log-verbose=1")
        call, watch = self.slow(self.channel(server)), self.channel(server).unary_stream("/grpc.health.v1.Health/Watch")(b"")
        self.assertEqual(next(watch), b"\x08\x01")
        self.channel(server)
        server.wait_for_state("slow", "EXECUTING")
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(call.result().raw_output_contents[0], pack([1.0, 2.0]))
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - begun, 15, "half of the time that an exit may take")
        with self.assertRaises(grpc.RpcError) as caught:
            while next(watch):
                pass
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_calls_that_come_while_it_drains(self):
        """They are refused as not served, not lost: on the old connection by a status, and no new one is taken."""
        server = self.start("--log-verbose=1", delay_ms=1000)
        slow, other = self.channel(server), wire.Http2(server).start()
        self.addCleanup(other.close)
        # A connection that the drain finds before its first frame is closed as a new one.
        self.assertIsNotNone(other.wait_for(wire.SETTINGS))
        call = self.slow(slow)
        server.wait_for_state("slow", "EXECUTING")
        server.process.send_signal(signal.SIGTERM)
        self.assertIsNotNone(other.wait_for(wire.GOAWAY))
        other.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelInfer")), wire.frame(wire.DATA, 1, 1, b"\0\0\0\0\0"))
        decoder, fields = hpack.Decoder(), {}
        while (frame := other.wait_for(wire.HEADERS)) is not None:
            fields.update(decoder.decode(frame[3]))
            break
        self.assertEqual(fields.get("grpc-status"), "14", fields)
        with self.assertRaises(OSError):
            wire.connect(server, "grpc").close()
        self.assertEqual(len(call.result().raw_output_contents), 1)
        self.assertEqual(server.terminate(), 0)

    def test_deadline_of_the_drain(self):
        """A call that does not end in time is dropped with its connection."""
        server = self.start("--exit-timeout-secs=1", "--log-verbose=1", delay_ms=20_000)
        call = self.slow(self.channel(server))
        server.wait_for_state("slow", "EXECUTING")
        begun = time.monotonic()
        self.assertEqual(server.terminate(), 1)
        self.assertLess(time.monotonic() - begun, 15, "less than the execution takes")
        self.assertEqual(call.code(), grpc.StatusCode.UNAVAILABLE)

    def test_reader_that_takes_nothing_does_not_outlive_the_deadline(self):
        """An answer that its client gives no window for holds the exit up to the deadline, not longer."""
        server = self.start("--exit-timeout-secs=1", delay_ms=1)
        link = wire.Http2(server)
        self.addCleanup(link.close)
        link.link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, b"\0\4\0\0\0\0"))  # INITIAL_WINDOW_SIZE 0
        value = pb.ModelInferRequest(model_name="slow")
        value.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 2))
        value.raw_input_contents.append(pack([1.0, 2.0]))
        body = value.SerializeToString()
        link.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelInfer")),
                  wire.frame(wire.DATA, 1, 1, b"\0" + len(body).to_bytes(4, "big") + body))
        self.assertIsNotNone(link.wait_for(wire.HEADERS))
        begun = time.monotonic()
        server.terminate()
        self.assertLess(time.monotonic() - begun, 15)
        while link.next() is not None:  # up to the end of the connection
            pass


class Overlap(GrpcCase):
    """Three instances execute three requests at once, and a fourth waits for one of them."""

    @staticmethod
    def models(repository):
        repository.model("three", identity([("INPUT0", "FP32", (-1, -1))], count=3, parameters={"execute_delay_ms": "700"}))

    def test_three_instances(self):
        with self.server.telling_states():
            calls = [self.stub.ModelInfer.future(self.message("three", id=f"overlap-{index}")) for index in range(4)]
            for call in calls:
                call.result(timeout=10)
            for index in range(4):
                self.server.wait_for_state(f"overlap-{index}", "RELEASED")
        inside = []
        for state in re.findall(r"request id: overlap-\d\] Setting state from [A-Z]+ to (EXECUTING|RELEASED)", self.server.output):
            inside.append((inside or [0])[-1] + (1 if state == "EXECUTING" else -1))
        self.assertEqual((max(inside), len(inside), inside[-1]), (3, 8, 0), inside)


if __name__ == "__main__":
    unittest.main()
