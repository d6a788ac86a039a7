"""Operators whose indices are data: constant, given at run time, or computed inside the model; of either sign."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.draft import INTEGERS, NUMBERS, TYPES, Draft, Maker, Refused, Shape
from tests.fuzz.makers.arguments import anything, axis_of, drawn, either_sign, fixed, indices, sometimes

Array = NDArray[Any]
REDUCTIONS_SINCE = {"none": 13, "add": 16, "mul": 16, "max": 18, "min": 18}


def gather(d: Draft) -> str:
    x = anything(d, 1)
    axis = axis_of(d, d.rank(x))
    n = d.shape(x)[axis]
    shape = d.among((), (), (1,), (3,), (d.dim(9),), (2, 2), (1, d.dim(4)), (2, 1, 3))
    attributes = {} if axis == 0 and d.chance(0.3) else {"axis": either_sign(d, axis, d.rank(x))}
    if n > 0 and d.chance(0.2):  # an arithmetic progression, which is a slice
        at = np.arange(d.whole(0, n - 1), n, d.among(1, 2))
        at = at[::-1] if d.chance(0.3) else at
        at = at - n if d.chance(0.3) else at
        return d.one("Gather", x, d.constant(at.astype(d.among(*INTEGERS))), **attributes)
    return d.one("Gather", x, indices(d, shape, n), **attributes)


def gather_elements(d: Draft) -> str:
    """The other dimensions of the indices may be smaller than the data's."""
    x = anything(d, 1)
    axis = axis_of(d, d.rank(x))
    kept = [e if d.chance(0.6) else d.whole(min(e, 1), e) for e in d.shape(x)]
    shape = [d.dim(9) if k == axis else e for k, e in enumerate(kept)]
    attributes = {} if axis == 0 and d.chance(0.3) else {"axis": either_sign(d, axis, d.rank(x))}
    return d.one("GatherElements", x, indices(d, shape, d.shape(x)[axis]), **attributes)


def _index_tuples(d: Draft, extents: Shape, at: Array) -> Array:
    """Flat positions as tuples of indices in a last dimension, some of them counted from the end."""
    columns = np.stack(np.unravel_index(at, extents), axis=-1) if extents else np.zeros((*at.shape, 0), np.int64)
    return np.where(d.rng.random(columns.shape) < 0.3, columns - np.array(extents, np.int64), columns).astype(np.int64)


def gather_nd(d: Draft) -> str:
    x = anything(d, 1)
    shape = d.shape(x)
    batch = d.whole(0, len(shape) - 1) if d.chance(0.4) else 0
    depth = d.whole(1, len(shape) - batch)
    extents = shape[batch : batch + depth]
    if 0 in extents:
        raise Refused("nothing to gather")
    count = d.among((), (1,), (d.dim(7),), (2, 3))
    where = (*shape[:batch], *count)
    at = _index_tuples(d, extents, np.asarray(d.rng.integers(0, prod(extents), where)))
    name = indices(d, at.shape, min(extents), (np.int64,)) if d.chance(0.3) else fixed(d, at)
    attributes = {"batch_dims": batch} if batch or d.chance(0.3) else {}
    return d.one("GatherND", x, name, **attributes)


# ---- scattering ------------------------------------------------------------------------------------------------------


def _reduction(d: Draft, x: str) -> str:
    """How updates are combined. Not drawn: reductions of bool, which ONNX defines for numbers only."""
    if d.dtype(x) == np.bool_:
        return "none"
    return d.among("none", *(r for r, since in REDUCTIONS_SINCE.items() if since <= d.opset))


def _updates(d: Draft, shape: Shape, x: str, reduction: str, constant: bool) -> str:
    """Values to be put in place; all the same where several go to one place and the last one would count.

    Not drawn: the larger or smaller of NaN and a number, of which ONNX does not say what it is.
    """
    if constant:
        return fixed(d, np.broadcast_to(drawn(d, (), d.dtype(x)), shape).copy())
    updates = d.value(shape, d.dtype(x))
    if reduction in ("max", "min") and any(np.isnan(d.held[name].plain).any() for name in (x, updates)):
        raise Refused("the larger of NaN and a number")
    return updates


