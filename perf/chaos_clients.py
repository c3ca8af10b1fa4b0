"""The clients of perf/chaos. Each draws requests at random, knows the answer to each, and says what it got to the tally."""

import base64
import collections
import gzip
import http.client
import json
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time

import grpc
import numpy
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import region
import wire
from test_generate import Events, repeated
from test_stream import EMPTY_FINAL, FINAL, request

# An answer that takes longer is lost.
PATIENCE_S = 60
BAD_MAX = 20
# Models that are never unloaded: reloads must not be noticed.
STEADY = ("plain", "batched", "storm")
# What a request to a model may be told that is unloaded and loaded.
COMING = re.compile(r"Request for unknown model|is not ready|has been unloaded|no available versions|not found", re.DOTALL)


class Tally:
    """What all clients saw. Any thread."""

    def __init__(self, under):
        self.under, self.is_over = under, threading.Event()
        self.lock = threading.Lock()
        self.answers, self.counts, self.refusals = collections.Counter(), collections.Counter(), collections.Counter()
        self.wrong, self.lost, self.doubled = [], [], []

    def answer(self, kind):
        with self.lock:
            self.answers[kind] += 1

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def note(self, where, kind, what):
        with self.lock:
            where.append(f"{kind}: {str(what)[:400]}")

    def refuse(self, kind, model, status, text):
        """A refusal: wrong unless the model comes and goes, or the server is under a limit."""
        is_explained = model == "comes" and COMING.search(text)
        if self.under not in ("nothing", "stopped-log", "full-disk"):
            is_explained = is_explained or status in (503, "UNAVAILABLE", "RESOURCE_EXHAUSTED")
        if not is_explained:
            return self.note(self.wrong, kind, f"refused: {model} {status} {text}")
        with self.lock:
            self.refusals[f"{status} {re.sub('[0-9]+', 'N', text)[:70]}"] += 1

    def cut(self, kind, error):
        """The server ended a connection before the answer."""
        if self.under == "descriptors":
            return self.count("connections closed by the server")
        self.note(self.lost, kind, f"{type(error).__name__} {error}")

    def is_bad(self):
        return len(self.wrong) + len(self.lost) + len(self.doubled) >= BAD_MAX

    def verdict(self, options, faults):
        for name, rows in (("wrong", self.wrong), ("lost", self.lost), ("doubled", self.doubled), ("afterwards", faults)):
            for row in rows[:BAD_MAX]:
                print(f"{name}: {row}")
        print(f"answers: {dict(self.answers)}\nothers: {dict(self.counts)}\nrefusals: {dict(self.refusals)}")
        is_good = not (self.wrong or self.lost or self.doubled or faults) and self.answers.total() > 0
        print(f"chaos: {'PASS' if is_good else 'FAIL'} under {options.under}, {options.minutes:g} min, seed {options.seed}: {self.answers.total()} answers, "
              f"{len(self.wrong)} wrong, {len(self.lost)} lost, {len(self.doubled)} doubled, {self.refusals.total()} refused, "
              f"{self.counts['clients cut off']} clients cut off, {self.counts['loads']} loads, {len(faults)} other faults", flush=True)
        return is_good


class Client(threading.Thread):
    """One loop of requests until the end. `ask` is one round."""

    def __init__(self, server, tally, seed):
        super().__init__(name=type(self).__name__, daemon=True)
        self.server, self.tally, self.chance, self.number = server, tally, random.Random(seed), 0

    def run(self):
        while not self.tally.is_over.is_set():
            self.number += 1
            try:
                self.ask()
            except TimeoutError as error:
                self.tally.note(self.tally.lost, self.name, f"no answer within {PATIENCE_S} s: {error}")
                self.reset()
            except (ConnectionError, EOFError, http.client.HTTPException) as error:
                self.tally.cut(self.name, error)
                self.reset()
                time.sleep(0.02)
            except Exception as error:  # of the checks, too: it is told, and fails the run
                self.tally.note(self.tally.wrong, self.name, f"{type(error).__name__} {error}")
                self.reset()
        self.reset()

    def reset(self):
        """Begins anew after an error."""

    def model(self):
        return self.chance.choice((*STEADY, *STEADY, "comes"))

    def identifier(self):
        return f"{self.ident}-{self.number}"

    def values(self, count_max):
        count = self.chance.randrange(1, count_max)
        return numpy.asarray([self.chance.randrange(1 << 20) for _ in range(count)], numpy.float32)

    def check(self, good, what):
        if good:
            return self.tally.answer(self.name)
        return self.tally.note(self.tally.wrong, self.name, what)


