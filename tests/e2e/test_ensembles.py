"""Ensembles end to end: what runs, what is answered, what is counted, and what comes and goes with what. What holds for upstream, too, is
tried there as well (`--server=triton`)."""

import json
import time
import unittest

import grpc as grpcio
import numpy
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from case import ServerCase, conch_only, needs_library
from repository import identity, tensors

FP32 = [("INPUT0", "FP32", (-1,))]
OUT = [("OUTPUT0", "FP32", (-1,))]


def step(model, inputs, outputs, version=-1):
    """One step; inputs and outputs map names in the model to tensors of the ensemble."""
    text = f'step {{ model_name: "{model}" model_version: {version}\n'
    text += "".join(f'input_map {{ key: "{key}" value: "{value}" }}\n' for key, value in inputs.items())
    return text + "".join(f'output_map {{ key: "{key}" value: "{value}" }}\n' for key, value in outputs.items()) + "}\n"


def ensemble(steps, inputs=FP32, outputs=OUT, batch=0, extra="", inflight=0):
    text = f'platform: "ensemble"\nmax_batch_size: {batch}\n' + tensors("input", inputs) + tensors("output", outputs)
    inflight = f"max_inflight_requests: {inflight}\n" if inflight else ""
    return text + "ensemble_scheduling {\n" + "".join(steps) + inflight + "}\n" + extra


def chain(*models):
    """Steps that hand INPUT0 from model to model."""
    names = ["INPUT0", *(f"t{place}" for place in range(1, len(models))), "OUTPUT0"]
    return [step(model, {"INPUT0": names[place]}, {"OUTPUT0": names[place + 1]}) for place, model in enumerate(models)]


def body(values, shape=None, outputs=(), **more):
    made = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape or [len(values)], "data": values}], **more}
    if outputs:
        made["outputs"] = [{"name": name} for name in outputs]
    return made


class EnsembleCase(ServerCase):
    def ask(self, model, *arguments, **more):
        """The reply to a good request."""
        status, _, reply = self.infer(body(*arguments, **more), model=model)
        self.assertEqual(status, 200, reply)
        return json.loads(reply)

    def refusal(self, model, *arguments, **more):
        status, _, reply = self.infer(body(*arguments, **more), model=model)
        return status, json.loads(reply)["error"]

    def outputs(self, reply):
        return {output["name"]: (output["shape"], output["data"]) for output in reply["outputs"]}

    def counts(self, model):
        statistics = self.server.statistics(model)
        return statistics["inference_stats"]["success"]["count"], statistics["execution_count"], statistics["inference_count"]

    def control(self, action, model, **parameters):
        text = json.dumps({"parameters": parameters}).encode() if parameters else b""
        status, _, reply = self.server.request("POST", f"/v2/repository/models/{model}/{action}", text)
        return status, reply.decode()


def running(repository):
    repository.model("a", identity()).model("b", identity()).model("c", identity())
    repository.model("batched", identity(batch=8, extra="dynamic_batching { }\n"))
    repository.model("flat", identity([("INPUT0", "FP32", (-1, 2))]))
    repository.model("row", identity([("INPUT0", "FP32", (2,))]))
    repository.model("three", ensemble(chain("a", "b", "c")))
    repository.model("nested", ensemble(chain("three", "a")))
    repository.model("long", ensemble(chain(*["a", "b", "c"] * 20)))
    branches = [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "image"}), step("b", {"INPUT0": "image"}, {"OUTPUT0": "left"}),
                step("c", {"INPUT0": "image"}, {"OUTPUT0": "right"})]
    repository.model("branches", ensemble(branches, outputs=[("left", "FP32", (-1,)), ("right", "FP32", (-1,))]))
    pair = [("INPUT0", "FP32", (2,))], [("OUTPUT0", "FP32", (2,))]
    repository.model("of_batches", ensemble(chain("batched", "batched"), *pair, batch=8))
    repository.model("into_flat", ensemble(chain("batched", "flat"), *pair, batch=8))
    repository.model("into_row", ensemble(chain("batched", "row"), *pair, batch=8))
    repository.model("from_row", ensemble(chain("row", "batched"), *pair))


