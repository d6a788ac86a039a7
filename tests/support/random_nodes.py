"""What a random model is made of: functions that add one operator, or one idiom of real networks, to a draft.

Each takes what it needs from the values there are, draws its attributes, and raises Refused where nothing fits. Sizes are small and
odd: ones, primes, multiples of a vector and their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tests.support.draft import Draft, Refused

Step = Callable[[Draft], object]
Shape = tuple[int, ...]
MOST_MACS = 3_000_000


def _image(shape: Shape) -> bool:
    return len(shape) == 4


def axis_of(d: Draft, x: str) -> int:
    return int(d.rng.integers(len(d.shape(x))))


# ---- elementwise ---------------------------------------------------------------------------------------------------

PLAIN = ("Relu", "Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Erf", "Softplus", "Softsign", "Sin", "Floor", "Ceil", "Sign", "Identity")


def unary(d: Draft) -> str:
    x = d.pick()
    match d.among(*PLAIN, "LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Clip", "Sqrt", "Log", "Reciprocal", "Dropout", "Pow"):
        case "LeakyRelu":
            return d.one("LeakyRelu", x, alpha=0.1)
        case "Elu":
            return d.one("Elu", x, alpha=0.7)
        case "HardSigmoid":
            return d.one("HardSigmoid", x, alpha=0.3, beta=0.4)
        case "Clip":
            low, high = (d.constant(np.float32(v)) for v in (-0.8, 1.1))
            return d.one("Clip", x, d.among(low, ""), d.among(high, high))
        case "Sqrt" | "Log" | "Reciprocal" as op:
            return d.one(op, d.one("Add", d.one("Mul", x, x), d.constant(np.float32(0.5))))
        case "Pow":
            return d.one("Pow", d.one("Abs", x) if d.chance(0.5) else x, d.constant(np.float32(d.among(2.0, 3.0))))
        case "Dropout":
            return d.emit("Dropout", x)[0]
        case op:
            return d.one(op, x)


def _broadcast_shape(d: Draft, shape: Shape) -> Shape:
    """Dimensions kept, made one or left off in front."""
    kept = tuple(e if d.chance(0.5) else 1 for e in shape)
    return kept[int(d.rng.integers(len(kept) + 1)) :] if d.chance(0.3) else kept


def _fits(a: Shape, b: Shape) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1]))


def _together(d: Draft, *names: str) -> None:
    try:
        np.broadcast_shapes(*(d.shape(name) for name in names))
    except ValueError as error:
        raise Refused("they do not broadcast together") from error


def binary(d: Draft) -> str:
    """With a value of any shape that broadcasts, itself, or a constant; in either order."""
    x = d.pick()
    match d.among("same", "any", "any", "self", "constant", "constant", "scalar", "larger"):
        case "same":
            y = d.pick(lambda s: s == d.shape(x))
        case "any":
            y = d.pick(lambda s: _fits(s, d.shape(x)))
        case "self":
            y = x
        case "constant":
            y = d.weights(*_broadcast_shape(d, d.shape(x)), centre=0.5)
        case "scalar":
            y = d.constant(np.float32(d.rng.uniform(0.3, 2)))
        case _:
            shape = tuple(int(d.among(2, 3, 5)) if e == 1 else e for e in d.shape(x))
            y = d.weights(*((int(d.among(1, 2, 3)), *shape) if len(shape) < 4 and d.chance(0.5) else shape))
    op = d.among("Add", "Add", "Mul", "Mul", "Sub", "Max", "Min", "Div", "PRelu")
    if op == "Div":
        y = d.one("Add", d.one("Abs", y), d.constant(np.float32(0.5)))
    if op == "PRelu":
        return d.one(op, x, d.weights(*_broadcast_shape(d, d.shape(x)), scale=0.3))
    return d.one(op, x, y) if op == "Div" or d.chance(0.6) else d.one(op, y, x)


def several(d: Draft) -> str:
    """Sum, Mean, Max or Min of three."""
    x = d.pick()
    others = [d.pick(lambda s: _fits(s, d.shape(x))) if d.chance(0.6) else d.weights(*_broadcast_shape(d, d.shape(x))) for _ in range(2)]
    _together(d, x, *others)
    return d.one(d.among("Sum", "Mean", "Max", "Min"), x, *others)


def compared(d: Draft) -> str:
    """A comparison of computed values, and something that reads it."""
    x = d.pick()
    y = d.pick(lambda s: _fits(s, d.shape(x))) if d.chance(0.5) else d.weights(*_broadcast_shape(d, d.shape(x)))
    c = d.one(d.among("Greater", "Less", "GreaterOrEqual", "LessOrEqual"), x, y)
    if d.chance(0.3):
        c = d.one("Not", c)
    if d.chance(0.3):
        wanted = d.shape(c)
        other = d.pick(lambda s: s == wanted, np.bool_)
        c = d.one(d.among("And", "Or", "Xor"), c, other)
    if d.chance(0.3):
        return d.one("Cast", c, to=1)
    a = d.pick(lambda s: _fits(s, d.shape(c)))
    b = d.weights(*_broadcast_shape(d, d.shape(c))) if d.chance(0.5) else d.pick(lambda s: _fits(s, d.shape(c)))
    _together(d, c, a, b)
    return d.one("Where", c, a, b)


def integral(d: Draft) -> str:
    """Through integers and back."""
    x = d.pick()
    i = d.one("Cast", d.one("Mul", x, d.constant(np.float32(3.0))), to=d.among(6, 7))
    three = d.constant(np.asarray(3, d.dtype(i)))
    return d.one("Cast", d.one(d.among("Add", "Mul", "Sub", "Max"), i, three), to=1)


# ---- windows -------------------------------------------------------------------------------------------------------


def _window(d: Draft, sizes: Shape, most: int = 5) -> dict[str, Any]:
    kernel = [int(d.among(*(k for k in (1, 1, 2, 3, 3, 3, 5, 7) if k <= max(most, 1)))) for _ in sizes]
    if d.chance(0.6):
        kernel = [kernel[0]] * len(sizes)
    strides = [int(d.among(1, 1, 1, 2, 3)) for _ in sizes] if d.chance(0.3) else [int(d.among(1, 1, 2))] * len(sizes)
    match d.among("none", "same", "same", "uneven"):
        case "none":
            pads = [0] * (2 * len(sizes))
        case "same":
            pads = [k // 2 for k in kernel] * 2
        case _:
            pads = [int(d.rng.integers(0, max(k // 2, 0) + 1)) for k in kernel * 2]
    for k, n, b, a in zip(kernel, sizes, pads, pads[len(sizes) :]):
        if n + b + a < k:
            raise Refused("the window is larger than the image")
    return {"kernel_shape": kernel, "strides": strides, "pads": pads}


def conv(d: Draft, x: str | None = None) -> str:
    """Of one or two spatial dimensions: plain, grouped, depthwise, with a multiplier, dilated, strided, pointwise."""
    x = x or d.pick(lambda s: len(s) in (3, 4, 4))
    _, channels, *sizes = d.shape(x)
    attributes = _window(d, tuple(sizes))
    groups = int(d.among(1, 1, 1, channels, *(g for g in (2, 3, 4) if channels % g == 0)))
    outs = groups * int(d.among(1, 2, 3)) if groups > 1 else int(d.among(1, 3, 5, 8, 11, 16, 17, 20, 33))
    if d.chance(0.2):
        attributes["dilations"] = [2] * len(sizes)
        for k, n, b, a in zip(attributes["kernel_shape"], sizes, attributes["pads"], attributes["pads"][len(sizes) :]):
            if n + b + a < 2 * (k - 1) + 1:
                raise Refused("the dilated window is larger than the image")
    kernel = attributes["kernel_shape"]
    fan_in = channels // groups * prod(kernel)
    if fan_in * outs * prod(sizes) > MOST_MACS:
        raise Refused("too much work")
    w = d.weights(outs, channels // groups, *kernel, scale=fan_in**-0.5)
    bias = [d.weights(outs, scale=0.3)] if d.chance(0.5) else []
    return d.one("Conv", x, w, *bias, group=groups, **attributes)


def conv_transpose(d: Draft) -> str:
    x = d.pick(lambda s: _image(s) and s[1] <= 16 and prod(s[2:]) <= 64)
    channels = d.shape(x)[1]
    kernel, stride, outs = int(d.among(2, 3, 4)), int(d.among(1, 2, 2)), int(d.among(1, 4, 5, 8))
    pad = int(d.rng.integers(0, kernel // 2 + 1))
    extra = int(d.rng.integers(0, stride)) if d.chance(0.3) else 0
    if min(d.shape(x)[2:]) * stride + kernel <= 2 * pad + stride:
        raise Refused("nothing would be left")
    w = d.weights(channels, outs, kernel, kernel, scale=(channels * kernel) ** -0.5)
    return d.one("ConvTranspose", x, w, strides=[stride] * 2, pads=[pad] * 4, output_padding=[extra] * 2)


def pool(d: Draft) -> str:
    x = d.pick(lambda s: len(s) in (3, 4))
    sizes = d.shape(x)[2:]
    if d.chance(0.25):
        return d.one(d.among("GlobalAveragePool", "GlobalMaxPool"), x)
    attributes = _window(d, sizes, min(sizes))
    if any(2 * p > k for p, k in zip(attributes["pads"], attributes["kernel_shape"] * 2)):
        raise Refused("pads larger than half the window")
    ceil = int(d.chance(0.5))
    for n, k, s, b, a in zip(sizes, *(attributes[key] for key in ("kernel_shape", "strides", "pads")), attributes["pads"][len(sizes) :]):
        if ceil and -(-(n + b + a - k) // s) * s >= n + b:
            raise Refused("a last window beyond the image: onnxruntime's shape inference and its kernels disagree")
    if d.chance(0.5):
        return d.one("MaxPool", x, ceil_mode=ceil, **attributes)
    # with both, onnxruntime counts taps beyond the pads that other runtimes do not
    return d.one("AveragePool", x, ceil_mode=ceil, count_include_pad=0 if ceil else int(d.chance(0.5)), **attributes)


def batch_norm(d: Draft, x: str | None = None) -> str:
    x = x or d.pick(lambda s: len(s) in (2, 3, 4, 4))
    c = d.shape(x)[1]
    scale, shift, mean = d.weights(c, scale=0.2, centre=1.0), d.weights(c, scale=0.3), d.weights(c, scale=0.3)
    variance = d.constant(d.rng.uniform(0.5, 2, c).astype(np.float32))
    return d.one("BatchNormalization", x, scale, shift, mean, variance, epsilon=1e-5)


def activated(d: Draft, x: str) -> str:
    if d.chance(0.3):
        return x
    return d.one(d.among("Relu", "Relu", "Sigmoid", "HardSwish", "Tanh"), x)


def conv_block(d: Draft) -> str:
    x = d.pick(_image)
    if d.chance(0.25):
        x = activated(d, batch_norm(d, x))
    y = conv(d, x)
    if d.chance(0.6):
        y = batch_norm(d, y)
    return activated(d, y)


def residual(d: Draft) -> str:
    """A branch added to what it started from, which others may read as well."""
    x = d.pick(_image)
    c, h, w = d.shape(x)[1:]
    if c * c * 9 * h * w > MOST_MACS:
        raise Refused("too much work")
    k = int(d.among(1, 3))
    y = d.one("Conv", x, d.weights(c, c, k, k, scale=(c * k * k) ** -0.5), pads=[k // 2] * 4)
    if d.chance(0.5):
        y = batch_norm(d, y)
    z = d.one("Add", *((x, y) if d.chance(0.5) else (y, x)))
    return activated(d, z)


def branches(d: Draft) -> str:
    """Convolutions of one value side by side, joined; a branch may be the value itself, a pool of it, or a concatenation."""
    x = d.pick(_image)
    c, h, w = d.shape(x)[1:]
    parts: list[str] = []
    for _ in range(int(d.among(2, 3, 4))):
        kind = d.among("conv", "conv", "self", "pool", "nested", "slice")
        if kind == "conv":
            k, outs = int(d.among(1, 3)), int(d.among(1, 4, 7, 8, 16))
            if c * outs * 9 * h * w > MOST_MACS:
                continue
            parts.append(activated(d, d.one("Conv", x, d.weights(outs, c, k, k, scale=(c * k * k) ** -0.5), pads=[k // 2] * 4)))
        elif kind == "pool":
            parts.append(d.one("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4))
        elif kind == "nested" and len(parts) > 1:
            parts.append(d.one("Concat", *parts[-2:], axis=1))
        elif kind == "slice" and c > 1:
            at = int(d.rng.integers(1, c))
            parts.append(d.one("Slice", x, d.integers([0 if d.chance(0.5) else at - 1]), d.integers([at]), d.integers([1])))
        else:
            parts.append(x)
    if not parts:
        raise Refused("no branches")
    y = d.one("Concat", *parts, axis=1)
    return conv(d, y) if d.chance(0.4) else y


def dense_block(d: Draft) -> str:
    """Every layer reads all before it: from the last concatenation, or from a new one of all parts."""
    x = d.pick(lambda s: _image(s) and s[1] * prod(s[2:]) <= 4000)
    parts, growth, anew = [x], int(d.among(1, 3, 4, 8)), d.chance(0.5)
    for _ in range(int(d.among(2, 3))):
        c = d.shape(x)[1]
        y = activated(d, batch_norm(d, x)) if d.chance(0.5) else x
        parts.append(d.one("Conv", y, d.weights(growth, c, 3, 3, scale=(9 * c) ** -0.5), pads=[1] * 4))
        x = d.one("Concat", *(parts if anew else (x, parts[-1])), axis=1)
    return x


def gated(d: Draft) -> str:
    """Squeeze and excite: a value times a function of its means."""
    x = d.pick(_image)
    c = d.shape(x)[1]
    s = d.one("GlobalAveragePool", x) if d.chance(0.5) else d.one("ReduceMean", x, d.integers([2, 3]), keepdims=1)
    s = d.one("Conv", s, d.weights(4, c, 1, 1, scale=c**-0.5), d.weights(4, scale=0.3))
    s = d.one("Sigmoid", d.one("Conv", d.one("Relu", s), d.weights(c, 4, 1, 1, scale=0.5)))
    return d.one("Mul", x, s)


def shuffle(d: Draft) -> str:
    x = d.pick(lambda s: _image(s) and any(s[1] % g == 0 and s[1] > g for g in (2, 3, 4)))
    n, c, h, w = d.shape(x)
    g = next(g for g in (3, 4, 2) if c % g == 0 and c > g)
    y = d.one("Reshape", x, d.integers([n, g, c // g, h, w]))
    return d.one("Reshape", d.one("Transpose", y, perm=[0, 2, 1, 3, 4]), d.integers([0 if d.chance(0.5) else n, c, h, w]))


WINDOWS: tuple[tuple[float, Step], ...] = (
    (2, conv), (3, conv_block), (2, residual), (2, branches), (1.5, dense_block), (1.5, pool), (1, batch_norm), (1, gated), (1, shuffle),
    (0.5, conv_transpose),
)  # fmt: skip
ELEMENTWISE: tuple[tuple[float, Step], ...] = ((3, unary), (4, binary), (1, several), (1.5, compared), (0.4, integral))
