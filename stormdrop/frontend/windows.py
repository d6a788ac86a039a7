"""ONNX's convolutions, pools and regions: pads resolved, means as sums times constants, bias as an addition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from math import prod

import numpy as np

from stormdrop.frontend.movement import bounded
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.frontend.reductions import mean, per_channel
from stormdrop.operators.node import Attribute, Value, shown
from stormdrop.operators.window import Window

LAYOUT = "NCHW"
MOST_PIXELS = 1 << 31
"""The longest reach of a window or pad: positions stay far from the end of 64 bits."""


def attributes_of(w: Window) -> dict[str, Attribute]:
    return {**{f.name: getattr(w, f.name) for f in fields(w)}, "layout": LAYOUT}


def _listed(n: NodeReader, key: str, rank: int) -> tuple[int, ...]:
    values = n.integers(key, [1] * rank)
    if len(values) != rank or any(not 1 <= v <= MOST_PIXELS for v in values):
        raise n.fail(f"{key} {values} do not fit {rank} spatial dimensions")
    return tuple(values)


def _pads(n: NodeReader, rank: int) -> tuple[int, ...]:
    pads = n.integers("pads", [0] * (2 * rank))
    if len(pads) != 2 * rank or not all(0 <= p <= MOST_PIXELS for p in pads):
        raise n.fail(f"pads {pads} do not fit {rank} spatial dimensions")
    return pads


def window_of(n: NodeReader, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Window, tuple[int, ...]]:
    """Returns the window, and the file's pads behind the image: with ceil_mode the window's pads may be larger."""
    rank = len(sizes)
    strides, dilations = _listed(n, "strides", rank), _listed(n, "dilations", rank)
    auto, pads = n.text("auto_pad", "NOTSET"), _pads(n, rank)
    before, after = list(pads[:rank]), list(pads[rank:])
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        for d in range(rank):
            reach = dilations[d] * (kernel[d] - 1) + 1
            total = max(0, (-(-sizes[d] // strides[d]) - 1) * strides[d] + reach - sizes[d])
            before[d] = total // 2 if auto == "SAME_UPPER" else -(-total // 2)
            after[d] = total - before[d]
    elif auto == "VALID":
        before, after = [0] * rank, [0] * rank
    elif auto != "NOTSET":
        raise n.fail(f"unknown auto_pad {shown(auto)}")
    given = tuple(after)
    if n.integer("ceil_mode", 0):
        for d in range(rank):
            reach = dilations[d] * (kernel[d] - 1) + 1
            count = -(-(before[d] + sizes[d] + after[d] - reach) // strides[d]) + 1
            # A window must start inside the image or the pad before it.
            count -= (count - 1) * strides[d] >= sizes[d] + before[d]
            after[d] = max(0, (count - 1) * strides[d] + reach - sizes[d] - before[d])
    return Window(tuple(kernel), strides, dilations, tuple(before), tuple(after)), given


def _image(n: NodeReader, x: Value) -> None:
    if x.rank < 3:
        raise n.fail(f"{x} is no image [n, c, spatial…]")


def _conv(n: NodeReader) -> Value:
    b, x, w = n.build, n.input(0), n.input(1)
    _image(n, x)
    if w.rank != x.rank or n.integers("kernel_shape", w.shape[2:]) != w.shape[2:]:
        raise n.fail(f"weights {w} do not fit {x}")
    groups = n.integer("group", 1)
    if groups < 1 or w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        raise n.fail(f"weights {w} do not fit {x} in {groups} groups")
    window, _ = window_of(n, x.shape[2:], w.shape[2:])
    y = b.emit("Conv", x, w, groups=groups, **attributes_of(window))
    return _biased(n, y)


def _biased(n: NodeReader, y: Value) -> Value:
    bias = n.optional(2)
    return y if bias is None else n.build.emit("Add", y, per_channel(n.build, bias, y.rank))


def _conv_transpose(n: NodeReader) -> Value:
    b, x, w = n.build, n.input(0), n.input(1)
    _image(n, x)
    rank, groups = x.rank - 2, n.integer("group", 1)
    if w.rank != x.rank or w.shape[0] != x.shape[1] or groups < 1 or w.shape[0] % groups:
        raise n.fail(f"weights {w} do not fit {x} in {groups} groups")
    kernel = w.shape[2:]
    strides, dilations = _listed(n, "strides", rank), _listed(n, "dilations", rank)
    extra = n.integers("output_padding", [0] * rank)
    pads, auto = _pads(n, rank), n.text("auto_pad", "NOTSET")
    if len(extra) != rank or not all(0 <= e <= MOST_PIXELS for e in extra):
        raise n.fail(f"output_padding {extra} does not fit {rank} spatial dimensions")
    full = [s * (e - 1) + o + (k - 1) * d + 1 for s, e, o, k, d in zip(strides, x.shape[2:], extra, kernel, dilations)]
    wanted = n.integers("output_shape") if n.has("output_shape") else None
    wanted = wanted[-rank:] if wanted else None
    if wanted is not None and len(wanted) != rank:
        raise n.fail(f"output_shape {wanted} does not fit {rank} spatial dimensions")
    if auto in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [e * s for e, s in zip(x.shape[2:], strides)]
    if wanted is not None:
        total = [max(0, f - o) for f, o in zip(full, wanted)]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        extents = list(wanted)
    else:
        before = [0] * rank if auto == "VALID" else pads[:rank]
        behind = [0] * rank if auto == "VALID" else pads[rank:]
        extents = [f - p - q for f, p, q in zip(full, before, behind)]
    if min(extents) < 1:
        raise n.fail(f"pads leave no element of an output of {full}")
    window = Window(tuple(kernel), strides, dilations, tuple(before), tuple(0 for _ in before))
    y = b.emit("ConvTranspose", x, w, groups=groups, extents=tuple(extents), **attributes_of(window))
    return _biased(n, y)


def _kernel(n: NodeReader, x: Value) -> tuple[int, ...]:
    _image(n, x)
    kernel = n.integers("kernel_shape")
    if len(kernel) != x.rank - 2 or not all(1 <= k <= MOST_PIXELS for k in kernel):
        raise n.fail(f"kernel {kernel} does not fit {x}")
    return kernel


def _max_pool(n: NodeReader) -> Results:
    x = n.input(0)
    window, _ = window_of(n, x.shape[2:], _kernel(n, x))
    y = n.build.emit("MaxPool", x, **attributes_of(window))
    if not n.wanted(1):
        return y
    return [y, n.build.emit("MaxPoolIndices", x, column_major=n.integer("storage_order", 0), **attributes_of(window))]


def _average_pool(n: NodeReader) -> Value:
    """Imports AveragePool: a sum over the window times 1 / (number of counted pixels), for every output position."""
    x, b = n.input(0), n.build
    window, given = window_of(n, x.shape[2:], _kernel(n, x))
    padded = bool(n.integer("count_include_pad", 0))
    y = b.emit("SumPool", x, **attributes_of(window))
    for count, k in zip(y.shape[2:], window.kernel):
        bounded(n, count * k)
    counts = [_taps(window, d, x.shape[2 + d], given[d], padded) for d in range(x.rank - 2)]
    if all(len(set(c.tolist())) == 1 for c in counts):
        return b.emit("Mul", y, b.number(1 / prod(int(c[0]) for c in counts), y))
    share = np.ones((1,) * len(counts))
    for d, c in enumerate(counts):
        share = share / c.reshape([-1 if k == d else 1 for k in range(len(counts))])
    return b.emit("Mul", y, b.constant(share, y.dtype))


def _taps(w: Window, d: int, size: int, after: int, padded: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the number of taps in the image, for every output position of a window; with `padded`, pads count."""
    count = (w.before[d] + size + w.after[d] - w.dilations[d] * (w.kernel[d] - 1) - 1) // w.strides[d] + 1
    at = np.arange(count)[:, None] * w.strides[d] + np.arange(w.kernel[d])[None, :] * w.dilations[d] - w.before[d]
    low, high = (-w.before[d], size + after) if padded else (0, size)
    return np.maximum(1.0, np.sum((at >= low) & (at < high), axis=1))


