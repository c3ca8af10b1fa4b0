"""What keeps gRPC connections honest, and ends them: keepalive pings, the client's own pings, ages; and reflection."""

import pathlib
import struct
import time
import unittest

import grpc
import hpack
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as pb

import wire
from case import conch_only
from repository import identity
from test_grpc import GrpcCase

# What a GOAWAY says that names no last call, and no error.
EVERY_STREAM = struct.pack(">II", 0x7FFF_FFFF, 0)
TOO_MANY_PINGS = struct.pack(">I", 11) + b"too_many_pings"


def models(repository):
    repository.model("identity", identity(batch=8))


class Connection(wire.Http2):
    """Reads with a clock."""

    def frames(self, seconds, answers=True):
        """(seconds since the call, kind, flags, payload) of what comes within `seconds`; kind None at the end of the connection."""
        begun, rows = time.monotonic(), []
        while (left := begun + seconds - time.monotonic()) > 0:
            self.link.settimeout(left)
            try:
                got = self.next()
            except TimeoutError:
                break
            at = time.monotonic() - begun
            if got is None:
                return rows + [(at, None, 0, b"")]
            kind, flags, _, payload = got
            rows.append((at, kind, flags, payload))
            if kind == wire.PING and not flags & 1 and answers:
                self.send(wire.frame(wire.PING, 1, 0, payload))
        return rows

    def open_call(self, stream=1):
        """A stream on which nobody says anything."""
        return self.send(wire.frame(wire.HEADERS, 4, stream, wire.call_head("ModelStreamInfer")))


class Base(GrpcCase):
    models = staticmethod(models)

    def connect(self, has_call=False):
        connection = Connection(self.server).start()
        self.addCleanup(connection.close)
        connection.wait_for(wire.SETTINGS)
        connection.send(wire.frame(wire.SETTINGS, 1, 0))
        if has_call:
            connection.open_call()
        return connection

    def assert_serves(self):
        with grpc.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            self.assertEqual(live(b"", timeout=10), b"\x08\x01")


def pings(rows):
    return [row for row in rows if row[1] == wire.PING and not row[2] & 1]


def ends(rows):
    return [row[0] for row in rows if row[1] is None]


class Keepalive(Base):
    flags = ("--grpc-keepalive-time=300", "--grpc-keepalive-timeout=600")

    def test_pings_while_a_call_is_open(self):
        rows = self.connect(has_call=True).frames(4)
        # As often as it says, give or take a busy machine; not only as often as data goes out.
        self.assertGreaterEqual(len(pings(rows)), 4, rows)
        self.assertLessEqual(len(pings(rows)), 13, rows)
        self.assertEqual(ends(rows), [])

    def test_no_pings_without_a_call(self):
        connection = self.connect()
        self.assertEqual(pings(connection.frames(1.5)), [])
        connection.open_call()
        self.assertGreaterEqual(len(pings(connection.frames(1.5))), 2)

    def test_who_does_not_answer_is_left(self):
        rows = self.connect(has_call=True).frames(5, answers=False)
        self.assertEqual(len(pings(rows)), 1, rows)
        self.assertEqual(len(ends(rows)), 1, rows)
        self.assertGreater(ends(rows)[0], 0.8)
        self.assert_serves()

    @conch_only
    def test_who_sends_without_answering_is_there(self):
        connection = self.connect(has_call=True)
        for _ in range(8):
            self.assertEqual(ends(connection.frames(0.3, answers=False)), [])
            connection.send(wire.frame(wire.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))


