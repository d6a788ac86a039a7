"""Winograd's convolution as a variant of a task, as the graph layer makes it."""

from __future__ import annotations

from stormdrop.ir.tensor import Tensor, Variant
from stormdrop.operators.winograd import TRANSFORMS, winograd_conv2d


def winograd_variant(x: Tensor, w: Tensor, padding: int, tile: int, name: str = "Y") -> Variant:
    """F(tile, 3) as a variant of the direct convolution of the same tensors."""
    y = winograd_conv2d(x, w, padding, tile, name)
    return Variant((y,), f"winograd F({tile},3)", TRANSFORMS[tile].error_bound)
