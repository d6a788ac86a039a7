"""Arrays of another element type than is wanted: converted where no number is lost, else refused with the cast."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import NUMPY, Dtype, converted

Array = NDArray[Any]


def test_an_array_of_the_wanted_type_is_itself() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert converted(x, "f32") is x


def test_doubles_are_rounded_to_nearest() -> None:
    x = np.random.default_rng(0).standard_normal((5, 6)).T
    found = converted(x, "f32")
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, x.astype(np.float32))


def test_infinities_and_nans_of_doubles_stay_and_small_numbers_vanish() -> None:
    found = converted(np.array([np.inf, -np.inf, np.nan, 1e-300]), "f32")
    np.testing.assert_array_equal(found, np.array([np.inf, -np.inf, np.nan, 0], np.float32))


def test_a_finite_double_that_would_be_infinite_is_refused_with_the_cast() -> None:
    with pytest.raises(
        UserError, match=r"type float64 and a finite number beyond float32; use x\.astype\(np\.float32\)"
    ):
        converted(np.array([1.0, 1e39]), "f32")


@pytest.mark.parametrize(
    ("source", "to"),
    [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("i32", "i64"), ("u8", "i32"), ("i8", "i16"), ("u32", "i64")],
)
def test_wider_types_hold_every_number(source: Dtype, to: Dtype) -> None:
    x = np.arange(7).astype(NUMPY[source])
    found = converted(x, to)
    assert found.dtype == np.dtype(NUMPY[to])
    np.testing.assert_array_equal(found, np.arange(7))


def test_integers_become_narrower_where_all_of_them_fit() -> None:
    limits = np.array([-(2**31), 2**31 - 1])
    np.testing.assert_array_equal(converted(limits, "i32"), limits)
    assert converted(np.zeros(0, np.int64), "u8").dtype == np.uint8
    with pytest.raises(UserError, match=r"type int64 and a number beyond int32; use x\.astype\(np\.int32\)"):
        converted(limits + 1, "i32")
    with pytest.raises(UserError, match="beyond uint64"):
        converted(np.array([-1]), "u64")
    with pytest.raises(UserError, match="beyond int64"):
        converted(np.array([2**63], np.uint64), "i64")


@pytest.mark.parametrize(
    ("array", "dtype", "cast"),
    [
        (np.ones(2, np.int64), "f32", "x.astype(np.float32)"),
        (np.ones(2, np.uint8), "f32", "x.astype(np.float32)"),
        (np.ones(2, np.float32), "i64", "x.astype(np.int64)"),
        (np.ones(2, np.float32), "f16", "x.astype(np.float16)"),
        (np.ones(2, np.float64), "bf16", "x.astype(ml_dtypes.bfloat16)"),
        (np.ones(2, ml_dtypes.bfloat16), "f16", "x.astype(np.float16)"),
        (np.ones(2, np.bool_), "i64", "x.astype(np.int64)"),
        (np.ones(2, np.int64), "bool", "x.astype(np.bool)"),
        (np.ones(2, ">f4"), "f32", "x.astype(np.float32)"),
        (np.ones(2, object), "f32", "x.astype(np.float32)"),
    ],
)
def test_other_conversions_are_refused_with_the_cast(array: Array, dtype: Dtype, cast: str) -> None:
    with pytest.raises(UserError) as error:
        converted(array, dtype)
    assert str(error.value).endswith(f"; use {cast}")
    assert eval(cast, {"x": array, "np": np, "ml_dtypes": ml_dtypes}).dtype == np.dtype(NUMPY[dtype])


def test_a_list_has_no_cast_and_is_shown_the_array() -> None:
    with pytest.raises(UserError, match=r"use np\.asarray\(x, np\.float32\)"):
        converted(np.asarray([1, 2]), "f32", is_own=False)
