"""The gpu_elementwise backend: every operation against numpy, bit for bit, on the CPU (in conch and in the real Triton) and on the double of
the driver or, with CONCH_CUDA=real, on a GPU; what is completed, and what is refused in which words."""

import itertools
import json
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import elementwise
import server as servers
from case import IS_TRITON, KIND, ServerCase, conch_only, needs_library
from elementwise import FLOATS, TYPES, edges, listed, model
from test_gpus import GpuCase

EXAMPLE = servers.ROOT / "docs/examples/gpu_elementwise/make_repository.py"
MEAN, SCALE = (123.675, 116.28, 103.53), (0.017124754, 0.017507003, 0.017429194)
THREE = ((0.1, -2.0, 1e30), (1.0, 0.3, -1e30))


def add_models(repository, kind):
    """Every operation, for every type."""
    pair = lambda name, dims=(-1,): [("A", name, dims), ("B", name, dims)]
    for name in TYPES:
        for operation in ("add", "multiply"):
            repository.model(f"{operation}_{name}", model(operation, pair(name), [("O", name, (-1,))], kind=kind))
        for other in TYPES:
            tensors = ([("A", name, (-1,))], [("O", other, (-1,))])
            repository.model(f"cast_{name}_{other}", model("cast", *tensors, kind=kind))
            repository.model(f"affine_{name}_{other}", model("affine", *tensors, kind=kind, scale="0.1", offset="-3.5"))
    repository.model("channels", model("affine", [("A", "INT32", (3, -1))], [("O", "FP32", (3, -1))], batch=8, kind=kind, channel_axis="0",
                                       scale=listed(THREE[0]), offset=listed(THREE[1])))
    for order, name in itertools.product(("nhwc_to_nchw", "nchw_to_nhwc"), ("BOOL", "FP16", "FP32", "INT64")):
        repository.model(f"{order}_{name}", model("layout", [("A", name, (-1, -1, -1))], [("O", name, (-1, -1, -1))], batch=4, kind=kind, layout=order))
    for name in FLOATS:
        repository.model(f"image_{name}", model("normalize_image", [("A", "UINT8", (-1, -1, 3))], [("O", name, (3, -1, -1))], batch=8, kind=kind,
                                                mean=listed(MEAN), scale=listed(SCALE)))
    repository.model("completed", model("add", kind=kind, data_type="TYPE_INT8"))
    repository.model("turned", model("normalize_image", [("A", "UINT8", (4, 2, 3))], kind=kind, mean="127.5", scale="0.5"))


