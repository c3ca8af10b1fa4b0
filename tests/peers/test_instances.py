"""What instances learn of themselves, and which ones there are: preferred groups, profiles, secondary devices, passive instances, host
policies, and groups that cannot be. The probe backend writes it down.

    python3 test_instances.py --server '<command>' --backends <folder with probe/libtriton_probe.so>
"""

import argparse
import json
import os
import shutil
import tempfile

import numpy as np
import tritonclient.grpc as grpc

from serving import Server, run_checks, write_model

CONFIG = """
backend: "probe" max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
MODELS = {
    "preferred": "",
    "counted": "instance_group [ { kind: KIND_CPU } ]",
    "auto": "instance_group [ { name: 'three' count: 3 } ]",
    "passive": "instance_group [ { name: 'runs' count: 1 kind: KIND_CPU }, { name: 'sits' count: 2 kind: KIND_CPU passive: true } ]",
    "detailed": "instance_group [ { name: 'd' count: 1 kind: KIND_MODEL host_policy: 'own' "
                "secondary_devices [ { kind: KIND_NVDLA device_id: 1 }, { kind: KIND_NVDLA device_id: 0 } ] } ]",
}
# Profiles are for models of TensorRT alone, so the probe stands in for its backend.
PROFILED = CONFIG.replace('"probe"', '"tensorrt"') + "instance_group [ { name: 'p' kind: KIND_CPU profile: [ '2', '3' ] } ]"
REFUSED = {
    "profiles": ("instance_group [ { name: 'g' kind: KIND_CPU profile: [ '1' ] } ]",
                 "specifies profile field which is only supported for TensorRT models"),
    "gpu": ("instance_group [ { name: 'g' kind: KIND_GPU } ]", "instance group g of model gpu has kind KIND_GPU but no GPUs are available"),
    "cpu_with_gpu": ("instance_group [ { name: 'g' kind: KIND_CPU gpus: [ 0 ] } ]",
                     "instance group g of model cpu_with_gpu has kind KIND_CPU but specifies one or more GPUs"),
    "model_with_gpu": ("instance_group [ { name: 'g' kind: KIND_MODEL gpus: [ 0 ] } ]",
                       "instance group g of model model_with_gpu has kind KIND_MODEL but specifies one or more GPUs"),
}


class Record:
    """The probe's record: facts of the instances by model, and who executed."""

    def __init__(self, path):
        with open(path) as file:
            self.lines = [line.rstrip("\n").split("\t") for line in file]

    def select(self, call, edge="begin"):
        return [line for line in self.lines if line[3:5] == [edge, call]]

    def facts(self, model):
        facts = [json.loads(line[6]) for line in self.select("InstanceFacts") if line[5].startswith(model + ":")]
        return sorted(facts, key=lambda fact: (fact["name"], fact["device"]))


def read_back(path):
    record = Record(path)
    profiled, = Record(path + ".tensorrt").facts("profiled")
    assert (profiled["name"], profiled["profiles"]) == ("p_0", ["2", "3"]), profiled

    def expect(model, *wanted):
        facts = record.facts(model)
        got = [(fact["name"], fact["kind"], fact["device"], fact["passive"], list(fact["policy"])) for fact in facts]
        assert got == list(wanted), (model, got)
        return facts

    # Of the groups that the backend prefers the first that can be is taken: there is no GPU.
    expect("preferred", *[(f"preferred_{index}", "Cpu", 0, False, ["cpu"]) for index in range(3)])
    # One that leaves out the count has it from the backend's group of its kind.
    expect("counted", *[(f"counted_0_{index}", "Cpu", 0, False, ["cpu"]) for index in range(3)])
    expect("auto", *[(f"three_{index}", "Cpu", 0, False, ["cpu"]) for index in range(3)])
    expect("passive", ("runs_0", "Cpu", 0, False, ["cpu"]), ("sits_0", "Cpu", 0, True, ["cpu"]), ("sits_1", "Cpu", 0, True, ["cpu"]))
    detailed, = expect("detailed", ("d_0", "Model", 0, False, ["own"]))
    assert detailed["secondary"] == [["KIND_NVDLA", 1], ["KIND_NVDLA", 0]], detailed
    # Passive ones live as long as the others, and execute nothing.
    serials = {line[5] for line in record.select("Execute") if line[5].startswith("passive:")}
    assert len(serials) == 1, serials
    for call, other in (("InstanceInitialize", "end"), ("InstanceFinalize", "end")):
        assert len(record.select(call, other)) == 3 + 3 + 3 + 3 + 1, (call, len(record.select(call, other)))


def check_passive(client):
    for number in range(12):
        tensor = grpc.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[number]], dtype=np.int32))
        assert client.infer("passive", [tensor]).as_numpy("OUTPUT0").tolist() == [[number]]


def check_refused(client):
    reasons = {model["name"]: model.get("reason", "") for model in client.get_model_repository_index(as_json=True)["models"]}
    for model, (_, words) in REFUSED.items():
        assert words in reasons[model], (model, reasons[model])
    for model in MODELS:
        assert client.is_model_ready(model), (model, reasons[model])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--backends", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository, record = os.path.join(folder, "models"), os.path.join(folder, "record")
        for model, groups in {**MODELS, **{model: groups for model, (groups, _) in REFUSED.items()}}.items():
            write_model(repository, model, CONFIG + groups.replace("'", '"'))
        write_model(repository, "profiled", PROFILED.replace("'", '"'))
        shutil.copy(os.path.join(arguments.backends, "probe/libtriton_probe.so"), f"{repository}/profiled/libtriton_tensorrt.so")
        options = [f"--backend-config=tensorrt,record={record}.tensorrt", f"--backend-config=probe,record={record}", "--backend-config=probe,prefer=gpu:2;cpu:3;model:4",
                   "--exit-on-error=false", "--strict-readiness=false"]
        with Server(arguments.server, repository, arguments.backends, options) as server:
            client = grpc.InferenceServerClient(server.grpc)
            checks = {"refused": lambda: check_refused(client), "passive": lambda: check_passive(client)}
            run_checks("instances", checks)
            client.close()
        run_checks("instances", {"facts": lambda: read_back(record)})


if __name__ == "__main__":
    main()
