#!/usr/bin/env python3
"""Makes a model repository with an ensemble whose first and last steps are those of the gpu_elementwise backend:

    python docs/examples/gpu_elementwise/make_repository.py repository
    conch --model-repository=repository

`normalize` takes images as a decoder gives them (UINT8, channels last) and makes what a network wants (FP32, channels first), with the
mean and the deviation of ImageNet. `network` stands for the network: it repeats its input. `half` makes FP16 of the result. With
--kind=KIND_GPU the steps run on a GPU, and between them tensors stay there.

    python docs/examples/gpu_elementwise/make_repository.py --send 127.0.0.1:8000

sends a picture of one colour and prints the three numbers that its pixels became. Needs nothing but Python."""

import argparse
import json
import pathlib
import urllib.request

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
COLOUR, SIZE = (255, 128, 0), (4, 4)


def tensor(kind, name, data_type, dims):
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_{data_type} dims: [ {", ".join(map(str, dims))} ] }} ]\n'


def parameters(**values):
    return "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items())


def configurations(kind):
    """Model -> text of its config.pbtxt."""
    group = f"max_batch_size: 16\ndynamic_batching {{ }}\ninstance_group [ {{ kind: {kind} }} ]\n"
    first, last = ("UINT8", (-1, -1, 3)), ("FP32", (3, -1, -1))
    scale = ",".join(str(1 / deviation) for deviation in DEVIATION)
    steps = "".join(
        f'  step [ {{ model_name: "{model}" model_version: -1\n'
        f'    input_map {{ key: "{key}" value: "{read}" }} output_map {{ key: "{output}" value: "{made}" }} }} ]\n'
        for model, key, read, output, made in (("normalize", "IMAGE", "IMAGE", "TENSOR", "image"),
                                               ("network", "INPUT0", "image", "OUTPUT0", "result"),
                                               ("half", "TENSOR", "result", "RESULT", "RESULT")))
    return {
        "normalize": 'backend: "gpu_elementwise"\n' + group + tensor("input", "IMAGE", *first) + tensor("output", "TENSOR", *last)
        + parameters(operation="normalize_image", mean=",".join(map(str, MEAN)), scale=scale),
        "network": 'backend: "identity"\n' + group + tensor("input", "INPUT0", *last) + tensor("output", "OUTPUT0", *last)
        + parameters(example_response_parameters="false"),
        "half": 'backend: "gpu_elementwise"\n' + group + tensor("input", "TENSOR", *last) + tensor("output", "RESULT", "FP16", last[1])
        + parameters(operation="cast"),
        "pipeline": 'platform: "ensemble"\nmax_batch_size: 16\n' + tensor("input", "IMAGE", *first)
        + tensor("output", "RESULT", "FP16", last[1]) + f"ensemble_scheduling {{\n{steps}}}\n",
    }


def make(repository, kind):
    for name, text in configurations(kind).items():
        folder = pathlib.Path(repository) / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(text)


def send(address):
    """The numbers of the first pixel, one for each channel. The picture goes to `normalize`, whose FP32 JSON can carry."""
    height, width = SIZE
    image = {"name": "IMAGE", "datatype": "UINT8", "shape": [1, height, width, 3], "data": list(COLOUR) * (height * width)}
    body = json.dumps({"inputs": [image]}).encode()
    with urllib.request.urlopen(f"http://{address}/v2/models/normalize/infer", body) as reply:
        data = json.load(reply)["outputs"][0]["data"]
    return [data[channel * height * width] for channel in range(3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", nargs="?", help="the folder to make")
    parser.add_argument("--kind", default="KIND_CPU", choices=("KIND_CPU", "KIND_GPU"))
    parser.add_argument("--send", metavar="HOST:PORT", help="ask a server that serves it")
    options = parser.parse_args()
    if options.repository:
        make(options.repository, options.kind)
    if options.send:
        print(" ".join(f"{value:.4f}" for value in send(options.send)))


if __name__ == "__main__":
    main()
