"""Indices that are data, read inside borders: a gather and whatever a kernel may compute of its result.

Every pair of an operator that reads at positions given by data and one that reads its result only in part, or again and
again, is one kernel here, checked on one instruction set or another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.codegen.memory import Pages
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.partition import call_of
from stormdrop.ir import build as sd
from stormdrop.ir.expr import NUMPY, Dtype
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.operators.indexing import clamped, wrapped
from stormdrop.operators.node import Value
from tests.support import crew
from tests.support.trials import Given

Array = NDArray[Any]
Make = Callable[[GraphBuilder], Value]
Use = Callable[[GraphBuilder, Value], Value]


def given(title: str, make: Make, use: Use, points: int = 1, most: int = 1000) -> Given:
    """Both operators as one kernel. Run-time integers are indices: small, some of them counted from the end."""
    b = GraphBuilder()
    result = use(b, make(b))
    call = call_of(b.nodes, b.constants)
    assert call.output == result
    rng = np.random.default_rng(len(title))
    arrays = {t.name: b.constants[v] for t, v in zip(call.task.inputs, call.inputs) if v in b.constants}
    for t in call.task.runtime_inputs:
        if t.dtype in ("i32", "i64"):
            arrays[t.name] = rng.integers(-2, 2, t.shape).astype(NUMPY[t.dtype])
    return Given(title, call.task, arrays, points, most)


def check(*subjects: Given) -> None:
    outcome = crew.check(subjects)
    assert outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


# ---- the smallest ------------------------------------------------------------------------------------------------


def rows_of(x: tuple[int, ...], indices: tuple[int, ...], along: int = 0, dtype: Dtype = "i64") -> Make:
    return lambda b: b.emit("Gather", b.input("x", x, "f32"), b.input("i", indices, dtype), axis=along)


def padded(before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0) -> Use:
    return lambda b, v: b.emit("Pad", v, before=before, after=after, mode="constant", value=value)


def test_a_gathered_row_is_padded_along_its_vectors() -> None:
    check(given("2x2", rows_of((2, 2), (2,)), padded((0, 1), (0, 0)), 3))


def test_a_gathered_row_is_padded_behind_its_vectors() -> None:
    check(given("2x2", rows_of((2, 2), (2,)), padded((0, 0), (0, 1), -1.0), 3))


def test_a_gathered_row_is_padded_on_all_sides() -> None:
    check(given("2x19", rows_of((2, 19), (3,)), padded((2, 1), (1, 3)), 3))


def test_a_gathered_column_is_padded() -> None:
    check(given("3x2", rows_of((3, 2), (2,), 1), padded((1, 1), (0, 1)), 3))


def test_a_triangle_of_gathered_rows() -> None:
    check(given("2x2", rows_of((2, 2), (2,)), lambda b, v: b.emit("Trilu", v, upper=1, k=0), 3))


def test_an_enlarged_image_is_padded() -> None:
    """1x1x2x2 to 1x1x3x2 by nearest neighbours: a gather whose indices are constants."""

    def enlarged(b: GraphBuilder) -> Value:
        return b.emit("Gather", b.input("x", (1, 1, 2, 2), "f32"), b.constant(np.array([0, 0, 1])), axis=2)

    check(given("1x1x3x2", enlarged, padded((0, 0, 1, 1), (0, 0, 0, 1)), 3))


def test_an_element_that_all_lanes_share_is_read_only_where_a_lane_wants_it() -> None:
    """Y[i, j] = X[I[i]] where j - i >= 5: for the last i no lane does, and I ends before them."""
    x, at = tensor("X", (4,)), tensor("I", (8,), "i64")
    i, j = axis(13, "i"), axis(13, "j")
    body = sd.where(j - i >= 5, x[clamped(wrapped(at[i], 4), 4)], -1.0)
    check(Given("shared", Task([compute("Y", (i, j), body)]), points=4))


def test_an_index_of_32_bits_is_widened() -> None:
    x, at = tensor("X", (4, 7)), tensor("I", (5, 3), "i32")
    i, j = axis(5, "i"), axis(3, "j")
    spread = compute("Y", (i, j), x[clamped(at[i, 0], 4), clamped(at[i, j], 7)])
    check(Given("i32", Task([spread]), points=4))


def test_borders_of_zero_and_of_minus_zero_are_different_pages() -> None:
    x = tensor("X", (6, 20))
    i, j = axis(9, "i"), axis(20, "j")
    body = sd.where(j < 9, sd.where(i < 6, x[i, j], 0.0), sd.where(i < 5, x[i, j], -0.0))
    check(Given("pages", Task([compute("Y", (i, j), body)]), points=3))


def test_every_nan_is_one_page() -> None:
    pages = Pages()
    assert pages.get(float("nan"), "f32", 3) == pages.get(float("nan"), "f32", 7) != pages.get(0.0, "f32", 1)
    assert [line.split("[")[1][:1] for line in pages.definitions()] == ["7", "1"]


# ---- every pair --------------------------------------------------------------------------------------------------

N, M = 5, 19
"""The result of every gather is N x M."""


def _grid(b: GraphBuilder) -> Value:
    """The nearest of 4x4 pixels to positions between -1 and 1."""
    y = b.emit(
        "GridSample",
        b.input("x", (1, 1, 4, 4), "f32"),
        b.input("g", (1, N, M, 2), "f32"),
        mode="nearest",
        padding="border",
        align_corners=0,
    )
    return b.reshape(y, (N, M))


def gathered(op: str, x: tuple[int, ...], indices: tuple[int, ...], **attributes: int) -> Make:
    return lambda b: b.emit(op, b.input("x", x, "f32"), b.input("i", indices, "i64"), **attributes)


def _constant_rows(b: GraphBuilder) -> Value:
    return b.emit("Gather", b.constant(np.eye(3, M), "f32"), b.input("i", (N,), "i64"), axis=0)


def _by_constants(b: GraphBuilder) -> Value:
    return b.emit("Gather", b.input("x", (3, M), "f32"), b.constant(np.array([2, 0, 0, 1, 2])), axis=0)


def _by_indices_of_indices(b: GraphBuilder) -> Value:
    at = b.emit("Gather", b.input("j", (6,), "i64"), b.input("i", (N,), "i64"), axis=0)
    return b.emit("Gather", b.input("x", (4, M), "f32"), at, axis=0)


GATHERS: dict[str, Make] = {
    "rows": rows_of((3, M), (N,)),
    "rows by i32": rows_of((3, M), (N,), dtype="i32"),
    "columns": rows_of((N, 4), (M,), 1),
    "rows of constants": _constant_rows,
    "rows by constants": _by_constants,
    "rows of rows": lambda b: b.emit("Gather", rows_of((4, M), (3,))(b), b.input("j", (N,), "i64"), axis=0),
    "columns of rows": lambda b: b.emit("Gather", rows_of((4, 6), (N,))(b), b.input("j", (M,), "i64"), axis=1),
    "indices of indices": _by_indices_of_indices,
    "matrix of numbers": rows_of((7,), (N, M)),
    "elements of columns": gathered("GatherElements", (4, M), (N, M), axis=0),
    "elements of rows": gathered("GatherElements", (N, 4), (N, M), axis=1),
    "rows at two indices": gathered("GatherND", (2, 3, M), (N, 2), batch_dims=0),
    "numbers at two indices": gathered("GatherND", (2, 3), (N, M, 2), batch_dims=0),
    "enlarged rows": lambda b: b.emit("Repeat", rows_of((1, M), (1,))(b), axis=0, times=N),
    "pixels": _grid,
}


def _convolved(b: GraphBuilder, v: Value) -> Value:
    image = b.reshape(v, (1, N, M, 1))
    weights = b.constant(np.random.default_rng(0).standard_normal((3, 3, 1, 18)), "f32")
    window = {"kernel": (3, 3), "strides": (1, 2), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}
    return b.emit("Conv", image, weights, groups=1, layout="NHWC", **window)


def _pooled(b: GraphBuilder, v: Value) -> Value:
    window = {"kernel": (3, 2), "strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 0)}
    return b.emit("MaxPool", b.reshape(v, (1, N, M, 1)), layout="NHWC", **window)


def _joined(axis: int) -> Use:
    def join(b: GraphBuilder, v: Value) -> Value:
        other = b.input("other", (2, M) if axis == 0 else (N, 3), "f32")
        return b.emit("Concat", other, v, b.emit("Neg", v), axis=axis)

    return join


def cut(b: GraphBuilder, v: Value, starts: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    return b.emit("Slice", v, starts=starts, steps=steps, shape=shape)


USES: dict[str, Use] = {
    "alone": lambda b, v: b.emit("Neg", v),
    "padded before": padded((0, 2), (0, 0)),
    "padded behind": padded((0, 0), (1, 3), 0.5),
    "padded on all sides": padded((1, 1), (2, 1)),
    "upper triangle": lambda b, v: b.emit("Trilu", v, upper=1, k=1),
    "lower triangle": lambda b, v: b.emit("Trilu", v, upper=0, k=-1),
    "triangle of pads": lambda b, v: b.emit("Trilu", padded((1, 2), (0, 1))(b, v), upper=0, k=3),
    "joined below": _joined(0),
    "joined behind": _joined(1),
    "slice": lambda b, v: cut(b, v, (3, 17), (-1, -2), (3, 8)),
    "padded slice": lambda b, v: padded((0, 1), (1, 1))(b, cut(b, v, (0, 1), (2, 3), (3, 6))),
    "transposed and padded": lambda b, v: padded((1, 1), (1, 0))(b, b.transpose(v, (1, 0))),
    "sums of rows": lambda b, v: b.reduce("Sum", padded((0, 1), (0, 2))(b, v), (1,)),
    "sums of columns": lambda b, v: b.reduce("Sum", padded((1, 0), (0, 2))(b, v), (0,)),
    "largest": lambda b, v: b.reduce("Max", padded((1, 1), (0, 2), 1.0)(b, v), (0, 1)),
    "softmax": lambda b, v: b.emit("Softmax", padded((0, 1), (1, 0), 1.0)(b, v), axis=1),
    "left factor": lambda b, v: b.emit("MatMul", padded((0, 1), (1, 0))(b, v), b.input("w", (M + 1, 7), "f32")),
    "right factor": lambda b, v: b.emit("MatMul", b.input("w", (7, N + 1), "f32"), padded((1, 1), (0, 1))(b, v)),
    "convolved": _convolved,
    "pooled": _pooled,
}


@pytest.mark.parametrize("gather", GATHERS)
def test_whatever_reads_a_gathered_value_reads_what_was_gathered(gather: str) -> None:
    check(*(given(f"{gather}, {use}", GATHERS[gather], USES[use], most=1) for use in USES))


def test_a_reduction_over_gathered_values_in_parts_is_right() -> None:
    """Long enough for two phases: the parts end in a guard of their own."""
    x, at = tensor("X", (50, 3)), tensor("I", (4500,), "i64")
    j, k = axis(3, "j"), reduce_axis(4500, "k")
    indices = {"I": np.random.default_rng(0).integers(-50, 50, 4500)}
    check(Given("in parts", Task([compute("Y", j, sd.sum(x[clamped(wrapped(at[k], 50), 50), j], k))]), indices))
