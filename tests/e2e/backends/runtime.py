"""What tests of frameworks need on a machine and do not bring along: the frameworks' libraries and real models. Tests are skipped without."""

import functools
import os
import pathlib
import re
import unittest

import server as servers


def there(path, script="scripts/fetch-models --tests"):
    """The path; without it the test is skipped, and says which script makes it."""
    if not path.exists():
        raise unittest.SkipTest(f"{path.name} is not there: run {script}")
    return path


class Runtime:
    """A framework's library: the one that `scripts/fetch-runtime NAME` fetches, or that CONCH_<NAME>_LIBRARY names."""

    def __init__(self, name, product, file, backend=None):
        """`file`: the library's name, or a pattern of it. `backend`: the one that opens it, where that has another name; then only
        tests use this library, and no variable names another."""
        self.name, self.product, self.folder = name, product, servers.CACHE / name
        self.backend = backend or name
        self.variable = f"CONCH_{self.backend.upper()}_LIBRARY"
        named = None if backend else os.environ.get(self.variable)
        fetched = sorted(self.folder.glob(file))
        self.library = pathlib.Path(named) if named else fetched[0] if fetched else self.folder / file
        # A name is taken at its word: tests fail where it is wrong.
        self.is_there = bool(named or fetched)

    @property
    def environment(self):
        """Of a server whose backend opens this library."""
        return {self.variable: str(self.library)}

    @functools.cached_property
    def version(self):
        """As it is pinned, so that answers can be compared bit for bit."""
        pins = (servers.ROOT / f"scripts/runtimes/{self.name}.sh").read_text()
        return re.search(rf"^{self.name}_version=(.*)$", pins, re.MULTILINE)[1]

    def needed(self, beside=None):
        """Skips a test without the library, or without the file `beside` it."""
        is_there = self.is_there and (beside is None or self.library.with_name(beside).exists())
        return unittest.skipUnless(is_there, f"{self.product} is not there: run scripts/fetch-runtime {self.name}")
