"""Reductions over chosen dimensions, and normalisations by their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Axis, Combiner, Const, Expr, Load
from stormdrop.ir.tensor import Tensor, compute, reduce_axis
from stormdrop.operators.broadcast import axes_for, elementwise
from stormdrop.operators.node import Node, Operator, OperatorKind, reduced, same_dims


def reduce_dims(
    x: Tensor,
    dims: Sequence[int],
    combiner: Combiner,
    keep: bool,
    of: Callable[[Load, Sequence[Axis]], Expr] | None = None,
    name: str = "Y",
) -> Tensor:
    """Returns `Y[kept] = Σ over dims of f(X)`.

    With `keep` the reduced dimensions stay with extent 1; `of` also sees the kept axes.
    """
    over = {d: reduce_axis(x.shape[d], f"k{d}") for d in sorted(dims)}
    shape = [1 if d in over else n for d, n in enumerate(x.shape) if keep or d not in over]
    i = axes_for(shape)
    kept = iter(i if not keep else [a for d, a in enumerate(i) if d not in over])
    element = x[tuple(over[d] if d in over else next(kept) for d in range(len(x.shape)))]
    return compute(name, i, build.reduce(combiner, of(element, i) if of else element, *over.values()))


def _spread(x: Tensor, dims: Sequence[int], axes: Sequence[Axis]) -> Load:
    """Returns an element of a reduced tensor (dimensions kept), read at the axes of the unreduced tensor."""
    return x[tuple(Const(0, "i64") if d in dims else a for d, a in enumerate(axes))]


def softmax(x: Tensor, along: int = -1, name: str = "Y") -> Tensor:
    """Returns softmax along one dimension, shifted by the maximum so that exp cannot overflow.

    M[i] = max_j X[i, j];   E[i, j] = exp(X[i, j] - M[i]);   R[i] = 1 / Σ_j E[i, j];   Y[i, j] = E[i, j] · R[i]
    """
    if not x.shape:
        raise UserError(f"softmax: {x!r} has no dimension to sum over")
    along %= len(x.shape)
    largest = reduce_dims(x, [along], "max", False, name="M")
    i = axes_for(x.shape)
    exponential = compute("E", i, build.exp(x[tuple(i)] - largest[tuple(i[:along] + i[along + 1 :])]))
    total = reduce_dims(exponential, [along], "sum", False, name="S")
    inverse = elementwise(lambda e: 1.0 / e[0], [total], "R")
    i = axes_for(x.shape)
    return compute(name, i, exponential[tuple(i)] * inverse[tuple(i[:along] + i[along + 1 :])])


def log_softmax(x: Tensor, along: int, name: str = "Y") -> Tensor:
    """Returns `Y = (X - M) - log Σ exp(X - M)`, M the maximum; a large M would absorb the logarithm in M + log Σ."""
    largest = reduce_dims(x, [along], "max", True, name="M")
    total = reduce_dims(x, [along], "sum", True, lambda e, i: build.exp(e - largest[tuple(i)]), "S")
    shift = elementwise(lambda e: build.log(e[0]), [total], "L")
    i = axes_for(x.shape)
    return compute(name, i, x[tuple(i)] - _spread(largest, [along], i) - _spread(shift, [along], i))


def standardize(x: Tensor, dims: Sequence[int], epsilon: float, name: str = "Y") -> Tensor:
    """Returns `Y = (X - mean) / √(variance + ε)` over some dimensions; the variance is computed from differences."""
    share = 1.0 / max(1, prod(x.shape[d] for d in dims))
    total = reduce_dims(x, dims, "sum", True, name="S")
    mean = elementwise(lambda e: e[0] * share, [total], "M")

    def square(e: Expr, i: Sequence[Axis]) -> Expr:
        gap = e - mean[tuple(i)]
        return gap * gap

    squares = reduce_dims(x, dims, "sum", True, square, "V")
    scale = elementwise(lambda e: build.rsqrt(e[0] * share + epsilon), [squares], "R")
    i = axes_for(x.shape)
    return compute(name, i, (x[tuple(i)] - _spread(mean, dims, i)) * _spread(scale, dims, i))


def rms_normalize(x: Tensor, dims: Sequence[int], epsilon: float, name: str = "Y") -> Tensor:
    """Returns `Y = X / √(mean of X² + ε)` over the given dimensions."""
    share = 1.0 / max(1, prod(x.shape[d] for d in dims))
    squares = reduce_dims(x, dims, "sum", True, lambda e, i: e * e, "V")
    scale = elementwise(lambda e: build.rsqrt(e[0] * share + epsilon), [squares], "R")
    i = axes_for(x.shape)
    return compute(name, i, x[tuple(i)] * _spread(scale, dims, i))


def _reduction(name: str, combiner: Combiner) -> Operator:
    return Operator(
        name,
        reduced,
        lambda n, x: reduce_dims(x[0], n.integers("axes"), combiner, n.flag("keepdims", 1)),
        kind=OperatorKind.REDUCTION,
        combiner=combiner,
        followers=1,
    )


def _norm(name: str, express: Callable[[Node, Tensor], Tensor]) -> Operator:
    return Operator(name, same_dims, lambda n, x: express(n, x[0]), kind=OperatorKind.NORM, followers=1)


NORMALISATION = (
    _reduction("ReduceSum", "sum"),
    _reduction("ReduceMax", "max"),
    _reduction("ReduceMin", "min"),
    _reduction("ReduceProd", "prod"),
    _norm("Softmax", lambda n, x: softmax(x, n.integer("axis"))),
    _norm("LogSoftmax", lambda n, x: log_softmax(x, n.integer("axis"))),
    _norm("Standardize", lambda n, x: standardize(x, n.integers("axes"), n.number("epsilon"))),
    _norm("RmsNormalize", lambda n, x: rms_normalize(x, n.integers("axes"), n.number("epsilon"))),
)
