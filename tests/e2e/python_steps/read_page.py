"""Reads a page: finds its lines, turns those that stand on their heads, and reads each. The networks are models of the same server."""

import asyncio
import os

import numpy
import triton_python_backend_utils as pb_utils

# Pixels belong to text from this probability on; a line has at least this many of them.
THRESHOLD, PIXELS_MIN = 0.3, 40
# The detector sees a shrunk line: how far it goes beyond, as a part of its height.
GROWTH = 0.8
LINE_HEIGHT, LINE_WIDTH_MIN, SMALL_WIDTH = 48, 320, 192


def normalised(image):
    """FP32[3,h,w] between -1 and 1."""
    return ((image.astype(numpy.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)


def resized(image, height, width):
    """Another size, by the mean of the four nearest pixels."""
    def places(old, new):
        at = numpy.clip((numpy.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = at.astype(int)
        return low, numpy.minimum(low + 1, old - 1), at - low
    top, bottom, down = places(image.shape[0], height)
    left, right, along = places(image.shape[1], width)
    down, along = down[:, None, None], along[None, :, None]
    upper = image[top][:, left] * (1 - along) + image[top][:, right] * along
    lower = image[bottom][:, left] * (1 - along) + image[bottom][:, right] * along
    return upper * (1 - down) + lower * down


def lines_of(is_text):
    """The boxes (top, left, bottom, right) of connected pixels, from the top."""
    parents, runs, before = [], [], []

    def root(index):
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index
    for row, pixels in enumerate(is_text):
        edges = numpy.flatnonzero(numpy.diff(numpy.concatenate(([0], pixels.astype(numpy.int8), [0]))))
        here = []
        for left, right in zip(edges[::2], edges[1::2]):
            index = len(parents)
            parents.append(index)
            for other, other_left, other_right in before:
                if other_left < right and left < other_right:
                    parents[root(other)] = root(index)
            here.append((index, left, right))
            runs.append((index, row, left, right))
        before = here
    boxes = {}
    for index, row, left, right in runs:
        box = boxes.setdefault(root(index), [row, left, row, right - 1, 0])
        box[0], box[1], box[2], box[3] = min(box[0], row), min(box[1], left), max(box[2], row), max(box[3], right - 1)
        box[4] += right - left
    return sorted(tuple(box[:4]) for box in boxes.values() if box[4] >= PIXELS_MIN)


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "characters.txt"), encoding="utf-8") as file:
            self.characters = ["", *file.read().splitlines(), " "]

    async def call(self, model, output, image):
        request = pb_utils.InferenceRequest(model_name=model, requested_output_names=[output],
                                            inputs=[pb_utils.Tensor("x", numpy.ascontiguousarray(image, numpy.float32))])
        response = await request.async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(f"{model}: {response.error().message()}")
        return pb_utils.get_output_tensor_by_name(response, output).as_numpy()

    async def boxes(self, image):
        height, width = ((size + 31) // 32 * 32 for size in image.shape[:2])
        padded = numpy.pad(image, ((0, height - image.shape[0]), (0, width - image.shape[1]), (0, 0)), constant_values=255)
        found = await self.call("detect", "sigmoid_0.tmp_0", normalised(padded)[None])
        for top, left, bottom, right in lines_of(found[0, 0] > THRESHOLD):
            by = int(GROWTH * (bottom - top + 1)) + 1
            yield max(top - by, 0), max(left - by, 0), min(bottom + by, image.shape[0] - 1), min(right + by, image.shape[1] - 1)

    async def text(self, line):
        width = max(LINE_WIDTH_MIN, int(numpy.ceil(LINE_HEIGHT * line.shape[1] / line.shape[0])))
        inner = min(width, int(numpy.ceil(LINE_HEIGHT * line.shape[1] / line.shape[0])))
        image = numpy.zeros((1, 3, LINE_HEIGHT, width), numpy.float32)
        image[0, :, :, :inner] = normalised(resized(line, LINE_HEIGHT, inner))
        best = (await self.call("recognise", "softmax_11.tmp_0", image))[0].argmax(axis=1)
        # One of each run, without the blanks.
        return "".join(self.characters[this] for this, before in zip(best, [0, *best]) if this != before)

    async def read(self, image):
        if 0 in image.shape:
            raise pb_utils.TritonModelException("the page is empty")
        boxes = [box async for box in self.boxes(image)]
        lines = [image[top:bottom + 1, left:right + 1].astype(numpy.float32) for top, left, bottom, right in boxes]
        if not lines:
            return [], boxes
        small = numpy.stack([normalised(resized(line, LINE_HEIGHT, SMALL_WIDTH)) for line in lines])
        ways = await self.call("classify", "save_infer_model/scale_0.tmp_1", small)
        upright = [line[::-1, ::-1] if over > 0.5 else line for line, over in zip(lines, ways[:, 1])]
        return await asyncio.gather(*map(self.text, upright)), boxes

    async def execute(self, requests):
        responses = []
        for request in requests:
            texts, boxes = await self.read(pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy())
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("TEXT", numpy.array([text.encode() for text in texts], numpy.object_)),
                pb_utils.Tensor("BOX", numpy.array(boxes, numpy.int32).reshape(-1, 4))]))
        return responses
