"""Reductions, running sums, order, and normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tests.fuzz.draft import Draft, Maker, Refused, Shape
from tests.fuzz.makers.operands import (
    affordable,
    anything,
    axis_of,
    moderate,
    narrower,
    positive,
    signed,
    size,
    types_of,
)

# ---- reductions ------------------------------------------------------------------------------------------------------


def _axes(d: Draft, rank: int) -> list[int]:
    """One or several different axes, in any order, perhaps counted from behind."""
    count = d.among(1, 1, 1, 2, 2, 3, rank)
    return [signed(d, int(a), rank) for a in d.rng.permutation(rank)[: min(count, rank)]]


def _reduction(op: str) -> Maker:
    def maker(d: Draft) -> str:
        x = anything(d, types_of(d, op))
        array, rank = d.held[x].plain, d.rank(x)
        if op == "ReduceLogSum" and array.dtype.kind == "f" and not d.special:
            x = positive(d, x)
        if op == "ReduceProd" and not d.special and array.dtype.kind == "f" and d.chance(0.5):
            x = d.one("Tanh", x)
        as_input = op == "ReduceSum" or d.opset >= 18
        axes = _axes(d, rank) if rank and d.chance(0.85) else None
        attributes: dict[str, Any] = {"keepdims": d.whole(0, 1)} if d.chance(0.7) else {}
        if not as_input:
            return d.one(op, x, **attributes, **({} if axes is None else {"axes": axes}))
        if d.chance(0.3):
            attributes["noop_with_empty_axes"] = d.whole(0, 1)
        reduced = axes if axes is not None else [] if attributes.get("noop_with_empty_axes") else list(range(rank))
        if op == "ReduceMean" and not size([d.shape(x)[a] for a in reduced]):
            raise Refused("the mean of nothing is not determined")
        if axes is None:
            return d.one(op, x, *d.among((), ("",), (d.integers([]),)), **attributes)
        return d.one(op, x, d.integers(axes), **attributes)

    return maker


def _without_nan(d: Draft, x: str) -> str:
    """Where NaN stands among numbers, ONNX does not say."""
    if np.isnan(d.held[x].plain).any():
        raise Refused("NaN has no place in an order")
    return x


def _arg(op: str) -> Maker:
    def maker(d: Draft) -> str:
        x = _without_nan(d, anything(d, types_of(d, op), least_rank=1))
        axis = axis_of(d, x)
        if not d.shape(x)[axis]:
            raise Refused("nothing is largest of nothing")
        attributes: dict[str, int] = {"axis": signed(d, axis, d.rank(x))} if axis or d.chance(0.5) else {}
        if d.chance(0.6):
            attributes["keepdims"] = d.whole(0, 1)
        if d.chance(0.4):
            attributes["select_last_index"] = d.whole(0, 1)
        return d.one(op, x, **attributes)

    return maker


def _cumulative(op: str) -> Maker:
    def maker(d: Draft) -> str:
        x = anything(d, types_of(d, op), least_rank=1)
        if op == "CumProd" and d.dtype(x).kind == "f" and not d.special and d.chance(0.5):
            x = d.one("Tanh", x)
        axis = d.constant(np.asarray(signed(d, axis_of(d, x), d.rank(x)), d.among(np.int64, np.int32)))
        attributes = {key: d.whole(0, 1) for key in ("exclusive", "reverse") if d.chance(0.6)}
        return d.one(op, x, axis, **attributes)

    return maker


def _top_k(d: Draft) -> list[str]:
    """Both results. The order of unsorted ones is free, so they are asked for only where there is one."""
    x = _without_nan(d, anything(d, types_of(d, "TopK"), least_rank=1))
    axis = axis_of(d, x)
    extent = d.shape(x)[axis]
    k = d.whole(0 if d.empties else min(1, extent), extent) if d.chance(0.7) else min(1, extent)
    last = axis == d.rank(x) - 1
    attributes: dict[str, int] = {} if last and d.chance(0.5) else {"axis": signed(d, axis, d.rank(x))}
    if d.chance(0.6):
        attributes["largest"] = d.whole(0, 1)
    if d.chance(0.4):
        attributes["sorted"] = d.whole(0, 1) if k <= 1 else 1
    return d.emit("TopK", x, d.integers([k]), results=2, **attributes)


# ---- normalisations --------------------------------------------------------------------------------------------------


def _along(op: str) -> Maker:
    """Softmax and its kin: along one axis."""

    def maker(d: Draft) -> str:
        x = anything(d, types_of(d, op), least_rank=1)
        if op == "Hardmax":
            _without_nan(d, x)
        axis = axis_of(d, x)
        last = axis == d.rank(x) - 1
        return d.one(op, x, **({} if last and d.chance(0.4) else {"axis": signed(d, axis, d.rank(x))}))

    return maker


def _epsilon(d: Draft) -> dict[str, Any]:
    return {"epsilon": float(d.among(1e-5, 1e-3, 1e-2, 0.1, 1.0))} if d.chance(0.7) else {}


def _parameter(d: Draft, shape: Shape, dtype: DTypeLike, centre: float = 0.0) -> str:
    """A scale or a shift: mostly constant, sometimes an input or a value that is there."""
    if d.chance(0.2):
        return d.value(shape, dtype)
    array = np.asarray(centre + 0.3 * d.rng.standard_normal(shape)).astype(dtype)
    return d.constant(array) if d.chance(0.7) else d.input(shape, array=array)


def _layer_norm(d: Draft) -> list[str]:
    """Scale and bias have the shape of what is normalised, or broadcast to it.

    Mean and deviation of f64 are f32 in ONNX and f64 in onnxruntime: not drawn.
    """
    x = moderate(d, anything(d, types_of(d, "LayerNormalization"), least_rank=1))
    shape, dtype, axis = d.shape(x), d.dtype(x), axis_of(d, x)
    inner = shape[axis:]
    scale_shape, shift_shape = (inner, inner) if d.chance(0.8) else (narrower(d, inner), narrower(d, inner))
    inputs = [x, _parameter(d, scale_shape, dtype, 1.0)]
    if d.chance(0.6):
        inputs.append(d.among(_parameter(d, shift_shape, dtype), _parameter(d, shift_shape, dtype), ""))
    attributes = _epsilon(d)
    if axis != len(shape) - 1 or d.chance(0.5):
        attributes["axis"] = signed(d, axis, len(shape))
    if d.chance(0.2):
        attributes["stash_type"] = 1
    results = d.among(1, 1, 2, 3) if dtype == np.float32 else 1
    return d.emit("LayerNormalization", *inputs, results=results, **attributes)


def _rms_norm(d: Draft) -> str:
    x = moderate(d, anything(d, types_of(d, "RMSNormalization"), least_rank=1))
    shape, axis = d.shape(x), axis_of(d, x)
    scale_shape = shape[axis:] if d.chance(0.8) else narrower(d, shape[axis:])
    attributes = _epsilon(d)
    if axis != len(shape) - 1 or d.chance(0.5):
        attributes["axis"] = signed(d, axis, len(shape))
    if d.chance(0.2):
        attributes["stash_type"] = 1
    return d.one("RMSNormalization", x, _parameter(d, scale_shape, d.dtype(x), 1.0), **attributes)


def _channels(d: Draft, op: str, least_rank: int) -> tuple[str, int]:
    """A value with channels in its second dimension, and how many."""
    x = moderate(d, anything(d, types_of(d, op), least_rank))
    return x, d.shape(x)[1]


def _group_norm(d: Draft) -> str:
    """From operator set 21 on: what was there before is given up."""
    d.needs(21)
    x, channels = _channels(d, "GroupNormalization", 3)
    groups = d.among(1, channels, *(g for g in (2, 3, 4, 5, 6, 8) if channels and channels % g == 0))
    if not groups or not size(d.shape(x)[2:]):
        raise Refused("a group of nothing")
    scale, shift = _parameter(d, (channels,), d.dtype(x), 1.0), _parameter(d, (channels,), d.dtype(x))
    extra = {"stash_type": 1} if d.chance(0.2) else {}
    return d.one("GroupNormalization", x, scale, shift, num_groups=groups, **_epsilon(d), **extra)


def _instance_norm(d: Draft) -> str:
    x, channels = _channels(d, "InstanceNormalization", 3)
    if not size(d.shape(x)[2:]):
        raise Refused("an image of nothing")
    scale, shift = _parameter(d, (channels,), d.dtype(x), 1.0), _parameter(d, (channels,), d.dtype(x))
    return d.one("InstanceNormalization", x, scale, shift, **_epsilon(d))


def _batch_norm(d: Draft) -> list[str]:
    """With statistics that are constants, inputs or values; in training mode (operator set 15) the batch's own."""
    x, channels = _channels(d, "BatchNormalization", 2)
    dtype = d.dtype(x)
    scale, shift, mean = (_parameter(d, (channels,), dtype, centre) for centre in (1.0, 0.0, 0.0))
    spread = np.asarray(d.rng.uniform(0.2, 3.0, channels)).astype(dtype)
    variance = d.constant(spread) if d.chance(0.7) else d.input((channels,), array=spread)
    attributes = _epsilon(d)
    if d.chance(0.4):
        attributes["momentum"] = float(d.among(0.9, 0.5, 0.0, 1.0))
    results = 1
    if d.opset >= 15 and d.chance(0.3):
        training = attributes["training_mode"] = d.whole(0, 1)
        results = 3 if training else 1
        if training and not size(d.shape(x)):
            raise Refused("statistics of nothing")
    return d.emit("BatchNormalization", x, scale, shift, mean, variance, results=results, **attributes)


