"""ONNX's reductions, matrix products, determinants and normalisations, in terms of a few canonical nodes."""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import prod

import numpy as np

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.expr import FLOATS
from stormdrop.operators.node import Value


def _axes(n: NodeReader, x: Value) -> list[int]:
    given = n.integers_of("axes", 1)
    if not given:
        return [] if n.integer("noop_with_empty_axes", 0) else list(range(x.rank))
    return n.dims(given, x.rank)


def _reduced(kind: str, before: str = "", after: str = "") -> Importer:
    """Returns an importer of a reduction of `before` of the elements (Mul: their squares), followed by `after`."""

    def importer(n: NodeReader) -> Value:
        b, x = n.build, n.input(0)
        y = x if not before else b.emit(before, *([x, x] if before == "Mul" else [x]))
        y = b.reduce(kind, y, _axes(n, x), bool(n.integer("keepdims", 1)))
        if not after:
            return y
        return b.cast(b.emit(after, y if y.dtype in FLOATS else b.cast(y, "f64")), y.dtype)

    return importer


def mean(b: GraphBuilder, x: Value, axes: Sequence[int], keep: bool = True) -> Value:
    count = prod(x.shape[d] for d in axes)
    total = b.reduce("Sum", x, axes, keep)
    if x.dtype not in FLOATS:
        return b.emit("Div", total, b.number(count, total)) if count else total
    return b.emit("Mul", total, b.number(1 / count if count else float("nan"), total))


