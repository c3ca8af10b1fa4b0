#!/usr/bin/env python3
"""Makes a model repository for the pytorch backend:

    python3 docs/examples/pytorch/make_repository.py repository

    repository/sum_script     TorchScript: two vectors to their sum and difference. Written by hand, so it needs no PyTorch
    repository/mlp_compiled   a small network that AOTInductor compiled; made only by a Python that has torch, and g++

    python3 docs/examples/pytorch/make_repository.py --send 127.0.0.1:8000

asks a server that serves the repository, in JSON.
"""

import json
import pathlib
import sys
import urllib.error
import urllib.request
import zipfile

SUM_CONFIG = """# Inputs are named <name>__<index of the argument>, outputs <name>__<index of the result>.
platform: "pytorch_libtorch"
max_batch_size: 64
input [
  { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: "SUM__0" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "DIFFERENCE__1" data_type: TYPE_FP32 dims: [ 4 ] }
]
dynamic_batching { }
"""

MLP_CONFIG = """# What forward takes and returns has these names in a compiled model; <name>__<index> would do as well.
platform: "torch_aoti"
max_batch_size: 64
input [ { name: "ARGS[0]" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "RESULT" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
"""

CODE = """class SumAndDifference(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  def forward(self: __torch__.SumAndDifference,
    first: Tensor,
    second: Tensor) -> Tuple[Tensor, Tensor]:
    return (torch.add(first, second), torch.sub(first, second))
"""

# A pickle: an object of that class, whose attribute `training` is False.
DATA = b"\x80\x02c__torch__\nSumAndDifference\n)\x81}X\x08\x00\x00\x00training\x89sb."


def write_script(path):
    """What torch.jit.save writes: an archive of the module's attributes and its code."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("data.pkl", DATA), ("code/__torch__.py", CODE), ("constants.pkl", b"\x80\x02)."), ("version", "3\n")):
            archive.writestr(zipfile.ZipInfo(f"model/{name}"), content)


def compile_network(path):
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(network, (torch.ones(2, 4),), dynamic_shapes=({0: batch},))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def version_folder(repository, name, config):
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    return folder


def make(repository):
    write_script(version_folder(repository, "sum_script", SUM_CONFIG) / "model.pt")
    try:
        import torch  # noqa: F401
    except ImportError:
        print("mlp_compiled is left out: this Python has no torch")
        return
    compile_network(version_folder(repository, "mlp_compiled", MLP_CONFIG) / "model.pt2")


def ask(address, model, **inputs):
    tensors = [{"name": name, "datatype": "FP32", "shape": [1, len(row)], "data": row} for name, row in inputs.items()]
    request = urllib.request.Request(f"http://{address}/v2/models/{model}/infer", json.dumps({"inputs": tensors}).encode())
    with urllib.request.urlopen(request) as reply:
        print(model, {output["name"]: output["data"] for output in json.load(reply)["outputs"]})


def is_ready(address, model):
    try:
        with urllib.request.urlopen(f"http://{address}/v2/models/{model}/ready"):
            return True
    except urllib.error.HTTPError:
        return False


def send(address):
    ask(address, "sum_script", INPUT__0=[1, 2, 3, 4], INPUT__1=[4, 3, 2, 1])
    if is_ready(address, "mlp_compiled"):
        ask(address, "mlp_compiled", **{"ARGS[0]": [1, 2, 3, 4]})
    else:
        print("mlp_compiled is left out: the server does not have it")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--send", address]:
            send(address)
        case [folder]:
            make(pathlib.Path(folder))
        case _:
            sys.exit(__doc__)