def _lp_norm(d: Draft) -> str:
    x = moderate(d, anything(d, types_of(d, "LpNormalization"), least_rank=1))
    axis = axis_of(d, x)
    attributes = {} if axis == d.rank(x) - 1 and d.chance(0.4) else {"axis": signed(d, axis, d.rank(x))}
    return d.one("LpNormalization", x, **attributes, **({"p": d.whole(1, 2)} if d.chance(0.7) else {}))


def _mean_variance(d: Draft) -> str:
    """Its axes, by default, are those of an image without channels."""
    x = moderate(d, anything(d, types_of(d, "MeanVarianceNormalization"), least_rank=1))
    rank = d.rank(x)
    axes = {} if rank == 4 and d.chance(0.5) else {"axes": _axes(d, rank)}
    reduced = axes.get("axes", [0, 2, 3])
    if not size([d.shape(x)[a] for a in reduced]):
        raise Refused("statistics of nothing")
    return d.one("MeanVarianceNormalization", x, **axes)


def _lrn(d: Draft) -> str:
    x, channels = _channels(d, "LRN", 3)
    attributes: dict[str, Any] = {"size": d.among(1, 2, 3, 4, 5, channels + 2)}
    if d.chance(0.7):
        attributes["alpha"] = float(d.among(1e-4, 0.1, 1.0, 0.3))
    if d.chance(0.7):
        attributes["beta"] = float(d.among(0.75, 0.5, 1.0, 2.0))
    if d.chance(0.6):
        attributes["bias"] = float(d.among(1.0, 0.3, 2.0))
    affordable(size(d.shape(x)) * attributes["size"])
    return d.one("LRN", x, **attributes)


REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")

MAKERS: dict[str, tuple[float, Maker]] = {
    **{
        f"Reduce{kind}": (0.8 if kind in ("Sum", "Mean", "Max") else 0.5, _reduction(f"Reduce{kind}"))
        for kind in REDUCTIONS
    },
    "ArgMax": (0.6, _arg("ArgMax")),
    "ArgMin": (0.4, _arg("ArgMin")),
    "BatchNormalization": (0.8, _batch_norm),
    "CumProd": (0.4, _cumulative("CumProd")),
    "CumSum": (0.5, _cumulative("CumSum")),
    "GroupNormalization": (0.6, _group_norm),
    "Hardmax": (0.4, _along("Hardmax")),
    "InstanceNormalization": (0.6, _instance_norm),
    "LRN": (0.4, _lrn),
    "LayerNormalization": (1.0, _layer_norm),
    "LogSoftmax": (0.6, _along("LogSoftmax")),
    "LpNormalization": (0.5, _lp_norm),
    "MeanVarianceNormalization": (0.4, _mean_variance),
    "RMSNormalization": (0.6, _rms_norm),
    "Softmax": (1.0, _along("Softmax")),
    "TopK": (0.6, _top_k),
}
