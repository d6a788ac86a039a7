"""Reductions, products, norms and losses by NumPy, summed in a wider type than their operands'.

Integers wrap around. Where the order of summation decides whether a sum overflows, nothing is determined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.numpy_pointwise import WIDE, Array, Result, Undetermined, number, same_kinds, wide
from tests.fuzz.recipe import Node


def axis_of(node: Node, default: int) -> int:
    return int(node.attributes.get("axis", default))


# ---- sums ----------------------------------------------------------------------------------------------------------


def _held_back(x: Array, axes: tuple[int, ...]) -> None:
    """Raises Undetermined where finite numbers may overflow on the way to their sum."""
    if x.dtype in WIDE:
        finite = np.where(np.isfinite(x), np.abs(wide(x)), 0)
        if (np.sum(finite, axes) > np.finfo(x.dtype).max).any():
            raise Undetermined("a partial sum overflows")


def summed(x: Array, axes: tuple[int, ...], keep: bool = True) -> Array:
    _held_back(x, axes)
    return np.asarray(np.sum(wide(x), axes, keepdims=keep)).astype(x.dtype)


def _multiplied(x: Array, axes: tuple[int, ...], keep: bool = True) -> Array:
    if x.dtype in WIDE:
        exponents = np.where(np.isfinite(x) & (x != 0), np.abs(np.log2(np.abs(wide(x)))), 0)
        if (np.sum(exponents, axes) > -np.finfo(x.dtype).minexp).any() and not _all_ones(x, axes):
            raise Undetermined("a partial product overflows or vanishes")
    return np.asarray(np.prod(wide(x), axes, keepdims=keep)).astype(x.dtype)


def _all_ones(x: Array, axes: tuple[int, ...]) -> bool:
    return all(x.shape[a] == 1 for a in axes)


def _extreme(op: Callable[..., Array], of_nothing: float) -> Callable[[Array, tuple[int, ...], bool], Array]:
    def function(x: Array, axes: tuple[int, ...], keep: bool = True) -> Array:
        least: Any = of_nothing if x.dtype.kind == "f" else _end_of(x.dtype, of_nothing)
        return np.asarray(op(x, axes, keepdims=keep, initial=least)).astype(x.dtype)

    return function


def _end_of(dtype: np.dtype[Any], of_nothing: float) -> Any:
    if dtype == np.bool_:
        return of_nothing > 0
    return np.iinfo(dtype).max if of_nothing > 0 else np.iinfo(dtype).min


def _mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    """Of integers: truncated."""
    count = math.prod(x.shape[a] for a in axes)
    total = summed(x, axes, keep)
    if x.dtype.kind == "f":
        return np.asarray(np.sum(wide(x), axes, keepdims=keep) / count).astype(x.dtype)
    if (np.sum(np.abs(x.astype(np.float64)), axes) >= min(2.0**53, np.iinfo(x.dtype).max)).any():
        raise Undetermined("the sum of integers overflows")
    if not count:
        raise Undetermined("the mean of no integers")
    return np.asarray(np.trunc(total.astype(np.float64) / count)).astype(x.dtype)


def _whole(x: Array, y: Array) -> Array:
    """Back to the type of x; integers are truncated, where that is defined."""
    if x.dtype.kind == "f":
        return y.astype(x.dtype)
    nearest = np.round(y)
    if not (np.abs(y) < np.iinfo(x.dtype).max).all() or ((np.abs(y - nearest) < 1e-9) & (y != nearest)).any():
        raise Undetermined("rounding decides")
    return np.trunc(y).astype(x.dtype)


def _l1(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return summed(np.abs(x), axes, keep)


def _squares(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return np.asarray(np.sum(wide(x * x), axes, keepdims=keep)).astype(x.dtype)


def _l2(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    if x.dtype.kind == "f":
        return np.sqrt(_squares(x, axes, keep))
    if (np.sum(x.astype(np.float64) ** 2, axes) >= min(2.0**53, np.iinfo(x.dtype).max)).any():
        raise Undetermined("squares of integers overflow")
    return _whole(x, np.sqrt(_squares(x, axes, keep).astype(np.float64)))


def _log_sum(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.log(wide(summed(x, axes, keep)))).astype(x.dtype)
    return _whole(x, np.log(summed(x, axes, keep).astype(np.float64)))


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    if x.dtype.kind == "i" and (np.abs(x.astype(np.float64)) >= 2.0**53).any():
        raise Undetermined("integers that no float holds")
    y = wide(x) if x.dtype.kind == "f" else x.astype(np.float64)
    largest = np.max(y, axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    total = np.asarray(np.log(np.sum(np.exp(y - shift), axes, keepdims=True)) + shift)
    return _whole(x, total if keep else np.squeeze(total, axes))


REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...], bool], Array]] = {
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme(np.max, -np.inf),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(np.min, np.inf),
    "ReduceProd": _multiplied,
    "ReduceSum": summed,
    "ReduceSumSquare": _squares,
}


def _reduction(f: Callable[[Array, tuple[int, ...], bool], Array]) -> Callable[..., Result]:
    """The non-reducing steps happen over an empty set of axes too."""

    def function(node: Node, x: Array, given: Array | None = None) -> Array:
        axes: Sequence[int] = node.attributes.get("axes", []) if given is None else [int(a) for a in given]
        if not axes and not node.attributes.get("noop_with_empty_axes", 0):
            axes = range(x.ndim)
        return f(x, tuple(a % x.ndim for a in axes), bool(node.attributes.get("keepdims", 1)))

    return function


def _cumulative(f: Callable[..., Array], one: int) -> Callable[..., Result]:
    """The running sum or product; shifted by one where the element itself is left out."""

    def function(node: Node, x: Array, at: Array) -> Array:
        axis = int(at) % x.ndim
        (summed if one == 0 else _multiplied)(x, (axis,))
        y = np.flip(x, axis) if node.attributes.get("reverse", 0) else x
        y = np.asarray(f(wide(y), axis)).astype(x.dtype)
        if node.attributes.get("exclusive", 0):
            first = np.full_like(np.take(y, [0] if y.shape[axis] else [], axis), one)
            y = np.concatenate([first, np.take(y, range(max(y.shape[axis] - 1, 0)), axis)], axis)
        return np.flip(y, axis) if node.attributes.get("reverse", 0) else y

    return function


def _arg(f: Callable[..., Array]) -> Callable[..., Result]:
    def function(node: Node, x: Array) -> Array:
        axis = axis_of(node, 0) % x.ndim
        last = bool(node.attributes.get("select_last_index", 0))
        at = np.asarray(f(np.flip(x, axis) if last else x, axis))
        at = x.shape[axis] - 1 - at if last else at
        return (np.expand_dims(at, axis) if node.attributes.get("keepdims", 1) else at).astype(np.int64)

    return function


# ---- products ------------------------------------------------------------------------------------------------------


def _product(f: Callable[..., Array], dtype: np.dtype[Any], *factors: Array) -> Array:
    """A sum of products. Raises Undetermined where it may overflow on the way."""
    if dtype not in WIDE:
        return np.asarray(f(*factors)).astype(dtype)
    sizes = f(*(np.where(np.isfinite(x), np.abs(wide(x)), 0) for x in factors))
    if (np.asarray(sizes) > np.finfo(dtype).max).any():
        raise Undetermined("a partial sum overflows")
    return np.asarray(f(*(wide(x) for x in factors))).astype(dtype)


def _matmul(node: Node, a: Array, b: Array) -> Array:
    return _product(np.matmul, a.dtype, a, b)


def _gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    """Integers with whole factors only. A factor of 0 drops what it stands before."""
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    y = _product(
        np.matmul,
        a.dtype,
        a.T if node.attributes.get("transA", 0) else a,
        b.T if node.attributes.get("transB", 0) else b,
    )
    if a.dtype.kind == "i":
        y = (y * np.asarray(alpha, a.dtype)).astype(a.dtype)
        return y if c is None else (y + c * np.asarray(beta, a.dtype)).astype(a.dtype)
    y = wide(y) * alpha
    if c is None or beta == 0.0:
        return y.astype(a.dtype)
    same_kinds(y.astype(a.dtype) + (wide(c) * beta).astype(a.dtype), (y + wide(c) * beta).astype(a.dtype))
    return (y + wide(c) * beta).astype(a.dtype)


def _einsum(node: Node, *operands: Array) -> Array:
    equation = str(node.attributes["equation"]).replace(" ", "")
    return _product(lambda *xs: np.einsum(equation, *xs), operands[0].dtype, *operands)


# ---- norms and losses ----------------------------------------------------------------------------------------------


def _softmax(node: Node, x: Array) -> Array:
    axis = axis_of(node, -1)
    e = np.exp(wide(x) - np.max(wide(x), axis, keepdims=True, initial=-np.inf))
    return (e / np.sum(e, axis, keepdims=True)).astype(x.dtype)


def _log_softmax(node: Node, x: Array) -> Array:
    axis = axis_of(node, -1)
    gap = wide(x) - np.max(wide(x), axis, keepdims=True, initial=-np.inf)
    return (gap - np.log(np.sum(np.exp(gap), axis, keepdims=True))).astype(x.dtype)


def _tame(x: Array) -> None:
    """Raises Undetermined where squares of finite numbers may overflow or vanish in the type of x."""
    some = np.abs(x[np.isfinite(x) & (x != 0)])
    info = np.finfo(x.dtype)
    if some.size and (some.max() > math.sqrt(info.max) / max(x.size, 1) or some.min() < math.sqrt(info.tiny) * 2**20):
        raise Undetermined("squares overflow or vanish")


def standardised(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / √(variance + ε), mean, variance: all wide."""
    _tame(x)
    y = wide(x)
    mean = np.mean(y, axes, keepdims=True)
    variance = np.mean((y - mean) ** 2, axes, keepdims=True)
    return (y - mean) / np.sqrt(variance + epsilon), mean, variance


