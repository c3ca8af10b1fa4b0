"""Compressed requests and answers. Compressed bytes differ between libraries: an answer is compared after it is inflated."""

import gzip
import json
import zlib

import grpc

from . import outcome
from .entry import call, entry, infer_message, post
from .sound import BINARY, BYTES, ONE

ENTRIES = []
PATH = "/v2/models/identity/infer"
BODY = json.dumps(ONE).encode()


def add(name, rows, *steps, world="plain"):
    ENTRIES.append(entry(world, name, rows, *steps))


def inflated(body, path=PATH, verb="POST", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def step(side):
        status, got, answer = side.server.request(verb, path, body=body, headers=named)
        encoding = got.get("content-encoding", "identity")
        if encoding == "gzip":
            answer = gzip.decompress(answer)
        elif encoding == "deflate":
            answer = zlib.decompress(answer)
        return outcome.http(status, got, answer)
    return step


BINARY_HEAD = json.dumps({**BINARY, "parameters": {"binary_data_output": True}}).encode()
BOTH = BINARY_HEAD + BYTES
add("request", "http-gzip-in", post(PATH, gzip.compress(BODY), Content_Encoding="gzip"), post(PATH, zlib.compress(BODY), Content_Encoding="deflate"),
    post(PATH, zlib.compress(BODY), Content_Encoding="gzip"), post(PATH, gzip.compress(BODY), Content_Encoding="deflate"), post(PATH, BODY, Content_Encoding="identity"),
    post(PATH, gzip.compress(BOTH), Content_Encoding="gzip", Inference_Header_Content_Length=str(len(BINARY_HEAD))))
add("request_in_members", "http-gzip-in", post(PATH, gzip.compress(BODY[:20]) + gzip.compress(BODY[20:]), Content_Encoding="gzip"))
add("request_empty", "http-infer/empty-compressed-body", post(PATH, b"", Content_Encoding="gzip"))
add("request_corrupt", "http-infer/corrupt-stream", post(PATH, b"not compressed", Content_Encoding="gzip"), post(PATH, gzip.compress(BODY)[:-12], Content_Encoding="gzip"))
add("request_too_large", "http-infer/decompressed-too-large", post(PATH, gzip.compress(bytes(100_000)), Content_Encoding="gzip"), world="small")
add("answer", "http-gzip-out", *[inflated(BODY, Accept_Encoding=value) for value in
                                 ("gzip", "deflate", "identity", "gzip, deflate", "deflate, gzip", "gzip;q=0.5, deflate;q=0.8", "gzip;q=0", "br", "*", "gzip;q=x", "identity;q=1, gzip;q=0.5", "")],
    inflated(BOTH, Accept_Encoding="gzip", Inference_Header_Content_Length=str(len(BINARY_HEAD))), inflated(b"{}", Accept_Encoding="gzip"),
    inflated(None, "/v2/models/identity", "GET", Accept_Encoding="gzip"))
add("g_compressed", "grpc-compress", *[call("ModelInfer", infer_message(raw=BYTES), compression=coding)
                                       for coding in (grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression)])
