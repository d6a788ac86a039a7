"""One value in, one value out, at every element."""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Axis, Expr
from stormdrop.ir.tensor import Tensor, axis, compute


def _axes(x: Tensor) -> tuple[Axis, ...]:
    return tuple(axis(n, f"i{d}") for d, n in enumerate(x.shape))


def apply(function: Callable[[Expr], Expr], x: Tensor, name: str = "Y") -> Tensor:
    """`Y[i] = function(X[i])`, e.g. `apply(build.tanh, x)`."""
    i = _axes(x)
    return compute(name, i, function(x[i]))


def relu(x: Tensor, name: str = "Y") -> Tensor:
    """`Y[i] = max(X[i], 0)`; NaN stays NaN."""
    return apply(build.relu, x, name)


def add(a: Tensor, b: Tensor, name: str = "Y") -> Tensor:
    """`Y[i] = A[i] + B[i]`."""
    _same_shape("add", a, b)
    i = _axes(a)
    return compute(name, i, a[i] + b[i])


def add_relu(a: Tensor, b: Tensor, name: str = "Y") -> Tensor:
    """`Y[i] = max(A[i] + B[i], 0)`, the end of a residual block."""
    _same_shape("add_relu", a, b)
    i = _axes(a)
    return compute(name, i, build.relu(a[i] + b[i]))


def scale_shift(x: Tensor, scale: Tensor, shift: Tensor, name: str = "Y") -> Tensor:
    """`Y[.., c] = X[.., c] * scale[c] + shift[c]`: a batch norm folded for inference."""
    if not scale.shape == shift.shape == x.shape[-1:]:
        raise UserError(f"scale_shift: {scale!r} and {shift!r} need one value per channel of {x!r}")
    i = _axes(x)
    return compute(name, i, x[i] * scale[i[-1]] + shift[i[-1]])


def _same_shape(what: str, a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise UserError(f"{what}: {a!r} and {b!r} differ in shape")
