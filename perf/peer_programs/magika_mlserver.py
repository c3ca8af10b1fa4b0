"""MLServer: a custom runtime with adaptive batching; perf/peers writes model-settings.json and settings.json beside it."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

from onnx_session import OUTPUT, Session


class Magika(MLModel):
    async def load(self):
        self.session = Session()
        return True

    async def predict(self, payload):
        rows = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        output = NumpyCodec.encode_output(OUTPUT, self.session.run(rows))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])
