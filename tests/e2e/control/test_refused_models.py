"""Models whose configuration is refused, loaded by request: what the client reads and what the log says, here and from the real Triton."""

import json
import re
import unittest

from case import IS_TRITON, ServerCase, needs_library
from repository import identity

TENSORS = ('input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
           'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n')
OWN = 'backend: "identity"\n' + TENSORS
ENSEMBLE = 'platform: "ensemble"\n' + TENSORS
STEP = ('step { model_name: "good" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } '
        'output_map { key: "OUTPUT0" value: "OUTPUT0" } }')


def batching(text):
    return f"{OWN}max_batch_size: 4 dynamic_batching {{ {text} }}\n"


def sequences(text, more=""):
    return f"{OWN}max_batch_size: 2 sequence_batching {{ {text} }} {more}\n"


def control(name, kind):
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }} }} '


def group(text):
    return f"{OWN}instance_group [ {{ {text} }} ]\n"


def warm_up(dims, data, data_type="FP32"):
    return (f'{OWN}model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "INPUT0" '
            f'value {{ data_type: TYPE_{data_type} dims: [ {dims} ] {data} }} }} }}\n')


def ensemble(steps, more=""):
    return f"{ENSEMBLE}ensemble_scheduling {{ {steps} }}\n{more}"


NO_BACKEND = ("Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration. "
              "Expected model name of the form 'model.<backend_name>'.")
