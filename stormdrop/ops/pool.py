"""Pooling over windows."""

from __future__ import annotations

import math

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, ITEMSIZE, Dtype, Scalar
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.ops.conv import window_extent
from stormdrop.ops.movement import Pad, before_after, pad


def lowest(dtype: Dtype) -> Scalar:
    """The neutral element of max."""
    return -math.inf if dtype in FLOATS else -(2 ** (8 * ITEMSIZE[dtype] - 1))


def max_pool2d(x: Tensor, kernel: int, stride: int, padding: Pad = 0, name: str = "Y") -> Tensor:
    """`Y[n, h, w, c] = max_{kh,kw} P[n, h·s + kh, w·s + kw, c]`, where P is X padded with -inf.

    Raises UserError where a window would lie wholly in the padding.
    """
    if len(x.shape) != 4:
        raise UserError(f"max_pool2d: {x!r} is not [n, h, w, c]")
    if max(before_after(padding)) >= kernel:
        raise UserError(f"max_pool2d: with pad {padding} a window of {kernel} can lie wholly outside the image")
    oh = window_extent("max_pool2d", x.shape[1], kernel, stride, padding)
    ow = window_extent("max_pool2d", x.shape[2], kernel, stride, padding)
    p = pad(x, (padding, padding), lowest(x.dtype))
    n, h, w, c = axis(x.shape[0], "n"), axis(oh, "h"), axis(ow, "w"), axis(x.shape[3], "c")
    kh, kw = reduce_axis(kernel, "kh"), reduce_axis(kernel, "kw")
    return compute(name, (n, h, w, c), build.reduce_max(p[n, h * stride + kh, w * stride + kw, c], kh, kw))