@needs_library("identity")
class Running(EnsembleCase):
    models = staticmethod(running)

    def test_a_chain(self):
        reply = self.ask("three", [1, 2, 3], id="7")
        self.assertEqual(self.outputs(reply), {"OUTPUT0": ([3], [1, 2, 3])})
        self.assertEqual((reply["id"], reply["model_name"], reply["model_version"]), ("7", "three", "1"))
        self.assertEqual(reply["parameters"], {"sequence_id": 0, "sequence_start": False, "sequence_end": False})

    def test_a_sequence_is_told_back(self):
        reply = self.ask("three", [1], parameters={"sequence_id": 5, "sequence_start": True, "sequence_end": False})
        self.assertEqual(reply["parameters"], {"sequence_id": 5, "sequence_start": True, "sequence_end": False})
        reply = self.ask("three", [1], parameters={"sequence_id": "five", "sequence_end": True})
        self.assertEqual(reply["parameters"], {"sequence_id": "five", "sequence_start": False, "sequence_end": True})

    def test_an_ensemble_in_an_ensemble_and_many_steps(self):
        for model in ("nested", "long"):
            self.assertEqual(self.outputs(self.ask(model, [4, 5])), {"OUTPUT0": ([2], [4, 5])})

    def test_branches_and_what_is_left_out(self):
        both = {"left": ([2], [1, 2]), "right": ([2], [1, 2])}
        self.assertEqual(self.outputs(self.ask("branches", [1, 2])), both)
        before = {model: self.counts(model) for model in "abc"}
        self.assertEqual(self.outputs(self.ask("branches", [3], outputs=["right"])), {"right": ([1], [3])})
        self.assertEqual({model: self.counts(model) for model in "abc"},
                         {model: tuple(count + (model != "b") for count in before[model]) for model in "abc"})

    def test_every_step_is_counted_and_the_ensemble_once(self):
        before = {model: self.counts(model) for model in ("nested", "three", "a", "b")}
        self.ask("nested", [1])
        expected = {"nested": 1, "three": 1, "a": 2, "b": 1}
        self.assertEqual({model: self.counts(model) for model in expected},
                         {model: tuple(count + more for count in before[model]) for model, more in expected.items()})
        own, steps = (self.server.statistics(model)["inference_stats"] for model in ("three", "a"))
        self.assertGreater(own["success"]["ns"], own["compute_infer"]["ns"] + own["compute_output"]["ns"])
        self.assertGreater(own["compute_output"]["ns"] + own["compute_infer"]["ns"] + own["compute_input"]["ns"], 0)
        self.assertEqual(own["queue"]["count"], own["success"]["count"])
        self.assertGreater(steps["queue"]["ns"], 0)

    def test_batches(self):
        shape, values = [3, 2], [1, 2, 3, 4, 5, 6]
        for model in ("of_batches", "into_flat"):
            self.assertEqual(self.outputs(self.ask(model, values, shape)), {"OUTPUT0": (shape, values)})
        row = self.server.statistics("of_batches")["batch_stats"]
        self.assertEqual([entry["batch_size"] for entry in row], [3])

    def test_a_batch_of_one_meets_models_without_batches(self):
        self.assertEqual(self.outputs(self.ask("into_row", [1, 2], [1, 2])), {"OUTPUT0": ([1, 2], [1, 2])})
        self.assertEqual(self.outputs(self.ask("from_row", [1, 2], [2])), {"OUTPUT0": ([2], [1, 2])})
        status, error = self.refusal("into_row", [1, 2, 3, 4], [2, 2])
        self.assertEqual(status, 400)
        self.assertIn("in ensemble 'into_row', [request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'row'.", error)
        self.ask("into_row", [1, 2], [1, 2])

    def test_metadata_and_configuration(self):
        metadata = self.server.get_json("/v2/models/three")
        self.assertEqual((metadata["platform"], metadata["versions"]), ("ensemble", ["1"]))
        config = self.server.get_json("/v2/models/three/config")
        self.assertEqual((config["platform"], config["model_transaction_policy"]), ("ensemble", {"decoupled": False}))
        steps = config["ensemble_scheduling"]["step"]
        self.assertEqual([(row["model_name"], row["model_version"], row["model_namespace"]) for row in steps],
                         [("a", -1, ""), ("b", -1, ""), ("c", -1, "")])
        self.assertNotIn("optimization", config)

    def test_what_is_wrong_with_the_request_itself(self):
        status, error = self.refusal("of_batches", [1, 2, 3], [1, 3])
        self.assertEqual((status, error.split(". ")[0]),
                         (400, "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'of_batches'"))


