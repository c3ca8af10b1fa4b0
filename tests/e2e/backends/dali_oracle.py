"""Run by a Python that has DALI: serialises the pipelines of the tests into a folder, with inputs and what DALI itself makes of them.

Of each pipeline `<name>.dali`, and of each call of it `<name>.<index>.npz` with `in.<input>` and `out.<index>`; samples lie along the
first dimension, and a call is one batch."""

import io
import pathlib
import struct
import sys

import numpy
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

PICTURES = ((60, 80), (70, 80), (33, 21), (128, 96))


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


def picture(shape, seed):
    pixels = numpy.random.default_rng(seed).integers(0, 255, (*shape, 3), dtype=numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG", quality=90)
    return numpy.frombuffer(file.getvalue(), numpy.uint8)


def sound(seconds, seed):
    samples = numpy.random.default_rng(seed).integers(-9000, 9000, int(8000 * seconds), dtype=numpy.int16).tobytes()
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    return numpy.frombuffer(head + b"data" + struct.pack("<I", len(samples)) + samples, numpy.uint8)


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


def main(folder):
    for name, make, inputs in calls():
        pipeline = make()
        content = pipeline.serialize()
        if name == "steps":
            content += b"\x40\x00"  # device 0: the last of a field that is there twice counts
        (folder / f"{name}.dali").write_bytes(content)
        pipeline = make(exec_async=False, exec_pipelined=False, prefetch_queue_depth=1)
        pipeline.build()
        for index, feeds in enumerate(inputs):
            for input_name, samples in feeds.items():
                pipeline.feed_input(input_name, list(samples), layout="HWC" if samples.ndim == 4 else None)
            outputs = pipeline.run()
            arrays = {f"out.{place}": numpy.stack([numpy.array(output[sample]) for sample in range(len(output))])
                      for place, output in enumerate(outputs)}
            numpy.savez(folder / f"{name}.{index}.npz", **{f"in.{key}": value for key, value in feeds.items()}, **arrays)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