def shape(model, values):
    return [1, len(values)] if model == "batched" else [len(values)]


class Http(Client):
    connection = None

    def reset(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def post(self, path, body, headers=None):
        if self.connection is None or self.chance.random() < 0.02:
            self.reset()
            self.connection = http.client.HTTPConnection("127.0.0.1", self.server.ports["http"], timeout=PATIENCE_S)
        self.connection.request("POST", path, body, headers or {})
        reply = self.connection.getresponse()
        return reply.status, reply.headers, reply.read()


class Json(Http):
    """JSON both ways, some of it compressed, some large enough to be parsed off the shard."""

    sizes = (2, 50, 50, 2_000)

    def ask(self):
        model, values, name = self.model(), self.values(self.chance.choice(self.sizes)), self.identifier()
        body = json.dumps({"id": name, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape(model, values), "data": values.tolist()}]}).encode()
        headers = {}
        if self.chance.random() < 0.2:
            body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
        if self.chance.random() < 0.2:
            headers["Accept-Encoding"] = "gzip"
        status, head, reply = self.post(f"/v2/models/{model}/infer", body, headers)
        if head.get("Content-Encoding") == "gzip":
            reply = gzip.decompress(reply)
        if status != 200:
            return self.tally.refuse(self.name, model, status, reply.decode())
        reply = json.loads(reply)
        good = reply["id"] == name and reply["model_name"] == model and reply["outputs"][0]["data"] == values.tolist()
        self.check(good, f"{model} {name}: {str(reply)[:200]}")


class LargeJson(Json):
    sizes = (30_000, 100_000)


