"""Answers with OpenVINO in Python: reads feeds.npz and settings.json of a folder and writes answers.npz. Run by a Python that has it."""

import json
import pathlib
import sys

import numpy
import openvino

folder = pathlib.Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
core = openvino.Core()
core.set_property("CPU", {"ENABLE_CPU_PINNING": "NO", "INFERENCE_NUM_THREADS": str(settings["threads"]), "NUM_STREAMS": "1"})
if settings.get("precision"):
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": settings["precision"]})
model = core.read_model(settings["model"])
if settings.get("shapes"):
    model.reshape({name: openvino.PartialShape(dims) for name, dims in settings["shapes"].items()})
# Names are those of the model as it was read; compiling may add others.
names = [output.get_any_name() for output in model.outputs]
request = core.compile_model(model, "CPU").create_infer_request()
answers = {}
with numpy.load(folder / "feeds.npz") as feeds:
    for number in range(settings["count"]):
        given = {key.split("/", 1)[1]: feeds[key] for key in feeds.files if key.startswith(f"{number}/")}
        request.infer(given)
        for index, name in enumerate(names):
            answers[f"{number}/{name}"] = numpy.array(request.get_output_tensor(index).data)
numpy.savez(folder / "answers.npz", **answers)
