"""What a server owes a backend: order, overlap and ownership of its calls, as the probe backend wrote them down under parallel load.

    python3 test_contract.py --server '<command>' --backends <folder with probe/libtriton_probe.so>
"""

import argparse
import collections
import os
import tempfile
import threading

import numpy as np
import tritonclient.grpc as grpc

from serving import Server, write_model

MODELS, INSTANCES, CLIENTS, REQUESTS = 4, 8, 16, 30
CONFIG = """
backend: "probe" max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] } ]
dynamic_batching { }
instance_group [ { count: %d kind: KIND_CPU } ]
parameters { key: "initialize_ms" value { string_value: "20" } }
parameters { key: "execute_ms" value { string_value: "3" } }
"""

Event = collections.namedtuple("Event", "number time thread edge call object detail")


def read(path):
    with open(path) as file:
        events = [Event(*line.rstrip("\n").split("\t")) for line in file]
    assert [int(event.number) for event in events] == list(range(len(events))), "more than one record in the file"
    return events


def model_of(name):
    return name.split("/")[0]


class Checker:
    """Walks through a record and collects what breaks the contract."""

    def __init__(self, is_parallel):
        self.is_parallel = is_parallel
        self.problems = []
        self.open_calls = {}  # thread -> calls in progress, outermost first
        self.live = {}  # object -> its parent
        self.attribute_calls, self.ready_calls = 0, 0
        self.initialized, self.finalized = collections.Counter(), collections.Counter()
        self.executing_threads = collections.defaultdict(set)
        self.executions_most, self.model_calls_most, self.instance_starts_most = 0, 0, 0
        self.request_count, self.failed_count = 0, 0

    def expect(self, condition, event, what):
        if not condition:
            self.problems.append(f"line {event.number}: {event.edge} {event.call} of {event.object}: {what}")

    def check(self, events):
        for event in events:
            (self.begin if event.edge == "begin" else self.end)(event)
        for thread, calls in self.open_calls.items():
            for call in calls:
                self.expect(False, call, f"never ended on {thread}")
        for name, parent in self.live.items():
            self.problems.append(f"{name} (of {parent}) was never finalised")
        return self.problems

    def running(self, *calls):
        return [call for stack in self.open_calls.values() for call in stack if call.call in calls]

    def begin(self, event):
        call, name = event.call, event.object
        if call == "Initialize":
            self.expect(not self.live, event, "there is a backend already")
        elif call == "Finalize":
            self.expect(set(self.live) == {name}, event, f"still alive: {sorted(self.live)}")
        elif call == "Attributes":
            self.expect(name in self.live, event, "before Initialize ended")
            self.attribute_calls += 1
        elif call == "ModelInitialize":
            self.expect(event.detail in self.live, event, f"its backend {event.detail} is not alive")
        elif call == "InstanceInitialize":
            self.expect(event.detail in self.live, event, f"its model {event.detail} is not alive")
        elif call in ("ModelFinalize", "InstanceFinalize", "Execute", "Ready"):
            self.expect(name in self.live, event, "not alive")
        if call == "ModelFinalize":
            self.expect(name not in [asked.object for asked in self.running("Ready")], event, "its readiness is being asked for")
            left = [other for other, parent in self.live.items() if parent == name]
            self.expect(not left, event, f"its instances are alive: {left}")
        # Serial: the backend with itself, a model with itself, an instance with itself.
        if call in ("Initialize", "Finalize", "Attributes"):
            self.expect(not self.running("Initialize", "Finalize", "Attributes"), event, "the backend is in another call")
        if call in ("ModelInitialize", "ModelFinalize"):
            same = [c for c in self.running("ModelInitialize", "ModelFinalize") if c.object.split("#")[0] == name.split("#")[0]]
            self.expect(not same, event, "the model is in another call")
        if call in ("InstanceInitialize", "InstanceFinalize", "Execute"):
            same = [c for c in self.running("InstanceInitialize", "InstanceFinalize", "Execute") if c.object == name]
            self.expect(not same, event, "the instance is in another call")
        if call == "InstanceInitialize" and not self.is_parallel:
            same = [c for c in self.running(call) if model_of(c.object) == model_of(name)]
            self.expect(not same, event, f"another instance of the model is starting: {[c.object for c in same]}")
        if call == "Ready":
            self.ready_calls += 1
        if call == "Execute":
            self.executing_threads[name].add(event.thread)
            self.request_count += int(event.detail.split("=")[1])

        self.open_calls.setdefault(event.thread, []).append(event)
        self.executions_most = max(self.executions_most, len(self.running("Execute")))
        self.model_calls_most = max(self.model_calls_most, len(self.running("ModelInitialize", "ModelFinalize")))
        starts = collections.Counter(model_of(c.object) for c in self.running("InstanceInitialize"))
        self.instance_starts_most = max([self.instance_starts_most, *starts.values()])

    def end(self, event):
        calls = self.open_calls.get(event.thread, [])
        matches = calls and (calls[-1].call, calls[-1].object) == (event.call, event.object)
        self.expect(matches, event, "ended on another thread, or not in order")
        if matches:
            calls.pop()
        if event.call == "Execute":
            self.failed_count += event.edge == "fail"
        if event.call in ("Initialize", "ModelInitialize", "InstanceInitialize") and event.edge == "end":
            self.initialized[event.call] += 1
            self.live[event.object] = event.detail
        if event.call in ("Finalize", "ModelFinalize", "InstanceFinalize"):
            self.finalized[event.call] += 1
            self.live.pop(event.object, None)


