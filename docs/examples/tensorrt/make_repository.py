#!/usr/bin/env python3
"""Makes a model of plans that TensorRT has built:  make_repository.py [--graphs] DIRECTORY NAME PLAN...

A PLAN is a file, such as trtexec --saveEngine writes; or CAPABILITY=FILE, a plan for the GPUs of one generation, such as 9.0=hopper.plan.
The server completes the configuration from the plan: the largest batch, inputs and outputs. --graphs has it capture CUDA graphs when it
loads the model.
"""

import pathlib
import re
import shutil
import sys


CAPABILITY = r"(\d+\.\d+)=(.+)"


def main():
    words = [word for word in sys.argv[1:] if word != "--graphs"]
    if len(words) < 3 or words[0].startswith("-"):
        sys.exit(__doc__)
    directory, name, *plans = words
    if sum(re.fullmatch(CAPABILITY, plan) is None for plan in plans) > 1:
        sys.exit("one PLAN at most is for all GPUs: name the capability of the others")
    version = pathlib.Path(directory, name, "1")
    version.mkdir(parents=True, exist_ok=True)
    config = 'platform: "tensorrt_plan"\n'
    for plan in plans:
        capability = re.fullmatch(CAPABILITY, plan)
        file = f"{capability[1]}.plan" if capability else "model.plan"
        shutil.copyfile(capability[2] if capability else plan, version / file)
        if capability:
            config += f'cc_model_filenames {{ key: "{capability[1]}" value: "{file}" }}\n'
    if "--graphs" in sys.argv:
        config += "optimization { cuda { graphs: true } }\n"
    version.with_name("config.pbtxt").write_text(config)


if __name__ == "__main__":
    main()
