"""How long a turn on a CPU the server's threads ask for."""

import ctypes
import os
import pathlib
import platform
import struct
import unittest

from case import ServerCase, conch_only
from repository import identity
from waiting import until

# sched_getattr.
NUMBER = {"x86_64": 315, "aarch64": 275}
# struct sched_attr, first version: size, policy, flags, nice, priority, runtime, deadline, period.
LAYOUT = struct.Struct("<IIQiIQQQ")


def turn_ns(thread):
    """The turn of a thread; 0 where the system does not tell."""
    buffer = ctypes.create_string_buffer(LAYOUT.size)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(NUMBER[platform.machine()], thread, buffer, LAYOUT.size, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return LAYOUT.unpack(buffer.raw)[5]


def turns_of(pid, name):
    """The turns of all threads of that name."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return {turn_ns(int(task.name)) for task in tasks if (task / "comm").read_text().strip() == name}


@conch_only
@unittest.skipUnless(platform.machine() in NUMBER, "no number of the system call for this machine")
class Turns(ServerCase):
    @staticmethod
    def models(repository):
        repository.model("identity", identity())

    def test_who_is_in_a_hurry_asks_for_short_ones(self):
        usual = turn_ns(0)
        if usual == 0:
            self.skipTest("this Linux has no turns of threads' own (6.12 has)")
        tasks = pathlib.Path(f"/proc/{self.server.pid}/task").iterdir()
        turns = {}
        for task in tasks:
            turns.setdefault((task / "comm").read_text().strip(), set()).add(turn_ns(int(task.name)))
        shards = [name for name in turns if name.startswith("shard-")]
        self.assertTrue(shards)
        # A thread has its name before it asks.
        until(lambda: all(turns_of(self.server.pid, name) - {usual} for name in shards), "turns of their own for all shards")
        turns.update({name: turns_of(self.server.pid, name) for name in shards})
        for name in shards:
            # Its runtime has a helper of that name, which is in no hurry.
            self.assertEqual(turns.pop(name) - {usual}, {100_000}, name)
        self.assertEqual(turns.pop("identity_0_0"), {500_000})
        # Shards wait for what is offloaded.
        for name in [name for name in turns if name.startswith("offload-")]:
            self.assertEqual(turns.pop(name), {500_000}, name)
        self.assertEqual(set().union(*turns.values()), {usual}, turns)