class Elementwise:
    """Requests with the bytes of arrays, and their answers."""

    def ask(self, name, arrays, kinds, outputs=("O",), shapes=None):
        """Status and either the error, or type, shape and bytes of the output."""
        names = ("INPUT0", "INPUT1") if name == "completed" else ("A", "B")
        tails = [np.ascontiguousarray(array).tobytes() for array in arrays]
        shapes = shapes or [list(array.shape) for array in arrays]
        inputs = [{"name": tensor, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(tail)}}
                  for tensor, kind, shape, tail in zip(names, kinds, shapes, tails)]
        wanted = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
        status, headers, reply = self.infer({"inputs": inputs, "outputs": wanted}, b"".join(tails), model=name)
        if status != 200:
            return status, json.loads(reply)["error"]
        length = int(headers.get("inference-header-content-length", len(reply)))
        (output,) = json.loads(reply[:length])["outputs"]
        return status, (output["datatype"], output["shape"], reply[length:])

    def assert_makes(self, name, arrays, kinds, expected, kind):
        status, found = self.ask(name, arrays, kinds)
        self.assertEqual(status, 200, found)
        expected = np.ascontiguousarray(expected)
        self.assertEqual(found[:2], (kind, list(expected.shape)), name)
        made = np.frombuffer(found[2], dtype=expected.dtype).reshape(expected.shape)
        bits = f"<u{expected.dtype.itemsize}"
        wrong = np.flatnonzero(made.view(bits).ravel() != expected.view(bits).ravel())
        first = wrong[:3]
        self.assertEqual(len(wrong), 0, f"{name}: {made.ravel()[first]} at {first}, expected {expected.ravel()[first]}")

    def test_sums_and_products(self):
        for kind, count in itertools.product(TYPES, (0, 1, 700)):
            a, b = edges(kind, count, 1), edges(kind, count, 2)
            for name, operation in (("add", np.add), ("multiply", np.multiply)):
                expected = elementwise.paired(operation, a, b, kind)
                self.assert_makes(f"{name}_{kind}", [a, b], [kind, kind], expected, kind)

    def test_casts(self):
        for source, target in itertools.product(TYPES, TYPES):
            values = edges(source, 600)
            self.assert_makes(f"cast_{source}_{target}", [values], [source], elementwise.cast(values, source, target), target)

    def test_scaling(self):
        for source, target in itertools.product(TYPES, TYPES):
            values = edges(source, 300)
            self.assert_makes(f"affine_{source}_{target}", [values], [source], elementwise.affine(values, source, target, 0.1, -3.5), target)

    def test_channels_have_values_of_their_own(self):
        values = edges("INT32", 2 * 3 * 50).reshape(2, 3, 50)
        scale, offset = (np.array(row, dtype=np.float32).reshape(1, 3, 1) for row in THREE)
        self.assert_makes("channels", [values], ["INT32"], elementwise.affine(values, "INT32", "FP32", scale, offset), "FP32")

    def test_orders_of_dimensions(self):
        for kind, dtype in (("BOOL", np.bool_), ("FP16", np.uint16), ("FP32", np.uint32), ("INT64", np.int64)):
            values = np.random.default_rng(3).integers(0, 2 if kind == "BOOL" else 60000, (3, 5, 7, 4)).astype(dtype)
            self.assert_makes(f"nhwc_to_nchw_{kind}", [values], [kind], np.moveaxis(values, -1, 1), kind)
            self.assert_makes(f"nchw_to_nhwc_{kind}", [values], [kind], np.moveaxis(values, 1, -1), kind)

    def test_images(self):
        for kind, shape in itertools.product(FLOATS, ((1, 8, 8, 3), (3, 61, 33, 3), (1, 0, 4, 3), (2, 1, 1, 3))):
            images = edges("UINT8", int(np.prod(shape))).reshape(shape)
            self.assert_makes(f"image_{kind}", [images], ["UINT8"], elementwise.normalized(images, kind, SCALE, MEAN), kind)

    def test_what_the_configuration_leaves_out(self):
        a, b = edges("INT8", 256, 1), edges("INT8", 256, 2)
        inputs = [{"name": "INPUT0", "datatype": "INT8", "shape": [-1]}, {"name": "INPUT1", "datatype": "INT8", "shape": [-1]}]
        metadata = self.server.get_json("/v2/models/completed")
        self.assertEqual(metadata["inputs"], inputs)
        self.assertEqual(metadata["outputs"], [{"name": "OUTPUT0", "datatype": "INT8", "shape": [-1]}])
        status, found = self.ask("completed", [a, b], ["INT8", "INT8"], outputs=("OUTPUT0",))
        self.assertEqual((status, found[2]), (200, elementwise.paired(np.add, a, b, "INT8").tobytes()))
        metadata = self.server.get_json("/v2/models/turned")
        self.assertEqual(metadata["outputs"], [{"name": "OUTPUT0", "datatype": "FP32", "shape": [3, 4, 2]}])

    def test_shapes_that_do_not_match_are_refused(self):
        a, b = edges("FP32", 4), edges("FP32", 3)
        status, error = self.ask("add_FP32", [a, b], ["FP32", "FP32"])
        self.assertEqual(status, 400, error)
        self.assertIn("input 'B' for model 'add_FP32': expected shape [4] of input 'A', got [3]", error)
        # A batch without rows, as upstream, is no request.
        status, error = self.ask("image_FP32", [np.zeros((0, 4, 4, 3), np.uint8)], ["UINT8"])
        self.assertEqual(status, 400, error)
        # Far more elements than bytes: refused before anything is made.
        status, error = self.ask("add_FP32", [a, a], ["FP32", "FP32"], shapes=[[1 << 40]] * 2)
        self.assertEqual(status, 400, error)
        self.assert_makes("add_FP32", [a, a], ["FP32", "FP32"], elementwise.paired(np.add, a, a, "FP32"), "FP32")


@needs_library("gpu_elementwise")
class OnTheCpu(Elementwise, ServerCase):
    models = staticmethod(lambda repository: add_models(repository, "KIND_CPU"))
    flags = ("--strict-model-config=false",) if IS_TRITON else ()


@conch_only
@needs_library("gpu_elementwise")
class OnAGpu(Elementwise, GpuCase):
    """The same requests; kernels compute the answers."""

    settings = {"devices": 1}
    flags = ()
    models = staticmethod(lambda repository: add_models(repository, "KIND_GPU"))


