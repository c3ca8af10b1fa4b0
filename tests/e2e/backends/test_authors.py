"""What authors of backends get: the C headers and the complete examples of docs/examples, built as their Makefiles say, in conch and
in the real Triton."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import server as servers
from case import conch_only, needs_library, needs_peer
from test_backends import CONCH, PROGRAMS

ABI = servers.ROOT / "src/abi"
EXAMPLES = servers.ROOT / "docs/examples"
HEADERS = ("tritonserver", "tritonbackend", "tritoncache", "tritonrepoagent")
# The compilers of each example, by directory: the program and what chooses the language.
BUILDS = {
    "c_backend": [("gcc", "-std=c99"), ("gcc", "-std=c17"), ("g++", "-x c++ -std=c++11")],
    "cpp_backend": [("g++", "-std=c++11"), ("g++", "-std=c++20")],
}


def output(*command, **more):
    """What a command prints; its failure is the test's."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-5000:]}"
    return done.stdout


def build(directory, target, compiler, language):
    """Builds an example into `target`, as its author would."""
    variables = [f"OUT={target}", "CC=gcc" if directory == "cpp_backend" else f"CC={compiler}", f"CXX={compiler}"]
    variables.append(f"CXXFLAGS={language}" if directory == "cpp_backend" else f"CFLAGS={language}")
    output("make", "-C", EXAMPLES / directory, *variables)


@conch_only
class Headers(unittest.TestCase):
    def test_are_those_of_the_declarations(self):
        output(servers.ROOT / "scripts/generate-headers", "--check")

    def test_compile_alone_in_every_language(self):
        strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", f"-I{ABI}/include"]
        for name in HEADERS:
            for compiler, language, standards in (("gcc", "c", ("c89", "c99", "c17")), ("g++", "c++", ("c++98", "c++11", "c++20"))):
                for standard in standards:
                    source = f'#include "triton/core/{name}.h"\nint used;\n'
                    output(compiler, f"-std={standard}", *strict, "-x", language, "-", input=source)

    def test_declare_every_export(self):
        """A program that takes each function's address, by the headers alone, links against the real library."""
        library = servers.built("libtritonserver.so")
        if not library.exists():
            raise unittest.SkipTest(f"{library} is not built")
        names = (ABI / "exports.txt").read_text().split()
        source = "".join(f'#include "triton/core/{name}.h"\n' for name in HEADERS)
        source += "typedef void (*Function)(void);\n"
        source += "Function functions[] = {" + ", ".join(f"(Function){name}" for name in names) + "};\n"
        source += f"int main(void) {{ return sizeof functions / sizeof *functions == {len(names)} ? 0 : 1; }}\n"
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program"
            output("gcc", "-Wall", "-Werror", f"-I{ABI}/include", "-x", "c", "-", "-x", "none", library, "-o", program,
                   f"-Wl,-rpath,{library.parent}", input=source)
            output(program)


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="conch-examples-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)

    def serve(self, server, build_index):
        backends = self.directory / f"backends{build_index}"
        for directory, name in (("c_backend", "scale"), ("cpp_backend", "words")):
            build(directory, backends / name, *BUILDS[directory][build_index])
        library = servers.built("libtriton_labels.so")
        servers.place(backends / "labels" / library.name, library)
        output(sys.executable, PROGRAMS / "test_examples.py", "--server", server, "--backends", backends)

    @conch_only
    def test_build_with_every_compiler(self):
        for directory, compilers in BUILDS.items():
            for index, (compiler, language) in enumerate(compilers):
                target = self.directory / f"{directory}{index}"
                build(directory, target, compiler, language)
                (library,) = target.glob("libtriton_*.so")
                exported = output("nm", "--dynamic", "--defined-only", library)
                self.assertIn(" T TRITONBACKEND_ModelInstanceExecute\n", exported)
                self.assertIn("[libtritonserver.so]", output("readelf", "-d", library))

    @conch_only
    @needs_library("labels")
    def test_in_conch(self):
        self.serve(CONCH, 0)

    @conch_only
    @needs_library("labels")
    def test_in_conch_all_by_the_cpp_compiler(self):
        """The C example as C++."""
        self.serve(CONCH, -1)

    @conch_only
    @needs_library("labels")
    @needs_peer("triton")
    def test_in_triton(self):
        self.serve(str(servers.PEERS / "triton"), 0)


if __name__ == "__main__":
    unittest.main()
