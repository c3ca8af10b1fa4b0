"""Plug-ins that load late, in process: every backend of the tree, and two that compute with OpenMP, when 200 threads exist already."""

import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

import onnx_model
import server as servers
from case import conch_only, needs_library
from repository import Repository, identity, tensors
from test_capi import LIBRARY, SOURCES


def decoupled(backend, inputs, outputs):
    return (f'backend: "{backend}"\n' + tensors("input", inputs) + tensors("output", outputs)
            + "model_transaction_policy { decoupled: true }\ninstance_group [ { kind: KIND_CPU } ]\n")


@conch_only
@unittest.skipUnless(LIBRARY.exists(), f"{LIBRARY.name} is not built in profile {servers.PROFILE}")
@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
@needs_library("identity")
@needs_library("onnxruntime")
@needs_library("repeat")
@needs_library("square")
class Late(unittest.TestCase):
    def compile(self, target, source, *options):
        built = subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I", str(servers.ROOT / "src/abi/include"),
                                str(SOURCES / source), "-o", str(target), *options], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(built.returncode, 0, built.stderr[-3000:])
        return target

    def test_any_order(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 31)))
        four = ([("INPUT0", "FP32", (4,))], [("OUTPUT0", "FP32", (4,))])
        with tempfile.TemporaryDirectory(prefix="conch-late-") as directory, Repository() as repository:
            backends = pathlib.Path(directory) / "backends"
            shutil.copytree(servers.backend_directory(), backends)
            for name in ("parallel1", "parallel2"):
                (backends / name).mkdir()
                self.compile(backends / name / f"libtriton_{name}.so", "parallel.c", "-shared", "-fPIC", "-fopenmp", "-Wl,--no-undefined",
                             str(LIBRARY))
                repository.model(f"echo_{name}", identity(four[0]).replace('"identity"', f'"{name}"'))
            repository.model("echo_identity", identity(four[0]))
            repository.model("echo_onnx", 'backend: "onnxruntime"\n', files={"1/model.onnx": onnx_model.model(
                [("INPUT0", onnx_model.FLOAT, (4,))], [("OUTPUT0", onnx_model.FLOAT, (4,))],
                [onnx_model.node("Identity", ["INPUT0"], ["OUTPUT0"])])})
            repository.model("repeat", decoupled(
                "repeat", [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))],
                [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))]))
            repository.model("square", decoupled("square", [("IN", "INT32", (1,))], [("OUT", "INT32", (1,))]))
            program = self.compile(pathlib.Path(directory) / "late", "late.c", "-ldl", "-lpthread")
            models = sorted(path.name for path in repository.path.iterdir())
            done = subprocess.run([str(program), str(LIBRARY), str(repository), str(backends), str(seed), *models],
                                  capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, f"SEED={seed}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
            self.assertEqual(done.stdout.count("loading "), len(models))
            self.assertTrue(done.stdout.endswith("ok\n"))


if __name__ == "__main__":
    unittest.main()
