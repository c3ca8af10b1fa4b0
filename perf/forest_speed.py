"""Rows per second of the fil backend's forests beside the libraries that others use for them: XGBoost, LightGBM, Treelite's interpreter,
and C code of tl2cgen. The same rows, whose answers are compared first; each library by its C interface; batches, and single rows."""

import collections
import os
import pathlib
import statistics
import sys
import time

import machine
import numpy
import server as servers
from engine_programs import CACHE, Program, Refused, compiled, made, run

ROWS = 4096
# Nanoseconds that a measurement takes about.
SLICE_NS = 150_000_000
# Rows per second against the fastest of the libraries, which read a model's file as the backend does; and against a model's compiled code,
# which is a program for that model alone.
GOALS = {"batch": {"libraries": 1.0, "code": 1.0}, "single": {"libraries": 5.0, "code": 1.0}}
NEAR = 1e-4
# C code of larger forests takes many minutes to compile.
COMPILED_NODES_MAX = 60_000

# `files`: kind of the fil backend, or another library, -> the path of what it reads.
Forest = collections.namedtuple("Forest", "name trees nodes kind files rows width")


def table(rows, seed):
    """Rows like those of a business: 32 columns, some of few values, and an answer that depends on several."""
    random = numpy.random.default_rng(seed)
    values = random.standard_normal((rows, 32)).astype(numpy.float32)
    values[:, 20:] = random.integers(0, 12, (rows, 12))
    answers = (values[:, 0] * values[:, 1] + numpy.sin(3 * values[:, 2]) + 0.3 * values[:, 20] * (values[:, 21] > 5)
               + 0.1 * values[:, 3:8].sum(axis=1) + 0.5 * random.standard_normal(rows))
    return values, answers


def spread(rows, seed=21):
    """`ROWS` rows near those of a data set."""
    random = numpy.random.default_rng(seed)
    chosen = rows[random.integers(0, len(rows), ROWS)]
    return (chosen + rows.std(axis=0) * 0.1 * random.standard_normal(chosen.shape)).astype(numpy.float32)


def xgboost_forest(rows, labels, trees, **settings):
    def make(path):
        import xgboost
        booster = xgboost.train({"seed": 20, "nthread": 1, **settings}, xgboost.DMatrix(rows, labels), trees)
        path.write_bytes(bytes(booster.save_raw("ubj")))
    return "xgboost_ubj", "xgboost", make


def lightgbm_forest(rows, labels, trees, **settings):
    def make(path):
        import lightgbm
        settings_all = {"verbose": -1, "seed": 20, "num_threads": 1, "min_data_in_leaf": 5, **settings}
        path.write_text(lightgbm.train(settings_all, lightgbm.Dataset(rows, labels), trees).model_to_string())
    return "lightgbm", "lightgbm", make


def sklearn_forest(make_model, rows, labels):
    def make(path):
        import treelite
        treelite.sklearn.import_model(make_model().fit(rows, labels)).serialize(str(path))
    return "treelite_checkpoint", None, make


