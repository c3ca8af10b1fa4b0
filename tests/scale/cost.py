"""What a request costs a balancer of docs/examples/scale: requests per second and CPU per request, over three conch servers without
any work, in a closed loop of 32 connections with 64 bytes.

    cost.py haproxy|envoy

On a shared machine CPU per request is the figure to trust. scripts/test-scale starts it."""

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "perf"))
from balancers import start_balancer
from network import BRIDGE, Node, build_network, until
from repository import Repository, identity
from traffic import HttpClient

import bodies
import loading

SECONDS = 4
CONNECTIONS = 32
VALUES = 16


def cpu_seconds(processes):
    """CPU time of all threads of the processes, of the user and the system."""
    total = 0
    for process in processes:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def main():
    kind = sys.argv[1]
    build_network()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="conch-scale-"))
    with Repository() as repository, contextlib.ExitStack() as ends:
        repository.model("identity", identity(batch=0, count=1).replace("dims: [ -1 ]", f"dims: [ 1, {VALUES} ]"))
        nodes = []
        for number in (1, 2, 3):
            nodes.append(Node(number, repository, folder))
            ends.callback(nodes[-1].kill)
        balancer = start_balancer(kind, ends.enter_context(open(folder / f"{kind}.log", "wb")))
        for process in balancer:
            ends.callback(process.wait)
            ends.callback(process.kill)
        health = HttpClient(BRIDGE, "identity")

        def answers():
            with contextlib.suppress(OSError):
                health.connection.request("GET", "/v2/health/ready")
                answer = health.connection.getresponse()
                answer.read()
                return answer.status == 200
            health.connection.close()
            return False
        until(answers, f"{kind} answers", 30)
        for protocol, port, body in (("http", 8000, bodies.http_binary(VALUES)), ("grpc", 8001, bodies.grpc_binary(VALUES))):
            with loading.Load(f"{BRIDGE}:{port}", protocol, body, connections=CONNECTIONS) as load:
                load.run(1, [0])
                busy = cpu_seconds(balancer), cpu_seconds([node.process for node in nodes])
                report = load.run(SECONDS, [0])
                busy = cpu_seconds(balancer) - busy[0], cpu_seconds([node.process for node in nodes]) - busy[1]
            each = [1e6 * seconds / max(1, report["requests"]) for seconds in busy]
            print(f"| {kind} | {protocol} | {report['requests_per_second']:.0f} | {report['failed']} | {each[0]:.1f} | {each[1]:.1f} "
                  f"| {report['p50_us']:.0f} | {report['p99_us']:.0f} |", flush=True)
            if report["failed"]:
                sys.exit(f"failed: {report['reasons']}; logs: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
