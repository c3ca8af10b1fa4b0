"""What a stub sends is not trusted: a model that writes anything into the memory that it shares with the server, posts what is no message,
floods, stops or leaves processes behind harms nobody else. Meanwhile another model in Python and one in C++ answer without a fault."""

import contextlib
import os
import pathlib
import signal
import threading
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from case import conch_only
from repository import identity
from test_python_backend import python
from test_python_calls import NUMBER, call
from test_python_own import OwnCase, needs_python
from waiting import until

# The layout of the shared memory is that of src/backends/python_ipc/lib.rs. A request names a function, and gets 1 more than its number.
HOSTILE = '''
import ctypes
import json
import os
import random
import re
import signal
import struct
import sys
import threading
import time
import numpy
import triton_python_backend_utils as pb_utils

CONTROL, RING, ENTRIES, CAPACITY = 64 << 10, 4096, 8192, 1024


class Segment:
    def __init__(self, name):
        maps = open("/proc/self/maps").read()
        found = re.search(f"([0-9a-f]+)-([0-9a-f]+) .*memfd:conch python {name}", maps)
        self.base, end = int(found[1], 16), int(found[2], 16)
        self.bytes = end - self.base

    def write(self, offset, content):
        ctypes.memmove(self.base + offset, content, len(content))

    def word(self, offset):
        return ctypes.c_uint32.from_address(self.base + offset)


# Where the stub's allocator does not come to.
free = 32 << 20


def block(content, length=None):
    """A block of the responses with a message, and perhaps another length than it has."""
    global free
    size = (64 + len(content) + 63) // 64 * 64
    if free + size > responses.bytes:
        free = 32 << 20
    offset, free = free, free + size
    responses.write(offset, struct.pack("<IIQQ", 0, 0, len(content) if length is None else length, 0))
    responses.write(offset + 64, content)
    return offset


def text(content):
    content = content.encode()
    return struct.pack("<I", len(content)) + content


def tensors(rows):
    """Name, type, shape, offset and bytes of each, as src/backends/python_ipc/wire.rs has them."""
    content = struct.pack("<I", len(rows))
    for name, number, shape, offset, size in rows:
        content += text(name) + struct.pack(f"<II{len(shape)}qBQQ", number, len(shape), *shape, 0, offset, size)
    return content


def send(number, flags, rows, parameters=""):
    push(block(b"\\3" + struct.pack("<QIBB", number, flags, 1, 0) + text(parameters) + tensors(rows)))


def fail(number, code, message):
    push(block(b"\\3" + struct.pack("<QIBBI", number, 1, 1, 1, code) + text(message)))


def call(number, model, rows, parameters=""):
    return (b"\\4" + struct.pack("<Q", number) + text(model) + struct.pack("<q", -1) + text("") + struct.pack("<BQIQQQ", 0, 0, 0, 0, 0, 0)
            + text(parameters) + struct.pack("<I", 1) + text("OUTPUT0") + tensors(rows))


def push(offset):
    """Posts an offset, whatever it is."""
    tail = responses.word(RING + 128)
    while (tail.value - responses.word(RING + 192).value) % 2**32 >= CAPACITY:
        time.sleep(0.0001)
    responses.write(ENTRIES + tail.value % CAPACITY * 8, struct.pack("<Q", offset % 2**64))
    tail.value = (tail.value + 1) % 2**32
    bell = responses.word(RING)
    bell.value = (bell.value + 1) % 2**32
    # futex(word, FUTEX_WAKE, all)
    ctypes.CDLL(None).syscall(202, ctypes.c_void_p(responses.base + RING), 1, 2**31 - 1, None, None, 0)


def post(fields):
    push(block(json.dumps(fields).encode()))


def scribble_replies():
    responses.write(0, os.urandom(64))


def scribble_queue():
    responses.write(RING, os.urandom(4096))


def scribble_commands():
    requests.write(0, os.urandom(4096))


def scribble_everything():
    for segment in (requests, responses):
        segment.write(4, os.urandom((2 << 20) - 4))


def garbage_messages():
    for _ in range(20):
        push(block(os.urandom(200)))


def deep_text():
    push(block(b"[" * 1_000_000))


def wide_text():
    push(block(b\'{"k":"log","zz":[\' + b"0," * 4_000_000 + b"0]}"))


def wide_lists():
    """Lists that are said to have as many elements as the message has bytes, and more."""
    for kind in range(6):
        for count in (2**20, 2**32 - 1):
            push(block(bytes([kind]) + struct.pack("<QI", 1, count) + bytes(1 << 20)))
            push(block(bytes([kind]) + struct.pack("<I", count) * 100))


def wild_offsets():
    for offset in (1, 64, CONTROL + 1, responses.bytes - 64, responses.bytes, 2**63, -64):
        push(offset)


def wild_lengths():
    for length in (responses.bytes, 2**63, 2**64 - 1, 2**64 - 200):
        push(block(b"{}", length))


def other_numbers():
    for number in range(5000):
        fail(number, 1, "not yours")
        post({"k": "drop_request", "h": number})


def wild_tensors():
    rows = [["OUTPUT0", 8, [1], 2**63, 4], ["OUTPUT0", 8, [-4], 0, 4], ["OUTPUT0", 99, [1], 0, 4], ["OUT\\0PUT", 8, [1], 0, 4],
            ["none", 8, [1], 0, 4], ["OUTPUT0", 8, [1] * 100, 0, 4], ["OUTPUT0", 13, [2**62], 0, 7], ["OUTPUT0", 13, [-3], 0, 9]]
    for row in rows:
        for flags in (0, 1):
            send(current, flags, [row], \'{"a": 1, "b": [1]}\')


def repeated_tensors():
    """A response that would take up a thousand times the memory that the model has."""
    bytes_ = responses.bytes // 2 // 4 * 4
    rows = [["OUTPUT0", 8, [bytes_ // 4], 0, bytes_]] * 2000
    send(current, 1, rows)


def wrong_types():
    for kind in ("send", "log", "infer", "next", "cancel", "drop_call", "metric", "family", "new_metric", "load", "is_ready", "readiness",
                 "is_ready_reply", "is_cancelled", "drop_metric", "drop_family", "no such kind", ""):
        for value in ({}, {"v": [1], "p": 3, "o": 5, "c": {}, "x": "y", "d": "d", "labels": [], "buckets": {}, "op": 7, "kind": -1, "id": 5},
                      {"m": "a\\0b", "h": 2**64 - 1, "n": 2**63, "v": 2**63, "t": 2**64 - 1, "l": 77, "op": "increment", "name": "\\0", "kind": 1}):
            # What is no row, nor a number, would be a malformed message.
            if kind != "load":
                post({"k": kind, **value})


def wild_calls():
    for row in (["INPUT0", 8, [1], 2**63, 4], ["INPUT0", 8, [2**62], 0, 4], ["INPUT0", 8, [-1], 0, 4], ["INPUT0", 99, [1], 0, 4],
                ["INPUT0", 8, [1], 0, 2**40], ["\\0", 8, [1], 0, 4], ["INPUT0", 13, [1], 0, 4]):
        for decoupled in (False, True):
            push(block(call(5 * decoupled, "identity", [row], \'{"x": [1]}\')))


def flood_of_calls():
    """Twenty thousand calls from one block, whose answers nobody fetches."""
    for decoupled in (False, True):
        offset = block(call(decoupled, "identity", [["INPUT0", 8, [1], 0, 4]]) + bytes(200))
        for _ in range(10_000):
            push(offset)


def wild_files():
    for row in (["file:1/x", 6, [3], 2**63, 3], ["file:1/x", 6, [3], 0, 2**40]):
        post({"k": "load", "m": "no_such_model", "c": "{}", "i": [row]})
    post({"k": "load", "m": "no_such_model", "c": "{}", "i": [["file:1/x", 6, [3], 0, 1 << 20]] * 3000})


def early_reply():
    """A reply before the end of the execution, with another message than the server waits for."""
    offset = block(b"\\2" + struct.pack("<IBBBB", 4, 0, 0, 0, 1))
    responses.write(8, struct.pack("<Q", offset))
    responses.word(4).value += 1
    responses.word(0).value += 1


def flood_of_logs():
    """The queue never becomes empty: each entry is a log line of 2 MB, and there are always hundreds."""
    entry = struct.pack("<Q", block(json.dumps({"k": "log", "l": 3, "f": "f", "n": 1, "m": "flood" * 400_000}).encode()))
    responses.write(ENTRIES, entry * CAPACITY)
    head, tail = responses.word(RING + 192), responses.word(RING + 128)

    def flood():
        while True:
            tail.value = (head.value + 900) % 2**32
    threading.Thread(target=flood, daemon=True).start()
    post({"k": "log", "l": 3, "f": "f", "n": 1, "m": "wakes it"})


def heirs():
    """A process of its own that keeps the memory, undoes each ring and posts without end."""
    if os.fork() == 0:
        os.setsid()
        with open(os.environ["HOSTILE_PIDS"], "a") as file:
            print(os.getpid(), file=file)
        for number in range(256):
            try:
                os.close(number)
            except OSError:
                pass
        end = time.monotonic() + 300
        while time.monotonic() < end:
            for offset in (0, RING):
                responses.word(offset).value = 0
            responses.word(RING + 128).value = responses.word(RING + 192).value + 1
        os._exit(0)
    time.sleep(0.05)
    os._exit(0)


def close_files():
    os.closerange(0, 256)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def end():
    os._exit(0)


ACTIONS = [scribble_replies, scribble_queue, scribble_commands, scribble_everything, garbage_messages, deep_text, wide_text, wild_offsets,
           wild_lengths, wide_lists, other_numbers, wild_tensors, repeated_tensors, wrong_types, wild_calls, flood_of_calls, wild_files, early_reply,
           heirs, close_files, stop, end, flood_of_logs]


class TritonPythonModel:
    def initialize(self, args):
        global requests, responses
        requests, responses = Segment("requests"), Segment("responses")

    def execute(self, received):
        global current
        answers = []
        for request in received:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            value = int(array[0])
            current = request._handle
            if value < 1000:
                ACTIONS[value]()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]))
        return answers
'''

