#!/usr/bin/env python3
"""Makes a model repository for the openvino backend:  make_repository.py DIRECTORY

- `scale`, in OpenVINO's own format, written here without OpenVINO: Y = X * [0, 1, 2, 3], in batches of up to 8 rows;
- `magika`, which tells what kind of file it is shown, the ONNX file that scripts/fetch-models fetches, if it is there.
"""

import pathlib
import shutil
import struct
import sys

XML = """<?xml version="1.0"?>
<net name="scale" version="11">
  <layers>
    <layer id="0" name="X" type="Parameter" version="opset1">
      <data shape="?,4" element_type="f32" />
      <output><port id="0" precision="FP32" names="X"><dim>-1</dim><dim>4</dim></port></output>
    </layer>
    <layer id="1" name="weights" type="Const" version="opset1">
      <data element_type="f32" shape="4" offset="0" size="16" />
      <output><port id="0" precision="FP32"><dim>4</dim></port></output>
    </layer>
    <layer id="2" name="times" type="Multiply" version="opset1">
      <data auto_broadcast="numpy" />
      <input>
        <port id="0" precision="FP32"><dim>-1</dim><dim>4</dim></port>
        <port id="1" precision="FP32"><dim>4</dim></port>
      </input>
      <output><port id="2" precision="FP32" names="Y"><dim>-1</dim><dim>4</dim></port></output>
    </layer>
    <layer id="3" name="result" type="Result" version="opset1">
      <input><port id="0" precision="FP32"><dim>-1</dim><dim>4</dim></port></input>
    </layer>
  </layers>
  <edges>
    <edge from-layer="0" from-port="0" to-layer="2" to-port="0" />
    <edge from-layer="1" from-port="0" to-layer="2" to-port="1" />
    <edge from-layer="2" from-port="2" to-layer="3" to-port="0" />
  </edges>
</net>
"""

CONFIG = 'backend: "openvino"\nmax_batch_size: 8\ndynamic_batching { }\n'


def add(repository, name, config, files):
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    for file, content in files.items():
        if isinstance(content, pathlib.Path):
            shutil.copyfile(content, version / file)
        else:
            (version / file).write_bytes(content)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    repository = pathlib.Path(sys.argv[1])
    add(repository, "scale", CONFIG, {"model.xml": XML.encode(), "model.bin": struct.pack("<4f", 0, 1, 2, 3)})
    magika = pathlib.Path(__file__).resolve().parents[1] / "model_repository/magika/1/model.onnx"
    if magika.exists():
        add(repository, "magika", CONFIG + 'default_model_filename: "model.onnx"\n', {"model.onnx": magika})
    else:
        print("magika is left out: run scripts/fetch-models", file=sys.stderr)


if __name__ == "__main__":
    main()
