"""Small forests of XGBoost, LightGBM and scikit-learn, trained on the data sets that scikit-learn brings, with the answers of the
libraries themselves."""

import dataclasses
import functools
import pathlib
import tempfile

import lightgbm
import numpy
import treelite
import xgboost
from sklearn import datasets, ensemble

from framework import parameters

FILES = {"xgboost_json": "xgboost.json", "xgboost_ubj": "xgboost.ubj", "lightgbm": "model.txt", "treelite_checkpoint": "checkpoint.tl"}
SEED = 20


@dataclasses.dataclass
class Forest:
    """A served forest: its file, its parameters, rows, and what output__0 and treeshap_output are for them."""

    kind: str
    content: bytes
    rows: numpy.ndarray
    expected: numpy.ndarray
    parameters: dict
    explained: numpy.ndarray | None = None

    @property
    def file_name(self):
        return FILES[self.kind]

    def config(self, batch=4096, extra=""):
        width = self.expected.shape[1] if self.expected.ndim > 1 else 1
        text = f'backend: "fil"\nmax_batch_size: {batch}\n'
        text += f'input {{ name: "input__0" data_type: TYPE_FP32 dims: [ {self.rows.shape[1]} ] }}\n'
        text += f'output {{ name: "output__0" data_type: TYPE_FP32 dims: [ {width} ] }}\n'
        if self.explained is not None:
            dims = ", ".join(map(str, self.explained.shape[1:]))
            text += f'output {{ name: "treeshap_output" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        return text + "instance_group [ { kind: KIND_CPU } ]\ndynamic_batching {}\n" + parameters(
            model_type=self.kind, **self.parameters) + extra


CLASS = {"output_class": "true"}
PROBABILITIES = {"is_classifier": "true", "predict_proba": "true"}
REGRESSION = {"is_classifier": "false"}


def data(name):
    rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return rows.astype(numpy.float32), labels


def holes(rows, share=0.2, value=numpy.nan):
    """The rows with `value` here and there."""
    rows = rows.copy()
    rows[numpy.random.default_rng(SEED).random(rows.shape) < share] = value
    return rows


def categories():
    """Rows with two columns of categories and two of numbers, and labels that depend on all."""
    random = numpy.random.default_rng(SEED)
    rows = random.normal(size=(600, 4)).astype(numpy.float32)
    rows[:, 1] = random.integers(0, 60, 600)
    rows[:, 3] = random.integers(0, 5, 600)
    score = rows[:, 0] + 2.0 * (rows[:, 1].astype(int) % 7 == 3) - 1.5 * (rows[:, 3] == 2) + 0.3 * rows[:, 2]
    return rows, (score > 0.2).astype(int)


def saved(model, name):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        model.save_model(str(path))
        return path.read_bytes()


# XGBoost


def boosted(rows, labels, kind="xgboost_json", trees=20, types=None, **options):
    """A booster, and the content of its file."""
    matrix = xgboost.DMatrix(rows, labels, feature_types=types, enable_categorical=types is not None)
    options = {"max_depth": 4, "seed": SEED, "nthread": 1, **options}
    booster = xgboost.train(options, matrix, trees)
    return booster, saved(booster, FILES[kind])


def xgboost_forest(rows, labels, given, kind="xgboost_json", test_rows=None, types=None, explain=False, **options):
    booster, content = boosted(rows, labels, kind, types=types, **options)
    test_rows = rows if test_rows is None else test_rows
    matrix = xgboost.DMatrix(test_rows, feature_types=types, enable_categorical=types is not None)
    values = booster.predict(matrix)
    explained = booster.predict(matrix, pred_contribs=True) if explain else None
    return Forest(kind, content, test_rows, answers(values, given), given, explained)


def answers(values, given):
    """What upstream's backend makes of the values of a library."""
    if given.get("predict_proba") == "true":
        return values if values.ndim > 1 else numpy.stack([1 - values, values], axis=1)
    if given.get("is_classifier", given.get("output_class")) == "true":
        return values.argmax(axis=1) if values.ndim > 1 else values > numpy.float32(given.get("threshold", 0.5))
    return values


