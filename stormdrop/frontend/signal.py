"""ONNX's signal operators: Fourier transforms as products with constant matrices, and mel filter banks."""

from __future__ import annotations

import numpy as np

from stormdrop.frontend.movement import bounded
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, element_type
from stormdrop.ir.expr import NUMPY
from stormdrop.operators.node import Array, Value


def _turns(n: NodeReader, rows: int, columns: int, length: int) -> tuple[Array, Array]:
    """Returns cos and sin of 2π·i·j / length; i·j is taken modulo the length first, which is exact."""
    bounded(n, rows * columns * 4)
    angles = np.outer(np.arange(rows), np.arange(columns)) % length * (2 * np.pi / length)
    return np.cos(angles), np.sin(angles)


def _complex_transform(n: NodeReader, length: int, bins: int, parts: int, inverse: bool) -> Array:
    """Returns the matrix [length · parts, bins · 2] of a transform; a sample has one part if it is real, else two.

        (re + i·im) · (cos ∓ i·sin) = (re·cos ± im·sin) + i·(im·cos ∓ re·sin)

    The inverse turns the other way, and divides by the length.
    """
    cosine, sine = _turns(n, length, bins, length)
    if inverse:
        cosine, sine = cosine / length, -sine / length
    matrix = np.empty((length, parts, bins, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = cosine, -sine
    if parts == 2:
        matrix[:, 1, :, 0], matrix[:, 1, :, 1] = sine, cosine
    return matrix.reshape(length * parts, bins * 2)


def _real_inverse(n: NodeReader, length: int) -> Array:
    """Returns the matrix [bins · 2, length] from the first half of a spectrum back to real samples.

    Every bin also stands for its mirror image, except the first bin and the middle bin of an even length.
    """
    bins = length // 2 + 1
    cosine, sine = _turns(n, bins, length, length)
    weight = np.full((bins, 1), 2.0 / length)
    weight[0] = 1.0 / length
    if length % 2 == 0:
        weight[-1] = 1.0 / length
    return np.stack([cosine * weight, -sine * weight], axis=1).reshape(bins * 2, length)


def _fitted(n: NodeReader, x: Value, extent: int) -> Value:
    """Returns x with dimension -2 cut, or filled with zeros, to this extent."""
    along = x.rank - 2
    if x.shape[along] >= extent:
        return n.build.cut(x, {along: (0, 1, extent)})
    after = tuple(extent - x.shape[along] if d == along else 0 for d in range(x.rank))
    return n.build.emit("Pad", x, before=(0,) * x.rank, after=after, mode="constant", value=0.0)


def _times(n: NodeReader, x: Value, matrix: Value, shape: tuple[int, int]) -> Value:
    """Multiplies the last two dimensions of x, as one row, by a matrix; returns them as two dimensions again."""
    row = n.build.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    if row.rank == 1:
        row = n.build.reshape(row, (1, *row.shape))
    return n.build.reshape(n.build.emit("MatMul", row, matrix), (*x.shape[:-2], *shape))


def _dft(n: NodeReader) -> Value:
    b, x = n.build, n.input(0)
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise n.fail(f"{x} is no signal: its last dimension must be 1 (real numbers) or 2 (complex numbers)")
    if n.version >= 20:
        along = n.dim(-2 if n.optional(2) is None else int(n.scalar(2)), x.rank)
    else:
        along = n.axis(1, x.rank)
    if along == x.rank - 1:
        raise n.fail("the dimension of the parts of complex numbers cannot be transformed")
    inverse, onesided = bool(n.integer("inverse", 0)), bool(n.integer("onesided", 0))
    given = None if n.optional(1) is None else int(n.scalar(1))
    count = x.shape[along]
    length = given if given is not None else 2 * (count - 1) if inverse and onesided else count
    if length < 1 or (onesided and x.shape[-1] != (2 if inverse else 1)):
        raise n.fail(f"a transform of length {length} does not fit {x}")
    order = [*(d for d in range(x.rank) if d not in (along, x.rank - 1)), along, x.rank - 1]
    moved = b.transpose(x, order)
    if inverse and onesided:
        matrix, shape = _real_inverse(n, length), (length, 1)
        moved = _fitted(n, moved, length // 2 + 1)
    else:
        bins = length // 2 + 1 if onesided else length
        matrix, shape = _complex_transform(n, length, bins, x.shape[-1], inverse), (bins, 2)
        moved = _fitted(n, moved, length)
    y = _times(n, moved, b.constant(matrix, x.dtype), shape)
    return b.transpose(y, [order.index(d) for d in range(x.rank)])


def _stft(n: NodeReader) -> Value:
    """Imports STFT: overlapping frames, each times the window, transformed."""
    b, x = n.build, n.input(0)
    window, step = n.optional(2), int(n.scalar(1))
    if x.rank == 2:
        x = b.reshape(x, (*x.shape, 1))
    if n.optional(3) is not None:
        length = int(n.scalar(3))
    elif window is not None:
        length = window.size
    else:
        raise n.fail("neither a window nor the length of a frame is given")
    if x.rank != 3 or x.shape[2] not in (1, 2) or step < 1 or not 1 <= length <= x.shape[1]:
        raise n.fail(f"frames of {length} every {step} do not fit {x}")
    if window is not None and window.shape != (length,):
        raise n.fail(f"window {window} does not fit frames of {length}")
    onesided = bool(n.integer("onesided", 1))
    if onesided and x.shape[2] == 2:
        raise n.fail("the spectrum of a complex signal has two sides")
    count = (x.shape[1] - length) // step + 1
    bounded(n, count * length)
    at = np.arange(count)[:, None] * step + np.arange(length)[None, :]
    frames = b.emit("Gather", x, b.constant(at), axis=1)
    bins = length // 2 + 1 if onesided else length
    matrix = b.constant(_complex_transform(n, length, bins, x.shape[2], False), x.dtype)
    if window is not None:
        parts = b.reshape(matrix, (length, x.shape[2] * bins * 2))
        matrix = b.reshape(b.emit("Mul", parts, b.reshape(b.cast(window, x.dtype), (length, 1))), matrix.shape)
    return _times(n, frames, matrix, (bins, 2))


def _mel_weights(n: NodeReader) -> Value:
    """Imports MelWeightMatrix: triangles over the bins of a spectrum, with equally spaced corners on the mel scale."""
    mel_bins, length, rate, lowest, highest = (n.scalar(k) for k in range(5))
    if mel_bins < 1 or length < 1 or rate < 1 or min(lowest, highest) <= -700:
        raise n.fail(f"{mel_bins} filters over {length} samples at {rate} Hz do not fit")
    bins = bounded(n, (length // 2 + 1) * mel_bins) // mel_bins
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lowest, highest))
    mel = low + np.arange(mel_bins + 2) * ((high - low) / (mel_bins + 2))
    corners = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // rate).astype(int)
    if corners.min() < 0 or corners[1:-1].max() >= bins or corners.max() > bins:
        raise n.fail(f"filters from {lowest} to {highest} Hz leave a spectrum of {bins} bins")
    weights = np.zeros((bins, mel_bins))
    for k, (start, centre, stop) in enumerate(zip(corners, corners[1:], corners[2:])):
        rising, falling = np.arange(start, centre + 1), np.arange(centre, stop)
        weights[rising, k] = (rising - start) / (centre - start) if centre > start else 1.0
        if stop > centre:
            weights[falling, k] = (stop - falling) / (stop - centre)
    dtype = element_type(n.integer("output_datatype", 1), "its result")
    return n.build.constant(weights.astype(NUMPY[dtype]))


SIGNAL: dict[str, Importer] = {"DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_weights}
