"""Matrix products."""

from __future__ import annotations

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis


def batch_matmul(x: Tensor, w: Tensor, name: str = "Y") -> Tensor:
    """`Y[b, n, m] = Σ_k X[b, n, k] · W[b, k, m]`."""
    if len(x.shape) != 3 or len(w.shape) != 3 or x.shape[0] != w.shape[0] or x.shape[2] != w.shape[1]:
        raise UserError(f"batch_matmul: cannot multiply {x!r} by {w!r}; wanted [b, n, k] and [b, k, m]")
    b, n, m, k = axis(x.shape[0], "b"), axis(x.shape[1], "n"), axis(w.shape[2], "m"), reduce_axis(x.shape[2], "k")
    return compute(name, (b, n, m), build.sum(x[b, n, k] * w[b, k, m], k))


def matmul(x: Tensor, w: Tensor, name: str = "Y") -> Tensor:
    """`Y[n, m] = Σ_k X[n, k] · W[k, m]`."""
    if len(x.shape) != 2 or len(w.shape) != 2 or x.shape[1] != w.shape[0]:
        raise UserError(f"matmul: cannot multiply {x!r} by {w!r}; wanted [n, k] and [k, m]")
    n, m, k = axis(x.shape[0], "n"), axis(w.shape[1], "m"), reduce_axis(x.shape[1], "k")
    return compute(name, (n, m), build.sum(x[n, k] * w[k, m], k))


def matvec(w: Tensor, x: Tensor, name: str = "Y") -> Tensor:
    """`Y[n] = Σ_k W[n, k] · X[k]`."""
    if len(w.shape) != 2 or w.shape[1:] != x.shape:
        raise UserError(f"matvec: cannot multiply {w!r} by {x!r}; wanted [n, k] and [k]")
    n, k = axis(w.shape[0], "n"), reduce_axis(w.shape[1], "k")
    return compute(name, n, build.sum(w[n, k] * x[k], k))
