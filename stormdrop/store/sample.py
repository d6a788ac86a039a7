"""A stratified sample of the trials of many tasks, if there are more than the cost model accepts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def quotas(sizes: Ints, limit: int) -> Ints:
    """Returns the number of rows of each group: all of a small group, an equal number of each large group; `limit` in
    all.
    """
    given = np.zeros_like(sizes)
    left = min(limit, int(sizes.sum()))
    for done, k in enumerate(np.argsort(sizes, kind="stable").tolist()):
        given[k] = min(int(sizes[k]), left // (len(sizes) - done))
        left -= int(given[k])
    return given


def sampled(group: Ints, seconds: NDArray[np.float64], limit: int) -> Ints:
    """Returns the places of at most `limit` rows, in order: of each group its fastest, and rows spread evenly over its
    age.

    `seconds` are NaN for failures.
    """
    if len(group) <= limit:
        return np.arange(len(group))
    _, group, sizes = np.unique(group, return_inverse=True, return_counts=True)
    chosen: list[Ints] = []
    for g, quota in enumerate(quotas(sizes, limit).tolist()):
        rows = np.flatnonzero(group == g)
        spread = rows[np.linspace(0, len(rows) - 1, quota).round().astype(np.int64)]
        if quota and np.isfinite(seconds[rows]).any():
            fastest = rows[np.nanargmin(seconds[rows])]
            spread[np.abs(spread - fastest).argmin()] = fastest
        chosen.append(spread)
    return np.sort(np.concatenate(chosen))
