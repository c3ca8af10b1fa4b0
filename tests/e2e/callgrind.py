"""Counts what a server executes: instructions and calls of functions, under valgrind's callgrind."""

import collections
import contextlib
import glob
import os
import pathlib
import re
import subprocess

# A name has a number; its text comes with the first use of the number.
NAME = re.compile(r"\((\d+)\)(?: (.*))?")


class Profile:
    """What was executed between two moments."""

    def __init__(self, text):
        self.instruction_count = int(re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)[1])
        # How often each function was called.
        self.call_counts = collections.Counter()
        names, called = {}, None
        for line in text.splitlines():
            key, _, value = line.partition("=")
            if key in ("fn", "cfn"):
                number, name = NAME.fullmatch(value).groups()
                if name:
                    names[number] = name
                called = number if key == "cfn" else None
            elif key == "calls":
                self.call_counts[names[called]] += int(value.split()[0])

    def call_count(self, pattern):
        """Calls of all functions whose whole name matches."""
        return sum(count for name, count in self.call_counts.items() if re.fullmatch(pattern, name))


class Callgrind:
    """Counts for servers that are started with `prefix`. Their files go to `folder`, which is the caller's to remove."""

    def __init__(self, folder):
        self.out = f"{folder}/callgrind"
        library = f"{folder}/poll_ring.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, pathlib.Path(__file__).with_name("poll_ring.c")], check=True)
        self.prefix = ("env", f"LD_PRELOAD={library}", "taskset", "--cpu-list", str(min(os.sched_getaffinity(0))),
                       "valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.out}")

    def control(self, server, *words):
        subprocess.run(["callgrind_control", *words, str(server.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @contextlib.contextmanager
    def counting(self, server, profiles):
        """Appends the profile of what the server executes meanwhile to `profiles`."""
        self.control(server, "-z")
        self.control(server, "-i", "on")
        yield
        self.control(server, "-d")
        self.control(server, "-i", "off")
        made = pathlib.Path(max(glob.glob(f"{self.out}*"), key=os.path.getmtime))
        profiles.append(Profile(made.read_text(errors="replace")))
        made.unlink()
