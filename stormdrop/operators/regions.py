"""Reading an image at places that are data: regions of interest, deformed windows and sampling grids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Const, Expr, binary, call, compare, identity_of, select
from stormdrop.ir.tensor import Tensor, compute, reduce_axis
from stormdrop.operators.broadcast import axes_for
from stormdrop.operators.indexing import clamped, wrapped
from stormdrop.operators.node import Node, Operator, Shape
from stormdrop.operators.window import window_of

FARTHEST = 2.0**30
"""The limit to which positions are clamped: infinities lie outside the image, and indices fit 64 bits."""


def _bounded(position: Expr) -> Expr:
    """Returns a position that fits an index; NaN counts as far outside."""
    near = binary("max", binary("min", position, FARTHEST), -FARTHEST)
    return select(compare("eq", position, position), near, Const(-FARTHEST, position.dtype))


def _neighbours(position: Expr, size: int) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
    """Returns the pixels before and after a position inside one dimension: index and weight, clamped to the image."""
    at = binary("min", binary("max", position, 0.0), float(size - 1))
    low = call("floor", at)
    share = at - low
    before = clamped(build.cast(low, "i64"), size)
    return (before, 1.0 - share), (clamped(before + 1, size), share)


def _roi_align(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[r, c, h, w]` = the mean over samples² points in part (h, w) of region r of the interpolated image.

    A region is x1, y1, x2, y2, in pixels times `scale`; points more than a pixel outside count as 0. With `largest` it
    is the largest of the four weighted neighbours of all points.
    """
    x, rois, batches = inputs
    extents, samples, scale = node.integers("extents"), node.integer("samples"), node.number("scale")
    half_pixel, largest = node.flag("half_pixel"), node.flag("largest")
    r, c, h, w = axes_for((rois.shape[0], x.shape[1], *extents))
    iy, ix = reduce_axis(samples, "iy"), reduce_axis(samples, "ix")
    image = clamped(wrapped(batches[r], x.shape[0]), x.shape[0])
    offset = 0.5 if half_pixel else 0.0

    def point(k: int, part: Expr, sample: Expr, extent: int) -> Expr:
        start = rois[r, k] * scale - offset
        span = rois[r, k + 2] * scale - offset - start
        step = (span if half_pixel else binary("max", span, 1.0)) / float(extent)
        inside = (build.cast(sample, x.dtype) + 0.5) / float(samples)
        return _bounded(start + (build.cast(part, x.dtype) + inside) * step)

    y_at, x_at = point(1, h, iy, extents[0]), point(0, w, ix, extents[1])
    rows, columns = x.shape[2:]
    sides = [compare("ge", p, -1.0) & compare("le", p, float(n)) for p, n in ((y_at, rows), (x_at, columns))]
    terms = [x[image, c, i, j] * (wi * wj) for i, wi in _neighbours(y_at, rows) for j, wj in _neighbours(x_at, columns)]
    joined = terms[0]
    for term in terms[1:]:
        joined = binary("max", joined, term) if largest else joined + term
    value = select(sides[0] & sides[1], joined, Const(0, x.dtype))
    if largest:
        return compute("Y", (r, c, h, w), build.reduce_max(value, iy, ix))
    return compute("Y", (r, c, h, w), build.sum(value * (1.0 / samples**2), iy, ix))


def _rounded(x: Expr) -> Expr:
    """Returns the nearest whole number, halves away from zero."""
    size = call("abs", x)
    low = call("floor", size)
    near = low + select(compare("ge", size - low, 0.5), Const(1, x.dtype), Const(0, x.dtype))
    return select(compare("lt", x, 0.0), -near, near)


