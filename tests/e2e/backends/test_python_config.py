"""Models in Python that complete their configuration, and what they are told of themselves."""

import json
import unittest

from python_script import everywhere
from test_python_control import ADDS, Controlled, adding

# Completes its configuration in the way that its name tells.
COMPLETES = '''
import json
import triton_python_backend_utils as pb_utils

TENSOR = {"data_type": "TYPE_INT32", "dims": [1]}


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        fill(config)
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())]) for request in requests]


def fill(config):
    """What the test does here."""
'''
BASE = ('backend: "python"\nmax_batch_size: 4\ninput { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }\ninstance_group [ { kind: KIND_CPU } ]\n')
SEQUENCES = "sequence_batching { }\n"

# Name: what the model does, what its configuration has besides, and why it is not loaded.
REFUSED = {
    "batch": ("config.set_max_batch_size(2)", "", "configuration specified max_batch_size 4, but in auto-complete-config function for model 'batch' "
                                                 "specified max_batch_size 2"),
    "scheduler": ("config.set_dynamic_batching()", SEQUENCES,
                  "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model 'scheduler' tries "
                  "to set scheduling_choice as 'dynamic_batching'"),
    "property": ("config.add_input({'name': 'A', 'colour': 'red', **TENSOR})", "",
                 "input 'A' in auto-complete-config function for model 'property' contains property other than 'name', 'data_type', 'dims' and "
                 "'optional'."),
    "nameless": ("config.add_input(dict(TENSOR))", "", "input in auto-complete-config function for model 'nameless' is missing 'name' property."),
    "typeless": ("config.add_output({'name': 'A', 'dims': [1]})", "",
                 "output 'A' in auto-complete-config function for model 'typeless' is missing 'data_type' property."),
    "shapeless": ("config.add_input({'name': 'A', 'data_type': 'TYPE_INT32'})", "",
                  "input 'A' in auto-complete-config function for model 'shapeless' is missing 'dims' property."),
    "type": ("config.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [1]})", "",
             "unable to load model 'type', configuration expects datatype TYPE_INT32 for input 'X', model provides TYPE_FP32"),
    "dims": ("config.add_output({'name': 'Y', 'data_type': 'TYPE_INT32', 'dims': [2]})", "",
             "model 'dims', tensor 'Y': the model expects dims [2] but the model configuration specifies dims [1]"),
    "optional": ("config.add_input({'name': 'X', 'optional': True, **TENSOR})", "",
                 "model 'optional', tensor 'X': the model expects optional True but the model configuration specifies optional False"),
    "outputs": ("config.add_output({'name': 'Z', 'optional': True, **TENSOR})", "",
                "output 'Z' in auto-complete-config function for model 'outputs' contains property other than 'name', 'data_type' and 'dims'."),
    "policy": ("config.set_model_transaction_policy({'decoupled': True})", "model_transaction_policy { decoupled: false }\n",
               "trying to change decoupled property in auto-complete-config for model 'policy', which is already set to 'False'."),
    "policies": ("config.set_model_transaction_policy({'coupled': True})", "",
                 "model transaction property in auto-complete-config function for model 'policies' contains property other than 'decoupled'."),
    "nothing": ("import builtins; config.__class__ = type('Other', (), {})", "",
                "auto_complete_config function in model 'nothing' must return a valid pb.ModelConfig object."),
}
ACCEPTED = {
    "larger": ("config.set_max_batch_size(8); config.set_dynamic_batching()", 'backend: "python"\n'
               'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }\n'),
    "whole": ("config.set_max_batch_size(0); config.add_input({'name': 'X', 'optional': True, **TENSOR}); "
              "config.add_output({'name': 'Y', **TENSOR}); "
              "config.set_model_transaction_policy({'decoupled': True}); assert config.as_dict()['name'] == 'whole'", 'backend: "python"\n'),
}