class Binary(Http):
    def ask(self):
        model, values, name = self.model(), self.values(self.chance.choice((2, 64, 1_000))), self.identifier()
        values = numpy.tile(values, self.chance.choice((1, 1, 10, 300)))
        head = json.dumps({"id": name, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape(model, values), "parameters": {"binary_data_size": values.nbytes}}],
                           "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
        status, headers, reply = self.post(f"/v2/models/{model}/infer", head + values.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
        if status != 200:
            return self.tally.refuse(self.name, model, status, reply.decode())
        length = int(headers["Inference-Header-Content-Length"])
        good = json.loads(reply[:length])["id"] == name and reply[length:] == values.tobytes()
        self.check(good, f"{model} {name}: {reply[:200]}")


class SharedMemory(Http):
    """Tensors in a region of its own, which is registered and forgotten each time."""

    def ask(self):
        values, name = self.values(500), f"region-{self.identifier()}"
        with region.Object(8192, values.tobytes()) as own:
            status, _, reply = self.post(region.path("register", name), json.dumps({"key": own.key, "offset": 0, "byte_size": 8192}))
            if status != 200:
                return self.tally.refuse(self.name, "plain", status, reply.decode())
            body = {"id": name, "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "parameters": region.part(name, 0, values.nbytes)}],
                    "outputs": [{"name": "OUTPUT0", "parameters": region.part(name, 4096, values.nbytes)}]}
            status, _, reply = self.post("/v2/models/plain/infer", json.dumps(body))
            if status == 200:
                self.check(own.read(4096, values.nbytes) == values.tobytes() and json.loads(reply)["id"] == name, reply[:300])
            else:
                self.tally.refuse(self.name, "plain", status, reply.decode())
            status, _, reply = self.post(region.path("unregister", name), b"")
            if status != 200:
                self.tally.refuse(self.name, "plain", status, reply.decode())


class Generate(Http):
    def ask(self):
        text = f"{self.identifier()} {'x' * self.chance.randrange(3_000)}"
        status, _, reply = self.post("/v2/models/text/generate", json.dumps({"INPUT0": text, "id": text[:20]}))
        if status != 200:
            return self.tally.refuse(self.name, "text", status, reply.decode())
        self.check(json.loads(reply)["OUTPUT0"] == text, reply[:300])


class GenerateStream(Client):
    def ask(self):
        values = [self.chance.randrange(1 << 20) for _ in range(self.chance.randrange(1, 40))]
        with wire.connect(self.server, timeout=PATIENCE_S) as link:
            link.sendall(wire.post("/v2/models/repeat/generate_stream", json.dumps(repeated(values)).encode()))
            events = Events(link)
            if events.status != 200:
                return self.tally.refuse(self.name, "repeat", events.status, str(events.headers))
            got = [event.get("OUT") for event in events.rest()]
        compare(self, values, got)


def compare(client, expected, got):
    """The responses of a decoupled request: all of them, in order, each once."""
    if got == expected:
        return client.tally.answer(client.name)
    where = client.tally.wrong
    if len(got) < len(expected) and got == expected[:len(got)]:
        where = client.tally.lost
    elif len(got) > len(expected):
        where = client.tally.doubled
    return client.tally.note(where, client.name, f"{got} instead of {expected}")


class Grpc(Client):
    stub = channel = None

    def reset(self):
        if self.channel:
            self.channel.close()
        self.channel = self.stub = None

    def connect(self):
        if self.channel is None or self.chance.random() < 0.01:
            self.reset()
            self.channel = grpc.insecure_channel(self.server.grpc, [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)])
            self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        return self.stub

    def ask(self):
        model, values, name = self.model(), self.values(self.chance.choice((2, 64, 1_000))), self.identifier()
        values = numpy.tile(values, self.chance.choice((1, 1, 10, 200)))
        made = request(model, [("INPUT0", "FP32", values.reshape(shape(model, values)))], name)
        stub, compression = self.connect(), self.chance.choice((None, None, None, grpc.Compression.Gzip))
        if self.chance.random() < 0.1:
            # Given up in the middle: whatever becomes of it, nobody else gets it.
            call = stub.ModelInfer.future(made, timeout=PATIENCE_S)
            time.sleep(self.chance.random() * 0.003)
            if call.cancel():
                return self.tally.count("clients cut off")
        try:
            reply = stub.ModelInfer(made, timeout=PATIENCE_S, compression=compression)
        except grpc.RpcError as error:
            return self.failed(model, error)
        good = reply.id == name and reply.model_name == model and reply.raw_output_contents[0] == values.tobytes()
        self.check(good, f"{model} {name}: id {reply.id}, {reply.raw_output_contents[0][:80]}")

    def failed(self, model, error):
        code, text = error.code().name, error.details() or ""
        if code == "DEADLINE_EXCEEDED":
            return self.tally.note(self.tally.lost, self.name, f"{model}: {text}")
        if code == "UNAVAILABLE" and re.search("Connection|connect|Socket closed|recvmsg|GOAWAY", text):
            return self.tally.cut(self.name, error)
        return self.tally.refuse(self.name, model, code, text)


class GrpcStream(Grpc):
    """Several decoupled requests on one stream."""

    def ask(self):
        wanted, got, finals, made = {}, collections.defaultdict(list), collections.Counter(), []
        for index in range(self.chance.randrange(1, 6)):
            name = f"{self.identifier()}-{index}"
            values = numpy.asarray([self.chance.randrange(1 << 20) for _ in range(self.chance.randrange(1, 30))], numpy.int32)
            wanted[name] = values.tolist()
            rows = [("IN", "INT32", values), ("DELAY", "UINT32", numpy.zeros(len(values), numpy.uint32)), ("WAIT", "UINT32", numpy.zeros(1, numpy.uint32))]
            made.append(request("repeat", rows, name, **{EMPTY_FINAL: True}))
        try:
            for reply in self.connect().ModelStreamInfer(iter(made), timeout=PATIENCE_S):
                if reply.error_message:
                    self.tally.refuse(self.name, "repeat", "UNAVAILABLE" if "unavailable" in reply.error_message.lower() else "stream", reply.error_message)
                    return
                answer = reply.infer_response
                if answer.raw_output_contents:
                    column = [output.name for output in answer.outputs].index("OUT")
                    got[answer.id].append(struct.unpack("<i", answer.raw_output_contents[column])[0])
                finals[answer.id] += answer.parameters[FINAL].bool_param
        except grpc.RpcError as error:
            return self.failed("repeat", error)
        for name, values in wanted.items():
            compare(self, values, got.pop(name, []))
            if finals[name] != 1:
                self.tally.note(self.tally.doubled if finals[name] else self.tally.lost, self.name, f"{finals[name]} final responses to {name}")
        if got:
            self.tally.note(self.tally.wrong, self.name, f"responses to requests that were not sent: {dict(got)}")


