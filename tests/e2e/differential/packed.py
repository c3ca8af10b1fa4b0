"""gRPC messages as bytes: compressed ones, and what is wrong with frames. Compressed bytes differ between libraries: an answer is compared
after it is inflated, and by whether it was compressed."""

import gzip
import struct
import zlib

import grpc
from tritonclient.grpc import service_pb2 as pb

import test_grpc_compression as by_hand
from test_grpc_compression import PACK, UNPACK, framed
from . import outcome
from .entry import entry, infer_message, stream
from .sound import BYTES

ENTRIES = []
ANSWERS = {"ModelInfer": pb.ModelInferResponse, "ModelStreamInfer": pb.ModelStreamInferResponse, "ServerLive": pb.ServerLiveResponse,
           "ModelReady": pb.ModelReadyResponse}


def add(name, rows, *steps, world="plain"):
    ENTRIES.append(entry(world, name, rows, *steps))


def send(body, *headers, method="ModelInfer"):
    """One call with this body."""
    def step(side):
        try:
            head, messages, trailers = by_hand.call(side.server, body, *headers, method=method)
        except AssertionError:
            return {"code": "reset"}
        encoding = (head or {}).get("grpc-encoding", "identity")
        seen = {"encoding": encoding, "code": trailers["grpc-status"], "details": trailers.get("grpc-message", "")}
        for index, (flag, payload) in enumerate(messages):
            seen[f"[{index}].flag"] = flag
            answer = ANSWERS[method].FromString(UNPACK[encoding](payload) if flag else payload)
            seen.update((f"[{index}].{path}", value) for path, value in outcome.message(answer).items())
        return seen
    return step


SMALL = infer_message(raw=BYTES, id="seven").SerializeToString()
LARGE = infer_message(raw=struct.pack("<f", 0.5) * 100_000, shape=(1, 100_000)).SerializeToString()

for _encoding, _pack in PACK.items():
    _header = ("grpc-encoding", _encoding)
    _packed = _pack(SMALL)
    _other = PACK["deflate" if _encoding == "gzip" else "gzip"](SMALL)
    add(f"g_{_encoding}", "grpc-compress", send(framed(_packed, 1), _header), send(framed(SMALL), _header), send(framed(_pack(LARGE), 1), _header),
        send(framed(_pack(b""), 1), _header), send(framed(_pack(b""), 1), _header, method="ServerLive"),
        send(framed(_pack(pb.ModelReadyRequest(name="identity").SerializeToString()), 1), _header, method="ModelReady"))
    add(f"g_{_encoding}_broken", "grpc-compress", send(framed(_packed[:-9], 1), _header), send(framed(_packed[:-4], 1), _header),
        send(framed(_packed[:-2] + bytes([_packed[-2] ^ 1]) + _packed[-1:], 1), _header), send(framed(SMALL, 1), _header),
        send(framed(_packed + b"x", 1), _header), send(framed(_packed + _packed, 1), _header), send(framed(_other, 1), _header),
        send(framed(_pack(b"no message"), 1), _header))
    add(f"s_{_encoding}", "grpc-compress grpc-stream",
        send(framed(_packed, 1) + framed(SMALL) + framed(_pack(LARGE), 1), _header, method="ModelStreamInfer"))
    add(f"s_{_encoding}_broken", "grpc-compress grpc-stream", send(framed(_packed[:-1], 1), _header, method="ModelStreamInfer"))
add("g_unknown_encoding", "grpc-compress", *[send(framed(SMALL), ("grpc-encoding", name)) for name in ("snappy", "GZIP")])
add("g_packed_without_encoding", "grpc-compress", send(framed(gzip.compress(SMALL), 1)), send(framed(gzip.compress(SMALL), 1), ("grpc-encoding", "identity")))
add("s_client_compresses", "grpc-compress grpc-stream", *[
    stream([infer_message(raw=BYTES, id=str(index)) for index in range(3)], compression=coding)
    for coding in (grpc.Compression.Gzip, grpc.Compression.Deflate)])
for _world in ("plain", "packed_low", "packed_high"):
    add("g_accepted", "grpc-compress", *[
        send(framed(message), ("grpc-accept-encoding", accepted), method=method)
        for accepted in ("identity", "gzip", "deflate", "identity, deflate, gzip", "snappy") for message in (SMALL, LARGE)
        for method in ("ModelInfer", "ModelStreamInfer")], world=_world)
add("g_both_ways", "grpc-compress", send(framed(zlib.compress(LARGE), 1), ("grpc-encoding", "deflate"), ("grpc-accept-encoding", "gzip")), world="packed_low")

add("g_frames", "grpc-unary", send(framed(SMALL, 2)), send(framed(SMALL)[:-1]), send(framed(SMALL)[:3]), send(b""), send(framed(b"\xff\xff")),
    send(b"\0" + struct.pack(">I", 2**31) + SMALL), send(framed(b"", 0), method="ServerLive"))
add("s_frames", "grpc-stream", send(b"", method="ModelStreamInfer"), send(framed(SMALL, 2), method="ModelStreamInfer"),
    send(framed(SMALL) + b"\0" + struct.pack(">I", 2**31), method="ModelStreamInfer"))
add("s_no_message", "grpc-stream", send(framed(b"\xff\xff"), method="ModelStreamInfer"))
