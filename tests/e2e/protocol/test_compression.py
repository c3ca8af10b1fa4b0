"""Compression of requests and responses over HTTP: by raw requests, by curl and by upstream's client."""

import gzip
import json
import pathlib
import subprocess
import tempfile
import unittest
import zlib

import numpy
import tritonclient.http as httpclient

import wire
from case import ServerCase, conch_only, pack
from repository import identity

PATH = "/v2/models/identity/infer"
PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}
CORRUPT = b'{"error":"encountered inconsistent stream state during decompression"}'


def too_large(limit):
    return (f'{{"error":"Decompressed data size exceeds the maximum allowed value of {limit} bytes. '
            'Use --http-max-input-size to increase the limit."}').encode()


def json_request(values):
    return json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}]}).encode()


def binary_request(values, json_bytes=0):
    """(JSON, tensor); the JSON is as long as asked for."""
    tensor = pack(values)
    head = json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)],
                    "parameters": {"binary_data_size": len(tensor)}}],
        "parameters": {"binary_data_output": True}}).encode()
    return head.ljust(json_bytes), tensor


def models(repository):
    repository.model("identity", identity(batch=8))
    repository.model("text", identity([("INPUT0", "STRING", (-1,))]))


class Compressed(ServerCase):
    models = staticmethod(models)

    def post(self, body, encoding=None, accept=None, json_bytes=None, path=PATH):
        headers = {"Content-Encoding": encoding, "Accept-Encoding": accept, "Inference-Header-Content-Length": json_bytes}
        given = {name: str(value) for name, value in headers.items() if value is not None}
        return self.server.request("POST", path, body, given)

    def assert_plain(self, reply, values):
        status, headers, body = reply
        self.assertEqual(status, 200, body)
        self.assertNotIn("content-encoding", headers)
        self.assertEqual(json.loads(body)["outputs"][0]["data"], values)


class Requests(Compressed):
    """What clients send."""

    def test_json(self):
        for values in ([1.0, 2.0, 3.0, 4.0], [i / 8 for i in range(50_000)]):
            for encoding, function in PACK.items():
                with self.subTest(encoding, count=len(values)):
                    self.assert_plain(self.post(function(json_request(values)), encoding), values)
            self.assert_plain(self.post(json_request(values), "identity"), values)

    def test_the_format_is_looked_at_not_the_name(self):
        values = [1.0, 2.0]
        self.assert_plain(self.post(gzip.compress(json_request(values)), "deflate"), values)
        self.assert_plain(self.post(zlib.compress(json_request(values)), "gzip"), values)

    def test_binary(self):
        for count in (4, 200_000):
            values = [float(i % 1000) for i in range(count)]
            for json_bytes in (0, 300, 321):
                head, tensor = binary_request(values, json_bytes)
                for encoding, function in PACK.items():
                    with self.subTest(encoding, count=count, json_bytes=len(head)):
                        status, headers, body = self.post(function(head + tensor), encoding, json_bytes=len(head))
                        self.assertEqual(status, 200, body[:300])
                        self.assertEqual(body[int(headers["inference-header-content-length"]):], tensor)

    def test_raw(self):
        status, headers, body = self.post(gzip.compress(pack([1, 2, 3])), "gzip", json_bytes=0)
        self.assertEqual(status, 200, body)
        self.assertEqual(body[int(headers["inference-header-content-length"]):], pack([1, 2, 3]))

    def test_chunked(self):
        body = gzip.compress(json_request([1.0, 2.0]))
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:10], body[10:11], body[11:]))
        raw = wire.post(PATH, b"", "Content-Encoding: gzip", "Transfer-Encoding: chunked", length=False) + pieces + b"0\r\n\r\n"
        status, headers, body, _ = self.exchange(raw)
        self.assert_plain((status, headers, body), [1.0, 2.0])

    def test_empty(self):
        for encoding in PACK:
            self.assertEqual(self.post(b"", encoding)[::2], (400, b'{"error":"nothing to be decompressed"}'))

    def test_unknown_encoding(self):
        for encoding in ("br", "GZIP", "x-gzip", "gzip, gzip", "zstd"):
            with self.subTest(encoding):
                status, headers, body = self.post(json_request([1.0]), encoding)
                self.assertEqual((status, body), (501, b'{"error":"Unsupported compression type"}'))
                self.assertEqual(headers["accept-encoding"], "gzip, deflate")
                self.assertEqual(headers["content-type"], "text/plain")

    def test_length_of_the_json_is_that_of_the_plain_one(self):
        request = json_request([1.0])
        status, headers, body = self.post(gzip.compress(request), "gzip", json_bytes=10_000)
        message = f"inference header size should be in range (0, {len(request)}), got: 10000"
        self.assertEqual((status, json.loads(body)["error"]), (400, message))
        self.assertEqual(headers["content-type"], "text/plain")

    def test_what_follows_a_stream_is_ignored(self):
        for encoding, function in PACK.items():
            self.assert_plain(self.post(function(json_request([1.0, 2.0])) + b"garbage", encoding), [1.0, 2.0])

    def test_other_endpoints_take_it_as_it_is(self):
        status, _, body = self.post(gzip.compress(b'{"ready":true}'), "gzip", path="/v2/repository/index")
        self.assertEqual(status, 500)
        self.assertIn(b"failed to parse the request JSON buffer: Invalid value. at 0", body)

    @conch_only
    def test_several_members(self):
        request = json_request([1.0, 2.0, 3.0])
        cut = [request[:1], b"", request[1:40], request[40:]]
        self.assert_plain(self.post(b"".join(map(gzip.compress, cut)), "gzip"), [1.0, 2.0, 3.0])

    @conch_only
    def test_corrupt(self):
        for encoding, function in PACK.items():
            body = function(json_request([1.0, 2.0, 3.0]))
            flipped = body[:-2] + bytes([body[-2] ^ 1]) + body[-1:]
            for label, bad in {
                "cut off": body[:-9], "without its checksum": body[:-4], "with another checksum": flipped,
                "damaged": body[:15] + b"\xff\xff\xff" + body[18:], "not compressed": json_request([1.0]),
                "without a header": body[2:], "one byte": body[:1], "a second one cut off": body + gzip.compress(b"x")[:-1],
            }.items():
                if label == "a second one cut off" and encoding == "deflate":
                    continue
                with self.subTest(encoding, label=label):
                    status, headers, reply = self.post(bad, encoding)
                    self.assertEqual((status, reply, headers["content-type"]), (500, CORRUPT, "text/plain"))
            for _ in range(50):
                self.post(bad, encoding)
        self.assert_serves()


