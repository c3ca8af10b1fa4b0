"""silero-vad, a real model with a state: whether there is speech in a piece of sound. Its state is kept by the server, a sequence per speaker;
the probabilities are ONNX Runtime's own in Python, over whole utterances, of 64 speakers at a time."""

import concurrent.futures
import unittest

import numpy
import onnxruntime
import tritonclient.grpc as grpcclient

import server as servers
from case import ServerCase, conch_only, needs_library

MODEL = servers.CACHE / "models/silero_vad/silero_vad_half.onnx"
RATE, PIECE, CONTEXT = 16000, 512, 64
SPEAKERS, PIECES = 64, 24

CONFIG = """
backend: "onnxruntime"
input [ { name: "input" data_type: TYPE_FP32 dims: [ 1, -1 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ -1, 1 ] } ]
sequence_batching {
  %s
  max_sequence_idle_microseconds: 60000000
  state { input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [ 2, 1, 128 ]
          initial_state { name: "silence" data_type: TYPE_FP32 dims: [ 2, 1, 128 ] zero_data: true } }
}
instance_group [ { count: %d kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def utterance(speaker):
    """Sound like a voice: harmonics of a moving pitch, between pauses. Each piece begins with the end of the one before."""
    random = numpy.random.default_rng(speaker)
    time = numpy.arange(PIECE * PIECES) / RATE
    pitch = 90 + 5 * speaker % 160 + 20 * numpy.sin(2 * numpy.pi * 1.5 * time)
    phase = 2 * numpy.pi * numpy.cumsum(pitch) / RATE
    voice = sum(numpy.sin(number * phase) / number for number in range(1, 12))
    is_on = numpy.sin(2 * numpy.pi * (2 + speaker % 3) * time + speaker) > 0
    sound = (0.2 * voice * is_on + 0.01 * random.standard_normal(len(time))).astype(numpy.float32)
    sound = numpy.concatenate([numpy.zeros(CONTEXT, numpy.float32), sound])
    return [sound[start:start + CONTEXT + PIECE][None] for start in range(0, PIECE * PIECES, PIECE)]


@conch_only
@needs_library("onnxruntime")
class Speech(ServerCase):
    @classmethod
    def setUpClass(cls):
        if not MODEL.exists():
            raise unittest.SkipTest("the silero-vad model is not there: run scripts/fetch-models")
        super().setUpClass()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        cls.session = onnxruntime.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"])

    @classmethod
    def models(cls, repository):
        oldest = f"oldest {{ max_candidate_sequences: {SPEAKERS} }}"
        for name, strategy, count in (("oldest", oldest, 1), ("shared", "oldest { max_candidate_sequences: 40 }", 2), ("direct", "direct { }", 2)):
            repository.model(name, CONFIG % (strategy, count), files={"1/model.onnx": MODEL})

    def reference(self, pieces):
        state, probabilities = numpy.zeros((2, 1, 128), numpy.float32), []
        for piece in pieces:
            output, state = self.session.run(None, {"input": piece, "state": state})
            probabilities.append(float(output[0][0]))
        return probabilities

    def ask(self, client, model, sequence, index, piece):
        sound = grpcclient.InferInput("input", list(piece.shape), "FP32")
        sound.set_data_from_numpy(piece)
        result = client.infer(model, [sound], sequence_id=sequence, sequence_start=index == 0, sequence_end=index == PIECES - 1)
        return float(result.as_numpy("output")[0][0])

    def check(self, model, speakers, first_id):
        utterances = [utterance(speaker) for speaker in range(speakers)]
        expected = [self.reference(pieces) for pieces in utterances]
        self.assertGreater(len({tuple(row) for row in expected}), speakers // 2, "the speakers differ")
        with grpcclient.InferenceServerClient(self.server.grpc) as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
            got = [[] for _ in utterances]
            # Piece by piece, so that every sequence is live all the while.
            for index in range(PIECES):
                answers = pool.map(lambda speaker, index=index: self.ask(client, model, first_id + speaker, index, utterances[speaker][index]),
                                   range(speakers))
                for row, answer in zip(got, answers, strict=True):
                    row.append(answer)
        self.assertEqual(got, expected)

    def test_64_interleaved_speakers(self):
        self.check("oldest", SPEAKERS, 1)

    def test_64_interleaved_speakers_on_two_instances(self):
        self.check("shared", SPEAKERS, 1001)

    def test_a_speaker_per_slot(self):
        self.check("direct", 2, 2001)
