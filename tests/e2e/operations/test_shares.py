"""One client, or one connection, cannot take what all share: bytes and places. Counts refusals, never time."""

import json
import socket
import struct
import threading
import time
import unittest

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import wire
from case import ServerCase, conch_only
from repository import identity
from waiting import until

MIB = 1 << 20
LIMIT = 256 * MIB
CONNECTIONS = 16
INFER = "/v2/models/identity/infer"


def models(repository):
    repository.model("identity", identity(batch=8))


def body(size):
    """An inference of `size` bytes, and the length of its JSON."""
    value = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}],
             "parameters": {"binary_data_output": True}}
    text = json.dumps(value).encode()
    return text + bytes(size), len(text)


def upload(size, *headers):
    content, json_bytes = body(size)
    return wire.post(INFER, content, f"Inference-Header-Content-Length: {json_bytes}", *headers)


def message(size):
    """The same over gRPC, with its prefix."""
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(size)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=(1, size // 4))
    raw = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(raw)) + raw


class Base(ServerCase):
    models = staticmethod(models)

    def link(self, port="http", source="127.0.0.1", timeout=60):
        link = socket.create_connection(("127.0.0.1", self.server.ports[port]), timeout, (source, 0))
        self.addCleanup(link.close)
        return link

    def status(self, raw, source="127.0.0.1"):
        link = self.link(source=source)
        try:
            link.sendall(raw)
        except ConnectionError:
            pass
        status = wire.Replies(link).next()[0]
        link.close()
        return status

    def hold(self, raw, source="127.0.0.1"):
        """Sends `raw` but for its last byte: the connection, or none if that was refused."""
        link = self.link(source=source)
        try:
            link.sendall(raw[:-1])
            link.settimeout(0.3)
            link.recv(1)
        except TimeoutError:
            link.settimeout(60)
            return link
        except ConnectionError:
            pass
        link.close()
        return None


class Attack(threading.Thread):
    """One connection after the other that takes what it can and then is silent, until it is ended and begins anew."""

    def __init__(self, case, take):
        super().__init__(daemon=True)
        self.case, self.take, self.ended_count, self.stop = case, take, 0, threading.Event()
        self.has_taken = threading.Event()

    def run(self):
        while not self.stop.is_set():
            link = None
            try:
                link = self.take(self.case.server)
                self.has_taken.set()
                link.settimeout(0.2)
                while not self.stop.is_set():
                    try:
                        if not link.recv(1 << 16):
                            break
                    except TimeoutError:
                        continue
            except OSError:
                pass
            if not self.stop.is_set():
                self.ended_count += 1
                self.has_taken.set()
            if link:
                link.close()


def short_uploads(server):
    """One byte short of 12 MiB: sixteen of them are most of what may be held."""
    link = wire.connect(server, timeout=60)
    link.sendall(upload(12 * MIB)[:-1])
    return link


class Windows:
    """What the server lets a hand-made client send."""

    def __init__(self, server, settings=b""):
        self.http2, self.room = wire.Http2(server, timeout=60), {0: 65_535}
        self.http2.link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, settings))
        self.http2.wait_for(wire.SETTINGS)
        self.http2.send(wire.frame(wire.SETTINGS, 1, 0))

    def send(self, stream, content, ends):
        """False if the call or the connection was ended before that."""
        self.http2.send(wire.frame(wire.HEADERS, 4, stream, wire.call_head("ModelInfer")))
        self.room[stream] = MIB
        for start in range(0, len(content), 16_384):
            piece = content[start:start + 16_384]
            while min(self.room[0], self.room[stream]) < len(piece):
                got = self.http2.next()
                if got is None:
                    raise ConnectionError
                if got[0] == wire.WINDOW_UPDATE:
                    self.room[got[2]] = self.room.get(got[2], 0) + int.from_bytes(got[3], "big")
                elif got[2] == stream:
                    return False
            for number in (0, stream):
                self.room[number] -= len(piece)
            is_last = start + 16_384 >= len(content)
            self.http2.send(wire.frame(wire.DATA, int(ends and is_last), stream, piece))
        return True


