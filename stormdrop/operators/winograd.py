"""Winograd's minimal filtering: a 3x3 convolution of stride 1 with fewer multiplications.

Every output tile of m x m pixels comes from an input tile of t x t, t = m + 2, as Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A (Lavin and
Gray, 2015). The multiplications become one batch of t² matrix products over the channels.

The transform matrices are not tensors: a coefficient is a chain of selections by two axes, which vanishes if these axes
are unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.dtypes import ACCUMULATOR
from stormdrop.ir.expr import Axis, Const, Dtype, Expr, select
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.operators.broadcast import pad_constant, widened
from stormdrop.operators.window import Window

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """F(m, 3).

    The error bound, in the units of `interp.magnitude`, is at least four times the largest measured error of random
    data with 16 and more channels: 0.5 for F(2,3), 3.6 for F(4,3) at the usual points. With three channels, many zero,
    errors reached 80.
    """

    input: Matrix
    filter: Matrix
    output: Matrix
    error_bound: float


F23 = Transform(
    input=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    filter=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    output=((1, 1, 1, 0), (0, 1, -1, -1)),
    error_bound=4.0,
)

_A, _B = 0.5**0.5, 2.0**0.5
"""The points of F(4,3): 0, ±√½, ±√2 and infinity. At Lavin and Gray's points 0, ±1, ±2, sums of 256 channels had twice
the error (root mean square) and single sums five times the error."""
F43 = Transform(
    input=(
        (1, 0, -5 / 2, 0, 1, 0),
        (0, -_B, -2, _A, 1, 0),
        (0, _B, -2, -_A, 1, 0),
        (0, -_A, -1 / 2, _B, 1, 0),
        (0, _A, -1 / 2, -_B, 1, 0),
        (0, 1, 0, -5 / 2, 0, 1),
    ),
    filter=(
        (1, 0, 0),
        (-2 / 3, -_B / 3, -1 / 3),
        (-2 / 3, _B / 3, -1 / 3),
        (1 / 6, _B / 6, 1 / 3),
        (1 / 6, -_B / 6, 1 / 3),
        (0, 0, 1),
    ),
    output=(
        (1, 1, 1, 1, 1, 0),
        (0, _A, -_A, _B, -_B, 0),
        (0, 1 / 2, 1 / 2, 2, 2, 0),
        (0, _A / 2, -_A / 2, 2 * _B, -2 * _B, 1),
    ),
    error_bound=16.0,
)

TRANSFORMS = {2: F23, 4: F43}


def coefficient(matrix: Matrix, row: Axis, column: Axis, dtype: Dtype) -> Expr:
    """Returns `matrix[row, column]` as nested selections: where(row == 0, where(column == 0, …), …)."""
    return _choose(row, [_choose(column, [Const(value, dtype) for value in values]) for values in matrix])


def _choose(at: Axis, options: Sequence[Expr]) -> Expr:
    chosen = options[-1]
    for k in reversed(range(len(options) - 1)):
        chosen = select(build.equal(at, k), options[k], chosen)
    return chosen


def winograd_conv2d(x: Tensor, w: Tensor, padding: int, tile: int, name: str = "Y") -> Tensor:
    """Returns the convolution of X[n, h, w, ci] with W[3, 3, ci, co] at stride 1, in tiles of `tile` x `tile` outputs.

        U[a, b, ci, co]       = Σ_{i,j} W[i, j, ci, co] · G[a, i] · G[b, j]                                (constant)
        V[a, b, n, y, x, ci]  = Σ_{i,j} P[n, y·m + i, x·m + j, ci] · Bᵀ[a, i] · Bᵀ[b, j]
        M[a, b, n, y, x, co]  = Σ_ci V[a, b, n, y, x, ci] · U[a, b, ci, co]
        Z[n, y, x, i, j, co]  = Σ_{a,b} M[a, b, n, y, x, co] · Aᵀ[i, a] · Aᵀ[j, b]
        Y[n, h, w, co]        = Z[n, h // m, w // m, h % m, w % m, co]

    Raises UserError for other kernels and tiles.
    """
    if tile not in TRANSFORMS:
        raise UserError(f"winograd_conv2d: no transform for tiles of {tile}; known: {', '.join(map(str, TRANSFORMS))}")
    if len(x.shape) != 4 or len(w.shape) != 4 or w.shape[:2] != (3, 3) or w.shape[2] != x.shape[3]:
        raise UserError(f"winograd_conv2d: {x!r} and {w!r} do not fit; wanted [n, h, w, ci] and [3, 3, ci, co]")
    transform, m, t = TRANSFORMS[tile], tile, tile + 2
    batch, (ci_extent, co_extent) = x.shape[0], w.shape[2:]
    extents = Window.uniform(2, 3, pad=padding).extents(x.shape[1:3])
    tiles = [-(-e // m) for e in extents]

    a, b, ci, co = axis(t, "a"), axis(t, "b"), axis(ci_extent, "ci"), axis(co_extent, "co")
    i, j = reduce_axis(3, "i"), reduce_axis(3, "j")
    wide = ACCUMULATOR.get(x.dtype, x.dtype)
    g = coefficient(transform.filter, a, i, wide) * coefficient(transform.filter, b, j, wide)
    u = compute("U", (a, b, ci, co), build.sum(widened(w)[i, j, ci, co] * g, i, j))

    behind = [k * m + 2 - size - padding for k, size in zip(tiles, x.shape[1:3])]
    p = pad_constant(widened(x), (0, padding, padding, 0), (0, *behind, 0), 0, (1, 2))
    a, b, ci = axis(t, "a"), axis(t, "b"), axis(ci_extent, "ci")
    n, ty, tx = axis(batch, "n"), axis(tiles[0], "y"), axis(tiles[1], "x")
    i, j = reduce_axis(t, "i"), reduce_axis(t, "j")
    bt = coefficient(transform.input, a, i, wide) * coefficient(transform.input, b, j, wide)
    v = compute("V", (a, b, n, ty, tx, ci), build.sum(p[n, ty * m + i, tx * m + j, ci] * bt, i, j))

    a, b, co = axis(t, "a"), axis(t, "b"), axis(co_extent, "co")
    n, ty, tx, c = axis(batch, "n"), axis(tiles[0], "y"), axis(tiles[1], "x"), reduce_axis(ci_extent, "ci")
    product = compute("M", (a, b, n, ty, tx, co), build.sum(v[a, b, n, ty, tx, c] * u[a, b, c, co], c))

    n, ty, tx, co = axis(batch, "n"), axis(tiles[0], "y"), axis(tiles[1], "x"), axis(co_extent, "co")
    row, column, r, s = axis(m, "i"), axis(m, "j"), reduce_axis(t, "a"), reduce_axis(t, "b")
    at = coefficient(transform.output, row, r, wide) * coefficient(transform.output, column, s, wide)
    z = compute("Z", (n, ty, tx, row, column, co), build.sum(product[r, s, n, ty, tx, co] * at, r, s))

    n, h, w_, co = axis(batch, "n"), axis(extents[0], "h"), axis(extents[1], "w"), axis(co_extent, "co")
    return compute(name, (n, h, w_, co), z[n, h // m, w_ // m, h % m, w_ % m, co])