@conch_only
class Idle(Base):
    def test_the_kernel_looks_after_idle_connections(self):
        """Who has no call gets no ping by default; if it is gone without a word, the kernel finds out."""
        for port in ("grpc", "http"):
            link = wire.connect(self.server, port)
            self.addCleanup(link.close)
            ends = [f":{end:04X}" for end in (self.server.ports[port], link.getsockname()[1])]
            until, timers = time.monotonic() + 10, []
            while not timers and time.monotonic() < until:
                rows = [row.split() for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
                timers = [row[5] for row in rows if [row[1][-5:], row[2][-5:]] == ends]
            # The kind of the timer that runs: 2 is keepalive's.
            self.assertEqual([timer[:3] for timer in timers], ["02:"])


class KeepaliveWithoutCalls(Base):
    flags = ("--grpc-keepalive-time=300", "--grpc-keepalive-timeout=600", "--grpc-keepalive-permit-without-calls=true")

    def test_pings(self):
        self.assertGreaterEqual(len(pings(self.connect().frames(2))), 3)

    def test_who_does_not_answer_is_left(self):
        rows = self.connect().frames(5, answers=False)
        self.assertEqual((len(pings(rows)), len(ends(rows))), (1, 1), rows)


class Strikes(Base):
    """The client's pings. Each row: has a call, pings, pause, whether it is borne."""

    ROWS = ((False, 3, 0.05, True), (False, 5, 0.05, False), (True, 3, 0.05, True), (True, 7, 0.05, False))

    def check(self, has_call, count, pause):
        connection = self.connect(has_call)
        connection.frames(0.3)
        rows = []
        for index in range(count):
            try:
                connection.send(wire.frame(wire.PING, 0, 0, struct.pack(">Q", index)))
            except ConnectionError:
                break
            rows += connection.frames(pause)
            if ends(rows):
                break
        return rows + ([] if ends(rows) else connection.frames(1))

    def test_rows(self):
        for has_call, count, pause, is_borne in self.ROWS:
            with self.subTest(has_call=has_call, count=count, pause=pause):
                rows = self.check(has_call, count, pause)
                answered = sum(row[1] == wire.PING and row[2] & 1 for row in rows)
                if is_borne:
                    self.assertEqual((answered, ends(rows)), (count, []), rows)
                    continue
                self.assertEqual(len(ends(rows)), 1, rows)
                farewell = [row[3] for row in rows if row[1] == wire.GOAWAY]
                self.assertEqual(farewell, [struct.pack(">I", 1 if has_call else 0) + TOO_MANY_PINGS])
        self.assert_serves()

    def test_answers_make_up_for_pings(self):
        """As clients do that measure their bandwidth."""
        connection = self.connect()
        for index in range(8):
            stream = 2 * index + 1
            connection.send(
                wire.frame(wire.HEADERS, 4, stream, wire.call_head("ServerLive")), wire.frame(wire.DATA, 1, stream, bytes(5)),
                wire.frame(wire.PING, 0, 0, bytes(8)))
            connection.link.settimeout(10)
            self.assertIsNotNone(connection.wait_for(wire.DATA))
            connection.frames(0.05)
        self.assertEqual(ends(connection.frames(0.1)), [])


class ManyStrikes(Strikes):
    flags = ("--grpc-http2-max-ping-strikes=4",)
    ROWS = ((False, 5, 0.05, True), (False, 7, 0.05, False), (True, 5, 0.05, True), (True, 9, 0.05, False))


class NoStrikes(Strikes):
    flags = ("--grpc-http2-max-ping-strikes=0",)
    ROWS = ((False, 30, 0.005, True), (True, 30, 0.005, True))


class ShortInterval(Strikes):
    flags = ("--grpc-http2-min-recv-ping-interval-without-data=100",)
    # Without a call the interval is two hours.
    ROWS = ((True, 7, 0.15, True), (True, 8, 0.02, False), (False, 5, 0.15, False))


class ShortIntervalWithoutCalls(Strikes):
    flags = (*ShortInterval.flags, "--grpc-keepalive-permit-without-calls=true")
    ROWS = ((True, 7, 0.15, True), (False, 7, 0.15, True), (False, 8, 0.02, False))


class Age(Base):
    flags = ("--grpc-max-connection-age=1000", "--grpc-max-connection-age-grace=800")

    def test_idle(self):
        rows = self.connect().frames(5)
        goaways = [(row[0], row[3]) for row in rows if row[1] == wire.GOAWAY]
        # First all calls are still let in, then it is named which was the last.
        *announced, last = [payload for _, payload in goaways]
        self.assertEqual((set(announced), last), ({EVERY_STREAM}, bytes(8)), rows)
        self.assertTrue(0.8 <= goaways[0][0] <= 1.6, rows)
        self.assertLess(ends(rows)[0], goaways[0][0] + 0.7)

    def test_a_call_has_the_time_of_grace(self):
        rows = self.connect(has_call=True).frames(6)
        goaways = [row[0] for row in rows if row[1] == wire.GOAWAY]
        self.assertTrue(0.8 <= goaways[0] <= 1.6, rows)
        self.assertTrue(0.6 <= ends(rows)[0] - goaways[0] <= 1.6, rows)

    def test_calls_go_on_over_new_connections(self):
        with grpc.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            until, count = time.monotonic() + 3.5, 0
            while time.monotonic() < until:
                # A call that meets the end of its connection before it was taken is repeated by the library itself.
                self.assertEqual(live(b"", timeout=10, wait_for_ready=True), b"\x08\x01")
                count += 1
                time.sleep(0.002)  # a pause of the client: some calls come as a connection ends
            self.assertGreater(count, 100)


class AgeWithoutGrace(Base):
    flags = ("--grpc-max-connection-age=700",)

    def test_a_call_may_go_on(self):
        connection = self.connect(has_call=True)
        rows = connection.frames(3)
        *announced, last = [row[3] for row in rows if row[1] == wire.GOAWAY]
        self.assertEqual((set(announced), last), ({EVERY_STREAM}, struct.pack(">II", 1, 0)), rows)
        self.assertEqual(ends(rows), [])
        connection.send(wire.frame(wire.DATA, 1, 1))
        rows = connection.frames(3)
        self.assertEqual(len(ends(rows)), 1, rows)

    def test_a_call_that_was_under_way_ends_no_other(self):
        """A client may answer a ping before it sends the frames of a call that it has begun."""
        for _ in range(3):
            connection = self.connect(has_call=True)
            connection.link.settimeout(10)
            self.assertEqual(connection.wait_for(wire.GOAWAY)[3], EVERY_STREAM)
            rows = connection.frames(0.1)
            connection.send(
                wire.frame(wire.HEADERS, 4, 3, wire.call_head("ServerLive")),
                wire.frame(wire.WINDOW_UPDATE, 0, 3, struct.pack(">I", 1000)), wire.frame(wire.DATA, 1, 3, bytes(5)))
            rows += connection.frames(1.5)
            self.assertEqual(ends(rows), [])
            self.assertEqual([row[3] for row in rows if row[1] == wire.GOAWAY and row[3][4:] != bytes(4)], [])
            connection.send(wire.frame(wire.DATA, 1, 1))
            rows = connection.frames(3)
            self.assertIn(wire.HEADERS, [row[1] for row in rows], "the first call was answered")
            self.assertEqual(len(ends(rows)), 1, rows)


class Sizes(Base):
    def test_metadata_within_the_limit(self):
        live = self.channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        self.assertEqual(live(b"", metadata=[("x", "a" * 7000)]), b"\x08\x01")

    def test_metadata_over_the_limit(self):
        live = self.channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        for length in (20_000, 50_000):
            with self.assertRaises(grpc.RpcError) as caught:
                live(b"", metadata=[("x", "a" * length)], timeout=10)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assert_serves()

    @conch_only
    def test_messages_over_the_limit(self):
        """By their prefix alone: nothing of them is waited for."""
        for method, length, limit in (("ModelInfer", 2**31, 2**31 - 1), ("ModelStreamInfer", 2**32 - 1, 2**31 - 1),
                                      ("ServerLive", (4 << 20) + 1, 4 << 20)):
            connection, decoder = self.connect(), hpack.Decoder()
            connection.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head(method)),
                            wire.frame(wire.DATA, 0, 1, b"\0" + struct.pack(">I", length)))
            fields = {}
            while "grpc-status" not in fields:
                fields.update(decoder.decode(connection.wait_for(wire.HEADERS)[3]))
            self.assertEqual((fields["grpc-status"], fields["grpc-message"]),
                             ("8", f"Received message larger than max ({length} vs. {limit})"))
            connection.close()