REFUSED = {
    "unknown": (model("divide"), "expected parameter 'operation' to be one of add, multiply, affine, cast, layout, normalize_image, got 'divide'"),
    "one": (model("add", [("A", "FP32", (4,))], [("O", "FP32", (4,))]), "operation 'add': expected 2 inputs, got 1"),
    "types": (model("add", [("A", "FP32", (4,)), ("B", "INT8", (4,))], [("O", "FP32", (4,))]), "input 'B': expected TYPE_FP32, got TYPE_INT8"),
    "wide": (model("cast", [("A", "INT64", (4,))], [("O", "FP32", (4,))]), "input 'A': expected one of TYPE_FP32, TYPE_FP16, TYPE_BF16, TYPE_INT32, "
             "TYPE_INT8, TYPE_UINT8, got TYPE_INT64"),
    "dims": (model("layout", [("A", "FP32", (4, 5, 3))], [("O", "FP32", (4, 5, 3))], layout="nhwc_to_nchw"),
             "output 'O': expected dims [3,4,5], got [4,5,3]"),
    "channel": (model("normalize_image", [("A", "UINT8", (4, 5, 4))], [("O", "FP32", (4, 4, 5))], mean="1,2,3"),
                "input 'A': expected 3 channels in the last dimension, got [4,5,4]"),
    "number": (model("affine", [("A", "FP32", (4,))], [("O", "FP32", (4,))], scale="1;2"),
               "expected numbers with commas between for parameter 'scale', got '1;2'"),
    "stray": (model("cast", [("A", "FP32", (4,))], [("O", "FP16", (4,))], scale="2"),
              "expected parameter 'scale' only for affine, normalize_image, got it for operation 'cast'"),
    "open": (model("cast", [("A", "FP32", (4,))]), "expected an output or parameter 'output_data_type' for operation 'cast', got none"),
}


@needs_library("gpu_elementwise")
class Refused(ServerCase):
    """Models that cannot be: the reason names model, tensor, what was expected and what is there."""

    flags = ("--exit-on-error=false", "--strict-readiness=false")

    @staticmethod
    def models(repository):
        repository.model("good", model("cast", [("A", "FP32", (4,))], [("O", "FP16", (4,))]))
        for name, (config, _) in REFUSED.items():
            repository.model(name, config)

    def test_reasons(self):
        status, _, reply = self.server.request("POST", "/v2/repository/index", b"{}")
        self.assertEqual(status, 200)
        rows = {row["name"]: row for row in json.loads(reply)}
        self.assertEqual(rows["good"]["state"], "READY")
        for name, (_, reason) in REFUSED.items():
            with self.subTest(name):
                self.assertEqual(rows[name]["state"], "UNAVAILABLE")
                self.assertIn(reason, rows[name]["reason"])
                self.assertIn(f"model '{name}'", rows[name]["reason"])


@needs_library("gpu_elementwise")
@needs_library("identity")
class Example(unittest.TestCase):
    """The repository that docs/examples makes, served, and the request that it sends."""

    def test_the_example(self):
        with tempfile.TemporaryDirectory(prefix="conch-example-") as directory:
            subprocess.run([sys.executable, EXAMPLE, directory], check=True)
            with servers.Server(directory, kind=KIND) as server:
                address = server.http
                answer = subprocess.run([sys.executable, EXAMPLE, "--send", address], check=True, capture_output=True, text=True).stdout
                # (255 - 123.675) / 58.395 and so on.
                self.assertEqual(answer.split(), ["2.2489", "0.2052", "-1.8044"])
                image = np.zeros((2, 4, 4, 3), np.uint8)
                body = {"inputs": [{"name": "IMAGE", "datatype": "UINT8", "shape": [2, 4, 4, 3], "data": image.ravel().tolist()}],
                        "outputs": [{"name": "RESULT", "parameters": {"binary_data": True}}]}
                status, headers, reply = server.request("POST", "/v2/models/pipeline/infer", json.dumps(body).encode())
                self.assertEqual(status, 200, reply)
                made = np.frombuffer(reply[int(headers["inference-header-content-length"]):], np.float16).reshape(2, 3, 4, 4)
                self.assertEqual([f"{value:.2f}" for value in made[1, :, 3, 3].tolist()], ["-2.12", "-2.04", "-1.80"])


if __name__ == "__main__":
    unittest.main()
