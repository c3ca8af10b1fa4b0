"""What the tests of backends of frameworks share: parameters of a model, a request by either client, answers that are compared with a
framework's own, and files that are refused."""

import concurrent.futures
import json

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import np_to_triton_dtype

from case import ServerCase

NEAR = 1e-5


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


def load(server, model):
    """Asks the server to load a model: (status, the error or None)."""
    status, _, reply = server.request("POST", f"/v2/repository/models/{model}/load", b"{}", timeout=120)
    return status, json.loads(reply)["error"] if reply else None


class FrameworkCase(ServerCase):
    """Loads all models of its repository; clients live as long as a test."""

    flags = ("--model-control-mode=explicit", "--load-model=*")
    # What the framework itself answers, and how far from that floats may be: 0 is bit for bit.
    oracle = None
    tolerance = NEAR

    # Clients

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

    def on_threads(self, clients, modules, use):
        """What `use(module, client, number)` returns for so many clients at once, each on a thread; they are of the modules by turns."""
        def run(number):
            module = modules[number % len(modules)]
            with module.InferenceServerClient(self.server.http if module is httpclient else self.server.grpc) as client:
                return use(module, client, number)

        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            return list(pool.map(run, range(clients)))

    def at_once(self, clients, module, ask, count):
        """What `ask(client, index)` returns for so many indices, asked by clients that each have a thread."""
        def ask_some(_, client, first):
            return [ask(client, index) for index in range(first, count, clients)]

        return [answer for answers in self.on_threads(clients, [module], ask_some) for answer in answers]

    # Models

    def config_of(self, model):
        return self.server.get_json(f"/v2/models/{model}/config")

    def load(self, name):
        return load(self.server, name)

    def serve(self, *model, **more):
        """Loads a model, as `load` does."""
        self.assertEqual(self.load(*model, **more), (200, None))

    def refused(self, *model, **more):
        """What the load of a model, as `load` does it, says when it fails."""
        return self.refusal(*self.load(*model, **more))

    def refusal(self, status, error):
        self.assertTrue(self.server.is_alive(), self.server.output[-2000:])
        self.assertEqual(status, 400, error)
        self.assertTrue(error)
        return error

    def assert_refused(self, name, text):
        self.assertIn(text, self.refused(name))

    def assert_files_refused(self, kind, files, place, at_least=20, may_load=()):
        """Each of so many files is refused in words, and the server goes on. `place(model, content)` adds a model with one of them.
        `may_load`: what the framework takes all the same."""
        self.assertGreaterEqual(len(files), at_least)
        for name, content in files.items():
            model = f"{kind}_{name}"
            place(model, content)
            with self.subTest(model=model):
                outcome = load(self.server, model)
                self.assertTrue(self.server.is_alive())
                if name not in may_load:
                    self.refusal(*outcome)

    # Answers

    def tolerance_of(self, data_type):
        """For values of a NumPy type."""
        return self.tolerance

    def assert_equal(self, got, expected, tolerance=None):
        """Within the tolerance, which is that of the case unless it is given; without one bit for bit."""
        self.assertEqual(set(got), set(expected))
        for name, value in expected.items():
            mine = got[name]
            if value.dtype.kind == "S":
                self.assertEqual([bytes(text) for text in mine.ravel()], [bytes(text) for text in value.ravel()], name)
            else:
                self.assertEqual(mine.dtype, value.dtype, name)
                bound = self.tolerance_of(value.dtype) if tolerance is None else tolerance
                numpy.testing.assert_allclose(mine, value, rtol=bound, atol=min(bound, NEAR), err_msg=name)
                if not bound:
                    self.assertEqual(mine.tobytes(), value.tobytes(), name)
            self.assertEqual(mine.shape, value.shape, name)

    def assert_answers(self, model, source=None, cases=None, outputs=None):
        """A model answers as the oracle's model `source`, or as in these cases, by either client. `outputs`: those that are asked for."""
        for feeds, answers in cases or self.oracle.cases(source or model):
            if outputs:
                answers = {name: answers[name] for name in outputs}
            for module, client in self.both():
                with self.subTest(model=model, client=module.__name__):
                    self.assert_equal(infer(module, client, model, feeds, sorted(answers)), answers)

    def assert_answers_at_once(self, model, count, source=None, cases=None):
        """32 clients at once, of one protocol and then of the other, each send some of so many requests."""
        cases = cases or self.oracle.cases(source or model)
        for module in (grpcclient, httpclient):
            def check(client, index, module=module):
                feeds, answers = cases[index % len(cases)]
                self.assert_equal(infer(module, client, model, feeds, sorted(answers)), answers, max(self.tolerance, NEAR))

            with self.subTest(model=model, client=module.__name__):
                self.at_once(32, module, check, count)

    def assert_batched(self, model):
        """Some of the requests so far were executed together."""
        statistics = self.server.statistics(model)
        self.assertLess(statistics["execution_count"], statistics["inference_count"])

    def assert_accumulates(self, model, given, output, factor=1):
        """A sequence's state is the sum of its rows so far, which `factor` multiplies in the answer."""
        client = self.grpc()
        for sequence in (1, 2):
            total = numpy.zeros((1, 2), numpy.float32)
            for step in range(4):
                row = numpy.full((1, 2), sequence * 10 + step, numpy.float32)
                total = total + row
                got = infer(grpcclient, client, model, {given: row}, [output], sequence_id=sequence, sequence_start=step == 0,
                            sequence_end=step == 3)
                numpy.testing.assert_array_equal(got[output], total * factor)
