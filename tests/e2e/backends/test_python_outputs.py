"""Large outputs of models in Python, which conch sends from the memory that it shares with the stub: right answers in each form, clients
that read slowly, a stub that writes over what is on its way, one that is killed meanwhile."""

import concurrent.futures
import json
import os
import signal
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import wire
from case import conch_only
from test_python_backend import python
from test_python_own import OwnCase, needs_python
from waiting import until

# Answers with as many copies of a number as it says. A negative one: writes that number over all that the responses' memory has in use.
FILL = '''
import ctypes
import re
import numpy
import triton_python_backend_utils as pb_utils


def write_over(value):
    maps = open("/proc/self/maps").read()
    found = re.search("([0-9a-f]+)-([0-9a-f]+) .*memfd:conch python responses", maps)
    base, end = int(found[1], 16), int(found[2], 16)
    # Behind the control area and the header of the first block.
    for at in range(base + (2 << 20), base + (18 << 20), 1 << 20):
        ctypes.memmove(at, numpy.full(1 << 18, value, numpy.float32).tobytes(), 1 << 20)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value, count = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)[:2]
            if value < 0:
                write_over(value)
            made = numpy.full(int(count), value, numpy.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", made)]))
        return responses
'''
LARGE = 4 << 20
TENSORS = ([("IN", "FP32", (2,))], [("OUT", "FP32", (-1,))])


def request_bytes(value, count):
    """A request for a binary answer."""
    content = numpy.array([value, count], numpy.float32).tobytes()
    head = json.dumps({
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": len(content)}}],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}).encode()
    body = head + content
    return (b"POST /v2/models/fill/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            % (len(head), len(body))) + body


class Slow:
    """A client that asks, and reads later."""

    def __init__(self, server, value, count):
        self.link = wire.connect(server, timeout=60)
        self.link.sendall(request_bytes(value, count))
        # The head has come: the answer is on its way.
        self.head = self.link.recv(64)

    def read(self):
        replies = wire.Replies(self.link)
        replies.held = self.head
        status, headers, body = replies.next()
        self.link.close()
        if status != 200:
            raise AssertionError(f"{status}: {body[:200]!r}")
        return numpy.frombuffer(body[int(headers["inference-header-content-length"]):], numpy.float32)


def fill(repository):
    repository.model("fill", python(*TENSORS, batch=0), files={"1/model.py": FILL.encode()})


class FillCase(OwnCase):
    models = staticmethod(fill)

    def ask(self, value, count, module=httpclient, **arguments):
        address = self.server.http if module is httpclient else self.server.grpc
        with module.InferenceServerClient(address) as client:
            given = module.InferInput("IN", [2], "FP32")
            given.set_data_from_numpy(numpy.array([value, count], numpy.float32))
            return client.infer("fill", [given], **arguments).as_numpy("OUT")

    def check(self, value, count, **arguments):
        found = self.ask(value, count, **arguments)
        self.assertEqual((found.shape, found.min(), found.max()), ((count,), value, value))


@conch_only
@needs_python
class Forms(FillCase):
    def test_each_size_and_form(self):
        wanted = httpclient.InferRequestedOutput("OUT", binary_data=True)
        for count in (1, 16383, 16384, 16385, 1 << 20):
            with self.subTest(count=count):
                self.check(3, count)
                self.check(4, count, outputs=[wanted])
                self.check(5, count, outputs=[wanted], response_compression_algorithm="gzip")
                self.check(6, count, module=grpcclient)
                if count < 1 << 20:
                    self.check(7, count, outputs=[httpclient.InferRequestedOutput("OUT", binary_data=False)])

    def test_many_at_a_time(self):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(self.check, value, 20000 + value * 1000) for value in range(1, 200)]:
                done.result()


@conch_only
@needs_python
class OnTheirWay(FillCase):
    flags = (*OwnCase.flags, "--model-control-mode=explicit", "--load-model=*")

    def test_a_stub_that_writes_over_it_spoils_its_own_answer(self):
        slow = Slow(self.server, 2, LARGE)
        self.ask(-9, 1)
        found = slow.read()
        # What the socket had taken is as it was; the rest is what lay there when it was sent: it was not copied.
        self.assertEqual((len(found), set(numpy.unique(found))), (LARGE, {2.0, -9.0}))
        self.check(3, LARGE)

    def test_a_killed_stub_does_not_take_it_away(self):
        slow = Slow(self.server, 2, LARGE)
        (stub,) = self.children()
        os.kill(stub, signal.SIGKILL)
        self.wait_until_ready("fill")
        until(lambda: self.children() not in (set(), {stub}), "another stub runs", 60)
        self.check(3, LARGE)
        found = slow.read()
        self.assertEqual((len(found), found.min(), found.max()), (LARGE, 2, 2))

    def test_an_unload_waits_for_nobody_who_reads(self):
        slow = Slow(self.server, 2, LARGE)
        with httpclient.InferenceServerClient(self.server.http) as client:
            client.unload_model("fill")
            until(lambda: not client.is_model_ready("fill"), "the model is gone")
            until(lambda: not self.children(), "its process is gone", 60)
            found = slow.read()
            self.assertEqual((len(found), found.min(), found.max()), (LARGE, 2, 2))
            client.load_model("fill")
        self.check(3, LARGE)


@conch_only
@needs_python
class LittleMemory(FillCase):
    """A segment that slow clients could fill: a part of it may be on its way, the rest is copied."""

    flags = (*OwnCase.flags, f"--backend-config=python,shm-max-byte-size={64 << 20}")

    def test_slow_readers_take_no_memory_from_others(self):
        slow = [Slow(self.server, value, 2 << 20) for value in range(1, 17)]
        for _ in range(3):
            self.check(50, LARGE)
        for value, client in enumerate(slow, 1):
            found = client.read()
            self.assertEqual((len(found), found.min(), found.max()), (2 << 20, value, value))
        self.check(60, LARGE)

    def test_clients_that_go_away(self):
        for value in range(1, 60):
            Slow(self.server, value, LARGE).link.close()
        self.check(61, LARGE)


if __name__ == "__main__":
    unittest.main()
