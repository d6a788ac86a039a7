"""Quantised operators by NumPy, in exact integers: onnxruntime saturates products of pairs on some machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.recipe import Node

Array = NDArray[Any]


def requantized(total: Array, factor: Array, zero: Array) -> Array:
    """round(f32(total) · factor) + zero, half to even, saturated to the type of `zero`."""
    limits = np.iinfo(zero.dtype)
    rounded = np.rint(total.astype(np.float32) * factor.astype(np.float32)).astype(np.int64) + int(zero)
    return np.clip(rounded, limits.min, limits.max).astype(zero.dtype)


def convolved(x: Array, w: Array, pads: Sequence[int], stride: int, groups: int) -> Array:
    """The exact sums of a two-dimensional convolution of integers."""
    top, left, bottom, right = pads
    p = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    kh, kw = w.shape[2:]
    rows, columns = ((n - k) // stride + 1 for n, k in zip(p.shape[2:], (kh, kw)))
    outs, per_group = w.shape[0] // groups, x.shape[1] // groups
    y = np.zeros((x.shape[0], w.shape[0], rows, columns), np.int64)
    for i in range(kh):
        for j in range(kw):
            part = p[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride]
            for g in range(groups):
                mine = slice(g * outs, (g + 1) * outs)
                taken = part[:, g * per_group : (g + 1) * per_group]
                y[:, mine] += np.einsum("nchw,oc->nohw", taken, w[mine, :, i, j].astype(np.int64))
    return y


def centred(x: Array, zero: Array | None, rank: int = 0) -> Array:
    """x less its zero point: one for all, or with a rank one for each output channel."""
    if zero is None:
        return x.astype(np.int64)
    shape = (-1, *[1] * (rank - 1)) if rank and zero.ndim else zero.shape
    return x.astype(np.int64) - zero.astype(np.int64).reshape(shape)


def _sums(node: Node, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    pads, strides = node.attributes.get("pads", [0] * 4), node.attributes.get("strides", [1, 1])
    groups = int(node.attributes.get("group", 1))
    return convolved(centred(x, x_zero), centred(w, w_zero, w.ndim), pads, int(strides[0]), groups)


def _conv_integer(node: Node, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    return _sums(node, x, w, x_zero, w_zero).astype(np.int32)


def _qlinear_conv(node: Node, *given: Array) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = given
    total = _sums(node, x, w, x_zero, w_zero)
    total = total + bias[0].reshape(1, -1, 1, 1) if bias else total
    factor = np.asarray(x_scale * w_scale / y_scale, np.float32)
    return requantized(total, factor.reshape(1, -1, 1, 1) if factor.ndim else factor, y_zero)


def _matmul_integer(node: Node, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    return (centred(a, a_zero) @ centred(b, b_zero)).astype(np.int32)


def _qlinear_matmul(node: Node, *given: Array) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = given
    return requantized(centred(a, a_zero) @ centred(b, b_zero), np.asarray(a_scale * b_scale / y_scale), y_zero)


NUMPY = {
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
}
