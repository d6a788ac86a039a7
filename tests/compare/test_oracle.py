"""Judging outputs, and the two who know what is right."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import ArrayLike

from stormdrop.base.errors import UserError
from stormdrop.compare.oracle import Agreement, Reference, agreement, agreements, has_onnxruntime
from stormdrop.compiler.compile import read_graph
from stormdrop.model.onnx_session import OnnxSession
from tests.support.tiny_onnx import INPUT, OUTPUT, dense

NAN, INF = float("nan"), float("inf")


def judged(found: ArrayLike, expected: ArrayLike, dtype: str = "f4", tolerance: float = 1e-3) -> Agreement:
    return agreement("y", np.array(found, dtype), np.array(expected, dtype), tolerance)


def test_an_error_is_judged_by_the_largest_magnitude() -> None:
    found = judged([100.0, 0.05], [100.0, 0.0])
    assert found.absolute == pytest.approx(0.05)
    assert found.relative == pytest.approx(5e-4)
    assert found.ok
    assert not judged([1.0, 0.05], [1.0, 0.0]).ok


def test_nans_and_infinities_must_be_where_they_are_expected() -> None:
    assert judged([NAN, INF, -INF, 1.0], [NAN, INF, -INF, 1.0]).ok
    assert not judged([NAN, 1.0], [1.0, 1.0]).ok
    assert not judged([1.0, 1.0], [NAN, 1.0]).ok
    assert not judged([INF, 1.0], [-INF, 1.0]).ok
    assert judged([INF], [1.0]).absolute == INF
    assert judged([NAN, NAN], [NAN, NAN]).ok


def test_whole_numbers_and_truth_values_must_be_equal() -> None:
    assert judged([1000, 2], [1000, 2], "i8").ok
    assert not judged([1000000, 2], [1000000, 3], "i8").ok
    assert not judged([2**62 + 1], [2**62], "i8").ok
    assert not judged([2**62 + 1], [2**62], "u8").ok
    assert judged([-(2**63)], [2**63 - 1], "i8").absolute > 1e18
    assert judged([True, False], [True, False], "?").ok
    assert not judged([True, True], [True, False], "?").ok


def test_other_shapes_and_types_cannot_be_right() -> None:
    assert not judged([1.0], [[1.0]]).ok
    assert not agreement("y", np.ones(2, np.float64), np.ones(2, np.float32)).ok


def test_outputs_of_zeros_and_of_nothing_can_be_right() -> None:
    assert judged([0.0, 0.0], [0.0, 0.0]).ok
    assert judged([1e-12], [0.0]).ok
    assert not judged([1e-3], [0.0]).ok
    assert judged([], []).ok


def test_an_error_within_the_absolute_tolerance_is_right_at_any_magnitude() -> None:
    near, far = np.array([3e-10, 1e-9], np.float32), np.array([4e-9, 9e-9], np.float32)
    assert agreement("y", near, far).ok
    assert agreement("y", near, far).relative > 1e-3
    assert not agreement("y", near, far, allowed=1e-10).ok
    assert not judged([1.0, 2.0], [1.0, 2.01]).ok
    assert not agreement("k", np.array([1]), np.array([2]), allowed=10).ok


def test_an_output_that_the_other_side_does_not_have_is_an_error() -> None:
    with pytest.raises(UserError, match="is it the same model"):
        agreements(["y"], {"y": np.ones(1)}, {"z": np.ones(1)})


def test_both_oracles_say_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = dense(tmp_path)
    x = {INPUT: np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32), "unread": np.ones(1)}
    ours, theirs = Reference(read_graph(path)).run(x), OnnxSession(str(path), 1).run(x)
    assert all(a.ok for a in agreements([OUTPUT, "top"], ours, theirs, 1e-6))
    assert all(a.ok for a in agreements([OUTPUT, "top"], OnnxSession(path.read_bytes(), 1).run(x), theirs, 1e-6))


def test_what_onnxruntime_refuses_is_a_users_error(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_text("nothing")
    with pytest.raises(UserError, match="does not take the model"):
        OnnxSession(str(tmp_path / "m.onnx"), 1)
    with pytest.raises(UserError, match="does not run the model"):
        OnnxSession(str(dense(tmp_path)), 1).run({INPUT: np.ones((1, 1), np.float32)})


def test_without_onnxruntime_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"onnxruntime cannot be imported .*pip install"):
        OnnxSession(b"", 1)
    monkeypatch.setattr("stormdrop.compare.oracle.find_spec", dict[str, object]().get)
    assert not has_onnxruntime()


def test_quantised_numbers_may_differ_by_one_and_halves_by_their_roundings() -> None:
    x = np.array([3, 200, 0], np.uint8)
    assert agreement("y", x, x + np.uint8(1)).ok
    assert not agreement("y", x, x + np.uint8(2)).ok
    assert not agreement("y", x.astype(np.int32), x.astype(np.int32) + 1).ok
    for dtype, near, far in ((np.float16, 1.01, 1.05), (ml_dtypes.bfloat16, 1.05, 1.3)):
        y = np.array([1.0, -2.0], dtype)
        assert agreement("y", (y.astype(np.float32) * near).astype(dtype), y).ok
        assert not agreement("y", (y.astype(np.float32) * far).astype(dtype), y).ok
