"""Two pipelines of real models, put together as a user of an ensemble would: the models as they come from their wheels, and between them
what they do not do themselves, as small ONNX models of a few operators."""

import numpy

import onnx_model
import server as servers
from onnx_model import FLOAT, INT64, constant, node
from repository import tensors

MODELS = servers.CACHE / "models"


def onnx(inputs, outputs, extra=""):
    return 'backend: "onnxruntime"\nmax_batch_size: 0\n' + tensors("input", inputs) + tensors("output", outputs) + extra


# openWakeWord: the sound becomes a spectrogram, windows of that become embeddings, and sixteen of those a score.

WINDOWS, WINDOW, STRIDE = 16, 76, 8


def windows():
    """FP32[16,76,32,1] from a spectrogram: scaled as the embeddings want it, in windows that overlap."""
    starts = [start * STRIDE + offset for start in range(WINDOWS) for offset in range(WINDOW)]
    return onnx_model.model(
        [("spectrogram", FLOAT, ("a", "b", "c", 32))], [("windows", FLOAT, (WINDOWS, WINDOW, 32, 1))],
        [node("Reshape", ["spectrogram", "rows"], ["frames"]), node("Mul", ["frames", "tenth"], ["scaled"]),
         node("Add", ["scaled", "two"], ["shifted"]), node("Gather", ["shifted", "starts"], ["cut"], axis=0),
         node("Unsqueeze", ["cut", "last"], ["windows"])],
        [constant("rows", [-1, 32]), constant("tenth", [0.1], FLOAT), constant("two", [2.0], FLOAT), constant("last", [3]),
         constant("starts", starts, INT64, [WINDOWS, WINDOW])])


def wake_word(repository, step, ensemble, word="alexa_v0.1"):
    source = MODELS / "openwakeword"
    spectrogram, embedding = [("output", "FP32", (-1, 1, -1, 32))], [("conv2d_19", "FP32", (-1, 1, 1, 96))]
    repository.model("spectrogram", onnx([("input", "FP32", (1, -1))], spectrogram), files={"1/model.onnx": source / "melspectrogram.onnx"})
    repository.model("windows", onnx([("spectrogram", "FP32", (-1, -1, -1, 32))], [("windows", "FP32", (WINDOWS, WINDOW, 32, 1))]),
                     files={"1/model.onnx": windows()})
    repository.model("embedding", onnx([("input_1", "FP32", (-1, WINDOW, 32, 1))], embedding), files={"1/model.onnx": source / "embedding_model.onnx"})
    # What the embeddings are is the same in another shape.
    reshaped = onnx([("onnx::Flatten_0", "FP32", (WINDOWS, 1, 1, 96))], [("13", "FP32", (1, 1))])
    reshaped = reshaped.replace("96 ]", f"96 ] reshape {{ shape: [ 1, {WINDOWS}, 96 ] }}", 1)
    repository.model("word", reshaped, files={"1/model.onnx": source / f"{word}.onnx"})
    steps = [step("spectrogram", {"input": "sound"}, {"output": "spectrogram"}),
             step("windows", {"spectrogram": "spectrogram"}, {"windows": "windows"}),
             step("embedding", {"input_1": "windows"}, {"conv2d_19": "embeddings"}),
             step("word", {"onnx::Flatten_0": "embeddings"}, {"13": "score"})]
    repository.model("wake_word", ensemble(steps, [("sound", "FP32", (1, -1))], [("score", "FP32", (1, 1))]))


# rapidocr: where there is text, which way up it is, and what it says.

PAD = 8


def cut():
    """The line of text in an image: what the detector's map shows, and a little around it, in the sizes of the other two models."""
    edge = {"axis": 0, "keepdims": 1}
    return onnx_model.model(
        [("image", FLOAT, (1, 3, "h", "w")), ("map", FLOAT, (1, 1, "h", "w"))],
        [("small", FLOAT, (1, 3, 48, 192)), ("line", FLOAT, (1, 3, 48, 320))],
        [node("Greater", ["map", "threshold"], ["is_text"]), node("Cast", ["is_text"], ["text"], to=FLOAT),
         node("ReduceMax", ["text"], ["rows"], axes=[0, 1, 3], keepdims=0), node("ReduceMax", ["text"], ["columns"], axes=[0, 1, 2], keepdims=0),
         node("ArgMax", ["rows"], ["top"], **edge), node("ArgMax", ["rows"], ["bottom"], **edge, select_last_index=1),
         node("ArgMax", ["columns"], ["left"], **edge), node("ArgMax", ["columns"], ["right"], **edge, select_last_index=1),
         node("Concat", ["top", "left"], ["first"], axis=0), node("Concat", ["bottom", "right"], ["last"], axis=0),
         node("Sub", ["first", "pad"], ["outside"]), node("Max", ["outside", "zeros"], ["starts"]), node("Add", ["last", "past"], ["ends"]),
         node("Slice", ["image", "starts", "ends", "axes"], ["cut"]),
         node("Resize", ["cut", "", "", "small_size"], ["small"], mode="linear"),
         node("Resize", ["cut", "", "", "line_size"], ["line"], mode="linear")],
        [constant("threshold", [0.3], FLOAT), constant("pad", [PAD, PAD]), constant("past", [PAD + 1, PAD + 1]), constant("zeros", [0, 0]),
         constant("axes", [2, 3]), constant("small_size", [1, 3, 48, 192]), constant("line_size", [1, 3, 48, 320])])


