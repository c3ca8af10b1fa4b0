"""Compression over gRPC, message by message: requests, responses by level, streams, and bombs."""

import collections
import gzip
import struct
import unittest
import zlib

import grpc
import hpack
import numpy
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2 as pb

import wire
from case import IS_TRITON, conch_only, pack
from repository import identity
from test_grpc import GrpcCase
from waiting import until

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def models(repository):
    repository.model("identity", identity(batch=8))


def framed(message, flag=0):
    return bytes([flag]) + struct.pack(">I", len(message)) + message


def call(server, body, *headers, method="ModelInfer"):
    """One call by hand: (head, messages with their flags, trailers); the head is none if the answer is trailers alone."""
    with wire.Http2(server) as connection:
        decoder, heads, data = hpack.Decoder(), [], b""
        # Before that the windows are small: the stream's, and the connection's.
        connection.start().wait_for(wire.SETTINGS)
        connection.wait_for(wire.WINDOW_UPDATE)
        connection.send(wire.frame(wire.SETTINGS, 1, 0))
        connection.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head(method, *headers)))
        for start in range(0, len(body), 16384):
            connection.send(wire.frame(wire.DATA, 0, 1, body[start:start + 16384]))
        connection.send(wire.frame(wire.DATA, 1, 1))
        while (got := connection.wait_for(wire.HEADERS, wire.DATA, wire.RST_STREAM, wire.GOAWAY)) is not None:
            kind, flags, _, payload = got
            if kind == wire.HEADERS:
                heads.append(dict(decoder.decode(payload)))
                if flags & 1:
                    break
            elif kind == wire.DATA:
                data += payload
                if payload:
                    size = struct.pack(">I", len(payload))
                    connection.send(wire.frame(wire.WINDOW_UPDATE, 0, 0, size), wire.frame(wire.WINDOW_UPDATE, 0, 1, size))
            else:
                raise AssertionError(f"{kind} {payload}")
    messages = []
    while data:
        length = int.from_bytes(data[1:5], "big")
        messages.append((data[0], data[5:5 + length]))
        data = data[5 + length:]
    return (heads[0] if len(heads) > 1 else None), messages, heads[-1]


class Base(GrpcCase):
    models = staticmethod(models)

    def request(self, count=400):
        return self.message(raw=pack([float(i % 5) for i in range(count)]), shape=(1, count))

    def call(self, body, *headers, **more):
        return call(self.server, body, *headers, **more)


