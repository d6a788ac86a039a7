"""Convolutions, pools, and what else slides a window or trades space for channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tests.fuzz.draft import FLOATS, NUMBERS, TYPES, Draft, Maker, Refused, Shape
from tests.fuzz.makers.arguments import affordable, sometimes, tensor

CHANNELS = (1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 15, 16, 17, 24, 32, 33)
MOST_EXTENT = {1: 65, 2: 19, 3: 9}
"""Of an image's dimensions, by their number."""
MOST_IMAGE = 6_000


def image_shape(d: Draft, spatial: int | None = None, least_spatial: int = 1) -> Shape:
    """[batch, channels, 1 to 3 spatial dimensions]."""
    spatial = spatial or d.among(*(n for n in (1, 1, 2, 2, 2, 2, 3) if n >= least_spatial))
    for _ in range(20):
        sizes = [1 if d.chance(0.1) else d.dim(MOST_EXTENT[spatial]) for _ in range(spatial)]
        batch = 0 if d.empties and d.chance(0.2) else d.among(1, 1, 1, 2, 3)
        shape = (batch, d.among(*CHANNELS), *sizes)
        if prod(shape) <= MOST_IMAGE:
            return shape
    return (1,) * (2 + spatial)


def image(d: Draft, dtypes: Any = FLOATS, spatial: int | None = None) -> str:
    shape = image_shape(d, spatial)
    return d.take(lambda: shape, dtypes, lambda s: len(s) == len(shape) and prod(s) <= MOST_IMAGE)


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window: its numbers as they are, and the attributes that say so."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    attributes: dict[str, Any]