def xgboost_forests():
    cancer, digits, diabetes = data("breast_cancer"), data("digits"), data("diabetes")
    binary = {"objective": "binary:logistic"}
    multi = {"objective": "multi:softprob", "num_class": 10}
    rows, labels = categories()
    types = ["q", "c", "q", "c"]
    strange = holes(rows, 0.1)
    strange[:5, 1], strange[5:10, 1] = 1000, -1
    counts = diabetes[1].round()
    yield "binary", xgboost_forest(*cancer, PROBABILITIES, **binary)
    yield "binary_ubj", xgboost_forest(*cancer, PROBABILITIES, kind="xgboost_ubj", **binary)
    yield "binary_class", xgboost_forest(*cancer, CLASS, **binary)
    yield "binary_threshold", xgboost_forest(*cancer, {**CLASS, "threshold": "0.9"}, kind="xgboost_ubj", **binary)
    yield "binary_raw", xgboost_forest(*cancer, REGRESSION, objective="binary:logitraw")
    yield "binary_raw_score", xgboost_forest(*cancer, REGRESSION, objective="binary:logitraw", base_score=0.3)
    yield "binary_score", xgboost_forest(*cancer, PROBABILITIES, base_score=0.1, **binary)
    yield "hinge", xgboost_forest(*cancer, REGRESSION, objective="binary:hinge")
    yield "multi", xgboost_forest(*digits, PROBABILITIES, **multi)
    yield "multi_ubj", xgboost_forest(*digits, PROBABILITIES, kind="xgboost_ubj", **multi)
    yield "multi_class", xgboost_forest(*digits, CLASS, **multi)
    yield "regression", xgboost_forest(*diabetes, REGRESSION)
    yield "regression_absolute", xgboost_forest(*diabetes, REGRESSION, objective="reg:absoluteerror")
    yield "poisson", xgboost_forest(diabetes[0], counts, REGRESSION, objective="count:poisson")
    yield "gamma", xgboost_forest(diabetes[0], counts, REGRESSION, kind="xgboost_ubj", objective="reg:gamma")
    yield "dart", xgboost_forest(*cancer, PROBABILITIES, booster="dart", rate_drop=0.3, **binary)
    yield "random_forest", xgboost_forest(
        *cancer, PROBABILITIES, trees=2, num_parallel_tree=15, subsample=0.6, colsample_bynode=0.5, **binary)
    yield "lossguide", xgboost_forest(
        *digits, PROBABILITIES, grow_policy="lossguide", max_depth=0, max_leaves=200, min_child_weight=0, **multi)
    yield "missing", xgboost_forest(holes(cancer[0]), cancer[1], PROBABILITIES, **binary)
    yield "missing_later", xgboost_forest(*cancer, PROBABILITIES, test_rows=holes(cancer[0]), **binary)
    yield "categories", xgboost_forest(rows, labels, PROBABILITIES, types=types, test_rows=strange, max_cat_to_onehot=1, **binary)
    yield "categories_ubj", xgboost_forest(rows, labels, PROBABILITIES, kind="xgboost_ubj", types=types, **binary)
    yield "explained", xgboost_forest(*cancer, PROBABILITIES, explain=True, **binary)
    yield "explained_missing", xgboost_forest(
        holes(diabetes[0]), diabetes[1], REGRESSION, kind="xgboost_ubj", explain=True)
    yield "explained_multi", xgboost_forest(*data("iris"), PROBABILITIES, explain=True, objective="multi:softprob", num_class=3)
    yield "explained_categories", xgboost_forest(rows, labels, PROBABILITIES, types=types, explain=True, **binary)


# LightGBM


def lightgbm_forest(rows, labels, given, test_rows=None, explain=False, columns="auto", trees=20, **options):
    options = {"num_leaves": 15, "verbose": -1, "seed": SEED, "num_threads": 1, "min_data_in_leaf": 5, **options}
    booster = lightgbm.train(options, lightgbm.Dataset(rows, labels, categorical_feature=columns), trees)
    content = saved(booster, "model.txt")
    test_rows = rows if test_rows is None else test_rows
    values = booster.predict(test_rows).astype(numpy.float32)
    explained = None
    if explain:
        explained = booster.predict(test_rows, pred_contrib=True)
        if values.ndim > 1:
            explained = explained.reshape(len(test_rows), -1, rows.shape[1] + 1)
    return Forest("lightgbm", content, test_rows, answers(values, given), given, explained)


