"""Runs the end-to-end suite and records what each test did, one `id<TAB>outcome` per line.

    run.py [--server=triton] [--results=FILE] [PART-OF-TEST-ID ...]

With --server=triton the same tests run against the real Triton, which proves the expectations themselves; tests that speak
only of conch are skipped there.
"""

import argparse
import os
import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


class Result(unittest.TestResult):
    """Prints a line per test as it ends, and keeps the outcomes."""

    def __init__(self):
        super().__init__()
        self.outcomes, self.started, self.failed_part = {}, 0.0, False

    def startTest(self, test):
        super().startTest(test)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("conch", "triton"), default="conch")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="print the ids and run nothing")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    os.environ["CONCH_TEST_SERVER"] = options.server
    found = list(flatten(unittest.defaultTestLoader.discover(str(HERE), top_level_dir=str(HERE))))
    chosen = [test for test in found if not options.parts or any(part in test.id() for part in options.parts)]
    if options.list:
        print("\n".join(test.id() for test in chosen))
        return
    result = Result()
    begun = time.monotonic()
    unittest.TestSuite(chosen).run(result)
    counts = {name: list(result.outcomes.values()).count(name) for name in ("ok", "failed", "skipped")}
    if options.results:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text("".join(f"{name}\t{outcome}\n" for name, outcome in sorted(result.outcomes.items())))
    print(f"\n{counts['ok']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
          f" in {time.monotonic() - begun:.0f} s (server: {options.server})")
    if not chosen or not result.wasSuccessful():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
