"""Input that no honest client sends: truncated, oversized, overflowing, smuggled HTTP, broken HTTP/2. Each must be refused,
harm nobody else, and leave a server that serves the next request."""

import contextlib
import json
import os
import pathlib
import random
import resource
import socket
import struct
import time
import unittest

import grpc
import hpack
from tritonclient.grpc import service_pb2, service_pb2_grpc

import wire
from case import ServerCase, conch_only, pack
from repository import identity
from waiting import until, until_equal

GOOD = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
PATH = "/v2/models/identity/infer"
BODY = json.dumps(GOOD).encode()


def models(repository):
    repository.model("identity", identity(batch=8))


def head(*rows, first=f"POST {PATH} HTTP/1.1"):
    return "\r\n".join([first, "Host: t", *rows]).encode("latin-1") + b"\r\n\r\n"


SMUGGLED_TAIL = b"GET /v2/smuggled HTTP/1.1\r\nHost: t\r\n\r\n"
# Each is answered by 400 (or the status given) and the connection is closed, so that nothing behind it is taken for a request.
REFUSED = {
    # Served by its chunks, which are empty here; nothing behind them is.
    "length_and_chunks": (head("Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED_TAIL, (200, 400)),
    "chunks_and_length": (head("Transfer-Encoding: chunked", "Content-Length: 4") + b"0\r\n\r\n" + SMUGGLED_TAIL, (200, 400)),
    "no_host": (b"GET /v2 HTTP/1.1\r\n\r\n" + SMUGGLED_TAIL, (400,)),
    "two_hosts": (head("Host: other", first="GET /v2 HTTP/1.1") + SMUGGLED_TAIL, (400,)),
    "two_lengths": (head("Content-Length: 0", "Content-Length: 40") + SMUGGLED_TAIL, (400,)),
    "list_of_lengths": (head("Content-Length: 0, 40") + SMUGGLED_TAIL, (400,)),
    "length_with_sign": (head("Content-Length: +2") + b"{}" + SMUGGLED_TAIL, (400,)),
    "length_negative": (head("Content-Length: -1") + SMUGGLED_TAIL, (400,)),
    "length_in_hex": (head("Content-Length: 0x2") + b"{}" + SMUGGLED_TAIL, (400,)),
    "length_not_a_number": (head("Content-Length: abc") + SMUGGLED_TAIL, (400,)),
    "length_above_64_bits": (head("Content-Length: 18446744073709551617"), (400, 413)),
    "length_of_2_to_63": (head("Content-Length: 9223372036854775808"), (400, 413)),
    "obscured_chunks": (head("Transfer-Encoding: xchunked") + b"0\r\n\r\n" + SMUGGLED_TAIL, (400, 501)),
    "chunks_not_last": (head("Transfer-Encoding: chunked, identity") + b"0\r\n\r\n" + SMUGGLED_TAIL, (400, 501)),
    "chunks_twice": (head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + b"0\r\n\r\n", (400, 501)),
    "space_before_colon": (head("Content-Length : 2") + b"{}", (400,)),
    "folded_header": (head("X: a", " b", "Content-Length: 0"), (400,)),
    "bare_line_feeds": (b"POST " + PATH.encode() + b" HTTP/1.1\nHost: t\nContent-Length: 4\r\n\r\n" + b"\n" * 4, (400, 500)),
    "nul_in_header": (head("X: a\0b", "Content-Length: 0"), (400,)),
    "no_method": (b" / HTTP/1.1\r\n\r\n", (400,)),
    "not_http": (b"\x17\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", (400,)),
    "unknown_version": (head(first="GET /v2 HTTP/3.7"), (400, 505)),
    "http2_on_http1": (wire.PREFACE, (400, 405, 505)),
    "header_too_long": (head("X: " + "a" * (1 << 20)), (400, 431)),
    "too_many_headers": (head(*[f"X{i}: 1" for i in range(20_000)]), (400, 431)),
    "path_too_long": (head(first="GET /" + "a" * (1 << 20) + " HTTP/1.1"), (400, 404, 414, 431)),
    "chunk_size_not_hex": (head("Transfer-Encoding: chunked") + b"zz\r\n", (400,)),
    "chunk_size_overflow": (head("Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n", (400, 413)),
    "chunk_size_negative": (head("Transfer-Encoding: chunked") + b"-1\r\n", (400,)),
    "chunk_without_end": (head("Transfer-Encoding: chunked") + b"2\r\n{}XX0\r\n\r\n", (400,)),
    "chunk_extension_endless": (head("Transfer-Encoding: chunked") + b"2;" + b"a" * (1 << 20) + b"\r\n{}\r\n0\r\n\r\n", (400, 431)),
}


@conch_only
class Http(ServerCase):
    models = staticmethod(models)

    def check(self, raw, statuses):
        with wire.connect(self.server) as link:
            try:
                link.sendall(raw)
            except ConnectionError:
                pass  # refused before everything was sent
            replies = wire.Replies(link)
            try:
                status = replies.next()[0]
            except ConnectionError:
                status = None  # its answer was lost because we were still sending
            self.assertIn(status, (*statuses, None))
            self.assertTrue(replies.is_closed(), f"open after {status}; held {replies.held[:100]!r}")
        self.assert_serves()

    def test_truncated_everywhere(self):
        """A request cut at every byte and then closed: no answer but perhaps an error, and never harm."""
        raw = wire.infer_json(GOOD)
        for end in range(1, len(raw)):
            with wire.connect(self.server) as link:
                link.sendall(raw[:end])
                link.shutdown(socket.SHUT_WR)
                self.assertNotIn(b"HTTP/1.1 200", link.recv(4096))
        self.assert_serves()

    def test_flipped_bytes(self):
        """Seeded noise over good requests, JSON and binary: always an answer or a closed connection."""
        seed = int(os.environ.get("SEED", "1"))
        noise = random.Random(seed)
        tail = pack([1.0, 2.0])
        originals = [wire.infer_json(GOOD), wire.infer_json({"inputs": [{
            "name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]}, tail)]
        for turn in range(1500):
            raw = bytearray(noise.choice(originals))
            for _ in range(noise.randint(1, 4)):
                raw[noise.randrange(len(raw))] = noise.randrange(256)
            with wire.connect(self.server, timeout=5) as link:
                try:
                    link.sendall(bytes(raw))
                    link.shutdown(socket.SHUT_WR)
                    while link.recv(65536):
                        pass
                except ConnectionError:
                    pass
                except TimeoutError:
                    self.fail(f"no answer: seed {seed}, turn {turn}: {bytes(raw)!r}")
        self.assert_serves()

    def test_reset_in_flight(self):
        for _ in range(200):
            with wire.connect(self.server) as link:
                link.sendall(wire.infer_json(GOOD) * 5)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.assert_serves()

    def test_deep_json_everywhere(self):
        for depth in (99, 100, 101, 1_000_000):
            for path in (PATH, "/v2/repository/index"):
                text = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
                status = self.exchange(wire.post(path, text))[0]
                self.assertLess(status, 501)
        self.assert_serves()

    def test_reader_that_never_reads(self):
        """Pipelined large answers that are not read must not be piled up without a bound."""
        count = 1 << 18
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, count],
                                       "parameters": {"binary_data_size": 4 * count}}],
                           "parameters": {"binary_data_output": True}}).encode()
        raw = wire.post(PATH, body + bytes(4 * count), f"Inference-Header-Content-Length: {len(body)}")
        before = self.server.resident_bytes()
        with wire.connect(self.server) as link:
            link.setblocking(False)
            sent, deadline = 0, time.monotonic() + 3
            whole = raw * 200  # 200 MiB
            while time.monotonic() < deadline and sent < len(whole):
                try:
                    sent += link.send(whole[sent:sent + (1 << 20)])
                except BlockingIOError:
                    time.sleep(0.02)  # a client that sends as fast as it may
            self.assertLess(self.server.resident_bytes() - before, 64 << 20)
            self.assert_serves()


for name, (raw, statuses) in REFUSED.items():
    setattr(Http, f"test_{name}", lambda self, raw=raw, statuses=statuses: self.check(raw, statuses))


H = wire
CALL = H.call_head("ServerLive")
EMPTY = b"\0\0\0\0\0"


def headers(stream=1, payload=CALL, flags=4):
    return H.frame(H.HEADERS, flags, stream, payload)


def data(stream=1, payload=EMPTY, flags=1):
    return H.frame(H.DATA, flags, stream, payload)


# Each breaks HTTP/2 itself: the server answers by GOAWAY, a reset of the stream or the end of the connection.
BROKEN = {
    "no_preface": (b"GET / HTTP/1.1\r\n\r\n" + bytes(64),),
    "data_on_stream_0": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), H.frame(H.DATA, 0, 0, b"x")),
    "data_on_idle_stream": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), data(5)),
    "headers_on_stream_0": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(0)),
    "even_stream": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(2)),
    "stream_backwards": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(5), data(5), headers(3), data(3)),
    "frame_too_long": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100)),
    "settings_of_odd_length": (H.PREFACE, H.frame(H.SETTINGS, 0, 0, b"x" * 5)),
    "settings_ack_with_content": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), H.frame(H.SETTINGS, 1, 0, b"x" * 6)),
    "window_of_zero": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), H.frame(H.WINDOW_UPDATE, 0, 0, bytes(4))),
    "window_overflow": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), *[H.frame(H.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")] * 2),
    "ping_of_odd_length": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), H.frame(H.PING, 0, 0, b"x")),
    "continuation_alone": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), H.frame(H.CONTINUATION, 4, 1, CALL)),
    "headers_cut_by_data": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(flags=0), data()),
    "bad_hpack": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(payload=b"\xff\xff\xff\xff\xff\x0f")),
    "padding_longer_than_frame": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(flags=4 | 8, payload=b"\xff" + CALL)),
    "upper_case_header": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(payload=CALL + H.hpack(("X-Upper", "1"))), data()),
    "pseudo_header_last": (H.PREFACE, H.frame(H.SETTINGS, 0, 0), headers(payload=H.hpack(("x", "1")) + CALL), data()),
}

