"""What several makers draw alike: axes, subsets of axes, weights and indices in all the ways a model may hold them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tests.fuzz import values
from tests.fuzz.draft import TYPES, Draft, Refused

Array = NDArray[Any]
MOST_MACS = 3_000_000
INT64, INT32 = np.iinfo(np.int64), np.iinfo(np.int32)


def anything(d: Draft, least_rank: int = 0, most_rank: int = 5, most: int = 5_000) -> str:
    """A value of any type."""
    ranks = [r for r in (0, 1, 1, 2, 2, 3, 3, 4, 4, 5) if least_rank <= r <= most_rank]
    rank = d.among(*ranks)
    return d.take(lambda: d.dims(rank, most), TYPES, lambda s: least_rank <= len(s) <= most_rank and prod(s) <= most)


def affordable(macs: int) -> None:
    """Refuse a node of too many multiply-adds."""
    if macs > MOST_MACS:
        raise Refused("too much work")


def axis_of(d: Draft, rank: int) -> int:
    """A dimension, counted from the front. Raises Refused for a scalar."""
    if rank == 0:
        raise Refused("a scalar has no axis")
    return d.whole(0, rank - 1)


def either_sign(d: Draft, axis: int, rank: int) -> int:
    """The same dimension, sometimes counted from the end."""
    return axis - rank if d.chance(0.35) else axis


def some_axes(d: Draft, rank: int, least: int = 0) -> list[int]:
    """Some dimensions in any order, each counted from either end."""
    count = d.whole(min(least, rank), rank)
    return [either_sign(d, int(a), rank) for a in d.rng.permutation(rank)[:count]]


def index_vector(d: Draft, some: Sequence[int]) -> str:
    """A constant vector of i64, or of i32 where the numbers fit."""
    info = np.iinfo(np.int32)
    narrow = d.chance(0.25) and all(info.min <= v <= info.max for v in some)
    return d.constant(np.array(some, np.int32 if narrow else np.int64))


def tensor(d: Draft, shape: Sequence[int], dtype: DTypeLike, scale: float = 1.0) -> str:
    """Floats of moderate size, such as weights: a constant, an input, or computed by a node from one of them."""
    array = np.asarray(scale * d.rng.standard_normal(tuple(shape))).astype(dtype)
    name = d.constant(array) if d.chance(0.65) else d.input(shape, array=array)
    return d.one(d.among("Neg", "Identity", "Tanh", "Abs"), name) if d.chance(0.15) else name


def indices(d: Draft, shape: Sequence[int], extent: int, dtypes: Sequence[DTypeLike] = (np.int64, np.int32)) -> str:
    """Indices into a dimension of `extent`, of either sign: constant, given at run time, or computed inside the model.

    Raises Refused where the dimension is empty.
    """
    if extent == 0 and np.prod(shape, dtype=np.int64) == 0:
        return d.constant(np.zeros(shape, d.among(*dtypes)))
    dtype = d.among(*dtypes)
    match d.among("given", "given", "given", "front", "ArgMax", "Mod", "Sub", "Cast", "Where"):
        case "front":
            return d.within(shape, 0, extent, dtype)
        case "ArgMax" if 0 < extent <= 40 and len(shape) <= 3 and 0 not in shape and dtype == np.int64:
            x = d.input((*shape, extent), np.int32 if d.special else d.among(np.float32, np.int32))
            return d.one(d.among("ArgMax", "ArgMin"), x, axis=-1, keepdims=0)
        case "Mod" if extent > 0:
            return d.one("Mod", d.input(shape, dtype), d.constant(np.array(extent, dtype)))
        case "Sub":
            return d.one("Sub", d.within(shape, 0, extent, dtype), d.constant(np.array(extent, dtype)))
        case "Cast":
            other = np.int32 if dtype == np.int64 else np.int64
            return d.one("Cast", d.within(shape, -extent, extent, other), to=7 if dtype == np.int64 else 6)
        case "Where":
            condition = d.input(shape, np.bool_)
            return d.one("Where", condition, d.within(shape, -extent, extent, dtype), d.within(shape, 0, extent, dtype))
        case _:
            return d.within(shape, -extent, extent, dtype)


def drawn(d: Draft, shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Random data, with special values where the draft has them."""
    return values.draw(d.rng, tuple(shape), np.dtype(dtype), d.special)


def fixed(d: Draft, array: Array) -> str:
    """This array, as a constant or as an input."""
    return d.constant(array) if d.chance(0.5) else d.input(array.shape, array=array)


def sometimes(d: Draft, probability: float = 0.5, **attributes: Any) -> dict[str, Any]:
    """Each attribute given or, where ONNX has the same default, left out."""
    return {k: v for k, v in attributes.items() if d.chance(probability)}
