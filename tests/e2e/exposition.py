"""The text of a metrics page, as a collector reads it: parsed, and checked."""

import collections
import math
import re
import shutil
import subprocess
import unittest

needs_promtool = unittest.skipUnless(shutil.which("promtool"), "there is no promtool")
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Family:
    """What a page says of one family: its type, and its samples as (name, labels, value)."""

    def __init__(self, kind):
        self.kind, self.samples = kind, []


def families(text):
    """The families of a page, by name. Refuses what is no exposition: a sample without a head, a head that comes twice."""
    found, helps, current = collections.OrderedDict(), set(), None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helps, f"{name} has two heads"
            helps.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helps and name not in found, line
            found[name], current = Family(kind), name
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1].startswith(current), f"{line} is below {current}"
            found[current].samples.append((match[1], dict(LABEL.findall(match[2] or "")), float(match[3].replace("Nan", "nan"))))
    return found


def check_families(text):
    """The families of a page: each sample once, histograms that add up, counters of conch named as such."""
    found = families(text)
    for name, family in found.items():
        if family.kind == "histogram":
            check_histogram(name, family)
        if family.kind == "counter" and name.startswith("conch_"):
            assert name.endswith("_total"), name
        lines = collections.Counter((sample, tuple(sorted(labels.items()))) for sample, labels, _ in family.samples)
        assert set(lines.values()) <= {1}, (name, lines)
    return found


def check_histogram(name, family):
    buckets, counts = collections.defaultdict(list), {}
    for sample, labels, value in family.samples:
        bound = labels.get("le")
        key = tuple(sorted((label, text) for label, text in labels.items() if label != "le"))
        if sample == f"{name}_bucket":
            buckets[key].append((math.inf if bound == "+Inf" else float(bound), value))
        elif sample == f"{name}_count":
            counts[key] = value
    assert buckets.keys() == counts.keys(), name
    for key, rows in buckets.items():
        assert rows == sorted(rows), (name, rows)
        assert [value for _, value in rows] == sorted(value for _, value in rows), (name, rows)
        assert rows[-1] == (math.inf, counts[key]), (name, rows, counts[key])


def check_by_promtool(text):
    """What Prometheus itself says of the families of conch: nothing."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    # What it says of names of upstream and of backends stands: 3 is its code for that.
    assert done.returncode in (0, 3), said
    said = [line for line in said.splitlines() if line.startswith("conch_")]
    assert not said, said