def check_checker():
    """The checker must find faults, or it would be no test."""
    def lines(*rows):
        return [Event(str(i), "0", thread, edge, call, name, detail) for i, (thread, edge, call, name, detail) in enumerate(rows)]

    start = [("1", "begin", "Initialize", "b", ""), ("1", "end", "Initialize", "b", ""),
             ("1", "begin", "ModelInitialize", "m:1#0", "b"), ("1", "end", "ModelInitialize", "m:1#0", "b"),
             ("1", "begin", "InstanceInitialize", "m:1#0/0", "m:1#0"), ("1", "end", "InstanceInitialize", "m:1#0/0", "m:1#0")]
    stop = [("1", "begin", "InstanceFinalize", "m:1#0/0", ""), ("1", "end", "InstanceFinalize", "m:1#0/0", ""),
            ("1", "begin", "ModelFinalize", "m:1#0", ""), ("1", "end", "ModelFinalize", "m:1#0", ""),
            ("1", "begin", "Finalize", "b", ""), ("1", "end", "Finalize", "b", "")]
    run = lambda thread, edge: (thread, edge, "Execute", "m:1#0/0", "requests=1")
    assert Checker(False).check(lines(*start, run("2", "begin"), run("2", "end"), *stop)) == []
    faults = {
        "overlapping executions": [*start, run("2", "begin"), run("3", "begin"), run("2", "end"), run("3", "end"), *stop],
        "another thread ends": [*start, run("2", "begin"), run("3", "end"), *stop],
        "never ended": [*start, run("2", "begin"), *stop],
        "asked after its end": [*start, *stop[:4], ("2", "begin", "Ready", "m:1#0", ""), ("2", "end", "Ready", "m:1#0", ""), *stop[4:]],
        "finalised while it is asked": [*start, *stop[:2], ("2", "begin", "Ready", "m:1#0", ""), *stop[2:4],
                                        ("2", "end", "Ready", "m:1#0", ""), *stop[4:]],
        "executed after its end": [*start, *stop[:2], run("2", "begin"), run("2", "end"), *stop[2:]],
        "finalised while executing": [*start, run("2", "begin"), *stop[:1], run("2", "end"), *stop[1:]],
        "model before its instance": [*start, *stop[2:4], *stop[:2], *stop[4:]],
        "backend before its model": [*start, *stop[:2], *stop[4:], *stop[2:4]],
        "never finalised": start,
        "second backend": [*start, ("1", "begin", "Initialize", "c", ""), ("1", "end", "Initialize", "c", ""), *stop],
    }
    second = [("2", edge, "InstanceInitialize", "m:1#0/1", "m:1#0") for edge in ("begin", "end")]
    ended = [("2", edge, "InstanceFinalize", "m:1#0/1", "") for edge in ("begin", "end")]
    parallel = [*start[:5], *second, start[5], *ended, *stop]
    faults["instances starting together"] = parallel
    for name, rows in faults.items():
        assert Checker(False).check(lines(*rows)), f"the checker does not see: {name}"
    assert Checker(True).check(lines(*parallel)) == []


