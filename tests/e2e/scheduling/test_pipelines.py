"""Ensembles of real models: a wake word in three models, and text that is found, turned and read by three. The answers are those of ONNX
Runtime in Python, which runs the same models one after the other."""

import unittest

import numpy
import onnxruntime
import tritonclient.http as httpclient

import pipelines
from case import IS_TRITON, ServerCase, needs_library
from test_ensembles import ensemble, step


def needs_models(name):
    return unittest.skipUnless((pipelines.MODELS / name).is_dir(), f"{pipelines.MODELS / name} is not there: scripts/fetch-models --tests")


class PipelineCase(ServerCase):
    # The real Triton ends while it loads this version of ONNX Runtime's library beside its own.
    @classmethod
    def setUpClass(cls):
        if IS_TRITON:
            raise unittest.SkipTest("needs conch's onnxruntime backend")
        super().setUpClass()
        cls.client = httpclient.InferenceServerClient(cls.server.http, network_timeout=120)
        cls.addClassCleanup(cls.client.close)

    def ask(self, model, name, array, outputs):
        tensor = httpclient.InferInput(name, array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        result = self.client.infer(model, [tensor], outputs=[httpclient.InferRequestedOutput(output) for output in outputs])
        return [result.as_numpy(output) for output in outputs]

    def sessions(self, *models):
        return [onnxruntime.InferenceSession(str(self.repository.path / model / "1/model.onnx")) for model in models]

    def executions(self, *models):
        return [self.server.statistics(model)["execution_count"] for model in models]


def run(session, *inputs):
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


@needs_library("onnxruntime")
@needs_models("openwakeword")
class WakeWord(PipelineCase):
    @staticmethod
    def models(repository):
        pipelines.wake_word(repository, step, ensemble)

    def test_the_scores_are_those_of_the_models_one_by_one(self):
        spectrogram, embedding, word = self.sessions("spectrogram", "embedding", "word")
        source = numpy.random.default_rng(5)
        times = numpy.arange(32_000) / 16_000
        sounds = [numpy.zeros(32_000), source.normal(0, 3_000, 32_000), 8_000 * numpy.sin(2 * numpy.pi * (200 + 300 * times) * times)]
        before = self.executions("spectrogram", "windows", "embedding", "word")
        for sound in sounds:
            sound = sound.astype(numpy.float32)[None]
            frames = run(spectrogram, sound)[0].reshape(-1, 32) / 10 + 2
            cuts = numpy.stack([frames[start * 8:start * 8 + 76] for start in range(16)]).astype(numpy.float32)
            expected = run(word, run(embedding, cuts[..., None])[0].reshape(1, 16, 96))[0]
            [score] = self.ask("wake_word", "sound", sound, ["score"])
            numpy.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-6)
        after = self.executions("spectrogram", "windows", "embedding", "word")
        self.assertEqual([now - then for now, then in zip(after, before, strict=True)], [len(sounds)] * 4)


@needs_library("onnxruntime")
@needs_models("rapidocr")
class Reading(PipelineCase):
    @staticmethod
    def models(repository):
        pipelines.reading(repository, step, ensemble)

    def text(self, characters):
        """What the columns say: one of each run, without the blanks."""
        known = self.sessions("recognise")[0].get_modelmeta().custom_metadata_map["character"].splitlines()
        alphabet = ["", *known, " "]
        row = characters[0].tolist()
        return "".join(alphabet[this] for this, before in zip(row, [0, *row], strict=False) if this != before)

    def test_a_line_is_found_turned_and_read(self):
        image = pipelines.drawn("CONCH 1237")
        for turned in False, True:
            asked = numpy.ascontiguousarray(image[:, :, ::-1, ::-1]) if turned else image
            ways, characters = self.ask("read", "image", asked, ["ways", "characters"])
            self.assertEqual((self.text(characters), bool(ways[0, 1] > 0.5)), ("CONCH 1237", turned))

    def test_the_answers_are_those_of_the_models_one_by_one(self):
        sessions = dict(zip(("detect", "cut", "classify", "turn", "recognise", "best"),
                            self.sessions("detect", "cut", "classify", "turn", "recognise", "best"), strict=True))
        image = pipelines.drawn("CONCH 1237")
        small, line = run(sessions["cut"], image, run(sessions["detect"], image)[0])
        ways = run(sessions["classify"], small)[0]
        upright = run(sessions["turn"], line, ways)[0]
        characters = run(sessions["best"], run(sessions["recognise"], upright)[0])[0]
        got_ways, got = self.ask("read", "image", image, ["ways", "characters"])
        numpy.testing.assert_allclose(got_ways, ways, rtol=1e-4)
        self.assertEqual(got.tolist(), characters.tolist())

    def test_what_is_not_asked_for_is_not_run(self):
        before = self.executions("classify", "recognise", "best")
        self.ask("read", "image", pipelines.drawn("CONCH"), ["ways"])
        after = self.executions("classify", "recognise", "best")
        self.assertEqual([now - then for now, then in zip(after, before, strict=True)], [1, 0, 0])


if __name__ == "__main__":
    unittest.main()
