"""Every request of the table in `differential/`, sent to conch and to the real Triton: the answers are the same, but for the
differences in `differential/differences.toml`."""

import contextlib
import fnmatch
import pathlib
import re
import subprocess
import tomllib
import unittest

import server as servers
from case import IS_TRITON, needs_peer
from differential import table
from differential.entry import Side
from differential.worlds import WORLDS
from repository import Repository

DIFFERENCES = pathlib.Path(__file__).resolve().parents[1] / "differential/differences.toml"
ENTRIES = table.entries()


def start(world, kind, repository):
    own = world.conch if kind == "conch" else world.triton
    key = {"key": "value"} if world.is_restricted else None
    return servers.Server(repository.path, *world.flags, *own, kind=kind, ready_headers=key)


class Accepted:
    """One difference that is meant."""

    def __init__(self, request, row, why, paths, conch=".*"):
        self.request, self.row, self.why, self.paths, self.conch = request, row, why, paths, re.compile(conch, re.DOTALL)
        self.is_used = False

    def covers(self, name, path, mine):
        covered = (any(fnmatch.fnmatchcase(name, glob) for glob in self.request)
                   and any(fnmatch.fnmatchcase(path.replace("[", "("), glob.replace("[", "(")) for glob in self.paths)
                   and self.conch.fullmatch(str(mine)) is not None)
        self.is_used |= covered
        return covered


def accepted():
    rows = table.rows()
    for row in tomllib.loads(DIFFERENCES.read_text())["difference"]:
        request = row["request"] if isinstance(row["request"], list) else [row["request"]]
        paths = row["paths"] if isinstance(row["paths"], list) else [row["paths"]]
        if row["row"] not in rows and not row["row"].startswith("feature "):
            raise ValueError(f"{row['row']} is no row")
        yield Accepted(request, row["row"], row["why"], paths, row.get("conch", ".*"))


class World(unittest.TestCase):
    """Both servers of one world; the tests are made below."""

    world = None

    @classmethod
    def setUpClass(cls):
        if cls.world is None:
            raise unittest.SkipTest("has no requests itself")
        cls.accepted = list(accepted())
        cls.tried = 0
        cls.sides = {}
        for kind in ("conch", "triton"):
            cls.restart(kind)

    @classmethod
    def restart(cls, kind):
        """A server, in a repository of its own: loads may write beside models."""
        if kind in cls.sides:
            cls.sides[kind].close()
            cls.sides[kind].server.kill()
        repository = Repository()
        cls.addClassCleanup(repository.close)
        WORLDS[cls.world].models(repository)
        server = start(WORLDS[cls.world], kind, repository)
        cls.addClassCleanup(server.kill)
        cls.sides[kind] = Side(server)

    @classmethod
    def tearDownClass(cls):
        for side in cls.sides.values():
            side.close()
        if cls.sides["conch"].server.terminate() != 0:
            raise AssertionError(f"conch did not end well\n{cls.sides['conch'].server.output[-4000:]}")
        if cls.tried == sum(entry.world == cls.world for entry in ENTRIES):
            unused = [one for one in cls.accepted if not one.is_used and any(
                fnmatch.fnmatchcase(f"{entry.world}.{entry.name}", glob)
                for entry in ENTRIES if entry.world == cls.world for glob in one.request) and cls.only_here(one)]
            if unused:
                raise AssertionError("differences that no answer needs any more:\n" + "\n".join(
                    f"{one.request} {one.paths} ({one.row})" for one in unused))

    @classmethod
    def only_here(cls, one):
        """Whether all requests that the difference could be about are of this world: else another one may need it."""
        return not any(fnmatch.fnmatchcase(f"{entry.world}.{entry.name}", glob)
                       for entry in ENTRIES if entry.world != cls.world for glob in one.request)

    def compare(self, entry):
        type(self).tried += 1
        answers = {}
        for kind, side in self.sides.items():
            answers[kind] = side.answer(entry)
            if any(path.endswith("connection") for path in answers[kind]):
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to end
                    side.server.process.wait(2)
            if not side.server.is_alive():
                self.assertNotEqual(kind, "conch", f"conch ended\n{side.server.output[-4000:]}")
                answers[kind] = {"process": "ended"}
                self.restart(kind)
        mine, theirs = answers["conch"], answers["triton"]
        differences = []
        for path in {**theirs, **mine}:
            if same(mine.get(path), theirs.get(path)):
                continue
            name = f"{entry.world}.{entry.name}"
            if not any([one.covers(name, path, mine.get(path)) for one in self.accepted]):
                differences.append(f"{path}:\n    conch  {mine.get(path)!r}\n    Triton {theirs.get(path)!r}")
        if differences:
            self.fail(f"{entry.rows}\n" + "\n".join(differences))


def same(mine, theirs):
    if isinstance(mine, float) and mine != mine:
        return isinstance(theirs, float) and theirs != theirs
    return mine == theirs and (type(mine) is type(theirs) or {type(mine), type(theirs)} == {int, float})


for _name in WORLDS:
    _made = type(_name.capitalize(), (World,), {"world": _name, "__doc__": f"The world {_name}."})
    for _entry in ENTRIES:
        if _entry.world == _name:
            setattr(_made, f"test_{_entry.name}", lambda self, entry=_entry: self.compare(entry))
    if IS_TRITON:
        _made = unittest.skip("compares both servers already")(_made)
    globals()[_name.capitalize()] = needs_peer("triton")(_made)


class Rows(unittest.TestCase):
    """What the table ought to hit."""

    def test_requests_name_rows_that_exist(self):
        self.assertEqual(table.missing()[1], [])

    def test_differences_are_written_well(self):
        with contextlib.suppress(StopIteration):
            for one in accepted():
                self.assertTrue(one.why and one.paths and one.request)


del World, _made  # the loader would find them under these names as well
if __name__ == "__main__":
    unittest.main()
