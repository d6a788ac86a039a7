"""Row-major shapes: text, strides, dimensions that a reshape keeps together, names of open dimensions, and padding.

`graph.padding` proves which elements of the results of a model are valid (`Padding`); a `PaddedModel` runs such models
and cuts these elements out (`valid_part`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.codec import Count, Row, Size

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Padding(Row):
    """A padded dimension: index k is valid if `(k // inner) % size < valid`. A plain prefix has `inner` 1."""

    inner: Count
    size: Count
    valid: Size

    def mask(self, extent: int) -> NDArray[np.bool_]:
        return (np.arange(extent) // self.inner) % self.size < self.valid


Claim = Mapping[int, Padding]
"""The padded dimensions of a value. All remaining dimensions have the same extents in both graphs."""


def valid_part(array: Array, claim: Claim) -> Array:
    """Returns the valid elements of an array as an array of their shape; a view if possible."""
    for d, p in claim.items():
        extent = array.shape[d]
        outer = extent // (p.inner * p.size)
        if outer == 1 and p.inner == 1:
            array = array[(slice(None),) * d + (slice(p.valid),)]
            continue
        before, after = array.shape[:d], array.shape[d + 1 :]
        apart = array.reshape(*before, outer, p.size, p.inner, *after)
        kept = apart[(slice(None),) * (d + 1) + (slice(p.valid),)]
        array = kept.reshape(*before, prod((outer, p.valid, p.inner)), *after)
    return array


Runs = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Pairs of dimensions of a shape and dimensions of its reshaped form that hold the same elements."""


def shape_text(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"


def shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns shapes by name as `--shapes` takes them: x=1x3x224x224, y=1x10."""
    return ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())


def anonymous(port: str, position: int) -> str:
    """Returns the name of a dimension that a file leaves open without a name: no two of them are equal."""
    return f"{port}[{position}]"


def dimensions_text(port: str, dimensions: Sequence[int | str]) -> list[str]:
    """Returns the dimensions of an input or output for people: an open dimension by its name, or as `any`."""
    return ["any" if d == anonymous(port, k) else str(d) for k, d in enumerate(dimensions)]


@lru_cache(maxsize=16384)
def row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a contiguous row-major array."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(1, shape[d + 1])
    return tuple(strides)


def matching_runs(source: Sequence[int], target: Sequence[int]) -> Runs:
    """Returns the shortest runs of dimensions with equal element counts in both shapes, ignoring extents of 1.

        (2, 3, 4, 5), (6, 20)  ->  ((0, 1), (0,)), ((2, 3), (1,))

    Both shapes hold equally many elements, and at least one.
    """
    left = [d for d, n in enumerate(source) if n > 1]
    right = [d for d, n in enumerate(target) if n > 1]
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    s = t = 0
    while s < len(left):
        first_s, first_t = s, t
        held, wanted = source[left[s]], target[right[t]]
        while held != wanted:
            if held < wanted:
                s += 1
                held *= source[left[s]]
            else:
                t += 1
                wanted *= target[right[t]]
        s, t = s + 1, t + 1
        runs.append((tuple(left[first_s:s]), tuple(right[first_t:t])))
    return tuple(runs)
