"""LitServe, as its guide has it: an API with batching, one worker."""

import litserve
import numpy

from onnx_session import BATCH_MAX, INPUT, OUTPUT, PORT, Session


class Magika(litserve.LitAPI):
    def setup(self, device):
        self.session = Session()

    def decode_request(self, request):
        return numpy.asarray(request[INPUT], numpy.int32)

    def batch(self, inputs):
        return numpy.stack(inputs)

    def predict(self, rows):
        return self.session.run(rows)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {OUTPUT: output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Magika(max_batch_size=BATCH_MAX, batch_timeout=0.0), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=PORT, num_api_servers=1, generate_client_file=False, log_level="warning", access_log=False)
