"""Random small tasks: the nineteen operators, and a few tasks of our own for what the operators do not have.

Extents are ones, primes, and numbers just below and above a vector; strides, dilations, groups and pads vary, zero pads
included. Every seed gives the same task for ever. Tasks of the graph layer are drawn by `drawn_graphs`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import build as sd
from stormdrop.ir.expr import Dtype
from stormdrop.ir.tensor import Task, Variant, axis, compute, reduce_axis, tensor
from stormdrop.operators.broadcast import elementwise, pad_constant
from stormdrop.operators.catalogue import OPERATORS, build
from stormdrop.operators.contract import matmul_nd
from stormdrop.operators.window import Window, conv_nd
from tests.support.winograd import winograd_variant

Rng = np.random.Generator
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 19, 23, 24, 29, 31, 32, 33, 37, 47, 48, 50)
MAX_WORK = 120_000
"""Points of all loops together: what the reference evaluates in a few milliseconds."""


def extent(rng: Rng, most: int, least: int = 1) -> int:
    return int(rng.choice([e for e in EXTENTS if least <= e <= most]))


def row(rng: Rng) -> int:
    """A row to reduce along: up to many vectors."""
    return int(rng.choice([extent(rng, 50), 64, 100, 129, 200, 255]))


def _window(rng: Rng) -> tuple[int, int, int]:
    """Kernel, stride and pad; a pad may exceed half the kernel."""
    kernel = int(rng.choice([1, 2, 3, 3, 3, 4, 5]))
    return kernel, int(rng.choice([1, 1, 2, 3])), int(rng.choice([0, 0, 1, 1, 2]))


def _long(rng: Rng) -> int:
    return int(rng.integers(4096, 6000))


def _arguments(name: str, rng: Rng, long: bool) -> list[int]:
    """Arguments of one operator, which may make no sense. `long`: a reduction that is worth cutting into parts."""
    kernel, stride, border = _window(rng)
    batch = int(rng.choice([1, 1, 1, 2, 3]))
    match name:
        case "GMM" | "DEN" if long:
            return [1, int(rng.choice([1, 2])), int(rng.choice([1, 3])), _long(rng)]
        case "GMM" | "DEN":
            return [batch, extent(rng, 50), extent(rng, 50), extent(rng, 50)]
        case "C1D":
            return [batch, extent(rng, 37), extent(rng, 24), extent(rng, 50), kernel, stride, border]
        case "C2D" | "CBR":
            return [batch, extent(rng, 17), extent(rng, 17), extent(rng, 19), extent(rng, 50), kernel, stride, border]
        case "DIL":
            return [
                1,
                extent(rng, 19, 3),
                extent(rng, 19, 3),
                extent(rng, 13),
                extent(rng, 37),
                kernel,
                stride,
                border,
                int(rng.choice([1, 2, 3])),
            ]
        case "C3D":
            return [
                1,
                extent(rng, 7),
                extent(rng, 9),
                extent(rng, 9),
                extent(rng, 7),
                extent(rng, 33),
                min(kernel, 3),
                stride,
                border,
            ]
        case "GRP":
            groups = int(rng.choice([1, 2, 3, 4]))
            return [
                1,
                extent(rng, 11),
                extent(rng, 11),
                groups * extent(rng, 7),
                groups * extent(rng, 33),
                kernel,
                stride,
                border,
                groups,
            ]
        case "DEP":
            return [batch, extent(rng, 19), extent(rng, 19), extent(rng, 50), kernel, stride, border]
        case "MXP":
            return [batch, extent(rng, 19), extent(rng, 19), extent(rng, 50), kernel, stride, min(border, kernel - 1)]
        case "T2D":
            return [1, extent(rng, 9), extent(rng, 9), extent(rng, 11), extent(rng, 33), kernel, stride, border]
        case "CAP":
            return [1, extent(rng, 6), extent(rng, 6), extent(rng, 5), extent(rng, 19), min(kernel, 3), stride, border]
        case "NRM" if long:
            return [batch, 67, 62] if rng.random() < 0.5 else [batch, int(rng.choice([1, 3])), _long(rng)]
        case "NRM":
            return [extent(rng, 19), extent(rng, 11), row(rng)]
        case "SFM" if long:
            return [int(rng.choice([1, 2, 3])), _long(rng)]
        case "SFM":
            return [extent(rng, 37), row(rng)]
        case "TBG":
            return [batch, extent(rng, 24), int(rng.choice([1, 2, 3, 5])), extent(rng, 24)]
        case "ADR":
            return [batch, extent(rng, 11), extent(rng, 11), extent(rng, 50)]
        case "GMV" if long:
            return [int(rng.choice([1, 1, 2, 3, 5, 7])), _long(rng)]
        case "GMV":
            return [extent(rng, 50), row(rng)]
        case "DOT":
            return [_long(rng) if long else int(rng.integers(1, 300))]
        case "TRN":
            return [extent(rng, 50), extent(rng, 50)]
        case _:
            raise AssertionError(name)


def _minimum(rng: Rng, dtype: Dtype) -> Task:
    i, k = axis(extent(rng, 24), "i"), reduce_axis(row(rng), "k")
    x = tensor("X", (i.extent, k.extent), dtype)
    return Task([compute("Y", i, sd.reduce_min(x[i, k], k))], name="MIN")


def _column_product(rng: Rng, dtype: Dtype) -> Task:
    """The reduced axis is the outer one."""
    j, k = axis(extent(rng, 50), "j"), reduce_axis(extent(rng, 24), "k")
    x = tensor("X", (k.extent, j.extent), dtype)
    return Task([compute("Y", j, sd.prod(x[k, j] + 1, k))], name="PRD")


def _integers(rng: Rng, dtype: Dtype) -> Task:
    """A matrix product of integers, its largest row element, and whether the product is positive: three outputs."""
    n, m, depth = extent(rng, 24), extent(rng, 33), extent(rng, 24)
    kind: Dtype = "i64" if dtype == "f64" else "i32"
    a, b = tensor("A", (n, depth), kind), tensor("B", (depth, m), kind, constant=True)
    i, j, k = axis(n, "i"), axis(m, "j"), reduce_axis(depth, "k")
    c = compute("C", (i, j), sd.sum(a[i, k] * b[k, j], k))
    i, k = axis(n, "i"), reduce_axis(m, "k")
    largest = compute("M", i, sd.reduce_max(c[i, k], k))
    i, j = axis(n, "i"), axis(m, "j")
    return Task([c, largest, compute("S", (i, j), c[i, j] > 0)], name="INT")


def _chain(rng: Rng, dtype: Dtype) -> Task:
    """Two matrix products with a relu between them."""
    n, k, m, p = (extent(rng, 24) for _ in range(4))
    x, w, v = (
        tensor("X", (n, k), dtype),
        tensor("W", (k, m), dtype, constant=True),
        tensor("V", (m, p), dtype, constant=True),
    )
    return Task([matmul_nd(elementwise(lambda e: sd.relu(e[0]), [matmul_nd(x, w)]), v)], name="CHN")


def _exponential_weights(rng: Rng, dtype: Dtype) -> Task:
    """A constant stage that is too dear to compute where it is read."""
    n, k, m = extent(rng, 24), extent(rng, 24), extent(rng, 33)
    x, w = tensor("X", (n, k), dtype), tensor("W", (k, m), dtype, constant=True)
    return Task([matmul_nd(x, elementwise(lambda e: sd.exp(e[0]), [w]))], name="EXW")


def _concatenation(rng: Rng, dtype: Dtype) -> Task:
    """Two arrays side by side along the last axis: a selection both of whose sides are reads."""
    n, p, q = extent(rng, 17), extent(rng, 33), extent(rng, 33)
    a, b = tensor("A", (n, p), dtype), tensor("B", (n, q), dtype)
    i, j = axis(n, "i"), axis(p + q, "j")
    return Task([compute("Y", (i, j), sd.where(j < p, a[i, j], b[i, j - p]))], name="CAT")


def _upsample(rng: Rng, dtype: Dtype) -> Task:
    """Nearest neighbours of an image, reversed along its width: quotients, and a negative step on the vector axis."""
    h, w, by = extent(rng, 9), extent(rng, 24), int(rng.choice([1, 2, 3]))
    x = tensor("X", (h, w), dtype)
    i, j = axis(h * by, "i"), axis(w * by, "j")
    return Task([compute("Y", (i, j), x[i // by, (w - 1) - j // by])], name="UPS")


def _winograd(rng: Rng, dtype: Dtype) -> Task:
    n, h, w, ci, co = 1, extent(rng, 9, 3), extent(rng, 9, 3), extent(rng, 7), extent(rng, 19)
    border = int(rng.choice([0, 1]))
    x, weights = tensor("X", (n, h, w, ci), dtype), tensor("W", (3, 3, ci, co), dtype, constant=True)
    direct = Variant((conv_nd(x, weights, Window.uniform(2, 3, pad=border), 1, "NHWC"),))
    return Task(variants=[direct, *(winograd_variant(x, weights, border, m) for m in (2, 4))], name="WIN")


def _stencil(rng: Rng, dtype: Dtype) -> Task:
    """A moving sum along the last axis, padded on both sides: the border depends on the lane."""
    n, w, kernel = extent(rng, 13), extent(rng, 50), int(rng.choice([1, 2, 3, 5]))
    x = tensor("X", (n, w), dtype)
    p = pad_constant(x, (0, int(rng.integers(0, kernel))), (0, kernel - 1), 0, (1,))
    i, j, k = axis(n, "i"), axis(p.shape[1] - kernel + 1, "j"), reduce_axis(kernel, "k")
    return Task([compute("Y", (i, j), sd.sum(p[i, j + k], k))], name="STN")


OWN: dict[str, Callable[[Rng, Dtype], Task]] = {
    "MIN": _minimum,
    "PRD": _column_product,
    "INT": _integers,
    "CHN": _chain,
    "EXW": _exponential_weights,
    "CAT": _concatenation,
    "UPS": _upsample,
    "STN": _stencil,
    "WIN": _winograd,
}
NAMES = (*OPERATORS, *OWN)
DRAWN = (*NAMES, "DEN", "DEN", "DEN", "DEN", "GMV", "GMV", "SFM", "NRM", "DOT")
"""Once each; again those that alone have run-time operands to pack, or long rows."""


def work(task: Task) -> int:
    """Points of all loops of the task's variants."""
    total = 0
    for t in (t for v in task.variants for t in v.stages):
        assert t.compute is not None
        points = 1
        for a in (*t.compute.axes, *t.compute.reduce_axes):
            points *= a.extent
        total += points
    return total


def random_task(name: str, rng: Rng, dtype: Dtype = "f32", long: bool = False, most: int = MAX_WORK) -> Task:
    """A task of the class `name`, drawn again until it makes sense and is small; after some draws the smallest one."""
    drawn: list[Task] = []
    while len(drawn) < 30:
        if name in OWN:
            drawn.append(OWN[name](rng, dtype))
        else:
            try:
                drawn.append(build(name, _arguments(name, rng, long), dtype))
            except UserError:
                continue
        if work(drawn[-1]) <= most:
            return drawn[-1]
    return min(drawn, key=work)
