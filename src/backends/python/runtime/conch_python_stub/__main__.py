"""Started by the Python backend: `python3 -u <this> <model> <instance>`, with a socket to the backend as standard input."""

import os
import sys

# The folder of this file is no place to import from; the one above it is where the package of models lies. As upstream has it, it comes last.
sys.path[0:1] = []
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from conch_python_stub import process  # noqa: E402

process.main()
