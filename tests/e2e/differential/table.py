"""The whole table, and the rows that it ought to hit."""

import importlib
import pathlib
import pkgutil
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
TESTS = ROOT / "tests/compatibility.tsv"


def entries():
    """Every entry of every module here that has some, by world and name."""
    found = {}
    for module in sorted(module.name for module in pkgutil.iter_modules([str(HERE)])):
        loaded = importlib.import_module(f"{__package__}.{module}")
        for entry in getattr(loaded, "ENTRIES", ()):
            key = (entry.world, entry.name)
            if key in found:
                raise ValueError(f"two requests are called {entry.name} in the world {entry.world}")
            found[key] = entry
    return list(found.values())


def rows():
    """Every row, and the test that hits it in place of a request of the table, if one does."""
    wanted = {}
    for line in (HERE / "rows.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            row, *rest = line.split()
            wanted[row] = rest[1] if rest else None
    section = ""
    for line in (ROOT / "docs/COMPATIBILITY.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        match = re.match(r"\| ([a-z0-9/-]+) \|", line)
        if match and match[1] != "id" and section in ("HTTP", "gRPC"):
            # What no single request shows has its tests in that file.
            wanted[match[1]] = elsewhere(match[1])
    return wanted


# Features of a listener or of a connection: the tests that tests/compatibility.tsv names start servers of their own.
OF_LISTENERS = {"http-threads", "http-reuseport", "http-tls", "http-verbose", "http-disconnect-cancel", "grpc-cancel", "grpc-maxmsg", "grpc-tls",
                "grpc-mtls", "grpc-keepalive", "grpc-threads", "grpc-pool", "grpc-drain", "shm-inuse"}


def elsewhere(row):
    if row not in OF_LISTENERS:
        return None
    for line in TESTS.read_text().splitlines():
        name, *tests = line.split("\t")
        if name == row and tests:
            return tests[0]
    return TESTS.name


def missing():
    """Rows that no request hits, and rows of requests that nobody knows."""
    wanted = rows()
    hit = {row for entry in entries() for row in entry.rows}
    return sorted(row for row, other in wanted.items() if not other and row not in hit), sorted(hit - set(wanted))
