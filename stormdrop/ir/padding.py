"""Padded arrays: the valid elements along a padded dimension, and cutting them out.

`graph.padding` proves which elements of a model's results are valid; `model.padded_model` runs such models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
