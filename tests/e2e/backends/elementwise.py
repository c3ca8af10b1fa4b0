"""Models of the gpu_elementwise backend, and what numpy makes of their operations: the rules of the backend's README, bit for bit."""

import numpy as np

from repository import tensors

# Bits of BF16 lie in unsigned integers: numpy has no such type.
TYPES = {"FP32": np.float32, "FP16": np.float16, "BF16": np.uint16, "INT32": np.int32, "INT8": np.int8, "UINT8": np.uint8}
FLOATS = ("FP32", "FP16", "BF16")
NAN = {"FP32": 0x7FFFFFFF, "FP16": 0x7FFF, "BF16": 0x7FFF}
BITS = {"FP32": np.uint32, "FP16": np.uint16, "BF16": np.uint16}
EDGES = {
    "FP32": [0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001,
             0x3F000000, 0x3FC00000, 0x40200000, 0xC0200000, 0x477FF000, 0x477FEFFF, 0x4F000000, 0xCF000000, 0x33000000, 0x3F808000],
    "FP16": [0, 0x8000, 1, 0x3FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x3C00, 0x5BFF, 0x3E00, 0x4100],
    "BF16": [0, 0x8000, 1, 0x7F, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x3F80, 0x4F00, 0x3FC0, 0x4020],
    "INT32": [0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 16777217, 127, 128, 255, 256, 0xFFFFFF7F],
}


def edges(kind, count, seed=0):
    """Elements of a type: every edge, in another order for each seed, and random bits."""
    chosen = np.random.default_rng(seed)
    if kind in EDGES:
        width = TYPES[kind]().itemsize
        bits = np.array(EDGES[kind], dtype=f"<u{width}")
        bits = np.concatenate([np.roll(bits, 5 * seed), chosen.integers(0, 1 << 8 * width, max(count, len(bits)), dtype=f"u{width}")])
        return bits[:count].view(TYPES[kind])
    return np.resize(np.roll(np.arange(256, dtype=np.uint8), 37 * seed), count).view(TYPES[kind])


def to_fp32(values, kind):
    with np.errstate(all="ignore"):
        if kind == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


def from_fp32(values, kind):
    """FP32 as elements of a type: to nearest even, saturating, and one kind of NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    with np.errstate(all="ignore"):
        if kind == "BF16":
            bits = values.view(np.uint32).astype(np.uint64)
            made = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        elif kind in FLOATS:
            made = values.astype(TYPES[kind])
        else:
            limits = np.iinfo(TYPES[kind])
            exact = np.where(np.isnan(values), 0, np.rint(values.astype(np.float64)))
            return np.clip(exact, limits.min, limits.max).astype(TYPES[kind])
    made = np.ascontiguousarray(made)
    made.view(BITS[kind])[np.isnan(values)] = NAN[kind]
    return made


def saturated(values, kind):
    limits = np.iinfo(TYPES[kind])
    return np.clip(values, limits.min, limits.max).astype(TYPES[kind])


def cast(values, source, target):
    if source in FLOATS or target in FLOATS:
        return from_fp32(to_fp32(values, source), target)
    return saturated(values.astype(np.int64), target)


def paired(operation, a, b, kind):
    """Sum or product."""
    with np.errstate(all="ignore"):
        if kind in FLOATS:
            return from_fp32(operation(to_fp32(a, kind), to_fp32(b, kind)), kind)
        return saturated(operation(a.astype(np.int64), b.astype(np.int64)), kind)


def affine(values, source, target, scale, offset):
    with np.errstate(all="ignore"):
        return from_fp32(to_fp32(values, source) * np.float32(scale) + np.float32(offset), target)


def normalized(images, target, scale, mean):
    """Images of channels last to channels first."""
    made = (images.astype(np.float32) - np.float32(mean)) * np.float32(scale)
    return from_fp32(np.moveaxis(made, -1, -3), target)


def listed(values):
    """Numbers as a parameter has them."""
    return ",".join(map(repr, values))


def model(operation, inputs=(), outputs=(), batch=0, kind="KIND_CPU", count=1, extra="", **parameters):
    """A configuration; inputs and outputs are rows of (name, type, dims)."""
    text = f'backend: "gpu_elementwise"\nmax_batch_size: {batch}\n' + tensors("input", inputs) + tensors("output", outputs)
    text += f"instance_group [ {{ count: {count} kind: {kind} }} ]\n"
    for name, value in {"operation": operation, **parameters}.items():
        text += f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
    return text + extra