# Each is sound HTTP/2 but not a sound gRPC call: (header block, DATA payload, END_STREAM, accepted grpc-status or HTTP status).
UNSOUND = {
    "frame_cut_short": (H.call_head("ModelInfer"), b"\0\0\0\0\x09abc", ("13", "3")),
    "length_above_limit": (H.call_head("ModelInfer"), b"\0\xff\xff\xff\xff", ("8", "13")),
    "compressed_without_encoding": (H.call_head("ModelInfer"), b"\1\0\0\0\0", ("12", "13")),
    "unknown_compressor": (H.call_head("ModelInfer", ("grpc-encoding", "other")), b"\1\0\0\0\1x", ("12",)),
    "reserved_flag": (H.call_head("ModelInfer"), b"\x07\0\0\0\0", ("12", "13", "3")),
    "two_messages": (H.call_head("ServerLive"), EMPTY * 2, ("12", "13", "3")),
    "no_message": (H.call_head("ServerLive"), b"", ("12", "13", "3")),
    "timeout_not_a_number": (H.call_head("ServerLive", ("grpc-timeout", "soon")), EMPTY, ("13", "3", "400")),
    "timeout_huge": (H.call_head("ServerLive", ("grpc-timeout", "999999999999999999H")), EMPTY, ("0", "13", "3", "400")),
    "content_type_of_the_web": (H.hpack((":method", "POST"), (":scheme", "http"), (":authority", "t"),
                                        (":path", "/inference.GRPCInferenceService/ServerLive"), ("te", "trailers"),
                                        ("content-type", "text/html")), EMPTY, ("415", "3", "12", "13", "2")),
    "get_instead_of_post": (H.hpack((":method", "GET"), (":scheme", "http"), (":authority", "t"),
                                    (":path", "/inference.GRPCInferenceService/ServerLive"), ("te", "trailers"),
                                    ("content-type", "application/grpc")), EMPTY, ("405", "12", "13", "2", "3")),
}


