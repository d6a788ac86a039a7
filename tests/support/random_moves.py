"""More of what a random model is made of: products, norms, reductions, and everything that moves data."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np

from tests.support.draft import Draft, Refused
from tests.support.random_nodes import MOST_MACS, Shape, Step, axis_of

# ---- products and norms --------------------------------------------------------------------------------------------


def matmul(d: Draft) -> str:
    """With a constant, with its own transpose, or with another value; batches broadcast."""
    x = d.pick(lambda s: len(s) >= 2)
    *batch, m, k = d.shape(x)
    scale = k**-0.5
    match d.among("matrix", "matrix", "batched", "own", "other", "vector", "left"):
        case "matrix":
            n = int(d.among(1, 3, 8, 16, 19, 32))
            _affordable(prod(batch) * m * k * n)
            return d.one("MatMul", x, d.weights(k, n, scale=scale))
        case "batched":
            shape = tuple(b if d.chance(0.5) else 1 for b in batch) if d.chance(0.7) else (2, *batch)
            _affordable(2 * prod(batch) * m * k * 5)
            return d.one("MatMul", x, d.weights(*shape, k, 5, scale=scale))
        case "own":
            _affordable(prod(batch) * m * k * m)
            t = d.one("Transpose", x, perm=[*range(len(batch)), len(batch) + 1, len(batch)])
            y = d.one("MatMul", *((x, t) if d.chance(0.7) else (t, x)))
            return d.one("Mul", y, d.constant(np.float32(scale)))
        case "other":
            y = d.pick(lambda s: len(s) >= 2 and s[-2] == k and all(a == b or 1 in (a, b) for a, b in zip(s[-3::-1], batch[::-1])))
            _affordable(prod(batch) * prod(d.shape(y)) * m)
            return d.one("MatMul", x, y)
        case "vector":
            return d.one("MatMul", x, d.weights(k, scale=scale))
        case _:
            _affordable(prod(batch) * m * k * 6)
            return d.one("MatMul", d.weights(6, m, scale=m**-0.5), x)


def _affordable(macs: int) -> None:
    if macs > MOST_MACS:
        raise Refused("too much work")


def gemm(d: Draft) -> str:
    x = d.pick(lambda s: len(s) == 2)
    ta, tb = d.chance(0.3), d.chance(0.5)
    m, k = d.shape(x)[::-1] if ta else d.shape(x)
    n = int(d.among(1, 5, 10, 16, 33))
    _affordable(m * k * n)
    w = d.weights(n, k, scale=k**-0.5) if tb else d.weights(k, n, scale=k**-0.5)
    shift = [d.weights(*d.among((n,), (1, n), (m, 1), (m, n), ()), scale=0.5)] if d.chance(0.7) else []
    extra = {"alpha": 0.5, "beta": 0.7} if d.chance(0.3) else {}
    return d.one("Gemm", x, w, *shift, transA=int(ta), transB=int(tb), **extra)


def attention(d: Draft) -> str:
    """softmax(Q Kᵀ) V with Q, K, V from one value, perhaps in heads."""
    x = d.pick(lambda s: len(s) == 3)
    b, t, c = d.shape(x)
    heads = int(d.among(1, *(h for h in (2, 3, 4) if c % h == 0)))
    _affordable(3 * b * t * c * c + 2 * b * t * t * c)
    parts: list[str] = []
    for _ in range(3):
        y = d.one("Add", d.one("MatMul", x, d.weights(c, c, scale=c**-0.5)), d.weights(c, scale=0.2))
        y = d.one("Reshape", y, d.integers([b, t, heads, c // heads]))
        parts.append(d.one("Transpose", y, perm=[0, 2, 1, 3]))
    q, k, v = parts
    scores = d.one("MatMul", q, d.one("Transpose", k, perm=[0, 1, 3, 2]))
    p = d.one("Softmax", d.one("Mul", scores, d.constant(np.float32((c / heads) ** -0.5))), axis=-1)
    y = d.one("Transpose", d.one("MatMul", p, v), perm=[0, 2, 1, 3])
    return d.one("Add", x, d.one("Reshape", y, d.integers([b, t, c])))


def norm(d: Draft) -> str:
    x = d.pick(lambda s: len(s) >= 2)
    shape = d.shape(x)
    match d.among("Softmax", "Softmax", "LogSoftmax", "Layer", "Layer", "Instance", "Lrn", "L2"):
        case "Layer":
            at = int(d.rng.integers(1, len(shape)))
            if prod(shape[at:]) < 3:
                raise Refused("too few to normalise")
            scale, shift = d.weights(*shape[at:], scale=0.2, centre=1.0), d.weights(*shape[at:], scale=0.2)
            return d.one("LayerNormalization", x, scale, *([shift] if d.chance(0.7) else []), axis=at - len(shape) if d.chance(0.5) else at)
        case "Instance":
            if len(shape) < 3 or prod(shape[2:]) < 3:
                raise Refused("too few to normalise")
            return d.one("InstanceNormalization", x, d.weights(shape[1], centre=1.0), d.weights(shape[1]))
        case "Lrn":
            if len(shape) != 4:
                raise Refused("no image")
            return d.one("LRN", x, size=int(d.among(3, 5)), alpha=0.1, beta=0.75, bias=1.0)
        case "L2":
            squares = d.one("ReduceSum", d.one("Mul", x, x), d.integers([axis_of(d, x)]), keepdims=1)
            return d.one("Div", x, d.one("Sqrt", d.one("Add", squares, d.constant(np.float32(0.1)))))
        case op:
            return d.one(op, x, axis=axis_of(d, x) - (len(shape) if d.chance(0.3) else 0))


def reduction(d: Draft) -> str:
    x = d.pick(lambda s: len(s) > 0)
    rank = len(d.shape(x))
    axes = sorted(int(a) for a in d.rng.permutation(rank)[: int(d.rng.integers(1, rank + 1))])
    op = "Reduce" + d.among("Sum", "Mean", "Mean", "Max", "Min", "L2", "SumSquare", "LogSumExp", "L1")
    if d.chance(0.1):
        return d.one(op, x, keepdims=int(d.chance(0.5)))
    return d.one(op, x, d.integers([a - rank if d.chance(0.3) else a for a in axes]), keepdims=int(d.chance(0.5)))


def centred(d: Draft) -> str:
    """A value less its own mean: the reduction's result broadcasts back."""
    x = d.pick(lambda s: len(s) >= 2 and max(s) > 1)
    m = d.one(d.among("ReduceMean", "ReduceMax"), x, d.integers([axis_of(d, x)]), keepdims=1)
    return d.one("Sub", x, m)