class Requests(Base):
    def test_compressed_and_not(self):
        request = self.request()
        for encoding, function in PACK.items():
            packed = function(request.SerializeToString())
            for body in (framed(packed, 1), framed(request.SerializeToString())):
                head, messages, trailers = self.call(body, ("grpc-encoding", encoding))
                self.assertEqual((trailers["grpc-status"], len(messages), messages[0][0]), ("0", 1, 0))
                self.assertEqual(pb.ModelInferResponse.FromString(messages[0][1]).raw_output_contents[0], request.raw_input_contents[0])
                self.assertNotIn("grpc-encoding", head)
                self.assertEqual(head["grpc-accept-encoding"], "identity, deflate, gzip")

    def test_sizes(self):
        """From nothing to what is inflated elsewhere, in both ways, with typed contents as well."""
        for count in (1, 1000, 20_000, 2_000_000):
            request = self.request(count)
            typed = pb.ModelInferRequest()
            typed.CopyFrom(request)
            typed.inputs[0].contents.fp32_contents.extend(struct.unpack(f"<{count}f", request.raw_input_contents[0]))
            del typed.raw_input_contents[:]
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression):
                for value in (request, typed) if count < 100_000 else (request,):
                    with self.subTest(count=count, compression=compression, typed=value is typed):
                        answer = self.stub.ModelInfer(value, compression=compression)
                        self.assertEqual(answer.raw_output_contents[0], request.raw_input_contents[0])

    def test_broken(self):
        message = self.request().SerializeToString()
        for encoding, function in PACK.items():
            packed = function(message)
            other = PACK["deflate" if encoding == "gzip" else "gzip"](message)
            flipped = packed[:-2] + bytes([packed[-2] ^ 1]) + packed[-1:]
            for label, bad in {
                "cut off": packed[:-9], "without its checksum": packed[:-4], "with another checksum": flipped,
                "damaged": packed[:15] + b"\xff\xff" + packed[17:], "not compressed": message, "with more behind": packed + b"x",
                "twice": packed + packed, "the other one": other,
            }.items():
                with self.subTest(encoding, label=label):
                    _, messages, trailers = self.call(framed(bad, 1), ("grpc-encoding", encoding))
                    self.assertEqual((trailers["grpc-status"], messages), ("13", []))
                    self.assertEqual(
                        trailers["grpc-message"], f"Unexpected error decompressing data for algorithm {encoding}")
        self.assertEqual(self.stub.ModelInfer(self.request()).model_name, "identity")

    def test_compressed_without_an_encoding(self):
        for headers in ([], [("grpc-encoding", "identity")]):
            _, _, trailers = self.call(framed(gzip.compress(b""), 1), *headers)
            self.assertEqual(trailers["grpc-status"], "13")

    def test_nothing_compressed(self):
        for packed in [gzip.compress(b"")] + ([] if IS_TRITON else [b""]):
            _, _, trailers = self.call(framed(packed, 1), ("grpc-encoding", "gzip"))
            self.assertEqual((trailers["grpc-status"], trailers["grpc-message"]), ("5", "Request for unknown model: '' is not found"))

    @conch_only
    def test_unknown_encoding(self):
        """As the protocol asks; upstream's library resets the call instead."""
        for encoding in ("snappy", "GZIP", "stream/gzip", ""):
            _, _, trailers = self.call(framed(b""), ("grpc-encoding", encoding))
            self.assertEqual(trailers["grpc-status"], "12", encoding)
            self.assertEqual(trailers["grpc-accept-encoding"], "identity, deflate, gzip")

    def test_other_calls(self):
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            self.assertTrue(self.stub.ModelReady(pb.ModelReadyRequest(name="identity"), compression=compression).ready)
            self.assertEqual(
                self.stub.ModelMetadata(pb.ModelMetadataRequest(name="identity"), compression=compression).name, "identity")
            index = self.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True), compression=compression)
            self.assertEqual([model.name for model in index.models], ["identity"])
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelMetadata(pb.ModelMetadataRequest(name="x" * 1000), compression=grpc.Compression.Gzip)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_stream(self):
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            requests = [self.request(count) for count in (1, 100, 300_000, 3)]
            answers = list(self.stub.ModelStreamInfer(iter(requests), compression=compression))
            for request, answer in zip(requests, answers, strict=True):
                self.assertEqual(answer.error_message, "")
                self.assertEqual(answer.infer_response.raw_output_contents[0], request.raw_input_contents[0])
        # Both kinds on one stream, in pieces that respect no message.
        message = self.request().SerializeToString()
        body = framed(gzip.compress(message), 1) + framed(message) + framed(gzip.compress(message), 1)
        _, messages, trailers = self.call(body, ("grpc-encoding", "gzip"), method="ModelStreamInfer")
        self.assertEqual((trailers["grpc-status"], len(messages)), ("0", 3))
        _, messages, trailers = self.call(framed(gzip.compress(message)[:-1], 1), ("grpc-encoding", "gzip"), method="ModelStreamInfer")
        self.assertEqual((trailers["grpc-status"], messages), ("13", []))


class Levels(Base):
    """Which compressor a level means, by what the client accepts."""

    LEVEL, EXPECTED = "none", {}
    ACCEPTED = (None, "identity", "identity,gzip", "gzip", "deflate", "identity, deflate, gzip", "gzip,deflate", "snappy")
    flags = ("--grpc-infer-response-compression-level=none",)

    def test_responses(self):
        for count in (400, 5000):
            request = self.request(count)
            for accepted in self.ACCEPTED:
                headers = [("grpc-accept-encoding", accepted)] if accepted else []
                expected = self.EXPECTED.get(accepted)
                for method in ("ModelInfer", "ModelStreamInfer"):
                    with self.subTest(accepted, method=method, count=count):
                        head, messages, trailers = self.call(framed(request.SerializeToString()), *headers, method=method)
                        self.assertEqual((trailers["grpc-status"], len(messages)), ("0", 1))
                        self.assertEqual(head.get("grpc-encoding"), expected)
                        flag, message = messages[0]
                        self.assertEqual(flag, 1 if expected else 0)
                        plain = UNPACK[expected](message) if expected else message
                        kind = pb.ModelInferResponse if method == "ModelInfer" else pb.ModelStreamInferResponse
                        answer = kind.FromString(plain)
                        answer = answer if method == "ModelInfer" else answer.infer_response
                        self.assertEqual(answer.raw_output_contents[0], request.raw_input_contents[0])

    def test_only_inferences_that_shrink(self):
        every = ("grpc-accept-encoding", "gzip,deflate")
        head, messages, _ = self.call(framed(b""), every, method="ServerLive")
        self.assertEqual((head.get("grpc-encoding"), messages), (None, [(0, b"\x08\x01")]))
        _, messages, _ = self.call(framed(pb.ModelInferRequest(model_name="x").SerializeToString()), every, method="ModelStreamInfer")
        self.assertEqual(messages[0][0], 0)

    def test_tritonclient(self):
        array = numpy.arange(30_000, dtype=numpy.float32).reshape(1, -1)
        value = grpcclient.InferInput("INPUT0", list(array.shape), "FP32")
        value.set_data_from_numpy(array)
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for sent in (None, "gzip", "deflate"):
                result = client.infer("identity", [value], compression_algorithm=sent)
                numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


