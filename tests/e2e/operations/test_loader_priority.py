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

    def look_while_it_loads(self, accept):
        """Looks at the niceness of all threads while the model is loaded and unloaded, until `accept` of what each showed last. A thread
        has its name before it has its niceness, and that of an instance may come as late as the loader ends: one look is not enough."""
        is_over, answers, seen = threading.Event(), [], {}

        def load():
            while not is_over.is_set():
                answers.extend(self.server.post_json(f"/v2/repository/models/slow/{what}", {})[0] for what in ("unload", "load"))

        def look():
            seen.update(niceness(self.server.pid))
            return seen

        thread = threading.Thread(target=load)
        thread.start()
        try:
            until(look, "the niceness of each thread", 60, accept)
        finally:
            is_over.set()
            thread.join()
            self.assertEqual(set(answers), {200})

    def check(self, lowered):
        # Of the main thread, which is called as the program.
        base = int(pathlib.Path(f"/proc/{self.server.pid}/task/{self.server.pid}/stat").read_text().rpartition(") ")[2].split()[16])
        loaders = {"control", "first_0_0", "slow_0_0", "load-0"}
        expected = {"timer", "watchdog", *loaders, *(f"shard-{number}" for number in range(len(CPUS)))}

        def is_right(seen):
            return expected <= seen.keys() and all(
                values == {min(base + lowered, 19) if name in loaders or name.startswith("load-") else base}
                for name, values in seen.items() if name != "unload")
        self.look_while_it_loads(is_right)


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
