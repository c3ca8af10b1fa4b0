"""Everything at once: requests of every kind of model, cancelled and timed out at random, while the models are loaded, reloaded, changed in
place and unloaded. Whatever comes when, every request gets its own answer or an error that its circumstances explain, and nothing is left."""

import collections
import os
import queue
import random
import re
import threading
import time

import numpy
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from case import ServerCase, conch_only, needs_library
from probe import probe
from test_control import EXPLICIT

SECONDS = float(os.environ.get("CONCH_TEST_UPHEAVAL_SECONDS", "8"))
SEED = int(os.environ.get("CONCH_TEST_UPHEAVAL_SEED", "1"))
CLIENTS = 8
PATIENCE = 30

START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n'
DYNAMIC = """dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: [ 2, 4 ] priority_levels: 3 default_priority_level: 2
default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 200000 allow_timeout_override: true max_queue_size: 50 } }
"""
WARM_UP = 'model_warmup { name: "w" batch_size: 2 inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 4 ] zero_data: true } } }\n'
SEQUENCES = {"direct", "oldest", "told"}
# What may be said, by status; everything else fails the test. The strings are what follows the id of a request and the name of an ensemble.
EXPLAINED = {
    "INVALID_ARGUMENT": (r"inference request for sequence \S+ to model '\w+' must specify the START flag on the first request of the sequence",
                         r"inference request to model '\w+' must specify a non-zero or non-empty correlation ID"),
    "NOT_FOUND": (r"Request for unknown model: '\w+' (has no available versions|is not found)",),
    "UNAVAILABLE": (r"Request timeout expired", r"Exceeds maximum queue size", r"Server is stopping, scheduler for model has stopped accepting new.*",
                    r"Request for unknown model: '\w+' (has no available versions|is not found)", r"model '\w+' has been unloaded.*",
                    # It was unloaded while the request was read.
                    r"Request for unknown model: '\w+' version 1 is not at ready state",
                    r"there was no room for model '\w+' within \d+ s: the models that take it are in use",
                    # It is loaded on demand, while a model of its is unloaded on demand.
                    r"model '\w+' could not be loaded: load failed for model '\w+': ensemble \w+ contains models that are not available.*"),
    "RESOURCE_EXHAUSTED": (r".*has as many live requests as it may.*",),
    "DEADLINE_EXCEEDED": (r"Deadline Exceeded",),
    "CANCELLED": (r"", r"Locally cancelled by application!"),
}


def sequences(strategy):
    return probe(batch=4, count=2, extra=f"sequence_batching {{ max_sequence_idle_microseconds: 300000 {strategy} {START} }}\n")


def ensemble(*models):
    steps = ""
    for number, model in enumerate(models):
        source = f"between{number}" if number else "INPUT0"
        target = f"between{number + 1}" if number + 1 < len(models) else "OUTPUT0"
        steps += (f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{source}" }} '
                  f'output_map {{ key: "OUTPUT0" value: "{target}" }} }}\n')
    return ('platform: "ensemble"\nmax_batch_size: 4\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: 4 }\n'
            f'output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: 4 }}\nensemble_scheduling {{\n{steps}}}\n')


