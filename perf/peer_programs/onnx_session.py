"""What all programs of this folder share: a session of ONNX Runtime, and the settings that perf/peers gives them in the environment."""

import os

import numpy
import onnxruntime

PORT, THREADS = int(os.environ["PORT"]), int(os.environ["THREADS"])
INPUT, OUTPUT, BATCH_MAX = "bytes", "target_label", int(os.environ["BATCH_MAX"])


class Session:
    """The model, on as many threads as all servers have."""

    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])

    def run(self, rows):
        """A row of FP32 for each row of INT32."""
        return self.session.run([OUTPUT], {INPUT: numpy.ascontiguousarray(rows, numpy.int32)})[0]
