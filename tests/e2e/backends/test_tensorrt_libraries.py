"""The libraries of the TensorRT backend: NVIDIA's own, opened through the shims as far as they go without a GPU; and what is said where a
library, a shim or a GPU is missing."""

import pathlib
import subprocess
import sys
import unittest

import cuda
import server as servers
import tensorrt_plans as plans
from case import ServerCase, conch_only, needs_library
from framework import load
from runtime import Runtime
from tensorrt_plans import BACKEND
from test_gpus import GpuCase
from waiting import until

LEAN = Runtime("tensorrt", "TensorRT's lean runtime", "libnvinfer_lean.so.*")
RTX = Runtime("tensorrt_rtx", "TensorRT for RTX", "libtensorrt_rtx.so.*", backend="tensorrt")
SHIM = LEAN.folder / "libconch_tensorrt_11.so"
PROGRAM = pathlib.Path(__file__).with_name("tensorrt_shim.py")
RTX_SHIM = RTX.folder / "libconch_tensorrt_rtx_1.so"


def through(shim, library):
    """What a library says through a shim, a line per answer. In a process of its own: the library stays loaded."""
    run = subprocess.run([sys.executable, PROGRAM, shim, library], capture_output=True, text=True, timeout=120, check=False)
    return run.returncode, run.stdout


class Real(unittest.TestCase):
    """NVIDIA's libraries on a machine without a device."""

    @LEAN.needed(SHIM.name)
    @unittest.skipIf(cuda.IS_REAL, "says what happens without a GPU")
    def test_the_lean_runtime_is_refused_without_a_device(self):
        code, said = through(SHIM, LEAN.library)
        self.assertEqual(code, 0, said)
        for line in ("headers 11.4", "open None", "log 1 createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure",
                     "runtime b'unable to create TensorRT runtime'", "end"):
            self.assertIn(line, said)
        self.assertNotIn("engine", said)

    @RTX.needed(RTX_SHIM.name)
    def test_the_runtime_for_rtx_reads_plans(self):
        code, said = through(RTX_SHIM, RTX.library)
        self.assertEqual(code, 0, said)
        for line in ("headers RTX 1.7", "open None", "runtime None", "cores 0", "host code 1", "log 1 IRuntime::deserializeCudaEngine: Error Code 1: "
                     "Serialization", "engine None", "end"):
            self.assertIn(line, said)

    @RTX.needed(RTX_SHIM.name)
    @LEAN.needed(SHIM.name)
    def test_a_shim_of_another_product_is_refused(self):
        code, said = through(SHIM, RTX.library)
        self.assertEqual(code, 0, said)
        self.assertIn("open b'is TensorRT for RTX 1.7.1, and the shim is compiled for TensorRT 11'", said)


@needs_library("tensorrt")
class WithoutGpu(ServerCase):
    flags = ("--model-control-mode=explicit",)

    @classmethod
    def models(cls, repository):
        repository.model("plan", BACKEND, files={"1/model.plan": plans.add().bytes()})

    def test_one_clear_line(self):
        status, error = load(self.server, "plan")
        self.assertEqual(status, 400)
        self.assertIn("unable to load model 'plan', TensorRT backend supports only GPU device", error)
        lines = until(lambda: [line for line in self.server.lines if "TensorRT backend supports only GPU device" in line], "the line", 5)
        self.assertEqual(len(lines), 1, lines)


@conch_only
@needs_library("tensorrt")
class Missing(GpuCase):
    """Libraries and shims that are named and of no use. Each model names its own library."""

    settings = {"devices": 1}
    flags = ("--model-control-mode=explicit", f"--backend-config=tensorrt,shim={servers.ROOT / 'nowhere'}/shim.so")

    @classmethod
    def models(cls, repository):
        cls.libraries = {"nowhere": "/nowhere/libnvinfer.so.11", "other": servers.built("libtriton_identity.so"), "double": plans.double()}
        for name, library in cls.libraries.items():
            config = BACKEND + f'parameters {{ key: "library" value {{ string_value: "{library}" }} }}\n'
            repository.model(name, config, files={"1/model.plan": plans.add().bytes()})

    def test_says_what_is_missing(self):
        for name, expected in {
            "nowhere": "TensorRT library /nowhere/libnvinfer.so.11: cannot be loaded: ",
            "other": "is not TensorRT's: it has no getInferLibVersion",
            "double": "/nowhere/shim.so: cannot open shared object file",
        }.items():
            with self.subTest(name):
                status, error = load(self.server, name)
                self.assertEqual(status, 400)
                self.assertIn(expected, error.replace(str(servers.ROOT), ""))
