"""Reductions: inner product, norm, softmax."""

from __future__ import annotations

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Axis
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis


def dot(a: Tensor, b: Tensor, name: str = "Y") -> Tensor:
    """`Y = Σ_k A[k] · B[k]`, a tensor without dimensions."""
    if len(a.shape) != 1 or a.shape != b.shape:
        raise UserError(f"dot: {a!r} and {b!r} are no two vectors of one length")
    k = reduce_axis(a.shape[0], "k")
    return compute(name, (), build.sum(a[k] * b[k], k))


def matrix_norm(x: Tensor, name: str = "Y") -> Tensor:
    """`Y[b] = sqrt(Σ_ij X[b, i, j]²)`."""
    if len(x.shape) != 3:
        raise UserError(f"matrix_norm: {x!r} is no batch of matrices")
    b, i, j = axis(x.shape[0], "b"), reduce_axis(x.shape[1], "i"), reduce_axis(x.shape[2], "j")
    squares = compute("S", b, build.sum(x[b, i, j] * x[b, i, j], i, j))
    b = axis(x.shape[0], "b")
    return compute(name, b, build.sqrt(squares[b]))


def softmax(x: Tensor, name: str = "Y") -> Tensor:
    """Softmax over the last dimension, shifted by the row's maximum so that exp cannot overflow.

    M[i] = max_j X[i, j];   E[i, j] = exp(X[i, j] - M[i]);   R[i] = 1 / Σ_j E[i, j];   Y[i, j] = E[i, j] · R[i]
    """
    if not x.shape:
        raise UserError(f"softmax: {x!r} has no dimension to sum over")

    def rows() -> list[Axis]:
        return [axis(n, f"i{d}") for d, n in enumerate(x.shape[:-1])]

    i, k = rows(), reduce_axis(x.shape[-1], "k")
    largest = compute("M", i, build.reduce_max(x[(*i, k)], k))
    i, j = rows(), axis(x.shape[-1], "j")
    exponential = compute("E", (*i, j), build.exp(x[(*i, j)] - largest[tuple(i)]))
    i, k = rows(), reduce_axis(x.shape[-1], "k")
    total = compute("S", i, build.sum(exponential[(*i, k)], k))
    i = rows()
    inverse = compute("R", i, 1.0 / total[tuple(i)])
    i, j = rows(), axis(x.shape[-1], "j")
    return compute(name, (*i, j), exponential[(*i, j)] * inverse[tuple(i)])
