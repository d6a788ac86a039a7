"""The reference interpreter against plain NumPy formulas."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir import build, interp
from stormdrop.ir.expr import Const, Dtype, Expr, binary, call, select
from stormdrop.ir.interp import evaluate, magnitude, sample
from stormdrop.ir.tensor import Task, Tensor, axis, compute, reduce_axis, tensor

Array = NDArray[Any]
EPS = 2.0**-23


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def elementwise(function: Callable[[Expr], Expr], values: list[float] | Array, dtype: Dtype = "f32") -> Array:
    """`function` of every value, through a task."""
    array = np.asarray(values, {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}[dtype])
    x, i = tensor("X", array.shape, dtype), axis(len(array))
    return evaluate(Task([compute("Y", i, function(x[i]))]), {"X": array})["Y"]


def matmul(n: int, m: int, k: int) -> Task:
    a, b = tensor("A", (n, k)), tensor("B", (k, m))
    i, j, r = axis(n), axis(m), reduce_axis(k)
    return Task([compute("Y", (i, j), build.sum(a[i, r] * b[r, j], r))])


def softmax(m: int, n: int) -> Task:
    x = tensor("X", (m, n))
    i, j, k = axis(m), axis(n), reduce_axis(n)
    largest = compute("M", i, build.reduce_max(x[i, k], k))
    e = compute("E", (i, j), build.exp(x[i, j] - largest[i]))
    total = compute("S", i, build.sum(e[i, k], k))
    return Task([compute("Y", (i, j), e[i, j] / total[i])])


def test_a_matrix_product(rng: np.random.Generator):
    a, b = rng.standard_normal((5, 7)).astype("f4"), rng.standard_normal((7, 3)).astype("f4")
    task = matmul(5, 3, 7)
    y = evaluate(task, {"A": a, "B": b})["Y"]
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-6)
    wide = evaluate(task, {"A": a, "B": b}, precision="f64")["Y"]
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, a.astype("f8") @ b.astype("f8"), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 10, 64])
def test_small_chunks_change_nothing(chunk: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    arrays = {"A": rng.standard_normal((5, 7)).astype("f4"), "B": rng.standard_normal((7, 3)).astype("f4")}
    task = matmul(5, 3, 7)
    whole, scales = evaluate(task, arrays)["Y"], magnitude(task, arrays)["Y"]
    monkeypatch.setattr(interp, "CHUNK_POINTS", chunk)
    np.testing.assert_array_equal(evaluate(task, arrays)["Y"], whole)
    np.testing.assert_array_equal(magnitude(task, arrays)["Y"], scales)
    found = sample(task, arrays, 50, rng)["Y"]
    np.testing.assert_allclose(found.values, whole[found.indices], rtol=1e-5, atol=1e-6)


def test_a_body_without_the_reduce_axis_counts_every_term():
    x, i, k = tensor("X", (3,)), axis(3), reduce_axis(5)
    y = evaluate(Task([compute("Y", i, build.sum(x[i], k))]), {"X": np.array([1, 2, 3], "f4")})["Y"]
    np.testing.assert_array_equal(y, [5, 10, 15])


@pytest.mark.parametrize(
    ("reduce", "expected"), [(build.sum, 10), (build.prod, 24), (build.reduce_max, 4), (build.reduce_min, 1)]
)
def test_reductions_without_axes_of_their_own(reduce: Callable[..., Expr], expected: int):
    x, k = tensor("X", (4,), "i32"), reduce_axis(4)
    y = evaluate(Task([compute("Y", (), reduce(x[k], k))]), {"X": np.array([1, 2, 3, 4], "i4")})["Y"]
    assert y.shape == ()
    assert y.dtype == np.int32
    assert y == expected


def test_an_empty_sum_is_zero():
    x, i, k = tensor("X", (2, 0)), axis(2), reduce_axis(0)
    y = evaluate(Task([compute("Y", i, build.sum(x[i, k], k))]), {"X": np.zeros((2, 0), "f4")})["Y"]
    np.testing.assert_array_equal(y, [0, 0])


def test_nan_propagates_through_max_and_min():
    values = [1.0, math.nan, -1.0]
    assert np.isnan(elementwise(lambda x: build.maximum(x, 0.0), values)).tolist() == [False, True, False]
    assert np.isnan(elementwise(lambda x: build.minimum(x, 0.0), values)).tolist() == [False, True, False]
    assert np.isnan(elementwise(build.relu, values)).tolist() == [False, True, False]
    x, k = tensor("X", (3,)), reduce_axis(3)
    assert np.isnan(evaluate(Task([compute("Y", (), build.reduce_max(x[k], k))]), {"X": np.array(values, "f4")})["Y"])


REFERENCE: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda v: 1 / math.sqrt(v),
    "tanh": math.tanh,
    "expm1": math.expm1,
    "log1p": math.log1p,
    "erf": math.erf,
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "sin": math.sin,
    "cos": math.cos,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "neg": lambda v: -v,
    "abs": abs,
}


@pytest.mark.parametrize("fn", REFERENCE)
def test_functions(fn: str):
    values = np.array([0.1, 0.5, 1.0, 2.5, 3.75])
    y = elementwise(lambda x: call(fn, x), values, "f64")
    np.testing.assert_allclose(y, [REFERENCE[fn](v) for v in values], rtol=1e-14)
    assert elementwise(lambda x: call(fn, x), values).dtype == np.float32


def test_integers_to_a_power_are_exact_and_wrap():
    values = np.array([11, 3, -3, -1, 1, 0, 2])
    cubes = elementwise(lambda x: binary("pow", x, 14), values, "i64")
    assert cubes.tolist() == [11**14, 3**14, 3**14, 1, 1, 0, 2**14]
    wrapped = elementwise(lambda x: binary("pow", x, 31), values, "i32")
    assert wrapped.tolist() == [(v**31 + 2**31) % 2**32 - 2**31 for v in values.tolist()]
    inverse = elementwise(lambda x: binary("pow", x, -3), values, "i64")
    assert inverse.tolist() == [0, 0, 0, -1, 1, 0, 0]


def test_remainders_and_signs_of_floats_are_those_of_c():
    values = [0.5, -0.5, -0.0, 0.0, math.inf, math.nan]
    rests = elementwise(lambda x: binary("fmod", x, 0.1), values, "f64")
    np.testing.assert_array_equal(rests[:4], [math.fmod(v, 0.1) for v in values[:4]])
    assert np.isnan(rests[4:]).all()
    signs = elementwise(lambda x: binary("copysign", Const(2.0, "f64"), x), values[:5], "f64")
    assert signs.tolist() == [2.0, -2.0, -2.0, 2.0, 2.0]


def test_sigmoid_is_right_where_the_exponential_overflows():
    np.testing.assert_allclose(
        elementwise(lambda x: call("sigmoid", x), [-100.0, 100.0]), [math.exp(-100), 1], rtol=0.1
    )


def test_integer_division_rounds_down():
    values = np.array([-7, -1, 0, 7])
    np.testing.assert_array_equal(elementwise(lambda x: x // 3, values, "i32"), [-3, -1, 0, 2])
    np.testing.assert_array_equal(elementwise(lambda x: x % 3, values, "i32"), [2, 2, 0, 1])


def test_casts_to_integers_saturate():
    values = [math.nan, math.inf, -math.inf, 3e9, -3e9, 2.9, -2.9]
    y = elementwise(lambda x: build.cast(x, "i32"), values)
    assert y.tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2, -2]
    wide = elementwise(lambda x: build.cast(x, "i64"), [1e30, -1e30, math.nan, 2.0**62])
    assert wide.tolist() == [2**63 - 1, -(2**63), 0, 2**62]
    truth = elementwise(lambda x: build.cast(x, "bool"), [0.0, -0.0, 0.5, math.nan])
    assert truth.tolist() == [False, False, True, True]


def test_what_is_not_chosen_is_not_read():
    x, i = tensor("X", (3,)), axis(7)
    inside = (i >= 2) & (i < 5)
    y = evaluate(Task([compute("Y", i, select(inside, x[i - 2], -1.0))]), {"X": np.array([1, 2, 3], "f4")})["Y"]
    np.testing.assert_array_equal(y, [-1, -1, 1, 2, 3, -1, -1])


def test_nested_guards_are_joined():
    x, i, j = tensor("X", (2, 2)), axis(4), axis(4)
    body = select(i < 2, select(j < 2, x[i, j], 0.0), 1.0)
    y = evaluate(Task([compute("Y", (i, j), body)]), {"X": np.full((2, 2), 5, "f4")})["Y"]
    np.testing.assert_array_equal(y, [[5, 5, 0, 0], [5, 5, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])


def test_a_gather_reads_by_data_and_checks_it():
    table, at, i = tensor("T", (4,)), tensor("I", (3,), "i32"), axis(3)
    task = Task([compute("Y", i, table[at[i]])])
    values = np.array([10, 11, 12, 13], "f4")
    np.testing.assert_array_equal(evaluate(task, {"T": values, "I": np.array([3, 0, 3], "i4")})["Y"], [13, 10, 13])
    for bad in (4, -1):
        with pytest.raises(UserError, match="reads outside"):
            evaluate(task, {"T": values, "I": np.array([0, bad, 0], "i4")})


def test_wrong_arrays_are_refused():
    task = matmul(2, 2, 2)
    good = np.zeros((2, 2), "f4")
    with pytest.raises(UserError, match="no array is given for input B"):
        evaluate(task, {"A": good})
    with pytest.raises(UserError, match=r"float32\[2, 3\]"):
        evaluate(task, {"A": good, "B": np.zeros((2, 3), "f4")})
    with pytest.raises(UserError, match="float64"):
        evaluate(task, {"A": good, "B": np.zeros((2, 2))})


def test_magnitude_of_a_product_is_the_sum_of_absolute_terms(rng: np.random.Generator):
    a, b = rng.standard_normal((5, 16)).astype("f4"), rng.standard_normal((16, 3)).astype("f4")
    scale = magnitude(matmul(5, 3, 16), {"A": a, "B": b})["Y"]
    np.testing.assert_allclose(scale, (np.abs(a).astype("f8") @ np.abs(b)) * (1 + math.sqrt(16) / 2))


def test_moved_and_maximised_data_must_be_exact(rng: np.random.Generator):
    x, i, j, k = tensor("X", (4, 5)), axis(5), axis(5), reduce_axis(4)
    largest = compute("M", i, build.reduce_max(x[k, i], k))
    task = Task([compute("Y", j, build.relu(largest[j]))])
    assert not magnitude(task, {"X": rng.standard_normal((4, 5)).astype("f4")})["Y"].any()


def test_relu_keeps_the_scale_where_the_sum_is_negative():
    x, i, k = tensor("X", (1, 3)), axis(1), reduce_axis(3)
    total = compute("S", i, build.sum(x[i, k], k))
    scale = magnitude(Task([compute("Y", i, build.relu(total[i]))]), {"X": np.array([[1, -2, 0.5]], "f4")})["Y"]
    assert scale[0] >= 3.5


def chained(rng: np.random.Generator) -> tuple[Task, dict[str, Array]]:
    """sqrt(mean of squares) and a logistic of a product, so that errors pass through several functions."""
    x, w = tensor("X", (9, 33)), tensor("W", (33, 8))
    i, j, k = axis(9), axis(8), reduce_axis(33)
    product = compute("P", (i, j), build.sum(x[i, k] * w[k, j], k))
    squares = compute("Q", i, build.sum(x[i, k] * x[i, k], k))
    body = build.sigmoid(product[i, j] * build.rsqrt(squares[i] + 1e-3)) / (build.exp(build.tanh(product[i, j])) + 1.0)
    arrays = {"X": rng.standard_normal((9, 33)).astype("f4"), "W": rng.standard_normal((33, 8)).astype("f4")}
    return Task([compute("Y", (i, j), body)]), arrays


def test_float32_stays_within_the_magnitude(rng: np.random.Generator):
    x = rng.standard_normal((6, 50)).astype("f4") * 20
    for task, arrays in [(softmax(6, 50), {"X": x}), chained(rng)]:
        error = np.abs(evaluate(task, arrays)["Y"] - evaluate(task, arrays, precision="f64")["Y"])
        bound = EPS * magnitude(task, arrays)["Y"]
        assert (error <= 2 * bound).all()
        assert (error > bound / 1000).any()


def test_samples_agree_with_the_whole(rng: np.random.Generator):
    x = rng.standard_normal((17, 13)).astype("f4")
    for task, arrays in [(softmax(17, 13), {"X": x}), chained(rng)]:
        found = sample(task, arrays, 40, rng)["Y"]
        assert 20 <= len(found.values) <= 40
        whole, scales = evaluate(task, arrays, precision="f64")["Y"], magnitude(task, arrays)["Y"]
        np.testing.assert_allclose(found.values, whole[found.indices], rtol=1e-13)
        np.testing.assert_allclose(found.magnitudes, scales[found.indices], rtol=1e-13)


def test_a_sample_needs_little_of_a_large_task(rng: np.random.Generator):
    a, b = rng.standard_normal((3000, 400)).astype("f4"), rng.standard_normal((400, 3000)).astype("f4")
    found = sample(matmul(3000, 3000, 400), {"A": a, "B": b}, 100, rng)["Y"]
    i, j = found.indices
    np.testing.assert_allclose(found.values, np.einsum("nk,kn->n", a[i].astype("f8"), b[:, j].astype("f8")), rtol=1e-9)
    assert {0, 2999} <= set(i.tolist())


def test_a_task_with_two_outputs_and_a_scalar(rng: np.random.Generator):
    x, i, k = tensor("X", (6,)), axis(6), reduce_axis(6)
    total: Tensor = compute("S", (), build.sum(x[k], k))
    task = Task([total, compute("D", i, x[i] - total[()])])
    values = rng.standard_normal(6).astype("f4")
    outputs = evaluate(task, {"X": values})
    np.testing.assert_allclose(outputs["S"], values.sum(), rtol=1e-5)
    np.testing.assert_allclose(outputs["D"], values - values.sum(), rtol=1e-5)
    found = sample(task, {"X": values}, 5, rng)
    np.testing.assert_allclose(found["S"].values, values.astype("f8").sum())
