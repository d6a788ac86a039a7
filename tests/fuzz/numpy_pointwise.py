"""Pointwise operators by NumPy, in a wider type than their operands': others approximate them or get corners wrong.

f32 is computed in f64 and f64 in 80 bits, then rounded once. An attribute is a float of 32 bits, and so is its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.recipe import Node

Array = NDArray[Any]
Result = Array | list[Array]
WIDE: dict[np.dtype[Any], Any] = {
    np.dtype(np.float16): np.float64,
    np.dtype(np.float32): np.float64,
    np.dtype(np.float64): np.longdouble,
}


class Undetermined(Exception):
    """ONNX's text does not say what the result is, or the order of evaluation decides."""


def wide(x: Array) -> Array:
    return x.astype(WIDE.get(x.dtype, x.dtype))


def number(node: Node, key: str, default: float) -> float:
    """An attribute as the model holds it."""
    return float(np.float32(node.attributes.get(key, default)))


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)) if x.size else x


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e / (1 + e), 1 / (1 + e))


def _elu(node: Node, x: Array) -> Array:
    return np.where(x < 0, number(node, "alpha", 1.0) * np.expm1(x), x)


def _celu(node: Node, x: Array) -> Array:
    alpha = number(node, "alpha", 1.0)
    return np.where(x < 0, alpha * np.expm1(x / alpha), x)


def _selu(node: Node, x: Array) -> Array:
    alpha, gamma = number(node, "alpha", 1.67326319217681884765625), number(node, "gamma", 1.05070102214813232421875)
    return gamma * np.where(x <= 0, alpha * np.expm1(x), x)


def _gelu(node: Node, x: Array) -> Array:
    if node.attributes.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _hard_sigmoid(node: Node, x: Array) -> Array:
    return np.clip(number(node, "alpha", 0.2) * x + number(node, "beta", 0.5), 0, 1)


def _hard_swish(node: Node, x: Array) -> Array:
    return x * np.clip(number(node, "alpha", 1 / 6) * x + 0.5, 0, 1)


def _leaky_relu(node: Node, x: Array) -> Array:
    return np.where(x < 0, number(node, "alpha", 0.01) * x, x)


def _shrink(node: Node, x: Array) -> Array:
    limit, bias = number(node, "lambd", 0.5), np.asarray(number(node, "bias", 0.0), x.dtype)
    return np.where(x < -limit, x + bias, np.where(x > limit, x - bias, 0))


def _swish(node: Node, x: Array) -> Array:
    return x * sigmoid(number(node, "alpha", 1.0) * x)


def _plain(f: Callable[[Array], Array]) -> Callable[[Node, Array], Array]:
    return lambda node, x: f(x)


FUNCTIONS: dict[str, Callable[[Node, Array], Array]] = {
    "Acos": _plain(np.arccos),
    "Acosh": _plain(np.arccosh),
    "Asin": _plain(np.arcsin),
    "Asinh": _plain(np.arcsinh),
    "Atan": _plain(np.arctan),
    "Atanh": _plain(np.arctanh),
    "Celu": _celu,
    "Cos": _plain(np.cos),
    "Cosh": _plain(np.cosh),
    "Elu": _elu,
    "Erf": _plain(erf),
    "Exp": _plain(np.exp),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Log": _plain(np.log),
    "Mish": _plain(lambda x: x * np.tanh(np.logaddexp(0, x))),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _plain(sigmoid),
    "Sin": _plain(np.sin),
    "Sinh": _plain(np.sinh),
    "Softplus": _plain(lambda x: np.logaddexp(0, x)),
    "Softsign": _plain(lambda x: x / (1 + np.abs(x))),
    "Swish": _swish,
    "Tan": _plain(np.tan),
    "Tanh": _plain(np.tanh),
}


def _function(f: Callable[[Node, Array], Array]) -> Callable[..., Result]:
    def function(node: Node, x: Array) -> Array:
        return np.asarray(f(node, wide(x))).astype(x.dtype)

    return function


def _mean_of(node: Node, *inputs: Array) -> Array:
    mean = np.asarray(sum((wide(x) for x in inputs[1:]), start=wide(inputs[0])) / len(inputs)).astype(inputs[0].dtype)
    same_kinds(mean, np.asarray(sum(inputs[1:], start=inputs[0])))
    return mean


def _sum_of(node: Node, *inputs: Array) -> Array:
    total = np.asarray(sum((wide(x) for x in inputs[1:]), start=wide(inputs[0]))).astype(inputs[0].dtype)
    same_kinds(total, np.asarray(sum(inputs[1:], start=inputs[0])))
    return total


def _power(node: Node, x: Array, y: Array) -> Array:
    """Integers exactly, where the exponents are whole and not negative."""
    if x.dtype.kind == "f":
        # For a repeated exponent of 0.5 NumPy takes square roots, which are NaN for -inf: no stride may be 0.
        base, exponent = (np.array(a) for a in np.broadcast_arrays(wide(x), y.astype(WIDE[x.dtype])))
        power = np.asarray(np.power(base, exponent))
        return np.where((exponent == 0.5) & np.isneginf(base), np.inf, power).astype(x.dtype)
    if (y < 0).any() or (y != np.floor(y)).any():
        raise Undetermined("a fraction among integers")
    return np.asarray(np.power(x, y.astype(x.dtype)))


def _remainder(node: Node, x: Array, y: Array) -> Array:
    return np.asarray(np.fmod(x, y) if node.attributes.get("fmod", 0) else np.mod(x, y))


def _clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Bounds that are not given are the largest finite numbers; a bound that is NaN gives NaN."""
    info = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
    least, most = (info.min if low is None else low), (info.max if high is None else high)
    return np.minimum(np.maximum(x, least), most).astype(x.dtype)


def _sign(node: Node, x: Array) -> Array:
    return np.sign(x)


def _prelu(node: Node, x: Array, slope: Array) -> Array:
    return np.where(x < 0, slope * x, x).astype(x.dtype)


def same_kinds(a: Array, b: Array) -> None:
    """Raises Undetermined where one way to compute is finite, infinite or NaN and another one is not."""
    finite = np.isfinite(a)
    if not (finite == np.isfinite(b)).all() or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise Undetermined("the order of evaluation decides what overflows")


def _where(node: Node, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


NUMPY: dict[str, Callable[..., Result]] = {
    **{op: _function(f) for op, f in FUNCTIONS.items()},
    "Clip": _clip,
    "Mean": _mean_of,
    "Mod": _remainder,
    "PRelu": _prelu,
    "Pow": _power,
    "Sign": _sign,
    "Sum": _sum_of,
    "Where": _where,
}
