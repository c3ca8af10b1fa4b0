"""OpenVINO for tests: the library that the backend opens, and a Python with OpenVINO that answers for comparison."""

import json
import pathlib
import tempfile

import cases
from oracle import PinnedPython
from runtime import Runtime

LIBRARY = "libopenvino_c.so*"
NEWEST = Runtime("openvino", "OpenVINO", LIBRARY)
OLDEST = Runtime("openvino_oldest", "an old OpenVINO", LIBRARY, backend="openvino")
PYTHON = PinnedPython("openvino", f"openvino=={NEWEST.version}")
PROGRAM = pathlib.Path(__file__).with_name("openvino_oracle.py")

needs_openvino = NEWEST.needed()
needs_oldest = OLDEST.needed()


def answers(model, feeds, threads, precision=None):
    """What OpenVINO in Python answers to each of `feeds`, inputs by name: outputs by name."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cases.write(folder / "feeds.npz", [(inputs, {}) for inputs in feeds])
        (folder / "settings.json").write_text(json.dumps({"model": str(model), "threads": threads, "precision": precision}))
        PYTHON.run(PROGRAM, folder)
        return [outputs for _, outputs in cases.read(folder / "answers.npz")]
