"""Models of real size for measurements, as ONNX files: what a request to each sends, and what it is to be answered.

magika       Google's detector of file types, as its wheel has it (scripts/fetch-models)
minilm       the sentence encoder all-MiniLM-L6-v2: six layers of width 384, its own weights (scripts/fetch-models --tests)
resnet18     the architecture of that name, with random weights: nothing that is measured depends on them
"""

import collections
import json
import pathlib

import numpy

import engine_programs
import onnx_model
import sentence_encoder
import server as servers
from engine_programs import Refused
from repository import tensors

MAGIKA = servers.ROOT / "docs/examples/model_repository/magika/1/model.onnx"
MINILM = servers.CACHE / "models/minilm/model.safetensors"
WORDS, VOCABULARY = 32, 30_000
# Of answers against those of ONNX Runtime itself, whose build may be another.
NEAR = 1e-3

# `arrays()`: the inputs of one request, each with the batch's dimension; `file()`: where the model lies. `inputs` and `outputs` as a
# configuration has them, without the batch's dimension.
Model = collections.namedtuple("Model", "name file arrays inputs outputs")


def existing(path, how):
    if not path.exists():
        raise Refused(f"{path} is not there: run {how}")
    return path


def minilm():
    weights = existing(MINILM, "scripts/fetch-models --tests")
    return engine_programs.made(pathlib.Path(sentence_encoder.__file__).read_text(), "minilm.onnx",
                                lambda path: path.write_bytes(sentence_encoder.encoder(weights)))


def resnet18_graph():
    """Its nodes and its weights by name: 7 x 7 and a maximum, four stages of two blocks, the mean, 1,000 classes. Batch normalisations are folded
    into the weights, as exporters for inference do."""
    chance, nodes, weights = numpy.random.default_rng(18), [], {}

    def weight(name, *shape):
        fan_in = numpy.prod(shape[1:]) if len(shape) > 1 else 100
        weights[name] = chance.normal(0, (2 / fan_in) ** 0.5, shape).astype(numpy.float32)
        return name

    def convolution(source, into, outputs, inputs, size, stride):
        nodes.append(onnx_model.node("Conv", [source, weight(f"{into}_w", outputs, inputs, size, size), weight(f"{into}_b", outputs)], [into],
                                     kernel_shape=[size, size], strides=[stride, stride], pads=[size // 2] * 4))
        return into

    def add(operation, inputs, into, **attributes):
        nodes.append(onnx_model.node(operation, inputs, [into], **attributes))
        return into

    hidden = add("Relu", [convolution("image", "stem", 64, 3, 7, 2)], "stem_r")
    hidden, width = add("MaxPool", [hidden], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            first = add("Relu", [convolution(hidden, f"{name}_1", outputs, width, 3, stride)], f"{name}_1r")
            second = convolution(first, f"{name}_2", outputs, outputs, 3, 1)
            skipped = hidden if width == outputs else convolution(hidden, f"{name}_s", outputs, width, 1, stride)
            # Half of the sum, so that random weights do not make the numbers grow from block to block.
            halved = add("Mul", [add("Add", [second, skipped], f"{name}_a"), "half"], f"{name}_h")
            hidden, width = add("Relu", [halved], f"{name}_r"), outputs
    flat = add("Flatten", [add("GlobalAveragePool", [hidden], "mean")], "flat", axis=1)
    nodes.append(onnx_model.node("Gemm", [flat, weight("classes_w", 1000, 512), weight("classes_b", 1000)], ["scores"], transB=1))
    return nodes, weights


def resnet18(path):
    nodes, weights = resnet18_graph()
    constants = [*(onnx_model.weight(name, array) for name, array in weights.items()), onnx_model.constant("half", [0.5], onnx_model.FLOAT)]
    path.write_bytes(onnx_model.model([("image", onnx_model.FLOAT, ("n", 3, 224, 224))], [("scores", onnx_model.FLOAT, ("n", 1000))],
                                      nodes, constants))


def resnet18_weights(path):
    """Writes them for other frameworks."""
    with path.open("wb") as file:
        numpy.savez(file, **resnet18_graph()[1])


def magika_arrays():
    source = pathlib.Path(__file__).read_bytes().strip()
    return {"bytes": numpy.frombuffer(source[:1024] + source[-1024:], numpy.uint8).astype(numpy.int32)[None]}


def minilm_arrays():
    return {"input_ids": numpy.random.default_rng(6).integers(1000, VOCABULARY, (1, WORDS), dtype=numpy.int64),
            "attention_mask": numpy.ones((1, WORDS), numpy.int64)}


def resnet18_arrays():
    return {"image": numpy.random.default_rng(18).normal(0, 1, (1, 3, 224, 224)).astype(numpy.float32)}


MODELS = {model.name: model for model in (
    Model("magika", lambda: existing(MAGIKA, "scripts/fetch-models"), magika_arrays,
          [("bytes", "INT32", (2048,))], [("target_label", "FP32", (214,))]),
    Model("minilm", minilm, minilm_arrays,
          [("input_ids", "INT64", (-1,)), ("attention_mask", "INT64", (-1,))], [("hidden", "FP32", (-1, 384))]),
    Model("resnet18", lambda: engine_programs.made(pathlib.Path(__file__).read_text(), "resnet18.onnx", resnet18), resnet18_arrays,
          [("image", "FP32", (3, 224, 224))], [("scores", "FP32", (1000,))]),
)}
TYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}


def described(name, array):
    return {"name": name, "datatype": TYPES[array.dtype.name], "shape": list(array.shape)}


def binary_request(model):
    """With binary tensors both ways: (body, length of its JSON)."""
    arrays = model.arrays()
    head = json.dumps({"inputs": [{**described(name, array), "parameters": {"binary_data_size": array.nbytes}} for name, array in arrays.items()],
                       "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    return head + b"".join(array.tobytes() for array in arrays.values()), len(head)


def json_request(model):
    """The same with numbers in JSON both ways, as servers take it that have no binary tensors."""
    rows = [{**described(name, array), "data": array.ravel().tolist()} for name, array in model.arrays().items()]
    return json.dumps({"inputs": rows}, separators=(",", ":")).encode(), None


def config(model, threads, batch_max=8, delay_us=0):
    """The configuration with one instance, whose requests are batched as they come."""
    return (f'backend: "onnxruntime"\nmax_batch_size: {batch_max}\n' + tensors("input", model.inputs) + tensors("output", model.outputs)
            + f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n"
            + "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in
                      (("intra_op_thread_count", threads), ("inter_op_thread_count", 1))))


def expected(model):
    """The answer of ONNX Runtime in this Python."""
    import onnxruntime
    session = onnxruntime.InferenceSession(model.file(), providers=["CPUExecutionProvider"])
    return session.run([model.outputs[0][0]], model.arrays())[0]
