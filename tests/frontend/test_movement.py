"""Slices at their edges, compiled, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import OneNode, assert_alike

pytest.importorskip("onnxruntime")
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize("extent", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (-9, -9, -1),
        (-5, -6, -3),
        (9, LEAST, -2),
        (-1, LEAST, -1),
        (-9, 9, 2),
        (LEAST, MOST, 3),
        (9, 9, 1),
        (1, 0, -1),
        (-2, -1, 1),
    ],
)
def test_a_slice_is_clamped_as_onnx_says(extent: int, start: int, end: int, step: int) -> None:
    x = np.random.default_rng(1).standard_normal((extent, 3)).astype(np.float32)
    ends = [np.array([v]) for v in (start, end, 0, step)]
    node = OneNode("Slice", [x, *ends], known=(1, 2, 3, 4))
    assert_alike(node.compiled(), node.on_onnxruntime())
