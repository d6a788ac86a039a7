"""Convolutions and pools in NumPy, after ONNX's text: onnxruntime and ONNX's reference differ in too many corners.

Sums are made in f64.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.numpy_pointwise import Undetermined
from tests.fuzz.recipe import Node

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the taps of all windows lie: `at[d]` is [windows, taps] in dimension d, 0 being the image's first."""

    at: list[Array]
    sizes: tuple[int, ...]
    after: list[int]
    """Pads behind the image; a last window of ceil_mode may reach further."""
    before: list[int]

    def mask(self, padded: bool = False) -> Array:
        """Which taps lie in the image (or its pads): [windows…, taps…]."""
        rank = len(self.sizes)
        found = np.ones((1,) * (2 * rank), bool)
        for d, (at, size) in enumerate(zip(self.at, self.sizes)):
            low, high = (-self.before[d], size + self.after[d]) if padded else (0, size)
            shape = [1] * (2 * rank)
            shape[d], shape[rank + d] = at.shape
            found = found & ((at >= low) & (at < high)).reshape(shape)
        return found

    def patches(self, x: Array) -> Array:
        """The elements under every tap, [n, c, windows…, taps…]; any element where the tap lies outside."""
        rank = len(self.sizes)
        for d, (at, size) in enumerate(zip(self.at, self.sizes)):
            axis = 2 + 2 * d
            if size == 0:
                x = np.zeros((*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]), x.dtype)
            else:
                x = np.take(x, np.clip(at, 0, size - 1), axis=axis)
        return x.transpose(0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))


