"""Reductions over chosen dimensions, and what is normalised by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from stormdrop.ir import build
from stormdrop.ir.expr import Axis, Combiner, Const, Expr, Load
from stormdrop.ir.tensor import Tensor, compute, reduce_axis
from stormdrop.ops.broadcast import axes_for
from stormdrop.ops.reduce import softmax

_REDUCE: dict[Combiner, Callable[..., Expr]] = {
    "sum": build.sum,
    "prod": build.prod,
    "max": build.reduce_max,
    "min": build.reduce_min,
}


def reduce_dims(
    x: Tensor,
    dims: Sequence[int],
    combiner: Combiner,
    keep: bool,
    of: Callable[[Load, Sequence[Axis]], Expr] | None = None,
    name: str = "Y",
) -> Tensor:
    """`Y[kept] = Σ over dims of f(X)`.

    With `keep` the reduced dimensions stay with extent 1; `of` also sees the kept axes.
    """
    over = {d: reduce_axis(x.shape[d], f"k{d}") for d in sorted(dims)}
    shape = [1 if d in over else n for d, n in enumerate(x.shape) if keep or d not in over]
    i = axes_for(shape)
    kept = iter(i if not keep else [a for d, a in enumerate(i) if d not in over])
    element = x[tuple(over[d] if d in over else next(kept) for d in range(len(x.shape)))]
    return compute(name, i, _REDUCE[combiner](of(element, i) if of else element, *over.values()))


def _spread(x: Tensor, dims: Sequence[int], axes: Sequence[Axis]) -> Load:
    """A reduced tensor (dimensions kept) read at the axes of what it was reduced from."""
    return x[tuple(Const(0, "i64") if d in dims else a for d, a in enumerate(axes))]


def softmax_along(x: Tensor, along: int, name: str = "Y") -> Tensor:
    """exp(X - max) / Σ exp(X - max) along one dimension."""
    if along == len(x.shape) - 1:
        return softmax(x, name)
    largest = reduce_dims(x, [along], "max", True, name="M")
    i = axes_for(x.shape)
    exponential = compute("E", i, build.exp(x[tuple(i)] - _spread(largest, [along], i)))
    total = reduce_dims(exponential, [along], "sum", True, name="S")
    i = axes_for(total.shape)
    inverse = compute("R", i, 1.0 / total[tuple(i)])
    i = axes_for(x.shape)
    return compute(name, i, exponential[tuple(i)] * _spread(inverse, [along], i))


def log_softmax(x: Tensor, along: int, name: str = "Y") -> Tensor:
    """`Y = (X - M) - log Σ exp(X - M)`, M the maximum; M + log Σ would round the logarithm away beside a large M."""
    largest = reduce_dims(x, [along], "max", True, name="M")
    total = reduce_dims(x, [along], "sum", True, lambda e, i: build.exp(e - largest[tuple(i)]), "S")
    i = axes_for(total.shape)
    shift = compute("L", i, build.log(total[tuple(i)]))
    i = axes_for(x.shape)
    return compute(name, i, x[tuple(i)] - _spread(largest, [along], i) - _spread(shift, [along], i))


def standardize(x: Tensor, dims: Sequence[int], epsilon: float, name: str = "Y") -> Tensor:
    """`Y = (X - mean) / √(variance + ε)` over the given dimensions; the variance is summed of differences, in a second
    pass.
    """
    share = 1.0 / max(1, prod(x.shape[d] for d in dims))
    total = reduce_dims(x, dims, "sum", True, name="S")
    i = axes_for(total.shape)
    mean = compute("M", i, total[tuple(i)] * share)

    def square(e: Expr, i: Sequence[Axis]) -> Expr:
        gap = e - mean[tuple(i)]
        return gap * gap

    squares = reduce_dims(x, dims, "sum", True, square, "V")
    i = axes_for(squares.shape)
    scale = compute("R", i, build.rsqrt(squares[tuple(i)] * share + epsilon))
    i = axes_for(x.shape)
    return compute(name, i, (x[tuple(i)] - _spread(mean, dims, i)) * _spread(scale, dims, i))


def rms_normalize(x: Tensor, dims: Sequence[int], epsilon: float, name: str = "Y") -> Tensor:
    """`Y = X / √(mean of X² + ε)` over the given dimensions."""
    share = 1.0 / max(1, prod(x.shape[d] for d in dims))
    squares = reduce_dims(x, dims, "sum", True, lambda e, i: e * e, "V")
    i = axes_for(squares.shape)
    scale = compute("R", i, build.rsqrt(squares[tuple(i)] * share + epsilon))
    i = axes_for(x.shape)
    return compute(name, i, x[tuple(i)] * _spread(scale, dims, i))
