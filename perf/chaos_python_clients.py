"""The clients of perf/chaos-python, the killer and the reloader, and what they tell."""

import collections
import contextlib
import os
import pathlib
import queue
import random
import re
import signal
import threading
import time

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

# An answer that takes longer is lost.
PATIENCE_S = 120
UNHEALTHY = re.compile(r"Stub process '([a-z]+_\d+_\d+)' is not healthy")
# What requests are told to a model that is being unloaded or loaded.
COMING = re.compile(r"unknown model|is not ready|has been unloaded|no available versions|not found|is unavailable|not at ready state")
# Log-uniform: 64 bytes to 1 MB of FP32.
SIZES = (16, 262_144)


class Tally:
    """What all saw: a failure is right only with an event that explains it. Any thread."""

    def __init__(self):
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.answers, self.counts = collections.Counter(), collections.Counter()
        self.wrong = []
        # Of instances that were killed: just before the kill, and after it. Of `comes`: from the unload to the end of the load.
        self.kills, self.reloads = collections.defaultdict(list), []

    def total(self):
        with self.lock:
            return self.answers.total()

    def answer(self, kind):
        with self.lock:
            self.answers[kind] += 1

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fault(self, kind, what):
        with self.lock:
            self.wrong.append(f"{kind}: {str(what)[:400]}")

    def is_bad(self):
        return len(self.wrong) >= 20

    def failure(self, kind, model, began, text):
        """A request that failed: explained if its stub was killed meanwhile, or its model was not there."""
        ended = time.monotonic()
        found = UNHEALTHY.search(text)
        with self.lock:
            if found and any(began <= after and before <= ended for before, after in self.kills[found[1]]):
                self.answers[kind] += 1
                self.counts["failed by a kill"] += 1
            elif model == "comes" and COMING.search(text) and any(began <= end and begin <= ended for begin, end in self.reloads):
                self.answers[kind] += 1
                self.counts["refused by an unload"] += 1
            else:
                self.wrong.append(f"{kind}: {model} failed without a reason: {text[:400]}")


