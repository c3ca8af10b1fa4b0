"""Ensembles end to end: what runs, what is answered, what is counted, and what comes and goes with what. What holds for upstream, too, is
tried there as well (`--server=triton`)."""

import json
import pathlib
import re
import struct
import tempfile
import threading
import unittest

import grpc as grpcio
import numpy
import tritonclient.grpc as grpcclient

import region
import server as servers
from case import IS_TRITON, KIND, ServerCase, conch_only, needs_library
from probe import ProbeCase, probe
from repository import Repository, identity, tensors
from test_cache import CACHES, OWN
from test_stream import Call, final, repeat, request, square
from test_stream import REPEAT
from test_trace import CORE, Traces
from waiting import until

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
        def shown():
            rows = json.loads(self.server.request("POST", "/v2/repository/index", b"")[2])
            return {row["name"]: row["state"] + " " + (row.get("reason") or "") for row in rows if row.get("state")}
        return until(shown, "no model is unloading", accept=lambda states: not any(state.startswith("UNLOADING") for state in states.values()))

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


INTS = [("INPUT0", "INT32", (1,))], [("OUTPUT0", "INT32", (1,))]


@conch_only
class Circles(EnsembleCase):
    """Loads of configurations that would close a circle through models that serve."""

    flags = ("--model-control-mode=explicit", "--load-model=outer", "--load-model=leaf", "--exit-timeout-secs=10")

    @staticmethod
    def models(repository):
        repository.model("leaf", identity()).model("other", identity())
        repository.model("inner", ensemble(chain("leaf"))).model("outer", ensemble(chain("inner", "other")))

    def test_what_serves_goes_on(self):
        config = self.repository.path / "leaf/config.pbtxt"
        for needed, last in (("inner", "inner"), ("outer", "inner"), ("leaf", "leaf")):
            config.write_text(ensemble(chain(needed, needed)))
            status, reply = self.control("load", "leaf")
            self.assertEqual((status, json.loads(reply)["error"]),
                             (400, f"load failed for model 'leaf': circular dependency between ensembles: leaf -> ... -> {last} -> leaf\n"))
            for model in ("leaf", "inner", "outer"):
                self.ask(model, [1])
        # Without a circle the same ensemble is fine.
        config.write_text(ensemble(chain("other", "other")))
        self.assertEqual(self.control("load", "leaf"), (200, ""))
        for model in ("leaf", "inner", "outer"):
            self.ask(model, [1])


def decoupled(repository):
    repository.model("repeat", REPEAT)
    repository.model("square", square())
    repository.model("one", identity(INTS[0], INTS[1]))
    # Some of its requests take longer than others, and there are four at a time.
    repository.model("uneven", identity(INTS[0], INTS[1], count=4, parameters={"execute_delay_ms": "3"}))
    repository.model("unsigned", identity([("INPUT0", "UINT32", (1,))]))
    told = [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))]
    shown = [("VALUE", "INT32", (1,)), ("PLACE", "UINT32", (1,))]
    first = step("repeat", {name: name for name, _, _ in told}, {"OUT": "out", "IDX": "index"})
    for name, model in ("pairs", "one"), ("overtaking", "uneven"):
        steps = [first, step(model, {"INPUT0": "out"}, {"OUTPUT0": "VALUE"}), step("unsigned", {"INPUT0": "index"}, {"OUTPUT0": "PLACE"})]
        repository.model(name, ensemble(steps, told, shown))
    repository.model("only_last", ensemble([step("one", {"INPUT0": "INPUT0"}, {"OUTPUT0": "count"}),
                                            step("square", {"IN": "count"}, {"OUT": "OUTPUT0"})], *INTS))
    repository.model("twice", ensemble([step("square", {"IN": "INPUT0"}, {"OUT": "count"}),
                                        step("square", {"IN": "count"}, {"OUT": "OUTPUT0"})], *INTS))
    inner = [step("square", {"IN": "INPUT0"}, {"OUT": "OUTPUT0"})]
    repository.model("inner", ensemble(inner, *INTS))
    repository.model("outer", ensemble(chain("inner", "one"), *INTS))


