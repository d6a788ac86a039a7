"""Layers that idioms are made of."""

from __future__ import annotations

from tests.fuzz.draft import FLOATS, Draft
from tests.fuzz.makers.operands import affordable, moderate, scalar, size, swapped


def linear(d: Draft, x: str, n: int, bias: bool | None = None) -> str:
    """x W + b along the last dimension."""
    k, dtype = d.shape(x)[-1], d.dtype(x)
    affordable(size(d.shape(x)) * n)
    y = d.one("MatMul", x, d.weights(k, n, dtype=dtype, scale=max(k, 1) ** -0.5))
    wanted = d.chance(0.6) if bias is None else bias
    return d.one("Add", *swapped(d, y, d.weights(n, dtype=dtype, scale=0.3))) if wanted else y


def reduced(d: Draft, x: str, axes: list[int], op: str = "ReduceMean", keepdims: int = 1) -> str:
    """A reduction in the form of the draft's operator set."""
    if op != "ReduceSum" and d.opset < 18:
        return d.one(op, x, axes=axes, keepdims=keepdims)
    return d.one(op, x, d.integers(axes), keepdims=keepdims)


def activated(d: Draft, x: str) -> str:
    op = d.among(
        "",
        "Relu",
        "Relu",
        "Sigmoid",
        "Tanh",
        "LeakyRelu",
        "Softplus",
        "Clip",
        *(["HardSwish"] if d.opset >= 14 else []),
    )
    if op == "Clip":
        return d.one("Clip", x, scalar(d, 0, d.dtype(x)), scalar(d, 6, d.dtype(x)))
    return d.one(op, x) if op else x


def sequence(d: Draft) -> str:
    """A value of batch, time and channels."""
    return moderate(d, d.take(lambda: (d.among(1, 1, 2, 3), d.dim(17), d.dim(33)), FLOATS))
