"""ONNX's operators that read images at places that are data: RoiAlign, MaxRoiPool and DeformConv."""

from __future__ import annotations

from math import prod

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.frontend.reductions import per_channel
from stormdrop.frontend.windows import attributes_of, window_of
from stormdrop.graph.graph import Value


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


REGIONS: dict[str, Importer] = {"RoiAlign": _roi_align, "MaxRoiPool": _max_roi_pool, "DeformConv": _deform_conv}