class Everything(ServerCase):
    flags = (EXPLICIT, "--load-model=*", "--backend-config=probe,record=/dev/null")

    @staticmethod
    def models(repository):
        (repository.model("plain", probe(batch=4)).model("dynamic", probe(batch=4, count=2, extra=DYNAMIC))
         .model("direct", sequences("direct { }")).model("oldest", sequences("oldest { max_candidate_sequences: 6 }"))
         .model("cached", probe(batch=4, extra="response_cache { enable: true }\n")).model("warm", probe(batch=4, extra=WARM_UP))
         .model("both", ensemble("dynamic", "plain")).model("told", ensemble("dynamic", "oldest")))

    names = ("plain", "dynamic", "direct", "oldest", "cached", "warm", "both", "told")

    def setUp(self):
        self.counts, self.wrong = collections.Counter(), []

    # Requests

    @staticmethod
    def tensor(value):
        tensor = grpcclient.InferInput("INPUT0", [1, 4], "INT32")
        tensor.set_data_from_numpy(numpy.full((1, 4), value, numpy.int32))
        return [tensor]

    def ask(self, client, chance, model, value, **more):
        """One request, now and then cancelled by its client."""
        if chance.random() < 0.8:
            return client.infer(model, self.tensor(value), **more)
        answers = queue.Queue()
        call = client.async_infer(model, self.tensor(value), lambda result, error: answers.put((result, error)), **more)
        if chance.random() < 0.5:
            time.sleep(chance.random() * 0.002)  # a client that leaves at any time
            call.cancel()
        result, error = answers.get(timeout=2 * PATIENCE)
        if error:
            raise error
        return result

    def asking(self, number):
        chance = random.Random(f"{SEED} client {number}")
        client = grpcclient.InferenceServerClient(self.server.grpc)
        while not self.is_over.is_set():
            model, value = chance.choice(self.names), chance.randrange(1 << 20)
            more = {"client_timeout": chance.choice([0.0005, 0.002, 0.01]) if chance.random() < 0.15 else PATIENCE}
            if model in SEQUENCES:
                identifier = number * 1000 + chance.randrange(1, 6) if chance.random() < 0.8 else f"s{number}-{chance.randrange(3)}"
                more |= {"sequence_id": identifier, "sequence_start": chance.random() < 0.4, "sequence_end": chance.random() < 0.3}
            elif chance.random() < 0.3:
                more |= {"priority": chance.randrange(4), "timeout": chance.choice([0, 1000, 100000])}
            try:
                answer = self.ask(client, chance, model, value, **more).as_numpy("OUTPUT0")
                self.counts[model] += 1
                if answer is None or (answer != value).any():
                    self.wrong.append((model, value, answer))
            except InferenceServerException as error:
                self.judge(model, error, more["client_timeout"] == PATIENCE)
            except queue.Empty:
                self.wrong.append((model, "no answer at all"))
        client.close()

    def judge(self, model, error, is_patient):
        status = (error.status() or "").removeprefix("StatusCode.")
        said = re.sub(r"^(in ensemble '\w+', )?(\[request id: [^]]*\] )?", "", error.message() or "")
        self.counts[status] += 1
        if (status == "DEADLINE_EXCEEDED" and is_patient) or not any(re.fullmatch(text, said) for text in EXPLAINED.get(status, ())):
            self.wrong.append((model, status, error.message()))

    # Models

    def changing(self, number):
        chance = random.Random(f"{SEED} control {number}")
        client = grpcclient.InferenceServerClient(self.server.grpc)
        while not self.is_over.is_set():
            model, what = chance.choice(self.names), chance.random()
            try:
                if what < 0.3:
                    self.load(client, model)
                elif what < 0.5:
                    self.rewrite(model, r'(parameters \{ key: "n".*)?\Z', f'parameters {{ key: "n" value {{ string_value: "{chance.random()}" }} }}\n')
                    self.load(client, model)
                elif what < 0.65:
                    self.rewrite(model, r"instance_group \[ \{ count: \d", f"instance_group [ {{ count: {chance.randrange(1, 4)}")
                    self.load(client, model)
                elif what < 0.75:
                    client.unload_model(model, unload_dependents=chance.random() < 0.3)
                    time.sleep(chance.random() * 0.05)  # any time between two changes, here and below
                    self.load(client, model)
                else:
                    client.get_model_repository_index()
                    client.get_inference_statistics()
                    self.server.metrics()
                self.counts["changes"] += 1
            except InferenceServerException as error:
                # An ensemble is not to be had while a model of its is gone, nor one that was unloaded meanwhile.
                self.counts[f"refused changes: {error.message()[:60]}"] += 1
            time.sleep(chance.random() * 0.03)
        client.close()

    def rewrite(self, model, pattern, text):
        """Changes a configuration, in one piece."""
        path = self.repository.path / model / "config.pbtxt"
        with self.writing:
            fresh = path.with_suffix(".fresh")
            fresh.write_text(re.sub(pattern, lambda _: text, path.read_text(), count=1, flags=re.DOTALL))
            fresh.replace(path)

    @staticmethod
    def load(client, model):
        client.load_model(model, client_timeout=2 * PATIENCE)

    def test_whatever_comes_when(self):
        self.is_over, self.writing = threading.Event(), threading.Lock()
        threads = [threading.Thread(target=self.asking, args=(number,), daemon=True) for number in range(CLIENTS)]
        threads += [threading.Thread(target=self.changing, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        self.is_over.wait(SECONDS)
        self.is_over.set()
        for thread in threads:
            thread.join(4 * PATIENCE)
        self.assertFalse([thread for thread in threads if thread.is_alive()], self.server.threads())
        self.assertEqual(self.wrong[:10], [], f"of {len(self.wrong)}; {dict(self.counts)}")
        # All that was asked of the models goes on as if nothing had been.
        client = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(client.close)
        for model in self.names:
            self.load(client, model)
        for number, model in enumerate(self.names):
            more = {"sequence_id": 99_000 + number, "sequence_start": True, "sequence_end": True} if model in SEQUENCES else {}
            answer = client.infer(model, self.tensor(number), client_timeout=PATIENCE, **more).as_numpy("OUTPUT0")
            self.assertTrue((answer == number).all(), model)
            self.assertGreater(self.counts[model], 0)
        pending = {name: value for name, value in self.server.metrics().items() if "pending_request" in name and value}
        self.assertEqual(pending, {})
        print(dict(self.counts))


Everything = conch_only(needs_library("probe")(Everything))


@conch_only
@needs_library("probe")
class Limited(Everything):
    """The same with the limits that upstream does not have, and a cache."""

    flags = (*Everything.flags, "--cache-config=local,size=1048576", "--model-requests-max=6", "--server-requests-max=12")


@conch_only
@needs_library("probe")
class RateLimited(Everything):
    flags = (*Everything.flags, "--rate-limit=execution_count")


@conch_only
@needs_library("probe")
class OnDemand(Everything):
    """The same where not all models fit into memory at a time."""

    flags = (*Everything.flags, "--model-memory-budget-bytes=2500", "--model-wait-secs=10")
