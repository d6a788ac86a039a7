"""Formulas as users write them: names of axes, equality, powers, reductions inside formulas, element types."""

from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import NUMPY, PAIRS, dtype_of
from stormdrop.ir.expr import Axis, Cmp, Const, Expr, Load
from stormdrop.ir.interp import evaluate

X = sd.tensor("x", (4, 8))
I, J, K = sd.axis(4), sd.axis(8), sd.reduce_axis(8)
VALUES = np.random.default_rng(0).standard_normal((4, 8), np.float32)


def value(body: Expr, *axes: Axis) -> Any:
    """The values of a formula over `axes`, by the reference interpreter."""
    task = sd.Task([sd.compute("Y", axes, body)])
    return evaluate(task, {"x": VALUES} if task.inputs else {})["Y"]


def test_unnamed_axes_print_with_different_letters() -> None:
    a, b = sd.tensor("A", (512, 512)), sd.tensor("B", (512, 512))
    i, j, k = sd.axis(512), sd.axis(512), sd.reduce_axis(512)
    body = sd.sum(a[i, k] * b[k, j], k)
    assert str(body) == "sum(A[i, k] * B[k, j], k)"
    text = str(sd.Task([sd.compute("C", (i, j), body)]))
    assert "C[i:512, j:512] = sum(A[i, k] * B[k, j]; k:512)" in text


def test_axes_of_one_name_get_names_of_their_own_and_others_keep_theirs() -> None:
    rows, a, b = sd.axis(2, "row"), sd.axis(2, "n"), sd.axis(2, "n")
    many = [sd.axis(1) for _ in range(12)]
    assert "Y[row:2, n:2, i:2]" in str(sd.Task([sd.compute("Y", (rows, a, b), rows + a + b)]))
    tensor = sd.compute("Z", many, Const(1.0, "f32"))
    assert tensor.compute is not None
    assert len({axis.name for axis in tensor.compute.axes}) == 12


def test_a_task_has_the_same_digest_with_named_and_unnamed_axes() -> None:
    i, j = sd.axis(4, "row"), sd.axis(8, "column")
    unnamed, named = (sd.Task([sd.compute("Y", (a, b), X[a, b] * 2)]) for a, b in ((I, J), (i, j)))
    assert unnamed.digest == named.digest


def test_equality_of_expressions_is_an_expression() -> None:
    assert isinstance(X[I, J] == 0, Cmp)
    assert isinstance(X[I, J] != X[I, 0], Cmp)
    np.testing.assert_array_equal(value(sd.where(I == J, 1.0, X[I, J]), I, J), np.where(np.eye(4, 8), 1, VALUES))
    np.testing.assert_array_equal(value(sd.where(I != J, 0.0, X[I, J]), I, J), VALUES * np.eye(4, 8))


def test_equal_expressions_have_no_truth_value() -> None:
    for condition in (X[I, J] == X[I, 0], X[I, J] != 0, I + 1 == J, I < J):
        with pytest.raises(UserError, match=r"no truth value.*sd\.where"):
            bool(condition)


def test_an_axis_is_found_among_axes() -> None:
    assert I in (J, I)
    assert I not in (J, K)
    assert (J, I, K).index(K) == 2
    assert bool(I == I)
    assert not bool(I != I)
    assert I != "i"


def test_an_expression_of_another_type_cannot_be_compared() -> None:
    with pytest.raises(UserError, match=r"eq needs operands of one type.*sd\.cast"):
        _ = X[I, J] == I


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, 2.5])
def test_powers_are_those_of_numpy(exponent: float) -> None:
    positive = abs(X[I, J]) + 0.5
    np.testing.assert_allclose(
        value(positive**exponent, I, J), (abs(VALUES) + np.float32(0.5)) ** np.float32(exponent), rtol=1e-5
    )