@conch_only
class Http2(ServerCase):
    models = staticmethod(models)

    def serves_grpc(self):
        with H.Http2(self.server).start() as link:
            link.send(headers(), data())
            while got := link.next():
                if got[0] == H.DATA and got[3]:
                    self.assertEqual(got[3], b"\0\0\0\0\2\x08\x01")
                    return
        self.fail("the server does not answer ServerLive")

    def check_broken(self, frames):
        with H.Http2(self.server, timeout=5) as link:
            try:
                link.send(*frames)
            except ConnectionError:
                pass
            got = link.wait_for(H.GOAWAY, H.RST_STREAM)
            self.assertTrue(got is None or got[0] in (H.GOAWAY, H.RST_STREAM))
        self.serves_grpc()
        self.assert_serves()

    def check_unsound(self, block, payload, accepted):
        decoder, fields = hpack.Decoder(), {}
        with H.Http2(self.server, timeout=5).start() as link:
            link.send(headers(payload=block), data(payload=payload))
            while got := link.next():
                kind, flags, _, content = got
                if kind == H.HEADERS:
                    fields.update(decoder.decode(content))
                if kind == H.RST_STREAM or (kind in (H.HEADERS, H.DATA) and flags & 1):
                    break
        self.assertIsNotNone(got, "the connection ended without an answer")
        if fields:  # a reset of the stream is an answer too
            status = fields.get("grpc-status", fields[":status"])
            self.assertIn(status, accepted, fields)
        self.serves_grpc()
        self.assert_serves()

    def test_rapid_reset(self):
        """Calls that are reset as soon as they are opened: the connection is ended before long, others are served meanwhile."""
        with H.Http2(self.server, timeout=10).start() as link:
            ended = False
            for turn in range(200):
                frames = b"".join(headers(stream) + H.frame(H.RST_STREAM, 0, stream, struct.pack(">I", 8))
                                  for stream in range(turn * 200 + 1, turn * 200 + 201, 2))
                try:
                    link.link.sendall(frames)
                except ConnectionError:
                    ended = True
                    break
                if turn % 20 == 0:
                    begun = time.monotonic()
                    self.serves_grpc()
                    self.assertLess(time.monotonic() - begun, 10, "the flood goes on without an end")
            self.assertTrue(ended or link.wait_for(H.GOAWAY), "20,000 resets on one connection were all taken")
        self.serves_grpc()

    def test_continuation_flood(self):
        with H.Http2(self.server, timeout=10).start() as link:
            before = self.server.resident_bytes()
            try:
                link.send(headers(flags=0))
                for _ in range(2000):
                    link.send(H.frame(H.CONTINUATION, 0, 1, H.hpack(("x", "a" * 8000))))
            except ConnectionError:
                pass
            self.assertLess(self.server.resident_bytes() - before, 16 << 20)
        self.serves_grpc()

    def test_ping_and_settings_floods(self):
        for flood in (H.frame(H.PING, 0, 0, bytes(8)), H.frame(H.SETTINGS, 0, 0), H.frame(H.DATA, 0, 1, b"")):
            with H.Http2(self.server, timeout=10).start() as link:
                before = self.server.resident_bytes()
                try:
                    link.send(headers())
                    link.link.setblocking(False)
                    for _ in range(2000):
                        try:
                            link.link.send(flood * 100)
                        except BlockingIOError:
                            time.sleep(0.001)  # a client that sends as fast as it may
                except ConnectionError:
                    pass
                self.assertLess(self.server.resident_bytes() - before, 32 << 20)
            self.serves_grpc()


