"""Backends in C that tests bring along, compiled against the headers in src/abi/include."""

import atexit
import functools
import pathlib
import shutil
import subprocess
import tempfile

import server as servers


@functools.cache
def compiled(name, source):
    """A backend directory with the backend `name` from one file of C, compiled once per process."""
    path = pathlib.Path(tempfile.mkdtemp(prefix=f"conch-{name}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    library = path / name / f"libtriton_{name}.so"
    library.parent.mkdir()
    built = subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-I",
                            str(servers.ROOT / "src/abi/include"), str(source), "-o", str(library), "-ldl"],
                           capture_output=True, text=True, timeout=60, check=False)
    if built.returncode:
        raise AssertionError(built.stderr[-3000:])
    return path
