"""Ray Serve in front of conch: a deployment that prepares requests in Python, and asks conch for the model's part.

    pip install 'ray[serve]' 'tritonclient[grpc]' numpy
    CONCH=balancer:8001 serve run ray_serve:app
    curl localhost:8000/ -d '{"values": [1, 2, 3, 4]}'

Ray scales the replicas of this deployment, which hold no model; conch's servers scale by their own signals."""

import os

import numpy as np
import tritonclient.grpc.aio as grpcclient
from ray import serve

MODEL = os.environ.get("MODEL", "m")
SECONDS = 5


@serve.deployment(
    max_ongoing_requests=100,
    autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 40},
    ray_actor_options={"num_cpus": 0.25},
)
class Pipeline:
    def __init__(self):
        # A channel per replica. Behind a balancer that knows HTTP/2 one is enough; past one, "dns:///<headless service>:8001" and
        # round_robin reach all servers.
        options = [("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}')]
        self.client = grpcclient.InferenceServerClient(os.environ.get("CONCH", "localhost:8001"), channel_args=options)

    async def __call__(self, request):
        values = np.array([(await request.json())["values"]], dtype=np.float32)
        tensor = grpcclient.InferInput("INPUT0", list(values.shape), "FP32")
        tensor.set_data_from_numpy(values)
        answer = await self.client.infer(MODEL, [tensor], client_timeout=SECONDS)
        return {"values": answer.as_numpy("OUTPUT0")[0].tolist()}

    async def check_health(self):
        if not await self.client.is_server_ready(client_timeout=SECONDS):
            raise RuntimeError("conch is not ready")


app = Pipeline.bind()