def load(address):
    """Parallel callers over all models; every tenth request makes its execution fail, and one caller keeps asking whether the models
    are ready. Returns requests answered and failed."""
    over = threading.Event()
    answered, failed, wrong = collections.Counter(), collections.Counter(), []

    def run(seed):
        client = grpc.InferenceServerClient(address)
        for index in range(REQUESTS):
            is_bad = index % 10 == 9
            data = np.full((1, 4), -1 if is_bad else seed * 1000 + index, dtype=np.int32)
            tensor = grpc.InferInput("INPUT0", [1, 4], "INT32")
            tensor.set_data_from_numpy(data)
            try:
                result = client.infer(f"probe{(seed + index) % MODELS}", [tensor]).as_numpy("OUTPUT0")
                answered[seed] += 1
                if is_bad or not np.array_equal(result, data):
                    wrong.append(f"caller {seed}, request {index}: {result}")
            except grpc.InferenceServerException as error:
                failed[seed] += 1
                # A good request may share a batch with a bad one.
                if "probe: ordered to fail" not in str(error):
                    wrong.append(f"caller {seed}, request {index}: {error}")

    def ask():
        client = grpc.InferenceServerClient(address)
        while not over.is_set():
            for index in range(MODELS):
                if not client.is_model_ready(f"probe{index}"):
                    wrong.append(f"model {index} is not ready")

    asker = threading.Thread(target=ask)
    asker.start()
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    asker.join()
    assert not wrong, wrong[:5]
    return sum(answered.values()), sum(failed.values())


def check_server(command, backends, is_parallel):
    with tempfile.TemporaryDirectory() as folder:
        repository, record = os.path.join(folder, "models"), os.path.join(folder, "record")
        for index in range(MODELS):
            write_model(repository, f"probe{index}", CONFIG % INSTANCES)
        options = [f"--backend-config=probe,record={record}"]
        if is_parallel:
            options.append("--backend-config=probe,parallel-instances=true")
        with Server(command, repository, backends, options) as server:
            answered, failed = load(server.grpc)
        checker = Checker(is_parallel)
        problems = checker.check(read(record))
    assert not problems, "\n".join(problems[:20])
    assert checker.initialized == {"Initialize": 1, "ModelInitialize": MODELS, "InstanceInitialize": MODELS * INSTANCES}, checker.initialized
    assert checker.finalized == {"Finalize": 1, "ModelFinalize": MODELS, "InstanceFinalize": MODELS * INSTANCES}, checker.finalized
    assert checker.attribute_calls <= 1
    assert answered + failed == CLIENTS * REQUESTS
    assert failed >= CLIENTS * (REQUESTS // 10) and checker.failed_count > 0
    # Each request was executed exactly once, whether that failed or not.
    assert checker.request_count == CLIENTS * REQUESTS, checker.request_count
    assert checker.executions_most > 1, "instances never executed at the same time"
    threads = max(len(threads) for threads in checker.executing_threads.values())
    assert threads == 1, f"an instance executed on {threads} threads"
    print(
        f"contract (instances start {'together' if is_parallel else 'in turn'}): ok; {answered} answered, {failed} failed; at most "
        f"{checker.executions_most} executions, {checker.model_calls_most} model calls, {checker.instance_starts_most} instance starts "
        f"of one model at a time; readiness asked {checker.ready_calls} times", flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--backends", required=True)
    arguments = parser.parse_args()
    check_checker()
    for is_parallel in (False, True):
        check_server(arguments.server, arguments.backends, is_parallel)


if __name__ == "__main__":
    main()