def scatter_elements(d: Draft) -> str:
    """Indices that come twice are drawn with a reduction, or with updates that are all the same."""
    x = anything(d, 1)
    shape = d.shape(x)
    axis = axis_of(d, len(shape))
    n, reduction = shape[axis], _reduction(d, x)
    kept = [e if d.chance(0.6) else d.whole(min(e, 1), e) for e in shape]
    same = reduction == "none" and d.chance(0.2)
    if same or (reduction != "none" and d.chance(0.6)):
        places = [d.dim(9) if k == axis else e for k, e in enumerate(kept)]
        at = indices(d, places, n)
    else:
        places = [d.whole(min(n, 1), n) if k == axis else e for k, e in enumerate(kept)]
        order = np.argsort(d.rng.random([n if k == axis else e for k, e in enumerate(kept)]), axis=axis)
        unique = np.take(order, np.arange(places[axis]), axis=axis)
        unique = np.where(d.rng.random(unique.shape) < 0.3, unique - n, unique)
        at = fixed(d, unique.astype(d.among(*INTEGERS)))
    attributes: dict[str, Any] = {} if axis == 0 and d.chance(0.3) else {"axis": either_sign(d, axis, len(shape))}
    if reduction != "none" or (d.opset >= 16 and d.chance(0.2)):
        attributes["reduction"] = reduction
    return d.one("ScatterElements", x, at, _updates(d, tuple(places), x, reduction, same), **attributes)


def scatter_nd(d: Draft) -> str:
    """Of single elements, rows, or wholes; duplicates as above."""
    x = anything(d, 1)
    shape, reduction = d.shape(x), _reduction(d, x)
    depth = d.whole(1, len(shape))
    extents = shape[:depth]
    if 0 in extents:
        raise Refused("nowhere to scatter to")
    same = reduction == "none" and d.chance(0.2)
    where = d.among((), (1,), (d.dim(7),), (d.dim(3), d.dim(3)))
    if same or (reduction != "none" and d.chance(0.6)):
        if d.chance(0.3):
            at = indices(d, (*where, depth), min(extents), (np.int64,))
        else:
            at = fixed(d, _index_tuples(d, extents, np.asarray(d.rng.integers(0, prod(extents), where))))
    else:
        if prod(where) > prod(extents):
            raise Refused("more updates than places")
        flat = d.rng.permutation(prod(extents))[: prod(where)].reshape(where)
        at = fixed(d, _index_tuples(d, extents, flat))
    attributes = {"reduction": reduction} if reduction != "none" or (d.opset >= 16 and d.chance(0.2)) else {}
    updates = _updates(d, (*where, *shape[depth:]), x, reduction, same)
    return d.one("ScatterND", x, at, updates, **attributes)


def one_hot(d: Draft) -> str:
    """Indices of any number type, some beyond the depth; values given at run time or constant."""
    depth = d.among(1, 2, 3, 5, 8, 17)
    shape, dtype = d.dims(d.among(0, 1, 1, 2, 3), 300), d.among(*INTEGERS, *INTEGERS, *NUMBERS)
    if d.chance(0.3):
        at = indices(d, shape, depth)
    else:
        at = fixed(d, np.asarray(d.rng.integers(-depth - 2, depth + 3, shape)).astype(dtype))
    size = np.array(depth, d.among(np.int64, np.int64, np.int32, np.float32))
    values = fixed(d, drawn(d, (2,), d.type_among(TYPES)))
    rank = len(shape) + 1
    axis = sometimes(d, 0.7, axis=either_sign(d, d.whole(0, rank - 1), rank))
    return d.one("OneHot", at, d.constant(size.reshape(d.among((), (1,)))), values, **axis)


MAKERS: dict[str, tuple[float, Maker]] = {
    "Gather": (2, gather),
    "GatherElements": (1, gather_elements),
    "GatherND": (1, gather_nd),
    "ScatterElements": (1, scatter_elements),
    "ScatterND": (1, scatter_nd),
    "OneHot": (0.5, one_hot),
}
