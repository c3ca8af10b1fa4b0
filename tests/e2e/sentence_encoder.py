"""all-MiniLM-L6-v2 as an ONNX model, from the weights as its wheel has them (safetensors): a BERT of six layers, without pooling."""

import json
import math
import struct

import numpy

from onnx_model import FLOAT, INT64, constant, model, node, weight

LAYERS, HEADS, WIDTH = 6, 12, 384
EPSILON = 1e-12


def safetensors(path):
    """The FP32 tensors of a file, by name."""
    content = path.read_bytes()
    header_bytes, = struct.unpack_from("<Q", content)
    begin, found = 8 + header_bytes, {}
    for name, entry in json.loads(content[8:begin]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            found[name] = numpy.frombuffer(content, "<f4", (last - first) // 4, begin + first).reshape(entry["shape"])
    return found


class Graph:
    """Collects operators and weights."""

    def __init__(self, tensors):
        self.tensors, self.nodes, self.constants = tensors, [], []

    def add(self, operation, inputs, **attributes):
        """An operator; the name of its output."""
        output = f"t{len(self.nodes)}"
        self.nodes.append(node(operation, inputs, [output], **attributes))
        return output

    def weight(self, name, transposed=False):
        tensor = self.tensors[name]
        self.constants.append(weight(name, tensor.T if transposed else tensor))
        return name

    def dense(self, source, name):
        product = self.add("MatMul", [source, self.weight(f"{name}.weight", transposed=True)])
        return self.add("Add", [product, self.weight(f"{name}.bias")])

    def normalised(self, source, name):
        return self.add("LayerNormalization", [source, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")], axis=-1, epsilon=EPSILON)

    def attention(self, hidden, bias, name):
        def heads(kind, order):
            split = self.add("Reshape", [self.dense(hidden, f"{name}.self.{kind}"), "heads"])
            return self.add("Transpose", [split], perm=order)
        query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
        scores = self.add("Add", [self.add("Mul", [self.add("MatMul", [query, key]), "scale"]), bias])
        mixed = self.add("MatMul", [self.add("Softmax", [scores], axis=-1), value])
        return self.add("Reshape", [self.add("Transpose", [mixed], perm=[0, 2, 1, 3]), "width"])

    def gelu(self, source):
        erf = self.add("Erf", [self.add("Mul", [source, "root"])])
        return self.add("Mul", [self.add("Mul", [source, "half"]), self.add("Add", [erf, "one"])])

    def layer(self, hidden, bias, name):
        mixed = self.dense(self.attention(hidden, bias, f"{name}.attention"), f"{name}.attention.output.dense")
        hidden = self.normalised(self.add("Add", [hidden, mixed]), f"{name}.attention.output.LayerNorm")
        wide = self.gelu(self.dense(hidden, f"{name}.intermediate.dense"))
        return self.normalised(self.add("Add", [hidden, self.dense(wide, f"{name}.output.dense")]), f"{name}.output.LayerNorm")


def encoder(path):
    """FP32 hidden[b,s,384] from INT64 input_ids[b,s] and attention_mask[b,s]: the bytes of a model."""
    graph = Graph(safetensors(path))
    words = graph.add("Gather", [graph.weight("embeddings.word_embeddings.weight"), "input_ids"], axis=0)
    length = graph.add("Shape", ["input_ids"], start=1, end=2)
    places = graph.add("Slice", [graph.weight("embeddings.position_embeddings.weight"), "zero", length])
    kind = graph.add("Slice", [graph.weight("embeddings.token_type_embeddings.weight"), "zero", "first"])
    hidden = graph.add("Add", [graph.add("Add", [words, places]), kind])
    hidden = graph.normalised(hidden, "embeddings.LayerNorm")
    mask = graph.add("Unsqueeze", [graph.add("Cast", ["attention_mask"], to=FLOAT), "between"])
    bias = graph.add("Mul", [graph.add("Sub", ["one", mask]), "never"])
    for index in range(LAYERS):
        hidden = graph.layer(hidden, bias, f"encoder.layer.{index}")
    graph.nodes.append(node("Identity", [hidden], ["hidden"]))
    numbers = {"scale": 1 / math.sqrt(WIDTH // HEADS), "never": -1e9, "root": 1 / math.sqrt(2), "half": 0.5, "one": 1.0}
    graph.constants += [constant(name, [value], FLOAT) for name, value in numbers.items()]
    graph.constants += [constant("zero", [0]), constant("first", [1]), constant("between", [1, 2]),
                        constant("heads", [0, 0, HEADS, WIDTH // HEADS]), constant("width", [0, 0, WIDTH])]
    return model([("input_ids", INT64, ("b", "s")), ("attention_mask", INT64, ("b", "s"))], [("hidden", FLOAT, ("b", "s", WIDTH))],
                 graph.nodes, graph.constants)
