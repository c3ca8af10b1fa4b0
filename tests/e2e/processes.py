"""What the system tells of a process: its threads and its children."""

import contextlib
import pathlib

# A thread or a process that has just ended.
GONE = FileNotFoundError, ProcessLookupError


def threads_of(pid):
    """Pairs of the id and the name of each thread."""
    for task in tasks_of(pid):
        with contextlib.suppress(*GONE):
            yield int(task.name), (task / "comm").read_text().strip()


def children_of(pid):
    """The ids of the processes that it started and that are there."""
    found = set()
    for task in tasks_of(pid):
        with contextlib.suppress(*GONE):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def tasks_of(pid):
    return pathlib.Path(f"/proc/{pid}/task").iterdir()


def is_running(pid):
    """Whether the process is there and has not ended; one that nobody has waited for has."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except GONE:
        return False
