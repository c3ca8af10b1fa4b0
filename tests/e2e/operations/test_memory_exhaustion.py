"""When the system has no memory: a request fails, the server goes on.

Three ways to be without: address space is limited (`ulimit -v`), the kernel allows no more mappings (shown by counting those that there are),
and what is asked for is refused at random (`CONCH_REFUSE_MEMORY`, in builds with debug assertions)."""

import concurrent.futures
import contextlib
import gzip
import http.client
import json
import mmap
import os
import pathlib
import random
import shutil
import struct
import tempfile
import threading
import time
import unittest

import grpc
import hpack
from tritonclient.grpc import service_pb2, service_pb2_grpc

import server as servers
import wire
from case import conch_only, needs_library
from repository import Repository, identity
from waiting import until

SEEDS = int(os.environ.get("CONCH_MEMORY_SEEDS", "24"))
MESSAGES_MAX = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
END_STREAM = ACK = 1
END_HEADERS = 4
# What a refusal for want of memory looks like; a client may also find its connection closed.
REFUSED_HTTP = {429, 503}
REFUSED_GRPC = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}


def binary(count):
    """The JSON and the bytes of a request with `count` floats."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": 4 * count}}
    text = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]})
    return text.encode(), bytes(4 * count)


def message(count, model="identity"):
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4 * count)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[count])
    return request


def framed(request):
    text = request.SerializeToString()
    return struct.pack(">BI", 0, len(text)) + text


def models(repository):
    repository.model("identity", identity())
    repository.model("text", identity(inputs=(("INPUT0", "STRING", (-1,)),)))


@needs_library("identity")
class Case(unittest.TestCase):
    """A server per class; `prefix` and `environment` are its own."""

    prefix, flags = (), ()

    @classmethod
    def environment(cls):
        return None

    @classmethod
    def setUpClass(cls):
        cls.repository = Repository()
        cls.addClassCleanup(cls.repository.close)
        models(cls.repository)
        cls.server = servers.Server(cls.repository.path, *cls.flags, prefix=cls.prefix, environment=cls.environment())
        cls.addClassCleanup(cls.server.kill)

    @classmethod
    def tearDownClass(cls):
        cls.check_alive()
        code = cls.server.terminate()
        if code != 0:
            raise AssertionError(f"the server ended with code {code}\n{cls.server.output[-4000:]}")

    @classmethod
    def check_alive(cls):
        if not cls.server.is_alive():
            raise AssertionError(f"the server died with code {cls.server.process.wait()}\n{cls.server.output[-4000:]}")

    def assert_serves(self, count=4):
        """Over both protocols, and again after a moment: what was under way may hold memory a little longer."""
        def answer():
            try:
                return self.server.request("POST", "/v2/models/identity/infer", *self.asked(count))
            except OSError as error:
                self.check_alive()
                return None, None, repr(error)
        status, _, reply = until(answer, "an answer that is no refusal", accept=lambda got: got[0] and got[0] not in REFUSED_HTTP)
        self.check_alive()
        self.assertEqual((status, len(reply) >= 4 * count), (200, True), reply[:300])
        with grpc.insecure_channel(self.server.grpc, options=MESSAGES_MAX) as channel:
            reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message(count), timeout=20)
            self.assertEqual(len(reply.raw_output_contents[0]), 4 * count)

    @staticmethod
    def asked(count):
        text, data = binary(count)
        return text + data, {"Inference-Header-Content-Length": str(len(text))}

    def mapping_count(self):
        return len(pathlib.Path(f"/proc/{self.server.pid}/maps").read_text().splitlines())


@conch_only
@unittest.skipUnless(shutil.which("prlimit"), "there is no prlimit")
class AddressSpace(Case):
    """`ulimit -v`: uploads that do not fit are refused, one by one."""

    prefix = ("prlimit", f"--as={2_500_000 << 10}")
    flags = ("--memory-limit-bytes=17179869184",)

    def upload(self, bytes_count):
        """The status of an upload whose last byte waits until all have come that far; None if the connection was closed before."""
        body, headers = self.asked(bytes_count // 4)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.ports["http"], timeout=60)
        try:
            connection.putrequest("POST", "/v2/models/identity/infer")
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders()
            try:
                connection.send(body[:-1])
                self.meeting.wait(60)
                connection.send(body[-1:])
            except OSError:
                self.meeting.abort()  # refused: an answer is there already
            except threading.BrokenBarrierError:
                connection.send(body[-1:])
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            self.meeting.abort()
            return None
        finally:
            connection.close()

    def test_uploads_that_do_not_fit_together(self):
        self.assert_serves()
        for _ in range(2):
            self.meeting = threading.Barrier(24)
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                statuses = list(pool.map(lambda _: self.upload(120 << 20), range(24)))
            self.check_alive()
            self.assertLessEqual(set(statuses), {200, 503, None}, statuses)
            self.assertTrue({503, None} & set(statuses), "they fit: the limit is no limit")
            self.assert_serves()
        # All of it is there again.
        self.assert_serves(25 << 20)

    def test_messages_that_do_not_fit_together(self):
        request = message(25 << 20)

        def call(_):
            with grpc.insecure_channel(self.server.grpc, options=[*MESSAGES_MAX, ("grpc.use_local_subchannel_pool", 1)]) as channel:
                try:
                    service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            codes = list(pool.map(call, range(24)))
        self.check_alive()
        self.assertLessEqual(set(codes), {grpc.StatusCode.OK, *REFUSED_GRPC}, codes)
        self.assertIn(grpc.StatusCode.OK, codes)
        self.assert_serves()


@conch_only
class Mappings(Case):
    """Calls that each send a little of a tensor above 64 KiB; every second is reset, so that what is left lies apart."""

    CONNECTIONS, CALLS = 24, 250

    def test_their_number_does_not_grow_with_that_of_messages(self):
        self.assert_serves()
        before = self.mapping_count()
        frames = framed(message(70_000 // 4))[:5000]
        with contextlib.ExitStack() as stack:
            for _ in range(self.CONNECTIONS):
                peer = stack.enter_context(wire.Http2(self.server)).start()
                peer.wait_for(wire.WINDOW_UPDATE)  # before it the connection may send 64 KiB
                streams = range(1, 2 * self.CALLS, 2)
                for stream in streams:
                    peer.send(wire.frame(wire.HEADERS, END_HEADERS, stream, wire.call_head("ModelInfer")),
                              wire.frame(wire.DATA, 0, stream, frames))
                for stream in streams[::2]:
                    peer.send(wire.frame(wire.RST_STREAM, 0, stream, struct.pack(">I", 8)))
                # An answer to a ping says that what was sent before it has been read.
                peer.send(wire.frame(wire.PING, 0, 0, bytes(8)))
                while (got := peer.wait_for(wire.PING, wire.HEADERS)) is not None and got[:2] != (wire.PING, ACK):
                    self.assertEqual(got[0], wire.PING, "a call was answered")
            time.sleep(0.5)  # time must pass: mappings that should not be would come now
            grown = self.mapping_count() - before
            # A mapping per message would be half of 6,000.
            self.assertLess(grown, 500)
            self.assert_serves(30_000_000 // 4)
        self.assert_serves()

    def test_open_messages_of_a_connection_are_bounded(self):
        frames = framed(message(1000))
        count = 300
        with wire.Http2(self.server).start() as peer:
            decoder, begun = hpack.Decoder(), list(range(1, 2 * count, 2))

            def begin(stream):
                peer.send(wire.frame(wire.HEADERS, END_HEADERS, stream, wire.call_head("ModelInfer")), wire.frame(wire.DATA, 0, stream, frames[:100]))

            def ended():
                """The next call that has ended, and its status."""
                while True:
                    _, flags, stream, payload = peer.wait_for(wire.HEADERS)
                    fields = dict(decoder.decode(payload))
                    if flags & END_STREAM:
                        return stream, fields["grpc-status"], fields.get("grpc-message", "")

            for stream in begun:
                begin(stream)
            refused = [ended() for _ in range(count - 256)]
            self.assertEqual({status for _, status, _ in refused}, {"8"}, refused)
            self.assertIn("the connection has 256 messages under way", refused[0][2].replace("%20", " "))
            # Those that were begun go on, and make room.
            first = min(set(begun) - {stream for stream, _, _ in refused})
            peer.send(wire.frame(wire.DATA, END_STREAM, first, frames[100:]))
            self.assertEqual(ended()[:2], (first, "0"))
            fresh = 2 * count + 1
            begin(fresh)
            peer.send(wire.frame(wire.DATA, END_STREAM, fresh, frames[100:]))
            self.assertEqual(ended()[:2], (fresh, "0"))
        self.assert_serves()


@conch_only
@unittest.skipIf(servers.PROFILE == "release", "a build without debug assertions refuses nothing")
class Refused(Case):
    """Every request for memory may be refused, small and large, in any order."""

    # What a client loads with a configuration is gone with the next load without one.
    flags = ("--model-control-mode=explicit", "--load-model=*", "--load-config-once=true", "--grpc-infer-response-compression-level=low",
             "--trace-config=rate=7", "--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS")

    @classmethod
    def environment(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-refusals-")
        cls.addClassCleanup(directory.cleanup)
        path = pathlib.Path(directory.name, "wish")
        path.write_bytes(bytes(16))
        cls.flags = (*cls.flags, f"--trace-config=triton,file={directory.name}/trace")
        with path.open("r+b") as file:
            cls.wish = mmap.mmap(file.fileno(), 16)
        return {"CONCH_REFUSE_MEMORY": str(path)}

    def refuse(self, permille, seed=0):
        self.wish[:16] = struct.pack("<QQ", permille, seed)

    # Each does one thing that clients do; what becomes of it is not its concern.

    def plain(self, draw):
        count = draw.choice([4, 4, 1000, 20_000, 300_000])
        self.server.request("POST", "/v2/models/identity/infer", *self.asked(count), timeout=10)

    def text(self, draw):
        count = draw.choice([1, 100, 30_000])
        more = {f"p{number}": "x" * 20 for number in range(draw.choice([0, 3, 2000]))}
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [count], "data": list(range(count))}
        body = json.dumps({"id": "i" * draw.choice([1, 100_000]), "parameters": more, "inputs": [tensor]})
        self.server.request("POST", "/v2/models/identity/infer", body, timeout=10)

    def strings(self, draw):
        count = draw.choice([1, 500])
        tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [count], "data": ["a\n\"b" * draw.choice([1, 300])] * count}
        self.server.request("POST", "/v2/models/text/infer", json.dumps({"inputs": [tensor]}), timeout=10)

    def nodes(self, draw):
        self.server.request("POST", "/v2/models/identity/infer", b'{"a":[' + b'"\\n",' * draw.choice([10, 60_000]) + b"1]}", timeout=10)

    def packed(self, draw):
        body, headers = self.asked(draw.choice([100, 400_000]))
        headers |= {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
        self.server.request("POST", "/v2/models/identity/infer", gzip.compress(body, 1), headers, timeout=10)

    def chunks(self, draw):
        body, headers = self.asked(draw.choice([100, 500_000]))
        pieces = (body[start:start + 60_000] for start in range(0, len(body), 60_000))
        self.server.request("POST", "/v2/models/identity/infer", pieces, {**headers, "Transfer-Encoding": "chunked"}, timeout=10)

    def generate(self, draw):
        path = draw.choice(["generate", "generate_stream"])
        self.server.request("POST", f"/v2/models/identity/{path}", json.dumps({"INPUT0": [1.0] * draw.choice([1, 20_000])}), timeout=10)

    def pages(self, draw):
        path, port = draw.choice([("/v2", "http"), ("/v2/models/identity/config", "http"), ("/v2/models/stats", "http"),
                                  ("/metrics", "metrics"), ("/v2/health/ready", "http"), ("/v2/nonsense", "http")])
        self.server.request("GET", path, port=port, timeout=10)

    def control(self, draw):
        name = draw.choice(["index", "models/identity/load", "models/text/unload", "models/text/load"])
        body = {}
        if name.endswith("identity/load") and draw.random() < 0.5:
            body = {"parameters": {"config": '{"backend": "identity"}' + " " * 50_000}}
        self.server.request("POST", f"/v2/repository/{name}", json.dumps(body), timeout=20)

    def call(self, draw):
        compression = draw.choice([None, grpc.Compression.Gzip])
        with grpc.insecure_channel(self.server.grpc, options=[*MESSAGES_MAX, ("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = message(draw.choice([4, 5000, 300_000]))
            for number in range(draw.choice([0, 2, 500])):
                request.parameters[f"p{number}"].string_param = "x" * 20
            stub.ModelInfer(request, timeout=10, compression=compression)

    def typed(self, draw):
        request = service_pb2.ModelInferRequest(model_name="identity")
        count = draw.choice([4, 50_000])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[count]).contents.fp32_contents.extend([1.0] * count)
        with grpc.insecure_channel(self.server.grpc, options=MESSAGES_MAX) as channel:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)

    def stream(self, draw):
        with grpc.insecure_channel(self.server.grpc, options=[*MESSAGES_MAX, ("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in stub.ModelStreamInfer(iter([message(draw.choice([4, 40_000])) for _ in range(20)]), timeout=10):
                pass

    def calls(self, draw):
        """Half of them are withdrawn."""
        frames = framed(message(70_000 // 4))[:5000]
        with wire.Http2(self.server, timeout=2).start() as peer:
            for stream in range(1, 2 * draw.choice([3, 150]), 2):
                peer.send(wire.frame(wire.HEADERS, END_HEADERS, stream, wire.call_head("ModelInfer")),
                          wire.frame(wire.DATA, 0, stream, frames))
                if stream % 4 == 1:
                    peer.send(wire.frame(wire.RST_STREAM, 0, stream, struct.pack(">I", 8)))
            peer.send(wire.frame(wire.PING, 0, 0, bytes(8)))
            peer.wait_for(wire.PING)

    ACTIONS = ("plain", "plain", "text", "strings", "nodes", "packed", "chunks", "generate", "pages", "pages", "control",
               "call", "call", "typed", "stream", "calls")

    def client(self, seed):
        """How many of its actions went well."""
        draw, well = random.Random(seed), 0
        for _ in range(6):
            try:
                getattr(self, draw.choice(self.ACTIONS))(draw)
                well += 1
            except (OSError, http.client.HTTPException, grpc.RpcError, TypeError):
                pass  # TypeError: wire's answer for a connection that has ended
        return well

    def test_random_seeds(self):
        self.assert_serves()
        for seed in range(SEEDS):
            with self.subTest(seed=seed):
                permille = [2, 20, 100, 300, 700, 1000][seed % 6]
                self.refuse(permille, seed)
                try:
                    with concurrent.futures.ThreadPoolExecutor(6) as pool:
                        list(pool.map(self.client, range(seed * 100, seed * 100 + 6)))
                finally:
                    self.refuse(0)
                self.check_alive()
                for name in ("identity", "text"):
                    self.assertEqual(self.server.post_json(f"/v2/repository/models/{name}/load", {})[0], 200)
                self.assert_serves()
                self.assertNotIn("panicked", self.server.output)

    def test_what_a_client_sizes_is_refused_with_a_status(self):
        """With every request for memory refused: what is small comes from the reserve, what a client sizes is refused in words."""
        self.assert_serves()
        self.refuse(1000)
        try:
            status, _, reply = self.server.request("POST", "/v2/models/identity/infer", *self.asked(100_000))
            self.assertEqual((status, "no memory left" in reply.decode()), (503, True), reply)
            with grpc.insecure_channel(self.server.grpc, options=[*MESSAGES_MAX, ("grpc.use_local_subchannel_pool", 1)]) as channel:
                with self.assertRaises(grpc.RpcError) as caught:
                    service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message(1_000_000), timeout=10)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn("no memory left", caught.exception.details())
            self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
        finally:
            self.refuse(0)
        self.assert_serves()


if __name__ == "__main__":
    unittest.main()