def _moments(b: GraphBuilder, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Returns the mean, the difference from it, and the variance."""
    centre = mean(b, x, axes)
    gap = b.emit("Sub", x, centre)
    return centre, gap, mean(b, b.emit("Mul", gap, gap), axes)


def _mean(n: NodeReader) -> Value:
    x = n.input(0)
    return mean(n.build, x, _axes(n, x), bool(n.integer("keepdims", 1)))


def _log_sum_exp(n: NodeReader) -> Value:
    """Imports M + log Σ exp(x - M), or M itself if M is infinite. Integers are computed in f64."""
    b = n.build
    x = n.input(0) if n.input(0).dtype in FLOATS else b.cast(n.input(0), "f64")
    axes, keep = _axes(n, x), bool(n.integer("keepdims", 1))
    if not axes:
        return n.input(0)
    largest = b.reduce("Max", x, axes, True)
    bad = b.emit("Or", b.emit("IsInf", largest, positive=1, negative=1), b.emit("IsNaN", largest))
    shift = b.emit("Where", bad, b.number(0, x), largest)
    total = b.reduce("Sum", b.emit("Exp", b.emit("Sub", x, shift)), axes, True)
    y = b.cast(b.emit("Add", b.emit("Log", total), shift), n.input(0).dtype)
    return y if keep else b.reshape(y, [e for d, e in enumerate(x.shape) if d not in axes])


def product(b: GraphBuilder, left: Value, right: Value, **transposed: int) -> Value:
    """Returns a product of matrices. A vector is a matrix of one row or column, which the result then lacks."""
    x = b.reshape(left, (1, *left.shape)) if left.rank == 1 else left
    y = b.reshape(right, (*right.shape, 1)) if right.rank == 1 else right
    z = b.emit("MatMul", x, y, **transposed)
    shape = list(z.shape)
    if right.rank == 1:
        shape.pop()
    if left.rank == 1:
        shape.pop(-1 if right.rank == 1 else -2)
    return b.reshape(z, shape)


def _matmul(n: NodeReader) -> Value:
    return product(n.build, n.input(0), n.input(1))


def _gemm(n: NodeReader) -> Value:
    a, b = n.input(0), n.input(1)
    y = n.build.emit("MatMul", a, b, transpose_a=n.integer("transA", 0), transpose_b=n.integer("transB", 0))
    alpha, beta, c = n.number("alpha", 1.0), n.number("beta", 1.0), n.optional(2)
    if alpha != 1.0:
        y = n.build.emit("Mul", y, n.build.number(alpha, y))
    if c is None or beta == 0.0:
        return y
    scaled = c if beta == 1.0 else n.build.emit("Mul", c, n.build.number(beta, c))
    return n.build.emit("Add", y, scaled)


def _einsum(n: NodeReader) -> Value:
    """Imports Einsum with explicit labels: dots become labels of their own."""
    operands = n.given()
    text = n.text("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise n.fail(f"{len(terms)} terms for {len(operands)} inputs")
    used = set(text)
    spare = [c for c in string.ascii_letters if c not in used]
    depth = max((v.rank - (len(t) - 3) for t, v in zip(terms, operands) if "..." in t), default=0)
    if depth > len(spare) or depth < 0:
        raise n.fail("the equation does not fit its inputs")
    dots = "".join(spare[:depth])
    full: list[str] = []
    for t, v in zip(terms, operands):
        mine = v.rank - (len(t) - 3) if "..." in t else 0
        full.append(t.replace("...", dots[len(dots) - mine :]))
    if not arrow:
        joined = "".join(terms).replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    result = right.replace("...", dots)
    known = set("".join(full))
    if any(len(t) != v.rank or (not t.isalpha() and t) for t, v in zip(full, operands)) or set(result) - known:
        raise n.fail(f"the equation {text} does not fit its inputs")
    return n.build.emit("Einsum", *operands, equation=f"{','.join(full)}->{result}")


def along_axis(n: NodeReader) -> tuple[Value, int]:
    """Returns the input and the dimension of `axis`. Before version 13 all dimensions from there on are joined."""
    x = n.input(0)
    if n.version >= 13:
        return x, n.axis(-1, x.rank)
    cut = n.axis(1, x.rank)
    return n.build.reshape(x, (prod(x.shape[:cut]), prod(x.shape[cut:]))), 1


def _softmax(n: NodeReader) -> Value:
    x, along = along_axis(n)
    return n.build.reshape(n.build.emit(n.op, x, axis=along), n.input(0).shape)


def per_channel(b: GraphBuilder, v: Value, rank: int, at: int = 1) -> Value:
    """Returns a vector of one value per channel, shaped to broadcast against an image."""
    return b.reshape(v, [v.size if d == at else 1 for d in range(rank)])


def scaled(b: GraphBuilder, x: Value, scale: Value | None, shift: Value | None) -> Value:
    x = x if scale is None else b.emit("Mul", x, scale)
    return x if shift is None else b.emit("Add", x, shift)


def _batch_norm(n: NodeReader) -> Results:
    """Imports x · s + t with s = scale / √(var + ε), t = bias - mean · s, constants if the statistics are."""
    b = n.build
    x, scale, bias, mu, var = (n.input(k) for k in range(5))
    epsilon = n.number("epsilon", 1e-5)
    if n.integer("training_mode", 0):
        return _batch_norm_training(n, epsilon)
    if n.integer("spatial", 1) != 1:
        raise n.unsupported("statistics per pixel")
    s = b.emit("Div", scale, b.emit("Sqrt", b.emit("Add", var, b.number(epsilon, var))))
    t = b.emit("Sub", bias, b.emit("Mul", mu, s))
    return scaled(b, x, per_channel(b, s, x.rank), per_channel(b, t, x.rank))


def _batch_norm_training(n: NodeReader, epsilon: float) -> Results:
    b = n.build
    x, scale, bias, mu, var = (n.input(k) for k in range(5))
    axes = [d for d in range(x.rank) if d != 1]
    y = b.emit("Standardize", x, axes=tuple(axes), epsilon=epsilon)
    y = scaled(b, y, per_channel(b, scale, x.rank), per_channel(b, bias, x.rank))
    momentum = n.number("momentum", 0.9)
    now, _, spread = _moments(b, x, axes)
    results: list[Value | None] = [y]
    for old, new in ((mu, now), (var, spread)):
        kept = b.emit("Mul", old, b.number(momentum, old))
        results.append(b.emit("Add", kept, b.emit("Mul", b.reshape(new, old.shape), b.number(1 - momentum, old))))
    return results


def _layer_norm(n: NodeReader) -> Results:
    b, x = n.build, n.input(0)
    epsilon = n.number("epsilon", 1e-5)
    y = scaled(b, b.emit("Standardize", x, axes=last_axes(n, x), epsilon=epsilon), n.input(1), n.optional(2))
    return [y, *(row_statistics(n, x, epsilon) if n.wanted(1) or n.wanted(2) else ())]


def last_axes(n: NodeReader, x: Value) -> tuple[int, ...]:
    """Returns the dimensions from `axis` on."""
    return tuple(range(n.axis(-1, x.rank), x.rank))


def row_statistics(n: NodeReader, x: Value, epsilon: float) -> tuple[Value, Value]:
    """Returns the mean over the last dimensions, and 1 / sqrt(variance + epsilon)."""
    centre, _, spread = _moments(n.build, x, last_axes(n, x))
    return centre, _inverse_root(n.build, spread, epsilon)


def inverse_root_square(n: NodeReader, x: Value, epsilon: float) -> Value:
    """Returns 1 / sqrt(mean of squares + epsilon) over the last dimensions."""
    b = n.build
    return _inverse_root(b, mean(b, b.emit("Mul", x, x), last_axes(n, x)), epsilon)


def _inverse_root(b: GraphBuilder, x: Value, epsilon: float) -> Value:
    return b.emit("Rsqrt", b.emit("Add", x, b.number(epsilon, x)))


def _rms_norm(n: NodeReader) -> Value:
    b, x = n.build, n.input(0)
    return scaled(
        b, b.emit("RmsNormalize", x, axes=last_axes(n, x), epsilon=n.number("epsilon", 1e-5)), n.optional(1), None
    )


def _instance_norm(n: NodeReader) -> Value:
    b, x = n.build, n.input(0)
    y = b.emit("Standardize", x, axes=tuple(range(2, x.rank)), epsilon=n.number("epsilon", 1e-5))
    return scaled(b, y, per_channel(b, n.input(1), x.rank), per_channel(b, n.input(2), x.rank))


def _group_norm(n: NodeReader) -> Value:
    b, x, groups = n.build, n.input(0), n.integer("num_groups")
    if x.rank < 2 or groups < 1 or x.shape[1] % groups:
        raise n.fail(f"{x} has no {groups} groups of channels")
    split = b.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    y = b.emit("Standardize", split, axes=tuple(range(2, split.rank)), epsilon=n.number("epsilon", 1e-5))
    scale, bias = n.input(1), n.input(2)
    if scale.size == groups != x.shape[1]:  # before version 21 there is one scale per group
        y = scaled(b, y, per_channel(b, scale, split.rank), per_channel(b, bias, split.rank))
        return b.reshape(y, x.shape)
    return scaled(b, b.reshape(y, x.shape), per_channel(b, scale, x.rank), per_channel(b, bias, x.rank))


def _lp_norm(n: NodeReader) -> Value:
    b, x = n.build, n.input(0)
    along, p = n.axis(-1, x.rank), n.integer("p", 2)
    if p == 1:
        size = b.reduce("Sum", b.emit("Abs", x), [along])
    else:
        size = b.emit("Sqrt", b.reduce("Sum", b.emit("Mul", x, x), [along]))
    empty = b.emit("Equal", size, b.number(0, size))
    return b.emit("Where", empty, b.number(0, x), b.emit("Div", x, size))


def _mean_variance(n: NodeReader) -> Value:
    """Imports (x - mean) / (deviation + 1e-9): unlike in other norms, the small number is added to the root."""
    b, x = n.build, n.input(0)
    axes = n.dims(n.integers("axes", (0, 2, 3)), x.rank)
    _, centred, spread = _moments(b, x, axes)
    return b.emit("Div", centred, b.emit("Add", b.emit("Sqrt", spread), b.number(1e-9, x)))


MOST_ROWS = 32


def _det(n: NodeReader) -> Value:
    """Imports Det as Gaussian elimination with partial pivoting, a few nodes for each row.

    In every step the row with the largest first element becomes the pivot, and the first row takes its place. The
    determinant is the product of the pivots, negated for every exchange.
    """
    b, a = n.build, n.input(0)
    if a.rank < 2 or a.shape[-1] != a.shape[-2] or not 1 <= a.shape[-1] <= MOST_ROWS:
        raise n.fail(f"{a} holds no square matrices of at most {MOST_ROWS} rows")
    lead = a.shape[:-2]
    rows, columns = len(lead), len(lead) + 1
    total: Value | None = None
    for left in range(a.shape[-1], 0, -1):
        first = b.cut(a, {rows: (0, 1, 1)})
        pivot = first
        if left > 1:
            size = b.emit("Abs", b.cut(a, {columns: (0, 1, 1)}))
            chosen = b.emit("ArgMax", size, axis=rows, keepdims=1, last=0)
            pivot = b.emit("GatherElements", a, b.expand(chosen, (*lead, 1, left)), axis=rows)
            numbers = b.reshape(b.constant(np.arange(1, left)), (left - 1, 1))
            rest = b.emit("Where", b.emit("Equal", numbers, chosen), first, b.cut(a, {rows: (1, 1, left - 1)}))
            exchanged = b.emit("Greater", chosen, b.constant(0, "i64"))
            sign = b.emit("Where", exchanged, b.number(-1, a), b.number(1, a))
        else:
            rest = sign = None
        head = b.cut(pivot, {columns: (0, 1, 1)})
        factor = head if sign is None else b.emit("Mul", head, sign)
        total = factor if total is None else b.emit("Mul", total, factor)
        if rest is not None:
            # A pivot of zero makes the determinant zero in any case; divide by 1 instead.
            divisor = b.emit("Where", b.emit("Equal", head, b.number(0, a)), b.number(1, a), head)
            share = b.emit("Div", b.cut(rest, {columns: (0, 1, 1)}), divisor)
            tail = b.emit("Mul", share, b.cut(pivot, {columns: (1, 1, left - 1)}))
            a = b.emit("Sub", b.cut(rest, {columns: (1, 1, left - 1)}), tail)
    assert total is not None
    return b.reshape(total, lead)


REDUCTIONS: dict[str, Importer] = {
    "ReduceSum": _reduced("Sum"),
    "ReduceMax": _reduced("Max"),
    "ReduceMin": _reduced("Min"),
    "ReduceProd": _reduced("Prod"),
    "ReduceMean": _mean,
    "ReduceL1": _reduced("Sum", "Abs"),
    "ReduceL2": _reduced("Sum", "Mul", "Sqrt"),
    "ReduceSumSquare": _reduced("Sum", "Mul"),
    "ReduceLogSum": _reduced("Sum", after="Log"),
    "ReduceLogSumExp": _log_sum_exp,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance,
    "Det": _det,
}