@needs_library("identity")
class Life(EnsembleCase):
    flags = ("--model-control-mode=explicit", "--exit-on-error=false", "--load-model=inner", "--load-model=whole")

    @staticmethod
    def models(repository):
        repository.model("a", identity()).model("b", identity())
        repository.model("inner", ensemble(chain("a", "b"))).model("whole", ensemble(chain("inner", "b")))
        repository.model("lost", ensemble(chain("a", "nobody"))).model("seventh", ensemble([step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}, 7)]))
        repository.model("broken", 'backend: "nosuch"\n' + tensors("input", FP32) + tensors("output", OUT))
        repository.model("on_broken", ensemble(chain("broken")))
        repository.model("round", ensemble(chain("about"))).model("about", ensemble(chain("round")))
        integers = [("INPUT0", "INT32", (-1,))], [("OUTPUT0", "INT32", (-1,))]
        repository.model("integers", ensemble(chain("a"), *integers))

    def states(self):
        """What the index shows of models that have a state, once nothing is on its way out."""
        deadline = time.monotonic() + 10
        while True:
            rows = json.loads(self.server.request("POST", "/v2/repository/index", b"")[2])
            shown = {row["name"]: row["state"] + " " + (row.get("reason") or "") for row in rows if row.get("state")}
            if not any(state.startswith("UNLOADING") for state in shown.values()) or time.monotonic() > deadline:
                return shown
            time.sleep(0.01)

    def test_it_goes_and_comes_back_with_its_models(self):
        ready = dict.fromkeys(("a", "b", "inner", "whole"), "READY ")
        self.assertEqual({**ready, **self.states()}, {**self.states(), **ready})
        self.assertEqual(self.control("unload", "a"), (200, ""))
        gone = dict.fromkeys(("a", "inner", "whole"), "UNAVAILABLE unloaded")
        self.assertEqual({**self.states(), **gone}, self.states())
        self.assertEqual(self.refusal("whole", [1]), (404, "Request for unknown model: 'whole' has no available versions"))
        self.assertEqual(self.control("load", "a"), (200, ""))
        self.assertEqual({**self.states(), **ready}, self.states())
        self.ask("whole", [1])
        # Both ensembles were asked for, their models were not.
        self.assertEqual(self.control("unload", "whole", unload_dependents=True), (200, ""))
        self.assertEqual({**self.states(), **ready, "whole": "UNAVAILABLE unloaded"}, self.states())
        self.assertEqual(self.control("load", "whole"), (200, ""))
        self.ask("whole", [1])

    def test_what_cannot_be_put_together_says_why(self):
        for model, reason in [
                ("lost", "ensemble lost contains models that are not available or ambiguous: nobody"),
                ("seventh", "ensemble 'seventh' depends on 'a' whose required version 7 is not loaded."),
                ("on_broken", "ensemble 'on_broken' depends on 'broken' which has no loaded version. Model 'broken' loading failed with error: "
                              "version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend library for backend 'nosuch', "
                              "try specifying runtime on the model configuration.;"),
                ("round", "circular dependency between ensembles: round -> ... -> about -> round"),
                ("integers", "in ensemble integers, ensemble tensor INPUT0: inconsistent data type: TYPE_INT32 is inferred from model "
                             "integers while TYPE_FP32 is inferred from model a")]:
            with self.subTest(model):
                status, reply = self.control("load", model)
                self.assertEqual((status, json.loads(reply)["error"]), (400, f"load failed for model '{model}': {reason}\n"))
                self.assertNotIn(model, self.states())
                self.assertEqual(self.refusal(model, [1]), (404, f"Request for unknown model: '{model}' is not found"))
