"""On which CPUs shards run, alone and beside others that want the same CPU. What counts is the mask that the kernel shows, not how long anything takes."""

import os
import pathlib
import re
import subprocess
import sys
import threading

from case import ServerCase, conch_only
from repository import identity
from waiting import until

WARNING = re.compile(r"requests are delayed: network thread \d+ waited \d+ of \d+ ms for CPU (\d+)")


def cpus(text):
    """`0-1,3` as a set."""
    ranges = (part.split("-") for part in text.split(","))
    return {cpu for bounds in ranges for cpu in range(int(bounds[0]), int(bounds[-1]) + 1)}


def mask(task):
    return cpus(re.search(r"^Cpus_allowed_list:\s*(\S+)", (task / "status").read_text(), re.MULTILINE)[1])


def named(server, prefix):
    """The threads whose names begin with `prefix`."""
    tasks = pathlib.Path(f"/proc/{server.pid}/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().startswith(prefix)]


class AffinityCase(ServerCase):
    flags = ("--shards=1",)

    @staticmethod
    def models(repository):
        repository.model("identity", identity())

    def setUp(self):
        self.all = os.sched_getaffinity(self.server.pid)
        if len(self.all) < 2:
            self.skipTest("there is only one CPU")
        # The runtime has a thread beside it, which is called the same and does nothing.
        self.shard = min(named(self.server, "shard-0"), key=lambda task: int(task.name))

    def neighbours(self, cpu, count=3):
        """Busy processes on `cpu`; returns how to end them."""
        loops = [subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"]) for _ in range(count)]

        def end():
            for loop in loops:
                loop.kill()
                loop.wait()

        self.addCleanup(end)
        return end

    def keep_busy(self):
        """Asks for as much as the shard serves, until the end of the test."""
        is_over = threading.Event()

        def ask():
            while not is_over.is_set():
                self.server.get("/v2/health/ready")

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()

        def end():
            is_over.set()
            for thread in threads:
                thread.join()

        self.addCleanup(end)
        return end

    def wait_for_mask(self, expected, within=60):
        until(lambda: mask(self.shard), lambda: f"the shard's CPUs should be {expected}; {(self.shard / 'schedstat').read_text()}\n"
              f"{self.server.output[-2000:]}", within, lambda found: found == expected)

    def warnings(self):
        return [line for line in self.server.lines if WARNING.search(line)]


@conch_only
class Auto(AffinityCase):
    environment = {"CONCH_SHARD_CALM_MS": "1500"}

    def test_a_starving_shard_is_widened_and_comes_home(self):
        # Other load on this machine may have widened it already.
        self.wait_for_mask({min(self.all)}, within=120)
        [home] = mask(self.shard)
        end_neighbours, end_requests = self.neighbours(home), self.keep_busy()
        self.wait_for_mask(self.all)
        until(self.warnings, "a warning")
        end_neighbours()
        end_requests()
        self.wait_for_mask({home}, within=240)
        # A second time, with nothing more said.
        end_neighbours, end_requests = self.neighbours(home), self.keep_busy()
        self.wait_for_mask(self.all)
        end_neighbours()
        end_requests()
        [warning] = self.warnings()
        self.assertIn(f"for CPU {home}, which other processes or the models of this server keep busy. It may run on CPUs", warning)
        for advice in ("a cpuset, taskset", "--shards", "--shard-affinity=set"):
            self.assertIn(advice, warning)

    def test_only_shards_are_confined(self):
        """What takes long, and what loads models, may run anywhere."""
        for name in ("offload-0", "offload-big-0", "accept-http", "watchdog"):
            [task] = named(self.server, name)
            self.assertEqual(mask(task), self.all, name)
        self.assertEqual(named(self.server, "tls-"), [])


@conch_only
class Pinned(AffinityCase):
    flags = ("--shards=1", "--shard-affinity=pinned")

    def test_it_stays_and_says_so(self):
        [home] = mask(self.shard)
        self.neighbours(home)
        self.keep_busy()
        [warning] = until(self.warnings, "a warning", 60)
        self.assertIn("and it may not run elsewhere", warning)
        self.assertEqual(mask(self.shard), {home})


@conch_only
class Set(AffinityCase):
    flags = ("--shards=1", "--shard-affinity=set")

    def test_it_may_run_anywhere(self):
        self.assertEqual(mask(self.shard), self.all)
        self.assertEqual(self.server.get("/v2/health/ready")[0], 200)
