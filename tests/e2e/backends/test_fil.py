"""The forest inference backend: forests of XGBoost, LightGBM and scikit-learn answer as their own libraries do, over HTTP and gRPC, in
batches and at once; Shapley values; configurations that are completed; files and configurations that are refused."""

import concurrent.futures
import json
import struct
import sys
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import cuda
import fil_models
import server as servers
from case import IS_TRITON, conch_only, needs_library
from fil_models import CLASS, forests
from framework import NEAR, FrameworkCase, infer, parameters
from oracle import run

EXAMPLE = servers.ROOT / "docs/examples/fil/make_repository.py"



def predict(module, client, model, rows, outputs=("output__0",)):
    return list(infer(module, client, model, {"input__0": rows}, outputs).values())


@needs_library("fil")
class FilCase(FrameworkCase):
    def assert_near(self, got, expected):
        expected = numpy.asarray(expected, numpy.float32)
        self.assertEqual(got.shape, expected.shape)
        # Sums of 32-bit numbers, in another order: as near as their size allows.
        numpy.testing.assert_allclose(got, expected, rtol=NEAR, atol=NEAR * max(1.0, float(numpy.abs(expected).max()) / 10))


class Answers(FilCase):
    @classmethod
    def models(cls, repository):
        for name, forest in forests().items():
            repository.model(name, forest.config(), files={f"1/{forest.file_name}": forest.content})
        forest = forests()["xgboost_binary"]
        repository.model("renamed", forest.config(extra='default_model_filename: "mine.bin"'), files={"1/mine.bin": forest.content})
        repository.model("unbatched", forest.config(batch=0).replace("dims: [ ", "dims: [ -1, ").replace("dynamic_batching {}\n", ""),
                         files={"1/xgboost.json": forest.content})
        repository.model("reads_less", forest.config().replace("dims: [ 30 ]", "dims: [ -1 ]"), files={"1/xgboost.json": forest.content})

    def test_batches_over_http_and_grpc(self):
        clients = self.both()
        for name, forest in forests().items():
            for module, client in clients:
                with self.subTest(model=name, client=module.__name__):
                    self.assert_near(predict(module, client, name, forest.rows)[0], forest.expected)

    def test_single_rows(self):
        client = self.grpc()
        for name, forest in forests().items():
            with self.subTest(model=name):
                got = [predict(grpcclient, client, name, forest.rows[index:index + 1])[0] for index in range(20)]
                self.assert_near(numpy.concatenate(got), forest.expected[:20])

    def test_thirty_two_at_once(self):
        client = self.grpc()
        names = [name for name in forests() if "explained" not in name]

        def check(index):
            name = names[index % len(names)]
            forest = forests()[name]
            start, count = index * 7 % 100, 1 + index % 13
            got = predict(grpcclient, client, name, forest.rows[start:start + count])[0]
            self.assert_near(got, forest.expected[start:start + count])

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            list(pool.map(check, range(640)))
        # One model alone, so that its requests are batched.
        names = ["xgboost_categories"]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            list(pool.map(check, range(640)))

    def test_shapley_values(self):
        for name in [name for name in forests() if "explained" in name]:
            forest = forests()[name]
            for module, client in self.both():
                with self.subTest(model=name, client=module.__name__):
                    answers, explained = predict(module, client, name, forest.rows[:64], ("output__0", "treeshap_output"))
                    self.assert_near(answers, forest.expected[:64])
                    expected = forest.explained[:64]
                    numpy.testing.assert_allclose(explained, expected, rtol=1e-3, atol=1e-4 * max(1, numpy.abs(expected).max()))
                    # Only the values, or only the answers.
                    self.assertEqual(predict(module, client, name, forest.rows[:2], ("treeshap_output",))[0].shape, explained[:2].shape)

    def test_another_file_name_and_no_batching(self):
        forest = forests()["xgboost_binary"]
        for name in ("renamed", "unbatched"):
            with self.subTest(model=name):
                self.assert_near(predict(httpclient, self.http(), name, forest.rows)[0], forest.expected)

    @conch_only
    def test_rows_of_another_width_are_refused(self):
        rows = forests()["xgboost_binary"].rows
        with self.assertRaisesRegex(Exception, "Expected \\[-1,30\\], got \\[3,29\\]"):
            predict(httpclient, self.http(), "reads_less", rows[:3, :29])
        self.assertEqual(predict(httpclient, self.http(), "reads_less", rows[:3])[0].shape, (3, 2))


