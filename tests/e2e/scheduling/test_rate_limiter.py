"""The rate limiter: instances execute while they hold the resources that their groups name, and nobody stands in another's way."""

import collections
import concurrent.futures
import http.client
import unittest

import numpy
import tritonclient.grpc as grpcclient

from case import KIND, conch_only, needs_library
from probe import ProbeCase, Record, probe
from repository import Repository
from server import Server
from test_control import EXPLICIT, Asking

ON = "--rate-limit=execution_count"
REFUSED = "load failed for model '{}': version 1 is at UNAVAILABLE state: Invalid argument: {};\n"
SHORT = ('Resource count for "{}" is limited to {} which will prevent scheduling of one or more model instances, the minimum '
         "required count is {}")
AMBIGUOUS = 'Resource "{}" is present as both global and device-specific resource in the model configuration.'


def limited(resources, count=1, priority=0, **more):
    """A probe model whose instances need `resources`: name to number, with `@` in front of the name for those of a device."""
    text = "".join(f'resources {{ name: "{name.lstrip("@")}" {"" if name[0] == "@" else "global: true"} count: {number} }} '
                   for name, number in resources.items())
    config = probe(**more)
    group = f"instance_group [ {{ count: {count} kind: KIND_CPU rate_limiter {{ {text} priority: {priority} }} }} ]\n"
    return config.replace("instance_group [ { count: 1 kind: KIND_CPU } ]\n", group)


class Limited(Asking, ProbeCase):
    flags = (EXPLICIT, ON)

    def ask(self, model):
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]}]}
        status, _, reply = self.infer(body, model=model)
        self.assertEqual(status, 200, reply)

    def ask_all(self, *models):
        """As many requests at once as there are names."""
        with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
            for done in [pool.submit(self.ask, model) for model in models]:
                done.result()

    def at_most(self, *models):
        """The most executions of these models that ever overlapped."""
        inside = most = 0
        for event in self.record.events("Execute"):
            if event.object.split(":")[0] in models:
                inside += 1 if event.edge == "begin" else -1
                most = max(most, inside)
        return most


@needs_library("probe")
class Defaults(Limited):
    """As much of a resource as the neediest instance asks for."""

    @staticmethod
    def models(repository):
        for name, resources, count in (("one", {"R": 1}, 2), ("two", {"R": 2}, 1), ("free", {"S": 1}, 1), ("device", {"@R": 1}, 1)):
            repository.model(name, limited(resources, count, execute_ms=10))

    def test_the_largest_decides_and_goes(self):
        self.assertEqual(self.load("one"), (200, ""))
        self.ask_all(*["one"] * 6)
        self.assertEqual(self.at_most("one"), 1, "one unit, which each of two instances needs")
        self.assertEqual(self.load("two"), (200, ""))
        self.assertEqual(self.load("free"), (200, ""))
        self.ask_all(*["one", "two", "free"] * 6)
        self.assertLessEqual(self.at_most("one"), 2)
        self.assertEqual(self.at_most("two"), 1)
        both = [event for event in self.record.events("Execute") if event.object.split(":")[0] in ("one", "two")]
        inside = collections.Counter()
        for event in both:
            model = event.object.split(":")[0]
            inside[model] += 1 if event.edge == "begin" else -1
            self.assertLessEqual(inside["one"] + 2 * inside["two"], 2)
        # One name for two kinds of resources; what serves goes on.
        self.assertEqual(self.load("device"), (400, REFUSED.format("device", AMBIGUOUS.format("R"))))
        self.ask_all("one", "two")
        for model in ("one", "two"):
            self.assertEqual(self.unload(model), (200, ""))
        self.index()
        self.assertEqual(self.load("device"), (200, ""))
        self.ask("device")


@needs_library("probe")
class Explicit(Limited):
    flags = (EXPLICIT, ON, "--rate-limit-resource=R:3", "--rate-limit-resource=D:2:0", "--rate-limit-resource=E:2:1")

    @staticmethod
    def models(repository):
        for name, resources, count in (("fits", {"R": 1}, 4), ("large", {"R": 4}, 1), ("unlisted", {"S": 1}, 1), ("here", {"@D": 2}, 1),
                                       ("there", {"@E": 1}, 1), ("anywhere", {"E": 2}, 1)):
            repository.model(name, limited(resources, count, execute_ms=10))

    def test_what_is_given_holds(self):
        for name, expected in (("large", SHORT.format("R", 3, 4)), ("unlisted", SHORT.format("S", 0, 1)), ("there", SHORT.format("E", 0, 1))):
            with self.subTest(name):
                self.assertEqual(self.load(name), (400, REFUSED.format(name, expected)))
        for name in ("fits", "here", "anywhere"):
            with self.subTest(name):
                self.assertEqual(self.load(name), (200, ""))
                self.ask(name)
        self.ask_all(*["fits"] * 12)
        self.assertEqual(self.at_most("fits"), 3)


