"""What tests that use the probe backend share: its models' configuration, and its record of how the server called it."""

import collections
import pathlib
import tempfile

from case import ServerCase
from repository import tensors
from waiting import until

Event = collections.namedtuple("Event", "number time thread edge call object detail")


def probe(batch=0, count=1, extra="", **parameters):
    """The configuration of a probe model: OUTPUT0 is INPUT0, INT32 [4]."""
    text = f'backend: "probe"\nmax_batch_size: {batch}\n'
    text += tensors("input", [("INPUT0", "INT32", (4,))]) + tensors("output", [("OUTPUT0", "INT32", (4,))])
    text += f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"
    for key, value in parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text + extra


class Record:
    """A directory with the record, and room for the files that order what the readiness hook does."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="conch-probe-")
        self.folder = pathlib.Path(self._directory.name)
        self.path = self.folder / "record"
        self.flag = f"--backend-config=probe,record={self.path}"

    def close(self):
        self._directory.cleanup()

    def events(self, *calls):
        """What was written down, of these calls."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [event for event in (Event(*line.split("\t")) for line in lines if line.count("\t") == 6) if event.call in calls]

    def wait_for(self, count, edge, call, within=10):
        """Waits until a call has begun or ended that often, and returns these lines."""
        return until(lambda: [event for event in self.events(call) if event.edge == edge], f"{count} times {edge} {call}", within,
                     lambda found: len(found) >= count)


class ProbeCase(ServerCase):
    """A server whose probe backend writes down how it is called."""

    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = (*cls.flags, cls.record.flag)
        super().setUpClass()