class Resetting(Client):
    """Leaves in every way and at every point; nobody else may notice."""

    def ask(self):
        chance = self.chance
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2000], "data": [1.5] * 2000}]}).encode()
        whole = {
            "http": wire.post("/v2/models/plain/infer", body),
            "stream": wire.post("/v2/models/repeat/generate_stream", json.dumps(repeated(list(range(300)), [1] * 300)).encode()),
            "upload": wire.post("/v2/models/plain/infer", b"x" * 300_000),
            "load": wire.post("/v2/repository/index", b"{}"),
            "junk": bytes(chance.randrange(256) for _ in range(200)),
            "grpc": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0) + wire.frame(wire.HEADERS, 4, 1, wire.call_head("ModelStreamInfer"))
            + wire.frame(wire.DATA, 0, 1, b"\0" + struct.pack(">I", 60_000) + b"y" * 9_000),
        }
        kind = chance.choice(list(whole))
        links = []
        for _ in range(chance.randrange(1, 4)):
            link = wire.connect(self.server, "grpc" if kind == "grpc" else "http", PATIENCE_S)
            links.append(link)
            try:
                link.sendall(whole[kind][:chance.randrange(1, len(whole[kind]) + 1)])
                if chance.random() < 0.5:
                    link.settimeout(0.01)
                    link.recv(chance.choice((1, 5_000)))
            except OSError:
                pass
        if chance.random() < 0.3:
            time.sleep(chance.random() * 0.1)
        for link in links:
            if chance.random() < 0.7:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
            self.tally.count("clients cut off")


class Crowd(Client):
    """More connections than there are descriptors, again and again; some of them ask."""

    def ask(self):
        links = []
        for _ in range(300):
            link = wire.connect(self.server, self.chance.choice(("http", "grpc")), PATIENCE_S)
            links.append(link)
            try:
                link.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\n\r\n")
            except OSError:
                self.tally.count("connections closed by the server")
        time.sleep(0.2)
        for link in links:
            link.close()
        self.tally.count("crowds")
        time.sleep(self.chance.random())


class Uploading(Client):
    """Many large uploads at once, most of which stop before the end."""

    def ask(self):
        size = 50_000_000
        head = wire.post("/v2/models/plain/infer", b"", f"Content-Length: {size}", "Inference-Header-Content-Length: 100", length=False)
        links, piece = [], b"u" * 1_000_000
        for _ in range(8):
            link = wire.connect(self.server, timeout=5)
            links.append(link)
            try:
                link.sendall(head)
                for _ in range(self.chance.choice((1, 20, 49, 50))):
                    link.sendall(piece)
            except OSError:
                pass  # It was refused.
        for link in links:
            link.close()
            self.tally.count("clients cut off")


class Partial(Client):
    """Calls that each send a part of a tensor; every second one is reset, the others stay until the connection goes."""

    def ask(self):
        links = []
        for _ in range(10):
            link = wire.connect(self.server, "grpc", 5)
            links.append(link)
            try:
                link.sendall(wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0))
                for number in range(1, 200, 2):
                    part = struct.pack(">BI", 0, 70_000) + bytes(4_000)
                    link.sendall(wire.frame(wire.HEADERS, 4, number, wire.call_head("ModelInfer")) + wire.frame(wire.DATA, 0, number, part))
                    if number % 4 == 1:
                        link.sendall(wire.frame(wire.RST_STREAM, 0, number, struct.pack(">I", 8)))
            except OSError:
                pass
        time.sleep(self.chance.random())
        for link in links:
            link.close()
            self.tally.count("clients cut off")


