"""The folders of the end-to-end suite. A test is known by its file, class and method, wherever the file lies: each folder is a
place to import from, so a file moves between folders without a change of names."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = sorted({file.parent for file in HERE.glob("*/test_*.py")})
sys.path[:0] = [str(folder) for folder in (HERE, *FOLDERS)]
