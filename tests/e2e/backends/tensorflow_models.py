"""Models of TensorFlow for tests, and what TensorFlow itself answers: a program for a Python that has TensorFlow, which writes

    <folder>/<model>/…          the model's files, as they lie in a version's folder
    <folder>/<model>.npz        arrays `in.<case>.<name>` and `out.<case>.<name>` of each case

    tensorflow_models.py <folder> <folder of basic-pitch's SavedModel>
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy  # noqa: E402
import tensorflow as tf  # noqa: E402

SEED = 20
ONE_THREAD = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
TYPES = {"bool": tf.bool, "uint8": tf.uint8, "uint16": tf.uint16, "uint32": tf.uint32, "uint64": tf.uint64, "int8": tf.int8,
         "int16": tf.int16, "int32": tf.int32, "int64": tf.int64, "float16": tf.float16, "float32": tf.float32, "float64": tf.float64}


def floats(*shape, seed=SEED):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def spec(*shape, dtype=tf.float32, name=None):
    return tf.TensorSpec(shape, dtype, name=name)


class AddSub(tf.Module):
    @tf.function(input_signature=[spec(None, 16, name="INPUT0"), spec(None, 16, name="INPUT1")])
    def serve(self, INPUT0, INPUT1):  # noqa: N803
        return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}


class Words(tf.Module):
    """Strings in and out, of any number."""

    @tf.function(input_signature=[spec(None, None, dtype=tf.string, name="A"), spec(None, None, dtype=tf.string, name="B")])
    def serve(self, A, B):  # noqa: N803
        return {"JOINED": tf.strings.join([A, B], "-"), "LENGTH": tf.strings.length(A)}


class Scales(tf.Module):
    """Several signatures."""

    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(2.0)

    @tf.function(input_signature=[spec(None, 4, name="X")])
    def twice(self, X):  # noqa: N803
        return {"Y": X * self.factor}

    @tf.function(input_signature=[spec(None, 4, name="X")])
    def squared(self, X):  # noqa: N803
        return {"SQUARE": X * X, "SUM": tf.reduce_sum(X, axis=1)}


class Types(tf.Module):
    """Gives back what it gets: TensorFlow passes such tensors on without a copy."""

    @tf.function(input_signature=[spec(None, 3, dtype=dtype, name=f"in_{name}") for name, dtype in TYPES.items()])
    def serve(self, *tensors):
        return {f"out_{name}": tf.identity(tensor) for name, tensor in zip(TYPES, tensors)}


class Keeps(tf.Module):
    """Answers with the input of the run before: it keeps its inputs."""

    def __init__(self):
        super().__init__()
        self.last = tf.Variable(tf.zeros([4096]))

    @tf.function(input_signature=[spec(4096, name="X")])
    def serve(self, X):  # noqa: N803
        before = tf.identity(self.last.read_value())
        with tf.control_dependencies([before]):
            self.last.assign(X)
        return {"BEFORE": before}


class Scalars(tf.Module):
    @tf.function(input_signature=[spec(dtype=tf.int32, name="N"), spec(None, name="X")])
    def serve(self, N, X):  # noqa: N803
        return {"RANGE": tf.range(N), "TOTAL": tf.reduce_sum(X)}


class Network(tf.Module):
    """A convolution and two dense layers: what engines divide among threads."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(floats(5, 5, 3, 16) * 0.1)
        self.dense = tf.Variable(floats(16 * 28 * 28, 64, seed=1) * 0.01)

    @tf.function(input_signature=[spec(None, 32, 32, 3, name="IMAGE")])
    def serve(self, IMAGE):  # noqa: N803
        hidden = tf.nn.relu(tf.nn.conv2d(IMAGE, self.kernel, 1, "VALID"))
        return {"PROBABILITY": tf.nn.softmax(tf.reshape(hidden, [-1, 16 * 28 * 28]) @ self.dense)}


