"""Models in Python that load, unload and look at other models."""

import json
import unittest

import numpy
import tritonclient.http as httpclient

from python_script import everywhere, inputs, ours
from test_python_backend import python
from waiting import until_equal

NUMBERS = [("X", "INT32", (1,))], [("Y", "INT32", (1,))]
ADDS = '''
import json
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.number = int(json.loads(args["model_config"])["parameters"]["number"]["string_value"])

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() + self.number)]) for request in requests]
'''


def adding(number):
    return python(*NUMBERS, extra=f'parameters {{ key: "number" value {{ string_value: "{number}" }} }}\n')


class Controlled:
    flags = ("--model-control-mode=explicit", "--load-model=script")

    @staticmethod
    def models(repository):
        repository.model("adds", adding(1), files={"1/model.py": ADDS.encode()})
        repository.model("broken", python(*NUMBERS), files={"1/model.py": b"raise ValueError('no weights')\n"})

    def ask(self, model="adds"):
        with httpclient.InferenceServerClient(self.server.http) as client:
            return int(client.infer(model, inputs(httpclient, {"X": numpy.array([10], numpy.int32)})).as_numpy("Y")[0])

    def config(self, number):
        """In JSON, as `load_model` takes it."""
        tensor = {"data_type": "TYPE_INT32", "dims": [1]}
        return json.dumps({"backend": "python", "input": [{"name": "X", **tensor}], "output": [{"name": "Y", **tensor}],
                           "instance_group": [{"kind": "KIND_CPU"}], "parameters": {"number": {"string_value": str(number)}}})


@everywhere
class Control(Controlled):
    """Explicit control from a model."""

    def test_life(self):
        self.check(
            ("pb_utils.is_model_ready('adds')", False), ("pb_utils.load_model('adds')", None),
            ("[pb_utils.is_model_ready(*of) for of in (('adds',), ('adds', '1'), ('adds', '2'), ('nope',))]", [True, True, False, False]))
        self.assertEqual(self.ask(), 11)
        self.check((f"pb_utils.load_model(model_name='adds', config={self.config(5)!r})", None))
        self.assertEqual(self.ask(), 15)
        self.check(("pb_utils.unload_model(model_name='adds')", None))
        until_equal(lambda: self.script("pb_utils.is_model_ready(model_name='adds', model_version='')"), False, "a model that is unloaded")
        self.check(("pb_utils.load_model(model_name='adds', config='', files=None)", None))
        self.assertEqual(self.ask(), 11)
        self.check(("pb_utils.unload_model('adds', unload_dependents=True)", None))
        until_equal(lambda: self.script("pb_utils.is_model_ready('adds')"), False, "a model that is unloaded")

    def test_files(self):
        """A model that is in no repository."""
        text = ADDS.replace("+ self.number", "+ 2 * self.number")
        self.check((f"pb_utils.load_model('given', {self.config(7)!r}, {{'file:1/model.py': {text.encode()!r}}})", None))
        self.assertEqual(self.ask("given"), 24)
        self.check(("pb_utils.unload_model('given')", None))

    def test_what_is_no_call(self):
        self.assertEqual(self.failure("pb_utils.load_model('adds', '', [1])"), "TritonModelException: failed to load model 'adds', files should be a "
                                                                               "dictionary of file paths and file contents")
        self.assertTrue(self.failure("pb_utils.load_model('adds', '', {'file:1/model.py': 'text'})").startswith("TypeError: "))


@ours
class Refused(Controlled):
    """What fails: upstream's texts. Its server ends after such an answer."""

    def assert_fails(self, code, what, pattern):
        text = self.failure(code)
        prefix = f"TritonModelException: Failed to {what}: Failed to process the request for model 'script_0_0', message: "
        self.assertEqual(text[:len(prefix)], prefix)
        self.assertRegex(text[len(prefix):], pattern)

    def test_refusals(self):
        self.assert_fails("pb_utils.load_model('nope')", "load model", "failed to load 'nope', failed to poll from model repository")
        self.assert_fails("pb_utils.load_model('broken')", "load model", "load failed for model 'broken': .*no weights")
        self.assert_fails("pb_utils.load_model('adds', 'no config')", "load model", "failed to load 'adds', failed to poll from model repository")
        self.check(("pb_utils.is_model_ready('broken')", False))
        for version in ("x", "-1"):
            self.assert_fails(f"pb_utils.is_model_ready('script', '{version}')", "check model readiness",
                              f"^failed to get model version from specified version string '{version}'.*, version should be an integral value > 0$")

    def test_many_at_once(self):
        self.check(("threads = [threading.Thread(target=pb_utils.load_model, args=('adds',)) for _ in range(8)]\n"
                    "[thread.start() for thread in threads]; [thread.join() for thread in threads]; result = pb_utils.is_model_ready('adds')", True))
        self.assertEqual(self.ask(), 11)


if __name__ == "__main__":
    unittest.main()