PLAIN = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]) for array in arrays]
'''

NAMES = HOSTILE.split("ACTIONS = [")[1].split("]")[0].replace("\n", " ").replace(" ", "").split(",")
# What ends the stub whenever it is seen, and what its request is answered with that sends answers of its own, if not as if nothing was.
DEADLY = {"heirs", "stop", "end"}
ANSWERED = {"other_numbers": r"not yours|\d+", "wild_tensors": r"output '.*'|expected a single response, got 2|\d+",
            "repeated_tensors": r"the tensors of a message have more bytes than the shared memory|\d+"}
SEGMENT_BYTES = 64 << 20


class Bystanders:
    """Asks models without a pause, and counts what is wrong or refused."""

    def __init__(self, server):
        self.server, self.is_over = server, threading.Event()
        self.answers, self.faults = {"plain": 0, "identity": 0}, []
        self.threads = [threading.Thread(target=self.ask, args=(model, module, address), daemon=True) for model in self.answers
                        for module, address in ((httpclient, server.http), (grpcclient, server.grpc))]

    def ask(self, model, module, address):
        number = 0
        with module.InferenceServerClient(address) as client:
            while not self.is_over.is_set():
                number += 1
                try:
                    found = int(call(client, module, model, number).as_numpy("OUTPUT0")[0])
                    if found != number + (model == "plain"):
                        self.faults.append(f"{model}: {number} became {found}")
                except Exception as error:  # whatever it is, it is a fault
                    self.faults.append(f"{model}: {error}")
                self.answers[model] += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join(60)


@conch_only
@needs_python
class Hostile(OwnCase):
    pids = None
    flags = (*OwnCase.flags, "--backend-config=python,stub-restart-pause-ms=1", "--backend-config=python,stub-restart-limit=1000",
             "--backend-config=python,stub-timeout-seconds=3", f"--backend-config=python,shm-max-byte-size={SEGMENT_BYTES}",
             "--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=20")

    @classmethod
    def setUpClass(cls):
        cls.pids = pathlib.Path(f"/tmp/conch-hostile-{os.getpid()}")
        cls.environment = {**OwnCase.environment, "HOSTILE_PIDS": str(cls.pids)}
        cls.addClassCleanup(cls.end_heirs)
        super().setUpClass()

    @classmethod
    def end_heirs(cls):
        """What the hostile model started left its group: nothing of the server's ends it."""
        with contextlib.suppress(FileNotFoundError):
            for pid in map(int, cls.pids.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            cls.pids.unlink()

    @staticmethod
    def models(repository):
        repository.model("hostile", python(*NUMBER), files={"1/model.py": HOSTILE.encode()})
        repository.model("plain", python(*NUMBER), files={"1/model.py": PLAIN.encode()})
        repository.model("identity", identity([("INPUT0", "INT32", (-1,))]))

    def hostile(self, name):
        """What becomes of a request that has the model do something: its answer, or the error."""
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
            tensor.set_data_from_numpy(numpy.array([NAMES.index(name)], numpy.int32))
            try:
                return int(client.infer("hostile", [tensor], client_timeout=120).as_numpy("OUTPUT0")[0])
            except InferenceServerException as error:
                return error.message()

    def serves_again(self):
        try:
            return self.ask(5000, "hostile") == 5001
        except InferenceServerException:
            return False

    def test_nobody_else_is_harmed(self):
        memory = self.server.resident_bytes()
        with Bystanders(self.server) as bystanders:
            for name in NAMES:
                for _ in range(1 if name in ("stop", "wide_text") else 3):
                    with self.subTest(name):
                        before = dict(bystanders.answers)
                        outcome = self.hostile(name)
                        self.assert_explained(name, outcome)
                        until(self.serves_again, f"the model serves again after {name}", 60)
                        until(lambda then=before: all(bystanders.answers[model] > then[model] for model in then), "answers of the others", 60)
                        self.assertEqual(bystanders.faults, [])
            self.unload_while_it_floods()
        self.assertEqual(bystanders.faults, [])
        self.assertGreater(min(bystanders.answers.values()), 100)
        until(lambda: self.server.resident_bytes() - memory, "memory goes back", 30, lambda more: more < 512 << 20)
        self.assertNotIn("panicked", self.server.output)

    def assert_explained(self, name, outcome):
        """The stub is ended, or the model has itself to blame for its answer."""
        if name in DEADLY or isinstance(outcome, str) and name not in ANSWERED:
            self.assertEqual(outcome, "Stub process 'hostile_0_0' is not healthy.")
        elif name in ANSWERED:
            self.assertRegex(str(outcome), ANSWERED[name])
        elif name != "scribble_everything":  # which may change its own input
            self.assertEqual(outcome, NAMES.index(name) + 1)

    def unload_while_it_floods(self):
        self.hostile("flood_of_logs")
        with httpclient.InferenceServerClient(self.server.http, network_timeout=60, connection_timeout=60) as client:
            client.unload_model("hostile")
            until(lambda: not client.is_model_ready("hostile"), "the model is unloaded", 60)
            until(lambda: len(self.children()) == 1, "its process is gone", 60)


if __name__ == "__main__":
    unittest.main()
