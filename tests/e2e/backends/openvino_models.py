"""Models in OpenVINO's own format as text, so that tests need no OpenVINO to make them; and files that cannot be served."""

import numpy

import onnx_faults

FLOAT = ("f32", "FP32", "<f4")


def port(number, kind, dims, names=None):
    called = f' names="{names}"' if names else ""
    shape = "".join(f"<dim>{dim}</dim>" for dim in dims)
    return f'<port id="{number}" precision="{kind}"{called}>{shape}</port>'


def layout(text):
    return f'<rt_info><attribute name="layout" version="0" layout="{text}" /></rt_info>' if text else ""


def scaled(dims=(-1, 4), weights=(0, 1, 2, 3), element=FLOAT, layouts=None, **changed):
    """Y = X * weights, as the files of a model. `changed` puts other texts into the XML for tests of what is wrong."""
    short, long, code = element
    content = numpy.asarray(weights, code).tobytes()
    width = len(weights)
    shown = ",".join("?" if dim < 0 else str(dim) for dim in dims)
    text = f'''<?xml version="1.0"?>
<net name="scaled" version="11"><layers>
<layer id="0" name="X" type="Parameter" version="opset1"><data shape="{shown}" element_type="{short}" />{layout(layouts)}
<output>{port(0, long, dims, "X")}</output></layer>
<layer id="1" name="weights" type="Const" version="opset1"><data element_type="{short}" shape="{width}" offset="0" size="{len(content)}" />
<output>{port(0, long, [width])}</output></layer>
<layer id="2" name="times" type="Multiply" version="opset1"><data auto_broadcast="numpy" />
<input>{port(0, long, dims)}{port(1, long, [width])}</input><output>{port(2, long, dims, "Y")}</output></layer>
<layer id="3" name="Y_result" type="Result" version="opset1">{layout(layouts)}<input>{port(0, long, dims)}</input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0" />
<edge from-layer="1" from-port="0" to-layer="2" to-port="1" />
<edge from-layer="2" from-port="2" to-layer="3" to-port="0" />
</edges></net>
'''
    for old, new in changed.get("instead", ()):
        assert old in text, old
        text = text.replace(old, new)
    return {"model.xml": text.encode(), "model.bin": content}


def whole_batches(rows=4):
    """Y = X * weights with weights for each row, so that no other number of rows fits."""
    files = scaled((rows, 4), instead=[(f'shape="4" offset="0" size="16"', f'shape="{rows},4" offset="0" size="{rows * 16}"'),
                                       (port(0, "FP32", [4]), port(0, "FP32", [rows, 4])), (port(1, "FP32", [4]), port(1, "FP32", [rows, 4]))])
    return files | {"model.bin": numpy.arange(rows * 4, dtype="<f4").tobytes()}


SOUND = scaled()
XML, WEIGHTS = SOUND["model.xml"], SOUND["model.bin"]


def instead(*pairs):
    return scaled(instead=pairs)


def own(xml, weights=WEIGHTS):
    files = {"model.xml": xml}
    return files if weights is None else files | {"model.bin": weights}


# By name: the files of a model.
FAULTS = {
    "empty": own(b""),
    "zeros": own(bytes(4096)),
    "noise": own(numpy.random.default_rng(7).bytes(4096)),
    "text": own(b"<html>404 Not Found</html>"),
    "cut_at_the_start": own(XML[:40]),
    "cut_in_the_middle": own(XML[:len(XML) // 2]),
    "cut_at_the_end": own(XML[:-10]),
    "without_weights": own(XML, None),
    "weights_cut": own(XML, WEIGHTS[:-1]),
    "weights_empty": own(XML, b""),
    "weights_beyond_the_end": instead(('offset="0"', 'offset="1000000"')),
    "offset_that_overflows": instead(('offset="0"', 'offset="18446744073709551615"')),
    "size_beyond_memory": instead(('size="16"', 'size="4611686018427387904"')),
    "size_that_does_not_fit": instead(('size="16"', 'size="8"')),
    "negative_shape": instead(('shape="4"', 'shape="-4"')),
    "shape_beyond_memory": instead(('shape="4"', 'shape="1099511627776,1099511627776"')),
    "shape_that_is_none": instead(('shape="?,4"', 'shape="many"')),
    "unknown_type": instead(('element_type="f32"', 'element_type="f31"')),
    "unknown_operator": instead(('type="Multiply"', 'type="Multiplyyy"')),
    "unknown_operator_set": instead(('version="opset1"', 'version="opset999"')),
    "version_of_the_future": instead(('version="11"', 'version="999"')),
    "edge_from_nowhere": instead(('from-layer="0"', 'from-layer="77"')),
    "edge_to_nowhere": instead(('to-layer="2" to-port="1"', 'to-layer="2" to-port="9"')),
    "circle": instead(('from-layer="0" from-port="0" to-layer="2" to-port="0"', 'from-layer="2" from-port="2" to-layer="2" to-port="0"')),
    "same_layer_twice": instead(('id="1" name="weights"', 'id="0" name="weights"')),
    "output_of_four_bits": own(XML.replace(b'"f32"', b'"u4"').replace(b'size="16"', b'size="2"')),
    "no_layers": own(b'<?xml version="1.0"?><net name="x" version="11"><layers></layers><edges></edges></net>'),
    "deep": own(b"<net>" + b"<layers>" * 100_000),
}

# Of the other formats: by file name, what cannot be served as it. `good` is a sound file of the format, or None.
def of_format(good, marker=b""):
    noise = numpy.random.default_rng(9).bytes(4096)
    files = {"empty": b"", "zeros": bytes(4096), "noise": noise, "text": b"<html>404 Not Found</html>", "marked_noise": marker + noise}
    if good:
        middle = bytearray(good)
        middle[len(good) // 2:len(good) // 2 + 64] = b"\xff" * 64
        files |= {"cut_at_the_start": good[:9], "cut_in_the_middle": good[:len(good) // 2], "cut_at_the_end": good[:-3],
                  "changed_in_the_middle": bytes(middle), "changed_at_the_start": good[:8] + b"\xff" * 64 + good[72:]}
    return files


ONNX_FAULTS = onnx_faults.FILES
