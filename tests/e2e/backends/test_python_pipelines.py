"""Pipelines of real models with steps in Python, served by our Python backend: sentences become embeddings in an ensemble of three steps, and
a page is read by a model that calls three others. The answers are those of ONNX Runtime in Python, or known."""

import concurrent.futures
import os
import pathlib
import sys
import unittest

import numpy
import onnxruntime
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from PIL import Image, ImageDraw, ImageFont
from tritonclient.utils import InferenceServerException

import pipelines
import sentence_encoder
from case import ServerCase, conch_only, needs_library
from pipelines import onnx
from test_ensembles import ensemble, step
from test_pipelines import needs_models
from test_python_backend import python

# The stubs run in the interpreter of these tests, which has numpy.
ENVIRONMENT = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
# Beside each model, as a user has them.
STEPS = pathlib.Path(__file__).resolve().parents[1] / "python_steps"

# Sentences as the authors of the model compare them, and the cosines that its reference implementation gives.
SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.", "A man is riding a horse.",
             "A woman is playing violin.", "Two men pushed carts through the woods.", "A monkey is playing drums.",
             "A cheetah is running behind its prey."]
COSINES = {(0, 1): 0.7553, (0, 2): -0.1050, (0, 3): 0.2474, (1, 3): 0.1442, (4, 6): 0.1961, (4, 5): -0.1654, (6, 7): 0.1229}
# Texts and their tokens, by the reference implementation: accents, other scripts, unknown words, white space and punctuation.
TOKENS = {
    "this is a test": [101, 2023, 2003, 1037, 3231, 102],
    "Héllo, Wörld! 你好": [101, 7592, 1010, 2088, 999, 100, 100, 102],
    "unaffable tokenisation of electroencephalographically":
        [101, 14477, 20961, 3468, 19204, 6648, 1997, 16175, 10127, 21890, 21197, 20721, 3973, 102],
    "don't\tstop -- 3.14% (ok?)": [101, 2123, 1005, 1056, 2644, 1011, 1011, 1017, 1012, 2403, 1003, 1006, 7929, 1029, 1007, 102],
    "": [101, 102],
    "x" * 150: [101, 100, 102],
    "naïve café №5 ﬁn": [101, 15743, 7668, 1578, 2629, 1984, 2078, 102],
}


