"""Host policies: instances of a policy run on the CPUs that it names, others where they would."""

import os
import pathlib
import unittest

from case import ServerCase, conch_only
from repository import Repository, identity
from server import Server

CPUS = sorted(os.sched_getaffinity(0))


def grouped(policy):
    config = identity()
    return config.replace("kind: KIND_CPU", f'kind: KIND_CPU host_policy: "{policy}"') if policy else config


def thread_cpus(pid, end_of_name):
    """The CPUs that the thread whose name ends so may use."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip().endswith(end_of_name):
            return sorted(os.sched_getaffinity(int(task.name)))
    raise AssertionError(f"no thread *{end_of_name}")


@conch_only
class HostPolicy(ServerCase):
    flags = (f"--host-policy=tight,cpu-cores={CPUS[-1]}-{CPUS[-1]}", "--host-policy=other,numa-node=0")

    @staticmethod
    def models(repository):
        repository.model("bound", grouped("tight")).model("free", grouped(""))

    def test_instances_run_where_their_policy_says(self):
        pid = self.server.process.pid
        self.assertEqual(thread_cpus(pid, "bound_0_0"), CPUS[-1:])
        self.assertIn(CPUS[0], thread_cpus(pid, "free_0_0"))
        for model in ("bound", "free"):
            self.assert_serves(model, shape=(4,))


@conch_only
class Refusals(unittest.TestCase):
    def test_a_value_that_cannot_be_one_fails_its_models(self):
        with Repository() as repository:
            repository.model("bound", grouped("tight")).model("free", grouped(""))
            server = Server(repository, "--host-policy=tight,cpu-cores=3", "--exit-on-error=false",
                            "--strict-readiness=false")
            try:
                status, _, reply = server.request("POST", "/v2/repository/index", b"", {})
                self.assertEqual(status, 200)
                self.assertIn(b"host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 3", reply)
                self.assertIn(b'{"name":"free","version":"1","state":"READY"}', reply)
            finally:
                server.kill()


if __name__ == "__main__":
    unittest.main()