def _max_roi_pool(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[r, c, h, w]` = the largest pixel of bin (h, w) of region r, 0 if the bin lies outside the image.

    A region is the image's number, x1, y1, x2, y2. Corners are multiplied by `scale` and rounded, halves away from
    zero; the second corner belongs to the region. Bins overlap if their number does not divide the region. Rows come
    first, columns second, both over the image's own extent, which bounds every bin:

        T[r, c, h, j] = max_i where(i in rows of bin h, X[image, c, i, j], -inf)
        Y[r, c, h, w] = max_j where(j in columns of bin w, T[r, c, h, j], -inf)
    """
    (x, rois), extents, scale = inputs, node.integers("extents"), node.number("scale")
    rows, columns = x.shape[2:]

    def bin_of(r: Expr, k: int, part: Expr, extent: int, size: int) -> tuple[Expr, Expr]:
        """Returns the first position of a bin, and the first position behind it."""
        first, last = (build.cast(_bounded(_rounded(rois[r, at] * scale)), "i64") for at in (k, k + 2))
        step = build.cast(binary("max", last - first + 1, 1), x.dtype) / float(extents[extent])
        at = build.cast(part, x.dtype)
        start, end = call("floor", at * step), call("ceil", (at + 1.0) * step)
        begin, behind = (binary("max", first + build.cast(p, "i64"), 0) for p in (start, end))
        return binary("min", begin, size), binary("min", behind, size)

    def largest(value: Expr, position: Expr, limits: tuple[Expr, Expr]) -> Expr:
        inside = compare("ge", position, limits[0]) & compare("lt", position, limits[1])
        return select(inside, value, Const(identity_of("max", x.dtype), x.dtype))

    r, c, h, j = axes_for((rois.shape[0], x.shape[1], extents[0], columns))
    i = reduce_axis(rows, "i")
    image = clamped(build.cast(_bounded(rois[r, 0]), "i64"), x.shape[0])
    pixel = largest(x[image, c, i, j], i, bin_of(r, 2, h, 0, rows))
    tall = compute("T", (r, c, h, j), build.reduce_max(pixel, i))

    r, c, h, w = axes_for((rois.shape[0], x.shape[1], *extents))
    j = reduce_axis(columns, "j")
    pixel = largest(tall[r, c, h, j], j, bin_of(r, 1, w, 1, columns))
    pooled = compute("M", (r, c, h, w), build.reduce_max(pixel, j))

    r, c, h, w = axes_for(pooled.shape)
    limits = bin_of(r, 2, h, 0, rows), bin_of(r, 1, w, 1, columns)
    filled = [compare("lt", begin, behind) for begin, behind in limits]
    return compute("Y", (r, c, h, w), select(filled[0] & filled[1], pooled[r, c, h, w], Const(0, x.dtype)))


def _deformed_windows(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `P[n, c, kh, kw, oh, ow]` = X[n, c] interpolated at the tap's own place plus its offset, times its mask.

    Offsets are [n, groups · taps · 2, oh, ow], rows before columns, one set for each group of channels; outside the
    image lie zeros.
    """
    (x, offsets, *masks), w, groups = inputs, window_of(node), node.integer("groups")
    extents = w.extents(x.shape[2:])
    taps = w.kernel[0] * w.kernel[1]
    i = axes_for((*x.shape[:2], *w.kernel, *extents))
    n, c, kh, kw, oh, ow = i
    tap = binary("floordiv", c, x.shape[1] // groups) * taps + kh * w.kernel[1] + kw

    def place(d: int, k: Expr, o: Expr) -> Expr:
        plain = o * w.strides[d] + k * w.dilations[d] - w.before[d]
        return _bounded(build.cast(plain, x.dtype) + offsets[n, tap * 2 + d, oh, ow])

    total: Expr | None = None
    rows, columns = _corners(place(0, kh, oh), x.shape[2]), _corners(place(1, kw, ow), x.shape[3])
    for row, row_weight, row_valid in rows:
        for column, column_weight, column_valid in columns:
            term = x[n, c, row, column] * (row_weight * column_weight)
            term = select(row_valid & column_valid, term, Const(0, x.dtype))
            total = term if total is None else total + term
    assert total is not None
    return compute("P", i, total * masks[0][n, tap, oh, ow] if masks else total)


def _corners(position: Expr, size: int) -> list[tuple[Expr, Expr, Expr]]:
    """Returns the pixels before and after a position: index, weight, and whether the pixel exists."""
    low = call("floor", position)
    share = position - low
    corners: list[tuple[Expr, Expr, Expr]] = []
    for at, weight in ((low, 1.0 - share), (low + 1.0, share)):
        valid = compare("ge", at, 0.0) & compare("le", at, float(size - 1))
        corners.append((clamped(build.cast(at, "i64"), size), weight, valid))
    return corners


def _position(g: Expr, size: int, align: bool) -> Expr:
    """Returns a grid value as a position among the pixels of one dimension; NaN counts as -1, as PyTorch's does."""
    near = binary("max", binary("min", g, FARTHEST), -FARTHEST)
    g = select(compare("eq", g, g), near, Const(-1, g.dtype))
    return (g + 1.0) * (0.5 * (size - 1)) if align else ((g + 1.0) * float(size) - 1.0) * 0.5


def _reflected(x: Expr, low: float, high: float) -> Expr:
    """Returns x mirrored at both ends until it lies between them: a triangle wave."""
    width = high - low
    t = call("abs", x - low)
    t = t - call("floor", t / (2 * width)) * (2 * width)
    return select(compare("gt", t, Const(width, x.dtype)), 2 * width - t, t) + low


def _pixel(position: Expr, size: int, padding: str, align: bool) -> Expr:
    """Returns the index of the pixel at a whole-numbered position; outside the image, of a border or mirrored pixel."""
    if size == 1:
        return Const(0, "i64")
    if padding == "reflection":
        position = _reflected(position, 0.0 if align else -0.5, size - 1.0 if align else size - 0.5)
    return clamped(build.cast(position, "i64"), size)


def _cubic(t: Expr) -> list[Expr]:
    """Returns Keys' weights of the four neighbours, a = -3/4, at a distance t from the second."""
    a = -0.75

    def near(d: Expr) -> Expr:
        return (d * (a + 2) - (a + 3)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _grid_sample(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[n, c, o…] = X[n, c, …]` interpolated at `G[n, o…]`.

    Coordinates range from -1 to 1, the last dimension first.

    Modes nearest, linear and cubic; outside the image lie zeros, its border, or its reflection. The positions are not
    padded, only the pixels: an image that is continued without end is interpolated.
    """
    (x, grid), mode, padding, align = inputs, node.text("mode"), node.text("padding"), node.flag("align_corners")
    rank = len(x.shape) - 2
    if grid.shape[-1] != rank or len(grid.shape) != rank + 2 or mode not in ("nearest", "linear", "cubic"):
        raise UserError(f"grid_sample: {x!r} and {grid!r} do not fit, or unknown mode {mode!r}")
    i = axes_for((x.shape[0], x.shape[1], *grid.shape[1:-1]))
    taps: list[list[tuple[Expr, Expr, Expr | None]]] = []
    for d, size in enumerate(x.shape[2:]):
        g = build.cast(grid[(i[0], *i[2:], rank - 1 - d)], x.dtype)
        taps.append(_taps(_position(g, size, align), size, mode, padding, align))
    total: Expr | None = None
    for chosen in product(*taps):
        value: Expr = x[(i[0], i[1], *(index for index, _, _ in chosen))]
        if mode != "nearest":
            value = value * reduce(Expr.__mul__, [w for _, w, _ in chosen])
        valid = [v for _, _, v in chosen if v is not None]
        value = select(reduce(Expr.__and__, valid), value, Const(0, x.dtype)) if valid else value
        total = value if total is None else total + value
    assert total is not None
    return compute("Y", i, total)


def _taps(at: Expr, size: int, mode: str, padding: str, align: bool) -> list[tuple[Expr, Expr, Expr | None]]:
    """Returns the neighbours along one dimension: index, weight, and whether it lies in the image (None: always)."""
    first = call("round" if mode == "nearest" else "floor", at)
    t = at - first
    weights = {"nearest": [t], "linear": [1.0 - t, t], "cubic": _cubic(t)}[mode]
    taps: list[tuple[Expr, Expr, Expr | None]] = []
    for k, w in enumerate(weights):
        position = first + float(k - (mode == "cubic"))
        valid = compare("ge", position, 0.0) & compare("le", position, float(size - 1)) if padding == "zeros" else None
        taps.append((_pixel(position, size, padding, align), w, valid))
    return taps


# ---- Operators of the graph


def _regions(n: Node) -> Shape:
    return (n.inputs[1].shape[0], n.inputs[0].shape[1], *n.integers("extents"))


def _deformed(n: Node) -> Shape:
    x, w = n.inputs[0], window_of(n)
    return (*x.shape[:2], *w.kernel, *w.extents(x.shape[2:]))


REGIONS = (
    Operator("RoiAlign", _regions, _roi_align),
    Operator("MaxRoiPool", _regions, _max_roi_pool),
    Operator("DeformedWindows", _deformed, _deformed_windows),
    Operator("GridSample", lambda n: (*n.inputs[0].shape[:2], *n.inputs[1].shape[1:-1]), _grid_sample),
)
