"""The Python packages of the end-to-end suite, for measurements that use its clients."""

import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run_with_packages(names=("numpy", "tritonclient", "xgboost")):
    """Goes on if this interpreter has them; else starts the program again with one that does, which is installed where it is missing."""
    if all(importlib.util.find_spec(name) for name in names):
        return
    python = subprocess.run([ROOT / "scripts/fetch-clients"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    os.execv(python, [python, *sys.argv])
