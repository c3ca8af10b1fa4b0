"""BentoML: a service with a batchable API, one worker."""

import bentoml
import numpy

from onnx_session import BATCH_MAX, Session


@bentoml.service(name="magika", workers=1, traffic={"timeout": 60})
class Magika:
    def __init__(self):
        self.session = Session()

    @bentoml.api(batchable=True, max_batch_size=BATCH_MAX, max_latency_ms=1000)
    def predict(self, rows: numpy.ndarray) -> numpy.ndarray:
        return self.session.run(rows)
