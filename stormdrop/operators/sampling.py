"""Sampling an image at positions that are data."""

from __future__ import annotations

from functools import reduce
from itertools import product

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Const, Expr, binary, call, compare, select
from stormdrop.ir.tensor import Tensor, compute
from stormdrop.operators.broadcast import axes_for
from stormdrop.operators.indexing import clamped

FARTHEST = 2.0**30
"""The limit to which grid values are clamped: infinities lie outside the image, and indices fit 64 bits."""


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


def grid_sample(x: Tensor, grid: Tensor, mode: str, padding: str, align: bool, name: str = "Y") -> Tensor:
    """Returns `Y[n, c, o…] = X[n, c, …]` interpolated at `G[n, o…]`.

    Coordinates range from -1 to 1, the last dimension first.

    Modes nearest, linear and cubic; outside the image lie zeros, its border, or its reflection. The positions are not
    padded, only the pixels: an image that is continued without end is interpolated.
    """
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
    return compute(name, i, total)


def _taps(at: Expr, size: int, mode: str, padding: str, align: bool) -> list[tuple[Expr, Expr, Expr | None]]:
    """Returns the neighbours along one dimension: index, weight, and whether it lies in the image (None: always)."""
    first = call("round" if mode == "nearest" else "floor", at)
    t = at - first
    weights = {"nearest": [t], "linear": [1.0 - t, t], "cubic": _cubic(t)}[mode]
    found: list[tuple[Expr, Expr, Expr | None]] = []
    for k, w in enumerate(weights):
        position = first + float(k - (mode == "cubic"))
        valid = compare("ge", position, 0.0) & compare("le", position, float(size - 1)) if padding == "zeros" else None
        found.append((_pixel(position, size, padding, align), w, valid))
    return found