def definitions():
    """Name -> (how it is made, rows, answers per row)."""
    from sklearn import datasets, ensemble
    cancer, digits = datasets.load_breast_cancer(return_X_y=True), datasets.load_digits(return_X_y=True)
    rows, answers = table(8_000, 20)
    test_rows = table(ROWS, 22)[0]
    multi = {"objective": "multi:softprob", "num_class": 10}
    return {
        "xgboost cancer 100 x 6": (xgboost_forest(*cancer, 100, max_depth=6, objective="binary:logistic"), spread(cancer[0]), 1),
        "xgboost digits 500 x 6": (xgboost_forest(*digits, 50, max_depth=6, **multi), spread(digits[0]), 10),
        "xgboost table 500 x 8": (xgboost_forest(rows, answers, 500, max_depth=8, eta=0.05), test_rows, 1),
        "xgboost table 1000 x 10": (xgboost_forest(rows, answers, 1000, max_depth=10, eta=0.02), test_rows, 1),
        "lightgbm cancer 100 x 6": (lightgbm_forest(*cancer, 100, objective="binary", max_depth=6, num_leaves=31), spread(cancer[0]), 1),
        "lightgbm table 500 x 8": (lightgbm_forest(rows, answers, 500, max_depth=8, num_leaves=127), test_rows, 1),
        "lightgbm table 1000 x 10": (lightgbm_forest(rows, answers, 1000, max_depth=10, num_leaves=255), test_rows, 1),
        "sklearn digits 200 x 10": (sklearn_forest(lambda: ensemble.RandomForestClassifier(200, max_depth=10, random_state=20), *digits),
                                    spread(digits[0]), 10),
        "sklearn table 300 x 10": (sklearn_forest(lambda: ensemble.RandomForestRegressor(300, max_depth=10, random_state=20, max_features=0.3),
                                                  rows, answers), test_rows, 1),
    }


def library(package, name):
    """A library of a package of this Python."""
    found = next((pathlib.Path(folder) / package / "lib" / name for folder in sys.path if (pathlib.Path(folder) / package / "lib" / name).exists()), None)
    if found is None:
        raise Refused(f"{name} is not there")
    return found


def treelite_model(kind, path):
    import treelite
    return {"xgboost_ubj": lambda: treelite.frontend.load_xgboost_model(str(path), format_choice="ubjson"),
            "lightgbm": lambda: treelite.frontend.load_lightgbm_model(str(path)),
            "treelite_checkpoint": lambda: treelite.Model.deserialize(str(path))}[kind]()


def code(model):
    """The compiled C code of a model."""
    import tl2cgen

    def make(path):
        folder = CACHE / f"{path.parent.name}-code"
        tl2cgen.generate_c_code(model, str(folder), params={"parallel_comp": 8})
        objects = []
        for source in sorted(folder.glob("*.c")):
            objects.append(source.with_suffix(".o"))
            run(["cc", "-O3", "-march=native", "-fPIC", "-c", source, "-o", objects[-1]])
        run(["cc", "-shared", "-o", path, *objects, "-lm"])
    return make


def prepared(names):
    """The forests, made where they are not there yet."""
    text = pathlib.Path(__file__).read_text()
    for name, ((kind, native, make), rows, width) in definitions().items():
        if names and not any(part in name for part in names.split(",")):
            continue
        print(f"making {name}", file=sys.stderr)
        key = f"{text.split('def library')[0]} {name}"
        path = made(key, "forest", make)
        model = treelite_model(kind, path)
        files = {kind: path, "gtil": made(key, "checkpoint.tl", lambda part: model.serialize(str(part)))}
        if native:
            files[native] = path
        nodes = sum(len(model.get_tree_accessor(tree).get_field("split_index")) for tree in range(model.num_tree))
        if nodes <= COMPILED_NODES_MAX:
            files["compiled"] = made(key, "code.so", code(model))
        yield Forest(name, model.num_tree, nodes, kind, files, rows, width)