def _layer_norm(node: Node, x: Array, scale: Array, bias: Array | None = None) -> Result:
    axes = tuple(range(axis_of(node, -1) % x.ndim, x.ndim))
    epsilon = number(node, "epsilon", 1e-5)
    y, mean, variance = standardised(x, axes, epsilon)
    y = y * scale if bias is None else y * scale + bias
    results = (y, mean, 1 / np.sqrt(variance + epsilon))
    return [r.astype(x.dtype) for r in results]


def _rms_norm(node: Node, x: Array, scale: Array) -> Array:
    _tame(x)
    axes = tuple(range(axis_of(node, -1) % x.ndim, x.ndim))
    squares = np.mean(wide(x) ** 2, axes, keepdims=True)
    return (wide(x) / np.sqrt(squares + number(node, "epsilon", 1e-5)) * scale).astype(x.dtype)


def _per_channel(v: Array, rank: int) -> Array:
    return v.reshape(1, -1, *(1 for _ in range(rank - 2)))


def _instance_norm(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    y, _, _ = standardised(x, tuple(range(2, x.ndim)), number(node, "epsilon", 1e-5))
    return (y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)).astype(x.dtype)


def _group_norm(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    groups = int(node.attributes["num_groups"])
    split = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y, _, _ = standardised(split, tuple(range(2, split.ndim)), number(node, "epsilon", 1e-5))
    return (y.reshape(x.shape) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)).astype(x.dtype)


