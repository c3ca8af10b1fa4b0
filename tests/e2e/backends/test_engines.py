"""All engines in one process: models of ONNX Runtime, libtorch, TensorFlow, OpenVINO, DALI and of the forests serve side by side, asked by
many clients at once; each answers as when it is alone, and the threads of the process are in proportion to its CPUs."""

import collections
import os
import random
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import dali_models
import fil_models
import openvino_engine
import pytorch_engine
import server as servers
import tensorflow_engine
from case import conch_only, needs_library
from framework import FrameworkCase, infer
from processes import threads_of
from repository import tensors

CLIENTS, REQUESTS = 32, 640
MAGIKA = servers.ROOT / "docs/examples/model_repository/magika/1/model.onnx"
CPU = "instance_group [ { count: 1 kind: KIND_CPU } ]\ndynamic_batching { }\n"
BYTES = tensors("input", [("bytes", "INT32", (2048,))]) + tensors("output", [("target_label", "FP32", (214,))])
PAIR = tensors("input", [("INPUT__0", "FP32", (16,)), ("INPUT__1", "FP32", (16,))]) + tensors("output", [
    ("OUTPUT__0", "FP32", (16,)), ("OUTPUT__1", "FP32", (16,))])
FULL = 'parameters { key: "INFERENCE_PRECISION_HINT" value { string_value: "f32" } }\n'
# Sums of the two engines of one model, in batches of any size.
NEAR = 1e-4


@needs_library("onnxruntime")
@needs_library("pytorch")
@needs_library("tensorflow")
@needs_library("openvino")
@needs_library("dali")
@needs_library("fil")
@pytorch_engine.needs_pytorch
@pytorch_engine.needs_shim
@tensorflow_engine.needs_tensorflow
@openvino_engine.needs_openvino
@dali_models.NEWEST.needed()
@unittest.skipIf(not MAGIKA.exists(), "magika is not there; scripts/fetch-models --tests gets it")
class SideBySide(FrameworkCase):
    environment = {**pytorch_engine.NEWEST.environment, **tensorflow_engine.NEWEST.environment, **tensorflow_engine.QUIET,
                   **openvino_engine.NEWEST.environment, **dali_models.NEWEST.environment}
    flags = ()
    cpus = len(os.sched_getaffinity(0))

    @classmethod
    def models(cls, repository):
        forest = fil_models.forests()["xgboost_binary"]
        repository.model("onnxruntime", f'backend: "onnxruntime"\nmax_batch_size: 16\n{BYTES}{CPU}', files={"1/model.onnx": MAGIKA})
        repository.model("openvino", f'backend: "openvino"\nmax_batch_size: 16\n{BYTES}{CPU}{FULL}', files={"1/model.onnx": MAGIKA})
        pytorch_engine.add(repository, "pytorch", f'backend: "pytorch"\nmax_batch_size: 8\n{PAIR}{CPU}', "addsub")
        tensorflow_engine.add(repository, "tensorflow", f'platform: "tensorflow_savedmodel"\nbackend: "tensorflow"\n{CPU}', "network")
        repository.model("dali", f'backend: "dali"\n{CPU}', files={"1/model.dali": dali_models.NEWEST.pipeline("normalise")})
        repository.model("fil", forest.config(), files={f"1/{forest.file_name}": forest.content})
        generator = numpy.random.default_rng(7)
        content = [{"bytes": generator.integers(0, 257, (1, 2048), dtype=numpy.int32)} for _ in range(8)]
        labels = [{"target_label": row["target_label"]} for row in openvino_engine.answers(MAGIKA, content, threads=1, precision="f32")]
        both = list(zip(content, labels))
        # Feeds by name, and answers by name, or in order where the configuration has the names.
        cls.cases = {"onnxruntime": both, "openvino": both, "pytorch": pytorch_engine.ORACLE.cases("addsub"),
                     "tensorflow": tensorflow_engine.ORACLE.cases("network"), "dali": dali_models.NEWEST.calls("normalise"),
                     "fil": [({"input__0": forest.rows[:4]}, [numpy.asarray(forest.expected[:4], numpy.float32)])]}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.outputs = {name: [output["name"] for output in cls.server.get_json(f"/v2/models/{name}/config")["output"]] for name in cls.cases}

    def ask(self, module, client, name, feeds, expected):
        found = infer(module, client, name, feeds)
        named = expected.items() if isinstance(expected, dict) else zip(self.outputs[name], expected)
        for output, value in named:
            numpy.testing.assert_allclose(found[output], value, rtol=NEAR, atol=NEAR, err_msg=f"{name} {output}")

    def ask_all(self, module, client, number):
        chance = random.Random(number)
        for _ in range(REQUESTS // CLIENTS):
            name = chance.choice(list(self.cases))
            self.ask(module, client, name, *chance.choice(self.cases[name]))

    def test_each_answers_as_if_it_were_alone(self):
        self.on_threads(CLIENTS, (httpclient, grpcclient), self.ask_all)

    @conch_only
    def test_threads_are_in_proportion_to_the_cpus(self):
        client = self.http()
        for name in self.cases:
            self.ask(httpclient, client, name, *self.cases[name][0])
        names = collections.Counter(name for _, name in threads_of(self.server.pid))
        # An instance's own thread, those that its engine starts from it, which take its name, and up to two that sleep as a rule.
        for name in self.cases:
            self.assertLessEqual(names[f"{name}_0_0"], self.cpus + 2, names)
        # The CPUs that the network threads leave, which on one CPU is that one.
        pools = {"onnxruntime": names["onnxruntime_0_0"], "pytorch": names["pytorch_0_0"], "tensorflow": names["tf_Compute"],
                 "dali": sum(count for name, count in names.items() if name.startswith("[DALI][TP"))}
        for name, count in pools.items():
            self.assertIn(count, range(1, self.cpus + 1), (name, names))


class OnOneCpu(SideBySide):
    """Whatever the machine has."""

    launcher = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    cpus = 1
