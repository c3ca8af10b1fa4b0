"""Ray Serve: a deployment with dynamic batching, one replica."""

import ray
from ray import serve

from onnx_session import BATCH_MAX, INPUT, OUTPUT, PORT, Session


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
class Magika:
    def __init__(self):
        self.session = Session()

    @serve.batch(max_batch_size=BATCH_MAX, batch_wait_timeout_s=0.0)
    async def predict(self, rows):
        return list(self.session.run(rows))

    async def __call__(self, request):
        row = (await request.json())[INPUT]
        return {OUTPUT: (await self.predict(row)).tolist()}


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Magika.bind(), blocking=True)
