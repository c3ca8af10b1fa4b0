"""Engines on a GPU, each in conch and in a bare loop of its own (perf/engines): where their libraries are, and what a model needs.

The machine's own Python may be another than the one that runs this: it has torch, and with it NVIDIA's libraries."""

import json
import os
import pathlib
import shutil
import subprocess

import engine_programs
import real_models
import server as servers
from engine_programs import Refused
from repository import tensors

BATCH_MAX = 32
TORCH_PROGRAM = engine_programs.SOURCES / "torch_batches.py"
ASKED = """import importlib.metadata, importlib.util, json, pathlib
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
libraries = sorted({str(file.parent) for file in folder.parent.glob("nvidia/*/lib/*.so*")})
print(json.dumps({"version": importlib.metadata.version("torch"), "folder": str(folder), "libraries": libraries}))
"""


def outer_path():
    """LD_LIBRARY_PATH without what belongs to an interpreter that brings its own libraries (PYTHONHOME)."""
    home = os.environ.get("PYTHONHOME")
    parts = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return [part for part in parts if not (home and pathlib.Path(part).is_relative_to(home))]


def outside(libraries=(), **more):
    """What a command line begins with so that the program has the machine's environment, with these folders of libraries."""
    path = os.pathsep.join([*map(str, libraries), *outer_path()])
    own = [word for name in ("PYTHONHOME", "PYTHONPATH", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH") for word in ("-u", name)]
    return ["env", *own, *([f"LD_LIBRARY_PATH={path}"] if path else []), *(f"{name}={value}" for name, value in more.items())]


class TorchPython:
    """A Python that has torch: its program, torch's version and folder, and the folders of NVIDIA's libraries beside it."""

    def __init__(self, named):
        tried = [named] if named else [servers.CACHE / "venv-pytorch/bin/python", shutil.which("python3")]
        for program in filter(None, tried):
            try:
                done = subprocess.run([*outside(), str(program), "-c", ASKED], capture_output=True, text=True, timeout=60, check=False)
            except OSError:
                continue
            if done.returncode == 0:
                found = json.loads(done.stdout)
                self.program, self.version, self.folder = str(program), found["version"], pathlib.Path(found["folder"])
                self.libraries = found["libraries"]
                return
        raise Refused(f"no Python here has torch (tried {', '.join(map(str, filter(None, tried)))}); --torch-python names one")


class Place:
    """What instances run on: "gpu", "cpu", or "double", the doubles of the driver and of ONNX Runtime's providers."""

    def __init__(self, kind, libraries, threads):
        import cuda
        self.kind, self.threads = kind, threads
        self.device = -1 if kind == "cpu" else 0
        # Without a GPU the clients' device memory is the double's, also where instances run on the CPU.
        double = {} if kind == "gpu" else cuda.environment(devices=1)
        self.libraries = [*libraries, *filter(None, double.pop("LD_LIBRARY_PATH", "").split(os.pathsep)[:1])]
        self.environment = double

    def instances(self, count):
        kind = "KIND_CPU" if self.kind == "cpu" else "KIND_GPU gpus: [ 0 ]"
        return f"instance_group [ {{ count: {count} kind: {kind} }} ]\n"


class Engine:
    """An engine with the models that it has; refused where something is not there."""

    name, models, thread_parameter = None, (), None

    def __init__(self, options, place):
        self.options, self.place = options, place
        if not servers.built(f"libtriton_{self.name}.so").exists():
            raise Refused(f"libtriton_{self.name}.so is not built")

    def config(self, model):
        """One request is one batch: nothing is put together."""
        return (self.header() + f"max_batch_size: {BATCH_MAX}\n" + tensors("input", model.inputs) + tensors("output", model.outputs)
                + self.place.instances(self.options.instances)
                + "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in self.parameters().items()))

    def parameters(self):
        return {self.thread_parameter: self.place.threads} if self.place.kind == "cpu" else {"batches_in_flight": self.options.batches_in_flight}

    def header(self):
        return f'backend: "{self.name}"\n'

    def outside(self):
        """What both the server and the bare loop run in."""
        return outside(self.place.libraries, **self.place.environment, **self.environment())

    def environment(self):
        return {}

    @staticmethod
    def described(model):
        """Type, dims and answer of a row, as bare loops take them."""
        (_, data_type, dims), = model.inputs
        (_, _, (count,)), = model.outputs
        return data_type, "x".join(map(str, dims)), count


class OnnxRuntime(Engine):
    name, models, thread_parameter = "onnxruntime", ("resnet18", "magika"), "intra_op_thread_count"

    def __init__(self, options, place):
        super().__init__(options, place)
        named = options.onnxruntime_library or os.environ.get("CONCH_ONNXRUNTIME_LIBRARY")
        folder = pathlib.Path(named) if named else servers.CACHE / ("onnxruntime_gpu" if place.kind == "gpu" else "onnxruntime")
        found = [folder] if folder.is_file() else sorted(folder.glob("libonnxruntime.so*"))
        if not found:
            raise Refused(f"there is no libonnxruntime.so in {folder}: run scripts/fetch-runtime {folder.name}, or name it by --onnxruntime-library")
        self.library = self.real = found[0].resolve()
        if place.kind == "gpu" and not (self.library.parent / "libonnxruntime_providers_cuda.so").exists():
            raise Refused(f"{self.library.parent} has no libonnxruntime_providers_cuda.so: it is a build for CPUs")
        if place.kind == "double":
            self.library = servers.built("libconch_testkit_onnxruntime.so")
            if not self.library.exists():
                raise Refused(f"{self.library.name} is not built")
        self.program = engine_programs.compiled("onnxruntime_batches.c")

    def header(self):
        accelerator = "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in self.options.cuda_options)
        if not accelerator or self.place.kind == "cpu":
            return super().header()
        return (super().header() + 'optimization { execution_accelerators { gpu_execution_accelerator [ { name: "cuda"' + accelerator + " } ] } }\n")

    def environment(self):
        return {"CONCH_ONNXRUNTIME_LIBRARY": self.library, **({"CONCH_ORT_DOUBLE_LIBRARY": self.real} if self.library != self.real else {})}

    def file(self, model):
        given = self.options.model_directory and pathlib.Path(self.options.model_directory)
        if given and model.name == "magika":
            for inside in ("magika.onnx", "magika/model.onnx", "magika/1/model.onnx"):
                if (given / inside).exists():
                    return given / inside
        return model.file()

    def files(self, model):
        return {"1/model.onnx": self.file(model)}

    def bare(self, model, rows, device):
        data_type, dims, count = self.described(model)
        options = [f"{name}={value}" for name, value in self.options.cuda_options]
        return [*self.outside(), self.program, self.library, self.file(model), device, self.place.threads, rows,
                model.inputs[0][0], model.outputs[0][0], data_type, dims, count, *options]


class PyTorch(Engine):
    name, models, thread_parameter = "pytorch", ("resnet18",), "INTRA_OP_THREAD_COUNT"

    def __init__(self, options, place):
        super().__init__(options, place)
        if place.kind == "double":
            raise Refused("there is no double of torch for GPUs")
        self.python = TorchPython(options.torch_python)
        torch = servers.CACHE / "pytorch" if place.kind == "cpu" else self.python.folder / "lib"
        self.library = torch / "libtorch_cpu.so"
        if not self.library.exists():
            raise Refused(f"there is no {self.library}")
        if place.kind == "gpu" and not (torch / "libtorch_cuda.so").exists():
            raise Refused(f"torch {self.python.version} in {torch} is a build for CPUs")
        self.shim = self.find_shim()

    def find_shim(self):
        named = self.options.torch_shim or os.environ.get("CONCH_PYTORCH_SHIM")
        if not named and self.place.kind == "cpu":
            named = self.library.parent
        place = pathlib.Path(named or servers.CACHE / "torch-shim" / self.python.version.split("+")[0])
        file = place / "libconch_torch.so" if place.is_dir() or not named else place
        if not file.exists():
            raise Refused(f"there is no shim {file}: run scripts/build-torch-shim {self.python.folder}, or name it by --torch-shim")
        return file.resolve()

    def header(self):
        return f'platform: "pytorch_libtorch"\n{super().header()}'

    def environment(self):
        return {"CONCH_PYTORCH_LIBRARY": self.library, "CONCH_PYTORCH_SHIM": self.shim}

    def file(self, _):
        weights = engine_programs.made(pathlib.Path(real_models.__file__).read_text(), "resnet18.npz", real_models.resnet18_weights)
        key = TORCH_PROGRAM.read_text() + pathlib.Path(real_models.__file__).read_text() + self.python.version
        return engine_programs.made(key, "resnet18.pt", lambda path: engine_programs.run(
            [*outside(self.place.libraries), self.python.program, TORCH_PROGRAM, "make", weights, path]))

    def files(self, model):
        return {"1/model.pt": self.file(model)}

    def bare(self, model, rows, device):
        return [*self.outside(), self.python.program, TORCH_PROGRAM, "run", self.file(model), device, self.place.threads, rows, *self.described(model)]


class TensorRt(Engine):
    """Of plans that are given: one is made for a GPU and a version of TensorRT. It has two batches in flight, whatever is asked for."""

    name, models = "tensorrt", ("resnet18", "magika")

    def __init__(self, options, place):
        super().__init__(options, place)
        if place.kind == "cpu":
            raise Refused("there is none for CPUs")
        if not options.tensorrt_library or not options.tensorrt_plans:
            raise Refused("--tensorrt-library and --tensorrt-plan=MODEL=FILE name what it needs")
        self.library = pathlib.Path(options.tensorrt_library).resolve()
        shims = pathlib.Path(options.tensorrt_shim or servers.CACHE / "tensorrt-shim")
        found = [shims] if shims.is_file() else sorted(shims.glob("libconch_tensorrt_*.so"))
        if len(found) != 1:
            raise Refused(f"{shims} has {len(found)} shims: run scripts/build-tensorrt-shim, or name one by --tensorrt-shim")
        self.shim = found[0].resolve()
        # Answers are compared with what ONNX Runtime computes on the CPU.
        self.reference = OnnxRuntime(options, place)
        self.program = engine_programs.compiled("tensorrt_batches.c", f"-I{servers.ROOT / 'src/backends/tensorrt/shim'}")

    def header(self):
        return f'platform: "tensorrt_plan"\n{super().header()}'

    def parameters(self):
        return {}

    def environment(self):
        return {"CONCH_TENSORRT_LIBRARY": self.library, "CONCH_TENSORRT_SHIM": self.shim}

    def file(self, model):
        plan = self.options.tensorrt_plans.get(model.name)
        if not plan:
            raise Refused(f"no --tensorrt-plan={model.name}=FILE")
        return pathlib.Path(plan).resolve()

    def files(self, model):
        return {"1/model.plan": self.file(model)}

    def bare(self, model, rows, device):
        if device < 0:
            return self.reference.bare(model, rows, device)
        _, dims, count = self.described(model)
        return [*self.outside(), self.program, self.library, self.shim, self.file(model), device, rows, model.inputs[0][0], model.outputs[0][0], dims, count]


ENGINES = (OnnxRuntime, PyTorch, TensorRt)
