"""Which requests the dynamic batcher executes together: scripts of arrivals, fixed ones and drawn ones, that conch and the real Triton are to
answer with the same executions, of the same requests in the same order. The probe backend writes down what it is given, and holds
executions back until the script lets them go.

CONCH_ARRIVAL_SEEDS says how many scripts are drawn for each model.
"""

import json
import os
import queue
import time
import unittest

import numpy
import tritonclient.grpc as grpcclient

from arrivals import GO, LONG, SHORT, Reference, Request, Rules, Tail, drawn
from case import IS_TRITON, ServerCase, needs_library
from probe import Record
from repository import tensors
from waiting import until

WAIT = 30
OPEN = 1_000_000
SEEDS = int(os.environ.get("CONCH_ARRIVAL_SEEDS", "5"))
# Longer than what a brief request waits, which is a millisecond.
LATE_S = 0.005
# Time for upstream's batcher, in a thread of its own, to add what waits to a batch that no instance has taken: only a queue policy keeps it
# from that. Not conch's, whose batches are made when they begin.
SETTLE_S = 0.03 if IS_TRITON else 0
DELAYS = {"": "", LONG: "max_queue_delay_microseconds: 60000000 ", SHORT: "max_queue_delay_microseconds: 1 "}


class Arrivals(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = (cls.record.flag,)
        super().setUpClass()
        cls.tail = Tail(cls.record.path)

    @classmethod
    def gate(cls, model, text):
        path = cls.record.folder / model
        fresh = path.with_suffix(".fresh")
        fresh.write_text(str(text))
        fresh.replace(path)

    @classmethod
    def add(cls, repository, name, rules, policy="", batching=None, inputs=""):
        """A model that holds its executions. `policy` is the text about its queues; without any, upstream makes batches ahead."""
        cls.gate(name, OPEN)
        text = f'backend: "probe"\nmax_batch_size: {rules.batch}\n'
        text += inputs or tensors("input", [("INPUT0", "INT32", (-1,))])
        text += tensors("output", [("OUTPUT0", "INT32", (-1,))]) + f"instance_group [ {{ count: {rules.instances} kind: KIND_CPU }} ]\n"
        for key, value in (("rows", 1), ("gate", cls.record.folder / name)):
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        if batching is None and rules.is_dynamic:
            levels = f"priority_levels: {rules.levels} default_priority_level: {rules.default_level} " if rules.levels else ""
            batching = f"preferred_batch_size: {list(rules.preferred)} {DELAYS[rules.delay]}{levels}{policy}"
        if batching is not None:
            text += f"dynamic_batching {{ {batching} }}\n"
        repository.model(name, text)

    def setUp(self):
        self.rpc = grpcclient.InferenceServerClient(self.server.grpc)
        self.addCleanup(self.rpc.close)
        self.answers = queue.Queue()
        self.rpc.start_stream(lambda result, error: self.answers.put((result, error)))
        self.addCleanup(self.rpc.stop_stream)
        self.held = set()
        self.addCleanup(lambda: [self.gate(name, OPEN) for name in self.held])

    @staticmethod
    def tensors_of(request, is_batched=True):
        shape = [request.rows, request.width] if is_batched else [request.width]
        made = []
        for name in ("INPUT0", "INPUT1")[:1 + request.is_full]:
            made.append(grpcclient.InferInput(name, shape, "INT32"))
            made[-1].set_data_from_numpy(numpy.full(shape, request.number, numpy.int32))
        return made

    def executions(self, model):
        """The batches of a model as lists of its requests' numbers."""
        return [[row["INPUT0"][1][0] for row in json.loads(detail)] for detail in self.tail.executions(model)]

    def wait_for_executions(self, model, count):
        until(lambda: len(self.tail.executions(model)), lambda: f"{count} executions of {model} in {self.executions(model)}", WAIT,
              lambda seen: seen >= count)

    def wait_for_arrivals(self):
        """Until all that was sent is where it waits: a server takes the requests of a stream one after the other."""
        before = len(self.tail.executions("marker"))
        self.rpc.async_stream_infer("marker", self.tensors_of(Request(0), False))
        self.wait_for_executions("marker", before + 1)
        time.sleep(SETTLE_S)  # upstream does not say when its batcher has them

    def play(self, model, rules, script):
        """Plays a script, and returns the batches, and the messages of what was refused."""
        reference = Reference(rules)
        before = len(self.tail.executions(model))
        self.held.add(model)
        gone, markers = before, 0
        has_late = bool(rules.late) or any(step != GO and step.is_brief for step in script)
        self.gate(model, gone)
        for step in script:
            if step == GO:
                self.wait_for_arrivals()
                markers += 1
                if has_late:
                    time.sleep(LATE_S)  # time must pass: it makes requests late
                reference.go()
                gone += 1
                self.gate(model, gone)
            else:
                self.rpc.async_stream_infer(model, self.tensors_of(step, rules.batch > 0), priority=step.level,
                                            timeout=1000 if step.is_brief else None)
                reference.send(step)
            self.wait_for_executions(model, before + len(reference.batches))
        found = []
        for _ in range(markers + sum(step != GO for step in script)):
            _, error = self.answers.get(timeout=WAIT)
            if error:
                found.append(error.message())
        self.gate(model, OPEN)
        return self.executions(model)[before:], found

    def assert_played(self, model, rules, script):
        reference = Reference(rules)
        for step in script:
            reference.go() if step == GO else reference.send(step)
        self.assertEqual((reference.waiting, reference.busy), ([], 0), "the script leaves something")
        batches, refusals = self.play(model, rules, script)
        self.assertEqual(batches, reference.batches, script)
        self.assertEqual(len(refusals), len(reference.refused), refusals)
        for refusal in refusals:
            self.assertIn("Request timeout expired" if rules.late else "Exceeds maximum queue size", refusal)


# A policy that never acts keeps upstream from making batches before an instance is free.
ROOM = "default_queue_policy { max_queue_size: 1000 }"
OVERRIDE = "default_timeout_microseconds: 600000000 allow_timeout_override: true"
OPTIONAL = ('input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }\n'
            'input { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1 ] optional: true }\n')
RAGGED = 'input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }\n'
WIDTHS = {"widths": (2, 3)}

# Name: rules, more for the configuration, more for the drawing.
MODELS = {
    # Without a queue policy, and with the largest size alone preferred.
    "plain": (Rules(), {}, {"rows": 5}),
    "unequal": (Rules(has_equal_shapes=True), {}, {"rows": 3, **WIDTHS}),
    "optional": (Rules(has_equal_shapes=True), {"inputs": OPTIONAL}, {"is_optional": True}),
    "waits_for_all": (Rules(delay=LONG), {}, {"rows": 5}),
    "pair": (Rules(batch=4, instances=2), {}, {"rows": 2}),
    # One request at a time.
    "default": (Rules(is_dynamic=False), {}, {"rows": 5}),
    "unbatched": (Rules(batch=0, levels=2, default_level=2), {}, {}),
    # With a queue policy, any sizes.
    "sizes": (Rules(preferred=(3, 5)), {"policy": ROOM}, {"rows": 4}),
    "small_sizes": (Rules(batch=6, preferred=(2, 4)), {"policy": ROOM}, {"rows": 2}),
    "unequal_sizes": (Rules(preferred=(3,), has_equal_shapes=True), {"policy": ROOM}, {"rows": 2, **WIDTHS}),
    "ragged": (Rules(preferred=(4,)), {"policy": ROOM, "inputs": RAGGED}, WIDTHS),
    "waits": (Rules(preferred=(4,), delay=LONG), {"policy": ROOM}, {"rows": 2}),
    "waits_unequal": (Rules(preferred=(4,), delay=LONG, has_equal_shapes=True), {"policy": ROOM}, {"rows": 2, **WIDTHS}),
    "late": (Rules(preferred=(4,), delay=SHORT), {"policy": ROOM}, {"rows": 3}),
    "late_for_all": (Rules(delay=SHORT), {"policy": ROOM}, {"rows": 5}),
    "pair_sizes": (Rules(preferred=(3,), instances=2), {"policy": ROOM}, {"rows": 2}),
    "levels": (Rules(preferred=(2, 4), levels=3, default_level=2), {}, {"rows": 3}),
    "bounded": (Rules(preferred=(2,), bounds={0: 3}), {"policy": "default_queue_policy { max_queue_size: 3 }"}, {"rows": 2}),
    "bounded_levels": (Rules(batch=4, levels=3, default_level=3, bounds={1: 1, 2: 4, 3: 2}),
                       {"policy": "default_queue_policy { max_queue_size: 2 } "
                                  "priority_queue_policy { key: 1 value { max_queue_size: 1 } } "
                                  "priority_queue_policy { key: 2 value { max_queue_size: 4 } }"}, {}),
    "rejects": (Rules(preferred=(4,), late="REJECT"), {"policy": f"default_queue_policy {{ {OVERRIDE} }}"}, {"rows": 2}),
    "delays": (Rules(preferred=(4,), late="DELAY"),
               {"policy": f"default_queue_policy {{ timeout_action: DELAY {OVERRIDE} }}"}, {"rows": 2}),
    # Without the override a request's own timeout says nothing.
    "patient": (Rules(preferred=(4,)), {"policy": "default_queue_policy { default_timeout_microseconds: 600000000 }"}, {"rows": 2}),
    "delayed_levels": (Rules(preferred=(4,), levels=3, default_level=3, late="DELAY"),
                       {"policy": f"default_queue_policy {{ timeout_action: DELAY {OVERRIDE} }}"}, {"rows": 2}),
    "brief_level": (Rules(batch=4, levels=2, default_level=2, late="REJECT", late_levels=(2,)),
                    {"policy": "priority_queue_policy { key: 2 value { default_timeout_microseconds: 1000 } }"}, {}),
}

# Without a queue policy upstream adds to a batch that waits for its instance as requests come, and the sizes it prefers mean something else
# then: it ends at the first of them that it reaches, and takes one request beyond the largest. Past the delay one that does not fit into the
# batch before it grows no more. Conch makes a batch when an instance is free, from all that waits, as upstream does with a queue policy.
# Rules, the rows of requests that come one by one while the instance is busy, conch's batches, upstream's.
AHEAD = {
    "first": (Rules(preferred=(2, 4)), [1] * 4, [[1, 2, 3, 4]], [[1, 2], [3, 4]]),
    "beyond": (Rules(preferred=(4,)), [3, 3], [[1], [2]], [[1, 2]]),
    "one_more": (Rules(preferred=(4,), delay=LONG), [1] * 20, [[*range(first, first + 4)] for first in range(1, 21, 4)],
                 [[*range(first, first + 5)] for first in range(1, 21, 5)]),
    "left": (Rules(delay=SHORT), [4, 3, 3, 1, 2, 4], [[1, 2], [3, 4, 5], [6]], [[1, 2], [3], [4, 5, 6]]),
}


@needs_library("probe")
class Scripts(Arrivals):
    @classmethod
    def models(cls, repository):
        cls.add(repository, "marker", Rules(batch=0, is_dynamic=False))
        for name, (rules, more, _) in MODELS.items():
            cls.add(repository, name, rules, **more)

    def check(self, model, requests, batches, refused=()):
        """These requests come while number 0 is executed, and are then executed as these batches. A request is its rows, or what differs."""
        rules = MODELS[model][0]
        # Executed at once, whoever else would wait or be late.
        first = {"rows": max(rules.preferred or (rules.batch,)) if rules.delay == LONG else 1, "level": 1}
        fields = [{"rows": request} if isinstance(request, int) else request for request in (first, *requests)]
        script = [Request(number, **more) for number, more in enumerate(fields)] + [GO] * (1 + len(batches))
        with self.subTest(model, requests=requests):
            self.assertCountEqual([*sum(batches, []), *refused], range(1, 1 + len(requests)))
            self.assert_played(model, rules, script)
            self.assertEqual(self.executions(model)[-len(batches):], batches)

    def test_sizes(self):
        self.check("plain", [1] * 20, [[*range(1, 9)], [*range(9, 17)], [*range(17, 21)]])
        self.check("plain", [5, 5, 3, 1, 8, 2], [[1], [2, 3], [4], [5], [6]])
        self.check("sizes", [1] * 7, [[1, 2, 3, 4, 5], [6, 7]])
        self.check("sizes", [1] * 4, [[1, 2, 3], [4]])
        self.check("sizes", [4, 4, 2, 3], [[1], [2], [3, 4]])
        self.check("sizes", [6, 1], [[1], [2]])
        self.check("small_sizes", [1] * 7, [[1, 2, 3, 4], [5, 6], [7]])
        self.check("default", [1, 3, 2], [[1], [2], [3]])

    def test_shapes_and_inputs(self):
        wide, full = {"width": 3}, {"is_full": True}
        self.check("unequal", [1, 1, wide, wide, 1], [[1, 2], [3, 4], [5]])
        self.check("unequal_sizes", [1, 1, wide, 1, 1, 1, 1], [[1, 2], [3], [4, 5, 6], [7]])
        self.check("unequal_sizes", [1, 1, 1, 1, wide], [[1, 2, 3], [4], [5]])
        self.check("ragged", [1, wide, 1, wide, 1], [[1, 2, 3, 4], [5]])
        self.check("optional", [1, 1, full, full, 1], [[1, 2], [3, 4], [5]])

    def test_delays(self):
        self.check("waits", [1, 1, 1, 1, 2, 3, 1], [[1, 2, 3, 4], [5], [6, 7]])
        self.check("waits", [6, 4], [[1], [2]])
        self.check("waits_unequal", [1, {"width": 3, "rows": 4}], [[1], [2]])
        self.check("waits_for_all", [5, 5, 3], [[1], [2, 3]])
        self.check("late", [1] * 12, [[*range(1, 9)], [*range(9, 13)]])
        self.check("late", [3] * 3, [[1, 2], [3]])

    def test_levels(self):
        def levels(*numbers):
            return [{"level": number} for number in numbers]
        # 0 and what is no level count as the default one, 2.
        self.check("levels", levels(3, 0, 1, 99, 2, 1), [[3, 6, 2, 4], [5, 1]])
        self.check("unbatched", levels(2, 1, 2, 1), [[2], [4], [1], [3]])

    def test_bounds(self):
        self.check("bounded", [1] * 5, [[1, 2], [3]], refused=[4, 5])
        self.check("bounded_levels", [{"level": level} for level in (3, 1, 2, 0, 1, 2, 3, 2)], [[2, 3, 6, 8], [1, 4]], refused=[5, 7])

    def test_timeouts(self):
        brief = {"is_brief": True}
        self.check("rejects", [1, brief, 1, brief], [[1, 3]], refused=[2, 4])
        self.check("delays", [brief, 1, brief, 1, 1, 1, 1], [[2, 4, 5, 6], [7, 1, 3]])
        self.check("patient", [1, brief, 1, brief], [[1, 2, 3, 4]])
        # Behind the others of their level, and before the next level.
        self.check("delayed_levels", [{"level": 2}, {"level": 1, **brief}, {"level": 1}, {"level": 2, **brief}, {"level": 2}],
                   [[3, 2, 1, 5], [4]])
        self.check("brief_level", [{"level": 2}, {"level": 1}, {"level": 0}], [[2]], refused=[1, 3])

    def test_drawn_scripts(self):
        for model, (rules, _, more) in MODELS.items():
            for seed in range(SEEDS):
                with self.subTest(model, seed=seed):
                    self.assert_played(model, rules, drawn(rules, seed, **more))


@needs_library("probe")
class Cancels(Arrivals):
    """Requests of one row that are cancelled while they wait are in no batch, and count for none."""

    @classmethod
    def models(cls, repository):
        cls.add(repository, "sizes", Rules(preferred=(3, 5)), policy=ROOM)

    def test_who_is_cancelled_makes_room(self):
        for count, cancelled, batches in ((4, [2], [[1, 3, 4]]), (6, [1, 6], [[2, 3, 4], [5]]), (7, [3, 5], [[1, 2, 4, 6, 7]]), (2, [1, 2], [])):
            with self.subTest(count=count, cancelled=cancelled):
                before = len(self.tail.executions("sizes"))
                self.held.add("sizes")
                self.gate("sizes", before)
                answered, calls = queue.Queue(), []
                for number in range(1 + count):
                    calls.append(self.rpc.async_infer("sizes", self.tensors_of(Request(number)),
                                                      lambda result, error: answered.put(error and error.status())))
                    self.wait_for_executions("sizes", before + 1)
                    self.server.wait_for_pending("sizes", number)
                for number in cancelled:
                    calls[number].cancel()
                if IS_TRITON:
                    time.sleep(0.2)  # where it only shows when the batcher comes by
                else:
                    self.server.wait_for_pending("sizes", count - len(cancelled))
                for gone in range(1, 2 + len(batches)):
                    self.gate("sizes", before + gone)
                    self.wait_for_executions("sizes", before + min(1 + gone, 1 + len(batches)))
                answers = [answered.get(timeout=WAIT) for _ in range(1 + count)]
                self.assertEqual(answers.count("StatusCode.CANCELLED"), len(cancelled), answers)
                self.assertEqual(answers.count(None), 1 + count - len(cancelled), answers)
                self.assertEqual(self.executions("sizes")[before:], [[0], *batches])


@needs_library("probe")
class Ahead(Arrivals):
    @classmethod
    def models(cls, repository):
        cls.add(repository, "marker", Rules(batch=0, is_dynamic=False))
        for name, (rules, *_) in AHEAD.items():
            cls.add(repository, name, rules)
            cls.add(repository, f"{name}_policy", rules, policy=ROOM)

    def check(self, model, rules, rows, batches):
        self.held.add(model)
        self.gate(model, 0)
        first = max(rules.preferred) if rules.delay == LONG else 1
        for number, count in enumerate([first, *rows]):
            self.rpc.async_stream_infer(model, self.tensors_of(Request(number, count)))
            if number == 0:
                self.wait_for_executions(model, 1)
            self.wait_for_arrivals()
        for gone in range(1, 1 + len(batches)):
            self.gate(model, gone)
            self.wait_for_executions(model, 1 + gone)
            time.sleep(SETTLE_S)  # upstream does not say when its batcher looks again
        self.gate(model, OPEN)
        with self.subTest(model):
            self.assertEqual(self.executions(model), [[0], *batches])

    def test_batches_are_made_when_they_begin(self):
        for name, (rules, rows, ours, theirs) in AHEAD.items():
            self.check(f"{name}_policy", rules, rows, ours)
            self.check(name, rules, rows, theirs if IS_TRITON else ours)


@needs_library("probe")
class Order(Arrivals):
    """Two instances, of which the second is done first."""

    @classmethod
    def models(cls, repository):
        for name, text in (("ordered", "preserve_ordering: true"), ("free", "")):
            cls.add(repository, name, Rules(instances=2), batching=text)

    def ask(self, model):
        answered = queue.Queue()
        self.held.add(model)
        self.gate(model, 0)
        for number in (1, 2):
            self.rpc.async_infer(model, self.tensors_of(Request(number)),
                                 lambda result, error: answered.put(error or int(result.as_numpy("OUTPUT0")[0][0])))
            self.wait_for_executions(model, number)
        self.gate(model, "0 1")
        return answered

    def test_who_is_done_first_leaves_first(self):
        answered = self.ask("free")
        self.assertEqual(answered.get(timeout=WAIT), 2)
        self.gate("free", OPEN)
        self.assertEqual(answered.get(timeout=WAIT), 1)

    def test_who_came_first_leaves_first(self):
        answered = self.ask("ordered")
        until(lambda: [event for event in self.record.events("Execute") if event.object.startswith("ordered:") and event.edge == "end"],
              "the end of an execution", WAIT)
        with self.assertRaises(queue.Empty):
            answered.get(timeout=0.2)
        self.gate("ordered", OPEN)
        self.assertCountEqual([answered.get(timeout=WAIT) for _ in range(2)], [1, 2])


if __name__ == "__main__":
    unittest.main()