def test_numbers_stand_on_either_side_of_an_operator() -> None:
    np.testing.assert_allclose(value(2 ** X[I, J], I, J), 2**VALUES, rtol=1e-5)
    np.testing.assert_allclose(value(np.float32(2) * X[I, J] - np.float32(1), I, J), 2 * VALUES - 1, rtol=1e-6)  # pyright: ignore[reportOperatorIssue]
    np.testing.assert_array_equal(value(10 // (J + 1) + 10 % (J + 1), J), 10 // np.arange(1, 9) + 10 % np.arange(1, 9))


def test_not_and_absolute_value_are_operators() -> None:
    np.testing.assert_array_equal(value(abs(X[I, J]), I, J), abs(VALUES))
    np.testing.assert_array_equal(value(sd.where(~(X[I, J] > 0), 0.0, X[I, J]), I, J), np.maximum(VALUES, 0))


def test_a_mean_divides_by_the_number_of_summands() -> None:
    r = sd.reduce_axis(4)
    np.testing.assert_allclose(value(sd.mean(X[I, K], K), I), VALUES.mean(1), rtol=1e-5)
    np.testing.assert_allclose(value(sd.mean(X[r, K], r, K)), VALUES.mean(), rtol=1e-4)


def test_reductions_stand_inside_formulas_and_inside_each_other() -> None:
    highest = sd.max(X[I, K], K)
    softmax = sd.exp(X[I, J] - highest) / sd.sum(sd.exp(X[I, K] - highest), K)
    e = np.exp(VALUES - VALUES.max(1, keepdims=True))
    np.testing.assert_allclose(value(softmax, I, J), e / e.sum(1, keepdims=True), rtol=1e-5)
    r = sd.reduce_axis(8)
    variance = sd.mean((X[I, K] - sd.mean(X[I, r], r)) ** 2, K)
    np.testing.assert_allclose(value(variance, I), VALUES.var(1), rtol=1e-4)


def test_a_reduction_that_a_formula_has_twice_is_computed_once() -> None:
    highest = sd.max(X[I, K], K)
    task = sd.Task([sd.compute("Y", (I, J), (X[I, J] - highest) * highest)])
    assert [t.name for t in task.variants[0].stages] == ["Y_1", "Y"]


def test_a_kernel_of_a_formula_with_reductions_computes_it() -> None:
    kernel = sd.build(sd.Task([sd.compute("Y", (I, J), X[I, J] / sd.sum(abs(X[I, K]), K))]), threads=1)
    np.testing.assert_allclose(kernel(VALUES), VALUES / abs(VALUES).sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sd.sum(X, axis=1),  # pyright: ignore[reportArgumentType]
        lambda: sd.sum(X),  # pyright: ignore[reportArgumentType]
        lambda: sd.sum(X[I, K]),
        lambda: sd.sum(X[I, K], 1),  # pyright: ignore[reportArgumentType]
        lambda: sd.mean(X, axis=0),  # pyright: ignore[reportArgumentType]
    ],
)
def test_numpys_spelling_of_a_reduction_is_refused_with_the_right_one(wrong: Any) -> None:
    with pytest.raises(UserError, match=r"write sd\.sum\(x\[i, k\], k\) with k = sd\.reduce_axis"):
        wrong()


def test_a_function_of_a_tensor_asks_for_an_element() -> None:
    with pytest.raises(UserError, match=r"exp takes an expression such as x\[i, j\], not x: f32\[4, 8\]"):
        sd.exp(X)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("given", "dtype"), [("float32", "f32"), (np.float32, "f32"), (np.dtype("int8"), "i8")])
def test_element_types_have_numpys_names_too(given: Any, dtype: str) -> None:
    assert sd.tensor("x", (2,), given).dtype == dtype
    assert sd.cast(X[0, 0], given).dtype == dtype


def test_every_element_type_is_known_by_its_numpy_type() -> None:
    for name, kind in NUMPY.items():
        if name not in PAIRS:
            assert dtype_of(name) == dtype_of(kind) == dtype_of(np.dtype(kind)) == name
    for wrong in ("f9", None, object, "bf16x3"):
        with pytest.raises(UserError, match="unknown element type"):
            dtype_of(wrong)


def test_build_takes_everything_after_the_task_by_name() -> None:
    task = sd.Task([sd.compute("Y", (I, J), X[I, J] * 2)])
    with pytest.raises(TypeError, match="positional"):
        sd.build(task, {})  # pyright: ignore[reportCallIssue]
    assert isinstance(X[I, J], Load)
