"""Bytes on the wire: raw HTTP/1.1, hand-made gRPC frames and hand-made HTTP/2, for what no client library would send."""

import json
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9


def connect(server, port="http", timeout=10):
    link = socket.create_connection(("127.0.0.1", server.ports[port]), timeout)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


class Replies:
    """Reads HTTP/1.1 replies one after the other from one connection."""

    def __init__(self, link):
        self.link, self.held = link, b""

    def _more(self):
        piece = self.link.recv(1 << 16)
        if not piece:
            raise EOFError(f"closed after {self.held[:200]!r}")
        self.held += piece

    def next(self, has_body=True):
        """(status, headers, body) of the next reply."""
        while b"\r\n\r\n" not in self.held:
            self._more()
        head, self.held = self.held.split(b"\r\n\r\n", 1)
        first, *rows = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (row.split(":", 1) for row in rows)}
        status = int(first.split()[1])
        length = int(headers.get("content-length", 0)) if has_body and status >= 200 else 0
        while len(self.held) < length:
            self._more()
        body, self.held = self.held[:length], self.held[length:]
        return status, headers, body

    def is_closed(self):
        """Whether the server ends the connection, with no byte before that."""
        try:
            return self.held == b"" and self.link.recv(1) == b""
        except ConnectionError:
            return True


def exchange(server, raw, port="http", timeout=10, has_body=True):
    """Sends raw bytes and reads one reply: (status, headers, body, whether the connection was then closed)."""
    with connect(server, port, timeout) as link:
        link.sendall(raw)
        replies = Replies(link)
        status, headers, body = replies.next(has_body)
        if headers.get("connection", "").lower() != "close":
            return status, headers, body, False
        return status, headers, body, replies.is_closed()


def post(path, body=b"", *headers, length=True):
    """The bytes of one POST."""
    rows = [f"POST {path} HTTP/1.1", "Host: test", *headers]
    if length:
        rows.append(f"Content-Length: {len(body)}")
    return "\r\n".join(rows).encode("latin-1") + b"\r\n\r\n" + body


def infer_json(value, tail=b"", path="/v2/models/identity/infer", *headers):
    """The bytes of an inference request: JSON, and binary tensors behind it when there are any."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    extra = (f"Inference-Header-Content-Length: {len(text)}",) if tail else ()
    return post(path, text + tail, *extra, *headers)


# HTTP/2

def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def hpack(*fields):
    """Header fields as literals without indexing: no table, no Huffman code."""
    out = b""
    for name, value in fields:
        out += b"\0"
        for text in (name, value):
            raw = text.encode() if isinstance(text, str) else text
            out += hpack_length(len(raw)) + raw
    return out


def hpack_length(length):
    if length < 127:
        return bytes([length])
    out, rest = b"\x7f", length - 127
    while rest >= 128:
        out, rest = out + bytes([rest & 127 | 128]), rest >> 7
    return out + bytes([rest])


def varint(value):
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def call_head(method, *extra, authority="test"):
    return hpack((":method", "POST"), (":scheme", "http"), (":path", f"/inference.GRPCInferenceService/{method}"),
                 (":authority", authority), ("te", "trailers"), ("content-type", "application/grpc"), *extra)


class Http2:
    """A bare HTTP/2 client connection, over `link` if that is given. The server's frames are read only when asked for."""

    def __init__(self, server=None, timeout=10, link=None):
        self.link = link or connect(server, "grpc", timeout)
        self.held = b""

    def start(self):
        self.link.sendall(PREFACE + frame(SETTINGS, 0, 0))
        return self

    def send(self, *frames):
        self.link.sendall(b"".join(frames))
        return self

    def next(self):
        """(kind, flags, stream, payload) of the next frame; None at the end of the connection."""
        while True:
            if len(self.held) >= 9:
                length = int.from_bytes(self.held[:3], "big")
                if len(self.held) >= 9 + length:
                    head, payload = self.held[:9], self.held[9:9 + length]
                    self.held = self.held[9 + length:]
                    return head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, payload
            try:
                piece = self.link.recv(1 << 16)
            except ConnectionError:
                return None
            if not piece:
                return None
            self.held += piece

    def begin_infer(self, model, tensor_bytes, sent_bytes):
        """Begins a call of ModelInfer, whose message has a tensor of `tensor_bytes`, and sends the first `sent_bytes` of that."""
        tensor = b"\x0a" + bytes([len(model)]) + model.encode() + b"\x3a" + varint(tensor_bytes)
        rest = struct.pack(">BI", 0, len(tensor) + tensor_bytes) + tensor + bytes(sent_bytes)
        self.send(frame(HEADERS, 4, 1, call_head("ModelInfer")))
        window = {0: 65_535, 1: 65_535}
        while rest:
            length = min(*window.values(), len(rest), 1 << 14)
            if length > 0:
                self.send(frame(DATA, 0, 1, rest[:length]))
                window, rest = {stream: left - length for stream, left in window.items()}, rest[length:]
                continue
            kind, flags, stream, payload = self.wait_for(SETTINGS, WINDOW_UPDATE, RST_STREAM)
            if kind == RST_STREAM:
                raise ConnectionError(f"the call was reset: {payload!r}")
            if kind == WINDOW_UPDATE:
                window[stream] += int.from_bytes(payload, "big")
            elif not flags:
                # The server counts by its own settings once they are acknowledged. Number 4: the initial window of streams.
                self.send(frame(SETTINGS, 1, 0))
                window[1] += dict(struct.iter_unpack(">HI", payload)).get(4, 65_535) - 65_535
        return self

    def wait_for(self, *kinds):
        """The next frame of one of `kinds`; None at the end of the connection."""
        while (got := self.next()) is not None:
            if got[0] in kinds:
                return got
        return None

    def close(self):
        self.link.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
