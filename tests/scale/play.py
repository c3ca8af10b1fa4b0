"""One balancer over three conch servers under traffic, while servers are loaded, slowed, stopped, killed, drained and restarted.

    play.py haproxy|envoy|placement

`placement` is HAProxy over servers of which two have one model and one another one. Prints a row per phase; the exit code is 0 if
no request failed, each server had its part, and the balancer did what its configuration says. scripts/test-scale starts it."""

import contextlib
import http.client
import pathlib
import shutil
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from balancers import envoy_table, haproxy_table, start_balancer
from network import BRIDGE, Node, build_network, until
from repository import Repository, identity
from traffic import HttpClient, Traffic

# An execution takes long enough for queues to be there with a dozen clients.
EXECUTION_MS = "10"
FLOOD_CLIENTS = 24


class Run:
    """The phases, and what they found."""

    def __init__(self, kind, nodes):
        self.kind, self.nodes, self.traffic, self.complaints = kind, nodes, None, []

    def is_up(self, node):
        if self.kind == "haproxy":
            return haproxy_table()[node.name]["status"].startswith("UP")
        return envoy_table()[node.name] == "healthy"

    def wait_until(self, node, up):
        until(lambda: self.is_up(node) == up, f"{node.name} is {'up' if up else 'down'} for {self.kind}", 60)

    @contextlib.contextmanager
    def phase(self, name):
        """Prints what happened to the traffic meanwhile. The counts of servers that restart begin anew, so they are counted apart."""
        before = {node.name: node.answered() for node in self.nodes}
        self.traffic.take()
        began = time.monotonic()
        yield
        counts, failures, latencies = self.traffic.take()
        seconds = time.monotonic() - began
        parts = {node.name: node.answered() for node in self.nodes}
        parts = {node: count - before[node] if count >= before[node] else count for node, count in parts.items()}
        quantile = [latencies[min(len(latencies) - 1, int(len(latencies) * q))] * 1000 for q in (0.5, 0.99)] if latencies else [0, 0]
        print(f"| {self.kind} | {name} | {counts.get('HTTP', 0)} | {counts.get('gRPC', 0)} | {len(failures)} | {quantile[0]:.0f} | {quantile[1]:.0f} "
              f"| {max(latencies, default=0) * 1000:.0f} | {', '.join(f'{int(part)}' for part in parts.values())} | {seconds:.0f} |", flush=True)
        self.complaints += [f"{name}: {failure}" for failure in failures[:5]]
        for protocol in ("HTTP", "gRPC"):
            self.expect(counts.get(protocol, 0) > 0, f"{name}: no request over {protocol}")
        self.parts = parts

    def expect(self, condition, complaint):
        if not condition:
            self.complaints.append(complaint)

    def place(self):
        """Each model is asked alone, so that whoever answers has it."""
        for model, holders in (("m", {"conch-1", "conch-2"}), ("n", {"conch-3"})):
            with Traffic(BRIDGE, model) as self.traffic, self.phase(f"the model {model}"):
                time.sleep(3)  # the test itself
            answering = {node for node, count in self.parts.items() if count}
            self.expect(answering == holders, f"{model} was answered by {answering}")

    def play(self):
        with Traffic(BRIDGE, "m") as self.traffic:
            self.play_phases()

    def play_phases(self):
        first, second, third = self.nodes
        with self.phase("steady"):
            time.sleep(4)  # the test itself
        self.expect(min(self.parts.values()) > 0.15 * sum(self.parts.values()), f"steady: a server had less than its part: {self.parts}")

        if self.kind == "haproxy":
            with self.phase("a queue from elsewhere on conch-1"), flood(first):
                until(lambda: int(haproxy_table()["conch-1"]["weight"]) <= 60, "the weight of conch-1 has fallen", 30)
                time.sleep(2)  # the test itself
            until(lambda: int(haproxy_table()["conch-1"]["weight"]) == 100, "the weight of conch-1 is whole again", 30)

        with self.phase("conch-2 is slow"), slowed(second):
            time.sleep(6)  # the test itself
        self.expect(self.parts["conch-2"] < min(self.parts["conch-1"], self.parts["conch-3"]), f"slow: the slow server had as much: {self.parts}")
        self.wait_until(second, True)

        with self.phase("conch-2 stops, and goes on"):
            second.stop()
            self.wait_until(second, False)
            time.sleep(3)  # the test itself: the others have all requests
            second.go_on()
            self.wait_until(second, True)
            time.sleep(1)

        with self.phase("conch-3 is killed, and restarted"):
            third.kill()
            self.wait_until(third, False)
            time.sleep(1)
            third.start()
            self.wait_until(third, True)
            time.sleep(1)
        self.expect(self.parts["conch-3"] > 0, "the restarted server has no part")

        with self.phase("conch-1 drains, and is restarted"):
            self.expect(first.drain() == 0, "the drained server did not end with code 0")
            first.start()
            self.wait_until(first, True)
            time.sleep(1)
        self.expect(self.parts["conch-1"] > 0, "the restarted server has no part")

        with self.phase("all drain, one after the other"):
            for node in self.nodes:
                self.expect(node.drain() == 0, f"{node.name} did not end with code 0")
                node.start()
                self.wait_until(node, True)


@contextlib.contextmanager
def flood(node):
    """Clients that go past the balancer, to one server, until its queue is long."""
    is_over = threading.Event()

    def ask():
        client = HttpClient(node.address, "m")
        while not is_over.is_set():
            client(1.0)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(FLOOD_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: node.waiting() > FLOOD_CLIENTS / 4, f"requests wait on {node.name}", 30)
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30)


@contextlib.contextmanager
def slowed(node):
    """The server is stopped for four fifths of the time, in pieces that no health check notices."""
    is_over = threading.Event()

    def stop_and_go():
        while not is_over.is_set():
            node.stop()
            time.sleep(0.12)
            node.go_on()
            time.sleep(0.03)

    thread = threading.Thread(target=stop_and_go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        node.go_on()


def main():
    kind = sys.argv[1]
    build_network()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-scale-"))
    with contextlib.ExitStack() as ends:
        nodes = []
        for number in (1, 2, 3):
            repository = ends.enter_context(Repository())
            # Batches of one, two at a time: what is more waits.
            name = "n" if kind == "placement" and number == 3 else "m"
            repository.model(name, identity(batch=1, count=2, parameters={"execute_delay_ms": EXECUTION_MS}))
            nodes.append(Node(number, repository, folder))
            ends.callback(nodes[-1].kill)
        balancer = start_balancer(kind, ends.enter_context(open(folder / f"{kind}.log", "wb")))
        for process in balancer:
            ends.callback(process.wait)
            ends.callback(process.kill)
        client = HttpClient(BRIDGE, "m")

        def answers():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                return client(1.0) == 1.0
        until(answers, f"{kind} answers", 30)
        print("| balancer | phase | HTTP | gRPC | failed | p50 ms | p99 ms | longest ms | answered by 1, 2, 3 | s |\n|---|---|---|---|---|---|---|---|---|---|")
        run = Run(kind, nodes)
        run.place() if kind == "placement" else run.play()
        if dead := [process.args for process in balancer if process.poll() is not None]:
            run.complaints.append(f"{dead} ended")
    if run.complaints:
        print("\n".join(["", *run.complaints, f"logs: {folder}"]))
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
