"""Writes classes that implement TensorRT's tables of functions, VRuntime, VCudaEngine and VExecutionContext of the headers in a folder,
by functions that end the process: stubs.py HEADERS >stubs.h. The double overrides those that the backend calls, whatever else a version
of the headers has."""

import pathlib
import re
import sys

CLASSES = {"VRuntime": "RuntimeStub", "VCudaEngine": "EngineStub", "VExecutionContext": "ContextStub"}


def functions(header, name):
    """The declarations of the pure functions of a class, without `virtual` and `= 0`."""
    body = re.search(rf"class {name}\b[^;{{]*\{{(.*?)\n\}};", header, re.DOTALL)
    if body is None:
        sys.exit(f"the headers have no class {name}")
    text = re.sub(r"//.*", "", body.group(1))
    return [" ".join(found.split()) for found in re.findall(r"virtual\s+([^;]*?)\s*=\s*0\s*;", text)]


def main():
    header = (pathlib.Path(sys.argv[1]) / "NvInferImpl.h").read_text(encoding="utf-8")
    for name, stub in CLASSES.items():
        print(f"class {stub} : public nvinfer1::apiv::{name} {{\n public:")
        for function in functions(header, name):
            called = re.search(r"(\w+)\(", function).group(1)
            # No `override`: some headers declare a function under a condition only.
            print(f'  {function} {{ unimplemented("{called}"); }}')
        print("};")


if __name__ == "__main__":
    main()