VICTIM = """
import socket, sys
text = sys.stdin.buffer.read()
while True:
    link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for _ in range(50):
        link.sendall(text)
        link.recv(1 << 16)
"""


class Killed(Client):
    """A process that asks, and is killed while it does."""

    def ask(self):
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [500], "data": [2.5] * 500}]}).encode()
        victim = subprocess.Popen([sys.executable, "-S", "-c", VICTIM, str(self.server.ports["http"])], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        victim.stdin.write(wire.post("/v2/models/storm/infer", body))
        victim.stdin.close()
        time.sleep(0.1 + self.chance.random() * 0.5)
        victim.kill()
        victim.wait()
        self.tally.count("clients cut off")


class Reloading(Http):
    """Changes `storm` under its clients, and has `comes` come and go."""

    repository = None

    def load(self, model, body=b"{}", may_fail=False):
        status, _, reply = self.post(f"/v2/repository/models/{model}/load", body)
        if status != 200 and may_fail:
            return self.tally.count("loads without room for their files")
        if status != 200:
            return self.tally.refuse(self.name, model, status, reply.decode())
        self.tally.count("loads")

    def ask(self):
        what = self.chance.random()
        if what < 0.5:
            path = self.repository.path / "storm/config.pbtxt"
            text = re.sub(r'parameters \{ key: "n".*', "", path.read_text())
            text = re.sub(r"count: \d", f"count: {self.chance.randrange(1, 4)}", text)
            fresh = path.with_suffix(".fresh")
            fresh.write_text(f'{text}parameters {{ key: "n" value {{ string_value: "{self.number}" }} }}\n')
            fresh.replace(path)
            self.load("storm")
        elif what < 0.7:
            status, _, reply = self.post("/v2/repository/models/comes/unload", b"{}")
            if status != 200:
                self.tally.refuse(self.name, "comes", status, reply.decode())
            self.load("comes")
        elif what < 0.8:
            # With files of the request's own, which the server keeps in a temporary directory.
            config = {"backend": "identity", "max_batch_size": 0, "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                      "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]}
            own = base64.b64encode(b"z" * 400_000).decode()
            self.load("comes", json.dumps({"parameters": {"config": json.dumps(config), "file:1/data": own}}), may_fail=self.tally.under == "full-disk")
            self.load("comes")
        else:
            for method, path, port in (("POST", "/v2/repository/index", "http"), ("GET", "/v2/models/storm/stats", "http"), ("GET", "/metrics", "metrics"),
                                       ("GET", "/v2/health/ready", "http"), ("GET", "/v2/models/storm/config", "http")):
                status, _, reply = self.server.request(method, path, port=port, timeout=PATIENCE_S)
                if status != 200:
                    self.tally.refuse(self.name, "plain", status, reply.decode())
        time.sleep(self.chance.random() * 0.02)


def start(server, repository, tally, chance):
    """The clients, not started yet."""
    Reloading.repository = repository
    kinds = [Json, Json, LargeJson, Binary, Binary, SharedMemory, Generate, GenerateStream, Grpc, Grpc, GrpcStream, Resetting, Resetting, Killed, Reloading]
    if tally.under == "descriptors":
        kinds.append(Crowd)
    if tally.under in ("address-space", "maps"):
        kinds += [Uploading, Uploading, Uploading, Partial, Partial]
    return [kind(server, tally, chance.random()) for kind in kinds]


def asks_once_more(server):
    """Whether everything serves when all have left; what does not."""
    values = numpy.arange(4, dtype=numpy.float32)
    faults = []
    for model in STEADY:
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape(model, values), "data": values.tolist()}]}
        status, reply = server.post_json(f"/v2/models/{model}/infer", body)
        if status != 200 or json.loads(reply)["outputs"][0]["data"] != values.tolist():
            faults.append(f"{model} afterwards: {status} {reply[:200]}")
    return faults