class Compared:
    """A forest in all of its libraries, with so many threads."""

    def __init__(self, forest, threads, stack, folder):
        self.forest, self.threads = forest, threads
        cpus = machine.cpus()[:threads]
        rows = folder / f"{forest.name.replace(' ', '_')}.rows"
        if not rows.exists():
            rows.write_bytes(numpy.ascontiguousarray(forest.rows, "<f4").tobytes())
        ours = [servers.built("forest"), f"--format={forest.kind}", f"--model={forest.files[forest.kind]}", f"--rows={rows}", f"--threads={threads}"]
        self.programs = {"fil": stack.enter_context(Program(ours, cpus))}
        libraries = {"xgboost": ("xgboost", "libxgboost.so"), "lightgbm": ("lightgbm", "lib_lightgbm.so"), "gtil": ("treelite", "libtreelite.so")}
        for name, path in forest.files.items():
            if name == forest.kind and name != "lightgbm":
                continue
            at = path if name == "compiled" else library(*libraries[name])
            words = [compiled("forests.c"), name, at, path, rows, forest.rows.shape[1], forest.width, threads]
            self.programs[name] = stack.enter_context(Program(words, cpus))
        self.compare_answers(folder)
        self.figures = {"batch": collections.defaultdict(list), "single": collections.defaultdict(list)}
        self.calls = {}
        for name, program in self.programs.items():
            self.calls[name, "batch"] = max(1, int(SLICE_NS / program.run(ROWS, 1)[1]))
            self.calls[name, "single"] = max(20, int(SLICE_NS / 3 / program.run(1, 20)[1]))

    def compare_answers(self, folder):
        answers = {}
        for name, program in self.programs.items():
            program.ask("save", folder / "answers")
            answers[name] = numpy.fromfile(folder / "answers", "<f4")
        size = max(1.0, float(numpy.abs(answers["fil"]).max()))
        for name, found in answers.items():
            if found.shape != answers["fil"].shape or not numpy.allclose(found, answers["fil"], rtol=NEAR, atol=NEAR * size):
                apart = numpy.abs(found - answers["fil"]).max() if found.shape == answers["fil"].shape else found.shape
                raise Refused(f"{self.forest.name}: {name} answers otherwise than fil: {apart}")

    def round(self, turn):
        """Each in turn, another one first each time. One thread: its CPU time, which others on the machine do not change much; two:
        the time on the clock."""
        names = list(self.programs)
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            program = self.programs[name]
            wall, cpu = program.run(ROWS, self.calls[name, "batch"])
            self.figures["batch"][name].append((cpu if self.threads == 1 else wall) / ROWS)
            if self.threads == 1:
                self.figures["single"][name].append(program.run(1, self.calls[name, "single"])[1])


def nanoseconds(figures, threads):
    """Per row. Of time on the clock the least, of the moments when all CPUs were free."""
    return {name: statistics.median(values) if threads == 1 else min(values) for name, values in figures.items()}


def measure(stack, folder, options):
    compared = []
    for forest in prepared(options.forests):
        for threads in (1, 2):
            if threads <= len(machine.cpus()):
                compared.append(Compared(forest, threads, stack, folder))
    for turn in range(options.rounds):
        started = time.monotonic()
        for entry in compared:
            entry.round(turn)
        print(f"round {turn + 1}/{options.rounds}: {time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return compared


def report(compared):
    """Prints the table, in rows per second; what misses a goal."""
    others = [name for name in ("xgboost", "lightgbm", "gtil", "compiled") if any(name in entry.programs for entry in compared)]
    print(f"| forest | nodes | rows | threads | fil | {' | '.join(others)} | fil / libraries | fil / compiled |")
    print("|---" * (len(others) + 7) + "|")
    missed = []
    for entry in compared:
        for kind in ("batch", "single"):
            if not entry.figures[kind]:
                continue
            per_row = nanoseconds(entry.figures[kind], entry.threads)
            ratios = {"libraries": min(value for name, value in per_row.items() if name not in ("fil", "compiled")) / per_row["fil"]}
            if "compiled" in per_row:
                ratios["code"] = per_row["compiled"] / per_row["fil"]
            cells = [f"{1e9 / per_row[name]:.0f}" if name in per_row else "-" for name in ("fil", *others)]
            code, count = f"{ratios['code']:.2f}" if "code" in ratios else "-", ROWS if kind == "batch" else 1
            print(f"| {entry.forest.name} | {entry.forest.nodes} | {count} | {entry.threads} | {' | '.join(cells)} |"
                  f" {ratios['libraries']:.2f} | {code} |")
            missed += [f"{entry.forest.name}, {count} rows, {entry.threads} threads, against {other}: {ratio:.2f} < {GOALS[kind][other]}"
                       for other, ratio in ratios.items() if ratio < GOALS[kind][other]]
    return missed