class Responses(Compressed):
    """What clients get."""

    def test_preference(self):
        values = [1.0, 2.0, 3.0, 4.0]
        for accept, expected in [
            ("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate", "gzip"), ("deflate, gzip", "deflate"),
            ("gzip;q=0.5, deflate", "deflate"), ("gzip;q=0.5,deflate;q=0.5", "gzip"), ("gzip;q=0", None), ("identity, gzip", None),
            ("gzip ;q=1", None), ("gzip; q=1", None), ("*", None), ("GZIP", None), ("br,gzip;q=0.1", "gzip"),
            ("gzip;q=x,deflate;q=0.2", "deflate"), ("gzip;q=-1", None), ("gzip;q=0.5x", "gzip"), ("gzip;q=inf,deflate", "gzip"),
            (",,gzip", "gzip"), ("", None), ("identity", None),
        ]:
            with self.subTest(accept):
                status, headers, body = self.post(json_request(values), accept=accept)
                self.assertEqual((status, headers.get("content-encoding")), (200, expected))
                self.assertEqual(json.loads(UNPACK[expected](body))["outputs"][0]["data"], values)

    def test_binary(self):
        for count in (4, 200_000):
            values = [float(i % 1000) for i in range(count)]
            head, tensor = binary_request(values)
            plain = self.post(head + tensor, json_bytes=len(head))
            for accept, function in UNPACK.items():
                if accept is None:
                    continue
                for encoding in (None, "gzip"):
                    with self.subTest(accept, count=count, encoding=encoding):
                        request = PACK[encoding](head + tensor) if encoding else head + tensor
                        status, headers, body = self.post(request, encoding, accept, len(head))
                        self.assertEqual(status, 200, body[:300])
                        self.assertEqual(headers["content-encoding"], accept)
                        self.assertEqual(headers["content-type"], "application/octet-stream")
                        self.assertEqual(headers["content-length"], str(len(body)))
                        # The length of its JSON is that of the plain one.
                        same = "inference-header-content-length"
                        self.assertEqual((headers[same], function(body)), (plain[1][same], plain[2]))

    def test_large_json(self):
        values = [i / 8 for i in range(20_000)]
        status, headers, body = self.post(json_request(values), accept="deflate")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        self.assertEqual(json.loads(zlib.decompress(body))["outputs"][0]["data"], values)

    def test_only_good_inferences_are_compressed(self):
        status, headers, body = self.post(b"{", accept="gzip")
        self.assertEqual((status, headers.get("content-encoding")), (500, None))
        self.assertIn("error", json.loads(body))
        for path in ("/v2", "/v2/models/identity", "/v2/models/identity/config", "/v2/models/stats"):
            status, headers, body = self.server.request("GET", path, headers={"Accept-Encoding": "gzip"})
            self.assertEqual((status, headers.get("content-encoding")), (200, None))
            json.loads(body)

    def test_curl(self):
        values = [i / 8 for i in range(2000)]
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "body")
            file.write_bytes(gzip.compress(json_request(values)))
            reply = subprocess.run(
                ["curl", "-sS", "--fail", "--compressed", "-D-", "-H", "Content-Encoding: gzip", "--data-binary", f"@{file}",
                 f"http://{self.server.http}{PATH}"], capture_output=True, check=True, timeout=30).stdout
        head, body = reply.split(b"\r\n\r\n", 1)
        self.assertRegex(head, b"(?i)content-encoding: (deflate|gzip)")
        self.assertEqual(json.loads(body)["outputs"][0]["data"], values)