def texts(client, name, rows):
    tensor = client.InferInput(name, [len(rows), 1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([[row.encode()] for row in rows], numpy.object_))
    return tensor


@conch_only
@needs_library("python")
@needs_library("onnxruntime")
@needs_models("minilm")
class Embeddings(ServerCase):
    environment = ENVIRONMENT

    @classmethod
    def models(cls, repository):
        source = pipelines.MODELS / "minilm"
        ids = [("input_ids", "INT64", (-1,)), ("attention_mask", "INT64", (-1,))]
        repository.model("tokenise", python([("TEXT", "STRING", (1,))], ids, 16),
                         files={"1/model.py": STEPS / "tokenise.py", "1/vocab.txt": source / "vocab.txt"})
        repository.model("encode", onnx(ids, [("hidden", "FP32", (-1, sentence_encoder.WIDTH))]).replace("max_batch_size: 0", "max_batch_size: 16"),
                         files={"1/model.onnx": sentence_encoder.encoder(source / "model.safetensors")})
        hidden, embedding = [("hidden", "FP32", (-1, sentence_encoder.WIDTH))], [("EMBEDDING", "FP32", (sentence_encoder.WIDTH,))]
        repository.model("pool", python([*hidden, ids[1]], embedding, 16), files={"1/model.py": STEPS / "pool.py"})
        same = {name: name for name, _, _ in ids}
        steps = [step("tokenise", {"TEXT": "TEXT"}, same), step("encode", same, {"hidden": "hidden"}),
                 step("pool", {"hidden": "hidden", "attention_mask": "attention_mask"}, {"EMBEDDING": "EMBEDDING"})]
        whole = ensemble(steps, [("TEXT", "STRING", (1,))], embedding)
        repository.model("embed", whole.replace("max_batch_size: 0", "max_batch_size: 16"))

    def embed(self, module, address, rows):
        with module.InferenceServerClient(address) as client:
            return client.infer("embed", [texts(module, "TEXT", rows)]).as_numpy("EMBEDDING")

    def test_tokens(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            result = client.infer("tokenise", [texts(grpcclient, "TEXT", list(TOKENS))])
        ids, mask = result.as_numpy("input_ids"), result.as_numpy("attention_mask")
        self.assertEqual(ids.shape, (len(TOKENS), max(map(len, TOKENS.values()))))
        for row, kept, (text, expected) in zip(ids, mask, TOKENS.items(), strict=True):
            with self.subTest(text[:20]):
                self.assertEqual(row[kept == 1].tolist(), expected)
                self.assertEqual(row[kept == 0].tolist(), [0] * (len(row) - len(expected)))

    def test_the_embeddings_are_those_of_onnx_runtime(self):
        session = onnxruntime.InferenceSession(str(self.repository.path / "encode/1/model.onnx"), providers=["CPUExecutionProvider"])
        rows = [*SENTENCES, *TOKENS]
        for module, address in ((httpclient, self.server.http), (grpcclient, self.server.grpc)):
            got = self.embed(module, address, rows)
            self.assertEqual(got.shape, (len(rows), sentence_encoder.WIDTH))
            with grpcclient.InferenceServerClient(self.server.grpc) as client:
                tokens = client.infer("tokenise", [texts(grpcclient, "TEXT", rows)])
            ids, mask = tokens.as_numpy("input_ids"), tokens.as_numpy("attention_mask")
            hidden = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            numpy.testing.assert_allclose(got, mean / numpy.linalg.norm(mean, axis=1, keepdims=True), atol=1e-5)

    def test_similar_sentences_are_closer(self):
        got = self.embed(httpclient, self.server.http, SENTENCES)
        numpy.testing.assert_allclose(numpy.linalg.norm(got, axis=1), 1, atol=1e-5)
        cosines = got @ got.T
        for (one, other), expected in COSINES.items():
            self.assertAlmostEqual(float(cosines[one, other]), expected, delta=2e-4)
        for sentence, closest in ((0, 1), (1, 0), (4, 6), (6, 4)):
            order = numpy.argsort(-cosines[sentence])
            self.assertEqual(order[1], closest, SENTENCES[sentence])

    def test_callers_at_a_time(self):
        alone = self.embed(httpclient, self.server.http, SENTENCES)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(self.embed, grpcclient, self.server.grpc, [SENTENCES[index % 8]]) for index in range(32)]
            for index, call in enumerate(calls):
                # Alone a sentence has no padding, which changes the last digits of sums.
                numpy.testing.assert_allclose(call.result()[0], alone[index % 8], atol=1e-5)


LINES = ["CONCH reads pages", "Invoice 2026-0417", "Total 1234.56 EUR"]


def page(lines, size=40, margin=30):
    """Lines of text, black on white: UINT8[h,w,3]."""
    font = ImageFont.load_default(size)
    width = max(int(font.getlength(line)) for line in lines) + 2 * margin
    image = Image.new("RGB", (width, 2 * size * len(lines) + 2 * margin), "white")
    drawing = ImageDraw.Draw(image)
    for index, line in enumerate(lines):
        drawing.text((margin, margin + 2 * size * index), line, "black", font)
    return numpy.array(image)


@conch_only
@needs_library("python")
@needs_library("onnxruntime")
@needs_models("rapidocr")
class Pages(ServerCase):
    environment = ENVIRONMENT

    @classmethod
    def models(cls, repository):
        source, image = pipelines.MODELS / "rapidocr", (-1, 3, -1, -1)
        for name, outputs, file in (
                ("detect", [("sigmoid_0.tmp_0", "FP32", (-1, 1, -1, -1))], "ch_PP-OCRv4_det_infer.onnx"),
                ("classify", [("save_infer_model/scale_0.tmp_1", "FP32", (-1, 2))], "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
                ("recognise", [("softmax_11.tmp_0", "FP32", (-1, -1, 6625))], "ch_PP-OCRv4_rec_infer.onnx")):
            repository.model(name, onnx([("x", "FP32", image)], outputs), files={"1/model.onnx": source / file})
        session = onnxruntime.InferenceSession(str(source / "ch_PP-OCRv4_rec_infer.onnx"), providers=["CPUExecutionProvider"])
        characters = session.get_modelmeta().custom_metadata_map["character"]
        repository.model("read", python([("IMAGE", "UINT8", (-1, -1, 3))], [("TEXT", "STRING", (-1,)), ("BOX", "INT32", (-1, 4))]),
                         files={"1/model.py": STEPS / "read_page.py", "1/characters.txt": characters.encode()})

    def read(self, image):
        tensor = httpclient.InferInput("IMAGE", image.shape, "UINT8")
        tensor.set_data_from_numpy(image)
        with httpclient.InferenceServerClient(self.server.http, network_timeout=120) as client:
            result = client.infer("read", [tensor])
        return [text.decode() for text in result.as_numpy("TEXT")], result.as_numpy("BOX")

    def test_a_page(self):
        image = page(LINES)
        found, boxes = self.read(image)
        self.assertEqual(found, LINES)
        # Each box holds the ink of its line, and little else.
        for index, (top, left, bottom, right) in enumerate(boxes):
            rows, columns = numpy.nonzero(image[30 + 80 * index:110 + 80 * index].min(axis=2) < 128)
            ink = (rows.min() + 30 + 80 * index, columns.min(), rows.max() + 30 + 80 * index, columns.max())
            numpy.testing.assert_allclose((top, left, bottom, right), ink, atol=24)

    def test_a_page_upside_down(self):
        found, _ = self.read(numpy.ascontiguousarray(page(LINES)[::-1, ::-1]))
        self.assertEqual(found, LINES[::-1])

    def test_an_empty_page(self):
        found, boxes = self.read(numpy.full((96, 128, 3), 255, numpy.uint8))
        self.assertEqual((found, boxes.shape), ([], (0, 4)))

    def test_each_line_is_a_call(self):
        before = [self.server.statistics(model)["execution_count"] for model in ("detect", "classify", "recognise")]
        self.read(page(LINES[:2]))
        after = [self.server.statistics(model)["execution_count"] for model in ("detect", "classify", "recognise")]
        self.assertEqual([now - then for now, then in zip(after, before, strict=True)], [1, 1, 2])

    def test_a_model_that_fails_is_told(self):
        """What a model that is called says reaches the client."""
        with self.assertRaises(InferenceServerException) as caught:
            self.read(numpy.zeros((0, 64, 3), numpy.uint8))
        self.assertRegex(caught.exception.message(), "the page is empty")


if __name__ == "__main__":
    unittest.main()