def _batch_norm(node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Result:
    epsilon = number(node, "epsilon", 1e-5)
    if not node.attributes.get("training_mode", 0):
        s = scale / np.sqrt(wide(variance) + epsilon)
        y = (wide(x) * _per_channel(s, x.ndim) + _per_channel(bias - mean * s, x.ndim)).astype(x.dtype)
        s = s.astype(x.dtype)
        same_kinds(y, x * _per_channel(s, x.ndim) + _per_channel(bias - mean * s, x.ndim))
        same_kinds(y, (x - _per_channel(mean, x.ndim)) * _per_channel(s, x.ndim) + _per_channel(bias, x.ndim))
        return y
    axes = tuple(a for a in range(x.ndim) if a != 1)
    y, now, spread = standardised(x, axes, epsilon)
    y = y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)
    kept = number(node, "momentum", 0.9)
    results = (y, mean * kept + now.reshape(-1) * (1 - kept), variance * kept + spread.reshape(-1) * (1 - kept))
    return [r.astype(x.dtype) for r in results]


def _lp_norm(node: Node, x: Array) -> Array:
    """0 where the norm is 0."""
    axis = axis_of(node, -1)
    y = wide(x)
    if int(node.attributes.get("p", 2)) == 2:
        _tame(x)
        norm = np.sqrt(np.sum(y * y, axis, keepdims=True))
    else:
        _held_back(x, (axis % x.ndim,))
        norm = np.sum(np.abs(y), axis, keepdims=True)
    return np.where(norm == 0, 0, y / norm).astype(x.dtype)


