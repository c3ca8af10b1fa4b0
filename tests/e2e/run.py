"""Runs the end-to-end suite and records what each test did, one `id<TAB>outcome` per line, with a third
column `peer` for a test that is skipped where the peers are not set up.

    run.py [--server=triton] [--results=FILE] [--again=N] [PART-OF-TEST-ID ...]

With --server=triton the same tests run against the real Triton, which proves the expectations themselves; tests that speak
only of conch are skipped there.

With --again=N the tests that failed run once more, alone, when the suite is through. Up to N of them may pass then: they are
listed as unsteady, which is a defect to mend, and do not fail the run. One that fails twice, or more of them than N, fail it.
"""

import argparse
import ast
import os
import pathlib
import re
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from folders import FOLDERS  # noqa: E402


class Result(unittest.TestResult):
    """Prints a line per test as it ends, and keeps the outcomes."""

    def __init__(self):
        super().__init__()
        self.outcomes, self.ran, self.started, self.failed_part = {}, [], 0.0, False

    def startTest(self, test):
        super().startTest(test)
        self.ran.append(test)
        self.started, self.failed_part = time.monotonic(), False

    def _record(self, test, outcome, note=""):
        seconds = time.monotonic() - self.started
        self.outcomes[test.id()] = outcome
        print(f"{outcome:7} {test.id()} ({seconds:.2f} s){' - ' + note if note else ''}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        if not self.failed_part:
            self._record(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._record(test, "skipped", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._record(test, "failed")
        print(self._exc_info_to_string(error, test), flush=True)

    def addError(self, test, error):
        super().addError(test, error)
        self._record(test, "failed")
        print(self._exc_info_to_string(error, test), flush=True)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.failed_part = True
            self._record(test, "failed", subtest._subDescription())
            print(self._exc_info_to_string(error, test), flush=True)


def flatten(suite):
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from flatten(entry)
        else:
            yield entry


def discovered():
    """Every test, of all folders. Each folder has a loader of its own, because a loader knows one place to import from."""
    for folder in FOLDERS:
        yield from flatten(unittest.TestLoader().discover(str(folder), top_level_dir=str(folder)))


def print_files():
    """The first sentence of each file, by folder."""
    for folder in FOLDERS:
        print(f"{folder.name}/")
        for file in sorted(folder.glob("test_*.py")):
            about = " ".join(ast.get_docstring(ast.parse(file.read_text())).split())
            print(f"  {file.name:32} {re.split(r'(?<=[.:;]) ', about)[0].rstrip('.:;')}")


def needs_peer(test):
    return any(getattr(part, "needs_peer", False) for part in (type(test), getattr(test, test._testMethodName, None)))


def run_again(result, bound):
    """Runs the failed tests once more; says whether all passed and were no more than `bound`."""
    failed = sorted({test.id(): test for test in result.ran if result.outcomes.get(test.id()) == "failed"}.items())
    # A class whose set-up failed has an outcome under a name of its own, which is no test.
    if not failed or len(failed) > bound or len(failed) < list(result.outcomes.values()).count("failed"):
        return False
    print(f"\nagain, alone: {', '.join(name for name, _ in failed)}", flush=True)
    second = Result()
    unittest.TestSuite(type(test)(test._testMethodName) for _, test in failed).run(second)
    for name, _ in failed:
        if second.outcomes.get(name) == "ok":
            result.outcomes[name] = "unsteady"
    print("".join(f"\nunsteady: {name}" for name, outcome in result.outcomes.items() if outcome == "unsteady"), flush=True)
    return second.wasSuccessful()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("conch", "triton"), default="conch")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="print the ids and run nothing")
    parser.add_argument("--files", action="store_true", help="print what each file is about and run nothing")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="run up to N failed tests again, alone")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    if options.files:
        return print_files()
    os.environ["CONCH_TEST_SERVER"] = options.server
    found = sorted(discovered(), key=lambda test: test.id())
    chosen = [test for test in found if not options.parts or any(part in test.id() for part in options.parts)]
    if options.list:
        print("\n".join(test.id() for test in chosen))
        return
    result = Result()
    begun = time.monotonic()
    unittest.TestSuite(chosen).run(result)
    passed = result.wasSuccessful() or run_again(result, options.again)
    counts = {name: list(result.outcomes.values()).count(name) for name in ("ok", "failed", "skipped", "unsteady")}
    if options.results:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        needing = {test.id() for test in chosen if needs_peer(test)}
        options.results.write_text("".join(f"{name}\t{outcome}{chr(9) + 'peer' if name in needing else ''}\n"
                                           for name, outcome in sorted(result.outcomes.items())))
    print(f"\n{counts['ok']} passed, {counts['failed']} failed, {counts['skipped']} skipped, {counts['unsteady']} unsteady"
          f" in {time.monotonic() - begun:.0f} s (server: {options.server})")
    if not chosen or not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