def order(d: Draft) -> str:
    """What is decided by data: positions of maxima, largest elements, running sums, gathered rows."""
    x = d.pick(lambda s: len(s) > 0)
    axis = axis_of(d, x)
    match d.among("ArgMax", "CumSum", "TopK", "Gather"):
        case "ArgMax":
            return d.one("Cast", d.one(d.among("ArgMax", "ArgMin"), x, axis=axis, keepdims=int(d.chance(0.5))), to=1)
        case "CumSum":
            return d.one("CumSum", x, d.constant(np.int64(axis)), exclusive=int(d.chance(0.3)), reverse=int(d.chance(0.3)))
        case "TopK":
            k = int(d.rng.integers(1, d.shape(x)[axis] + 1))
            return d.emit("TopK", x, d.integers([k]), results=2, axis=axis)[0]
        case _:
            at = d.one("ArgMax", x, axis=axis, keepdims=0)
            if not 1 <= len(d.shape(at)) <= 2:
                raise Refused("too many positions")
            return d.one("Gather", d.weights(d.shape(x)[axis], 3), at)


# ---- movement ------------------------------------------------------------------------------------------------------


def transpose(d: Draft) -> str:
    x = d.pick(lambda s: len(s) >= 2)
    return d.one("Transpose", x, perm=[int(p) for p in d.rng.permutation(len(d.shape(x)))])


def _split(d: Draft, n: int) -> list[int]:
    """n as a product of a few numbers."""
    found: list[int] = []
    while n > 1 and len(found) < 3:
        divisors = [k for k in range(2, n + 1) if n % k == 0]
        found.append(int(d.among(*divisors)))
        n //= found[-1]
    return [*found, n] if n > 1 or d.chance(0.3) else found


