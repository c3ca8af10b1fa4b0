"""What the tests of backends of frameworks share: parameters of a model, a request by either client, and clients of a case's server."""

import concurrent.futures
import json

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import np_to_triton_dtype

from case import ServerCase


def parameters(**values):
    return "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items())


def infer(module, client, model, feeds, outputs=None, **more):
    """The answer's outputs by name: those asked for, or all."""
    inputs = []
    for name, value in feeds.items():
        value = numpy.asarray(value)
        if value.dtype.kind == "S":
            value = value.astype(object)
        inputs.append(module.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
        inputs[-1].set_data_from_numpy(numpy.ascontiguousarray(value) if value.shape else value)
    wanted = [module.InferRequestedOutput(name) for name in outputs] if outputs else None
    reply = client.infer(model, inputs, outputs=wanted, **more)
    shown = reply.get_response()
    names = outputs or ([output["name"] for output in shown["outputs"]] if module is httpclient else [output.name for output in shown.outputs])
    return {name: reply.as_numpy(name) for name in names}


class FrameworkCase(ServerCase):
    """Loads all models of its repository; clients live as long as a test."""

    flags = ("--model-control-mode=explicit", "--load-model=*")

    def http(self):
        client = httpclient.InferenceServerClient(self.server.http, concurrency=8, network_timeout=120)
        self.addCleanup(client.close)
        return client

    def grpc(self):
        client = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(client.close)
        return client

    def client(self, module=httpclient):
        return self.http() if module is httpclient else self.grpc()

    def both(self):
        return (httpclient, self.http()), (grpcclient, self.grpc())

    def at_once(self, clients, module, ask, count):
        """What `ask(client, index)` returns for so many indices, asked by clients that each have a thread."""
        address = self.server.http if module is httpclient else self.server.grpc

        def ask_all(first):
            with module.InferenceServerClient(address) as client:
                return [ask(client, index) for index in range(first, count, clients)]

        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            return [answer for answers in pool.map(ask_all, range(clients)) for answer in answers]

    def config_of(self, model):
        return self.server.get_json(f"/v2/models/{model}/config")

    def load(self, name, body=b""):
        return self.server.request("POST", f"/v2/repository/models/{name}/load", body, timeout=120)

    def assert_refused(self, name, text):
        status, _, body = self.load(name)
        self.assertEqual(status, 400, body)
        self.assertIn(text, json.loads(body)["error"])
        self.assertTrue(self.server.is_alive())
