"""Libraries in C that tests bring along, and backends, which are compiled against the headers in src/abi/include."""

import atexit
import functools
import pathlib
import shutil
import subprocess
import tempfile

import server as servers


@functools.cache
def compiled_library(place, source, *options):
    """A shared library from one file of C, at `place` in a folder that lives as long as this process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"conch-{pathlib.Path(place).stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / place
    library.parent.mkdir(exist_ok=True)
    built = subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", str(source), "-o", str(library),
                            *options], capture_output=True, text=True, timeout=60, check=False)
    if built.returncode:
        raise AssertionError(built.stderr[-3000:])
    return library


def compiled(name, source):
    """A backend directory with the backend `name` from one file of C, compiled once per process."""
    return compiled_library(f"{name}/libtriton_{name}.so", source, "-I", str(servers.ROOT / "src/abi/include"), "-ldl").parents[1]
