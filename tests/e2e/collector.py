"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, reads it by the numbers of OTLP's own fields, and keeps what came.

conch posts protobuf, the real Triton JSON; both become the same spans here. A real collector, Rotel, can stand between."""

import gzip
import http.server
import importlib.util
import json
import pathlib
import socket
import struct
import subprocess
import threading
import traceback

from waiting import until

# Of each message: field number -> (name in OTLP's JSON, kind). A name of messages means many of them, but for `one`.
KEY_VALUE = {1: ("key", "text"), 2: ("value", "one", {1: ("stringValue", "text"), 3: ("intValue", "signed")})}
EVENT = {1: ("timeUnixNano", "fixed64"), 2: ("name", "text"), 3: ("attributes", KEY_VALUE)}
SPAN = {
    1: ("traceId", "bytes"), 2: ("spanId", "bytes"), 3: ("traceState", "text"), 4: ("parentSpanId", "bytes"), 5: ("name", "text"),
    6: ("kind", "signed"), 7: ("startTimeUnixNano", "fixed64"), 8: ("endTimeUnixNano", "fixed64"), 9: ("attributes", KEY_VALUE),
    11: ("events", EVENT), 15: ("status", "one", {2: ("message", "text"), 3: ("code", "signed")}), 16: ("flags", "fixed32"),
}
SCOPE_SPANS = {1: ("scope", "one", {1: ("name", "text"), 2: ("version", "text")}), 2: ("spans", SPAN)}
RESOURCE_SPANS = {1: ("resource", "one", {1: ("attributes", KEY_VALUE)}), 2: ("scopeSpans", SCOPE_SPANS)}
REQUEST = {1: ("resourceSpans", RESOURCE_SPANS)}
SERVER_KIND = 2


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7f) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def read_message(data, fields):
    """A protobuf message, as OTLP's JSON would have it. A field that is not in the table is an error: it is not meant to be sent."""
    message, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = struct.unpack("<Q" if wire == 1 else "<I", data[at:at + size])[0], at + size
        else:
            assert wire == 2, f"wire type {wire}"
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
            assert len(value) == size, "a message is cut"
        name, kind, *more = fields[number]
        expected = {"text": 2, "bytes": 2, "signed": 0, "fixed64": 1, "fixed32": 5}.get(kind if isinstance(kind, str) else "", 2)
        assert wire == expected, f"{name} has wire type {wire}"
        if isinstance(kind, dict):
            message.setdefault(name, []).append(read_message(value, kind))
        elif kind == "one":
            message[name] = read_message(value, more[0])
        elif kind == "signed":
            message[name] = value - (1 << 64) if value >> 63 else value
        else:
            message[name] = {"text": bytes.decode, "bytes": bytes.hex}.get(kind, int)(value)
    return message


def plain(rows):
    """Attributes by name."""
    values = {}
    for row in rows:
        assert row["key"] not in values, f"{row['key']} stands there twice"
        value = row["value"]
        values[row["key"]] = int(value["intValue"]) if "intValue" in value else value.get("stringValue", "")
    return values


class Span:
    """A span as it came: ids in hexadecimal, attributes and events as plain values."""

    def __init__(self, span):
        self.name, self.kind = span["name"], span["kind"]
        self.trace_id, self.id, self.parent_id = span["traceId"], span["spanId"], span.get("parentSpanId", "")
        self.trace_state = span.get("traceState", "")
        self.start_ns, self.end_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        self.attributes = plain(span.get("attributes", []))
        self.events = [(event["name"], int(event["timeUnixNano"])) for event in span.get("events", [])]
        self.status = span.get("status", {}).get("code", 0)

    @property
    def event_names(self):
        return [name for name, _ in self.events]

    def __repr__(self):
        return f"<{self.name} {self.id} of {self.parent_id or '-'}: {self.attributes} {self.event_names}>"


