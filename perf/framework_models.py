"""One small real model in the formats of the frameworks: handwritten digits of 8 x 8 points, told apart by a layer of 64 units that was
trained on scikit-learn's data set. Input "x", FP32 [n,64]; output "y", FP32 [n,10], the probabilities.

For formats that only a framework's own Python writes this is also a program for such a Python:

    framework_models.py pytorch WEIGHTS FILE
    framework_models.py dali FILE
"""

import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))

FEATURES, CLASSES = 64, 10
# Of the pipeline of DALI: a picture that is scaled and normalised.
PICTURE, ANSWER = (48, 64, 3), (3, 24, 32)


def digits():
    """Rows in FP32, and their labels."""
    from sklearn import datasets
    rows, labels = datasets.load_digits(return_X_y=True)
    return rows.astype(numpy.float32), labels


def train(path):
    """Writes the trained weights."""
    from sklearn import neural_network
    rows, labels = digits()
    model = neural_network.MLPClassifier((64,), random_state=20, max_iter=60, n_iter_no_change=60).fit(rows / 16, labels)
    (first, second), (first_bias, second_bias) = model.coefs_, model.intercepts_
    with path.open("wb") as file:
        numpy.savez(file, **{name: array.astype(numpy.float32) for name, array in (
            ("first", first / 16), ("first_bias", first_bias), ("second", second), ("second_bias", second_bias))})


def expected(weights, rows):
    hidden = numpy.maximum(rows @ weights["first"] + weights["first_bias"], 0)
    sums = hidden @ weights["second"] + weights["second_bias"]
    powers = numpy.exp(sums - sums.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def onnx(weights):
    import onnx_model
    nodes = [onnx_model.node("Gemm", ["x", "first", "first_bias"], ["h"]), onnx_model.node("Relu", ["h"], ["r"]),
             onnx_model.node("Gemm", ["r", "second", "second_bias"], ["s"]), onnx_model.node("Softmax", ["s"], ["y"], axis=1)]
    return onnx_model.model([("x", onnx_model.FLOAT, ("n", FEATURES))], [("y", onnx_model.FLOAT, ("n", CLASSES))], nodes,
                            [onnx_model.weight(name, weights[name]) for name in weights])


def graphdef(weights):
    """A GraphDef of TensorFlow, written as bytes."""
    from onnx_model import number, part

    def attribute(name, content):
        return part(5, part(1, name) + part(2, content))

    def node(name, operation, *inputs, **attributes):
        content = part(1, name) + part(2, operation) + b"".join(part(3, source) for source in inputs)
        return part(1, content + b"".join(attribute(key, value) for key, value in attributes.items()))

    def constant(name, array):
        shape = b"".join(part(2, number(1, size)) for size in array.shape)
        tensor = number(1, 1) + part(2, shape) + part(4, array.astype("<f4").tobytes())
        return node(name, "Const", dtype=number(6, 1), value=part(8, tensor))

    kind = {"T": number(6, 1)}
    shape = part(7, part(2, number(1, -1)) + part(2, number(1, FEATURES)))
    return b"".join([
        node("x", "Placeholder", dtype=number(6, 1), shape=shape), *(constant(name, weights[name]) for name in weights),
        node("h", "MatMul", "x", "first", **kind), node("b", "BiasAdd", "h", "first_bias", **kind), node("r", "Relu", "b", **kind),
        node("s", "MatMul", "r", "second", **kind), node("c", "BiasAdd", "s", "second_bias", **kind), node("y", "Softmax", "c", **kind),
        part(4, number(1, 1286))])


def forest(path):
    """Writes 200 trees of XGBoost that tell the digits apart."""
    import xgboost
    rows, labels = digits()
    settings = {"max_depth": 6, "objective": "multi:softprob", "num_class": CLASSES, "nthread": 1, "seed": 20}
    path.write_bytes(bytes(xgboost.train(settings, xgboost.DMatrix(rows, labels), 20).save_raw("ubj")))


def torchscript(weights, path):
    import torch

    class Digits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(FEATURES, 64), torch.nn.Linear(64, CLASSES)

        def forward(self, x):
            return torch.softmax(self.second(torch.relu(self.first(x))), dim=1)

    model = Digits().eval()
    with torch.no_grad():
        for name, layer in (("first", model.first), ("second", model.second)):
            layer.weight.copy_(torch.from_numpy(weights[name].T.copy()))
            layer.bias.copy_(torch.from_numpy(weights[f"{name}_bias"]))
    torch.jit.script(model).save(path)


def pipeline(path):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=16, num_threads=1, device_id=None, output_dtype=[types.FLOAT], output_ndim=[3])
    def picture():
        image = fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=3, layout="HWC")
        image = fn.resize(image, resize_x=ANSWER[2], resize_y=ANSWER[1])
        return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", mean=[123.7, 116.3, 103.5], std=[58.4, 57.1, 57.4])

    picture().serialize(filename=path)


def request(name, data_type, shape, content):
    """A request with one binary tensor and a binary reply: (body, length of its JSON)."""
    import json
    head = json.dumps({"inputs": [{"name": name, "datatype": data_type, "shape": list(shape), "parameters": {"binary_data_size": len(content)}}],
                       "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    return head + content, len(head)


if __name__ == "__main__":
    if sys.argv[1] == "pytorch":
        torchscript(numpy.load(sys.argv[2]), sys.argv[3])
    else:
        pipeline(sys.argv[2])