class Fails(tf.Module):
    @tf.function(input_signature=[spec(None, 1, dtype=tf.int32, name="I")])
    def serve(self, I):  # noqa: N803, E741
        tf.debugging.assert_less(I, 10, message="too large for this model")
        return {"O": I + 1}


class Fill(tf.Module):
    """As many zeros as it is told."""

    @tf.function(input_signature=[spec(1, dtype=tf.int64, name="COUNT")])
    def serve(self, COUNT):  # noqa: N803
        return {"ZEROS": tf.zeros(COUNT)}


class Sequence(tf.Module):
    """Adds up within a sequence, by the control of its start and an implicit state."""

    @tf.function(input_signature=[spec(None, 2, name="X"), spec(None, 1, dtype=tf.int32, name="START"), spec(None, 2, name="BEFORE")])
    def serve(self, X, START, BEFORE):  # noqa: N803
        total = X + tf.where(START == 1, tf.zeros_like(BEFORE), BEFORE)
        return {"TOTAL": tf.identity(total), "AFTER": total}


def plain(value):
    """Strings as numpy's own, which need no pickle."""
    value = numpy.asarray(value)
    return value.astype(bytes) if value.dtype == object else value


class Maker:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def answers(self, name, cases, run):
        arrays = {}
        for number, feeds in enumerate(cases):
            arrays |= {f"in.{number}.{key}": value for key, value in feeds.items()}
            arrays |= {f"out.{number}.{key}": plain(value) for key, value in run(feeds).items()}
        numpy.savez(self.folder / f"{name}.npz", **arrays)

    def saved_model(self, name, module, cases, signatures=None):
        path = self.folder / name / "model.savedmodel"
        tf.saved_model.save(module, str(path), signatures=signatures or module.serve)
        self.run_saved_model(name, path, cases)

    def run_saved_model(self, name, path, cases):
        """As the C API runs it: a session with the graph restored."""
        with tf.Graph().as_default(), tf.compat.v1.Session(config=ONE_THREAD) as session:
            meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
            signature = meta_graph.signature_def["serving_default"]

            def run(feeds):
                named = {signature.inputs[key].name: value for key, value in feeds.items()}
                return session.run({key: tensor.name for key, tensor in signature.outputs.items()}, named)

            self.answers(name, cases, run)

    def graph(self, name, build, cases, outputs, file="model.graphdef", initialise=None):
        graph = tf.Graph()
        with graph.as_default():
            build()
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / name / file).write_bytes(graph.as_graph_def().SerializeToString())

        def run(feeds):
            with tf.compat.v1.Session(graph=graph, config=ONE_THREAD) as session:
                if initialise:
                    session.run(initialise)
                named = {key if ":" in key else f"{key}:0": value for key, value in feeds.items()}
                values = session.run([output if ":" in output else f"{output}:0" for output in outputs], named)
                return dict(zip(outputs, values))

        self.answers(name, cases, run)


def build_addsub():
    first = tf.compat.v1.placeholder(tf.float32, [None, 16], "INPUT0")
    second = tf.compat.v1.placeholder(tf.float32, [None, 16], "INPUT1")
    tf.add(first, second, "OUTPUT0")
    tf.subtract(first, second, "OUTPUT1")


def build_split():
    """An operation with several outputs, and a string."""
    tf.split(tf.compat.v1.placeholder(tf.int32, None, "scope/NUMBERS"), 2, axis=-1, name="scope/SPLIT")
    tf.compat.v1.placeholder(tf.float32, [None], "UNUSED")
    tf.strings.upper(tf.compat.v1.placeholder(tf.string, None, "TEXT"), name="UPPER")


def build_loop():
    """A loop of operations, as TensorFlow 1 made them."""
    tf.compat.v1.disable_control_flow_v2()
    x = tf.compat.v1.placeholder(tf.float32, [None, 2], "X")
    _, doubled = tf.compat.v1.while_loop(lambda step, _: step < 3, lambda step, value: (step + 1, value * 2), (0, x))
    tf.identity(doubled, "Y")
    tf.compat.v1.enable_control_flow_v2()