@needs_library("repeat")
@needs_library("square")
class Decoupled(EnsembleCase):
    """Ensembles that answer as often as a step of theirs does."""

    models = staticmethod(decoupled)

    def setUp(self):
        self.channel = grpcio.insecure_channel(self.server.grpc)
        self.addCleanup(self.channel.close)

    def stream(self, *requests):
        """What comes for these, on a stream of their own: by request, the outputs of each response, and whether the last one was final."""
        rows = Call(self.channel, metadata=(("triton_enable_empty_final_response", "true"),)).send(*requests).end().rest()
        answers, ended = {}, {}
        for row in rows:
            self.assertEqual(row.error_message, "")
            inner = row.infer_response
            ended[inner.id] = final(row)
            if inner.outputs:
                names = [output.name for output in inner.outputs]
                values = [numpy.frombuffer(raw, numpy.int32).tolist()[0] for raw in inner.raw_output_contents]
                answers.setdefault(inner.id, []).append(dict(zip(names, values, strict=True)))
        return answers, ended

    def count(self, model, count, request_id="1"):
        asked = request(model, [("INPUT0", "INT32", numpy.array([count], numpy.int32))], request_id, triton_enable_empty_final_response=True)
        return asked

    def test_it_says_what_it_is(self):
        for model, expected in ("pairs", True), ("outer", True):
            config = self.server.get_json(f"/v2/models/{model}/config")
            self.assertEqual(config["model_transaction_policy"], {"decoupled": expected})
        status, reply = self.server.post_json("/v2/models/only_last/infer", {
            "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]})
        self.assertEqual((status, json.loads(reply)), (501, {"error": "HTTP end point doesn't support models with decoupled transaction policy"}))

    def test_what_belongs_together_stays_together(self):
        values = [10, 20, 30, 40, 50]
        made = repeat("a", values, model="pairs", triton_enable_empty_final_response=True)
        answers, ended = self.stream(made)
        self.assertEqual(sorted(row["PLACE"] for row in answers["a"]), list(range(5)))
        self.assertTrue(all(row["VALUE"] == values[row["PLACE"]] for row in answers["a"]))
        self.assertEqual(ended, {"a": True})

    @conch_only
    def test_answers_come_in_order_whatever_overtakes_what(self):
        values = list(range(100, 140))
        made = repeat("a", values, model="overtaking", triton_enable_empty_final_response=True)
        answers, ended = self.stream(made)
        self.assertEqual([(row["PLACE"], row["VALUE"]) for row in answers["a"]], list(enumerate(values)))
        self.assertEqual(ended, {"a": True})

    def test_no_answer_at_all(self):
        answers, ended = self.stream(self.count("only_last", 0))
        self.assertEqual((answers, ended), ({}, {"1": True}))

    def test_a_decoupled_step_at_the_end_after_another_and_within(self):
        for model, expected in ("only_last", [3] * 3), ("twice", [3] * 9), ("outer", [3] * 3):
            answers, ended = self.stream(self.count(model, 3))
            self.assertEqual([row["OUTPUT0"] for row in answers["1"]], expected, model)
            self.assertEqual(ended, {"1": True})

    @conch_only
    def test_more_than_the_window(self):
        for model in ("only_last", "outer"):
            answers, _ = self.stream(self.count(model, 2_000))
            self.assertEqual(len(answers["1"]), 2_000)

    def test_many_at_a_time(self):
        asked = [repeat(str(number), list(range(number, number + 7)), model="pairs", triton_enable_empty_final_response=True)
                 for number in range(20)]
        answers, ended = self.stream(*asked)
        for number in range(20):
            rows = answers[str(number)]
            self.assertEqual(sorted((row["PLACE"], row["VALUE"]) for row in rows), list(enumerate(range(number, number + 7))))
        self.assertEqual(set(ended.values()), {True})


def one_int(model, values, **more):
    return {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [4], "data": values}], **more}