class Collector:
    """Listens on loopback until closed. `statuses` are those of its first answers; the others are 200. With a `context` of the module `ssl`
    it speaks HTTPS."""

    def __init__(self, statuses=(), context=None):
        self.statuses = list(statuses)
        # Of each request that was taken: path, content type, and the message as JSON.
        self.requests = []
        self.refused_count = 0
        # Of every request.
        self.headers = []
        # While it is not set, requests get no answer.
        self.answers = threading.Event()
        self.answers.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body, kind = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Content-Type"]
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                collector.headers.append(self.headers)
                collector.answers.wait()
                status = collector.statuses.pop(0) if collector.statuses else 200
                if status == 200:
                    message = json.loads(body) if "json" in kind else read_message(body, REQUEST)
                    collector.requests.append((self.path, kind, message))
                else:
                    collector.refused_count += 1
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, request, address):
                collector.errors.append(traceback.format_exc())

        self.errors = []
        self.server = Server(("127.0.0.1", 0), Handler)
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.server.server_address[1]}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self):
        """Also twice."""
        if not self.thread.is_alive():
            return
        self.answers.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _parts(self):
        return [part for _, _, message in list(self.requests) for part in message["resourceSpans"]]

    @property
    def resources(self):
        """The attributes of every resource that came."""
        return [plain(part["resource"]["attributes"]) for part in self._parts()]

    @property
    def scopes(self):
        return {scope["scope"]["name"] for part in self._parts() for scope in part["scopeSpans"]}

    @property
    def spans(self):
        return [Span(span) for part in self._parts() for scope in part["scopeSpans"] for span in scope["spans"]]

    def wait(self, count):
        """The spans, once `count` have come."""
        def enough():
            assert not self.errors, self.errors
            return len(self.spans) >= count
        until(enough, lambda: f"{count} spans at the collector, which has {self.spans}", 60)
        return self.spans


def rotel():
    """The program of the package `rotel`; none where it is not installed or does not run."""
    package = importlib.util.find_spec("rotel")
    if not package:
        return None
    program = pathlib.Path(package.origin).parent / "rotel-agent"
    # It needs the library of the Python that its package is for.
    done = subprocess.run([program, "--version"], capture_output=True, check=False)
    return program if done.returncode == 0 else None


class Relay:
    """A Rotel that takes spans by OTLP on loopback, as protobuf or JSON, and passes them on to a `Collector`. `ports` are two free ones."""

    def __init__(self, collector, ports):
        http_port, grpc_port = ports
        self.url = f"http://127.0.0.1:{http_port}/v1/traces"
        self.process = subprocess.Popen([
            rotel(), "start", "--otlp-http-endpoint", f"127.0.0.1:{http_port}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}",
            "--otlp-receiver-metrics-disabled", "--otlp-receiver-logs-disabled", "--exporter", "otlp", "--otlp-exporter-protocol", "http",
            "--otlp-exporter-endpoint", collector.url.removesuffix("/v1/traces"), "--batch-timeout", "50ms"])

        def listens():
            assert self.process.poll() is None, "Rotel has ended"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", http_port)) == 0
        until(listens, "Rotel listens")

    def close(self):
        self.process.terminate()
        self.process.wait()


class SpanTree:
    """Spans by what they are below."""

    def __init__(self, spans):
        self.by_id = {span.id: span for span in spans}
        assert len(self.by_id) == len(spans), "two spans with one id"
        self.spans = spans

    @property
    def roots(self):
        """Those whose parent is nobody here, in the order of their start."""
        return sorted((span for span in self.spans if span.parent_id not in self.by_id), key=lambda span: span.start_ns)

    def children(self, span):
        return sorted((child for child in self.spans if child.parent_id == span.id), key=lambda child: (child.start_ns, child.name))

    def shape(self, span):
        """Names, nested."""
        return span.name, [self.shape(child) for child in self.children(span)]

    def find(self, name):
        found, = (span for span in self.spans if span.name == name)
        return found