class Client(threading.Thread):
    """Asks what is drawn at random, until the end."""

    def __init__(self, server, tally, seed):
        super().__init__(name=f"client {seed}", daemon=True)
        self.server, self.tally, self.chance = server, tally, random.Random(seed)
        self.kinds = [(30, self.numbers), (15, self.batch), (10, self.texts), (10, self.stream), (12, self.call), (8, self.error), (15, self.reloaded)]

    def run(self):
        with httpclient.InferenceServerClient(self.server.http, network_timeout=PATIENCE_S, connection_timeout=PATIENCE_S) as http, \
                grpcclient.InferenceServerClient(self.server.grpc) as grpc:
            self.clients = [(httpclient, http), (grpcclient, grpc)]
            weights = [weight for weight, _ in self.kinds]
            while not self.tally.is_over.is_set():
                (ask,) = self.chance.choices([ask for _, ask in self.kinds], weights)
                try:
                    ask(ask.__name__)
                except Exception as error:  # whatever it is, it fails the run
                    self.tally.fault(ask.__name__, f"{type(error).__name__}: {error}")

    def floats(self, batch=None):
        count = round(SIZES[0] * (SIZES[1] / SIZES[0]) ** self.chance.random())
        shape = (count,) if batch is None else (batch, max(1, count // batch))
        begin = self.chance.randrange(1 << 20)
        return numpy.arange(begin, begin + numpy.prod(shape), dtype=numpy.float32).reshape(shape)

    def infer(self, model, array, data_type="FP32"):
        module, client = self.chance.choice(self.clients)
        tensor = module.InferInput("INPUT0", list(array.shape), data_type)
        tensor.set_data_from_numpy(array)
        more = {"client_timeout": PATIENCE_S} if module is grpcclient else {}
        return client.infer(model, [tensor], **more).as_numpy("OUTPUT0")

    def check(self, kind, model, array, expected, data_type="FP32"):
        began = time.monotonic()
        try:
            found = self.infer(model, array, data_type)
        except InferenceServerException as error:
            return self.tally.failure(kind, model, began, error.message())
        if not numpy.array_equal(found, expected):
            return self.tally.fault(kind, f"{model}: {found!r} instead of {expected!r}")
        return self.tally.answer(kind)

    def numbers(self, kind):
        array = self.floats()
        self.check(kind, "echo", array, array + 1)

    def batch(self, kind):
        array = self.floats(self.chance.randrange(1, 9))
        self.check(kind, "batched", array, array + 1)

    def reloaded(self, kind):
        array = self.floats()
        self.check(kind, self.chance.choice(("comes", "changes")), array, array + 1)

    def texts(self, kind):
        rows = [self.chance.randbytes(self.chance.randrange(200)) for _ in range(self.chance.randrange(1, 50))]
        turned = numpy.array([row[::-1] for row in rows], dtype=numpy.object_)
        self.check(kind, "texts", numpy.array(rows, dtype=numpy.object_), turned, "BYTES")

    def call(self, kind):
        array = self.floats()
        self.check(kind, "caller", array, array + 1 + (24 if int(array[0]) % 4 == 0 else 0))

    def error(self, kind):
        """An error on purpose, told as such."""
        number, began = -self.chance.randrange(1, 1 << 20), time.monotonic()
        try:
            found = self.infer("fails", numpy.array([number], numpy.float32))
        except InferenceServerException as error:
            if f"ordered to {'fail' if number % 2 else 'raise'} {number}" in error.message():
                return self.tally.answer(kind)
            return self.tally.failure(kind, "fails", began, error.message())
        return self.tally.fault(kind, f"{number} gave {found!r}")

    def stream(self, kind):
        """All responses of a decoupled model, in their order, or some of the first and an error."""
        first, count, size = self.chance.randrange(1000), self.chance.randrange(30), self.chance.choice((1, 100, 10_000))
        results, began, expected = queue.SimpleQueue(), time.monotonic(), 0
        tensor = grpcclient.InferInput("INPUT0", [3], "FP32")
        tensor.set_data_from_numpy(numpy.array([first, count, size], numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: results.put((result, error)), stream_timeout=PATIENCE_S)
            client.async_stream_infer("stream", [tensor], enable_empty_final_response=True)
            while True:
                result, error = results.get(timeout=PATIENCE_S)
                if error is not None:
                    return self.tally.failure(kind, "stream", began, error.message())
                if result.get_response().parameters["triton_final_response"].bool_param:
                    break
                found = result.as_numpy("OUTPUT0")
                if len(found) != size or (found != first + expected).any():
                    return self.tally.fault(kind, f"response {expected} of {count} from {first}: {found!r}")
                expected += 1
        if expected != count:
            return self.tally.fault(kind, f"{expected} responses of {count}")
        return self.tally.answer(kind)


class Paced(threading.Thread):
    """Does something so many times, spread over the answers of the run."""

    def __init__(self, server, tally, seed, times, answers):
        super().__init__(name=type(self).__name__, daemon=True)
        self.server, self.tally, self.chance = server, tally, random.Random(seed)
        self.times, self.each, self.begin = times, answers / max(1, times), tally.total()

    def run(self):
        for number in range(self.times):
            while self.tally.total() - self.begin < self.each * (number + self.chance.random()):
                if self.tally.is_over.wait(0.005):
                    return
            try:
                self.act(number)
            except Exception as error:  # whatever it is, it fails the run
                self.tally.fault(self.name, f"{type(error).__name__}: {error}")


def stubs(server):
    """Instances by the process ids of their stubs, as far as they have begun."""
    found = {}
    for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a process that has just ended
            for pid in map(int, (task / "children").read_text().split()):
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if len(words) > 4 and words[2].endswith(b"conch_python_stub/__main__.py"):
                    found[pid] = words[4].decode()
    return found


class Killer(Paced):
    """Kills any stub at any moment."""

    def act(self, number):
        found = sorted(stubs(self.server).items())
        while not found:
            found = sorted(stubs(self.server).items())
        pid, instance = self.chance.choice(found)
        begin = time.monotonic()
        with self.tally.lock:
            # A failure may be told before the kill returns.
            self.tally.kills[instance].append((begin, begin + PATIENCE_S))
        # The child of the server stays a zombie until the server has seen its end: its number is not another's.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with self.tally.lock:
            self.tally.kills[instance][-1] = (begin, time.monotonic())
        self.tally.count("kills")


class Reloader(Paced):
    """Unloads and loads `comes`, and loads `changes` anew, whose clients must not see it."""

    repository = None

    def act(self, number):
        begin = time.monotonic()
        with httpclient.InferenceServerClient(self.server.http, network_timeout=PATIENCE_S, connection_timeout=PATIENCE_S) as client:
            if number % 2:
                with self.tally.lock:
                    self.tally.reloads.append((begin, begin + PATIENCE_S))
                client.unload_model("comes")
                self.load(client, "comes", begin)
                with self.tally.lock:
                    self.tally.reloads[-1] = (begin, time.monotonic())
            else:
                path = self.repository.path / "changes/config.pbtxt"
                text = re.sub(r'parameters \{ key: "n".*\n', "", path.read_text())
                path.write_text(f'{text}parameters {{ key: "n" value {{ string_value: "{time.monotonic_ns()}" }} }}\n')
                self.load(client, "changes", begin)
        self.tally.count("reloads")

    def load(self, client, model, began):
        """Loads it; again if its stub was killed before it was ready."""
        while True:
            try:
                return client.load_model(model)
            except InferenceServerException:
                with self.tally.lock:
                    # The process that completes a configuration has the model's name.
                    kills = (*self.tally.kills[model], *self.tally.kills[f"{model}_0_0"])
                    is_explained = any(began <= after for _, after in kills)
                if not is_explained:
                    raise
                self.tally.count("loads failed by a kill")
