"""Reloads without a ripple: a model that is reloaded again and again under load answers every request, and nobody else notices."""

import http.client
import json
import os
import threading
import unittest

from case import ServerCase, conch_only, pack
from repository import identity
from test_control import EXPLICIT, Asking

RELOADS = int(os.environ.get("CONCH_TEST_RELOADS", "1000"))
ROW = pack([1, 2, 3, 4])
HEAD = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": len(ROW)}}],
                   "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()


class Client(threading.Thread):
    """Asks one model for as long as it shall, over one connection, and counts."""

    def __init__(self, server, model):
        super().__init__()
        self.model, self.port = model, server.ports["http"]
        self.is_over, self.answered, self.wrong = threading.Event(), 0, []

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Inference-Header-Content-Length": str(len(HEAD))}
        while not self.is_over.is_set() and not self.wrong:
            connection.request("POST", f"/v2/models/{self.model}/infer", HEAD + ROW, headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or not body.endswith(ROW):
                self.wrong.append((answer.status, body[-200:]))
            self.answered += 1
        connection.close()


@conch_only
class Storm(Asking, ServerCase):
    flags = (EXPLICIT, "--load-model=*")

    @staticmethod
    def models(repository):
        repository.model("storm", identity(count=2)).model("calm", identity())

    def test_reloads_lose_nothing(self):
        clients = [Client(self.server, model) for model in ("storm", "storm", "storm", "calm")]
        for client in clients:
            client.start()
        config = self.repository.path / "storm" / "config.pbtxt"
        text = config.read_text()
        resident = []
        try:
            for number in range(RELOADS):
                config.write_text(f'{text}parameters {{ key: "n" value {{ string_value: "{number}" }} }}\n')
                self.assertEqual(self.load("storm"), (200, ""))
                self.assertFalse(any(client.wrong for client in clients), [client.wrong for client in clients])
                if number % (RELOADS // 10 or 1) == 0:
                    resident.append(self.server.resident_bytes())
        finally:
            for client in clients:
                client.is_over.set()
            for client in clients:
                client.join()
        self.assertEqual([client.wrong for client in clients], [[], [], [], []])
        statistics = self.server.statistics("calm")
        self.assertEqual(statistics["inference_stats"]["success"]["count"], clients[3].answered)
        self.assertEqual(statistics["inference_stats"]["fail"]["count"], 0)
        # Counters of metrics go on through reloads, so they know every request of all versions that there were.
        metrics = self.server.metrics()
        asked = sum(client.answered for client in clients[:3])
        self.assertEqual(metrics['nv_inference_request_success{model="storm",version="1"}'], asked)
        self.assertGreater(asked, RELOADS)
        # Flat: what 1,000 reloads leave behind is not what one takes (some hundred KB of stacks and queues).
        grown = max(resident[len(resident) // 2:]) - resident[len(resident) // 5]
        self.assertLess(grown, 8 << 20, resident)
        print(f"{RELOADS} reloads, {asked} requests to the model and {clients[3].answered} to the other; "
              f"resident MB: {[round(bytes / 1e6, 1) for bytes in resident]}")


if __name__ == "__main__":
    unittest.main()
