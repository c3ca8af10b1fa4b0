"""How readily the threads run that load models: where they share CPUs with network threads they give way, as the threads of instances do. What counts is
the niceness that the kernel shows, not how long anything takes."""

import os
import pathlib
import threading
import unittest

from case import ServerCase, conch_only, needs_library
from repository import identity
from waiting import until

# Two at most, so that network threads and the others share them on any machine.
CPUS = sorted(os.sched_getaffinity(0))[:2]

def niceness(pid):
    """The niceness of each thread, as a set by name; those that end meanwhile are left out."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name, fields = (task / "comm").read_text().strip(), (task / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        found.setdefault(name, set()).add(int(fields[16]))
    return found


class PriorityCase(ServerCase):
    launcher = ("taskset", "-c", ",".join(map(str, CPUS)))
    flags = ("--model-control-mode=explicit", "--load-model=first", f"--shards={len(CPUS)}")

    @staticmethod
    def models(repository):
        repository.model("first", identity())
        repository.model("slow", identity(parameters={"creation_delay_sec": "1"}))

    def while_it_loads(self):
        """The niceness of all threads in the middle of a load. It is loaded again and again, as a busy machine may not let this look in time."""
        is_over, answers = threading.Event(), []

        def load():
            while not is_over.is_set():
                answers.extend(self.server.post_json(f"/v2/repository/models/slow/{what}", {})[0] for what in ("unload", "load"))

        thread = threading.Thread(target=load)
        thread.start()
        try:
            return until(lambda: niceness(self.server.pid), "a thread that loads", 60,
                         lambda found: "control" in found and "slow_0_0" in found and any(name.startswith("load-") for name in found))
        finally:
            is_over.set()
            thread.join()
            self.assertEqual(set(answers), {200})

    def check(self, lowered):
        seen = self.while_it_loads()
        # Of the main thread, which is called as the program.
        base = int(pathlib.Path(f"/proc/{self.server.pid}/task/{self.server.pid}/stat").read_text().rpartition(") ")[2].split()[16])
        gives_way = {min(base + lowered, 19)}
        for name, values in seen.items():
            if name.startswith("load-") or name in ("control", "first_0_0", "slow_0_0"):
                self.assertEqual(values, gives_way, name)
            elif name != "unload":
                self.assertEqual(values, {base}, name)
        self.assertLessEqual({"timer", "watchdog", "control", "first_0_0", "slow_0_0", *(f"shard-{number}" for number in range(len(CPUS)))}, seen.keys())


@conch_only
@needs_library("identity")
class Lowered(PriorityCase):
    def test_loaders_give_way(self):
        self.check(5)


@conch_only
@needs_library("identity")
class Equal(PriorityCase):
    flags = (*PriorityCase.flags, "--lower-core-priority=false")

    def test_loaders_are_as_any_thread(self):
        self.check(0)


if __name__ == "__main__":
    unittest.main()
