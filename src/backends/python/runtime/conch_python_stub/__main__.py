"""Started by the Python backend: `python3 -u <this> <model> <instance>`, with a socket to the backend as standard input."""

import os
import sys

# Processes that the model starts by `multiprocessing` import this file under another name, and are no stubs.
if __name__ == "__main__":
    # The folder of this file is no place to import from; the one above it is where the package of models lies. As upstream has it, it
    # comes last.
    sys.path[0:1] = []
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

    from conch_python_stub import process

    process.main()