def reshape(d: Draft) -> str:
    """Flattened, dimensions merged, one of them split, or anything with as many elements."""
    x = d.pick()
    shape = list(d.shape(x))
    match d.among("free", "merge", "split", "flatten", "unsqueeze", "squeeze"):
        case "merge" if len(shape) >= 2:
            k = int(d.rng.integers(len(shape) - 1))
            new = [*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :]]
        case "split" if 0 < len(shape) <= 4:
            k = axis_of(d, x)
            new = [*shape[:k], *(_split(d, shape[k]) or [1]), *shape[k + 1 :]]
        case "flatten" if len(shape) >= 1:
            return d.one("Flatten", x, axis=int(d.rng.integers(len(shape) + 1)))
        case "unsqueeze" if len(shape) <= 4:
            return d.one("Unsqueeze", x, d.integers([int(d.rng.integers(len(shape) + 1))]))
        case "squeeze" if 1 in shape:
            return d.one("Squeeze", x, *([d.integers([shape.index(1)])] if d.chance(0.6) else []))
        case _:
            new = _split(d, prod(shape)) or [1]
    if d.chance(0.3) and new:
        new[int(d.rng.integers(len(new)))] = -1
    if len(new) > 5:
        raise Refused("too many dimensions")
    return d.one("Reshape", x, d.integers(new))


def expand(d: Draft) -> str:
    x = d.pick(lambda s: 1 in s or len(s) < 4)
    shape = [int(d.among(1, 2, 5)) if e == 1 else e for e in d.shape(x)]
    if len(shape) < 4 and d.chance(0.5):
        shape = [int(d.among(1, 2, 3)), *shape]
    return d.one("Expand", x, d.integers(shape))


def tile(d: Draft) -> str:
    x = d.pick(lambda s: 0 < len(s) <= 4)
    return d.one("Tile", x, d.integers([int(d.among(1, 1, 2, 3)) for _ in d.shape(x)]))


def _span(d: Draft, n: int) -> tuple[int, int, int]:
    """Start, end and step of a slice of a dimension, which may run backwards or count from the end."""
    a, b = sorted(int(v) for v in d.rng.choice(n + 1, 2, replace=False))
    step = int(d.among(1, 1, 1, 2, 3))
    if d.chance(0.2):
        return b - 1, a - 1 if a else -n - 1, -step
    return a - n if d.chance(0.2) else a, b, step


def cut(d: Draft, x: str | None = None) -> str:
    x = x or d.pick(lambda s: len(s) > 0 and max(s) > 1)
    shape = d.shape(x)
    dims = sorted({axis_of(d, x) for _ in range(int(d.among(1, 1, 2)))})
    spans = [_span(d, shape[k]) for k in dims]
    starts, ends, steps = (d.integers(list(v)) for v in zip(*spans))
    return d.one("Slice", x, starts, ends, d.integers(dims), steps)


