"""A pytest plug-in: notes the outcome of each check in $UPSTREAM_CHECKS."""

import os

KINDS = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}


def pytest_runtest_logreport(report):
    path = os.environ.get("UPSTREAM_CHECKS")
    if path and (report.when == "call" or report.outcome != "passed"):
        why = " | ".join(str(getattr(report, "longreprtext", "")).strip().splitlines()[-2:])
        with open(path, "a") as file:
            file.write(f"{KINDS[report.outcome]}\t{report.nodeid}\t{why[:300]}\n")
