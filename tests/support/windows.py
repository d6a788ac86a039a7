"""ONNX's sliding windows spelled out in loops: which elements each of them holds. Slow, and for small shapes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Index = tuple[int, ...]


def pool_geometry(sizes: Sequence[int], attributes: dict[str, Any]) -> tuple[Index, Index]:
    """How many windows there are, and how many pixels stand before the image, by the formulas of ONNX's MaxPool."""
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    pads, auto = attributes.get("pads", [0] * 2 * rank), attributes.get("auto_pad", "NOTSET")
    counts: list[int] = []
    before: list[int] = []
    for d, size in enumerate(sizes):
        reach = dilations[d] * (kernel[d] - 1) + 1
        if auto.startswith("SAME"):
            counts.append(-(-size // strides[d]))
            total = max(0, (counts[d] - 1) * strides[d] + reach - size)
            before.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
            continue
        before.append(pads[d])
        room = size + pads[d] + pads[rank + d] - reach
        counts.append(-(-room // strides[d]) + 1 if attributes.get("ceil_mode") else room // strides[d] + 1)
        if attributes.get("ceil_mode") and (counts[d] - 1) * strides[d] >= size + pads[d]:
            counts[d] -= 1
    return tuple(counts), tuple(before)


def pool_windows(x: Array, attributes: dict[str, Any]) -> Iterator[tuple[Index, list[Index]]]:
    """Of every window of an image [n, c, spatial…] the index of its result, and those of its elements in row-major
    order.
    """
    sizes, kernel = x.shape[2:], attributes["kernel_shape"]
    counts, before = pool_geometry(sizes, attributes)
    rank = len(kernel)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    for n, c, *at in product(*map(range, (*x.shape[:2], *counts))):
        taps = [
            [o * s + k * d - b for k in range(size)] for o, s, d, b, size in zip(at, strides, dilations, before, kernel)
        ]
        held = [(n, c, *i) for i in product(*taps) if all(0 <= p < size for p, size in zip(i, sizes))]
        yield (n, c, *at), held


def max_pool(x: Array, attributes: dict[str, Any]) -> tuple[Array, Array]:
    """The first maximum of every window and its position; NaN is the largest value, a window without elements holds
    -inf.
    """
    counts, _ = pool_geometry(x.shape[2:], attributes)
    values = np.full((*x.shape[:2], *counts), -np.inf, x.dtype)
    positions = np.zeros(values.shape, np.int64)
    order = "F" if attributes.get("storage_order") else "C"
    area = prod(x.shape[2:])
    for result, held in pool_windows(x, attributes):
        pixel = tuple(n - 1 for n in x.shape[2:])
        if held:
            best = held[int(np.argmax([x[i] for i in held]))]  # the first one, or the first NaN
            values[result], pixel = x[best], best[2:]
        plane = result[0] * x.shape[1] + result[1]
        positions[result] = plane * area + int(np.ravel_multi_index(pixel, x.shape[2:], order=order))
    return values, positions