for name, frames in BROKEN.items():
    setattr(Http2, f"test_{name}", lambda self, frames=frames: self.check_broken(frames))
for name, entry in UNSOUND.items():
    setattr(Http2, f"test_{name}", lambda self, entry=entry: self.check_unsound(*entry))


class Flood(ServerCase):
    """10,000 connections that each declare 1 GiB and send 1 KiB: they cost less than 20 KB each, and no other client an answer."""

    models = staticmethod(models)
    COUNT = 10_000
    GROWTH_MAX = 200_000_000
    # Seconds that a healthy client waits for an answer. Generous, as both sides may share two busy CPUs.
    PATIENCE = 10

    def infer_over_grpc(self, channel, number):
        request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[pack([number, 0.5])])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 2))
        reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=self.PATIENCE)
        self.assertEqual(list(reply.raw_output_contents), [pack([number, 0.5])])

    def infer_over_http(self, link, number):
        body = json.dumps({**GOOD, "inputs": [{**GOOD["inputs"][0], "data": [number, 0.5]}]}).encode()
        link.sendall(wire.infer_json(body))
        status, _, reply = wire.Replies(link).next()
        self.assertEqual(status, 200, reply)
        self.assertEqual(json.loads(reply)["outputs"][0]["data"], [number, 0.5])

    def serve_all(self, kept, number):
        """Clients with connections from before the flood, and clients that come now, over each protocol."""
        link, channel = kept
        self.infer_over_http(link, number)
        self.infer_over_grpc(channel, number)
        with wire.connect(self.server, timeout=self.PATIENCE) as link:
            self.infer_over_http(link, number)
        # A pool of its own: channels to the same address would share a connection.
        with grpc.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            self.infer_over_grpc(channel, number)

    def flood(self, port, raw):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self.COUNT + 200
        if hard < wanted:
            self.skipTest(f"needs {wanted} open files, the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        link = wire.connect(self.server, timeout=self.PATIENCE)
        self.addCleanup(link.close)
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        self.serve_all((link, channel), 1)
        before = self.server.resident_bytes()
        links = []
        try:
            for index in range(self.COUNT):
                links.append(self.hostile(port, raw, f"127.0.0.{2 + index % 8}"))
                if index % 500 == 0:
                    self.serve_all((link, channel), index)
            # Each is still there, and what it sent has been read: otherwise its memory would not be in the figure.
            self.assertGreater(self.server.file_count(), self.COUNT)
            until_equal(lambda: self.unread(port), 0, "the count of unread bytes")
            growth = self.server.resident_bytes() - before
            self.serve_all((link, channel), self.COUNT)
            self.assertLess(growth, self.GROWTH_MAX)
        finally:
            for hostile in links:
                hostile.close()
        until(self.server.file_count, "less than 200 open files", accept=lambda count: count < 200)
        self.serve_all((link, channel), 2)

    def hostile(self, port, raw, source):
        """A connection from one of several addresses, so that neither side runs out of ports."""
        link = socket.socket()
        link.bind((source, 0))
        link.settimeout(10)
        link.connect(("127.0.0.1", self.server.ports[port]))
        link.sendall(raw)
        return link

    def unread(self, port):
        """Bytes of the clients' that wait in sockets, theirs or the server's, to be read."""
        own = f"0100007F:{self.server.ports[port]:04X}"  # 127.0.0.1
        rows = [row.split() for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(int(row[4].split(":")[column], 16) for column, end in ((1, 1), (0, 2)) for row in rows if row[end] == own and row[3] == "01")


# A server each: memory that one flood left behind would not count as growth in the other.
@conch_only
class HttpFlood(Flood):
    def test_declared_bodies_cost_nothing(self):
        self.flood("http", head("Content-Length: 1073741824", "Inference-Header-Content-Length: 100") + b"x" * 1024)


@conch_only
class GrpcFlood(Flood):
    def test_declared_messages_cost_nothing(self):
        tensor = b"\x0a\x08identity" + b"\x3a\x80\x80\x80\x80\x04" + b"x" * 1024  # raw_input_contents of 2^30 bytes
        message = b"\0" + struct.pack(">I", (1 << 30) + 16) + tensor
        raw = H.PREFACE + H.frame(H.SETTINGS, 0, 0) + headers(payload=H.call_head("ModelInfer")) + data(payload=message, flags=0)
        self.flood("grpc", raw)


class Stalled(Flood):
    """Clients that each declare 60 MB, send a little more than the 1 MiB after which they are trusted with all of it, and stop: they
    cost what they sent and the rest of a huge page."""

    COUNT, EACH_MAX = 64, 3 << 20
    DECLARED, SENT = 60_000_000, (1 << 20) + (64 << 10)

    def stall(self, port, connect):
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(wire.connect(self.server, timeout=self.PATIENCE)), stack.enter_context(grpc.insecure_channel(self.server.grpc))
            self.serve_all(kept, 1)
            before = self.server.resident_bytes()
            for _ in range(self.COUNT):
                stack.enter_context(connect())
                until_equal(lambda: self.unread(port), 0, "the count of unread bytes")
            growth = self.server.resident_bytes() - before
            self.serve_all(kept, 2)
            # Some of it lies where there was memory before.
            self.assertGreater(growth, self.COUNT * self.SENT * 3 // 4, "what was sent is there")
            self.assertLess(growth, self.COUNT * self.EACH_MAX)


@conch_only
class HttpStalled(Stalled):
    def connect(self):
        link = wire.connect(self.server)
        link.sendall(head(f"Content-Length: {self.DECLARED}", "Inference-Header-Content-Length: 100") + b"x" * self.SENT)
        return link

    def test_a_part_of_a_body_costs_no_more_than_that(self):
        self.stall("http", self.connect)


@conch_only
class GrpcStalled(Stalled):
    def connect(self):
        return wire.Http2(self.server).start().begin_infer("identity", self.DECLARED, self.SENT)

    def test_a_part_of_a_tensor_costs_no_more_than_that(self):
        self.stall("grpc", self.connect)


if __name__ == "__main__":
    unittest.main()
