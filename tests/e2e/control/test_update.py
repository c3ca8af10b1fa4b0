"""Updates in place: instances come and go while their version serves."""

import json
import threading
import unittest

from case import conch_only, needs_library
from probe import ProbeCase, probe
from test_control import EXPLICIT, Asking
from waiting import until

GROUP = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def grouped(text, **parameters):
    config = probe(batch=4, **parameters)
    return config.replace(GROUP, f"instance_group [ {text} ]\n")


@needs_library("probe")
class Update(Asking, ProbeCase):
    flags = (EXPLICIT,)

    def write(self, model, text, **more):
        self.repository.model(model, grouped(text, **more))

    def count(self, call, model, edge="end"):
        return sum(event.edge == edge and event.object.startswith(f"{model}:") for event in self.record.events(call))

    def wait_for_end(self, model, count):
        until(lambda: self.count("InstanceFinalize", model) == count, lambda: self.count("InstanceFinalize", model))

    def test_instances_come_and_go_under_traffic(self):
        self.write("busy", "{ count: 1 kind: KIND_CPU }", execute_ms=2)
        self.assertEqual(self.load("busy"), (200, ""))
        is_over, answers = threading.Event(), []

        def ask():
            while not is_over.is_set():
                answers.append(self.infer(BODY, model="busy")[0])
        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        ended = 0
        for round_number in range(6):
            seen = len(answers)
            until(lambda: len(answers) > seen + 10, "no traffic")
            self.write("busy", f"{{ count: {3 if round_number % 2 == 0 else 1} kind: KIND_CPU }}", execute_ms=2)
            self.assertEqual(self.load("busy"), (200, ""))
            ended += 2 * (round_number % 2)
            self.wait_for_end("busy", ended)
        is_over.set()
        for client in clients:
            client.join()
        self.assertEqual(set(answers), {200})
        self.assertEqual(self.count("ModelInitialize", "busy"), 1)
        self.assertEqual(self.count("ModelFinalize", "busy"), 0)
        self.assertEqual(self.count("InstanceInitialize", "busy"), 7)
        # Its statistics go on.
        self.assertEqual(self.server.statistics("busy")["inference_stats"]["success"]["count"], len(answers))

    def test_a_load_waits_for_the_instances_that_it_takes_away(self):
        self.write("leaving", "{ count: 3 kind: KIND_CPU }", execute_ms=100)
        self.assertEqual(self.load("leaving"), (200, ""))
        clients = [threading.Thread(target=self.infer, args=(BODY,), kwargs={"model": "leaving"}) for _ in range(3)]
        for client in clients:
            client.start()
        until(lambda: self.count("Execute", "leaving", "begin") >= 3, "they execute")
        self.write("leaving", "{ count: 1 kind: KIND_CPU }", execute_ms=100)
        self.assertEqual(self.load("leaving"), (200, ""))
        self.assertEqual(self.count("InstanceFinalize", "leaving"), 2)
        for client in clients:
            client.join()

    def test_equal_instances_stay(self):
        self.write("kinds", "{ count: 2 kind: KIND_CPU }")
        self.assertEqual(self.load("kinds"), (200, ""))
        self.write("kinds", '{ count: 1 kind: KIND_CPU name: "renamed" }, { count: 1 kind: KIND_MODEL }')
        self.assertEqual(self.load("kinds"), (200, ""))
        self.wait_for_end("kinds", 1)
        self.assertEqual(self.count("InstanceInitialize", "kinds"), 3)
        self.assertEqual(self.count("ModelInitialize", "kinds"), 1)
        groups = self.server.get_json("/v2/models/kinds/config")["instance_group"]
        self.assertEqual([(group["name"], group["kind"], group["count"]) for group in groups],
                         [("renamed", "KIND_CPU", 1), ("kinds_1", "KIND_MODEL", 1)])
        self.assertEqual(self.infer(BODY, model="kinds")[0], 200)

    def test_an_override_updates_too(self):
        self.write("over", "{ count: 1 kind: KIND_CPU }")
        self.assertEqual(self.load("over"), (200, ""))
        config = self.server.get_json("/v2/models/over/config")
        config["instance_group"] = [{"count": 2, "kind": "KIND_CPU"}]
        self.assertEqual(self.load("over", json.dumps({"parameters": {"config": json.dumps(config)}})), (200, ""))
        self.assertEqual(self.count("InstanceInitialize", "over"), 2)
        self.assertEqual(self.server.get_json("/v2/models/over/config")["instance_group"][0]["count"], 2)

    def test_more_than_instances_is_a_reload(self):
        self.write("more", "{ count: 1 kind: KIND_CPU }")
        self.assertEqual(self.load("more"), (200, ""))
        self.write("more", "{ count: 2 kind: KIND_CPU }", note="other")
        self.assertEqual(self.load("more"), (200, ""))
        self.assertEqual(self.count("ModelInitialize", "more"), 2)

    @conch_only  # The bound is conch's own.
    def test_what_is_refused_changes_nothing(self):
        self.write("frail", "{ count: 1 kind: KIND_CPU }")
        self.assertEqual(self.load("frail"), (200, ""))
        self.write("frail", "{ count: 2000 kind: KIND_CPU }")
        status, error = self.load("frail")
        self.assertEqual((status, "at most 1024" in error), (400, True), error)
        self.assertTrue(self.is_ready("frail"))
        self.assertEqual(self.infer(BODY, model="frail")[0], 200)
        self.assertEqual(self.count("InstanceInitialize", "frail"), 1)
        self.assertEqual(self.server.get_json("/v2/models/frail/config")["instance_group"][0]["count"], 1)


if __name__ == "__main__":
    unittest.main()
