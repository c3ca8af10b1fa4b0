"""Answers with OpenVINO in Python: reads feeds.npz and settings.json of a folder and writes answers.npz. Run by a Python that has it."""

import json
import pathlib
import sys

import numpy
import openvino

import cases

folder = pathlib.Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
core = openvino.Core()
core.set_property("CPU", {"ENABLE_CPU_PINNING": "NO", "INFERENCE_NUM_THREADS": str(settings["threads"]), "NUM_STREAMS": "1"})
if settings.get("precision"):
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": settings["precision"]})
model = core.read_model(settings["model"])
# Names are those of the model as it was read; compiling may add others.
names = [output.get_any_name() for output in model.outputs]
request = core.compile_model(model, "CPU").create_infer_request()
answered = []
for feeds, _ in cases.read(folder / "feeds.npz"):
    request.infer(feeds)
    answered.append(({}, {name: numpy.array(request.get_output_tensor(index).data) for index, name in enumerate(names)}))
cases.write(folder / "answers.npz", answered)
