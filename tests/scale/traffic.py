"""Clients that ask without a pause, over HTTP and gRPC, know each answer, and never ask again themselves."""

import http.client
import struct
import threading
import time

import numpy
import tritonclient.grpc as grpcclient

HTTP_CLIENTS = 8
GRPC_CLIENTS = 4
# No try of a balancer lasts as long: what takes longer has failed.
GIVES_UP_AFTER_S = 30


class Traffic:
    """Counts of a phase: requests, failures and latencies, by protocol."""

    def __init__(self, address, model):
        self.address, self.model, self.is_over, self.lock = address, model, threading.Event(), threading.Lock()
        self.counts, self.failures, self.latencies = {}, [], []
        self.threads = [threading.Thread(target=self.ask_on, args=(protocol, number), daemon=True)
                        for protocol, count in (("HTTP", HTTP_CLIENTS), ("gRPC", GRPC_CLIENTS)) for number in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join(GIVES_UP_AFTER_S + 5)

    def ask_on(self, protocol, number):
        ask = (HttpClient if protocol == "HTTP" else GrpcClient)(self.address, self.model)
        value = float(number)
        while not self.is_over.is_set():
            value += 16
            began = time.monotonic()
            try:
                got = ask(value)
                failure = None if got == value else f"{protocol}: {got} in place of {value}"
            except Exception as error:  # whatever it is, the request failed
                failure = f"{protocol}: {type(error).__name__}: {error}"
                time.sleep(0.01)
            with self.lock:
                self.counts[protocol] = self.counts.get(protocol, 0) + 1
                self.latencies.append(time.monotonic() - began)
                if failure:
                    self.failures.append(failure)

    def take(self):
        """(requests by protocol, failures, latencies in order) since the last time."""
        with self.lock:
            taken = self.counts, self.failures, sorted(self.latencies)
            self.counts, self.failures, self.latencies = {}, [], []
        return taken


class HttpClient:
    """One connection that is kept; a new one where the balancer closed it between two requests, as clients of HTTP do."""

    HEAD = (b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}}],'
            b'"parameters":{"binary_data_output":true}}')

    def __init__(self, address, model):
        self.path = f"/v2/models/{model}/infer"
        self.connection = http.client.HTTPConnection(address, 8000, timeout=GIVES_UP_AFTER_S)

    def __call__(self, value):
        try:
            self.connection.request("POST", self.path, self.HEAD + struct.pack("<f", value),
                                    {"Inference-Header-Content-Length": str(len(self.HEAD))})
            answer = self.connection.getresponse()
            body = answer.read()
        except Exception:
            self.connection.close()
            raise
        if answer.status != 200:
            raise ValueError(f"{answer.status} {body[:200]!r}")
        return struct.unpack("<f", body[-4:])[0]


class GrpcClient:
    """A channel of its own. The name of the model is in the metadata as well, for balancers."""

    def __init__(self, address, model):
        self.model = model
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.client = grpcclient.InferenceServerClient(f"{address}:8001", channel_args=options)

    def __call__(self, value):
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(numpy.array([[value]], dtype=numpy.float32))
        return float(self.client.infer(self.model, [tensor], headers={"x-model": self.model}, client_timeout=GIVES_UP_AFTER_S).as_numpy("OUTPUT0")[0, 0])