def split(d: Draft) -> str:
    """Some of the parts are read, perhaps in another order, perhaps none."""
    x = d.pick(lambda s: len(s) > 0 and max(s) > 1)
    shape = d.shape(x)
    axis = int(d.among(*(k for k, e in enumerate(shape) if e > 1)))
    n = shape[axis]
    if d.chance(0.4) and n % 2 == 0:
        sizes = [n // 2] * 2
    else:
        marks = sorted({0, n, *(int(v) for v in d.rng.integers(1, n, int(d.among(1, 2))))})
        sizes = [b - a for a, b in pairwise(marks)]
    parts = d.emit("Split", x, d.integers(sizes), results=len(sizes), axis=axis)
    if d.chance(0.5):
        i, j = (int(v) for v in d.rng.permutation(len(parts))[:2])
        changed = d.one(d.among("Relu", "Tanh", "Neg"), parts[i])
        return d.one("Concat", parts[j], changed, *([parts[j]] if d.chance(0.3) else []), axis=axis)
    return parts[0]


def concat(d: Draft) -> str:
    """Of values, slices of values, constants, and the same value twice; along any dimension."""
    x = d.pick(lambda s: len(s) > 0)
    shape, axis = d.shape(x), axis_of(d, x)

    def fits(s: Shape) -> bool:
        return len(s) == len(shape) and all(k == axis or a == b for k, (a, b) in enumerate(zip(s, shape)))

    parts = [x]
    for _ in range(int(d.among(1, 1, 2, 3))):
        match d.among("value", "value", "value", "same", "constant", "slice"):
            case "value":
                parts.append(d.pick(fits))
            case "same":
                parts.append(x)
            case "constant":
                parts.append(d.weights(*(int(d.among(1, 2, 3)) if k == axis else e for k, e in enumerate(shape))))
            case _:
                source = d.pick(fits)
                a, b, step = _span(d, d.shape(source)[axis])
                parts.append(d.one("Slice", source, *(d.integers([v]) for v in (a, b, axis, step))))
    parts = [parts[int(k)] for k in d.rng.permutation(len(parts))]
    return d.one("Concat", *parts, axis=axis - len(shape) if d.chance(0.2) else axis)


def rejoined(d: Draft) -> str:
    """Parts of an earlier concatenation joined again: some of them, in another order, with the whole, or as slices of it."""
    earlier = [n for n in d.nodes if n.op_type == "Concat"]
    if not earlier:
        raise Refused("nothing is joined yet")
    node = earlier[int(d.rng.integers(len(earlier)))]
    axis, parts = int(node.attribute[0].i), list(node.input)
    match d.among("some", "some", "shuffled", "whole", "slices"):
        case "some":
            k = int(d.rng.integers(len(parts)))
            chosen = parts[k : k + 2]
        case "shuffled":
            chosen = [parts[int(k)] for k in d.rng.permutation(len(parts))]
        case "whole":
            chosen = [node.output[0], parts[0]]
        case _:
            k = int(d.rng.integers(1, d.shape(node.output[0])[axis]))
            low, high, zero, along = (d.integers([v]) for v in (k, d.shape(node.output[0])[axis], 0, axis))
            chosen = [d.one("Slice", node.output[0], low, high, along), d.one("Slice", node.output[0], zero, low, along)]
    return d.one("Concat", *chosen, axis=axis)


def pad(d: Draft) -> str:
    x = d.pick(lambda s: 0 < len(s) <= 4)
    shape = d.shape(x)
    mode = d.among("constant", "constant", "reflect", "edge")
    most = [min(2, e - 1) if mode == "reflect" else 2 for e in shape]
    sizes = [int(d.rng.integers(0, m + 1)) if d.chance(0.5) else 0 for m in most * 2]
    if mode == "constant" and d.chance(0.15):
        sizes = [-1 if e > 2 and d.chance(0.3) else s for e, s in zip(shape * 2, sizes)]
    value = [d.constant(np.float32(0.5))] if mode == "constant" and d.chance(0.4) else []
    return d.one("Pad", x, d.integers(sizes), *value, mode=mode)


def gather(d: Draft) -> str:
    x = d.pick(lambda s: 0 < len(s) <= 4)
    axis = axis_of(d, x)
    n = d.shape(x)[axis]
    shape = d.among((), (1,), (3,), (5,), (2, 2))
    return d.one("Gather", x, d.constant(np.asarray(d.rng.integers(-n, n, shape), np.int64)), axis=axis)


def blocks(d: Draft) -> str:
    """Depth to space and back, nearest and linear resizing."""
    x = d.pick(lambda s: len(s) == 4)
    _, c, h, w = d.shape(x)
    kind = d.among("DepthToSpace", "SpaceToDepth", "nearest", "linear")
    if kind == "DepthToSpace" and c % 4 == 0:
        return d.one(kind, x, blocksize=2, mode=d.among("DCR", "CRD"))
    if kind == "SpaceToDepth" and h % 2 == w % 2 == 0:
        return d.one(kind, x, blocksize=2)
    scales = d.constant(np.array([1, 1, 2, 2], np.float32))
    if kind == "linear":
        return d.one("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    return d.one("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


PRODUCTS: tuple[tuple[float, Step], ...] = ((2, matmul), (1, gemm), (1, attention), (2, norm), (1.5, reduction), (1, centred), (0.5, order))
MOVEMENT: tuple[tuple[float, Step], ...] = (
    (1.5, transpose), (2, reshape), (0.5, expand), (0.3, tile), (1.5, cut), (1.5, split), (2.5, concat), (1, rejoined), (1, pad),
    (0.5, gather), (0.4, blocks),
)  # fmt: skip
