"""Models of PyTorch for tests, and what PyTorch itself answers: a program for a Python that has torch, which writes

    <folder>/<model>/model.pt     TorchScript, or model.pt2, what AOTInductor compiled
    <folder>/<model>.npz          arrays `in.<case>.<name>` and `out.<case>.<name>` of each case; strings as arrays of bytes

    pytorch_models.py <folder> [<model>...]
"""

import os
import pathlib
import sys
from typing import Dict, List, Optional, Tuple

import numpy
import torch
from torch import Tensor, nn

SEED = 20
TYPES = {"bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
         "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


class AddSub(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tuple[Tensor, Tensor]:
        return first + second, first - second


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The usual one: 11.7 million weights, drawn."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classify = nn.Linear(512, 1000)

    def forward(self, image: Tensor) -> Tensor:
        return self.classify(self.layers(image))


class Dictionary(nn.Module):
    def forward(self, tensors: Dict[str, Tensor]) -> Tuple[Tensor, Tensor]:
        return tensors["A"] + tensors["B"], tensors["A"] * 2


class DictionaryBack(nn.Module):
    def forward(self, tensors: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {"difference": tensors["A"] - tensors["B"], "product": tensors["A"] * tensors["B"]}


class TensorList(nn.Module):
    def forward(self, x: Tensor) -> List[Tensor]:
        return [x, x * x, x.sum(1, keepdim=True)]


class Words(nn.Module):
    def forward(self, words: List[str], times: Tensor) -> Tuple[List[str], Tensor, List[str]]:
        longer: List[str] = []
        reverse: List[str] = []
        for word in words:
            text = ""
            for _ in range(int(times[0].item())):
                text += word
            longer.append(text + "!")
        for index in range(len(words)):
            reverse.append(words[len(words) - 1 - index])
        return longer, torch.tensor([len(word) for word in longer], dtype=torch.int64), reverse


class WordsBatched(nn.Module):
    def forward(self, words: List[str]) -> List[str]:
        return ["<" + word + ">" for word in words]


class Types(nn.Module):
    """Each type that both sides have, once in and once out."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor, i: Tensor) -> List[Tensor]:
        return [~a, b + 1, c + 1, d + 1, e + 1, f + 1, g * 2, h * 2, i * 2]


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        return x.transpose(1, 2), x[:, :, ::2]


class Conjugated(nn.Module):
    """Shows memory of another tensor negated."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(x).conj().imag


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("no negative numbers")
        return torch.linalg.cholesky(x) if x.shape[-1] == x.shape[-2] else x @ torch.ones(3, 1)


class Accumulate(nn.Module):
    """A sum over a sequence, whose state the server carries."""

    def forward(self, x: Tensor, state: Tensor, start: Tensor) -> Tuple[Tensor, Tensor]:
        total = state * (1 - start) + x
        return total * 10, total


class Optionals(nn.Module):
    def forward(self, x: Tensor, y: Optional[Tensor]) -> Tensor:
        return x if y is None else x + y


class Fork(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        futures: List[torch.jit.Future[Tensor]] = []
        for step in range(4):
            futures.append(torch.jit.fork(torch.add, x, step))
        total = torch.zeros_like(x)
        for future in futures:
            total += torch.jit.wait(future)
        return total


class Scalar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


class Number(nn.Module):
    def forward(self, x: Tensor) -> int:
        return x.shape[0]


class Argument(nn.Module):
    def forward(self, x: Tensor, rate: int) -> Tensor:
        return x * rate


class Large(nn.Module):
    def forward(self, size: Tensor) -> Tensor:
        return torch.ones([int(size[0].item())])


class Weighted(nn.Module):
    """Small, with weights, which lie in files of their own in the archive."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Nested(nn.Module):
    """Arguments and results of all forms that AOTInductor's call specifications have."""

    def forward(self, first, second, options, *, third):
        return {"sum": first + second, "pair": (options["x"] * third, second - options["y"]), "all": [first * second]}


def floats(*shape, seed=SEED):
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32))


def array(value):
    if isinstance(value, list):
        return numpy.array([text.encode() for text in value], object).astype("S")
    return value.detach().resolve_conj().resolve_neg().numpy().copy()


class Folder:
    def __init__(self, path, wanted):
        self.path = pathlib.Path(path)
        self.wanted = wanted

    def wants(self, name):
        return not self.wanted or name in self.wanted

    def script(self, name, module, *cases, names=None, results=None, trace=None):
        """Saves a module as TorchScript. A case is the list of arguments, or a dictionary; `names` are theirs, `results` those of what
        forward returns."""
        if not self.wants(name):
            return
        torch.manual_seed(SEED)
        module = (module() if isinstance(module, type) else module).eval()
        script = torch.jit.trace(module, trace) if trace else torch.jit.script(module)
        (self.path / name).mkdir(exist_ok=True)
        script.save(str(self.path / name / "model.pt"))
        loaded = torch.jit.load(str(self.path / name / "model.pt"))

        def run(case):
            with torch.inference_mode():
                return loaded(case) if isinstance(case, dict) else loaded(*case)

        self.save(name, run, cases, names, results)

    def compiled(self, name, module, example, dynamic, *cases, names, results, keywords=None):
        """Compiles a module with AOTInductor. A case is the list of arguments in the order of `names`."""
        if not self.wants(name):
            return
        torch.manual_seed(SEED)
        module = module().eval()
        program = torch.export.export(module, example, keywords, dynamic_shapes=dynamic)
        (self.path / name).mkdir(exist_ok=True)
        package = str(self.path / name / "model.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package)
        loaded = torch._inductor.aoti_load_package(package)

        def run(case):
            arguments = list(case)
            more = {}
            if name == "nested":
                *arguments, x, y, third = arguments
                arguments.append({"x": x, "y": y})
                more = {"third": third}
            with torch.inference_mode():
                return loaded(*arguments, **more)

        self.save(name, run, cases, names, results)

    def save(self, name, run, cases, names, results):
        arrays = {}
        for number, case in enumerate(cases):
            named = case if isinstance(case, dict) else dict(zip(names, case))
            for key, value in named.items():
                if value is not None:
                    arrays[f"in.{number}.{key}"] = array(value)
            answer = run(case)
            if isinstance(answer, Tensor) or (isinstance(answer, list) and not isinstance(answer[0], Tensor)):
                answer = [answer]
            flat = torch.utils._pytree.tree_leaves(answer) if isinstance(answer, dict) else list(answer)
            for key, value in zip(results or sorted(answer), flat):
                arrays[f"out.{number}.{key}"] = array(value)
        numpy.savez(self.path / f"{name}.npz", **arrays)


def scripts(folder):
    pair = ["INPUT__0", "INPUT__1"]
    two = ["OUTPUT__0", "OUTPUT__1"]
    cases = [[floats(rows, 16, seed=rows), floats(rows, 16, seed=rows + 50)] for rows in (1, 2, 7)]
    folder.script("addsub", AddSub, *cases, names=pair, results=two, trace=tuple(cases[1]))
    folder.script("named", AddSub, *cases, names=["first", "second"], results=["sum", "difference"])
    folder.script("resnet18", ResNet18, *[[floats(rows, 3, 224, 224, seed=rows)] for rows in (1, 2)], names=["image"], results=["classes"])
    folder.script("dictionary", Dictionary, *[dict(zip("AB", case)) for case in cases], results=two)
    folder.script("dictionary_back", DictionaryBack, *[dict(zip("AB", case)) for case in cases], results=["difference", "product"])
    folder.script("tensor_list", TensorList, *[case[:1] for case in cases], names=pair, results=[*two, "OUTPUT__2"])
    folder.script("words", Words, [["a", "bc", "", "d" * 1000, "\u00e4"], torch.tensor([2])], [["x"], torch.tensor([0])], names=pair,
                  results=[*two, "OUTPUT__2"])
    folder.script("words_batched", WordsBatched, [["a", "bc", "", "d" * 1000]], [["x"]], names=pair, results=two)
    values = {torch.bool: [0, 1], torch.uint8: [0, 255], torch.int8: [-128, 127], torch.int16: [-2 ** 15, 7], torch.int32: [-2 ** 31, 7],
              torch.int64: [-2 ** 63, 7], torch.float16: [0.1, -2], torch.float32: [0.1, -2], torch.float64: [0.1, -2]}
    typed = [torch.tensor([values[dtype]], dtype=dtype) for dtype in TYPES.values()]
    folder.script("types", Types, typed, names=[f"IN__{index}" for index in range(9)], results=[f"OUT__{index}" for index in range(9)])
    folder.script("in_place", InPlace)
    folder.script("transposed", Transposed, [floats(2, 3, 5)], [floats(1, 1, 1)], names=pair, results=two)
    folder.script("conjugated", Conjugated, [floats(2, 4, 2)], names=pair, results=two)
    folder.script("fails", Fails, [torch.eye(3).reshape(1, 3, 3) * 4], names=pair, results=two)
    folder.script("accumulate", Accumulate)
    folder.script("optionals", Optionals, [floats(2, 4), None], [floats(2, 4), floats(2, 4, seed=1)], names=pair, results=two)
    folder.script("fork", Fork, [floats(2, 16)], names=pair, results=two)
    folder.script("scalar", Scalar, [floats(2, 4)], names=pair, results=two)
    folder.script("large", Large, [torch.tensor([3])], names=pair, results=two)
    folder.script("weighted", Weighted, [floats(2, 4)], names=pair, results=two)
    if folder.wants("weights_alone"):
        (folder.path / "weights_alone").mkdir(exist_ok=True)
        torch.save(Weighted().state_dict(), str(folder.path / "weights_alone/model.pt"))
    folder.script("number", Number)
    folder.script("argument", Argument)


def compiled(folder):
    batch = torch.export.Dim("batch", min=1, max=64)
    pair = ["INPUT__0", "INPUT__1"]
    cases = [[floats(rows, 16, seed=rows), floats(rows, 16, seed=rows + 50)] for rows in (1, 2, 7)]
    folder.compiled("addsub_compiled", AddSub, tuple(cases[1]), ({0: batch}, {0: batch}), *cases, names=pair,
                    results=["OUTPUT__0", "OUTPUT__1"])
    images = [[floats(rows, 3, 224, 224, seed=rows)] for rows in (1, 2)]
    folder.compiled("resnet18_compiled", ResNet18, tuple(images[1]), ({0: batch},), *images, names=["ARGS[0]"], results=["RESULT"])
    rows = {0: batch}
    nested = [floats(2, 4, seed=seed) for seed in range(5)]
    folder.compiled("nested", Nested, (nested[0], nested[1], {"x": nested[2], "y": nested[3]}),
                    {"first": rows, "second": rows, "options": {"x": rows, "y": rows}, "third": rows}, nested,
                    [floats(5, 4, seed=seed) for seed in range(5, 10)], keywords={"third": nested[4]},
                    names=["ARGS[0]", "ARGS[1]", "ARGS[2][x]", "ARGS[2][y]", "KWARGS[third]"],
                    results=["RESULT[sum]", "RESULT[pair][0]", "RESULT[pair][1]", "RESULT[all][0]"])
    folder.compiled("transposed_compiled", Transposed, (floats(2, 3, 4),), None, [floats(2, 3, 4)], names=pair,
                    results=["OUTPUT__0", "OUTPUT__1"])
    if folder.wants("exported"):
        (folder.path / "exported").mkdir(exist_ok=True)
        torch.export.save(torch.export.export(AddSub(), tuple(cases[0])), str(folder.path / "exported/model.pt2"))


def main():
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(pathlib.Path(sys.argv[1]) / "inductor"))
    torch.set_num_threads(1)
    folder = Folder(sys.argv[1], sys.argv[2:])
    scripts(folder)
    compiled(folder)
    (folder.path / "version").write_text(torch.__version__)


if __name__ == "__main__":
    main()