def unread_answers(server):
    """Sixteen requests whose answers have no window to go to."""
    client, content = Windows(server, struct.pack(">HI", 4, 0)), message(MIB)
    for stream in range(1, 33, 2):
        client.send(stream, content, True)
    return client.http2.link


def short_messages(server):
    client, content = Windows(server), message(MIB)
    for stream in range(1, 33, 2):
        client.send(stream, content[:-1], False)
    return client.http2.link


@conch_only
class Hogs(Base):
    """A client with sixteen connections takes what it gets; another at the same address, and one elsewhere, are never refused."""

    flags = (f"--memory-limit-bytes={LIMIT}",)

    def survive(self, take):
        attacks = [Attack(self, take) for _ in range(CONNECTIONS)]
        for attack in attacks:
            attack.start()
        try:
            for attack in attacks:
                attack.has_taken.wait(120)
            refused = []
            with grpc.insecure_channel(self.server.grpc) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                turn = 0
                # Until the server has had to drop some, and then some more.
                while turn < 20 or (turn < 600 and not self.dropped_count()):
                    turn += 1
                    for size, source in ((64, "127.0.0.1"), (256 << 10, "127.0.0.1"), (64, "127.0.0.2"), (MIB, "127.0.0.2")):
                        status = self.status(upload(size), source)
                        if status != 200:
                            refused.append((turn, size, source, status))
                    for size in (64, 256 << 10):
                        request = pb.ModelInferRequest.FromString(message(size)[5:])
                        try:
                            stub.ModelInfer(request, timeout=60)
                        except grpc.RpcError as error:
                            refused.append((turn, size, "grpc", error.code(), error.details()))
            self.assertEqual(refused, [])
            self.assertGreater(self.dropped_count(), 0)
            self.server.wait_for_line(r"dropped a connection that held \d+ bytes without moving .*; \d+ so far")
            # Who was dropped sees it when it looks.
            until(lambda: sum(attack.ended_count for attack in attacks), "a connection of the attack that was ended", 30)
        finally:
            for attack in attacks:
                attack.stop.set()
            for attack in attacks:
                attack.join(60)
        self.assertGreater(sum(attack.ended_count for attack in attacks), 0)

    def dropped_count(self):
        return self.server.metrics().get("conch_connections_dropped_total", 0)

    def test_uploads_one_byte_short(self):
        self.survive(short_uploads)

    def test_messages_one_byte_short(self):
        self.survive(short_messages)

    def test_answers_without_a_window(self):
        self.survive(unread_answers)


@conch_only
class Shares(Base):
    """How much is whose, where nobody is dropped."""

    flags = (f"--memory-limit-bytes={LIMIT}", "--memory-stall-timeout-ms=0", "--tenant-header=X-Tenant")

    def fill(self, size, *headers, source="127.0.0.1"):
        """Connections that hold as much as they get, of uploads that are a byte short."""
        links = []
        while (link := self.hold(upload(size, *headers), source)) is not None:
            links.append(link)
            self.assertLess(len(links), 100)
        return links

    def finish(self, links):
        for link in links:
            link.sendall(b"\0")
        # Those that find room for their answers.
        statuses = {wire.Replies(link).next()[0] for link in links}
        for link in links:
            link.close()
        self.assertLessEqual(statuses, {200, 500, 503})

    def test_one_connection_may_hold_most_of_it(self):
        link = self.hold(upload(160 * MIB))
        self.assertIsNotNone(link)
        self.assertIsNone(self.hold(upload(200 * MIB)))
        for size in (64, 256 << 10, 4 * MIB):
            self.assertEqual(self.status(upload(size)), 200, size)
        link.close()

    def test_small_requests_get_in_whoever_holds_the_rest(self):
        links = self.fill(16 * MIB) + self.fill(2 * MIB) + self.fill(2 * MIB, source="127.0.0.3")
        self.assertGreater(len(links), 12)
        small = [self.hold(upload(64)) for _ in range(32)]
        self.assertNotIn(None, small)
        for link in small:
            link.sendall(b"\0")
            self.assertEqual(wire.Replies(link).next()[0], 200)
        for link in links:
            link.close()

    def test_addresses_have_shares(self):
        links = self.fill(12 * MIB)
        self.assertEqual(self.status(upload(10 * MIB)), 503)
        self.assertEqual(self.status(upload(6 * MIB), "127.0.0.2"), 200)
        self.finish(links)

    def test_tenants_have_shares(self):
        links = self.fill(12 * MIB, "X-Tenant: a")
        self.assertEqual(self.status(upload(10 * MIB, "X-Tenant: a"), "127.0.0.9"), 503)
        self.assertEqual(self.status(upload(6 * MIB, "X-Tenant: b")), 200)
        self.assertEqual(self.status(upload(6 * MIB)), 200)
        self.finish(links)


