"""Aligned memory that NumPy can see."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALIGN = 64


def aligned(nbytes: int, align: int = ALIGN) -> NDArray[np.uint8]:
    """Zeroed bytes that start at a multiple of `align`."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]
