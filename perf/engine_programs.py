"""The programs of perf/engines: each drives one engine through its own interface. What they are asked is said in perf/engines/loop.h."""

import hashlib
import os
import pathlib
import subprocess
import sys

import machine
import server as servers

SOURCES = pathlib.Path(__file__).resolve().parent / "engines"
# What is compiled, trained or otherwise made once.
CACHE = servers.CACHE / "perf-frameworks"


class Refused(Exception):
    """Why something cannot be measured here."""


def made(key, name, make):
    """The path of something that `make(path)` makes once for this key: a text of all that it depends on."""
    path = CACHE / hashlib.sha256(key.encode()).hexdigest()[:16] / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{name}.part")
        make(part)
        part.rename(path)
    return path


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    if done.returncode:
        raise Refused(f"{command[0]} failed: {' '.join((done.stderr or done.stdout).strip().splitlines()[-3:])}")
    return done.stdout


def compiled(name, *options):
    """The program of `name`, a file of perf/engines, compiled with these options; or as it lies in the folder $PERF_PROGRAMS, for machines without
    a compiler."""
    source = SOURCES / name
    there = pathlib.Path(os.environ.get("PERF_PROGRAMS", "")) / source.stem
    if os.environ.get("PERF_PROGRAMS") and there.exists():
        return there
    compiler = ["cc", "-O2"] if source.suffix == ".c" else ["g++", "-O2", "-std=c++20"]
    key = source.read_text() + "".join(file.read_text() for file in sorted(SOURCES.glob("*.h"))) + " ".join(map(str, options))
    return made(key, source.stem, lambda path: run([*compiler, source, "-o", path, *options, "-ldl", "-pthread"]))


class Program:
    """One that runs, on these CPUs. `name`: what it is called where it ends."""

    def __init__(self, command, cpus, environment=None, name=None):
        self.name = name or pathlib.Path(command[0]).name
        self.process = subprocess.Popen([*machine.bound_to(cpus), *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment)
        self._answer("ready")

    def ask(self, *words):
        """The words of the answer."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def run(self, rows, times):
        """Nanoseconds per call: (on the clock, of CPU)."""
        wall, cpu = self.ask("run", rows, times)
        return int(wall) / times, int(cpu) / times

    def rest(self, times, pause_us):
        """The same for single rows, each after a pause."""
        wall, cpu = self.ask("rest", times, pause_us)
        return int(wall) / times, int(cpu) / times

    def _answer(self, wanted=None):
        # Engines may write lines of their own.
        while line := self.process.stdout.readline():
            words = line.split()
            if wanted is None and words and (words[0].isdigit() or words[0] == "saved") or words == [wanted]:
                return words
        raise Refused(f"{self.name} ended: {' '.join(self.process.stderr.read().strip().splitlines()[-3:])}")

    def close(self):
        """Ends it: by the end of its input, or at once where that takes long."""
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def environment(name, packages):
    """The Python of a virtual environment .cache/<name> that has these packages."""
    folder = servers.CACHE / name
    python, noted = folder / "bin/python", folder / "packages"
    if not python.exists():
        run([sys.executable, "-m", "venv", folder])
    if not noted.exists() or noted.read_text() != " ".join(packages):
        print(f"installing {' '.join(packages)} into {folder}", file=sys.stderr)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        noted.write_text(" ".join(packages))
    return python
