"""Makes models of frameworks that are not here: copies of the ONNX ones under their names, with the names of tensors that those
frameworks want. And a classifier with the name, tensors and labels of upstream's ResNet-50, whose weights are not here either.

    stand_ins.py MODELS      MODELS is the folder of generated repositories
"""

import pathlib
import re
import shutil
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Tensors of libtorch models end in their position; which ones there are depends on the repository.
SEQUENCE = {"INPUT": "INPUT__0", "OUTPUT": "OUTPUT__0", "START": "START__1", "READY": "READY__2"}
DYNAMIC_SEQUENCE = {"INPUT": "INPUT__0", "OUTPUT": "OUTPUT__0", "START": "START__1", "END": "END__2", "READY": "READY__3", "CORRID": "CORRID__4"}
NUMBERED = {f"{kind}{index}": f"{kind}__{index}" for kind in ("INPUT", "OUTPUT") for index in range(4)}
MIXED = {"OUTPUT0": "OUTPUT__0", "OUTPUT1": "OUTPUT__1"}


def libtorch_names(repository, model):
    if "implicit" in repository:
        return {}
    if "dyna" in repository:
        return DYNAMIC_SEQUENCE
    if "sequence" in repository:
        return SEQUENCE
    if "identity" in repository or "reshape" in repository:
        return NUMBERED
    if (repository, model) == ("qa_model_repository", "onnx_nobatch_int32_int32_int32"):
        return MIXED
    return {}


def as_libtorch(path, names):
    model = onnx.load(path)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = names.get(value.name, value.name)
        # A libtorch model knows no shapes; programs use this one with others than it was made with.
        for dim in value.type.tensor_type.shape.dim if names is MIXED else ():
            dim.dim_value = 1
    onnx.save(model, path)


def stand_in(source, framework):
    target = source.with_name(source.name.replace("onnx", framework, 1))
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    config = target / "config.pbtxt"
    names = libtorch_names(source.parent.name, source.name) if framework == "libtorch" else {}
    for path in target.glob("*/model.onnx") if names else ():
        as_libtorch(path, names)
    if config.exists():
        text = config.read_text().replace(f'"{source.name}"', f'"{target.name}"')
        for name, other in names.items():
            text = text.replace(f'"{name}"', f'"{other}"')
        if names is MIXED:
            text = re.sub(r"dims: \[ *16 *\]", "dims: [ 1 ]", text)
        config.write_text(text)


def classifier(folder, image="input:0", classes="resnet_v1_50/predictions/Softmax:0", count=1000, favoured=23):
    """The mean of each colour, weighted for each class; one class has a bias that no image outweighs."""
    weights = np.random.default_rng(0).normal(scale=1e-3, size=(3, count)).astype(np.float32)
    bias = np.zeros(count, np.float32)
    bias[favoured] = 10
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", [image], ["means"], axes=[1, 2], keepdims=0),
         helper.make_node("Gemm", ["means", "weights", "bias"], ["scores"]),
         helper.make_node("Softmax", ["scores"], [classes], axis=-1)],
        "classifier",
        [helper.make_tensor_value_info(image, onnx.TensorProto.FLOAT, ["batch", 224, 224, 3])],
        [helper.make_tensor_value_info(classes, onnx.TensorProto.FLOAT, ["batch", count])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "1/model.onnx")
    (folder / "labels.txt").write_text("".join("VULTURE\n" if index == favoured else f"CLASS {index}\n" for index in range(count)))
    (folder / "config.pbtxt").write_text(
        f'name: "{folder.name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 128\n'
        f'input {{ name: "{image}" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 224, 224, 3 ] }}\n'
        f'output {{ name: "{classes}" data_type: TYPE_FP32 dims: [ {count} ] label_filename: "labels.txt" }}\n')


for repository in pathlib.Path(sys.argv[1]).iterdir():
    if repository.name in ("qa_ensemble_model_repository", "qa_scalar_models"):
        continue
    for source in sorted(repository.glob("onnx*")):
        if "bf16" in source.name:  # ONNX Runtime has no such addition on CPUs
            shutil.rmtree(source)
            continue
        for framework in ("libtorch", "plan", "openvino"):
            stand_in(source, framework)
classifier(pathlib.Path(sys.argv[1]) / "onnx_model_store/resnet_v1_50")
