"""KServe's Python server: a model of the open inference protocol, one worker. Its batcher is a program of its own, in Go, and no part of it."""

import kserve
from kserve import InferOutput, InferResponse
from kserve.utils.utils import generate_uuid

from onnx_session import OUTPUT, PORT, Session


class Magika(kserve.Model):
    def __init__(self):
        super().__init__("magika")
        self.load()

    def load(self):
        self.session = Session()
        self.ready = True
        return self.ready

    def predict(self, payload, headers=None, response_headers=None):
        scores = self.session.run(payload.inputs[0].as_numpy())
        output = InferOutput(OUTPUT, list(scores.shape), "FP32")
        output.set_data_from_numpy(scores, binary_data=payload.use_binary_outputs)
        return InferResponse(payload.id or generate_uuid(), self.name, [output], use_binary_outputs=payload.use_binary_outputs)


if __name__ == "__main__":
    kserve.ModelServer(http_port=PORT, workers=1, enable_grpc=False, access_log_format=None).start([Magika()])
