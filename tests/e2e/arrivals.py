"""Scripts of arrivals for the dynamic batcher: the rules by which batches form, said once more and plainly, and what plays a script to a server.

A script is a list of requests and of `GO`, which lets the execution go that began first of those that are held. The order of both decides
what the batches are, no clock does: a delay is longer than a test or has passed at once, and so has a timeout.
"""

import dataclasses
import random

GO = "go"
LONG, SHORT = "long", "short"


@dataclasses.dataclass(frozen=True)
class Request:
    """`level` as sent, 0 for none; `is_brief`: it asks for a timeout that has passed by the next `GO`; `width`: the length of a row;
    `is_full`: it has the optional input, too."""

    number: int
    rows: int = 1
    level: int = 0
    is_brief: bool = False
    width: int = 4
    is_full: bool = False


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a model's configuration says of its batches."""

    batch: int = 8
    preferred: tuple = ()
    delay: str = ""
    levels: int = 0
    default_level: int = 0
    bounds: dict = dataclasses.field(default_factory=dict)
    """By level, what may wait; 0 is the level of a model without levels."""
    late: str = ""
    """What becomes of brief requests: REJECT, DELAY, or nothing."""
    late_levels: tuple = ()
    """Levels of which every request is brief."""
    is_dynamic: bool = True
    has_equal_shapes: bool = False
    instances: int = 1

    def level(self, request):
        if not self.levels:
            return 0
        return request.level if 1 <= request.level <= self.levels else self.default_level

    def is_late(self, request):
        return bool(self.late) and (request.is_brief or self.level(request) in self.late_levels)

    def fits(self, first, request):
        return not self.has_equal_shapes or (first.width, first.is_full) == (request.width, request.is_full)

    def batch_of(self, waiting):
        """What an instance that is free now executes of what waits, in order; none if it is to wait for more."""
        if not self.is_dynamic:
            return waiting[:1]
        if self.late == "REJECT":
            waiting = [request for request in waiting if not self.is_late(request)]
        # Who is late comes behind the others of its level.
        waiting = sorted(waiting, key=lambda request: (self.level(request), self.is_late(request)))
        batch_max = max(self.batch, 1)
        preferred = self.preferred or (batch_max,)
        batch, size, cut, is_full = [], 0, None, False
        for request in waiting:
            grown = size + request.rows
            if batch:
                if grown > max(preferred) and cut is None:
                    cut = len(batch)
                if grown > batch_max or not self.fits(batch[0], request):
                    is_full = True
                    break
            batch.append(request)
            size = grown
            if size in preferred:
                cut = len(batch)
        if cut is not None and self.delay != SHORT:
            return batch[:cut]
        if self.delay == LONG and not is_full and size < max(preferred):
            return []
        return batch


class Reference:
    """What a server is to do with a script."""

    def __init__(self, rules):
        self.rules, self.waiting, self.busy = rules, [], 0
        self.batches, self.refused = [], []

    def send(self, request):
        level = self.rules.level(request)
        bound = self.rules.bounds.get(level, 0)
        if bound and sum(self.rules.level(other) == level for other in self.waiting) >= bound:
            self.refused.append(request.number)
            return
        self.waiting.append(request)
        self._settle(False)

    def go(self):
        self.busy -= 1
        self._settle(True)

    def _settle(self, has_waited):
        if has_waited and self.rules.late == "REJECT":
            self.refused += [request.number for request in self.waiting if self.rules.is_late(request)]
            self.waiting = [request for request in self.waiting if not self.rules.is_late(request)]
        while self.busy < self.rules.instances and (batch := self.rules.batch_of(self.waiting)):
            self.waiting = [request for request in self.waiting if request not in batch]
            self.batches.append([request.number for request in batch])
            self.busy += 1

    def is_idle(self):
        return self.busy < self.rules.instances

    def missing(self):
        """The rows without which what waits would wait for ever."""
        return max(self.rules.preferred or (self.rules.batch,)) - sum(request.rows for request in self.waiting)


def drawn(rules, seed, rows=1, count=24, widths=(4,), is_optional=False):
    """A random script: bursts of arrivals and executions let go, until nothing is left."""
    chance = random.Random(f"{rules} {seed}")
    reference, script = Reference(rules), []

    def send(**more):
        request = Request(len([step for step in script if step != GO]) + 1, **more)
        script.append(request)
        reference.send(request)

    def any_request():
        return {"rows": chance.randint(1, rows), "level": chance.choice([0, *range(1, rules.levels + 1), 99]) if rules.levels else 0,
                "width": chance.choice(widths), "is_full": is_optional and chance.random() < 0.5}

    while len(script) < count:
        if reference.busy and chance.random() < 0.3:
            script.append(GO)
            reference.go()
        elif reference.is_idle():
            # Who finds an instance free is not late.
            more = any_request()
            if rules.late_levels:
                more["level"] = chance.choice([level for level in range(1, rules.levels + 1) if level not in rules.late_levels])
            send(**more)
        else:
            for _ in range(chance.randint(1, 9)):
                send(**any_request(), is_brief=bool(rules.late) and not rules.late_levels and chance.random() < 0.4)
    while reference.busy or reference.waiting:
        if reference.busy:
            script.append(GO)
            reference.go()
        else:
            first = reference.waiting[0]
            send(rows=reference.missing(), width=first.width, is_full=first.is_full)
    return script


class Tail:
    """The executions that the probe's record tells of, read as it grows."""

    def __init__(self, path):
        self.path, self.offset, self.rest, self.found = path, 0, "", {}

    def executions(self, model):
        """The batches of a model, in the order in which they began: the details of its rows."""
        if self.path.exists():
            with self.path.open() as file:
                file.seek(self.offset)
                *lines, self.rest = (self.rest + file.read()).split("\n")
                self.offset = file.tell()
            for fields in (line.split("\t") for line in lines):
                if fields[3:5] == ["end", "Rows"]:
                    self.found.setdefault(fields[5].partition(":")[0], []).append(fields[6])
        return self.found.get(model, [])