def _lp(n: NodeReader, total: Callable[[Value], Value]) -> Value:
    """Returns the p-norm of the elements that `total` sums."""
    x, p = n.input(0), n.integer("p", 2)
    if p < 1:
        raise n.fail(f"p must be at least 1, got {p}")
    b = n.build
    powers = b.emit("Mul", x, x) if p == 2 else b.emit("PowConst", b.emit("Abs", x), exponent=float(p))
    return b.emit("PowConst", total(powers), exponent=1 / p)


def _lp_pool(n: NodeReader) -> Value:
    x = n.input(0)
    window, _ = window_of(n, x.shape[2:], _kernel(n, x))
    return _lp(n, lambda powers: n.build.emit("SumPool", powers, **attributes_of(window)))


def _global(n: NodeReader) -> Value:
    b, x = n.build, n.input(0)
    axes = list(range(2, x.rank))
    match n.op:
        case "GlobalAveragePool":
            return mean(b, x, axes)
        case "GlobalMaxPool":
            return b.reduce("Max", x, axes)
        case _:
            return _lp(n, lambda powers: b.reduce("Sum", powers, axes))


def _lrn(n: NodeReader) -> Value:
    """Imports x / (bias + alpha / size · Σ over neighbouring channels of x²) ^ beta."""
    b, x, size = n.build, n.input(0), n.integer("size")
    _image(n, x)
    if not 1 <= size <= MOST_PIXELS:
        raise n.fail(f"a size of {size} does not fit {x}")
    if not x.size:
        return x
    flat = b.reshape(b.emit("Mul", x, x), (x.shape[0], 1, x.shape[1], prod(x.shape[2:])))
    window = Window((size, 1), (1, 1), (1, 1), ((size - 1) // 2, 0), (size // 2, 0))
    total = b.reshape(b.emit("SumPool", flat, **attributes_of(window)), x.shape)
    alpha, bias = (b.number(v, x) for v in (n.number("alpha", 1e-4) / size, n.number("bias", 1.0)))
    base = b.emit("Add", b.emit("Mul", total, alpha), bias)
    return b.emit("Mul", x, b.emit("PowConst", base, exponent=-n.number("beta", 0.75)))


def _max_unpool(n: NodeReader) -> Value:
    """Imports MaxUnpool: values are scattered to flat positions in zeros."""
    b, x, positions = n.build, n.input(0), n.input(1)
    kernel = _kernel(n, x)
    strides, pads = _listed(n, "strides", len(kernel)), _pads(n, len(kernel))
    sizes = [(e - 1) * s - p - q + k for e, s, k, p, q in zip(x.shape[2:], strides, kernel, pads, pads[len(kernel) :])]
    if min(sizes) < 1 or positions.shape != x.shape:
        raise n.fail(f"pads {pads} or positions {positions} do not fit {x}")
    shape = (*x.shape[:2], *sizes)
    zeros = b.expand(b.number(0, x), (prod(shape),))
    at, values = (b.reshape(v, (x.size,)) for v in (positions, x))
    flat = b.emit("ScatterElements", zeros, at, values, axis=0, reduction="none")
    image = b.reshape(flat, shape)
    if n.optional(2) is None:
        return image
    wanted = [int(s) for s in n.vector(2)]  # positions still count in the shape that follows from the window
    if len(wanted) != len(shape) or wanted[:2] != list(shape[:2]) or any(w < s for w, s in zip(wanted, shape)):
        raise n.fail(f"an output of {wanted} does not hold {list(shape)}")
    behind = tuple(w - s for w, s in zip(wanted, shape))
    if not any(behind):
        return image
    return b.emit("Pad", image, before=(0,) * len(shape), after=behind, mode="constant", value=0.0)


def _col2im(n: NodeReader) -> Value:
    b, x = n.build, n.input(0)
    image, block = [int(v) for v in n.vector(1)], [int(v) for v in n.vector(2)]
    rank = len(image)
    strides, dilations, pads = _listed(n, "strides", rank), _listed(n, "dilations", rank), _pads(n, rank)
    if x.rank != 3 or len(block) != rank or not all(1 <= v <= MOST_PIXELS for v in (*image, *block)):
        raise n.fail(f"{x} does not fit blocks of {block} in an image of {image}")
    window = Window(tuple(block), strides, dilations, tuple(pads[:rank]), tuple(pads[rank:]))
    counts = window.extents(image)
    channels = x.shape[1] // prod(block)
    if x.shape[1:] != (channels * prod(block), prod(counts)):
        raise n.fail(f"{x} does not fit blocks of {block} in an image of {image}")
    columns = b.reshape(x, (x.shape[0], channels, *block, *counts))
    return b.emit("Fold", columns, extents=tuple(image), **attributes_of(window))


def _roi_align(n: NodeReader) -> Value:
    x, rois, batches = (n.input(k) for k in range(3))
    samples, mode = n.integer("sampling_ratio", 0), n.text("mode", "avg")
    default = "half_pixel" if n.version >= 16 else "output_half_pixel"
    transformation = n.text("coordinate_transformation_mode", default)
    extents = n.integer("output_height", 1), n.integer("output_width", 1)
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batches.shape != rois.shape[:1] or not x.size:
        raise n.fail(f"regions {rois} of images {batches} do not fit {x}")
    if samples == 0:
        raise n.unsupported("as many samples as a region has pixels (sampling_ratio 0)")
    if mode not in ("avg", "max") or transformation not in ("half_pixel", "output_half_pixel") or samples < 0:
        raise n.fail(f"unknown mode {mode}, {transformation} or sampling_ratio {samples}")
    return n.build.emit(
        "RoiAlign",
        x,
        rois,
        batches,
        extents=extents,
        samples=samples,
        scale=n.number("spatial_scale", 1.0),
        half_pixel=int(transformation == "half_pixel"),
        largest=int(mode == "max"),
    )


def _max_roi_pool(n: NodeReader) -> Value:
    x, rois = n.input(0), n.input(1)
    extents = n.integers("pooled_shape")
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or not x.size:
        raise n.fail(f"regions {rois} do not fit {x}")
    if len(extents) != 2 or min(extents) < 1:
        raise n.fail(f"pooled_shape must be two positive integers, got {list(extents)}")
    return n.build.emit("MaxRoiPool", x, rois, extents=extents, scale=n.number("spatial_scale", 1.0))


def _deform_conv(n: NodeReader) -> Value:
    """Imports DeformConv: all taps are read at their own places and multiplied by the weights in one product."""
    b, x, w, offsets, bias, mask = n.build, n.input(0), n.input(1), n.input(2), n.optional(3), n.optional(4)
    if x.rank != 4 or w.rank != 4:
        raise n.unsupported(f"{x.rank - 2} spatial dimensions")
    window, _ = window_of(n, x.shape[2:], w.shape[2:])
    groups, sets, taps = n.integer("group", 1), n.integer("offset_group", 1), prod(w.shape[2:])
    extents = window.extents(x.shape[2:])
    channels = x.shape[1]
    fits = groups > 0 < sets and channels % sets == 0 and w.shape[1] * groups == channels and w.shape[0] % groups == 0
    if not fits or offsets.shape != (x.shape[0], sets * taps * 2, *extents):
        raise n.fail(f"offsets {offsets} or weights {w} do not fit {x}")
    if mask is not None and mask.shape != (x.shape[0], sets * taps, *extents):
        raise n.fail(f"mask {mask} does not fit {x}")
    given = [x, offsets] if mask is None else [x, offsets, mask]
    columns = b.emit("DeformedWindows", *given, groups=sets, **attributes_of(window))
    inner = w.shape[1] * taps
    left = b.reshape(w, (groups, w.shape[0] // groups, inner))
    right = b.reshape(columns, (x.shape[0], groups, inner, prod(extents)))
    y = b.reshape(b.emit("MatMul", left, right), (x.shape[0], w.shape[0], *extents))
    return y if bias is None else b.emit("Add", y, per_channel(b, bias, y.rank))


WINDOWS: dict[str, Importer] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global,
    "GlobalMaxPool": _global,
    "GlobalLpPool": _global,
    "LRN": _lrn,
    "MaxUnpool": _max_unpool,
    "Col2Im": _col2im,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "DeformConv": _deform_conv,
}