class Client(Compressed):
    def test_tritonclient(self):
        numbers = numpy.arange(30_000, dtype=numpy.float32).reshape(1, -1)
        texts = numpy.array([b"", b"a\0b", b"x" * 10_000], numpy.object_)
        with httpclient.InferenceServerClient(self.server.http) as client:
            for model, array, kind in (("identity", numbers, "FP32"), ("text", texts, "BYTES")):
                value = httpclient.InferInput("INPUT0", list(array.shape), kind)
                value.set_data_from_numpy(array)
                for sent in (None, "gzip", "deflate"):
                    for received in (None, "gzip", "deflate"):
                        with self.subTest(model, sent=sent, received=received):
                            result = client.infer(
                                model, [value], request_compression_algorithm=sent, response_compression_algorithm=received)
                            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


@conch_only
class Bombs(Compressed):
    """T14: inflating stops at --http-max-input-size, not behind it."""

    LIMIT = 1 << 20
    flags = (f"--http-max-input-size={LIMIT}", "--memory-limit-bytes=67108864")

    def test_limit_is_exact(self):
        for json_bytes in (self.LIMIT, self.LIMIT + 1):
            request = json_request([1.0, 2.0]).ljust(json_bytes)
            for encoding, function in PACK.items():
                reply = self.post(function(request), encoding)
                if json_bytes > self.LIMIT:
                    self.assertEqual((reply[0], reply[2]), (400, too_large(self.LIMIT)))
                else:
                    self.assert_plain(reply, [1.0, 2.0])

    def test_t14_bombs(self):
        """A thousand to one and more, nested, and of many members: refused at the limit, at the cost of the limit."""
        def bomb(kind, count):
            packer = zlib.compressobj(9, zlib.DEFLATED, 31 if kind == "gzip" else 15)
            block = b"\0" * (1 << 20)
            return b"".join(packer.compress(block) for _ in range(count)) + packer.flush()

        large = bomb("gzip", 1000)
        self.assertLess(len(large), 1 << 20)
        bodies = {
            "gzip": ("gzip", large), "deflate": ("deflate", bomb("deflate", 1000)),
            "members": ("gzip", gzip.compress(b"\0" * (1 << 19)) * 100),
            "cut off": ("gzip", large[:-8]), "with a false length": ("gzip", large[:-4] + b"\1\0\0\0"),
        }
        self.post(json_request([1.0]))
        before_bytes, before_cpu = self.server.resident_bytes(), self.server.cpu_seconds()
        for label, (encoding, body) in bodies.items():
            with self.subTest(label):
                for _ in range(10):
                    status, headers, reply = self.post(body, encoding)
                    self.assertEqual((status, reply), (400, too_large(self.LIMIT)))
                    self.assertEqual(headers["content-type"], "text/plain")
        # A bomb within a bomb is a body that is no JSON.
        status, _, reply = self.post(gzip.compress(large), "gzip", json_bytes=None)
        self.assertEqual(status, 500)
        self.assertIn(b"failed to parse the request JSON buffer", reply)
        # 50 bodies of a gigabyte each would take minutes.
        self.assertLess(self.server.cpu_seconds() - before_cpu, 5)
        self.assertLess(self.server.resident_bytes() - before_bytes, 32 << 20)
        self.assert_serves()

    def test_members_without_content(self):
        # Nothing, and no length of JSON: a raw request without a byte, as when it is not compressed.
        plain = self.post(b"")
        self.assertEqual(self.post(gzip.compress(b"") * 50_000, "gzip")[::2], plain[::2])
        self.assert_serves()

    def test_a_compressed_body_that_is_too_long_is_not_inflated(self):
        body = gzip.compress(numpy.random.default_rng(1).bytes(2 << 20), 0)
        self.assertEqual(self.post(body, "gzip")[::2], (400, too_large(self.LIMIT)))
        self.assert_serves()


@conch_only
class Memory(Compressed):
    """The inflated bytes count against --memory-limit-bytes while they come."""

    flags = ("--http-max-input-size=1073741824", "--memory-limit-bytes=8388608")

    def test_budget(self):
        for _ in range(3):
            status, _, reply = self.post(gzip.compress(b"\0" * (64 << 20)), "gzip")
            self.assertEqual(status, 503, reply)
            self.assertIn(b"no memory left for the request: the limit is 8388608 bytes", reply)
        values = [float(i % 7) for i in range(500_000)]
        head, tensor = binary_request(values)
        status, _, body = self.post(gzip.compress(head + tensor), "gzip", json_bytes=len(head))
        self.assertEqual((status, body[-len(tensor):] == tensor), (200, True))


if __name__ == "__main__":
    unittest.main()