@conch_only
class Reflection(Base):
    """Upstream has none."""

    SERVICES = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
                "inference.GRPCInferenceService"]

    def test_a_client_that_knows_nothing(self):
        """Finds a method, makes its messages, calls it; by the public library's client."""
        database = ProtoReflectionDescriptorDatabase(self.channel)
        self.assertEqual(sorted(database.get_services()), self.SERVICES)
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        self.assertEqual({method.name for method in service.methods},
                         {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods})
        method = service.FindMethodByName("ModelMetadata")
        question, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = self.channel.unary_unary(f"/{service.full_name}/{method.name}",
                                        request_serializer=question.SerializeToString, response_deserializer=answer.FromString)
        self.assertEqual([tensor.name for tensor in call(question(name="identity")).inputs], ["INPUT0"])
        # Across files.
        config = pool.FindMessageTypeByName("inference.ModelConfig")
        self.assertEqual(config.file.name, "model_config.proto")
        for name in ("inference.Absent", "", "inference"):
            with self.assertRaises(KeyError):
                pool.FindMessageTypeByName(name)

    def ask(self, version, *questions, **more):
        call = self.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        return list(call(iter(questions), timeout=10, **more))

    def test_both_versions(self):
        """By hand: the messages are the same, and many may go over one call."""
        symbol = b"inference.GRPCInferenceService.ModelInfer"
        questions = [b"\x3a\x00", b"\x22" + bytes([len(symbol)]) + symbol, b"\x1a\x0chealth.proto", b"\x32\x18inference.InferParameter",
                     b"\x22\x01x", b"\x1a\x01x", b"\x32\x01x", b"\x2a\x02\x10\x01", b"", b"\x0a\x01h\x3a\x00"] * 20
        for version in ("v1", "v1alpha"):
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
                answers = self.ask(version, *questions, compression=compression)
                self.assertEqual(len(answers), len(questions))
                services, file, other, numbers, *failures, named = answers[:10]
                for name in self.SERVICES:
                    self.assertIn(name.encode(), services)
                self.assertIn(b"grpc_service.proto", file)
                self.assertIn(b"model_config.proto", file)
                self.assertIn(b"HealthCheckResponse", other)
                self.assertIn(b"inference.InferParameter", numbers[-40:])
                for failure, code in zip(failures, (5, 5, 5, 5, 3), strict=True):
                    self.assertIn(b"\x08" + bytes([code]), failure)
                self.assertTrue(named.startswith(b"\x0a\x01h"))

    def test_bad_questions_end_the_call(self):
        for question, code in ((b"\xff\xff", grpc.StatusCode.INTERNAL), (b"\x22\x80\x80\x08" + b"x" * (1 << 17), grpc.StatusCode.RESOURCE_EXHAUSTED)):
            with self.assertRaises(grpc.RpcError) as caught:
                self.ask("v1", question)
            self.assertEqual(caught.exception.code(), code)
        with self.assertRaises(grpc.RpcError) as caught:
            self.ask("v1beta", b"")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_silence_is_ended_by_the_deadline(self):
        call = self.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")

        def silent():
            time.sleep(3)  # the silence itself
            yield b""
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(silent(), timeout=0.5))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)


if __name__ == "__main__":
    unittest.main()
