"""Integers of 8 to 64 bits, with and without sign: kernels and the interpreter compute what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.codegen.evaluate import preimage
from stormdrop.ir import build as sd
from stormdrop.ir.build import power
from stormdrop.ir.dtypes import INTEGERS, NUMPY, Dtype, integer_range, is_exact, wrapped
from stormdrop.ir.expr import Const, Expr, binary, call, compare, identity_of
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.model.kernel import build as kernel_of
from stormdrop.operators.broadcast import elementwise
from stormdrop.operators.scalar import divide
from tests.support import crew
from tests.support.trials import Given, targets

Array = NDArray[Any]
N = 203


def _numbers(dtype: Dtype, seed: int, n: int = N) -> Array:
    low, high = integer_range(dtype)
    ends = np.array([low, low + 1, high, high - 1, 0, 1], dtype=object)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(low, high, n, NUMPY[dtype], endpoint=True)
    return np.where(rng.random(n) < 0.3, rng.choice(ends, n).astype(NUMPY[dtype]), drawn)


BINARY: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[Array, Array], Array]]] = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "floordiv": (lambda a, b: a // b, np.floor_divide),
    "mod": (lambda a, b: a % b, np.mod),
    "max": (lambda a, b: binary("max", a, b), np.maximum),
    "min": (lambda a, b: binary("min", a, b), np.minimum),
    "lt": (lambda a, b: compare("lt", a, b), np.less),
    "ge": (lambda a, b: compare("ge", a, b), np.greater_equal),
    "eq": (lambda a, b: compare("eq", a, b), np.equal),
    "where": (lambda a, b: sd.where(a > b, a, b), np.maximum),
}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_arithmetic_and_comparisons_are_numpys(dtype: Dtype) -> None:
    x, y = _numbers(dtype, 1), _numbers(dtype, 2)
    for name, (ours, theirs) in BINARY.items():
        task = Task(
            [elementwise(lambda e, f=ours: f(e[0], e[1]), [tensor("X", (N,), dtype), tensor("Z", (N,), dtype)])]
        )
        with np.errstate(all="ignore"):
            wanted = np.where(y == 0, 0, theirs(x, y)) if name in ("floordiv", "mod") else theirs(x, y)
        for target in targets():
            np.testing.assert_array_equal(kernel_of(task, threads=1, target=target)(x, y), wanted, err_msg=name)
        np.testing.assert_array_equal(evaluate(task, {"X": x, "Z": y})["Y"], wanted, err_msg=name)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_and_extrema_wrap_and_compare_in_the_type(dtype: Dtype) -> None:
    x = _numbers(dtype, 3, 5 * 67).reshape(5, 67)
    for combine, theirs in ((sd.sum, np.sum), (sd.prod, np.prod), (sd.reduce_max, np.max), (sd.reduce_min, np.min)):
        t, i, k = tensor("X", (5, 67), dtype), axis(5), reduce_axis(67)
        task = Task([compute("Y", i, combine(t[i, k], k))])
        wanted = theirs(x, axis=1).astype(x.dtype)
        for target in targets():
            np.testing.assert_array_equal(kernel_of(task, threads=1, target=target)(x), wanted)
        np.testing.assert_array_equal(evaluate(task, {"X": x})["Y"], wanted)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_a_float_saturates_and_an_integer_wraps(source: Dtype, dtype: Dtype) -> None:
    low, high = integer_range(dtype)
    edges = [low - 1.0, low - 0.9, low + 0.9, high - 0.1, high + 0.9, high + 1.0, -0.9, 0.9, 1e30, -1e30]
    x = np.array([*edges, np.nan, np.inf, -np.inf, -0.0, *np.linspace(low, high, 40)], NUMPY[source])
    wanted = [0 if np.isnan(v) else int(np.clip(np.trunc(float(v)), low, high)) if np.isfinite(v) else 0 for v in x]
    wanted[len(edges) + 1 : len(edges) + 3] = [high, low]
    saturated = Task([elementwise(lambda e: sd.cast(e[0], dtype), [tensor("X", x.shape, source)])])
    np.testing.assert_array_equal(evaluate(saturated, {"X": x})["Y"], wanted)
    whole = np.array([low - 1, high + 1, 2**40 + 3, -5, 300], np.int64)
    cut = Task([elementwise(lambda e: sd.cast(e[0], dtype), [tensor("X", whole.shape, "i64")])])
    for target in targets():
        np.testing.assert_array_equal(kernel_of(saturated, threads=1, target=target)(x), wanted)
        np.testing.assert_array_equal(
            kernel_of(cut, threads=1, target=target)(whole), [wrapped(int(v), dtype) for v in whole]
        )


def test_types_know_which_others_hold_all_their_values() -> None:
    assert is_exact("u8", "i16")
    assert is_exact("u16", "f32")
    assert is_exact("f16", "f32")
    assert is_exact("i32", "f64")
    assert not is_exact("u8", "i8")
    assert not is_exact("i32", "f32")
    assert not is_exact("i16", "f16")
    assert not is_exact("f16", "bf16")
    assert identity_of("max", "u8") == 0
    assert identity_of("min", "i16") == 32767
    assert Const(-1, "u8").value == 255


def test_quotients_powers_and_magnitudes_of_unsigned_numbers() -> None:
    x, y = _numbers("u8", 5), _numbers("u8", 6) % 9
    operations: dict[str, tuple[Callable[[list[Expr]], Expr], Array]] = {
        "quotient": (lambda e: divide(e[0], e[1]), np.where(y == 0, 0, x // np.maximum(y, 1))),
        "power": (lambda e: power(e[0], e[1]), np.array([wrapped(int(a) ** int(b), "u8") for a, b in zip(x, y)])),
        "magnitude": (lambda e: call("abs", e[0]) + e[1], x + y),
    }
    for name, (ours, wanted) in operations.items():
        operands = [tensor("X", (N,), "u8"), tensor("Z", (N,), "u8")]
        task = Task([elementwise(lambda e, f=ours: f(list(e)), operands)])
        np.testing.assert_array_equal(kernel_of(task)(x, y), wanted, err_msg=name)
        np.testing.assert_array_equal(evaluate(task, {"X": x, "Z": y})["Y"], wanted, err_msg=name)


def _product(m: int, n: int, k: int, constant: bool) -> Task:
    a, b = tensor("A", (m, k), "i16"), tensor("B", (k, n), "i16", constant)
    i, j, r = axis(m), axis(n), reduce_axis(k)
    return Task([compute("Y", (i, j), sd.sum(sd.cast(a[i, r], "i32") * sd.cast(b[r, j], "i32"), r))])


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 33, 64), (7, 17, 31), (1, 40, 1)])
def test_products_of_i16_are_summed_exactly_in_i32(m: int, n: int, k: int, constant: bool) -> None:
    """Sums of up to 64 products of i16 overflow i32, and wrap around; pairs of them are multiplied where they can."""
    outcome = crew.check([Given(f"i16 product {m} {n} {k} {constant}", _product(m, n, k, constant), most=6)])
    assert outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


def test_the_border_of_differences_is_the_zero_point() -> None:
    x, i = tensor("X", (9,), "u8"), axis(9)
    assert preimage(sd.cast(x[i], "i16") - Const(7, "i16"), 0) == 7
    assert preimage(sd.cast(x[i], "i16") + Const(-7, "i16"), 0) == 7
    assert preimage(sd.cast(x[i], "i16") + Const(7, "i16"), 0) is None  # -7 is no u8
    assert preimage(sd.cast(x[i], "f32") * 2.0, 0.0) is None
