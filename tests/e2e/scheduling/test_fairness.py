"""How clients share what takes long: large JSON beside small, compressed calls of two connections, and TLS handshakes beside a flood of them. The
tests look at orders and counts, not at times."""

import gzip
import pathlib
import selectors
import socket
import ssl
import struct
import time

from tritonclient.grpc import service_pb2 as pb

import wire
from case import ServerCase, conch_only
from repository import identity
from test_grpc_tls import TlsCase
from waiting import until, until_equal


def body(count):
    """A request for the model `identity` with `count` numbers as JSON, about 12 bytes each."""
    data = ",".join(["0.123456789"] * count)
    return f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,{count}],"data":[{data}]}}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}'.encode()


LARGE, MEDIUM, SMALL = 1_000_000, 160_000, 9_800  # 12 MB, 1.9 MB, 117 KB


@conch_only
class Json(ServerCase):
    """One shard, so that all share."""

    flags = ("--shards=1",)

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))

    def setUp(self):
        self.links = {}

    def ask(self, name, count):
        """Sends all of a request but its last byte."""
        request = wire.infer_json(body(count))
        link = self.links[name] = wire.connect(self.server, timeout=120)
        self.addCleanup(link.close)
        link.sendall(request[:-1])

    def finish(self, name):
        self.links[name].sendall(b"}")

    def order(self):
        """Names in the order in which their answers begin to come; each is checked to be one."""
        order, wanted = [], selectors.DefaultSelector()
        for name, link in self.links.items():
            wanted.register(link, selectors.EVENT_READ, name)
        while wanted.get_map():
            ready = wanted.select(120)
            self.assertTrue(ready, f"only {order} of {list(self.links)} were answered")
            for key, _ in ready:
                status, headers, reply = wire.Replies(key.fileobj).next()
                self.assertEqual(status, 200, reply[:200])
                own = int(headers["inference-header-content-length"])
                values = reply[own:]
                self.assertEqual(set(struct.iter_unpack("<f", values)), {(struct.unpack("<f", struct.pack("<f", 0.123456789))[0],)})
                order.append(key.data)
                wanted.unregister(key.fileobj)
        return order

    def test_a_small_request_waits_for_one_large_at_most(self):
        large = [f"large {number}" for number in range(4)]
        for name in large:
            self.ask(name, LARGE)
        self.ask("small", SMALL)
        self.ask("medium", MEDIUM)
        for name in (*large, "medium", "small"):
            self.finish(name)
        order = self.order()
        # In the queue of large ones the medium one overtakes all but what is executed: one, or a second if the first ends while the others come.
        self.assertLessEqual(order.index("small"), 2, order)
        self.assertLessEqual(order.index("medium"), 3, order)
        self.assertEqual(set(order[-2:]) - set(large), set(), order)


def grpc_call(count):
    """A compressed call of `count` zeros, to a model that is not there: it is inflated, and then refused."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1, count])
    message = pb.ModelInferRequest(model_name="nobody", inputs=[tensor], raw_input_contents=[bytes(4 * count)]).SerializeToString()
    packed = gzip.compress(message, 9)
    return b"\1" + struct.pack(">I", len(packed)) + packed


# `grpc-status: 5` as HPACK writes it without a table.
NOT_FOUND = b"\x0bgrpc-status\x015"


@conch_only
class Inflating(ServerCase):
    """Compressed calls of two gRPC connections to one shard."""

    flags = ("--shards=1",)
    COUNT = 12

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8))

    def connect(self):
        connection = wire.Http2(self.server, 120).start()
        self.addCleanup(connection.close)
        # Until the server has said that it takes more, it takes 64 KB.
        self.assertEqual(connection.wait_for(wire.WINDOW_UPDATE)[2], 0)
        return connection

    def begin(self, connection, stream, body):
        """Sends all of a call but its last byte."""
        head = wire.call_head("ModelInfer", ("grpc-encoding", "gzip"))
        pieces = [body[at:at + 16_384] for at in range(0, len(body) - 1, 16_384)]
        pieces[-1] = pieces[-1][:len(body) - 1 - 16_384 * (len(pieces) - 1)]
        connection.send(wire.frame(wire.HEADERS, 4, stream, head), *[wire.frame(wire.DATA, 0, stream, piece) for piece in pieces])

    def test_a_call_waits_for_few_of_another_connection(self):
        large, small = grpc_call(12_000_000), grpc_call(400_000)
        hog, other = self.connect(), self.connect()
        streams = range(1, 2 * self.COUNT, 2)
        for stream in streams:
            self.begin(hog, stream, large)
        self.begin(other, 1, small)
        hog.send(*[wire.frame(wire.DATA, 1, stream, large[-1:]) for stream in streams])
        other.send(wire.frame(wire.DATA, 1, 1, small[-1:]))
        self.assertIn(NOT_FOUND, other.wait_for(wire.HEADERS)[3])
        # What the server had answered by then, and a little more. In one queue it would be all.
        hog.link.settimeout(0.001)
        answers = []
        try:
            while (got := hog.wait_for(wire.HEADERS)) is not None:
                answers.append(got[3])
        except TimeoutError:
            pass
        self.assertLessEqual(len(answers), self.COUNT // 2)
        hog.link.settimeout(120)
        while len(answers) < self.COUNT:
            got = hog.wait_for(wire.HEADERS)
            self.assertIsNotNone(got, "the connection ended")
            answers.append(got[3])
        self.assertIn(NOT_FOUND, answers[0])


def hello():
    """The first flight of a TLS client that speaks HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


