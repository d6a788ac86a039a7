"""Sums of products for the reference interpreter, by NumPy's matrix product.

    Y[n, co, h, w] = Σ_{ci,kh,kw} P[n, ci, h + kh, w + kw] · W[co, ci, kh, kw]
    # P: the windows as a matrix [n·h·w, ci·kh·kw];  W: a matrix [ci·kh·kw, co]

Each factor is evaluated on the axes that it reads, and on no other: a thousand times fewer points than their product
has. Only the order of the additions differs from the plain interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.expr import FLOATS, Axis, Bin, Expr, walk
from stormdrop.ir.tensor import Compute

Array = NDArray[Any]


def factors_of(c: Compute) -> tuple[Expr, Expr] | None:
    """Returns both factors of a sum of float products; None for any other compute, and if a dimension is empty."""
    match c.body:
        case Bin("mul", a, b) if (
            c.combiner == "sum" and c.body.dtype in FLOATS and all(x.extent > 0 for x in (*c.axes, *c.reduce_axes))
        ):
            return a, b
        case _:
            return None


def contraction_boxes(c: Compute, factors: Sequence[Expr], limit: int) -> Iterator[tuple[slice, ...]]:
    """Cuts the output into boxes in which neither factor nor the output has more than `limit` points, if possible."""
    read = [{a for a in walk(factor) if isinstance(a, Axis)} for factor in factors]
    inner = [math.prod(a.extent for a in c.reduce_axes if a in axes) for axes in read]
    groups = [([d for d, a in enumerate(c.axes) if a in axes], n) for axes, n in zip(read, inner)]
    groups.append((list(range(len(c.axes))), 1))
    waiting = [tuple(slice(0, a.extent) for a in c.axes)]
    while waiting:
        box = waiting.pop()
        lengths = [part.stop - part.start for part in box]
        points, dimensions = max((math.prod(lengths[d] for d in group) * n, group) for group, n in groups)
        longest = max(dimensions, key=lengths.__getitem__, default=None)
        if points <= limit or longest is None or lengths[longest] == 1:
            yield box
            continue
        start, stop = box[longest].start, box[longest].stop
        middle = (start + stop) // 2
        for part in (slice(middle, stop), slice(start, middle)):
            waiting.append((*box[:longest], part, *box[longest + 1 :]))


def contracted(a: Array, b: Array, shape: Sequence[int], inner: Sequence[int]) -> Array:
    """Returns Σ a · b over the last dimensions; both arrays broadcast to `shape` and then `inner`."""
    rank, kept = len(shape) + len(inner), range(len(shape))
    a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    a, b = (np.broadcast_to(x, (*x.shape[: len(shape)], *inner)) for x in (a, b))
    rows = [d for d in kept if b.shape[d] == 1]
    columns = [d for d in kept if a.shape[d] == 1 and b.shape[d] > 1]
    batch = [d for d in kept if a.shape[d] > 1 and b.shape[d] > 1]
    sums = list(range(len(shape), rank))
    left = np.transpose(a, [*batch, *rows, *sums, *columns]).reshape(_extents(a, batch, rows, sums))
    right = np.transpose(b, [*batch, *sums, *columns, *rows]).reshape(_extents(b, batch, sums, columns))
    order = [*batch, *rows, *columns]
    product = np.matmul(left, right).reshape([max(a.shape[d], b.shape[d]) for d in order])
    return np.broadcast_to(np.transpose(product, np.argsort(order)), tuple(shape))


def _extents(x: Array, *groups: Sequence[int]) -> list[int]:
    """Returns the extents of an array after joining its dimensions in groups."""
    return [math.prod(x.shape[d] for d in group) for group in groups]