def windows_of(node: Node, sizes: tuple[int, ...], kernel: tuple[int, ...] | None = None) -> Windows:
    """The windows of a pool, or of a convolution with weights of size `kernel`."""
    rank = len(sizes)
    kernel = kernel or tuple(node.attributes["kernel_shape"])
    strides: list[int] = list(node.attributes.get("strides", [1] * rank))
    dilations: list[int] = list(node.attributes.get("dilations", [1] * rank))
    pads: list[int] = list(node.attributes.get("pads", [0] * (2 * rank)))
    before, after = pads[:rank], pads[rank:]
    auto: str = node.attributes.get("auto_pad", "NOTSET")
    ceil = bool(node.attributes.get("ceil_mode", 0))
    at: list[Array] = []
    for d, (n, k, s, v) in enumerate(zip(sizes, kernel, strides, dilations)):
        reach = (k - 1) * v + 1
        if auto.startswith("SAME"):
            total = (-(-n // s) - 1) * s + reach - n
            if total < 0:
                raise Undetermined("windows smaller than their strides are placed differently by every implementation")
            before[d] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            after[d] = total - before[d]
        room = n + before[d] + after[d] - reach
        if room < 0:
            raise Undetermined("a window is larger than the image")
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + before[d]:
            count -= 1  # windows that start in the padding behind the image are ignored
        at.append(np.arange(count)[:, None] * s + np.arange(k)[None, :] * v - before[d])
    return Windows(at, sizes, after, before)


def conv(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    windows, rank, groups = windows_of(node, x.shape[2:], w.shape[2:]), x.ndim - 2, int(node.attributes.get("group", 1))
    patches = np.where(windows.mask(), windows.patches(x), 0).astype(np.float64)
    counts, taps = patches.shape[2 : 2 + rank], prod(w.shape[2:])
    left = patches.reshape(x.shape[0], groups, x.shape[1] // groups, prod(counts), taps)
    right = w.reshape(groups, w.shape[0] // groups, w.shape[1], taps).astype(np.float64)
    y = np.einsum("ngipk,goik->ngop", left, right, optimize=True).reshape(x.shape[0], w.shape[0], *counts)
    return (y if bias is None else y + bias.reshape(-1, *(1,) * rank)).astype(x.dtype)


def max_pool(node: Node, x: Array) -> list[Array]:
    """The largest element of every window, NaN being the largest; the first one's position in row-major order."""
    w, rank = windows_of(node, x.shape[2:]), x.ndim - 2
    mask = w.mask()
    taps = tuple(range(2 + rank, 2 + 2 * rank))
    if not mask.any(axis=tuple(t - 2 for t in taps)).all():
        raise Undetermined("a window lies wholly outside the image")
    patches = w.patches(x)
    largest = np.max(np.where(mask, patches, -np.inf).astype(x.dtype), axis=taps)
    widened = largest.reshape(*largest.shape, *(1,) * rank)
    chosen = mask & ((patches == widened) | np.isnan(patches))
    first = np.argmax(chosen.reshape(*largest.shape, prod(chosen.shape[2 + rank :])), axis=-1)
    column_major = bool(node.attributes.get("storage_order", 0))
    flat = np.zeros((), np.int64)
    for d, at in enumerate(w.at):
        step = prod(w.sizes[:d]) if column_major else prod(w.sizes[d + 1 :])
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = at.shape
        flat = flat + (at * step).reshape(shape)
    flat = flat.reshape(1, 1, *largest.shape[2:], prod(chosen.shape[2 + rank :]))
    position = np.take_along_axis(np.broadcast_to(flat, (*largest.shape, flat.shape[-1])), first[..., None], -1)[..., 0]
    image = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * rank)
    return [largest, (image * prod(w.sizes) + position).astype(np.int64)]


def average_pool(node: Node, x: Array) -> Array:
    """Elements that a last window of ceil_mode has beyond the pads are never counted."""
    w, rank = windows_of(node, x.shape[2:]), x.ndim - 2
    taps = tuple(range(2 + rank, 2 + 2 * rank))
    total = np.sum(np.where(w.mask(), w.patches(x), 0).astype(np.float64), axis=taps)
    count = np.sum(w.mask(padded=bool(node.attributes.get("count_include_pad", 0))), axis=tuple(t - 2 for t in taps))
    if not count.all():
        raise Undetermined("a window lies wholly outside the image")
    return (total / count).astype(x.dtype)


def lp_pool(node: Node, x: Array) -> Array:
    w, rank, p = windows_of(node, x.shape[2:]), x.ndim - 2, int(node.attributes.get("p", 2))
    powers = (
        np.abs(np.where(w.mask(), w.patches(x), 0)).astype(x.dtype) ** p
    )  # small ones underflow as they do elsewhere
    total = np.sum(powers.astype(np.float64), axis=tuple(range(2 + rank, 2 + 2 * rank)))
    return (total ** (1 / p)).astype(x.dtype)


def global_pool(node: Node, x: Array) -> Array:
    axes = tuple(range(2, x.ndim))
    match node.op:
        case "GlobalMaxPool" if not prod(x.shape[2:]):
            raise Undetermined("nothing is the largest")
        case "GlobalMaxPool":
            return np.max(x, axis=axes, keepdims=True)
        case "GlobalAveragePool":
            return (np.sum(x.astype(np.float64), axis=axes, keepdims=True) / prod(x.shape[2:])).astype(x.dtype)
        case _:
            p = int(node.attributes.get("p", 2))
            total = np.sum((np.abs(x) ** p).astype(np.float64), axis=axes, keepdims=True)
            return (total ** (1 / p)).astype(x.dtype)


def conv_transpose(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Every element of the image, times the weights, added where its window lies; then the pads are cut off."""
    sizes, kernel = x.shape[2:], w.shape[2:]
    rank, groups = len(sizes), int(node.attributes.get("group", 1))
    strides: list[int] = list(node.attributes.get("strides", [1] * rank))
    dilations: list[int] = list(node.attributes.get("dilations", [1] * rank))
    extra: list[int] = list(node.attributes.get("output_padding", [0] * rank))
    auto: str = node.attributes.get("auto_pad", "NOTSET")
    full = [s * (n - 1) + (k - 1) * v + 1 + e for s, n, k, v, e in zip(strides, sizes, kernel, dilations, extra)]
    wanted: list[int] | None = node.attributes.get("output_shape")
    if wanted is None and auto.startswith("SAME"):
        wanted = [n * s for n, s in zip(sizes, strides)]
    if wanted is not None:
        total = [f - o for f, o in zip(full, wanted)]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        after = [t - b for t, b in zip(total, before)]
    else:
        pads = list(node.attributes.get("pads", [0] * (2 * rank))) if auto != "VALID" else [0] * (2 * rank)
        before, after = pads[:rank], pads[rank:]
    if any(t < 0 for t in (*before, *after)) or any(f - b - a < 1 for f, b, a in zip(full, before, after)):
        raise Undetermined("the output is larger than what the windows cover, or empty")
    if 0 in sizes:
        raise Undetermined("windows of an empty image")
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *sizes).astype(np.float64)
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).astype(np.float64)
    whole = np.zeros((x.shape[0], groups, w.shape[1], *full))
    for tap in np.ndindex(*kernel):
        piece = np.einsum("ngi...,gio->ngo...", grouped, weights[(..., *tap)])
        spans = zip(tap, dilations, strides, sizes)
        whole[(..., *(slice(k * v, k * v + s * (n - 1) + 1, s) for k, v, s, n in spans))] += piece
    cut = whole[(..., *(slice(b, f - a) for b, f, a in zip(before, full, after)))]
    y = cut.reshape(x.shape[0], groups * w.shape[1], *cut.shape[3:])
    y = y if bias is None else y + bias.reshape(-1, *(1,) * rank)
    return y.astype(x.dtype)


def col2im(node: Node, x: Array, image: Array, block: Array) -> Array:
    """Every column added where its window lies, in the padded image; then the pads are cut off."""
    sizes, kernel = [int(v) for v in image], [int(v) for v in block]
    rank = len(sizes)
    strides: list[int] = list(node.attributes.get("strides", [1] * rank))
    dilations: list[int] = list(node.attributes.get("dilations", [1] * rank))
    pads: list[int] = list(node.attributes.get("pads", [0] * (2 * rank)))
    full = [n + p + q for n, p, q in zip(sizes, pads, pads[rank:])]
    counts = [(f - (k - 1) * v - 1) // s + 1 for f, k, v, s in zip(full, kernel, dilations, strides)]
    dtype = np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype
    columns = x.reshape(x.shape[0], x.shape[1] // prod(kernel), *kernel, *counts).astype(dtype)
    whole = np.zeros((*columns.shape[:2], *full), dtype)
    for tap in np.ndindex(*kernel):
        spans = zip(tap, dilations, strides, counts)
        at = (..., *(slice(k * v, k * v + s * (c - 1) + 1, s) for k, v, s, c in spans))
        whole[at] += columns[(slice(None), slice(None), *tap)]
    return whole[(..., *(slice(p, p + n) for p, n in zip(pads, sizes)))].astype(x.dtype)
