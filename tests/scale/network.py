"""Three conch servers, each in a network namespace, behind a bridge in the namespace of this process.

The process is started in namespaces of its own (`unshare --net --mount`), so that all that is made here ends with it."""

import contextlib
import http.client
import pathlib
import re
import signal
import subprocess
import sys


sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import server as servers  # noqa: E402
from waiting import until  # noqa: E402

BRIDGE = "10.77.0.1"
ADDRESSES = ("10.77.0.11", "10.77.0.12", "10.77.0.13")
DRAIN_DELAY_S = 3


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def build_network():
    """A bridge here, and a namespace with one end of a cable for each address."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    if len(links.splitlines()) != 1:
        sys.exit("this is no fresh network namespace: run scripts/test-scale")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    pathlib.Path("/run/netns").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
    ip("link", "set", "lo", "up")
    ip("link", "add", "bridge", "type", "bridge")
    ip("address", "add", f"{BRIDGE}/24", "dev", "bridge")
    ip("link", "set", "bridge", "up")
    for number, address in enumerate(ADDRESSES, 1):
        name = f"conch-{number}"
        ip("netns", "add", name)
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", name, "master", "bridge", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")


class Node:
    """One conch server in its namespace, on the usual ports."""

    def __init__(self, number, repository, folder):
        self.name, self.address, self.repository = f"conch-{number}", ADDRESSES[number - 1], repository
        self.process = None
        self.log = open(folder / f"{self.name}.log", "ab")
        self.start()

    def start(self):
        command = [str(servers.built("conch")), f"--model-repository={self.repository}", f"--backend-directory={servers.backend_directory()}",
                   f"--http-address={self.address}", f"--grpc-address={self.address}", f"--metrics-address={self.address}",
                   f"--drain-delay-secs={DRAIN_DELAY_S}", "--shards=1", "--limit-wait-ms=0"]
        # `ip netns exec` becomes the server, so that its id is the server's.
        self.process = subprocess.Popen(["ip", "netns", "exec", self.name, *command], stdout=self.log, stderr=subprocess.STDOUT)
        until(lambda: self.get("/v2/health/ready") == 200, f"{self.name} is ready", 60)

    def get(self, path, port=8000):
        return self.read(path, port)[0]

    def read(self, path, port):
        connection = http.client.HTTPConnection(self.address, port, timeout=2)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        return None, ""

    def answered(self):
        """How many inferences it has answered in its life."""
        return sum(map(float, re.findall(r"^nv_inference_request_success\{.*\} (\S+)$", self.read("/metrics", 8002)[1], re.MULTILINE)))

    def waiting(self):
        return sum(map(float, re.findall(r"^conch_inference_pending_requests\{.*\} (\S+)$", self.read("/metrics", 8002)[1], re.MULTILINE)))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self):
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)
