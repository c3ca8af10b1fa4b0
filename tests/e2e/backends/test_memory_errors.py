"""The in-process tests of plug-ins in C and C++ under valgrind: no read or write that is wrong, and no memory that nothing points to any
more. Those of sdk_backends.rs are about time, of which valgrind has another sense."""

import re
import shutil
import subprocess
import unittest

import server as servers
from case import conch_only

# What leaks on purpose: the panics of a plug-in that lets them out, and a request that its backend never gives back.
LEAKING = ("a_rust_panic_that_gets_out_is_an_error", "a_request_that_never_comes_back_does_no_harm")


def program(name):
    """The newest test program of src/ffi/tests that cargo built in this profile."""
    directory = servers.TARGET / servers.PROFILE / "deps"
    found = [path for path in directory.glob(f"{name}-*") if re.fullmatch(r"[a-z_]+-[0-9a-f]+", path.name)]
    if not found:
        raise unittest.SkipTest(f"the test program '{name}' is not built in profile {servers.PROFILE}")
    return max(found, key=lambda path: path.stat().st_mtime)


@conch_only
@unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind: scripts/setup --tests installs it")
class Plugins(unittest.TestCase):
    def check(self, name, *more, code=0):
        done = subprocess.run(
            ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite",
             "--errors-for-leak-kinds=definite", "--num-callers=30", str(program(name)), "--test-threads=2", *more],
            capture_output=True, text=True, timeout=500, check=False)
        self.assertEqual(done.returncode, code, done.stdout[-2000:] + done.stderr[-6000:])
        return done.stdout

    def test_backends(self):
        told = self.check("plugin", *(word for name in LEAKING for word in ("--skip", name)))
        passed = int(re.search(r"(\d+) passed", told)[1])
        self.assertGreater(passed, 15, told)

    def test_caches(self):
        self.assertIn(" 0 failed", self.check("cache"))

    def test_batching_libraries(self):
        self.assertIn(" 0 failed", self.check("strategy"))

    def test_what_leaks_is_seen(self):
        """The check can fail: what leaks on purpose is found."""
        self.check("plugin", "a_request_that_never_comes_back_does_no_harm", code=9)


if __name__ == "__main__":
    unittest.main()
