"""Makes a model repository for the tensorflow backend, with a Python that has TensorFlow (pip install tensorflow-cpu tritonclient[http]):

    python docs/examples/tensorflow/make_repository.py repository

    repository/regions   a SavedModel with two signatures: names of cities to those of their regions, through a table of its own
    repository/codes     the second signature of the same files: the region's number
    repository/addsub    a GraphDef: two vectors to their sum and difference

All run on CPUs. SavedModels say what they take and make, so that their configuration is completed from them; a GraphDef does not,
and has a whole one. To see them answer, from a server that serves the repository:

    python docs/examples/tensorflow/make_repository.py --send 127.0.0.1:8000
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CITIES = {"Brest": "Brittany", "Rennes": "Brittany", "Caen": "Normandy", "Rouen": "Normandy"}
REGIONS = sorted(set(CITIES.values()))

SAVED_MODEL = 'backend: "tensorflow"\nplatform: "tensorflow_savedmodel"\n'
CONFIGURATIONS = {
    # All but the platform is in the model.
    "regions": SAVED_MODEL,
    "codes": SAVED_MODEL + 'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "code" } }\n',
    "addsub": """backend: "tensorflow"
platform: "tensorflow_graphdef"
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "DIFFERENCE" data_type: TYPE_FP32 dims: [ -1 ] }
]
dynamic_batching { }
""",
}


def regions():
    """The module that is saved, and its signatures."""
    import tensorflow as tf

    class Regions(tf.Module):
        def __init__(self):
            super().__init__()
            codes = [REGIONS.index(region) for region in CITIES.values()]
            pairs = tf.lookup.KeyValueTensorInitializer(list(CITIES), tf.constant(codes, tf.int64))
            self.codes = tf.lookup.StaticHashTable(pairs, default_value=len(REGIONS))
            self.names = tf.constant([*REGIONS, "elsewhere"])

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.string, name="CITY")])
        def region(self, CITY):  # noqa: N803
            return {"REGION": tf.gather(self.names, self.codes.lookup(CITY))}

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.string, name="CITY")])
        def code(self, CITY):  # noqa: N803
            return {"CODE": self.codes.lookup(CITY)}

    module = Regions()
    return module, {"serving_default": module.region, "code": module.code}


def addsub():
    """The bytes of a graph."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        first = tf.compat.v1.placeholder(tf.float32, [None, None], "INPUT0")
        second = tf.compat.v1.placeholder(tf.float32, [None, None], "INPUT1")
        tf.add(first, second, "SUM")
        tf.subtract(first, second, "DIFFERENCE")
    return graph.as_graph_def().SerializeToString()


def make(folder):
    import tensorflow as tf

    for name, configuration in CONFIGURATIONS.items():
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(configuration)
    module, signatures = regions()
    for name in ("regions", "codes"):
        tf.saved_model.save(module, str(folder / name / "1/model.savedmodel"), signatures=signatures)
    (folder / "addsub/1/model.graphdef").write_bytes(addsub())


def send(address):
    import numpy
    import tritonclient.http as httpclient
    from tritonclient.utils import np_to_triton_dtype

    with httpclient.InferenceServerClient(address) as client:

        def ask(model, output, **feeds):
            inputs = []
            for name, value in feeds.items():
                inputs.append(httpclient.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
                inputs[-1].set_data_from_numpy(value)
            print(model, output, client.infer(model, inputs).as_numpy(output).tolist())

        cities = numpy.array([["Brest"], ["Rouen"], ["Lille"]], dtype=object)
        ask("regions", "REGION", CITY=cities)
        ask("codes", "CODE", CITY=cities)
        numbers = numpy.arange(4, dtype=numpy.float32)[None]
        ask("addsub", "SUM", INPUT0=numbers, INPUT1=numpy.full_like(numbers, 10))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--send", address]:
            send(address)
        case [folder] if not folder.startswith("-"):
            make(pathlib.Path(folder))
        case _:
            sys.exit(__doc__)
