"""Models in OpenVINO's own format as text, so that tests need no OpenVINO to make them; and files that cannot be served."""

import numpy

import broken_files
import onnx_faults
import paddle_model

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
    files = scaled((rows, 4), instead=[('shape="4" offset="0" size="16"', f'shape="{rows},4" offset="0" size="{rows * 16}"'),
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
    **{name: own(content) for name, content in {**broken_files.OTHERS, **broken_files.cut(XML, 40, 10)}.items()},
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


# Of the other formats: by name, what cannot be served as a file of it. `good` is a sound file of the format.
def of_format(good, marker=b""):
    random = numpy.random.default_rng(9)
    noise = random.bytes(4096)
    size = len(good)

    def changed(share, content):
        at = min(int(size * share), size - len(content))
        return good[:at] + content + good[at + len(content):]

    scattered = bytearray(good)
    for at in random.integers(0, size, 64):
        scattered[at] ^= 0x55
    return {
        **broken_files.OTHERS, **broken_files.cut(good, 9, 3), "one_byte": good[:1], "ones": b"\xff" * 4096, "marked_noise": marker + noise,
        "cut_at_an_eighth": good[:size // 8], "cut_at_a_quarter": good[:size // 4], "cut_at_three_quarters": good[:size * 3 // 4],
        "without_its_start": good[8:], "changed_at_the_start": changed(8 / size, b"\xff" * 64),
        "changed_at_a_quarter": changed(0.25, b"\xff" * 64), "changed_in_the_middle": changed(0.5, b"\xff" * 64),
        "zeros_in_the_middle": changed(0.5, bytes(64)), "changed_at_three_quarters": changed(0.75, b"\x80" * 64),
        "changed_at_the_end": changed(1, b"\xff" * 64), "changed_all_over": bytes(scattered), "noise_in_the_middle": changed(0.5, noise[:min(256, size)]),
    }


ONNX_FAULTS = onnx_faults.FILES
PADDLE = paddle_model.scaled()
PROGRAM, PARAMETERS = PADDLE["model.pdmodel"], PADDLE["model.pdiparams"]


def paddle(parameters=PARAMETERS, **changed):
    files = {"model.pdmodel": paddle_model.scaled(**changed)["model.pdmodel"]}
    return files if parameters is None else files | {"model.pdiparams": parameters}


def weights(values=(0, 1, 2, 3), **changed):
    return paddle(paddle_model.weights(values, **changed))


PADDLE_FAULTS = {
    **{f"program_{name}": {"model.pdmodel": content, "model.pdiparams": PARAMETERS} for name, content in of_format(PROGRAM).items()},
    **{f"weights_{name}": paddle(content) for name, content in of_format(PARAMETERS).items()},
    "without_weights": paddle(None),
    "version_of_the_past": paddle(version=1_008_000),
    "version_of_the_future": paddle(version=1 << 60),
    "unknown_operator": paddle(operation="elementwise_mulll"),
    "unknown_type": paddle(kind=999),
    "four_weights_said_to_be_five": weights(dims=(5,)),
    "negative_shape": weights(dims=(-4,)),
    "shape_beyond_memory": weights(dims=(1 << 40, 1 << 40)),
    "shape_that_overflows": weights(dims=(1 << 62, 4)),
    "shapes_that_do_not_fit": weights(range(5)),
    "description_beyond_the_end": paddle(PARAMETERS[:16] + b"\xff\xff\xff\x7f" + PARAMETERS[20:]),
    "description_of_a_negative_size": paddle(PARAMETERS[:16] + b"\xff\xff\xff\xff" + PARAMETERS[20:]),
    "made_by_nothing": paddle(more=paddle_model.operator("relu", {"X": "absent"}, {"Out": "Y"})),
    "made_twice": paddle(more=paddle_model.operator("relu", {"X": "X"}, {"Out": "Y"})),
    "circle": paddle(more=paddle_model.operator("relu", {"X": "Y"}, {"Out": "X"})),
    "second_output": paddle(more=paddle_model.operator("fetch", {"X": "absent"}, {"Out": "fetch"}, col=7)),
    "output_of_a_high_number": paddle(more=paddle_model.operator("fetch", {"X": "Y"}, {"Out": "fetch"}, col=1 << 30)),
    "operator_without_inputs": paddle(more=paddle_model.operator("relu", {}, {"Out": "Y"})),
}

# What OpenVINO takes all the same: weights have no sums, and some rules it does not ask after.
LITE_SERVED = ("changed_at_a_quarter", "changed_in_the_middle", "noise_in_the_middle", "zeros_in_the_middle")
SAVED_SERVED = {
    "saved_model.pb": (),
    "variables/variables.index": (),
    "variables/variables.data-00000-of-00001": (
        "changed_all_over", "changed_at_the_start", "changed_at_a_quarter", "changed_in_the_middle", "changed_at_three_quarters",
        "changed_at_the_end", "zeros_in_the_middle", "noise_in_the_middle"),
}
PADDLE_SERVED = ("program_empty", "version_of_the_future", "made_twice", "circle", "output_of_a_high_number")
