"""What perf/soak runs against its server: clients of perf/chaos at a steady pace that check their answers, windows of `load` that measure
latencies, and a model that is loaded anew again and again."""

import collections
import re
import subprocess
import threading
import time

import chaos_clients
import region
import server as servers
from bodies import grpc_binary, grpc_region, http_binary, http_json, http_region, tensor
from loading import Load
from repository import identity
from test_stream import REPEAT

LARGE = 602112 // 4  # one 224 x 224 x 3 image of FP32
REGION = "soak"
# Each has a part of the region of its own: an input and, behind it, an output.
PLACES = {protocol: ((REGION, number * 8 * LARGE), (REGION, number * 8 * LARGE + 4 * LARGE)) for number, protocol in enumerate(("http", "grpc"))}
REGION_BYTES = 16 * LARGE
# `rate` is of requests per second. All together keep a server busy for about a fifth of a CPU.
Case = collections.namedtuple("Case", "name protocol body model rate connections")
CASES = [
    Case("http 64 B", "http", http_binary(16), "measured", 200, 8),
    Case("http 64 B, reloaded", "http", http_binary(16), "renewed", 100, 8),
    Case("grpc 64 B", "grpc", grpc_binary(16, b"measured"), "measured", 200, 2),
    Case("json 1000 floats", "http", http_json(1000), "measured", 50, 4),
    Case("http 600 KB", "http", http_binary(LARGE), "measured", 20, 4),
    Case("grpc 600 KB", "grpc", grpc_binary(LARGE, b"measured"), "measured", 20, 2),
    Case("http 600 KB shm", "http", http_region(LARGE, *PLACES["http"]), "measured", 20, 2),
    Case("grpc 600 KB shm", "grpc", grpc_region(LARGE, *PLACES["grpc"], b"measured"), "measured", 20, 2),
]
# The same bytes, answered by a server that knows nothing of models and changes nothing over time: what becomes slower there, the machine slows.
BARE = Case("bare server", "http", http_binary(16), "measured", 200, 8)
# Models that are loaded anew while they are asked: by clients that check, by `load`.
RENEWED = ("storm", "renewed")
CHECKS_PER_SECOND = 8


def models(repository):
    fp32 = [("INPUT0", "FP32", (-1,))]
    repository.model("plain", identity(fp32, count=2))
    repository.model("batched", identity(fp32, batch=8, extra="dynamic_batching { max_queue_delay_microseconds: 300 }\n"))
    repository.model("storm", identity(fp32, count=2))
    repository.model("measured", identity(fp32, batch=64))
    repository.model("renewed", identity(fp32, batch=64))
    repository.model("text", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("repeat", REPEAT)


def paced(kind):
    """A client of perf/chaos that asks so many times a second, and only models that are always there."""
    class Paced(kind):
        def ask(self):
            due = time.monotonic() + 1 / CHECKS_PER_SECOND
            super().ask()
            self.tally.is_over.wait(max(0, due - time.monotonic()))

        def model(self):
            return self.chance.choice(chaos_clients.STEADY)

    Paced.__name__ = kind.__name__
    return Paced


class LargeJson(chaos_clients.LargeJson):
    sizes = (30_000,)


CHECKING = [paced(kind) for kind in (
    chaos_clients.Json, LargeJson, chaos_clients.Binary, chaos_clients.SharedMemory, chaos_clients.Generate, chaos_clients.GenerateStream,
    chaos_clients.Grpc, chaos_clients.GrpcStream, chaos_clients.Resetting)]


class Reloading(threading.Thread):
    """Changes the configuration of both models every so many seconds, and loads them; their clients must not notice."""

    def __init__(self, server, tally, repository, seconds):
        super().__init__(name="reloading", daemon=True)
        self.server, self.tally, self.repository, self.seconds = server, tally, repository, seconds

    def run(self):
        while not self.tally.is_over.wait(self.seconds):
            for model in RENEWED:
                path = self.repository.path / model / "config.pbtxt"
                text = re.sub(r'parameters \{ key: "n".*\n', "", path.read_text())
                path.write_text(f'{text}parameters {{ key: "n" value {{ string_value: "{time.monotonic_ns()}" }} }}\n')
                try:
                    status, reply = self.server.post_json(f"/v2/repository/models/{model}/load", {})
                except OSError as error:
                    status, reply = 0, str(error)
                if status == 200:
                    self.tally.count("reloads")
                else:
                    self.tally.note(self.tally.wrong, "reloading", f"{model}: {status} {reply}")


class Measuring(threading.Thread):
    """One case, window after window: (seconds since `began`, what `load` saw). The prefix begins the command of `load`."""

    def __init__(self, server, tally, case, window_s, cpu, began, prefix):
        super().__init__(name=case.name, daemon=True)
        self.tally, self.case, self.window_s, self.cpu, self.began, self.windows = tally, case, window_s, cpu, began, []
        self.load = Load(server.address(case.protocol), case.protocol, case.body, case.model, case.connections, case.rate)
        self.load.command = [*prefix, *self.load.command]

    def run(self):
        with self.load:
            while not self.tally.is_over.is_set():
                at = time.monotonic() - self.began
                try:
                    row = self.load.run(self.window_s, [self.cpu])
                except (RuntimeError, OSError) as error:
                    self.tally.note(self.tally.wrong, self.case.name, error)
                    return
                self.windows.append((at, row))
                if row["failed"]:
                    self.tally.note(self.tally.wrong, self.case.name, f"{row['failed']} failed: {row['reasons']}")


class BareServer:
    """The floor server of bench/, behind the part of a server's interface that `Measuring` needs."""

    def __init__(self, prefix):
        self.process = subprocess.Popen([*prefix, str(servers.built("floor-http"))], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def address(self, _protocol):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()


class SharedRegion:
    """The registered memory of the cases that measure it. What they leave there is checked at the end."""

    def __init__(self, server):
        self.server, self.object = server, region.Object(REGION_BYTES)
        for source, target in PLACES.values():
            self.object.memory[source[1]:target[1]] = tensor(LARGE)
        status, reply = region.register(server, REGION, self.object.key, REGION_BYTES)
        if status != 200:
            raise SystemExit(f"cannot register shared memory: {reply}")

    def faults(self):
        return [f"the output of {protocol} in shared memory is wrong" for protocol, (_, target) in PLACES.items()
                if self.object.read(target[1], 4 * LARGE) != tensor(LARGE)]

    def clear(self):
        for _, target in PLACES.values():
            self.object.memory[target[1]:target[1] + 4 * LARGE] = bytes(4 * LARGE)

    def close(self):
        self.object.close()