def turn():
    """The line the right way up."""
    return onnx_model.model(
        [("line", FLOAT, (1, 3, 48, 320)), ("ways", FLOAT, (1, 2))], [("upright", FLOAT, (1, 3, 48, 320))],
        [node("Slice", ["ways", "one", "two", "one"], ["over"]), node("Greater", ["over", "threshold"], ["is_over"]),
         node("Slice", ["line", "last", "before", "axes", "back"], ["turned"]), node("Where", ["is_over", "turned", "line"], ["upright"])],
        [constant("one", [1]), constant("two", [2]), constant("threshold", [0.5], FLOAT), constant("last", [-1, -1]),
         constant("before", [-1_000_000, -1_000_000]), constant("axes", [2, 3]), constant("back", [-1, -1])])


def best():
    """The most likely character of each column."""
    return onnx_model.model([("scores", FLOAT, (1, "t", 6625))], [("characters", INT64, (1, "t"))],
                            [node("ArgMax", ["scores"], ["characters"], axis=2, keepdims=0)])


def reading(repository, step, ensemble):
    source = MODELS / "rapidocr"
    image, line, small = (1, 3, -1, -1), (1, 3, 48, 320), (1, 3, 48, 192)
    for name, inputs, outputs, file in (
            ("detect", [("x", "FP32", image)], [("sigmoid_0.tmp_0", "FP32", (-1, 1, -1, -1))], source / "ch_PP-OCRv4_det_infer.onnx"),
            ("cut", [("image", "FP32", image), ("map", "FP32", (1, 1, -1, -1))], [("small", "FP32", small), ("line", "FP32", line)], cut()),
            ("classify", [("x", "FP32", small)], [("save_infer_model/scale_0.tmp_1", "FP32", (-1, 2))],
             source / "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
            ("turn", [("line", "FP32", line), ("ways", "FP32", (1, 2))], [("upright", "FP32", line)], turn()),
            ("recognise", [("x", "FP32", line)], [("softmax_11.tmp_0", "FP32", (-1, -1, 6625))], source / "ch_PP-OCRv4_rec_infer.onnx"),
            ("best", [("scores", "FP32", (1, -1, 6625))], [("characters", "INT64", (1, -1))], best())):
        repository.model(name, onnx(inputs, outputs), files={"1/model.onnx": file})
    steps = [step("detect", {"x": "image"}, {"sigmoid_0.tmp_0": "map"}),
             step("cut", {"image": "image", "map": "map"}, {"small": "small", "line": "line"}),
             step("classify", {"x": "small"}, {"save_infer_model/scale_0.tmp_1": "ways"}),
             step("turn", {"line": "line", "ways": "ways"}, {"upright": "upright"}),
             step("recognise", {"x": "upright"}, {"softmax_11.tmp_0": "scores"}),
             step("best", {"scores": "scores"}, {"characters": "characters"})]
    repository.model("read", ensemble(steps, [("image", "FP32", image)], [("ways", "FP32", (1, 2)), ("characters", "INT64", (1, -1))]))


GLYPHS = {"C": "01110 10001 10000 10000 10000 10001 01110", "O": "01110 10001 10001 10001 10001 10001 01110",
          "N": "10001 11001 10101 10011 10001 10001 10001", "H": "10001 10001 10001 11111 10001 10001 10001",
          "1": "00100 01100 00100 00100 00100 00100 01110", "2": "01110 10001 00001 00010 00100 01000 11111",
          "3": "11110 00001 00001 01110 00001 00001 11110", "7": "11111 00001 00010 00100 01000 01000 01000"}


def drawn(text, size=6, height=160, width=640):
    """An image of one line of text, black on white, as the models take it."""
    image = numpy.full((height, width), 255, numpy.float32)
    top, left = 60, 60
    for character in text:
        if character != " ":
            glyph = numpy.array([[int(pixel) for pixel in row] for row in GLYPHS[character].split()])
            glyph = numpy.kron(glyph, numpy.ones((size, size)))
            image[top:top + glyph.shape[0], left:left + glyph.shape[1]][glyph > 0] = 0
        left += 6 * size if character != " " else 4 * size
    # Soft edges.
    for axis in (0, 1):
        image = (numpy.roll(image, 1, axis) + 2 * image + numpy.roll(image, -1, axis)) / 4
    return numpy.ascontiguousarray(((image / 255 - 0.5) / 0.5)[None, None].repeat(3, 1), numpy.float32)