@conch_only
class Patience(Base):
    flags = (f"--memory-limit-bytes={LIMIT}",)

    def test_who_rests_is_not_dropped_while_there_is_room(self):
        link = self.hold(upload(32 * MIB))
        time.sleep(3)  # the rest itself
        link.sendall(b"\0")
        self.assertEqual(wire.Replies(link).next()[0], 200)


@conch_only
class Places(Base):
    """Near `--connections-max` those that have been idle for longest make room."""

    flags = ("--connections-max=64",)

    def call(self, connection, stream):
        connection.send(wire.frame(wire.HEADERS, 4, stream, wire.call_head("ServerLive")), wire.frame(wire.DATA, 1, stream, bytes(5)))
        got = connection.wait_for(wire.DATA, wire.GOAWAY)
        self.assertEqual(got and got[0], wire.DATA)

    def idle_http(self):
        link = self.link()
        link.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
        self.assertEqual(wire.Replies(link).next()[0], 200)
        return link

    def idle_grpc(self):
        connection = wire.Http2(self.server, timeout=60).start()
        self.addCleanup(connection.close)
        self.call(connection, 1)
        return connection

    def busy_grpc(self):
        connection = wire.Http2(self.server, timeout=60).start()
        self.addCleanup(connection.close)
        connection.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelStreamInfer")))
        self.assertIsNotNone(connection.wait_for(wire.HEADERS))
        return connection

    def check(self, idle, is_closed):
        """Of 60 idle connections some are ended; one with an open call is not, and whoever comes is served."""
        busy = self.busy_grpc()
        held = [idle() for _ in range(60)]
        closed = set()

        def look():
            closed.update(index for index, one in enumerate(held) if index not in closed and is_closed(one))
            return len(closed)
        until(look, "at least 4 closed connections", 60, lambda count: count >= 4)
        self.assertLess(len(closed), 40)
        self.assertEqual(self.status(upload(64)), 200)
        self.call(busy, 3)
        for one in held:
            one.close()
        busy.close()
        # Their places are free before the next test takes them.
        until(self.server.file_count, "at most 60 open files", 60, lambda count: count <= 60)

    def test_idle_http(self):
        def is_closed(link):
            link.settimeout(0.02)
            try:
                return link.recv(1) == b""
            except TimeoutError:
                return False

        self.check(self.idle_http, is_closed)

    def test_idle_grpc(self):
        """With a farewell, so that clients come again by themselves."""
        def is_closed(connection):
            connection.link.settimeout(0.02)
            try:
                got = connection.wait_for(wire.GOAWAY)
            except TimeoutError:
                return False
            self.assertEqual(got and got[3][4:8], bytes(4), "NO_ERROR")
            return True

        self.check(self.idle_grpc, is_closed)


if __name__ == "__main__":
    unittest.main()