def sliding(d: Draft, sizes: Shape, dilated: bool = True, pool: bool = False, auto_pad: bool = True) -> Sliding:
    """A window over an image; its pads are smaller than the kernel for a pool. Raises Refused where it does not fit.

    Automatic pads that would be negative, of a window smaller than its stride, are not drawn: ONNX's formula gives a
    negative number, and every implementation does something else with it.
    """
    rank = len(sizes)
    kernel = [d.among(1, 1, 2, 3, 3, 3, 4, 5, 7) for _ in sizes]
    kernel = [kernel[0]] * rank if d.chance(0.5) else kernel
    kernel = [min(k, max(n, 1)) if d.chance(0.5) else k for k, n in zip(kernel, sizes)]
    strides = [d.among(1, 1, 2, 3, 5) for _ in sizes] if d.chance(0.3) else [d.among(1, 1, 1, 2, 3)] * rank
    dilations = [d.among(1, 2, 3) for _ in sizes] if dilated and d.chance(0.2) else [1] * rank
    auto = d.among("", "", "", "", "", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER") if auto_pad else ""
    pads = [0] * (2 * rank)
    if auto in ("", "NOTSET"):
        match d.among("none", "half", "half", "uneven", "one side", "large"):
            case "half":
                pads = [k * s // 2 for k, s in zip(kernel, dilations)] * 2
            case "uneven":
                pads = [d.whole(0, k) for k in kernel * 2]
            case "one side":
                pads = [d.whole(0, k) if d.chance(0.3) else 0 for k in kernel * 2]
            case "large":
                pads = [d.whole(0, k + 2) for k in kernel * 2]
            case _:
                pass
        if pool:
            pads = [min(p, k - 1) for p, k in zip(pads, kernel * 2)]
    if auto.startswith("SAME"):
        for n, k, s, v in zip(sizes, kernel, strides, dilations):
            if (-(-n // s) - 1) * s + (k - 1) * v + 1 < n:
                raise Refused("automatic pads would be negative")
    else:
        for n, k, s, before, after in zip(sizes, kernel, dilations, pads, pads[rank:]):
            if n + before + after < (k - 1) * s + 1:
                raise Refused("the window is larger than the image")
    attributes: dict[str, Any] = {"auto_pad": auto} if auto else {}
    for key, numbers, default in (("strides", strides, 1), ("dilations", dilations, 1), ("pads", pads, 0)):
        if any(v != default for v in numbers):
            attributes[key] = numbers
        elif not (key == "pads" and auto.startswith(("SAME", "VALID"))) and (dilated or key != "dilations"):
            attributes |= sometimes(d, 0.3, **{key: numbers})
    return Sliding(kernel, strides, dilations, pads, attributes)


def _outputs(sizes: Shape, w: Sliding) -> int:
    """At most as many positions as the window has."""
    rank = len(sizes)
    return prod((n + p + q + k) // s + 1 for n, p, q, k, s in zip(sizes, w.pads, w.pads[rank:], w.kernel, w.strides))


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _groups(d: Draft, channels: int) -> int:
    return d.among(1, 1, 1, channels, *(g for g in (2, 3, 4) if channels % g == 0)) or 1


def conv(d: Draft) -> str:
    """Plain, grouped, depthwise with a multiplier, dilated, strided, pointwise; weights constant or not."""
    x = image(d)
    batch, channels, *sizes = d.shape(x)
    w = sliding(d, tuple(sizes))
    groups = _groups(d, channels)
    outs = groups * d.among(1, 1, 2, 3) if groups > 1 else d.among(1, 1, 2, 3, 5, 8, 11, 16, 17, 20, 32, 33)
    fan_in = channels // groups * prod(w.kernel)
    affordable(batch * fan_in * outs * _outputs(tuple(sizes), w))
    dtype = d.dtype(x)
    weights = tensor(d, (outs, channels // groups, *w.kernel), dtype, max(fan_in, 1) ** -0.5)
    bias = [tensor(d, (outs,), dtype, 0.3)] if d.chance(0.5) else [""] if d.chance(0.1) else []
    attributes = w.attributes | sometimes(d, 0.6, kernel_shape=w.kernel)
    if groups > 1 or d.chance(0.2):
        attributes["group"] = groups
    return d.one("Conv", x, weights, *bias, **attributes)


def conv_transpose(d: Draft) -> str:
    """Output shapes by pads and output_padding, by auto_pad, or as the attribute says.

    An output_shape larger than the window reaches is not drawn: ONNX does not say on which side the rest lies.
    """
    x = image(d)
    channels, *sizes = d.shape(x)[1:]
    rank, groups = len(sizes), _groups(d, channels)
    kernel = [d.among(1, 2, 2, 3, 3, 4, 5) for _ in sizes]
    strides = [d.among(1, 1, 2, 2, 3) for _ in sizes] if d.chance(0.5) else [d.among(1, 1, 2, 3)] * rank
    dilations = [d.among(1, 2, 3) for _ in sizes] if d.chance(0.2) else [1] * rank
    extra = [d.whole(0, max(s, k) - 1) for s, k in zip(strides, dilations)] if d.chance(0.3) else [0] * rank
    reach = [(k - 1) * v + 1 for k, v in zip(kernel, dilations)]
    full = [s * (n - 1) + o + r for s, n, o, r in zip(strides, sizes, extra, reach)]
    attributes: dict[str, Any] = {}
    match d.among("none", "pads", "pads", "pads", "output_shape", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"):
        case "pads":
            pads = (
                [d.whole(0, r - 1) for r in reach * 2]
                if d.chance(0.5)
                else [d.whole(0, max(r // 2, 0)) for r in reach] * 2
            )
            attributes["pads"] = pads
        case "output_shape":
            attributes["output_shape"] = [max(1, f - d.whole(0, r - 1)) for f, r in zip(full, reach)]
            attributes |= {"auto_pad": d.among("SAME_UPPER", "SAME_LOWER", "NOTSET")} if d.chance(0.5) else {}
        case "none":
            pass
        case auto:
            attributes["auto_pad"] = auto
            if auto.startswith("SAME") and any(f < n * s for f, n, s in zip(full, sizes, strides)):
                raise Refused("the output is larger than the window reaches")
    for key, numbers, default in (("strides", strides, 1), ("dilations", dilations, 1), ("output_padding", extra, 0)):
        if any(v != default for v in numbers) or d.chance(0.2):
            attributes[key] = numbers
    outs = d.among(1, 1, 2, 3, 4, 5, 8, 16, 17)
    affordable(prod(d.shape(x)) * outs * prod(kernel))
    dtype = d.dtype(x)
    weights = tensor(d, (channels, outs, *kernel), dtype, (max(channels // groups, 1) * prod(kernel)) ** -0.5)
    bias = [tensor(d, (outs * groups,), dtype, 0.3)] if d.chance(0.5) else []
    if groups > 1 or d.chance(0.2):
        attributes["group"] = groups
    return d.one("ConvTranspose", x, weights, *bias, **attributes | sometimes(d, kernel_shape=kernel))


def col2im(d: Draft) -> str:
    """Columns of an image of 1 to 3 dimensions. Stormdrop takes blocks of at most 64 elements."""
    d.needs(18)
    rank = d.among(1, 2, 2, 2, 3)
    sizes = tuple(d.among(1, 2, 3, 4, 5, 7, 8) for _ in range(rank))
    w = sliding(d, sizes, auto_pad=False)
    if prod(w.kernel) > 64:
        raise Refused("too large a block")
    spans = zip(sizes, w.kernel, w.strides, w.dilations, w.pads, w.pads[rank:])
    count = prod((n + p + q - (k - 1) * v - 1) // s + 1 for n, k, s, v, p, q in spans)
    shape = (d.among(1, 1, 2), d.among(1, 2, 3, 5) * prod(w.kernel), count)
    x = d.take(lambda: shape, NUMBERS, lambda s: s == shape)
    return d.one("Col2Im", x, d.integers(sizes), d.integers(w.kernel), **w.attributes)


# ---- pools -----------------------------------------------------------------------------------------------------------


def _pooled(d: Draft, dilated: bool = True, ceil: bool = True) -> tuple[str, Sliding, dict[str, Any]]:
    x = image(d)
    batch, channels, *sizes = d.shape(x)
    w = sliding(d, tuple(sizes), dilated, pool=True)
    affordable(batch * channels * prod(w.kernel) * _outputs(tuple(sizes), w))
    attributes = w.attributes | {"kernel_shape": w.kernel}
    if ceil and d.chance(0.4):
        attributes["ceil_mode"] = d.among(0, 1, 1, 1)
    return x, w, attributes


def max_pool(d: Draft) -> str:
    """f32 and f64, the only ones of Stormdrop's types that ONNX takes."""
    x, _, attributes = _pooled(d)
    with_positions = d.chance(0.4)
    attributes |= {"storage_order": d.among(0, 1, 1)} if d.chance(0.3) else {}
    results = (d.chance(0.8), True) if with_positions else (True,)
    return d.emit("MaxPool", x, results=results, **attributes)[0]


def average_pool(d: Draft) -> str:
    x, _, attributes = _pooled(d, dilated=d.opset >= 19)
    attributes |= {"count_include_pad": d.among(0, 1, 1)} if d.chance(0.5) else {}
    return d.one("AveragePool", x, **attributes)


def lp_pool(d: Draft) -> str:
    x, _, attributes = _pooled(d, dilated=d.opset >= 18, ceil=d.opset >= 18)
    return d.one("LpPool", x, **attributes, **sometimes(d, 0.7, p=d.among(1, 2, 2, 3, 4)))


def max_unpool(d: Draft) -> str:
    """What a MaxPool gave, perhaps changed in between, put back; an output_shape that adds to the far ends, or none.

    The pool has no pads and its last windows end with the image: otherwise its positions count in another image.
    """
    x = image(d)
    sizes = d.shape(x)[2:]
    kernel: list[int] = []
    strides: list[int] = []
    for n in sizes:
        pairs = [(k, s) for k in (1, 2, 3, 4) for s in (1, 2, 3, k, k, k) if n >= k and (n - k) % s == 0]
        if not pairs:
            raise Refused("no window covers an empty image")
        k, s = d.among(*pairs)
        kernel.append(k)
        strides.append(s)
    attributes = {"kernel_shape": kernel, "strides": strides}
    y, at = d.emit("MaxPool", x, results=2, **attributes)
    if d.chance(0.4):
        y = d.one(d.among("Tanh", "Neg", "Relu", "Identity"), y)
    if strides == [1] * len(sizes) and d.chance(0.5):
        del attributes["strides"]
    match d.among("", "same", "larger"):
        case "same":
            return d.one("MaxUnpool", y, at, d.integers(d.shape(x)), **attributes)
        case "larger":
            return d.one(
                "MaxUnpool", y, at, d.integers([*d.shape(x)[:2], *(n + d.whole(0, 2) for n in sizes)]), **attributes
            )
        case _:
            return d.one("MaxUnpool", y, at, **attributes)


def global_pool(op: str) -> Maker:
    def maker(d: Draft) -> str:
        attributes = sometimes(d, 0.7, p=d.among(1, 2, 2, 3)) if op == "GlobalLpPool" else {}
        return d.one(op, image(d), **attributes)

    return maker


# ---- space and depth -------------------------------------------------------------------------------------------------


def depth_to_space(d: Draft) -> str:
    block = d.among(1, 2, 2, 2, 3, 4)
    batch, channels, *sizes = image_shape(d, 2)
    shape = (batch, max(1, channels // block**2) * block**2, *sizes)
    x = d.take(lambda: shape, TYPES, lambda s: len(s) == 4 and s[1] % block**2 == 0)
    return d.one("DepthToSpace", x, blocksize=block, **sometimes(d, mode=d.among("DCR", "CRD")))


def space_to_depth(d: Draft) -> str:
    block = d.among(1, 2, 2, 2, 3, 4)
    batch, channels, *sizes = image_shape(d, 2)
    shape = (batch, channels, *(-(-n // block) * block for n in sizes))
    x = d.take(lambda: shape, TYPES, lambda s: len(s) == 4 and s[2] % block == 0 and s[3] % block == 0)
    return d.one("SpaceToDepth", x, blocksize=block)


MAKERS: dict[str, tuple[float, Maker]] = {
    "Conv": (3, conv),
    "ConvTranspose": (1.5, conv_transpose),
    "Col2Im": (0.5, col2im),
    "MaxPool": (1.5, max_pool),
    "AveragePool": (1.5, average_pool),
    "LpPool": (0.7, lp_pool),
    "MaxUnpool": (0.5, max_unpool),
    "GlobalAveragePool": (0.7, global_pool("GlobalAveragePool")),
    "GlobalMaxPool": (0.5, global_pool("GlobalMaxPool")),
    "GlobalLpPool": (0.4, global_pool("GlobalLpPool")),
    "DepthToSpace": (0.7, depth_to_space),
    "SpaceToDepth": (0.7, space_to_depth),
}
