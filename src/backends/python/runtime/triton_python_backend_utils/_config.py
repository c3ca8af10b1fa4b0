"""The configuration that a model completes."""

import json


class ModelConfig:
    """A model's configuration, which `auto_complete_config` may add to."""

    def __init__(self, model_config):
        self._model_config = json.loads(model_config)

    def as_dict(self):
        """The configuration, to read."""
        return self._model_config

    def _name(self):
        return self._model_config["name"]

    def set_max_batch_size(self, max_batch_size):
        """Raises ValueError if the configuration has a larger one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                             f"'{self._name()}' specified max_batch_size {max_batch_size}")
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        """Chooses the dynamic batcher. Raises ValueError if the configuration has another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model "
                                 f"'{self._name()}' tries to set scheduling_choice as 'dynamic_batching'")
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input):
        """Adds an input: a dict of name, data_type, dims and optional. Raises ValueError if the configuration says otherwise."""
        self._add("input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output):
        """Adds an output: a dict of name, data_type and dims. Raises ValueError if the configuration says otherwise."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def _add(self, kind, given, allowed, allowed_text):
        where = f"in auto-complete-config function for model '{self._name()}'"
        if any(key not in allowed for key in given):
            raise ValueError(f"{kind} '{given.get('name', '')}' {where} contains property other than {allowed_text}.")
        if "name" not in given:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        name = given["name"]
        for key in ("data_type", "dims"):
            if key not in given:
                raise ValueError(f"{kind} '{name}' {where} is missing '{key}' property.")
        for configured in self._model_config[kind]:
            if configured["name"] == name:
                self._check_same(kind, configured, given)
                configured.update({key: given[key] for key in ("data_type", "dims", "optional") if key in given})
                return
        self._model_config[kind].append(given)

    def _check_same(self, kind, configured, given):
        name, model = given["name"], self._name()
        if configured["data_type"] not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(f"unable to load model '{model}', configuration expects datatype {configured['data_type']} for {kind} '{name}', "
                             f"model provides {given['data_type']}")
        if configured["dims"] and configured["dims"] != given["dims"]:
            raise ValueError(f"model '{model}', tensor '{name}': the model expects dims {given['dims']} but the model configuration "
                             f"specifies dims {configured['dims']}")
        if "optional" in configured and "optional" in given and configured["optional"] != given["optional"]:
            raise ValueError(f"model '{model}', tensor '{name}': the model expects optional {given['optional']} but the model configuration "
                             f"specifies optional {configured['optional']}")

    def set_model_transaction_policy(self, transaction_policy_dict):
        """Takes {"decoupled": bool}. Raises ValueError if the configuration says otherwise."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(f"model transaction property in auto-complete-config function for model '{self._name()}' contains property other "
                             f"than 'decoupled'.")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            decoupled = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", decoupled) != decoupled:
                raise ValueError(f"trying to change decoupled property in auto-complete-config for model '{self._name()}', which is already "
                                 f"set to '{policy['decoupled']}'.")
            policy["decoupled"] = decoupled


def _tensor_config(model_config, kind, name):
    return next((tensor for tensor in model_config.get(kind, ()) if tensor["name"] == name), None)


def get_input_config_by_name(model_config, name):
    """The configuration of an input, as a dict; None if there is none."""
    return _tensor_config(model_config, "input", name)


def get_output_config_by_name(model_config, name):
    """The configuration of an output, as a dict; None if there is none."""
    return _tensor_config(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config):
    """Whether the model may send any number of responses to a request."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))
