"""TorchScript by itself, in batches, for a Python that has torch:

    torch_batches.py make WEIGHTS FILE                                    writes resnet18 with these weights (NumPy's .npz) as TorchScript
    torch_batches.py run MODEL DEVICE THREADS ROWS TYPE DIMS COUNT        a closed loop, asked as perf/engines/batches.h says

DEVICE is the number of a GPU, or -1 for the CPU. TYPE is FP32, DIMS those of a row, such as 3x224x224, and the answer to a row is COUNT values
of FP32. Each lane has a stream of its own. Tensors in main memory are pinned where there is a GPU. On the CPU, device memory is main memory."""

import contextlib
import pathlib
import sys
import threading
import time

import numpy
import torch

TYPES = {"FP32": numpy.float32}


class Resnet18(torch.nn.Module):
    """As perf/real_models.py has it."""

    def __init__(self, weights):
        super().__init__()
        self.names = set(weights)
        for name, array in weights.items():
            self.register_buffer(name, torch.from_numpy(array))

    def convolution(self, source, name, stride):
        weight = getattr(self, f"{name}_w")
        return torch.nn.functional.conv2d(source, weight, getattr(self, f"{name}_b"), stride, weight.shape[-1] // 2)

    def forward(self, image):
        hidden = torch.relu(self.convolution(image, "stem", 2))
        hidden = torch.nn.functional.max_pool2d(hidden, 3, 2, 1)
        for stage in range(4):
            for block in range(2):
                name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
                second = self.convolution(torch.relu(self.convolution(hidden, f"{name}_1", stride)), f"{name}_2", 1)
                skipped = self.convolution(hidden, f"{name}_s", stride) if f"{name}_s_w" in self.names else hidden
                hidden = torch.relu((second + skipped) * 0.5)
        return torch.nn.functional.linear(hidden.mean((2, 3)), self.classes_w, self.classes_b)


def make(weights, path):
    with torch.inference_mode(False), torch.no_grad():
        model = Resnet18(dict(numpy.load(weights))).eval()
        torch.jit.trace(model, torch.zeros(2, 3, 224, 224)).save(path)


class Lane:
    """A stream, with tensors for each number of rows."""

    def __init__(self, model, rows, count, device):
        self.model, self.device, self.count = model, device, count
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.given = {"host": self.pinned(torch.from_numpy(rows)), "device": torch.from_numpy(rows).to(device)}
        self.answers = {"host": self.pinned(torch.empty(len(rows), count)), "device": torch.empty(len(rows), count, device=device)}
        self.wait()

    def pinned(self, tensor):
        return tensor.pin_memory() if self.stream else tensor

    def current(self):
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def wait(self):
        if self.stream:
            torch.cuda.synchronize(self.device)

    def call(self, memory, rows):
        with torch.inference_mode(), self.current():
            made = self.model(self.given[memory][:rows].to(self.device, non_blocking=True))
            self.answers[memory][:rows].copy_(made, non_blocking=True)
            if self.stream:
                self.stream.synchronize()


class Loop:
    def __init__(self, model, device, threads, rows, kind, dims, count):
        self.device = torch.device("cpu" if int(device) < 0 else f"cuda:{device}")
        torch.set_num_threads(int(threads))
        self.rows = numpy.fromfile(rows, TYPES[kind]).reshape(-1, *map(int, dims.split("x")))
        self.model, self.count, self.lanes = torch.jit.load(model, self.device).eval(), int(count), []

    def lane(self, number):
        while len(self.lanes) <= number:
            self.lanes.append(Lane(self.model, self.rows, self.count, self.device))
        return self.lanes[number]

    def save(self, memory, rows, path):
        self.lane(0).call(memory, int(rows))
        self.lane(0).answers[memory][:int(rows)].cpu().numpy().tofile(path)
        return "saved"

    def run(self, memory, rows, lanes, milliseconds):
        lanes, rows = [self.lane(number) for number in range(int(lanes))], int(rows)
        counts = [0] * len(lanes)
        for lane in lanes:
            # What is made of the first batches, also by TorchScript's optimiser, does not count.
            for _ in range(3):
                lane.call(memory, rows)
        wall, cpu = -time.monotonic_ns(), -time.process_time_ns()
        until = -wall + int(milliseconds) * 1_000_000

        def turn(number):
            while not counts[number] or time.monotonic_ns() < until:
                lanes[number].call(memory, rows)
                counts[number] += 1

        threads = [threading.Thread(target=turn, args=(number,)) for number in range(1, len(lanes))]
        for thread in threads:
            thread.start()
        turn(0)
        for thread in threads:
            thread.join()
        return f"{sum(counts)} {wall + time.monotonic_ns()} {cpu + time.process_time_ns()}"

    def attend(self):
        print("ready", flush=True)
        for line in sys.stdin:
            name, *words = line.split(maxsplit=3 if line.startswith("save") else -1)
            print({"run": self.run, "save": self.save}[name](*map(str.strip, words)), flush=True)


def main():
    command, *words = sys.argv[1:]
    if command == "make":
        make(pathlib.Path(words[0]), words[1])
    else:
        Loop(*words).attend()


if __name__ == "__main__":
    main()