@needs_library("probe")
@conch_only
class Fairness(Limited):
    """Where upstream tries only the first of those that wait, and a new instance catches up with the life of the others."""

    flags = (EXPLICIT, ON, "--rate-limit-resource=R:2", "--rate-limit-resource=S:1")

    @staticmethod
    def models(repository):
        repository.model("holder", limited({"R": 1}, await_cancel_ms=30_000))
        repository.model("large", limited({"R": 2}, execute_ms=1))
        repository.model("other", limited({"S": 1}, execute_ms=1))
        repository.model("small", limited({"R": 1}, execute_ms=1))

    def test_who_waits_for_much_stands_in_nobodys_way(self):
        for name in ("holder", "large", "other", "small"):
            self.assertEqual(self.load(name), (200, ""))
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[4],"data":[1,2,3,4]}]}'
        holder = http.client.HTTPConnection("127.0.0.1", self.server.ports["http"])
        holder.request("POST", "/v2/models/holder/infer", body)
        self.record.wait_for(1, "begin", "Execute")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self.ask, "large")
            for _ in range(3):
                self.ask("other")
                self.ask("small")
            # Its execution lasts until its client leaves.
            holder.close()
            waiting.result()
        order = [event.object.split(":")[0] for event in self.record.events("Execute") if event.edge == "begin"]
        self.assertEqual(order[0], "holder")
        self.assertEqual(order[-1], "large")
        self.assertEqual(collections.Counter(order), {"holder": 1, "large": 1, "other": 3, "small": 3})


@needs_library("probe")
class Shares(Limited):
    """Upstream's order among models of unlike priorities on one resource: the number of executions times the priority, with two executions
    behind each that is new."""

    flags = (EXPLICIT, ON)

    @staticmethod
    def models(repository):
        repository.model("holder", limited({"R": 4}, await_cancel_ms=60_000))
        repository.model("first", limited({"R": 4}, priority=1))
        repository.model("second", limited({"R": 2}, priority=2))

    def test_two_of_the_first_for_one_of_the_second(self):
        for name in ("holder", "first", "second"):
            self.assertEqual(self.load(name), (200, ""))
        client = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(client.close)
        tensor = grpcclient.InferInput("INPUT0", [4], "INT32").set_data_from_numpy(numpy.zeros(4, numpy.int32))
        holder = client.async_infer("holder", [tensor], lambda result, error: None)
        self.addCleanup(holder.cancel)
        self.record.wait_for(1, "begin", "Execute")
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            asked = [pool.submit(self.ask, model) for model in ("first", "second") for _ in range(16)]
            for model in ("first", "second"):
                self.server.wait_for_pending(model, 16)
            holder.cancel()
            for done in asked:
                done.result()
        begun = [event for event in self.record.events("Execute") if event.edge == "begin"][1:]
        order = "".join(event.object[0] for event in begun)
        # The first pair may come in either order, as the holder's end finds both waiting.
        self.assertEqual(order[:24].count("f"), 16, order)
        self.assertNotIn("ss", order[:24])
        self.assertNotIn("fff", order[:24])


@needs_library("probe")
class Off(unittest.TestCase):
    def test_without_the_flag_resources_are_only_shown(self):
        record = Record()
        self.addCleanup(record.close)
        with Repository() as repository:
            repository.model("one", limited({"R": 1, "@R": 1}, count=2, execute_ms=100))
            with Server(repository, record.flag, "--rate-limit-resource=R:0", kind=KIND) as server:
                def ask(_):
                    body = '{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[4],"data":[1,2,3,4]}]}'
                    self.assertEqual(server.request("POST", "/v2/models/one/infer", body)[0], 200)
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    list(pool.map(ask, range(2)))
                config = server.get_json("/v2/models/one/config")
                self.assertEqual(config["instance_group"][0]["rate_limiter"]["resources"][0]["name"], "R")
        edges = [event.edge for event in record.events("Execute")]
        self.assertEqual(edges, ["begin", "begin", "end", "end"])


if __name__ == "__main__":
    unittest.main()