# Found when the repository is looked at: the client is told that it was, and the log says why.
IN_THE_LOG = {
    "empty": ("", NO_BACKEND),
    "no_backend": (TENSORS, NO_BACKEND),
    "no_steps_at_all": (ENSEMBLE, "ensemble scheduling must be set for ensemble {name} whose platform is ensemble"),
    "preferred_above": (batching("preferred_batch_size: [ 8 ]"), "dynamic batching preferred size must be <= max batch size for {name}"),
    "preferred_zero": (batching("preferred_batch_size: [ 0 ]"), "dynamic batching preferred size must be positive for {name}"),
    "level_above": (batching("priority_levels: 2 default_priority_level: 3"), "default priority level must be in range [1, 2] for {name}"),
    "level_none": (batching("priority_levels: 2"), "default priority level must be in range [1, 2] for {name}"),
    "level_of_policy": (batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }"),
                        "priority queue policy must have priority level in range [1, 2] for {name}"),
    "order_of_levels": (batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
                        "Only one priority level is allowed when 'preserve_ordering' is true for {name}"),
    "sequences_from_the_cache": (sequences("", "response_cache { enable: true }"),
                                 "Response Cache does not currently support model {name} with sequence batching scheduler. "
                                 "Please disable the response cache."),
    "oldest_above": (sequences("oldest { max_candidate_sequences: 4 preferred_batch_size: [ 4 ] }"),
                     "sequence batching preferred batch size must be <= max batch size for {name}"),
    "controls_of_one_kind": (sequences(control("A", "START") + control("B", "START")),
                             "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for {name}"),
    "controls_of_one_name": (sequences(control("A", "START") + control("A", "END")),
                             "sequence batching control tensor 'A' is specified for multiple control kinds for {name}"),
    "other_name": ('name: "other"\n' + OWN,
                   "unexpected directory name '{name}' for model 'other', directory name must equal model name"),
    "no_agent": (OWN + 'model_repository_agents { agents { name: "none" } }\n',
                 "unable to find 'libtritonrepoagent_none.so' for repo agent 'none', searched: "),
    "stream_from_the_cache": (OWN + "response_cache { enable: true }\nmodel_transaction_policy { decoupled: true }\n",
                              "Response Cache does not currently support model {name} with 'decoupled' transaction policy. "
                              "Please disable the response cache."),
    "no_step": (ensemble(""), "must specify 'step' for ensemble '{name}'"),
    "step_without_model": (ensemble("step { model_version: -1 }"), "must specify 'model_name' in step 0 of ensemble '{name}'"),
    "step_without_inputs": (ensemble('step { model_name: "good" model_version: -1 }'),
                            "must specify 'input_map' in step 0 of ensemble '{name}'"),
    "ensemble_with_group": (ensemble(STEP, "instance_group [ { count: 1 } ]\n"),
                            "instance group should not be specified for ensemble '{name}'"),
    "ensemble_with_warm_up": (ensemble(STEP, 'model_warmup { name: "x" }\n'), "model_warmup can not be specified for ensemble '{name}'"),
    # With the quote that upstream has too many.
    "output_of_nobody": (ensemble(STEP.replace('value: "OUTPUT0"', 'value: "MIDDLE"')),
                         "ensemble output 'OUTPUT0' for ensemble {name}' is not used"),
}
VERSION = "version 1 is at UNAVAILABLE state: Invalid argument: "
# Found when the model is loaded: the client is told.
TOLD = {
    "no_gpus": (group("kind: KIND_GPU"), VERSION + "instance group {name}_0 of model {name} has kind KIND_GPU but no GPUs are available;"),
    "gpu_of_no_number": (group("kind: KIND_GPU gpus: [ 0 ]"),
                         VERSION + "instance group {name}_0 of model {name} specifies invalid or unsupported gpu id 0. GPUs with at least "
                         "the minimum required CUDA compute compatibility of " + ("6" if IS_TRITON else "0") + ".000000 are: ;"),
    "cpu_with_gpus": (group("kind: KIND_CPU gpus: [ 0 ]"),
                      VERSION + "instance group {name}_0 of model {name} has kind KIND_CPU but specifies one or more GPUs;"),
    "profile": (group('kind: KIND_CPU profile: [ "x" ]'),
                VERSION + "instance group {name}_0 of model {name} and platform specifies profile field which is only supported for "
                "TensorRT models;"),
    "warm_up_of_any_size": (warm_up("-1", "zero_data: true"),
                            VERSION + "warmup setting expects all variable-size dimensions are specified for input 'INPUT0';"),
    "warm_up_without_data": (warm_up("1", ""),
                             VERSION + "[request id: <id_unknown>] warmup setting expects input 'INPUT0' to have input_data_type set;"),
    "warm_up_of_other_type": (warm_up("1", "zero_data: true", "INT8"),
                              VERSION + "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'INT8', but model '{name}' "
                              "expects 'FP32';"),
    "no_latest": (OWN + "version_policy { latest { num_versions: 0 } }\n",
                  "at least one version must be available under the version policy of model '{name}'"),
    "no_specific": (OWN + "version_policy { specific { versions: [ 7 ] } }\n",
                    "at least one version must be available under the version policy of model '{name}'"),
    "batch_input_of_nothing": (OWN + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "X" data_type: TYPE_FP32 source_input: "none" }\n',
                               VERSION + "unknown source input name 'none' for {name};"),
    "batch_output_to_nothing": (OWN + 'batch_output { target_name: "none" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT0" }\n',
                                VERSION + "unknown target output name 'none' for {name};"),
    "step_of_no_version": (ensemble(STEP.replace("-1", "7")), "ensemble '{name}' depends on 'good' whose required version 7 is not loaded."),
    "step_of_no_input": (ensemble(STEP.replace('key: "INPUT0"', 'key: "X"')),
                         "in ensemble {name}, ensemble tensor INPUT0 is mapping to non-existing input X in model good"),
}


@needs_library("identity")
class RefusedModels(ServerCase):
    flags = ("--model-control-mode=explicit", "--load-model=good")

    @staticmethod
    def models(repository):
        repository.model("good", identity())
        for name, (text, _) in {**IN_THE_LOG, **TOLD}.items():
            repository.model(name, text)

    def load(self, name):
        status, body = self.server.post_json(f"/v2/repository/models/{name}/load", "{}")
        return status, json.loads(body)["error"]

    def test_what_the_log_says(self):
        for name, (_, reason) in IN_THE_LOG.items():
            with self.subTest(name):
                self.assertEqual(self.load(name), (500, f"failed to load '{name}', failed to poll from model repository"))
                self.server.wait_for_line(re.escape(f"Poll failed for model directory '{name}': {reason.format(name=name)}"))

    def test_what_the_client_is_told(self):
        for name, (_, reason) in TOLD.items():
            with self.subTest(name):
                self.assertEqual(self.load(name), (400, f"load failed for model '{name}': {reason.format(name=name)}\n"))


if __name__ == "__main__":
    unittest.main()