def build_variables():
    factor = tf.compat.v1.get_variable("factor", initializer=tf.constant(3.0), use_resource=True)
    tf.multiply(tf.compat.v1.placeholder(tf.float32, [None, 2], "X"), factor.read_value(), "Y")
    tf.compat.v1.global_variables_initializer()


def tagged(folder):
    """A SavedModel of two graphs with tags of their own, which have the same variables."""
    builder = tf.compat.v1.saved_model.Builder(str(folder / "tagged/model.savedmodel"))
    for tag, factor in (("serve", 1.0), ("serve1", 5.0)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None, 2], "X")
            variable = tf.compat.v1.get_variable("factor", initializer=tf.constant(2.0))
            y = tf.multiply(x * factor, variable, "Y")
            session.run(tf.compat.v1.global_variables_initializer())
            info = tf.compat.v1.saved_model.build_tensor_info
            signature = tf.compat.v1.saved_model.build_signature_def({"X": info(x)}, {"Y": info(y)}, "tensorflow/serving/predict")
            if tag == "serve":
                builder.add_meta_graph_and_variables(session, [tag], {"only_one": signature})
            else:
                builder.add_meta_graph([tag], {"serving_default": signature})
    builder.save()


def words(*rows):
    return numpy.array(rows, dtype=object).astype(bytes)


def main():
    # How sums are split depends on the number of threads, and their last bits on that.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    folder = pathlib.Path(sys.argv[1])
    maker = Maker(folder)
    maker.saved_model("addsub", AddSub(), [{"INPUT0": floats(rows, 16), "INPUT1": floats(rows, 16, seed=rows)} for rows in (1, 3, 4)])
    maker.saved_model("words", Words(), [{"A": words(["conch", ""]), "B": words(["shell", "x" * 3000])},
                                         {"A": words(["1"], ["22"], ["333"]), "B": words([""], ["\u00e4".encode()], ["z"])}])
    scales = Scales()
    maker.saved_model("scales", scales, [{"X": floats(2, 4)}], {"serving_default": scales.twice, "squared": scales.squared})
    rng = numpy.random.default_rng(SEED)
    maker.saved_model("types", Types(), [{f"in_{name}": rng.integers(0, 2 if name == "bool" else 100, (2, 3)).astype(dtype.as_numpy_dtype)
                                          for name, dtype in TYPES.items()}])
    maker.saved_model("keeps", Keeps(), [])
    maker.saved_model("scalars", Scalars(), [{"N": numpy.int32(5), "X": floats(3)}])
    maker.saved_model("network", Network(), [{"IMAGE": floats(rows, 32, 32, 3)} for rows in (1, 4)])
    maker.saved_model("fails", Fails(), [{"I": numpy.array([[1], [9]], numpy.int32)}])
    maker.saved_model("fill", Fill(), [{"COUNT": numpy.array([3])}])
    maker.saved_model("sequence", Sequence(), [])
    maker.graph("graph", build_addsub, [{"INPUT0": floats(rows, 16), "INPUT1": floats(rows, 16, seed=rows)} for rows in (1, 5)],
                ["OUTPUT0", "OUTPUT1"])
    maker.graph("split", build_split, [{"scope/NUMBERS": numpy.arange(12, dtype=numpy.int32).reshape(2, 6), "TEXT": words("a", "bc")}],
                ["scope/SPLIT", "scope/SPLIT:1", "UPPER"])
    maker.graph("loop", build_loop, [{"X": floats(2, 2)}], ["Y"])
    maker.graph("variables", build_variables, [{"X": floats(2, 2)}], ["Y"], initialise="init")
    (folder / "variables/init_ops.json").write_text(json.dumps({"init_ops": ["init"]}))
    tagged(folder)
    audio = pathlib.Path(sys.argv[2])
    cases = [{"input_2": floats(rows, 43844, 1) * 0.1} for rows in (1, 2)]
    maker.run_saved_model("basic_pitch", audio, cases)
    (folder / "version").write_text(tf.__version__)


main()
