"""Operators on the bits of numbers: shifts by any amount, masks, and values read as another type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.one_node import OneNode, assert_alike

RNG = np.random.default_rng(3)
TYPES: list[type[np.signedinteger[Any]]] = [np.int32, np.int64]


def integers(shape: tuple[int, ...], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Over all bits, both ends of the type among them."""
    limits = np.iinfo(dtype)
    found = RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    found.reshape(-1)[:3] = limits.min, limits.max, -1
    return found


def shifted(x: NDArray[Any], by: NDArray[Any], left: bool) -> NDArray[Any]:
    """In Python's integers, which have no width."""
    bits = 8 * x.dtype.itemsize

    def one(a: int, n: int) -> int:
        outside = n < 0 or n >= bits
        if not left:
            return (-1 if a < 0 else 0) if outside else a >> n
        return 0 if outside else ((a << n) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)

    wide = np.broadcast_arrays(x, by)
    return np.array([one(int(a), int(n)) for a, n in zip(*(w.reshape(-1) for w in wide))], x.dtype).reshape(
        wide[0].shape
    )


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_shift_by_any_amount_keeps_the_sign_alone_beyond_the_width(
    direction: str, dtype: type[np.signedinteger[Any]]
) -> None:
    x, bits = integers((7, 19), dtype), 8 * np.dtype(dtype).itemsize
    by = np.concatenate([np.arange(16), [-1, bits - 1, bits]]).astype(dtype)
    node = OneNode("BitShift", [x, by], opset=28, direction=direction)
    for found in (node.compiled(), node.interpreted()):
        assert_alike(found, [shifted(x, by, direction == "LEFT")])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_masks_of_integers_are_those_of_onnxruntime(op: str, dtype: type[np.signedinteger[Any]]) -> None:
    node = OneNode(op, [integers((5, 33), dtype), integers((33,), dtype)])
    for found in (node.compiled(), node.interpreted()):
        assert_alike(found, node.on_onnxruntime())


@pytest.mark.parametrize(
    ("dtype", "to", "code"),
    [(np.float32, np.int32, 6), (np.int32, np.float32, 1), (np.float64, np.int64, 7), (np.int64, np.float64, 11)],
)
def test_bits_of_a_value_are_read_as_another_type(dtype: type[Any], to: type[Any], code: int) -> None:
    x = RNG.standard_normal((3, 37)).astype(np.float32 if np.dtype(dtype).itemsize == 4 else np.float64).view(dtype)
    node = OneNode("BitCast", [x], opset=26, to=code)
    for found in (node.compiled(), node.interpreted()):
        assert found[0].dtype == to
        np.testing.assert_array_equal(found[0].view(np.uint8), x.view(np.uint8))