class Completed(FilCase):
    @classmethod
    def models(cls, repository):
        for name, model, given in (("binary", "xgboost_binary", {}), ("proba", "xgboost_binary", {"predict_proba": "true"}),
                                   ("multi", "lightgbm_multi", {"predict_proba": "true"}), ("class", "lightgbm_multi", {}),
                                   ("numbers", "treelite_gradient_boosting_numbers", {})):
            forest = forests()[model]
            repository.model(name, 'backend: "fil"\n' + parameters(**given), files={f"1/{forest.file_name}": forest.content})

    def test_inputs_outputs_and_format(self):
        for name, features, width in (("binary", 30, 1), ("proba", 30, 2), ("multi", 64, 10), ("class", 64, 1), ("numbers", 10, 1)):
            with self.subTest(model=name):
                config = self.config_of(name)
                self.assertEqual(config["max_batch_size"], 4)
                self.assertEqual([(entry["name"], entry["data_type"], [int(dim) for dim in entry["dims"]])
                                  for entry in config["input"] + config["output"]],
                                 [("input__0", "TYPE_FP32", [features]), ("output__0", "TYPE_FP32", [width])])
        forest = forests()["xgboost_binary"]
        self.assert_near(predict(httpclient, self.http(), "proba", forest.rows[:4])[0], forest.expected[:4])
        forest = forests()["treelite_gradient_boosting_numbers"]
        self.assert_near(predict(httpclient, self.http(), "numbers", forest.rows[:4])[0], forest.expected[:4])


def edit(content, *path, value):
    """The JSON model with another value at a path."""
    model = json.loads(content)
    place = model
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(model).encode()


def malformed_json():
    content = forests()["xgboost_binary"].content
    trees = "learner", "gradient_booster", "model", "trees"
    param = "learner", "learner_model_param"
    yield "empty", b""
    yield "cut", content[:5000]
    yield "no JSON", b"not a model"
    yield "another document", b'{"a": [1, 2, 3]}'
    yield "nested", b"[" * 100_000
    yield "a list", b"[]"
    yield "no trees' classes", edit(content, "learner", "gradient_booster", "model", "tree_info", value=[])
    yield "linear", edit(content, "learner", "gradient_booster", "name", value="gblinear")
    yield "objective", edit(content, "learner", "objective", "name", value="mine")
    yield "base score", edit(content, *param, "base_score", value="half")
    yield "base score of 1", edit(content, *param, "base_score", value="1")
    yield "features", edit(content, *param, "num_feature", value="3")
    yield "classes", edit(content, *param, "num_class", value="4000000000")
    yield "targets", edit(content, *param, "num_target", value="2")
    yield "circle", edit(content, *trees, 0, "left_children", 0, value=0)
    yield "child", edit(content, *trees, 0, "right_children", 0, value=99999999)
    yield "negative child", edit(content, *trees, 0, "right_children", 0, value=-7)
    yield "feature", edit(content, *trees, 0, "split_indices", 0, value=30)
    yield "short", edit(content, *trees, 1, "split_conditions", value=[1.0])
    yield "text", edit(content, *trees, 1, "split_conditions", 0, value="x")
    yield "categories", edit(content, *trees, 0, "split_type", 0, value=1)


def malformed_ubj():
    content = forests()["xgboost_binary_ubj"].content

    def changed(old, new, count=1):
        assert old in content, old
        return content.replace(old, new, count)

    length = b"L" + struct.pack(">q", 14)
    yield "empty", b""
    for share in (1, 10, 100, 1000, 5000, 20_000):
        yield f"cut after {share}", content[:share]
    yield "JSON", forests()["xgboost_binary"].content
    yield "more", content + b"Z"
    yield "nested", b"[" * 100_000
    yield "nested objects", b"{i\x01a" * 100_000
    yield "type", b"x" + content[1:]
    yield "huge list", b"[$U#L\x7f\xff\xff\xff\xff\xff\xff\xff"
    yield "list without bytes", b"[$T#L\x7f\xff\xff\xff\xff\xff\xff\xff"
    yield "negative length", b"{L\xff\xff\xff\xff\xff\xff\xff\xffa"
    yield "no UTF-8", changed(b"gbtree", b"gb\xff\xfeee")
    yield "booster", changed(b"L" + struct.pack(">q", 6) + b"gbtree", b"L" + struct.pack(">q", 6) + b"glinea")
    yield "objective", changed(b"binary:logistic", b"binary:mystical")
    yield "list of another type", changed(b"left_children[$l", b"left_children[$d")
    yield "no such key", changed(length + b"right_children", length + b"wrong_children")


