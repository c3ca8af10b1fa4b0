"""The balancers of docs/examples/scale: how each is started, and what it says of its servers."""

import contextlib
import http.client
import subprocess
import sys

from network import ADDRESSES, servers

EXAMPLES = servers.ROOT / "docs/examples/scale"


def start_balancer(kind, log):
    """The balancer's processes, with the files of docs/examples/scale as they stand."""
    commands = {
        "haproxy": [["haproxy", "-db", "-f", EXAMPLES / "haproxy.cfg"],
                    [sys.executable, EXAMPLES / "queue-agent", "--listen=127.0.0.1:8003", *(f"{address}:8002" for address in ADDRESSES)]],
        "placement": [["haproxy", "-db", "-f", EXAMPLES / "placement.cfg"]],
        "envoy": [["envoy", "-c", EXAMPLES / "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]],
    }[kind]
    return [subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT) for command in commands]


def haproxy_table():
    """What HAProxy says of each server of its HTTP backend: {name: row}."""
    connection = http.client.HTTPConnection("127.0.0.1", 8404, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/;csv")
        lines = connection.getresponse().read().decode().splitlines()
    names = lines[0].lstrip("# ").split(",")
    rows = [dict(zip(names, line.split(","))) for line in lines[1:]]
    return {row["svname"]: row for row in rows if row["pxname"] == "http-servers"}


def envoy_table():
    """The health flags of each host of Envoy's HTTP cluster: {name of the node: flags}."""
    connection = http.client.HTTPConnection("127.0.0.1", 9901, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/clusters")
        lines = connection.getresponse().read().decode().splitlines()
    flags = {line.split("::")[1].split(":")[0]: line.split("::")[3] for line in lines
             if line.startswith("http-servers::10.") and "::health_flags::" in line}
    return {f"conch-{ADDRESSES.index(address) + 1}": found for address, found in flags.items()}
