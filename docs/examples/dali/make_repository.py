"""Makes a model repository for the dali backend, with a Python that has DALI (pip install nvidia-dali-cuda130 numpy pillow):

    python docs/examples/dali/make_repository.py repository

    repository/decode      JPEGs to images of 224 by 224, normalised, as a network for images wants them
    repository/arithmetic  two vectors to their sum and product

Both run on CPUs, need no driver, and leave their configuration to the backend. `repository/picture.jpg` is there to send:

    python docs/examples/dali/make_repository.py --send repository/picture.jpg 127.0.0.1:8000

sends it to a server that serves the repository, with the Python package tritonclient.
"""

import pathlib
import sys


def decode():
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=64, num_threads=1, device_id=None, output_dtype=[types.FLOAT], output_ndim=[3])
    def pipeline():
        encoded = fn.external_source(device="cpu", name="JPEG", dtype=types.UINT8, ndim=1)
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_x=224, resize_y=224)
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", mean=[123.7, 116.3, 103.5], std=[58.4, 57.1, 57.4])

    return pipeline()


def arithmetic():
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=64, num_threads=1, device_id=None, output_dtype=[types.FLOAT, types.FLOAT], output_ndim=[1, 1])
    def pipeline():
        a = fn.external_source(device="cpu", name="A", dtype=types.FLOAT, ndim=1)
        b = fn.external_source(device="cpu", name="B", dtype=types.FLOAT, ndim=1)
        return a + b, a * b

    return pipeline()


def make(folder):
    import numpy
    from PIL import Image

    for name, made in (("decode", decode()), ("arithmetic", arithmetic())):
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        made.serialize(filename=str(version / "model.dali"))
    # Names for the outputs, which the pipelines do not choose; all else is in the pipelines.
    (folder / "decode/config.pbtxt").write_text('backend: "dali"\noutput [ { name: "IMAGE", dims: [ 3, 224, 224 ] } ]\n')
    (folder / "arithmetic/config.pbtxt").write_text('backend: "dali"\noutput [ { name: "SUM" }, { name: "PRODUCT" } ]\n')
    columns, rows = numpy.meshgrid(numpy.arange(320), numpy.arange(240))
    pixels = numpy.stack([columns % 256, rows, (columns + rows) % 256], axis=2).astype(numpy.uint8)
    Image.fromarray(pixels).save(folder / "picture.jpg", quality=90)


def send(picture, address):
    import numpy
    import tritonclient.http as httpclient

    encoded = numpy.frombuffer(picture.read_bytes(), numpy.uint8)[None]
    tensor = httpclient.InferInput("JPEG", list(encoded.shape), "UINT8")
    tensor.set_data_from_numpy(encoded)
    image = httpclient.InferenceServerClient(address).infer("decode", [tensor]).as_numpy("IMAGE")
    print(image.shape, image.dtype, float(image.mean()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--send", picture, address]:
            send(pathlib.Path(picture), address)
        case [folder]:
            make(pathlib.Path(folder))
        case _:
            sys.exit(__doc__)