def lightgbm_forests():
    cancer, digits, diabetes = data("breast_cancer"), data("digits"), data("diabetes")
    multi = {"objective": "multiclass", "num_class": 10}
    rows, labels = categories()
    strange = holes(rows, 0.1)
    strange[:5, 1], strange[5:10, 1] = 1000, -1
    zeros = holes(cancer[0], value=0.0)
    yield "binary", lightgbm_forest(*cancer, PROBABILITIES, objective="binary")
    yield "binary_class", lightgbm_forest(*cancer, CLASS, objective="binary", sigmoid=1.7)
    yield "binary_threshold", lightgbm_forest(*cancer, {**CLASS, "threshold": "0.8"}, objective="binary")
    yield "multi", lightgbm_forest(*digits, PROBABILITIES, **multi)
    yield "multi_class", lightgbm_forest(*digits, CLASS, **multi)
    yield "multi_ova", lightgbm_forest(*digits, PROBABILITIES, objective="multiclassova", num_class=10)
    yield "regression", lightgbm_forest(*diabetes, REGRESSION, objective="regression")
    yield "regression_sqrt", lightgbm_forest(*diabetes, REGRESSION, objective="regression", reg_sqrt=True)
    yield "poisson", lightgbm_forest(diabetes[0], diabetes[1].round(), REGRESSION, objective="poisson")
    yield "cross_entropy_lambda", lightgbm_forest(*cancer, REGRESSION, objective="cross_entropy_lambda")
    yield "random_forest", lightgbm_forest(
        *cancer, PROBABILITIES, objective="binary", boosting="rf", bagging_freq=1, bagging_fraction=0.6, feature_fraction=0.5)
    yield "dart", lightgbm_forest(*cancer, PROBABILITIES, objective="binary", boosting="dart")
    yield "missing", lightgbm_forest(holes(cancer[0]), cancer[1], PROBABILITIES, objective="binary")
    yield "missing_later", lightgbm_forest(*cancer, PROBABILITIES, test_rows=holes(cancer[0]), objective="binary")
    yield "zero_as_missing", lightgbm_forest(
        zeros, cancer[1], PROBABILITIES, test_rows=holes(zeros, 0.1), objective="binary", zero_as_missing=True)
    yield "missing_not_used", lightgbm_forest(
        *cancer, PROBABILITIES, test_rows=holes(cancer[0]), objective="binary", use_missing=False)
    yield "categories", lightgbm_forest(rows, labels, PROBABILITIES, columns=[1, 3], test_rows=strange, objective="binary")
    yield "explained", lightgbm_forest(*cancer, PROBABILITIES, explain=True, objective="binary")
    yield "explained_multi", lightgbm_forest(
        *data("iris"), PROBABILITIES, explain=True, objective="multiclass", num_class=3)


# scikit-learn, by way of Treelite


def sklearn_forest(model, rows, labels, given, values):
    model.fit(rows.astype(numpy.float64), labels)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint.tl"
        treelite.sklearn.import_model(model).serialize(str(path))
        content = path.read_bytes()
    expected = values(model, rows.astype(numpy.float64)).astype(numpy.float32)
    if given is CLASS:
        expected = expected.argmax(axis=1)
    return Forest("treelite_checkpoint", content, rows, expected, given)


def probabilities(model, rows):
    return model.predict_proba(rows)


def numbers(model, rows):
    return model.predict(rows)


def treelite_forests():
    cancer, digits, diabetes, iris = data("breast_cancer"), data("digits"), data("diabetes"), data("iris")
    small = {"n_estimators": 20, "random_state": SEED}
    yield "random_forest", sklearn_forest(ensemble.RandomForestClassifier(**small), *digits, PROBABILITIES, probabilities)
    yield "random_forest_class", sklearn_forest(ensemble.RandomForestClassifier(**small), *iris, CLASS, probabilities)
    yield "random_forest_binary", sklearn_forest(ensemble.RandomForestClassifier(**small), *cancer, PROBABILITIES, probabilities)
    yield "random_forest_numbers", sklearn_forest(ensemble.RandomForestRegressor(**small), *diabetes, REGRESSION, numbers)
    yield "extra_trees", sklearn_forest(ensemble.ExtraTreesClassifier(**small), *digits, PROBABILITIES, probabilities)
    yield "gradient_boosting", sklearn_forest(
        ensemble.GradientBoostingClassifier(**small), *cancer, PROBABILITIES, probabilities)
    yield "gradient_boosting_multi", sklearn_forest(
        ensemble.GradientBoostingClassifier(**small), *iris, PROBABILITIES, probabilities)
    yield "gradient_boosting_numbers", sklearn_forest(ensemble.GradientBoostingRegressor(**small), *diabetes, REGRESSION, numbers)
    yield "histograms", sklearn_forest(
        ensemble.HistGradientBoostingClassifier(max_iter=20, random_state=SEED), holes(cancer[0]), cancer[1], PROBABILITIES,
        probabilities)
    yield "isolation", sklearn_forest(
        ensemble.IsolationForest(**small), *cancer, REGRESSION, lambda model, rows: -model.score_samples(rows))
    rows, labels = categories()
    forest = lightgbm_forest(rows, labels, PROBABILITIES, columns=[1, 3], objective="binary")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.txt"
        path.write_bytes(forest.content)
        model = treelite.frontend.load_lightgbm_model(str(path))
        model.serialize(str(path))
        yield "of_lightgbm", dataclasses.replace(forest, kind="treelite_checkpoint", content=path.read_bytes())


@functools.cache
def forests():
    """All of them, by the name of their model."""
    groups = {"xgboost": xgboost_forests, "lightgbm": lightgbm_forests, "treelite": treelite_forests}
    return {f"{group}_{name}": forest for group, make in groups.items() for name, forest in make()}