class Low(Levels):
    flags = ("--grpc-infer-response-compression-level=low",)
    EXPECTED = {"identity,gzip": "gzip", "gzip": "gzip", "deflate": "deflate", "identity, deflate, gzip": "gzip", "gzip,deflate": "gzip"}


class Medium(Levels):
    flags = ("--grpc-infer-response-compression-level=Medium",)
    EXPECTED = {**Low.EXPECTED, "identity, deflate, gzip": "deflate", "gzip,deflate": "deflate"}


class High(Levels):
    flags = ("--grpc-infer-response-compression-level=high",)
    EXPECTED = Medium.EXPECTED


LIMIT = ("--memory-limit-bytes=33554432",)


@conch_only
class Bombs(Base):
    """T14 over gRPC: the limit is that of a message, and the memory that requests may hold."""

    flags = LIMIT

    def bomb(self, megabytes, encoding):
        """A request whose tensor is zeros, packed as hard as can be."""
        count = megabytes << 18
        head = self.message(raw=b"", shape=(1, count)).SerializeToString()[:-2]
        packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
        length = 4 * count
        prefix = b"\x3a"
        while length >= 128:
            prefix, length = prefix + bytes([length & 127 | 128]), length >> 7
        prefix += bytes([length])
        block = bytes(1 << 20)
        return packer.compress(head + prefix) + b"".join(packer.compress(block) for _ in range(megabytes)) + packer.flush()

    def test_t14_bombs(self):
        self.stub.ModelInfer(self.request())
        before_bytes, before_cpu = self.server.resident_bytes(), self.server.cpu_seconds()
        for encoding in PACK:
            bomb = self.bomb(100, encoding)
            self.assertLess(len(bomb), 200_000)
            for method in ("ModelInfer", "ModelStreamInfer"):
                for _ in range(3):
                    _, messages, trailers = self.call(framed(bomb, 1), ("grpc-encoding", encoding), method=method)
                    self.assertEqual((trailers["grpc-status"], messages), ("8", []))
                    self.assertIn("limit of 33554432 bytes", trailers["grpc-message"])
            # One that the limit has room for.
            _, messages, trailers = self.call(framed(self.bomb(2, encoding), 1), ("grpc-encoding", encoding))
            self.assertEqual((trailers["grpc-status"], len(messages[0][1]) > 2 << 20), ("0", True))
        self.assertLess(self.server.cpu_seconds() - before_cpu, 10)
        self.assertLess(self.server.resident_bytes() - before_bytes, 96 << 20)

    def test_small_calls_have_a_small_limit(self):
        bomb = gzip.compress(bytes(64 << 20))
        for method in ("ModelMetadata", "ServerReady"):
            _, _, trailers = self.call(framed(bomb, 1), ("grpc-encoding", "gzip"), method=method)
            self.assertEqual(trailers["grpc-status"], "8")
            self.assertRegex(trailers["grpc-message"], r"Received message larger than max \(\d+ vs. 4194304\)")
        _, _, trailers = self.call(framed(bomb, 1), ("grpc-encoding", "gzip"), method="RepositoryIndex")
        self.assertEqual(trailers["grpc-status"], "8")
        self.assertTrue(self.stub.ServerLive(pb.ServerLiveRequest()).live)


