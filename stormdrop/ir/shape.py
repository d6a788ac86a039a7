"""Row-major shapes: their strides, and which dimensions a reshape keeps together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

Runs = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Pairs of dimensions of a shape and dimensions of its reshaped form that hold the same elements."""


@lru_cache(maxsize=16384)
def row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a contiguous row-major array."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(1, shape[d + 1])
    return tuple(strides)


def matching_runs(source: Sequence[int], target: Sequence[int]) -> Runs:
    """The shortest runs of dimensions that hold equally many elements in both shapes, without those of extent 1.

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
