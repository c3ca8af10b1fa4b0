"""Run by a Python that has DALI: serialises the pipelines of the tests into a folder, with inputs and what DALI itself makes of them.

Of each pipeline `<name>.dali`, and its calls as cases in `<name>.npz`; outputs have their numbers as names. Samples lie along the first
dimension, and a call is one batch."""

import io
import pathlib
import struct
import sys

import numpy
import nvidia.dali
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

import cases

PICTURES = ((60, 80), (70, 80), (33, 21), (128, 96))
SEQUENCE = 4
# Of movies; their last sequence may be short. A pipeline of 1.53 frees memory twice when it gets its second movie.
FRAMES = () if nvidia.dali.__version__.startswith("1.") else (8, 4, 10)


@pipeline_def(batch_size=16, num_threads=2, device_id=None, output_dtype=[types.UINT8], output_ndim=[3])
def jpeg():
    encoded = fn.external_source(device="cpu", name="JPEG", dtype=types.UINT8, ndim=1)
    return fn.resize(fn.decoders.image(encoded, device="cpu", output_type=types.RGB), resize_x=64, resize_y=48)


@pipeline_def(batch_size=16, num_threads=2, device_id=None, output_dtype=[types.FLOAT], output_ndim=[3])
def normalise():
    image = fn.external_source(device="cpu", name="IMAGE", dtype=types.UINT8, ndim=3, layout="HWC")
    image = fn.resize(image, resize_x=32, resize_y=24)
    return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", mean=[123.7, 116.3, 103.5], std=[58.4, 57.1, 57.4])


@pipeline_def(batch_size=16, num_threads=2, device_id=None, output_dtype=[types.FLOAT], output_ndim=[1])
def audio():
    encoded = fn.external_source(device="cpu", name="WAV", dtype=types.UINT8, ndim=1)
    return fn.decoders.audio(encoded, dtype=types.FLOAT, downmix=True)[0]


@pipeline_def(batch_size=16, num_threads=2, device_id=None)
def arithmetic():
    a = fn.external_source(device="cpu", name="A")
    b = fn.external_source(device="cpu", name="B")
    return a + b, a * b


# As pipelines are that were made where there is a GPU, without one of the operators that need it.
@pipeline_def(batch_size=16, num_threads=2, device_id=None, output_dtype=[types.INT32], output_ndim=[2])
def steps():
    a = fn.external_source(device="cpu", name="A", dtype=types.INT32, ndim=2)
    return a + 1


# Its output has a name of its own.
@pipeline_def(batch_size=16, num_threads=2, device_id=None, output_dtype=[types.INT32], output_ndim=[2])
def rows():
    return fn.cast(fn.external_source(device="cpu", name="A", dtype=types.INT32, ndim=2), dtype=types.INT32, name="ROWS")


# Takes a movie and makes a batch of one sequence in each run.
@pipeline_def(batch_size=1, num_threads=1, device_id=None, output_dtype=[types.UINT8], output_ndim=[4])
def video():
    return fn.experimental.inputs.video(name="VIDEO", device="cpu", sequence_length=SEQUENCE, last_sequence_policy="partial")


def picture(shape, seed):
    return encoded(numpy.random.default_rng(seed).integers(0, 255, (*shape, 3), dtype=numpy.uint8))


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG", quality=90)
    return numpy.frombuffer(file.getvalue(), numpy.uint8)


def sound(seconds, seed):
    samples = numpy.random.default_rng(seed).integers(-9000, 9000, int(8000 * seconds), dtype=numpy.int16).tobytes()
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    return numpy.frombuffer(head + b"data" + struct.pack("<I", len(samples)) + samples, numpy.uint8)


def chunk(name, content):
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def movie(count, height=48, width=64):
    """Frames of one colour each, as JPEGs in an AVI."""
    frames = [encoded(numpy.full((height, width, 3), (index * 20, 100, 50), numpy.uint8)).tobytes() for index in range(count)]
    main = struct.pack("<14I", 40000, 0, 0, 0x10, count, 0, 1, 0, width, height, 0, 0, 0, 0)
    stream = b"vidsMJPG" + struct.pack("<IHHIIIIIIIIHHHH", 0, 0, 0, 0, 1, 25, 0, count, 0, 0xffffffff, 0, 0, 0, width, height)
    form = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, b"MJPG", width * height * 3, 0, 0, 0, 0)
    heads = b"hdrl" + chunk(b"avih", main) + chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", form))
    chunks = [chunk(b"00dc", frame) for frame in frames]
    starts = numpy.cumsum([4, *map(len, chunks)])
    index = b"".join(b"00dc" + struct.pack("<III", 0x10, start, len(frame)) for start, frame in zip(starts, frames))
    return numpy.frombuffer(chunk(b"RIFF", b"AVI " + chunk(b"LIST", heads) + chunk(b"LIST", b"movi" + b"".join(chunks)) + chunk(b"idx1", index)),
                            numpy.uint8)


def padded(rows):
    """One array of them, filled up with zeros, as clients send encoded files of different length."""
    joined = numpy.zeros((len(rows), max(map(len, rows))), numpy.uint8)
    for row, bytes_ in zip(joined, rows):
        row[:len(bytes_)] = bytes_
    return joined


def calls():
    noise = numpy.random.default_rng(7)
    pictures = [picture(shape, seed) for seed, shape in enumerate(PICTURES)]
    yield "jpeg", jpeg, [{"JPEG": one[None]} for one in pictures] + [{"JPEG": padded(pictures)}]
    yield "normalise", normalise, [{"IMAGE": noise.integers(0, 255, (count, height, width, 3), dtype=numpy.uint8)}
                                   for count, height, width in ((1, 60, 80), (4, 33, 21), (2, 24, 32), (1, 200, 7), (1, 0, 4))]
    yield "audio", audio, [{"WAV": sound(seconds, seed)[None]} for seed, seconds in enumerate((0.1, 0.25, 0.02))]
    yield "arithmetic", arithmetic, [{name: noise.standard_normal((count, length)).astype(numpy.float32) for name in "AB"}
                                     for count, length in ((1, 4), (3, 9), (16, 1), (1, 1000))]
    yield "steps", steps, [{"A": noise.integers(-9, 9, shape, dtype=numpy.int32)} for shape in ((1, 3, 5), (2, 4, 2))]
    yield "rows", rows, [{"A": noise.integers(-9, 9, (2, 4, 3), dtype=numpy.int32)}]
    yield "video", video, [{"VIDEO": movie(count)[None]} for count in FRAMES]


def stacked(output):
    return numpy.stack([numpy.array(output[sample]) for sample in range(len(output))])


def main(folder):
    for name, make, inputs in calls():
        pipeline = make()
        content = pipeline.serialize()
        if name == "steps":
            content += b"\x40\x00"  # device 0: the last of a field that is there twice counts
        (folder / f"{name}.dali").write_bytes(content)
        pipeline = make(exec_async=False, exec_pipelined=False, prefetch_queue_depth=1)
        pipeline.build()
        answered = []
        for index, feeds in enumerate(inputs):
            for input_name, samples in feeds.items():
                pipeline.feed_input(input_name, list(samples), layout="HWC" if samples.ndim == 4 else None)
            # A movie makes several batches of one output. What a run made is gone with the next one.
            runs = range(0, FRAMES[index], SEQUENCE) if name == "video" else range(1)
            made = [stacked(output) for _ in runs for output in pipeline.run()]
            answered.append((feeds, {str(place): array for place, array in enumerate(made)}))
        cases.write(folder / f"{name}.npz", answered)
    (folder / "version").write_text(nvidia.dali.__version__)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
