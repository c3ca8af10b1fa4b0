"""Frameworks themselves, for comparison: Pythons that have pinned versions of them, and programs for these that make models and answers."""

import functools
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import cases
import server as servers


def run(*command):
    """What a command prints."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


class PinnedPython:
    """The Python of a virtual environment `.cache/venv-NAME` with packages of exact versions, which is made at the first use and may be
    removed afterwards."""

    def __init__(self, name, *packages):
        self.folder, self.packages = servers.CACHE / f"venv-{name}", " ".join(packages)
        self.program = self.folder / "bin/python"

    def install(self):
        """Skips the test where the packages cannot be had."""
        # Written last, so that an installation that was interrupted is done again.
        installed = self.folder / "packages"
        if installed.exists() and installed.read_text() == self.packages:
            return
        try:
            if not self.program.exists():
                run(sys.executable, "-m", "venv", self.folder)
            run(self.program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages.split())
        except AssertionError as failure:
            raise unittest.SkipTest(f"cannot install {self.packages}: {str(failure).splitlines()[-1]}") from None
        installed.write_text(self.packages)

    def run(self, *arguments):
        self.install()
        return run(self.program, *arguments)


class Oracle:
    """Models that a program makes with a pinned framework, and what the framework itself answers. They are made once on a machine and for
    each version of the program, in a folder `.cache/NAME-models/<digest>`."""

    def __init__(self, name, version, python, program, modules=(), arguments=(), scratch=None, require=lambda: None):
        """`modules`: files that the program imports. `arguments`: of the program, after the folder. `scratch`: a folder in it that only the
        program uses. `require` skips the test where the program cannot run."""
        self.python, self.program, self.arguments, self.scratch, self.require = python, program, arguments, scratch, require
        sources = b"".join(file.read_bytes() for file in (program, *modules))
        self.place = servers.CACHE / f"{name}-models" / hashlib.sha256(sources + version.encode()).hexdigest()[:16]

    @functools.cached_property
    def folder(self):
        if not self.is_made():
            self.require()
            self.make()
        return self.place

    def is_made(self):
        # The file that the program writes last.
        return (self.place / "version").exists()

    def make(self):
        self.place.parent.mkdir(parents=True, exist_ok=True)
        # Under another name until all is there, since other processes may do the same.
        making = pathlib.Path(tempfile.mkdtemp(dir=self.place.parent))
        try:
            self.python.run(self.program, making, *self.arguments)
            if self.scratch:
                shutil.rmtree(making / self.scratch, ignore_errors=True)
            making.rename(self.place)
        except OSError:
            if not self.is_made():
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)

    @functools.cache
    def cases(self, model):
        """Pairs of feeds and answers by name."""
        return cases.read(self.folder / f"{model}.npz")