@everywhere
class Completed:
    """`auto_complete_config`."""

    flags = ("--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=explicit", "--load-model=script")

    @staticmethod
    def models(repository):
        for name, (line, more, _) in REFUSED.items():
            text = COMPLETES.replace('    """What the test does here."""', f"    {line}")
            repository.model(name, BASE + more, files={"1/model.py": text.encode()})
        for name, (line, config) in ACCEPTED.items():
            text = COMPLETES.replace('    """What the test does here."""', f"    {line}")
            repository.model(name, config, files={"1/model.py": text.encode()})

    def test_refused(self):
        for name, (_, _, reason) in REFUSED.items():
            if name == "nothing" and not self.is_ours:
                continue
            with self.subTest(name):
                status, reply = self.server.post_json(f"/v2/repository/models/{name}/load", {})
                self.assertEqual(status, 400)
                self.assertIn(reason, json.loads(reply)["error"])

    def test_accepted(self):
        for name in ACCEPTED:
            self.assertEqual(self.server.post_json(f"/v2/repository/models/{name}/load", {})[0], 200)
        larger, whole = (self.server.get_json(f"/v2/models/{name}/config") for name in ACCEPTED)
        self.assertEqual((larger["max_batch_size"], "dynamic_batching" in larger), (8, True))
        self.assertEqual((whole["max_batch_size"], whole["model_transaction_policy"]["decoupled"], whole["input"][0]["optional"]), (0, True, True))
        self.assertEqual([(row["name"], row["data_type"], row["dims"]) for row in whole["output"]], [("Y", "TYPE_INT32", [1])])


@everywhere
class Surroundings:
    """What a model is told of itself, and what it writes into the log."""

    flags = ("--log-verbose=1",)

    @staticmethod
    def models(repository):
        force = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
        repository.model("forced", adding(3) + force, files={"1/model.py": ADDS.encode()})

    ask = Controlled.ask

    def test_arguments(self):
        folder = str(self.repository.path / "script")
        self.check(
            ("sorted(args)", ["model_config", "model_instance_device_id", "model_instance_kind", "model_instance_name", "model_name",
                              "model_repository", "model_version"]),
            ("[args[key] for key in ('model_instance_device_id', 'model_instance_kind', 'model_instance_name', 'model_name', 'model_version')]",
             ["0", "CPU", "script_0_0", "script", "1"]),
            ("[args['model_repository'], pb_utils.get_model_dir()]", [folder, f"{folder}/1"]),
            ("[(lambda found: found and found['data_type'])(pb_utils.get_input_config_by_name(json.loads(args['model_config']), name)) "
             "for name in ('CODE', 'NO')]", ["TYPE_STRING", None]),
            ("(lambda found: found and found['dims'])(pb_utils.get_output_config_by_name(json.loads(args['model_config']), 'RESULT'))", [1]),
            ("pb_utils.using_decoupled_model_transaction_policy(json.loads(args['model_config']))", False),
            ("[pb_utils.using_decoupled_model_transaction_policy(config) for config in ({}, {'model_transaction_policy': {'decoupled': True}})]",
             [False, True]),
            ("pb_utils.get_input_tensor_by_name(request, 'NO')", None),
        )

    def test_log(self):
        """Lines with the level, the file and the line of the model."""
        self.check(("pb_utils.Logger.log('plain'); pb_utils.Logger.log('chosen', pb_utils.Logger.ERROR)\n"
                    "pb_utils.Logger.log(message='named', level=pb_utils.Logger.LogLevel.WARNING)\n"
                    "pb_utils.Logger.log_info('info'); pb_utils.Logger.log_warn('warn'); pb_utils.Logger.log_error('error')\n"
                    "pb_utils.Logger.log_verbose('verbose')\nresult = str(pb_utils.Logger.WARNING)", "LogLevel.WARNING"))
        for level, line, text in (("I", 1, "plain"), ("E", 1, "chosen"), ("W", 2, "named"), ("I", 3, "info"), ("W", 3, "warn"), ("E", 3, "error"),
                                  ("I", 4, "verbose")):
            with self.subTest(text):
                self.server.wait_for_match(rf'(?m)^{level}\d{{4}} [0-9:.]+ \d+ script:{line}\] "{text}"$')

    def test_inputs_in_main_memory(self):
        self.assertEqual(self.ask("forced"), 13)


if __name__ == "__main__":
    unittest.main()
