"""Blocks of convolutional networks: convolution, norm, activation; residual sums, branches, dense blocks, gates."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tests.fuzz.draft import FLOATS, Draft, Maker, Refused, Shape
from tests.fuzz.makers.layers import activated, reduced
from tests.fuzz.makers.operands import affordable, swapped


def _image_shape(d: Draft) -> Shape:
    return (d.among(1, 1, 2), d.among(1, 2, 3, 4, 5, 6, 8, 12, 15, 16, 17, 24, 33), d.dim(13), d.dim(13))


def _image(d: Draft) -> str:
    return d.take(lambda: _image_shape(d), FLOATS, lambda s: len(s) == 4 and prod(s) > 0)


def _conv(d: Draft, x: str, outs: int, kernel: int, groups: int = 1, stride: int = 1) -> str:
    """A convolution whose window is centred; with a bias or without."""
    n, c, h, w = d.shape(x)
    affordable(n * c // groups * outs * kernel**2 * h * w)
    dtype, fan_in = d.dtype(x), c // groups * kernel**2
    weights = d.weights(outs, c // groups, kernel, kernel, dtype=dtype, scale=fan_in**-0.5)
    bias = [d.weights(outs, dtype=dtype, scale=0.3)] if d.chance(0.5) else []
    attributes: dict[str, Any] = {"strides": [stride] * 2} if stride > 1 or d.chance(0.5) else {}
    if groups > 1:
        attributes["group"] = groups
    return d.one("Conv", x, weights, *bias, pads=[kernel // 2] * 4, **attributes)


def _batch_norm(d: Draft, x: str) -> str:
    c, dtype = d.shape(x)[1], d.dtype(x)
    scale, shift, mean = (d.weights(c, dtype=dtype, scale=0.3, centre=centre) for centre in (1.0, 0.0, 0.0))
    variance = d.constant(d.rng.uniform(0.5, 2, c).astype(dtype))
    return d.one("BatchNormalization", x, scale, shift, mean, variance, epsilon=1e-5)


def _conv_block(d: Draft) -> str:
    """Norm and activation before or behind a convolution: plain, grouped, depthwise, pointwise, strided."""
    x = _image(d)
    if d.chance(0.25):
        x = activated(d, _batch_norm(d, x))
    c = d.shape(x)[1]
    groups = d.among(1, 1, 1, c, *(g for g in (2, 3, 4) if c % g == 0))
    outs = groups * d.among(1, 2, 3) if groups > 1 else d.among(1, 3, 5, 8, 11, 16, 17, 20, 33)
    y = _conv(d, x, outs, d.among(1, 3, 3, 5), groups, d.among(1, 1, 1, 2))
    if d.chance(0.6):
        y = _batch_norm(d, y)
    return activated(d, y)


def _residual(d: Draft) -> str:
    """A branch added to what it started from, which others may read as well; the way around may be a convolution."""
    x = _image(d)
    c = d.shape(x)[1]
    y = x
    for _ in range(d.whole(1, 2)):
        y = _conv(d, y, c, d.among(1, 3))
        if d.chance(0.5):
            y = _batch_norm(d, y)
        if d.chance(0.5):
            y = activated(d, y)
    around = _conv(d, x, c, 1) if d.chance(0.2) else x
    return activated(d, d.one("Add", *swapped(d, around, y)))


def _branches(d: Draft) -> str:
    """Convolutions of one value side by side, joined; a branch may also be the value, a pool or a slice of it."""
    x = _image(d)
    c = d.shape(x)[1]
    parts: list[str] = []
    for _ in range(d.among(2, 3, 4)):
        kind = d.among("conv", "conv", "self", "pool", "nested", "slice")
        if kind == "conv":
            parts.append(activated(d, _conv(d, x, d.among(1, 4, 7, 8, 16), d.among(1, 3))))
        elif kind == "pool":
            op = d.among("MaxPool", "AveragePool")
            parts.append(d.one(op, x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4))
        elif kind == "nested" and len(parts) > 1:
            parts.append(d.one("Concat", *parts[-2:], axis=1))
        elif kind == "slice" and c > 1:
            at = d.whole(1, c - 1)
            parts.append(d.one("Slice", x, d.integers([d.among(0, at - 1)]), d.integers([at]), d.integers([1])))
        else:
            parts.append(x)
    y = d.one("Concat", *parts, axis=d.among(1, -3))
    return _conv(d, y, d.among(1, 5, 8), d.among(1, 3)) if d.chance(0.4) else y


def _dense_block(d: Draft) -> str:
    """Every layer reads all before it: from the last concatenation, or from a new one of all parts."""
    x = _image(d)
    parts, growth, anew = [x], d.among(1, 3, 4, 8), d.chance(0.5)
    for _ in range(d.among(2, 3)):
        y = activated(d, _batch_norm(d, x)) if d.chance(0.5) else x
        parts.append(_conv(d, y, growth, 3))
        x = d.one("Concat", *(parts if anew else (x, parts[-1])), axis=1)
    return x


def _squeezed(d: Draft) -> str:
    """Squeeze and excite: a value times a function of its means over pixels, by convolutions or by products."""
    x = _image(d)
    n, c = d.shape(x)[:2]
    dtype, inner = d.dtype(x), d.among(1, 2, 4)
    s = d.one("GlobalAveragePool", x) if d.chance(0.5) else reduced(d, x, d.among([2, 3], [-1, -2]))
    if d.chance(0.6):
        s = _conv(d, activated(d, _conv(d, s, inner, 1)), c, 1)
    else:
        flat = d.one("Flatten", s) if d.chance(0.5) else d.one("Reshape", s, d.integers([n, -1]))
        narrow = d.one("Relu", d.one("MatMul", flat, d.weights(c, inner, dtype=dtype, scale=c**-0.5)))
        wide = d.one("MatMul", narrow, d.weights(inner, c, dtype=dtype, scale=0.5))
        s = d.one("Reshape", wide, d.integers([n, c, 1, 1]))
    gate = d.one(d.among("Sigmoid", "Sigmoid", "HardSigmoid"), s)
    return d.one("Mul", *swapped(d, x, gate))


def _shuffled(d: Draft) -> str:
    """Channels in groups, transposed: a channel shuffle; or pixels made of channels and back."""
    x = _image(d)
    n, c, h, w = d.shape(x)
    groups = [g for g in (2, 3, 4) if c % g == 0]
    if not groups:
        raise Refused("no groups of channels")
    g = d.among(*groups)
    if d.chance(0.6):
        y = d.one("Reshape", x, d.integers([n, g, c // g, h, w]))
        return d.one("Reshape", d.one("Transpose", y, perm=[0, 2, 1, 3, 4]), d.integers([d.among(0, n), c, h, w]))
    if g == 4:
        y = d.one("Transpose", d.one("Reshape", x, d.integers([n, c // 4, 2, 2, h, w])), perm=[0, 1, 4, 2, 5, 3])
        return d.one("Reshape", y, d.integers([n, c // 4, 2 * h, 2 * w]))
    return d.one("Transpose", activated(d, d.one("Transpose", x, perm=[0, 2, 3, 1])), perm=[0, 3, 1, 2])


def _tokens(d: Draft) -> str:
    """Patches of an image as a sequence: a convolution, a reshape, a transposition, a class token in front."""
    x = _image(d)
    n, outs = d.shape(x)[0], d.among(1, 4, 8, 12)
    y = _conv(d, x, outs, d.among(1, 3), stride=d.among(1, 2))
    y = d.one("Transpose", d.one("Reshape", y, d.integers([n, outs, -1])), perm=[0, 2, 1])
    if d.chance(0.6):
        token = d.weights(1, 1, outs, dtype=d.dtype(x))
        y = d.one("Concat", d.one("Expand", token, d.integers([n, 1, outs])), y, axis=1)
    return d.one("Add", y, d.weights(*d.shape(y)[1:], dtype=d.dtype(x))) if d.chance(0.6) else y


def _classified(d: Draft) -> str:
    """The end of a network: a mean over pixels, flattened, a dense layer, perhaps a softmax."""
    x = _image(d)
    n, c = d.shape(x)[:2]
    dtype, classes = d.dtype(x), d.among(1, 5, 10, 17)
    y = d.one("GlobalAveragePool", x) if d.chance(0.6) else reduced(d, x, [2, 3], d.among("ReduceMean", "ReduceMax"))
    y = d.one("Flatten", y) if d.chance(0.7) else d.one("Reshape", y, d.integers([n, c]))
    bias = [d.weights(classes, dtype=dtype)] if d.chance(0.7) else []
    y = d.one("Gemm", y, d.weights(classes, c, dtype=dtype, scale=np.sqrt(1 / c)), *bias, transB=1)
    return d.one("Softmax", y, axis=1) if d.chance(0.4) else y


MAKERS: dict[str, tuple[float, Maker]] = {
    "branches": (1.5, _branches),
    "classifier": (0.6, _classified),
    "conv block": (2.0, _conv_block),
    "dense block": (1.0, _dense_block),
    "residual": (1.5, _residual),
    "shuffle": (0.8, _shuffled),
    "squeeze and excite": (1.0, _squeezed),
    "tokens": (0.6, _tokens),
}