def malformed_text():
    content = forests()["lightgbm_categories"].content.decode()
    lines = content.split("\n")

    def changed(key, value):
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{key}="))
        new = [] if value is None else [f"{key}={value(lines[place].split('=', 1)[1])}"]
        return "\n".join(lines[:place] + new + lines[place + 1:]).encode()

    yield "empty", b""
    yield "cut", content[:3000].encode()
    yield "JSON", b"{}"
    yield "no UTF-8", b"tree\n\xff\xfe\n"
    yield "no end", content.split("end of trees")[0].encode()
    for key in ("num_class", "max_feature_idx", "num_leaves", "leaf_value", "split_feature", "threshold", "left_child"):
        yield f"no {key}", changed(key, None)
    yield "many classes", changed("num_class", lambda value: "4000000000")
    yield "no leaves", changed("num_leaves", lambda value: "0")
    yield "many leaves", changed("num_leaves", lambda value: "2000000000")
    yield "feature", changed("split_feature", lambda value: " ".join(["9"] * len(value.split())))
    yield "circle", changed("left_child", lambda value: " ".join(["0"] * len(value.split())))
    yield "child", changed("right_child", lambda value: " ".join(["77"] * len(value.split())))
    yield "NaN", changed("threshold", lambda value: " ".join(["nan"] * len(value.split())))
    yield "short", changed("leaf_value", lambda value: value.rsplit(" ", 1)[0])
    yield "no number", changed("threshold", lambda value: "x" + value)
    yield "linear", changed("is_linear", lambda value: "1")
    yield "objective", changed("objective", lambda value: "mine")
    yield "trees", changed("tree_sizes", lambda value: "5")


