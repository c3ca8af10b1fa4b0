#!/usr/bin/env python3
"""Makes a model repository for the fil backend, with a Python that has the libraries that train forests
(pip install xgboost-cpu lightgbm treelite scikit-learn tritonclient[http]):

    python docs/examples/fil/make_repository.py repository

    repository/tumours    XGBoost: measurements of a cell to the probability that it is benign, and what each measurement contributes
    repository/diabetes   LightGBM: ten numbers of a patient to the progress of the disease
    repository/digits     scikit-learn, by Treelite: a picture of 8 x 8 pixels to the digit that it shows

The data sets come with scikit-learn. To see them answer, from a server that serves the repository:

    python docs/examples/fil/make_repository.py --send 127.0.0.1:8000
"""

import argparse
import pathlib

from sklearn import datasets

TREES = 50


def tensor(kind, name, *dims):
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {", ".join(map(str, dims))} ] }} ]\n'


def configuration(features, values, more="", **parameters):
    text = 'backend: "fil"\nmax_batch_size: 32768\n' + tensor("input", "input__0", features) + tensor("output", "output__0", values)
    for name, value in parameters.items():
        text += f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
    return text + more + "instance_group [ { kind: KIND_CPU } ]\ndynamic_batching { }\n"


def tumours(folder):
    import xgboost

    rows, labels = datasets.load_breast_cancer(return_X_y=True)
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 4}, xgboost.DMatrix(rows, labels), TREES)
    booster.save_model(folder / "xgboost.json")
    return configuration(rows.shape[1], 2, more=tensor("output", "treeshap_output", rows.shape[1] + 1),
                         model_type="xgboost_json", is_classifier="true", predict_proba="true")


def diabetes(folder):
    import lightgbm

    rows, labels = datasets.load_diabetes(return_X_y=True)
    lightgbm.train({"verbose": -1}, lightgbm.Dataset(rows, labels), TREES).save_model(folder / "model.txt")
    return configuration(rows.shape[1], 1, model_type="lightgbm", is_classifier="false")


def digits(folder):
    import treelite
    from sklearn import ensemble

    rows, labels = datasets.load_digits(return_X_y=True)
    forest = ensemble.RandomForestClassifier(TREES, random_state=0).fit(rows, labels)
    treelite.sklearn.import_model(forest).serialize(str(folder / "checkpoint.tl"))
    return configuration(rows.shape[1], 1, model_type="treelite_checkpoint", is_classifier="true")


# How each is made, and the data set that it is asked about.
MODELS = {"tumours": (tumours, datasets.load_breast_cancer), "diabetes": (diabetes, datasets.load_diabetes), "digits": (digits, datasets.load_digits)}


def make(repository):
    for name, (model, _) in MODELS.items():
        folder = pathlib.Path(repository) / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "config.pbtxt").write_text(model(folder))
        print(f"{folder.parent} is made")


def send(address):
    from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

    client = InferenceServerClient(address)

    def ask(name, output, row):
        given = InferInput("input__0", [1, len(row)], "FP32")
        given.set_data_from_numpy(row.reshape(1, -1).astype("float32"))
        return client.infer(name, [given], outputs=[InferRequestedOutput(output)]).as_numpy(output)[0]

    rows = {name: data(return_X_y=True) for name, (_, data) in MODELS.items()}
    cells, labels = rows["tumours"]
    names = datasets.load_breast_cancer().feature_names
    for index in (0, 100):
        probability = ask("tumours", "output__0", cells[index])[1]
        shares = ask("tumours", "treeshap_output", cells[index])[:-1]
        strongest = names[abs(shares).argmax()]
        print(f"tumours: {probability:.0%} benign, above all for its {strongest}; it is {'benign' if labels[index] else 'malignant'}")
    patients, progress = rows["diabetes"]
    print(f"diabetes: {ask('diabetes', 'output__0', patients[0]):.0f}; it was {progress[0]:.0f}")
    pictures, shown = rows["digits"]
    print("digits:", *(int(ask("digits", "output__0", pictures[index])) for index in range(8)), "; shown:", *shown[:8])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", nargs="?", help="the folder that is made")
    parser.add_argument("--send", metavar="HOST:PORT", help="asks a server instead")
    options = parser.parse_args()
    if options.send:
        send(options.send)
    elif options.repository:
        make(options.repository)
    else:
        parser.error("name the folder of the repository, or --send HOST:PORT")