@conch_only
class InflatedLimit(Bombs):
    """`--grpc-max-inflated-size` bounds what is compressed, and nothing else."""

    flags = ("--grpc-max-inflated-size=1048576",)
    WORDS = "larger than max ({} vs. 1048576): the limit of compressed messages, see --grpc-max-inflated-size"

    test_small_calls_have_a_small_limit = None

    def test_t14_bombs(self):
        before_bytes = self.server.resident_bytes()
        for encoding in PACK:
            for method in ("ModelInfer", "ModelStreamInfer", "RepositoryIndex"):
                _, messages, trailers = self.call(framed(self.bomb(100, encoding), 1), ("grpc-encoding", encoding), method=method)
                self.assertEqual((trailers["grpc-status"], messages), ("8", []))
                self.assertRegex(trailers["grpc-message"], self.WORDS.format(r"\d+").replace("(", r"\(", 1).replace("):", r"\):"))
        self.assertLess(self.server.resident_bytes() - before_bytes, 32 << 20)

    def test_limit_is_exact(self):
        whole = self.message(raw=bytes(4), shape=(1, 1)).ByteSize() - 4
        # The lengths in front of the tensor and in its shape take more bytes then.
        for encoding, function in PACK.items():
            outcomes = []
            for length in range((1 << 20) - 64, (1 << 20) + 64, 4):
                message = self.message(raw=bytes(length - whole - 16), shape=(1, (length - whole - 16) // 4)).SerializeToString()
                _, _, trailers = self.call(framed(function(message), 1), ("grpc-encoding", encoding))
                outcomes.append((len(message) <= 1 << 20, trailers["grpc-status"]))
            self.assertEqual({is_allowed for is_allowed, _ in outcomes}, {True, False})
            self.assertEqual({outcome for outcome in outcomes}, {(True, "0"), (False, "8")})

    def test_a_message_that_must_inflate_to_more_is_refused_by_its_length(self):
        """Its bytes are not waited for."""
        for method in ("ModelInfer", "ModelStreamInfer"):
            _, _, trailers = self.call(b"\1" + struct.pack(">I", 2 << 20), ("grpc-encoding", "gzip"), method=method)
            self.assertEqual((trailers["grpc-status"], trailers["grpc-message"]), ("8", "Received message " + self.WORDS.format(2 << 20)))

    def test_messages_that_are_not_compressed(self):
        self.assertEqual(self.stub.ModelInfer(self.request(2 << 20)).model_name, "identity")


@conch_only
class DefaultInflatedLimit(Bombs):
    """250 KB do not become 256 MB."""

    flags = ()
    test_small_calls_have_a_small_limit = None

    def test_t14_bombs(self):
        bomb = self.bomb(250, "gzip")
        self.assertLess(len(bomb), 260_000)
        _, _, trailers = self.call(framed(bomb, 1), ("grpc-encoding", "gzip"))
        self.assertEqual(trailers["grpc-status"], "8")
        self.assertIn("vs. 67108864", trailers["grpc-message"])


@conch_only
class Held(Base):
    """What clients make the server hold counts, whatever it is: here 40 MB, where 32 MiB may be held."""

    flags = LIMIT

    def setUp(self):
        super().setUp()
        self.connection, self.decoder = wire.Http2(self.server), hpack.Decoder()
        self.addCleanup(self.connection.link.close)
        self.connection.start().wait_for(wire.SETTINGS)
        # By stream; 0 is the connection's.
        self.room = collections.defaultdict(lambda: 1 << 20)
        self.room[0] = 65535 + int.from_bytes(self.connection.wait_for(wire.WINDOW_UPDATE)[3], "big")
        self.connection.send(wire.frame(wire.SETTINGS, 1, 0))

    def look(self):
        """Waits for the next frame that matters: the fields of a call's end, or none."""
        kind, _, number, payload = self.connection.wait_for(wire.WINDOW_UPDATE, wire.HEADERS)
        if kind == wire.WINDOW_UPDATE:
            self.room[number] += int.from_bytes(payload, "big")
            return None
        fields = dict(self.decoder.decode(payload))
        return fields if "grpc-status" in fields else None

    def push(self, stream, body):
        """Sends as the windows allow, until a call ends: then its fields."""
        for start in range(0, len(body), 16384):
            piece = body[start:start + 16384]
            while min(self.room[0], self.room[stream]) < len(piece):
                if (end := self.look()) is not None:
                    return end
            self.connection.send(wire.frame(wire.DATA, 0, stream, piece))
            for number in (0, stream):
                self.room[number] -= len(piece)
        return None

    def assert_refused(self, end):
        while end is None:
            end = self.look()
        self.assertEqual(end["grpc-status"], "8")
        self.assertIn("limit of 33554432 bytes", end["grpc-message"])
        self.connection.link.close()
        # What the connection held is given back when its shard has learnt of the end; another shard may answer before that.
        def is_given_back():
            try:
                self.assertEqual(self.stub.ModelInfer(self.request()).model_name, "identity")
                return True
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
                return False
        until(is_given_back, "what a closed connection held is given back", 30)

    def test_messages_of_small_calls(self):
        """None comes to its end."""
        end = None
        for stream in range(1, 81, 2):
            self.connection.send(wire.frame(wire.HEADERS, 4, stream, wire.call_head("ModelMetadata")))
            end = end or self.push(stream, b"\0" + struct.pack(">I", 4 << 20) + bytes(1_000_000))
        self.assert_refused(end)

    def test_names_that_answers_repeat(self):
        """Nobody reads the answers."""
        self.connection.send(wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelStreamInfer")))
        message = framed(pb.ModelInferRequest(model_name="absent", id="x" * 1_000_000).SerializeToString())
        self.assert_refused(self.push(1, message * 40))


if __name__ == "__main__":
    unittest.main()
