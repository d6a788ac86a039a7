"""Sliding windows over any number of spatial dimensions, in either layout.

A `Window` describes the sliding along every spatial dimension. `layout` is "NCHW" (channels second) or "NHWC" (channels
last); both names stand for any number of spatial dimensions. Weights are [co, ci, kernel…] or [kernel…, ci, co]
accordingly. The padded image is always a stage of its own, so all pads share a class key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, Literal

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.dtypes import ACCUMULATOR
from stormdrop.ir.expr import FLOATS, Axis, Combiner, Const, Expr, Scalar, binary, compare, identity_of, select
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.operators.broadcast import pad_constant, widened
from stormdrop.operators.node import Node, Operator, OperatorKind, Shape, positions


@dataclass(frozen=True, slots=True)
class Window:
    """One entry per spatial dimension. `after` may exceed the file's pad if the number of windows is rounded up."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @staticmethod
    def uniform(rank: int, kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1) -> Window:
        """Returns a window with the same numbers in every spatial dimension."""
        return Window((kernel,) * rank, (stride,) * rank, (dilation,) * rank, (pad,) * rank, (pad,) * rank)

    def extents(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Returns the number of windows along each dimension. Raises UserError if no window fits."""
        counts: list[int] = []
        for n, k, s, d, b, a in zip(sizes, self.kernel, self.strides, self.dilations, self.before, self.after):
            reach = d * (k - 1) + 1
            if min(k, s, d) < 1 or b + n + a < reach:
                raise UserError(f"a window of {reach} (stride {s}) does not fit into {n} padded by {b} and {a}")
            counts.append((b + n + a - reach) // s + 1)
        return tuple(counts)


def spatial(x: Tensor, layout: str) -> tuple[int, ...]:
    return x.shape[2:] if layout == "NCHW" else x.shape[1:-1]


def channels(x: Tensor, layout: str) -> int:
    return x.shape[1] if layout == "NCHW" else x.shape[-1]


def place(layout: str, n: Any, c: Sequence[Any], at: Sequence[Any]) -> tuple[Any, ...]:
    """Returns batch, channel (perhaps several dimensions of it) and spatial positions in a layout's order."""
    return (n, *c, *at) if layout == "NCHW" else (n, *at, *c)


def padded(x: Tensor, w: Window, layout: str, value: Scalar = 0) -> Tensor:
    first = 2 if layout == "NCHW" else 1
    rest = [0] * (len(x.shape) - first - len(w.kernel))
    before, after = ([*[0] * first, *pads, *rest] for pads in (w.before, w.after))
    return pad_constant(x, before, after, Const(value, x.dtype), range(first, first + len(w.kernel)))


def slides(sizes: Sequence[int], w: Window) -> tuple[list[Axis], list[Axis], list[Expr]]:
    """Returns, for the spatial dimensions, output axes, kernel reduce axes, and indices into the padded image."""
    names = "dhw"[-len(w.kernel) :] if len(w.kernel) <= 3 else [str(d) for d in range(len(w.kernel))]
    at = [axis(n, f"o{c}") for n, c in zip(w.extents(sizes), names)]
    over = [reduce_axis(k, f"k{c}") for k, c in zip(w.kernel, names)]
    source = [binary("mul", o, s) + binary("mul", k, d) for o, k, s, d in zip(at, over, w.strides, w.dilations)]
    return at, over, source


def conv_nd(x: Tensor, weights: Tensor, w: Window, groups: int, layout: str, name: str = "Y") -> Tensor:
    """Returns a convolution; with groups, a dimension for the group is split off the channels and joined again.

    F[n, h, w, g, co] = Σ_{kh,kw,ci} P[n, h·s + kh·d, w·s + kw·d, g·CI + ci] · W[kh, kw, ci, g·CO + co] Y[n, h, w, c]
    = F[n, h, w, c // CO, c % CO]
    """
    outs, per_group = weights.shape[:2] if layout == "NCHW" else weights.shape[:-3:-1]
    if channels(x, layout) != per_group * groups or outs % groups:
        raise UserError(f"conv: {x!r} and {weights!r} do not fit with {groups} groups")
    p, weights = padded(widened(x), w, layout), widened(weights)
    at, over, source = slides(spatial(x, layout), w)
    n, per_out = axis(x.shape[0], "n"), outs // groups
    wide = ACCUMULATOR.get(x.dtype, x.dtype)

    def pixel(*c: Expr) -> Expr:
        return build.cast(p[place(layout, n, c, source)], wide)

    def weight(co: Expr, ci: Expr) -> Expr:
        return build.cast(weights[(co, ci, *over) if layout == "NCHW" else (*over, ci, co)], wide)

    if groups == channels(x, layout) == outs:  # depthwise: no sum over channels
        c = axis(outs, "c")
        product = pixel(c) * weight(c, Const(0, "i64"))
        return compute(name, place(layout, n, [c], at), build.sum(product, *over))
    ci = reduce_axis(per_group, "ci")
    order = (ci, *over) if layout == "NCHW" else (*over, ci)
    if groups == 1:
        co = axis(outs, "co")
        product = pixel(ci) * weight(co, ci)
        return compute(name, place(layout, n, [co], at), build.sum(product, *order))
    g, co = axis(groups, "g"), axis(per_out, "co")
    product = pixel(g * per_group + ci) * weight(g * per_out + co, ci)
    f = compute("F", place(layout, n, [g, co], at), build.sum(product, *order))
    return _ungrouped(f, layout, n, outs, at, per_out, name)


def _ungrouped(f: Tensor, layout: str, n: Axis, outs: int, at: Sequence[Axis], per_out: int, name: str) -> Tensor:
    """Returns a tensor with groups and the channels of each joined to one dimension."""
    n, *at = (axis(a.extent, a.name) for a in (n, *at))
    c = axis(outs, "c")
    return compute(name, place(layout, n, [c], at), f[place(layout, n, [c // per_out, c % per_out], at)])


def conv_transpose_nd(
    x: Tensor, weights: Tensor, w: Window, extents: Sequence[int], groups: int, layout: str, name: str = "Y"
) -> Tensor:
    """Returns the adjoint of a convolution.

    Weights are [ci, co / groups, kernel…] (NCHW) or [kernel…, ci, co] (NHWC, one group). With i = h + p - kh·d:

        Y[n, co, h] = Σ_{ci,kh} where(i is a multiple of s inside the image, X[n, ci, i // s], 0) · W[ci, co, kh]
    """
    if layout == "NHWC" and _phases_fit(x, w, extents):
        return _transposed_by_phases(x, weights, w, extents, name)
    per_out, sizes = (weights.shape[1] if layout == "NCHW" else weights.shape[-1]), spatial(x, layout)
    per_group = channels(x, layout) // groups
    if layout == "NHWC" and groups > 1:
        raise UserError("conv_transpose: groups are written channels-first only")
    at = [axis(n, f"o{d}") for d, n in enumerate(extents)]
    over = [reduce_axis(k, f"k{d}") for d, k in enumerate(w.kernel)]
    n, g, co, ci = axis(x.shape[0], "n"), axis(groups, "g"), axis(per_out, "co"), reduce_axis(per_group, "ci")
    sources, reached = _reaching(at, over, w, sizes)
    value = select(reached, x[place(layout, n, [g * per_group + ci], sources)], Const(0, x.dtype))
    weight = weights[(g * per_group + ci, co, *over)] if layout == "NCHW" else weights[(*over, ci, co)]
    f = compute("F", place(layout, n, [g, co], at), build.sum(value * weight, ci, *over))
    return _ungrouped(f, layout, n, groups * per_out, at, per_out, name)


def _reaching(at: Sequence[Axis], over: Sequence[Axis], w: Window, counts: Sequence[int]) -> tuple[list[Expr], Expr]:
    """Returns the window that has its tap `over` at the pixel `at`, and whether it exists among `counts` windows."""
    steps = [binary("sub", o + b, k * d) for o, k, d, b in zip(at, over, w.dilations, w.before)]
    sources = [binary("floordiv", t, s) for t, s in zip(steps, w.strides)]
    hits = [compare("eq", binary("mod", t, s), 0) for t, s in zip(steps, w.strides) if s > 1]
    inside = [c for i, count in zip(sources, counts) for c in (i >= 0, i < count)]
    return sources, reduce(Expr.__and__, [*inside, *hits])


def _fold(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns an image as the sum of its windows, the adjoint of cutting windows. X is [n, c, kernel…, windows…].

    Y[n, c, h] = Σ_kh where(h + p - kh·d is a multiple of s, and of a window, X[n, c, kh, (h + p - kh·d) // s], 0)
    """
    (x,), w = inputs, window_of(node)
    rank = len(w.kernel)
    n, c = axis(x.shape[0], "n"), axis(x.shape[1], "c")
    at = [axis(e, f"o{d}") for d, e in enumerate(node.integers("extents"))]
    over = [reduce_axis(k, f"k{d}") for d, k in enumerate(w.kernel)]
    sources, reached = _reaching(at, over, w, x.shape[2 + rank :])
    value = select(reached, x[(n, c, *over, *sources)], Const(0, x.dtype))
    return compute("Y", (n, c, *at), build.sum(value, *over))


def _phases_fit(x: Tensor, w: Window, extents: Sequence[int]) -> bool:
    """Returns whether `_transposed_by_phases` describes the convolution."""
    plain = len(w.kernel) == 2 and len(set(w.strides)) == 1 and len(set(w.before)) == 1 and set(w.dilations) == {1}
    wanted = [(n - 1) * w.strides[0] - 2 * w.before[0] + k for n, k in zip(x.shape[1:3], w.kernel)]
    return plain and list(extents) == wanted


def _transposed_by_phases(x: Tensor, weights: Tensor, w: Window, extents: Sequence[int], name: str) -> Tensor:
    """Returns a transposed convolution of an NHWC image, phase by phase, without products by the zeros between pixels.

    The plain definition is Y[n, i·s + kh - p, …, co] += X[n, i, …, ci] · W[kh, …, ci, co]. An output row h = y·s + py
    takes only the taps kh = r + s·j with r = (py + p) mod s, and reads the input row y + (py + p) // s - j:

        V[py, px, jy, jx, ci, co] = where(kh < KH and kw < KW, W[kh, kw, ci, co], 0)                      (constant)
        F[n, y, py, x, px, co]    = Σ_{jy,jx,ci} P[n, y + (py + p) // s - jy + J - 1, …, ci] · V[py, px, jy, jx, ci, co]
        Y[n, h, w, co]            = F[n, h // s, h % s, w // s, w % s, co]                     J = ceil(KH / s) taps

    If s does not divide KH, some phases have one tap fewer and a zero in its place, which an infinite pixel would turn
    into NaN. Then F reads X itself, under one condition for the border and for the tap.
    """
    s, padding, kernel, sizes = w.strides[0], w.before[0], w.kernel, x.shape[1:3]
    taps = [-(-k // s) for k in kernel]
    rows = [-(-e // s) for e in extents]

    py, px, jy, jx = axis(s, "py"), axis(s, "px"), axis(taps[0], "jy"), axis(taps[1], "jx")
    ci, co = axis(x.shape[3], "ci"), axis(weights.shape[3], "co")
    kh, kw = (py + padding) % s + jy * s, (px + padding) % s + jx * s
    tap = build.where((kh < kernel[0]) & (kw < kernel[1]), weights[kh, kw, ci, co], 0)
    v = compute("V", (py, px, jy, jx, ci, co), tap)

    n, y, x_, co = axis(x.shape[0], "n"), axis(rows[0], "y"), axis(rows[1], "x"), axis(weights.shape[3], "co")
    py, px = axis(s, "py"), axis(s, "px")
    jy, jx, ci = reduce_axis(taps[0], "jy"), reduce_axis(taps[1], "jx"), reduce_axis(x.shape[3], "ci")
    row, column = y + (py + padding) // s - jy, x_ + (px + padding) // s - jx
    if any(k % s for k in kernel):
        is_tap = [(q + padding) % s + j * s < k for q, j, k in zip((py, px), (jy, jx), kernel)]
        inside = [c for i, size in zip((row, column), sizes) for c in (i >= 0, i < size)]
        pixel = build.where(reduce(Expr.__and__, [*inside, *is_tap]), x[n, row, column, ci], 0)
    else:
        behind = [max(0, r - 1 + (s - 1 + padding) // s - (size - 1)) for r, size in zip(rows, sizes)]
        p = pad_constant(x, (0, taps[0] - 1, taps[1] - 1, 0), (0, *behind, 0), 0, (1, 2))
        pixel = p[n, row + (taps[0] - 1), column + (taps[1] - 1), ci]
    f = compute("F", (n, y, py, x_, px, co), build.sum(pixel * v[py, px, jy, jx, ci, co], jy, jx, ci))

    n, h, w_, co = axis(x.shape[0], "n"), axis(extents[0], "h"), axis(extents[1], "w"), axis(weights.shape[3], "co")
    return compute(name, (n, h, w_, co), f[n, h // s, h % s, w_ // s, w_ % s, co])


def capsule_conv(x: Tensor, weights: Tensor, w: Window, name: str = "Y") -> Tensor:
    """Returns a convolution with matrices as pixels (capsules): every product is a product of matrices.

    Y[n, h, w, i, j, co] = Σ_{kh,kw,k,ci} P[n, h·s + kh, w·s + kw, i, k, ci] · W[kh, kw, k, j, ci, co]
    """
    p = padded(x, w, "NHWC")
    at, over, source = slides(x.shape[1:-3], w)
    n, i = axis(x.shape[0], "n"), axis(x.shape[-3], "i")
    j, co = axis(weights.shape[-3], "j"), axis(weights.shape[-1], "co")
    k, ci = reduce_axis(x.shape[-2], "k"), reduce_axis(x.shape[-1], "ci")
    product = p[(n, *source, i, k, ci)] * weights[(*over, k, j, ci, co)]
    return compute(name, (n, *at, i, j, co), build.sum(product, *over, k, ci))


def pool(x: Tensor, w: Window, layout: str, combiner: Combiner, name: str = "Y") -> Tensor:
    """Returns `Y[n, c, h] = max_kh P[n, c, h·s + kh·d]`, or the sum; P is X padded with the combiner's identity."""
    p = padded(x, w, layout, identity_of(combiner, x.dtype))
    at, over, source = slides(spatial(x, layout), w)
    n, c = axis(x.shape[0], "n"), axis(channels(x, layout), "c")
    body = build.reduce(combiner, p[place(layout, n, [c], source)], *over)
    return compute(name, place(layout, n, [c], at), body)


def _max_pool_indices(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the flat position in X (channels first) of every window's first maximum in row-major order.

        M = max over the window
        K = min over the window of where(P == M or P is NaN, position in the image, last position)
        Y = (n·C + c)·area + K, or the same pixel counted column by column

    NaN is the largest number. A window entirely in the padding has no maximum; its position is the image's last.
    """
    (x,), w, layout = inputs, window_of(node), "NCHW"
    sizes = spatial(x, layout)
    area = prod(sizes)
    largest = pool(x, w, layout, "max", "M")
    p = padded(x, w, layout, identity_of("max", x.dtype))
    at, over, source = slides(sizes, w)
    n, c = axis(x.shape[0], "n"), axis(x.shape[1], "c")
    element = p[place(layout, n, [c], source)]
    hit = compare("eq", element, largest[place(layout, n, [c], at)])
    if x.dtype in FLOATS:
        hit = hit | compare("ne", element, element)
    positions = [binary("sub", i, b) for i, b in zip(source, w.before)]
    inside = reduce(Expr.__and__, [q for i, size in zip(positions, sizes) for q in (i >= 0, i < size)])
    last = Const(area - 1, "i64")
    first = build.reduce_min(select(inside, select(hit, _flattened(positions, sizes), last), last), *over)
    chosen = compute("K", place(layout, n, [c], at), first)
    n, c, *at = (axis(a.extent, a.name) for a in (n, c, *at))
    pixel: Expr = chosen[place(layout, n, [c], at)]
    if node.flag("column_major", 0):
        indices = [binary("mod", binary("floordiv", pixel, prod(sizes[d + 1 :])), size) for d, size in enumerate(sizes)]
        pixel = _flattened(indices[::-1], sizes[::-1])
    return compute("Y", place(layout, n, [c], at), (n * x.shape[1] + c) * area + pixel)


def _flattened(indices: Sequence[Expr], sizes: Sequence[int]) -> Expr:
    flat: Expr = Const(0, "i64")
    for i, size in zip(indices, sizes):
        flat = binary("mul", flat, size) + i
    return flat


# ---- Shapes, and records of the operators


def window_of(node: Node) -> Window:
    return Window(*(node.integers(key) for key in ("kernel", "strides", "dilations", "before", "after")))


def _windows(n: Node) -> Shape:
    x, first = n.inputs[0], n.text("layout") == "NCHW"
    extents = window_of(n).extents(x.shape[2:] if first else x.shape[1:-1])
    count = x.shape[1 if first else -1]
    if len(n.inputs) > 1:
        count = n.inputs[1].shape[0 if first else -1]
    return (x.shape[0], count, *extents) if first else (x.shape[0], *extents, count)


def _conv(n: Node, x: Sequence[Tensor]) -> Tensor:
    return conv_nd(x[0], x[1], window_of(n), n.integer("groups"), n.text("layout"))


def _conv_transpose(n: Node, x: Sequence[Tensor]) -> Tensor:
    extents, groups = n.integers("extents"), n.integer("groups")
    return conv_transpose_nd(x[0], x[1], window_of(n), extents, groups, n.text("layout"))


def _enlarged(n: Node) -> Shape:
    x, w = n.inputs
    if n.text("layout") == "NCHW":
        return (x.shape[0], w.shape[1] * n.integer("groups"), *n.integers("extents"))
    return (x.shape[0], *n.integers("extents"), w.shape[-1])


def _folded(n: Node) -> Shape:
    x, w, extents = n.inputs[0], window_of(n), n.integers("extents")
    counts = w.extents(extents)
    if x.shape[2:] != (*w.kernel, *counts):
        raise UserError(f"{x} does not hold windows of {list(w.kernel)} in an image of {list(extents)}")
    return (*x.shape[:2], *extents)


def _pool(name: str, combiner: Combiner, moves: Literal["", "some"] = "") -> Operator:
    return Operator(
        name,
        _windows,
        lambda n, x: pool(x[0], window_of(n), n.text("layout"), combiner),
        kind=OperatorKind.POOL,
        combiner=combiner,
        moves=moves,
    )


WINDOWS = (
    Operator("Conv", _windows, _conv, kind=OperatorKind.PRODUCT, combiner="sum", accumulates=True),
    Operator("ConvTranspose", _enlarged, _conv_transpose, kind=OperatorKind.PRODUCT, combiner="sum"),
    _pool("MaxPool", "max", moves="some"),
    _pool("SumPool", "sum"),
    Operator("MaxPoolIndices", _windows, _max_pool_indices, dtype=positions),
    Operator("Fold", _folded, _fold, combiner="sum"),
)