def from_address(host, port):
    link = socket.create_connection(("127.0.0.1", port), 20, source_address=(host, 0))
    return link


def is_open(link):
    """Reads what there is; whether the server has not closed the connection."""
    link.setblocking(False)
    try:
        while link.recv(1 << 16):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@conch_only
class Handshakes(TlsCase):
    flags = ("--shards=1", "--grpc-handshakes-max=20")

    def flood(self, count, host, first=b""):
        links = []
        for _ in range(count):
            link = from_address(host, self.server.ports["grpc"])
            self.addCleanup(link.close)
            if first:
                try:
                    link.sendall(first)
                except ConnectionError:
                    pass
            links.append(link)
        return links

    def wait_until_open(self, links, count):
        until_equal(lambda: sum(map(is_open, links)), count, "the count of open connections")

    def accepted_count(self):
        """Connections that the server has on its gRPC port, as the kernel sees them."""
        port = f":{self.server.ports['grpc']:04X}"
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(port) and row[3] in ("01", "08") for row in rows)

    def complete(self, host):
        """A whole handshake from `host`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.files.root)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(from_address(host, self.server.ports["grpc"]), server_hostname="localhost") as link:
            self.assertEqual(link.selected_alpn_protocol(), "h2")

    def test_the_bound_holds_and_others_get_through(self):
        links = self.flood(60, "127.0.0.2", hello())
        self.wait_until_open(links, 20)
        self.complete("127.0.0.3")
        # Each of another address displaced one of the flood.
        self.wait_until_open(links, 19)
        # Said once per second at most, so perhaps in another test.
        self.server.wait_for_line(r"20 handshakes are under way \(--grpc-handshakes-max\); the last to come was from 127\.0\.0\.")
        self.assert_serves()
        for link in links:
            link.close()

    def test_those_that_say_nothing_go_first(self):
        """One address alone: who stalls is displaced, so whoever comes and speaks gets through."""
        # What another test has left would count, and displace some.
        until_equal(self.accepted_count, 0, "the count of accepted connections")
        silent = self.flood(20, "127.0.0.4")
        self.wait_until_open(silent, 20)
        time.sleep(0.7)  # time must pass: they are waited for that long
        for _ in range(3):
            self.complete("127.0.0.4")
        # One gave way, or one per handshake, as the bound is divided among the shards.
        found = until(lambda: sum(map(is_open, silent)), "less than 20 open connections", accept=lambda count: count != 20)
        self.assertIn(found, range(17, 20))
        for link in silent:
            link.close()

    def test_a_flood_of_hellos_stops_no_other_handshake(self):
        greeting, links = hello(), []
        for _ in range(20):
            links += self.flood(40, "127.0.0.5", greeting)
            self.complete("127.0.0.6")
            self.assert_serves()
        self.assertLessEqual(sum(map(is_open, links)), 20)
        for link in links:
            link.close()
