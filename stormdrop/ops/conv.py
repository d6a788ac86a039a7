"""Convolutions. Images are [n, spatial…, channels], weights [kernel…, in, out]; all read a padded image P."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Axis, Expr
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.ops.movement import Pad, before_after, pad


def window_extent(what: str, size: int, kernel: int, stride: int, padding: Pad, dilation: int = 1) -> int:
    """How many windows fit; UserError where none does or an argument makes no sense."""
    if kernel < 1 or stride < 1 or dilation < 1:
        raise UserError(f"{what}: kernel {kernel}, stride {stride} and dilation {dilation} must be at least 1")
    before, after = before_after(padding)
    if before < 0 or after < 0:
        raise UserError(f"{what}: a pad cannot be negative, not {padding}")
    reach = dilation * (kernel - 1) + 1
    extent = (size + before + after - reach) // stride + 1
    if size + before + after < reach or extent < 1:
        raise UserError(f"{what}: a window of {reach} does not fit into {size} padded by {before} and {after}")
    return extent


def _need(what: str, x: Tensor, w: Tensor, holds: bool, wanted: str) -> None:
    if not holds:
        raise UserError(f"{what}: {x!r} and {w!r} do not fit; wanted {wanted}")


def _windows(
    what: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: int,
    padding: Pad,
    dilation: int = 1,
) -> tuple[list[Axis], list[Axis], list[Expr]]:
    """Per spatial dimension the output axis, the reduce axis over the kernel, and the index into the padded image."""
    names = "dhw"[-len(sizes) :]
    extents = [window_extent(what, size, k, stride, padding, dilation) for size, k in zip(sizes, kernel)]
    at = [axis(n, f"o{c}") for n, c in zip(extents, names)]
    over = [reduce_axis(k, f"k{c}") for k, c in zip(kernel, names)]
    return at, over, [o * stride + k * dilation for o, k in zip(at, over)]


def conv(x: Tensor, w: Tensor, stride: int = 1, padding: Pad = 0, dilation: int = 1, name: str = "Y") -> Tensor:
    """A convolution over one, two or three spatial dimensions; stride s, dilation d.

    Y[n, h, w, co] = Σ_{kh,kw,ci} P[n, h·s + kh·d, w·s + kw·d, ci] · W[kh, kw, ci, co]
    """
    rank = len(x.shape) - 2
    _need(
        "conv",
        x,
        w,
        1 <= rank <= 3 and len(w.shape) == rank + 2 and w.shape[-2] == x.shape[-1],
        "[n, spatial…, ci] and [kernel…, ci, co]",
    )
    at, over, source = _windows("conv", x.shape[1:-1], w.shape[:-2], stride, padding, dilation)
    p = pad(x, [padding] * rank)
    n, ci, co = axis(x.shape[0], "n"), reduce_axis(x.shape[-1], "ci"), axis(w.shape[-1], "co")
    return compute(name, (n, *at, co), build.sum(p[(n, *source, ci)] * w[(*over, ci, co)], *over, ci))


def grouped_conv2d(x: Tensor, w: Tensor, stride: int = 1, padding: Pad = 0, name: str = "Y") -> Tensor:
    """Every group of channels has its own filters; a dimension for the group stands before the channels.

        Y[n, h, w, g, co] = Σ_{kh,kw,ci} P[n, h·s + kh, w·s + kw, g, ci] · W[kh, kw, ci, g, co]

    In memory this is [n, h, w, channels], and W is [kh, kw, in / groups, out].
    """
    _need(
        "grouped_conv2d",
        x,
        w,
        len(x.shape) == len(w.shape) == 5 and w.shape[2:4] == x.shape[:2:-1],
        "[n, h, w, g, ci] and [kh, kw, ci, g, co]",
    )
    at, over, source = _windows("grouped_conv2d", x.shape[1:3], w.shape[:2], stride, padding)
    p = pad(x, [padding] * 2)
    n, g, ci, co = axis(x.shape[0], "n"), axis(x.shape[3], "g"), reduce_axis(x.shape[4], "ci"), axis(w.shape[4], "co")
    return compute(name, (n, *at, g, co), build.sum(p[(n, *source, g, ci)] * w[(*over, ci, g, co)], *over, ci))


def depthwise_conv2d(x: Tensor, w: Tensor, stride: int = 1, padding: Pad = 0, name: str = "Y") -> Tensor:
    """`Y[n, h, w, c] = Σ_{kh,kw} P[n, h·s + kh, w·s + kw, c] · W[kh, kw, c]`."""
    _need(
        "depthwise_conv2d",
        x,
        w,
        len(x.shape) == 4 and len(w.shape) == 3 and x.shape[3] == w.shape[2],
        "[n, h, w, c] and [kh, kw, c]",
    )
    at, over, source = _windows("depthwise_conv2d", x.shape[1:3], w.shape[:2], stride, padding)
    p = pad(x, [padding] * 2)
    n, c = axis(x.shape[0], "n"), axis(x.shape[3], "c")
    return compute(name, (n, *at, c), build.sum(p[(n, *source, c)] * w[(*over, c)], *over))


def capsule_conv2d(x: Tensor, w: Tensor, stride: int = 1, padding: Pad = 0, name: str = "Y") -> Tensor:
    """A convolution whose pixels are matrices (capsules): every product is a product of matrices.

    Y[n, h, w, i, j, co] = Σ_{kh,kw,k,ci} P[n, h·s + kh, w·s + kw, i, k, ci] · W[kh, kw, k, j, ci, co]
    """
    _need(
        "capsule_conv2d",
        x,
        w,
        len(x.shape) == len(w.shape) == 6 and x.shape[4:] == (w.shape[2], w.shape[4]),
        "[n, h, w, i, k, ci] and [kh, kw, k, j, ci, co]",
    )
    at, over, source = _windows("capsule_conv2d", x.shape[1:3], w.shape[:2], stride, padding)
    p = pad(x, [padding] * 2)
    n, i, j, co = axis(x.shape[0], "n"), axis(x.shape[3], "i"), axis(w.shape[3], "j"), axis(w.shape[5], "co")
    k, ci = reduce_axis(x.shape[4], "k"), reduce_axis(x.shape[5], "ci")
    product = p[(n, *source, i, k, ci)] * w[(*over, k, j, ci, co)]
    return compute(name, (n, *at, i, j, co), build.sum(product, *over, k, ci))


def transposed_conv2d(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, name: str = "Y", guarded: bool = False
) -> Tensor:
    """The adjoint of a strided convolution, computed phase by phase so that no product is with a zero between pixels.

    The plain definition is Y[n, i·s + kh - p, …, co] += X[n, i, …, ci] · W[kh, …, ci, co]. An output row h = y·s + py
    takes only the taps kh = r + s·j with r = (py + p) mod s, and reads the input row y + (py + p) // s - j:

        V[py, px, jy, jx, ci, co] = where(kh < KH and kw < KW, W[kh, kw, ci, co], 0)                      (constant)
        F[n, y, py, x, px, co]    = Σ_{jy,jx,ci} P[n, y + (py + p) // s - jy + J - 1, …, ci] · V[py, px, jy, jx, ci, co]
        Y[n, h, w, co]            = F[n, h // s, h % s, w // s, w % s, co]                     J = ceil(KH / s) taps

    Where s does not divide KH, some phases have a tap less than others, and a zero in its place, which an infinite
    pixel turns into NaN. Not so if `guarded`: then F reads X itself, under one condition for the border and for the
    tap.
    """
    what, s = "transposed_conv2d", stride
    _need(
        what, x, w, len(x.shape) == len(w.shape) == 4 and x.shape[3] == w.shape[2], "[n, h, w, ci] and [kh, kw, ci, co]"
    )
    if s < 1 or padding < 0 or min(w.shape[:2]) < 1:
        raise UserError(f"{what}: stride {s} and kernel {w.shape[:2]} must be at least 1, and pad {padding} at least 0")
    extents = [(size - 1) * s - 2 * padding + k for size, k in zip(x.shape[1:3], w.shape[:2])]
    if min(extents) < 1:
        raise UserError(f"{what}: pad {padding} leaves nothing of an output of {[e + 2 * padding for e in extents]}")

    taps = [-(-k // s) for k in w.shape[:2]]
    rows = [-(-e // s) for e in extents]
    behind = [max(0, r - 1 + (s - 1 + padding) // s - (size - 1)) for r, size in zip(rows, x.shape[1:3])]
    p = pad(x, [(j - 1, b) for j, b in zip(taps, behind)])

    py, px, jy, jx = axis(s, "py"), axis(s, "px"), axis(taps[0], "jy"), axis(taps[1], "jx")
    ci, co = axis(x.shape[3], "ci"), axis(w.shape[3], "co")
    kh, kw = (py + padding) % s + jy * s, (px + padding) % s + jx * s
    tap = build.where((kh < w.shape[0]) & (kw < w.shape[1]), w[kh, kw, ci, co], 0)
    v = compute("V", (py, px, jy, jx, ci, co), tap)

    n, y, x_, co = axis(x.shape[0], "n"), axis(rows[0], "y"), axis(rows[1], "x"), axis(w.shape[3], "co")
    py, px = axis(s, "py"), axis(s, "px")
    jy, jx, ci = reduce_axis(taps[0], "jy"), reduce_axis(taps[1], "jx"), reduce_axis(x.shape[3], "ci")
    row, column = y + (py + padding) // s - jy, x_ + (px + padding) // s - jx
    if guarded:
        taken = [(q + padding) % s + j * s < k for q, j, k in zip((py, px), (jy, jx), w.shape)]
        inside = [c for i, size in zip((row, column), x.shape[1:3]) for c in (i >= 0, i < size)]
        pixel = build.where(reduce(Expr.__and__, [*inside, *taken]), x[n, row, column, ci], 0)
    else:
        pixel = p[n, row + (taps[0] - 1), column + (taps[1] - 1), ci]
    f = compute("F", (n, y, py, x_, px, co), build.sum(pixel * v[py, px, jy, jx, ci, co], jy, jx, ci))

    n, h, w_, co = axis(x.shape[0], "n"), axis(extents[0], "h"), axis(extents[1], "w"), axis(w.shape[3], "co")
    return compute(name, (n, h, w_, co), f[n, h // s, h % s, w_ // s, w_ % s, co])
