"""Builds model repositories for tests, in a directory that goes away with its owner."""

import pathlib
import shutil
import tempfile


class Repository:
    """A temporary model repository. Methods return the repository, so that calls can be chained."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="conch-repository-")
        self.path = pathlib.Path(self._directory.name)

    def model(self, name, config, versions=("1",), files=None):
        """Adds a model: the text of its config.pbtxt (None: no file), empty version folders, and files by relative path."""
        model = self.path / name
        for version in versions:
            (model / str(version)).mkdir(parents=True, exist_ok=True)
        model.mkdir(exist_ok=True)
        if config is not None:
            (model / "config.pbtxt").write_text(config)
        for place, content in (files or {}).items():
            target = model / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, pathlib.Path):
                shutil.copyfile(content, target)
            else:
                target.write_bytes(content)
        return self

    def close(self):
        self._directory.cleanup()

    def __fspath__(self):
        return str(self.path)

    def __str__(self):
        return str(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def tensors(kind, rows):
    """The `input` or `output` part of a configuration; a row is (name, type without TYPE_, dims)."""
    return "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [ {", ".join(map(str, dims))} ] }}\n'
        for name, data_type, dims in rows)


def identity(inputs=(("INPUT0", "FP32", (-1,)),), outputs=None, batch=0, count=1, extra="", parameters=None):
    """The configuration of an identity model: output i is a copy of input i. Its responses carry no example parameters unless
    `parameters` asks for them; what is None there is left to the backend."""
    if outputs is None:
        outputs = [(name.replace("INPUT", "OUTPUT"), data_type, dims) for name, data_type, dims in inputs]
    text = f'backend: "identity"\nmax_batch_size: {batch}\n' + tensors("input", inputs) + tensors("output", outputs)
    text += f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"
    for key, value in {"example_response_parameters": "false", **(parameters or {})}.items():
        if value is not None:
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text + extra