@needs_library("probe")
class Probed(ProbeCase, EnsembleCase):
    """By the record of the probe backend: what runs at the same time, and what does not run at all."""

    whole = [("INPUT0", "INT32", (4,))]
    made = [("OUTPUT0", "INT32", (4,))]

    @classmethod
    def models(cls, repository):
        for name in ("classify", "segment"):
            repository.model(name, probe(execute_ms=100))
        repository.model("prepare", probe())
        repository.model("patient", probe(await_cancel_ms=20_000))
        repository.model("wide", probe(count=4, execute_ms=20))
        both = [step("prepare", {"INPUT0": "INPUT0"}, {"OUTPUT0": "image"}),
                step("classify", {"INPUT0": "image"}, {"OUTPUT0": "classes"}), step("segment", {"INPUT0": "image"}, {"OUTPUT0": "mask"})]
        outputs = [("classes", "INT32", (4,)), ("mask", "INT32", (4,))]
        repository.model("vision", ensemble(both, cls.whole, outputs))
        repository.model("failing", ensemble(chain("prepare", "classify"), cls.whole, cls.made))
        repository.model("cancelled", ensemble(chain("patient", "prepare"), cls.whole, cls.made))
        repository.model("around", ensemble(chain("cancelled"), cls.whole, cls.made))
        if not IS_TRITON:
            repository.model("narrow", ensemble(chain("wide"), cls.whole, cls.made, inflight=2))

    def lines(self, start, *calls):
        return [(event.edge, event.object) for event in self.record.events(*calls)][start:]

    def post(self, model, values):
        return self.server.post_json(f"/v2/models/{model}/infer", one_int(model, values))

    def failures(self, model):
        """The requests of a model that failed, by reason."""
        text = self.server.get("/metrics", port="metrics")[1].decode()
        pattern = rf'nv_inference_request_failure{{model="{model}",reason="([A-Z]+)",version="1"}} ([0-9]+)'
        return {reason: int(count) for reason, count in re.findall(pattern, text) if int(count)}

    def test_both_branches_run_at_once(self):
        start = len(self.lines(0, "Execute"))
        status, reply = self.post("vision", [1, 2, 3, 4])
        self.assertEqual(status, 200, reply)
        edges = [edge for edge, _ in self.lines(start, "Execute")]
        # The first step alone, then the other two: both have begun before one has ended.
        self.assertEqual(edges, ["begin", "end", "begin", "begin", "end", "end"])

    def test_the_first_error_is_the_answer_and_nothing_follows(self):
        before = self.counts("classify")
        status, reply = self.post("failing", [-1, 0, 0, 0])
        self.assertEqual(status, 500)
        self.assertIn("in ensemble 'failing', probe: ordered to fail", reply.decode())
        self.assertEqual(self.counts("classify"), before)
        # It counts twice: for its answer, and as a request that failed.
        self.assertEqual(self.failures("failing"), {"OTHER": 2})
        self.assertEqual(self.failures("prepare"), {"BACKEND": 1})
        self.assertEqual(self.server.statistics("failing")["inference_stats"]["fail"]["count"], 2)
        self.assertEqual(self.post("failing", [1, 0, 0, 0])[0], 200)

    @conch_only
    def test_no_more_in_flight_than_allowed(self):
        start = len(self.lines(0, "Execute"))
        replies = []
        threads = [threading.Thread(target=lambda: replies.append(self.post("narrow", [1, 2, 3, 4])[0])) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(replies, [200] * 12)
        running = most = 0
        for edge, _ in self.lines(start, "Execute"):
            running += 1 if edge == "begin" else -1
            most = max(most, running)
        self.assertEqual((running, most), (0, 2))

    @conch_only
    def test_a_cancel_reaches_the_step_that_executes_and_the_next_is_not_begun(self):
        client = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(client.close)
        # The second is a step of the first.
        for model in ("around", "cancelled"):
            executed, seen = (len(self.record.wait_for(0, "begin", call)) for call in ("Execute", "SeeCancel"))
            before = self.counts("prepare")
            tensor = grpcclient.InferInput("INPUT0", [4], "INT32")
            tensor.set_data_from_numpy(numpy.array([1, 2, 3, 4], numpy.int32))
            answers = []
            call = client.async_infer(model, [tensor], lambda result, error: answers.append(error))
            self.record.wait_for(executed + 1, "begin", "Execute")
            call.cancel()
            self.record.wait_for(seen + 1, "begin", "SeeCancel")
            until(lambda: self.server.statistics(model)["inference_stats"]["fail"]["count"], f"a failure more of {model}",
                  accept=lambda count: count != (model == "cancelled"))
            self.assertEqual(self.counts("prepare"), before)
            self.assertEqual(self.failures(model), {"CANCELED": 1 if model == "around" else 2})


def helped(repository):
    content = b"cat\ndog\nbird\n"
    labelled = identity().replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels.txt"')
    repository.model("labelled", labelled, files={"labels.txt": content}).model("plain", identity())
    repository.model("borrowing", ensemble(chain("plain", "labelled")))
    repository.model("around", ensemble(chain("borrowing")))
    own = ensemble(chain("labelled")).replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "own.txt"')
    repository.model("own", own, files={"own.txt": b"one\ntwo\nthree\n"})
    two = [("INPUT0", "FP32", (-1,)), ("INPUT1", "FP32", (-1,))]
    optional = identity(two).replace('name: "INPUT1"', 'name: "INPUT1" optional: true')
    repository.model("optional", optional)
    outputs = [("OUTPUT0", "FP32", (-1,)), ("OUTPUT1", "FP32", (-1,))]
    inputs = ensemble([step("optional", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})], two, outputs)
    repository.model("maybe", inputs.replace('name: "INPUT1"', 'name: "INPUT1" optional: true'))
    unmapped = [step("optional", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    repository.model("never", ensemble(unmapped))


@needs_library("identity")
class Helped(EnsembleCase):
    models = staticmethod(helped)
    flags = () if IS_TRITON else (region.FLAG,)

    def test_labels_are_borrowed(self):
        for model, expected in ("borrowing", ["0.700000:1:dog", "0.300000:0:cat"]), ("around", ["0.700000:1:dog", "0.300000:0:cat"]), \
                ("own", ["0.700000:1:two", "0.300000:0:one"]):
            asked = body([0.3, 0.7, 0.1])
            asked["outputs"] = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
            status, _, reply = self.infer(asked, model=model)
            self.assertEqual((status, json.loads(reply)["outputs"][0]["data"]), (200, expected), model)

    def test_inputs_that_are_left_out(self):
        self.assertEqual(self.outputs(self.ask("maybe", [1, 2])), {"OUTPUT0": ([2], [1, 2]), "OUTPUT1": ([1], [0])})
        asked = body([1, 2])
        asked["inputs"].append({"name": "INPUT1", "datatype": "FP32", "shape": [1], "data": [7]})
        status, _, reply = self.infer(asked, model="maybe")
        self.assertEqual((status, self.outputs(json.loads(reply))), (200, {"OUTPUT0": ([2], [1, 2]), "OUTPUT1": ([1], [7])}))
        self.assertEqual(self.outputs(self.ask("never", [1])), {"OUTPUT0": ([1], [1])})

    def test_tensors_in_shared_memory(self):
        with region.Object(content=struct.pack("<4f", 1, 2, 3, 4)) as memory:
            self.assertEqual(region.register(self.server, "both", memory.key, 4096)[0], 200)
            self.addCleanup(region.unregister, self.server, "both")
            asked = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": region.part("both")}],
                     "outputs": [{"name": "OUTPUT0", "parameters": region.part("both", 1024)}]}
            status, _, reply = self.infer(asked, model="borrowing")
            self.assertEqual(status, 200, reply)
            self.assertEqual(memory.read(1024, 16), struct.pack("<4f", 1, 2, 3, 4))


@needs_library("identity")
class Cached(EnsembleCase):
    """The response cache of an ensemble, and of a step."""

    flags = ("--cache-config=local,size=1048576", *OWN)

    @classmethod
    def setUpClass(cls):
        if IS_TRITON and not CACHES.exists():
            raise unittest.SkipTest(f"{CACHES} is not there")
        super().setUpClass()

    @staticmethod
    def models(repository):
        keeps = "response_cache { enable: true }\n"
        repository.model("a", identity()).model("kept", identity(extra=keeps))
        repository.model("whole", ensemble(chain("a", "a"), extra=keeps))
        repository.model("partly", ensemble(chain("a", "kept", "kept", "a")))

    def hits(self, model):
        stats = self.server.statistics(model)["inference_stats"]
        return stats["cache_hit"]["count"], stats["cache_miss"]["count"]

    def test_a_kept_answer_runs_no_step(self):
        self.ask("whole", [1, 2])
        before = self.counts("a")
        reply = self.ask("whole", [1, 2])
        self.assertEqual(self.outputs(reply), {"OUTPUT0": ([2], [1, 2])})
        self.assertEqual((self.counts("a"), self.hits("whole")), (before, (1, 1)))
        success, executions, _ = self.counts("whole")
        self.assertEqual((success, executions), (2, 1))

    def test_a_step_is_answered_from_the_cache(self):
        for _ in range(2):
            self.assertEqual(self.outputs(self.ask("partly", [5])), {"OUTPUT0": ([1], [5])})
        self.assertEqual(self.hits("kept"), (3, 1))


@needs_library("identity")
class Traced(unittest.TestCase):
    def test_each_step_has_a_trace_of_its_own(self):
        with Repository() as repository, tempfile.TemporaryDirectory() as folder:
            repository.model("a", identity()).model("b", identity())
            repository.model("inner", ensemble(chain("a", "b"))).model("outer", ensemble(chain("inner", "a")))
            file = pathlib.Path(folder) / "traces"
            flags = (f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS",
                     "--trace-config=rate=1")
            with servers.Server(str(repository), *flags, kind=KIND) as server:
                text = json.dumps(body([1], id="asked")).encode()
                self.assertEqual(server.request("POST", "/v2/models/outer/infer", text)[0], 200)
            traces = Traces(file)
            subjects = {row["model_name"]: row for row in (trace["subject"] for trace in traces.all) if row["model_name"] != "a"}
            ids = {name: row["id"] for name, row in subjects.items()}
            self.assertNotIn("parent_id", subjects["outer"])
            self.assertEqual((subjects["inner"]["parent_id"], subjects["b"]["parent_id"]), (ids["outer"], ids["inner"]))
            of_a = sorted(trace["subject"]["parent_id"] for trace in traces.all if trace["subject"]["model_name"] == "a")
            self.assertEqual(of_a, sorted([ids["outer"], ids["inner"]]))
            self.assertEqual({trace["subject"]["request_id"] for trace in traces.all}, {"asked"})
            for trace in traces.all:
                names = [name for name, _ in trace["times"] if name in CORE]
                expected = CORE if trace["subject"]["model_name"] in "ab" else ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
                self.assertEqual(names, expected, trace["subject"])
                outputs = [(tensor["name"], tensor["data"]) for activity, tensor in trace["tensors"] if activity == "TENSOR_BACKEND_OUTPUT"]
                self.assertEqual(outputs, [("OUTPUT0", "1")], trace["subject"])


if __name__ == "__main__":
    unittest.main()