def _mean_variance(node: Node, x: Array) -> Array:
    """As ONNX's body has it: 10⁻⁹ is added to the deviation."""
    axes = tuple(int(a) % x.ndim for a in node.attributes.get("axes", (0, 2, 3)))
    y = wide(x)
    centred = y - np.mean(y, axes, keepdims=True)
    return np.asarray(centred / (np.sqrt(np.mean(centred**2, axes, keepdims=True)) + 1e-9)).astype(x.dtype)


def _lrn(node: Node, x: Array) -> Array:
    _tame(x)
    alpha, beta, bias = number(node, "alpha", 1e-4), number(node, "beta", 0.75), number(node, "bias", 1.0)
    size, channels = int(node.attributes["size"]), x.shape[1]
    y = wide(x)
    squares = np.zeros_like(y)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
        squares[:, c] = np.sum(y[:, low:high] ** 2, axis=1)
    factor = (bias + alpha / size * squares) ** -beta
    if (factor < np.finfo(x.dtype).smallest_normal).any():
        raise Undetermined("the power vanishes in the type of x")
    return (y * factor).astype(x.dtype)


def _losses(node: Node, log_p: Array, labels: Array, weights: Array | None) -> Array:
    """-w log p of every label, in the type of log_p; the mean is weighed."""
    ignored = node.attributes.get("ignore_index")
    kept = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    at = np.where(kept, labels, 0)
    w = np.where(kept, 1.0 if weights is None else wide(weights)[at], 0.0)
    each = np.where(kept, -np.take_along_axis(wide(log_p), np.expand_dims(at, 1), 1).squeeze(1) * w, 0.0)
    match node.attributes.get("reduction", "mean"):
        case "none":
            return each.astype(log_p.dtype)
        case "sum":
            _held_back(each.astype(log_p.dtype), tuple(range(each.ndim)))
            return np.sum(each).astype(log_p.dtype)
        case _:
            _held_back(each.astype(log_p.dtype), tuple(range(each.ndim)))
            return (np.sum(each) / np.sum(w)).astype(log_p.dtype)


def _log_likelihood(node: Node, log_p: Array, labels: Array, weights: Array | None = None) -> Array:
    return np.asarray(_losses(node, log_p, labels, weights))


def _cross_entropy(node: Node, x: Array, labels: Array, weights: Array | None = None) -> Result:
    log_p = _log_softmax(Node("LogSoftmax", ("x",), ("y",), {"axis": 1}), x)
    return [np.asarray(_losses(node, log_p, labels, weights)), log_p]


NUMPY: dict[str, Callable[..., Result]] = {
    **{op: _reduction(f) for op, f in REDUCTIONS.items()},
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
    "BatchNormalization": _batch_norm,
    "CumProd": _cumulative(np.cumprod, 1),
    "CumSum": _cumulative(np.cumsum, 0),
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_norm,
    "MatMul": _matmul,
    "MeanVarianceNormalization": _mean_variance,
    "NegativeLogLikelihoodLoss": _log_likelihood,
    "RMSNormalization": _rms_norm,
    "Softmax": _softmax,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