def malformed_checkpoint():
    content = forests()["treelite_random_forest_class"].content

    def changed(offset, new):
        return content[:offset] + new + content[offset + len(new):]

    yield "empty", b""
    for share in (3, 13, 21, 40, 100, 500, 2000, len(content) // 2, len(content) - 1):
        yield f"cut after {share}", content[:share]
    yield "more", content + b"\0"
    yield "version 3", changed(0, struct.pack("<i", 3))
    yield "version 9", changed(0, struct.pack("<i", 9))
    yield "type", changed(12, b"\x01")
    yield "types", changed(12, b"\x02\x03")
    yield "trees", changed(14, struct.pack("<Q", 1 << 62))
    yield "features", changed(22, struct.pack("<i", -1))
    yield "few features", changed(22, struct.pack("<i", 1))
    yield "task", changed(26, b"\x09")
    yield "flag", changed(27, b"\x09")
    yield "targets", changed(28, struct.pack("<i", 2))
    yield "huge list", changed(32, struct.pack("<Q", 1 << 61))
    yield "classes", changed(40, struct.pack("<i", -5))


MALFORMED = {"xgboost_json": malformed_json, "xgboost_ubj": malformed_ubj, "lightgbm": malformed_text,
             "treelite_checkpoint": malformed_checkpoint}
GOOD = {"xgboost_json": "xgboost_binary", "xgboost_ubj": "xgboost_binary_ubj", "lightgbm": "lightgbm_categories",
        "treelite_checkpoint": "treelite_random_forest_class"}


class Refused(FilCase):
    flags = ("--model-control-mode=explicit", "--load-model=good")

    @classmethod
    def models(cls, repository):
        forest = forests()["xgboost_binary"]
        repository.model("good", forest.config(), files={"1/xgboost.json": forest.content})

    def refused(self, name, config, files):
        """What the load of such a model says."""
        self.repository.model(name, config, files=files)
        return super().refused(name)

    def test_malformed_files(self):
        for kind, make in MALFORMED.items():
            forest = forests()[GOOD[kind]]
            cases = list(make())
            self.assertGreaterEqual(len(cases), 20)
            for number, (name, content) in enumerate(cases):
                with self.subTest(kind=kind, case=name):
                    message = self.refused(f"{kind}_{number}", forest.config(), {f"1/{forest.file_name}": content})
                    self.assertIn(f"unable to load model '{kind}_{number}' from", message)
                    self.assertNotIn("panic", message)
        good = forests()["xgboost_binary"]
        self.assert_near(predict(httpclient, self.http(), "good", good.rows)[0], good.expected)

    def test_configurations(self):
        forest = forests()["xgboost_binary"]
        files = {"1/xgboost.json": forest.content}
        config = forest.config()
        for number, (given, files, expected) in enumerate([
                (config.replace("[ 30 ]", "[ 31 ]"), files, "configuration expects 31 features in 'input__0', the model has 30"),
                (config.replace("[ 2 ]", "[ 3 ]"), files, "expects the shape \\[3\\] for output 'output__0', model provides 2 values"),
                (config.replace("input__0", "x"), files, "expected a tensor named input__0, got x"),
                (config.replace("output__0", "y"), files, "expected a tensor named output__0, got y"),
                (config.replace("FP32", "FP64"), files, "expected input__0 datatype to be FP32"),
                (config.replace("xgboost_json", "pickle"), files, "pickle not recognized as a valid serialization format"),
                (config.replace("true", "maybe", 1), files, "Expected 'true' or 'false' for parameter"),
                (config + parameters(threshold="high"), files, "Bad input for parameter threshold"),
                (config, {}, "unable to read '.*xgboost.json' for model .*model_type xgboost_json"),
                (config.replace('"xgboost_json"', '"xgboost"'), {"1/xgboost.model": b"binf"}, "legacy binary format is obsolete.*ubj"),
                (config + 'output { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 30 ] }', files,
                 "the shape \\[30\\] for output 'treeshap_output', model provides 31"),
        ]):
            with self.subTest(expected=expected):
                self.assertRegex(self.refused(f"config_{number}", given, files), expected)

    def test_parameters_without_effect_are_told_once(self):
        forest = forests()["xgboost_binary_class"]
        more = {"storage_type": "AUTO", "algo": "ALGO_AUTO", "blocks_per_sm": "0", "chunk_size": "4", "unknown": "x"}
        self.repository.model("inert", forest.config() + parameters(**more), files={"1/xgboost.json": forest.content})
        self.serve("inert")
        self.assert_near(predict(httpclient, self.http(), "inert", forest.rows)[0], forest.expected)
        if not IS_TRITON:
            line = "parameters of model 'inert' without effect here: algo, blocks_per_sm, chunk_size, storage_type"
            self.assertEqual(self.server.output.count(line), 1)

    def test_categories_of_the_other_library_stay_apart(self):
        """The two libraries send categories to opposite sides; both files of one data set are served at once."""
        for name in ("xgboost_categories", "lightgbm_categories"):
            forest = forests()[name]
            self.repository.model(name, forest.config(), files={f"1/{forest.file_name}": forest.content})
            self.serve(name)
            self.assert_near(predict(httpclient, self.http(), name, forest.rows)[0], forest.expected)

    def test_classes_are_numbers(self):
        self.assertEqual(fil_models.answers(numpy.array([[0.1, 0.9]]), CLASS).tolist(), [1])


class Example(FilCase):
    """The repository of docs/examples."""

    @classmethod
    def models(cls, repository):
        run(sys.executable, EXAMPLE, repository.path)

    def test_it_answers_as_it_says(self):
        first, second, progress, digits = run(sys.executable, EXAMPLE, "--send", self.server.http).splitlines()
        self.assertRegex(first, r"^tumours: \d% benign, above all for its [a-z ]+; it is malignant$")
        self.assertRegex(second, r"^tumours: \d+% benign, above all for its [a-z ]+; it is malignant$")
        self.assertRegex(progress, r"^diabetes: \d+; it was 151$")
        self.assertEqual(digits, "digits: 0 1 2 3 4 5 6 7 ; shown: 0 1 2 3 4 5 6 7")


@conch_only
class WhereGpusAre(FilCase):
    """With a device there, instances are of its kind if the configuration says so, and on CPUs if it leaves the choice."""

    flags = ("--model-control-mode=explicit",)

    @classmethod
    def setUpClass(cls):
        if not cuda.IS_REAL and not cuda.DOUBLE.exists():
            raise unittest.SkipTest(f"{cuda.DOUBLE} is not built")
        cls.environment = cuda.environment(devices=1)
        super().setUpClass()

    def test_kinds(self):
        forest = forests()["xgboost_binary"]
        files = {"1/xgboost.json": forest.content}
        self.repository.model("gpu", forest.config().replace("KIND_CPU", "KIND_GPU"), files=files)
        self.assert_refused("gpu", "the fil backend runs on CPUs only; set kind: KIND_CPU in the model's instance_group")
        self.repository.model("auto", forest.config().replace("KIND_CPU", "KIND_AUTO"), files=files)
        self.repository.model("none", forest.config().replace("instance_group [ { kind: KIND_CPU } ]", ""), files=files)
        for name in ("auto", "none"):
            self.serve(name)
            self.assert_near(predict(httpclient, self.http(), name, forest.rows)[0], forest.expected)


if __name__ == "__main__":
    unittest.main()
