"""What a user does with `sd.build` and its kernels: right calls, wrong calls, odd arrays, odd places to call from."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.ir.expr import NUMPY, Dtype, Expr
from stormdrop.ir.interp import evaluate
from stormdrop.operators import catalogue

Array = NDArray[Any]
N, M, K = 13, 37, 29
FLOATS: tuple[Dtype, ...] = ("f32", "f64")
INTEGERS: tuple[Dtype, ...] = ("i32", "i64")


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def normal(*shape: int, dtype: Dtype = "f32") -> Array:
    return rng().standard_normal(shape).astype(NUMPY[dtype])


def product(n: int = N, m: int = M, k: int = K, dtype: Dtype = "f32") -> sd.Task:
    """C = A @ B with a constant B."""
    A, B = sd.tensor("A", (n, k), dtype), sd.tensor("B", (k, m), dtype, constant=True)
    i, j, q = sd.axis(n), sd.axis(m), sd.reduce_axis(k)
    return sd.Task([sd.compute("C", (i, j), sd.sum(A[i, q] * B[q, j], q))], name="product")


def mapped(f: Callable[[Expr], Expr], n: int, dtype: Dtype = "f32") -> sd.Task:
    """Y[i] = f(X[i])."""
    X, i = sd.tensor("X", (n,), dtype), sd.axis(n)
    return sd.Task([sd.compute("Y", i, f(X[i]))], name="mapped")


def reduced(
    combine: Callable[..., Expr], shape: tuple[int, int], over: tuple[int, ...], dtype: Dtype = "f32"
) -> sd.Task:
    """A matrix reduced over some of its dimensions."""
    X = sd.tensor("X", shape, dtype)
    at = [sd.reduce_axis(n) if d in over else sd.axis(n) for d, n in enumerate(shape)]
    kept = [a for a in at if a.kind == "spatial"]
    return sd.Task([sd.compute("Y", kept, combine(X[tuple(at)], *(at[d] for d in over)))], name="reduced")


def moments() -> sd.Task:
    """Two outputs of different shapes, the second of which reads the first: row sums and the rows less their sums."""
    X = sd.tensor("X", (N, M))
    i, k = sd.axis(N), sd.reduce_axis(M)
    total = sd.compute("S", i, sd.sum(X[i, k], k))
    i, j = sd.axis(N), sd.axis(M)
    return sd.Task([total, sd.compute("D", (i, j), X[i, j] - total[i])], name="moments")


def close(found: Array, wanted: Array, dtype: Dtype = "f32") -> None:
    tolerance = 1e-5 if dtype == "f32" else 1e-13
    assert found.dtype == NUMPY[dtype]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * K)


# ---- right calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_matrix_product_is_right_with_any_number_of_threads(dtype: Dtype, threads: int) -> None:
    a, b = normal(N, K, dtype=dtype), normal(K, M, dtype=dtype)[::-1]
    kernel = sd.build(product(dtype=dtype), constants={"B": b}, threads=threads)
    close(kernel(a), a @ b, dtype)
    assert kernel.threads == threads
    assert str(threads) in repr(kernel)


def test_out_is_filled_and_returned_and_its_neighbours_are_left_alone() -> None:
    a, b = normal(N, K), normal(K, M)
    around = np.full((N + 2, M), np.nan, np.float32)
    kernel = sd.build(product(), constants={"B": b})
    given = around[1:-1]
    assert kernel(a, out=given) is given
    close(given, a @ b)
    assert np.isnan(around[[0, -1]]).all()


def test_results_are_new_arrays_each_time() -> None:
    kernel = sd.build(mapped(lambda x: x * 2, 40))
    x = normal(40)
    first = kernel(x)
    kernel(-x)
    np.testing.assert_array_equal(first, x * 2)


def test_several_outputs_come_as_a_tuple_or_fill_what_is_given() -> None:
    kernel = sd.build(moments())
    x = normal(N, M)
    total, difference = kernel(x)
    close(total, x.sum(1))
    close(difference, x - x.sum(1, keepdims=True))
    given = np.full(N, np.nan, np.float32), np.full((N, M), np.nan, np.float32)
    results = kernel(x, out=given)
    for result, mine, before in zip(results, given, (total, difference)):
        assert result is mine
        np.testing.assert_array_equal(mine, before)


def test_a_full_reduction_gives_an_array_without_dimensions() -> None:
    x = normal(N, M)
    y = sd.build(reduced(sd.sum, (N, M), (0, 1)))(x)
    assert y.shape == ()
    close(y, x.sum())


def test_a_tensor_without_dimensions_takes_a_number() -> None:
    S, X, i = sd.tensor("S", ()), sd.tensor("X", (M,)), sd.axis(M)
    x = normal(M)
    kernel = sd.build(sd.Task([sd.compute("Y", i, S[()] * X[i])]))
    np.testing.assert_array_equal(kernel(np.float32(3), x), 3 * x)


def test_a_task_may_read_constants_only_or_nothing() -> None:
    W, i = sd.tensor("W", (M,), constant=True), sd.axis(M)
    w = normal(M)
    np.testing.assert_array_equal(sd.build(sd.Task([sd.compute("Y", i, W[i] * 2)]), constants={"W": w})(), w * 2)
    np.testing.assert_array_equal(sd.build(sd.Task([sd.compute("Y", i, i * 2 + 1)]))(), np.arange(1, 2 * M, 2))


def test_names_may_hold_anything() -> None:
    X, i = sd.tensor('"%\\\n é', (M,)), sd.axis(M)
    x = normal(M)
    np.testing.assert_array_equal(sd.build(sd.Task([sd.compute("}\n;", i, X[i] * 2)]))(x), x * 2)


ARITHMETIC: dict[str, tuple[Callable[[Expr], Expr], Callable[[Array], Array]]] = {
    "quotient": (lambda x: x // 7, lambda x: x // 7),
    "negative quotient": (lambda x: x // -7, lambda x: x // -7),
    "remainder": (lambda x: x % 7, lambda x: x % 7),
    "negated": (lambda x: -x * x * x, lambda x: -x * x * x),
    "relu": (sd.relu, lambda x: np.maximum(x, 0)),
    "where": (
        lambda x: sd.where((x > 3) & (x < 50) | sd.equal(x, -5), x, 1),
        lambda x: np.where((x > 3) & (x < 50) | (x == -5), x, 1),
    ),
    "comparison": (lambda x: x > 3, lambda x: x > 3),
    "cast": (lambda x: sd.cast(x, "f32") * 0.5, lambda x: x.astype(np.float32) * np.float32(0.5)),
}


@pytest.mark.parametrize("operation", ARITHMETIC)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_numpys(dtype: Dtype, operation: str) -> None:
    f, wanted = ARITHMETIC[operation]
    x = rng().integers(-100, 100, 2 * M + 1).astype(NUMPY[dtype])
    y = sd.build(mapped(f, len(x), dtype))(x)
    assert y.dtype == wanted(x).dtype
    np.testing.assert_array_equal(y, wanted(x))


@pytest.mark.parametrize(
    ("combine", "wanted"),
    [(sd.sum, np.sum), (sd.prod, np.prod), (sd.max, np.max), (sd.min, np.min)],
    ids=["sum", "prod", "max", "min"],
)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("over", [0, 1])
def test_integer_reductions_are_numpys_and_wrap_around(
    combine: Callable[..., Expr], wanted: Callable[..., Array], dtype: Dtype, over: int
) -> None:
    x = rng().integers(-(2**30), 2**30, (N, M)).astype(NUMPY[dtype])
    y = sd.build(reduced(combine, (N, M), (over,), dtype))(x)
    np.testing.assert_array_equal(y, wanted(x, axis=over).astype(x.dtype))


def test_booleans_are_numpys() -> None:
    x, y = rng().random((2, N, M)) < 0.5
    X, Y, i, j = sd.tensor("X", (N, M), "bool"), sd.tensor("Y", (N, M), "bool"), sd.axis(N), sd.axis(M)
    both = sd.compute("B", (i, j), X[i, j] & Y[i, j])
    either = sd.compute("E", (i, j), X[i, j] | Y[i, j])
    p, q = sd.build(sd.Task([both, either]))(x, y)
    np.testing.assert_array_equal(p, x & y)
    np.testing.assert_array_equal(q, x | y)
    np.testing.assert_array_equal(sd.build(reduced(sd.max, (N, M), (1,), "bool"))(x), x.any(1))
    np.testing.assert_array_equal(sd.build(reduced(sd.min, (N, M), (0,), "bool"))(x), x.all(0))


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 88.0, -200.0, 2.5, 1e-40, -3e38, 3e38], np.float32)
FUNCTIONS: dict[str, tuple[Callable[[Expr], Expr], Callable[[Array], Array]]] = {
    "exp": (sd.exp, np.exp),
    "log": (sd.log, np.log),
    "sqrt": (sd.sqrt, np.sqrt),
    "rsqrt": (sd.rsqrt, lambda x: 1 / np.sqrt(x)),
    "tanh": (sd.tanh, np.tanh),
    "erf": (sd.erf, np.vectorize(erf)),
    "sigmoid": (sd.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "relu": (sd.relu, lambda x: np.maximum(x, 0)),
    "maximum": (lambda x: sd.maximum(x, 2.0), lambda x: np.maximum(x, 2)),
    "minimum": (lambda x: sd.minimum(x, 2.0), lambda x: np.minimum(x, 2)),
    "reciprocal": (lambda x: 1.0 / x, lambda x: 1 / x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinity_go_through_functions_as_in_numpy(name: str) -> None:
    f, wanted = FUNCTIONS[name]
    x = np.tile(SPECIAL, 3)  # whole vectors and a tail
    np.testing.assert_allclose(
        sd.build(mapped(f, len(x)))(x), wanted(x.astype(np.float64)).astype(np.float32), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("operation", ["quotient", "remainder"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_quotients_and_remainders_of_floats_are_numpys(operation: str, dtype: Dtype) -> None:
    """0.5 // 0.1 is 4: the quotient rounds to 5, but 0.1 is a little more than a tenth."""
    values: Array = np.array([*SPECIAL, 0.5, 0.1, -0.5, -0.1, 0.3, 7.0, -7.0, 1e30, 1e10], NUMPY[dtype])
    x, y = np.repeat(values, len(values)), np.tile(values, len(values))
    X, Y, i = sd.tensor("X", x.shape, dtype), sd.tensor("Y", y.shape, dtype), sd.axis(len(x))
    is_quotient = operation == "quotient"
    body, wanted = X[i] // Y[i] if is_quotient else X[i] % Y[i], np.floor_divide(x, y) if is_quotient else np.mod(x, y)
    z = sd.build(sd.Task([sd.compute("Z", i, body)]))(x, y)
    wrong = ~((z == wanted) & (np.signbit(z) == np.signbit(wanted))) & ~(np.isnan(z) & np.isnan(wanted))
    assert not wrong.any(), list(zip(x[wrong], y[wrong], z[wrong], wanted[wrong]))


def test_a_number_a_little_above_the_largest_f32_is_rounded_to_it_as_numpy_rounds() -> None:
    x = np.array([np.inf, 1.0], np.float32)
    y = sd.build(mapped(lambda v: sd.minimum(v, 3.4028235e38), 2))(x)
    np.testing.assert_array_equal(y, np.minimum(x, np.float32(3.4028235e38)))
    np.testing.assert_array_equal(sd.build(mapped(lambda v: sd.minimum(v, 1e39), 2))(x), x)


@pytest.mark.parametrize(
    ("combine", "wanted"), [(sd.sum, np.sum), (sd.max, np.max), (sd.min, np.min)], ids=["sum", "max", "min"]
)
@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinity_anywhere_reach_their_reduction_and_no_other(
    combine: Callable[..., Expr], wanted: Callable[..., Array], over: int
) -> None:
    x = normal(2 * M, 2 * M)
    for k in range(2 * M):  # every place along the reduced dimension, and every kind
        x[k, (5 * k) % (2 * M)] = (np.nan, np.inf, -np.inf, 1.0)[k % 4]
    x[3] = x[:, 7] = 1.0
    x[11, :2] = x[:2, 11] = np.inf, -np.inf
    y = sd.build(reduced(combine, x.shape, (over,)))(x)
    np.testing.assert_allclose(y, wanted(x.astype(np.float64), axis=over), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinity_in_a_product_stays_in_its_row_and_column() -> None:
    a, b = normal(N, K), normal(K, M)
    a[2, 5], a[N - 1, K - 1], b[7, M - 1], b[K - 1, 0] = np.inf, np.nan, -np.inf, np.nan
    close(sd.build(product(), constants={"B": b})(a), a @ b)


@pytest.mark.parametrize(
    ("shape", "over"), [((0, 5), (1,)), ((5, 0), (1,)), ((0, 5), (0,)), ((0, 0), (0, 1)), ((5, 0), (0, 1))]
)
@pytest.mark.parametrize(("combine", "wanted"), [(sd.sum, np.sum), (sd.prod, np.prod)], ids=["sum", "prod"])
def test_an_empty_axis_gives_numpys_answer(
    shape: tuple[int, int], over: tuple[int, ...], combine: Callable[..., Expr], wanted: Callable[..., Array]
) -> None:
    kernel = sd.build(reduced(combine, shape, over))
    x = np.zeros(shape, np.float32)
    right = np.asarray(wanted(x, axis=over))
    for y in (kernel(x), kernel(x, out=np.full(right.shape, np.nan, np.float32))):
        assert (y.shape, y.dtype) == (right.shape, np.float32)
        np.testing.assert_array_equal(y, right)


def test_an_empty_product_keeps_its_constants_to_itself() -> None:
    W, i, k = sd.tensor("W", (M,), constant=True), sd.axis(M), sd.reduce_axis(0)
    X = sd.tensor("X", (0,))
    empty = sd.compute("E", i, sd.sum(X[k] * W[i], k))
    task = sd.Task([empty, sd.compute("Y", i, W[i] + empty[i])])
    w = normal(M)
    kernel = sd.build(task, constants={"W": w})
    before = w.copy()
    w[:] = np.nan
    zero, same = kernel(np.zeros(0, np.float32))
    np.testing.assert_array_equal(zero, np.zeros(M))
    np.testing.assert_array_equal(same, before)


@pytest.mark.parametrize("combine", [sd.max, sd.min], ids=["max", "min"])
def test_the_maximum_of_nothing_is_refused_by_name(combine: Callable[..., Expr]) -> None:
    X, i, k = sd.tensor("X", (5, 0)), sd.axis(5), sd.reduce_axis(0, "nobody")
    with pytest.raises(sd.UserError, match="nobody"):
        sd.compute("Y", i, combine(X[i, k], k))


def test_elements_beyond_two_to_the_31_are_found() -> None:
    n = 2**31 + 64
    X, p, i = sd.tensor("X", (n,), "bool"), sd.axis(2), sd.axis(64)
    x = np.zeros(n, np.bool_)  # 2 GiB that are never touched
    x[:64], x[-64:] = rng().random((2, 64)) < 0.5
    y = sd.build(sd.Task([sd.compute("Y", (p, i), X[p * 2**31 + i])]))(x)
    np.testing.assert_array_equal(y, np.stack([x[:64], x[-64:]]))


def test_the_same_artefact_and_thread_count_give_the_same_bits() -> None:
    task = reduced(sd.sum, (3, 20_000), (1,))
    x = normal(3, 20_000)
    kernel = sd.build(task, threads=2)
    first = kernel(x)
    for other in (kernel, kernel, sd.build(task, schedule=kernel.schedule, threads=2), sd.build(task, threads=2)):
        np.testing.assert_array_equal(other(x), first)


def test_a_schedule_of_another_shape_of_the_class_is_refitted() -> None:
    schedule = sd.build(product(64, 96, 80), constants={"B": normal(80, 96)}).schedule
    a, b = normal(N, K), normal(K, M)
    close(sd.build(product(), constants={"B": b}, schedule=schedule)(a), a @ b)


def test_a_schedule_of_another_class_is_refused() -> None:
    with pytest.raises(sd.ScheduleError, match="class"):
        sd.build(product(), constants={"B": normal(K, M)}, schedule=sd.build(moments()).schedule)


# ---- arrays of every kind ---------------------------------------------------------------------------------------


def misaligned(x: Array) -> Array:
    """The same values at an odd address."""
    memory = np.zeros(x.nbytes + 1, np.uint8)
    result = memory[1:].view(x.dtype).reshape(x.shape)
    result[...] = x
    assert not result.flags.aligned
    return result


def spread(x: Array) -> Array:
    """The same values, every third one of a larger array of NaN."""
    result = np.full((*x.shape[:-1], 3 * x.shape[-1]), np.nan, x.dtype)[..., 1::3]
    result[...] = x
    return result


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "Fortran order": np.asfortranarray,
    "negative strides": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "misaligned": misaligned,
    "every third": spread,
    "off a cache line": lambda x: np.concatenate([np.zeros(1, x.dtype), x.ravel()])[1:].reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_and_constants_of_any_layout_are_right(layout: str) -> None:
    a, b = normal(N, K), normal(K, M)
    odd = LAYOUTS[layout]
    close(sd.build(product(), constants={"B": odd(b)})(odd(a)), a @ b)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "read-only"])
def test_out_of_any_layout_is_filled(layout: str) -> None:
    a, b = normal(N, K), normal(K, M)
    out = LAYOUTS[layout](np.full((N, M), np.nan, np.float32))
    assert sd.build(product(), constants={"B": b})(a, out=out) is out
    close(out, a @ b)


def test_a_row_repeated_by_a_zero_stride_is_an_input() -> None:
    row, b = normal(1, K), normal(K, M)
    close(sd.build(product(), constants={"B": b})(np.broadcast_to(row, (N, K))), np.repeat(row @ b, N, 0))


def test_a_constant_changed_after_the_build_changes_nothing() -> None:
    """Weights are packed, scale and shift are read as they are."""
    task = catalogue.build("CBR", [1, 7, 7, 5, 19, 3, 1, 1])
    arrays = {t.name: normal(*t.shape) for t in task.inputs}
    constants = {t.name: arrays[t.name].copy() for t in task.constants}
    kernel = sd.build(task, constants=constants)
    for array in constants.values():
        array[...] = np.nan
    (wanted,) = evaluate(task, arrays).values()
    close(kernel(arrays["X"]), wanted)


def test_doubles_are_inputs_and_constants_of_f32() -> None:
    a, b = normal(N, K, dtype="f64"), normal(K, M, dtype="f64")
    right = sd.build(product(), constants={"B": b.astype(np.float32)})(a.astype(np.float32))
    kernel = sd.build(product(), constants={"B": b})
    np.testing.assert_array_equal(kernel(a), right)
    np.testing.assert_array_equal(kernel(a.T.copy().T), right)
    np.testing.assert_array_equal(kernel(a.tolist()), right)


# ---- wrong calls ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel() -> sd.Kernel:
    return sd.build(product(), constants={"B": normal(K, M)})


@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_number_of_inputs_says_which_are_wanted(kernel: sd.Kernel, count: int) -> None:
    with pytest.raises(sd.UserError, match=rf"takes 1 array.*A: f32\[{N}, {K}\].*not {count}"):
        kernel(*[normal(N, K)] * count)


WRONG: dict[str, tuple[Any, str]] = {
    "transposed": (normal(K, N), rf"A: .*shape \({K}, {N}\).*must be \({N}, {K}\)"),
    "one dimension more": (normal(1, N, K), "shape"),
    "a number": (3.0, "shape"),
    "nothing": (None, "shape"),
    "too large a double": (normal(N, K, dtype="f64") + 1e300, r"type float64 and a finite.*x.astype\(np.float32\)"),
    "integer": (np.ones((N, K), np.int32), r"type int32; use x.astype\(np.float32\)"),
    "integers in lists": ([[1] * K] * N, r"type int64; use np.asarray\(x, np.float32\)"),
    "foreign byte order": (normal(N, K).astype(">f4"), "byte order"),
    "objects": (normal(N, K).astype(object), "type object"),
    "ragged": ([[1.0], [2.0, 3.0]], "no array"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_input_is_refused_by_name(kernel: sd.Kernel, what: str) -> None:
    value, message = WRONG[what]
    with pytest.raises(sd.UserError, match=message) as error:
        kernel(value)
    assert "A: f32" in str(error.value)


@pytest.mark.parametrize(
    "out", [normal(M, N), normal(1, N, M), normal(N, M, dtype="f64"), normal(N, M).astype(">f4"), normal(N, M) > 0]
)
def test_an_out_of_another_shape_or_type_is_refused_and_left_alone(kernel: sd.Kernel, out: Array) -> None:
    before = out.copy()
    with pytest.raises(sd.UserError, match="out for C: f32"):
        kernel(normal(N, K), out=out)
    np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("out", [3.0, "C", [None], {}])
def test_an_out_that_is_no_array_is_refused(kernel: sd.Kernel, out: Any) -> None:
    with pytest.raises(sd.UserError, match="needs a NumPy array for C: f32"):
        kernel(normal(N, K), out=out)


def test_a_read_only_out_is_refused(kernel: sd.Kernel) -> None:
    out = np.zeros((N, M), np.float32)
    out.flags.writeable = False
    with pytest.raises(sd.UserError, match="read-only"):
        kernel(normal(N, K), out=out)
    assert not out.any()


@pytest.mark.parametrize("start", [1, 59, 60, 61, 119])
def test_an_out_that_overlaps_an_input_is_refused_and_nothing_is_lost(start: int) -> None:
    kernel = sd.build(mapped(lambda x: x * 2, 60))
    memory = normal(180)
    before = memory.copy()
    x = memory[60:120]
    with pytest.raises(sd.UserError, match="overlaps an input"):
        kernel(x, out=memory[start : start + 60])
    np.testing.assert_array_equal(memory, before)
    kernel(x, out=memory[:60])
    kernel(x, out=memory[120:])
    np.testing.assert_array_equal(memory[:60], 2 * x)
    np.testing.assert_array_equal(memory[120:], 2 * x)


def test_outs_that_overlap_each_other_are_refused() -> None:
    kernel = sd.build(moments())
    memory = np.zeros(N * M + N - 1, np.float32)
    with pytest.raises(sd.UserError, match="two arrays of out= overlap"):
        kernel(normal(N, M), out=(memory[:N], memory[N - 1 :].reshape(N, M)))
    assert not memory.any()


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_outs_is_refused(count: int) -> None:
    with pytest.raises(sd.UserError, match=f"out= needs 2 arrays, not {count}"):
        sd.build(moments())(normal(N, M), out=[np.zeros(N, np.float32)] * count)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        (None, r"needs constants=.* B: f32\[29, 37\]"),
        ({}, "needs constants="),
        ({"B": normal(K, M), "W": normal(3)}, "no constant 'W'; its constants: B"),
        ({"A": normal(N, K), "B": normal(K, M)}, "no constant 'A'"),
        ({"B": normal(M, K)}, r"B: .*shape \(37, 29\)"),
        ({"B": np.ones((K, M), np.int64)}, r"B: .* has type int64; use x.astype\(np.float32\)"),
        ({"B": normal(K, M).astype(">f4")}, "byte order"),
        ([normal(K, M)], "constants= takes arrays by name"),
    ],
    ids=["none", "missing", "unknown", "not constant", "shape", "type", "byte order", "no mapping"],
)
def test_wrong_constants_are_refused_by_name(constants: Any, message: str) -> None:
    with pytest.raises(sd.UserError, match=message):
        sd.build(product(), constants=constants)


def test_building_what_is_no_task_says_how_to_make_one() -> None:
    tensor: Any = product().outputs[0]
    with pytest.raises(sd.UserError, match=r"sd\.Task"):
        sd.build(tensor)


@pytest.mark.parametrize("threads", [0, -1, "many"])
def test_a_senseless_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(sd.UserError, match="threads"):
        sd.build(moments(), threads=threads)


# ---- wrong expressions ------------------------------------------------------------------------------------------

I8, J8, K8 = sd.axis(8, "i"), sd.axis(8, "j"), sd.reduce_axis(8, "k")
X8, INT8 = sd.tensor("X", (8,)), sd.tensor("I", (8,), "i32")


def wrong(value: object) -> Any:
    """Hides a type from the type checker."""
    return value


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "an axis used twice": (lambda: sd.compute("Y", (I8, I8), X8[I8]), "Y: axis i is used twice"),
    "an axis reduced over twice": (lambda: sd.compute("Y", I8, sd.sum(X8[K8], K8, K8)), "Y: axis k is used twice"),
    "an undeclared axis": (lambda: sd.compute("Y", I8, X8[J8]), "Y: axis j is neither"),
    "a reduce axis as an axis of the result": (lambda: sd.compute("Y", K8, X8[K8]), "k is a reduce axis"),
    "an axis of the result reduced over": (lambda: sd.compute("Y", (), sd.sum(X8[I8], I8)), "i is a spatial axis"),
    "a reduction over nothing": (lambda: sd.compute("Y", I8, sd.sum(X8[I8])), "at least one reduce axis"),
    "a number as an axis": (lambda: sd.compute("Y", (wrong(8),), X8[I8]), r"Y: 8 is no axis.*sd\.axis\(8\)"),
    "a float index": (lambda: X8[wrong(1.0)], "index must be an integer, but 1.0 is float"),
    "a float in an index": (lambda: X8[I8 * 0.5], "0.5 is a float"),
    "a quotient as an index": (lambda: X8[I8 / 2], "use //"),
    "float data as an index": (lambda: X8[X8[I8]], r"index must be an integer, but X\[i\] is f32"),
    "a bool index": (lambda: X8[True], "index must be an integer"),
    "too many indices": (lambda: X8[I8, I8], "X has 1 dimensions, but is read with 2"),
    "reading past the end": (
        lambda: sd.compute("Y", I8, X8[I8 + 1]),
        r"Y: X\[i \+ 1\] reads dimension 0 of X.*from 1 to 8",
    ),
    "reading before the beginning": (lambda: sd.compute("Y", I8, X8[I8 - 1]), "from -1 to 6"),
    "a read that is guarded only elsewhere": (
        lambda: sd.compute("Y", I8, sd.where(I8 < 7, X8[I8 + 1], 0.0) + X8[I8 + 1]),
        "from 1 to 8",
    ),
    "more than 2**63 elements": (lambda: sd.tensor("Z", (2**32, 2**31)), "Z: .*too large"),
    "more than 2**63 bytes": (lambda: sd.tensor("Z", (2**61,)), "Z: .*too large"),
    "a result of more than 2**63 elements": (
        lambda: sd.compute("Z", (sd.axis(2**32), sd.axis(2**32)), 1.0),
        "Z: .*too large",
    ),
    "a negative extent": (lambda: sd.tensor("Z", (-1,)), "Z: bad shape"),
    "a fractional extent": (lambda: sd.tensor("Z", (wrong(1.5),)), "Z: bad shape"),
    "a fractional axis": (lambda: sd.axis(wrong(1.5)), "extent is a non-negative integer"),
    "an unknown type": (lambda: sd.tensor("Z", (8,), wrong("f9")), "Z: unknown element type 'f9'.*f32"),
    "a float among integers": (lambda: INT8[I8] * 1.5, "1.5 is a float.*i32"),
    "an integer that does not fit": (lambda: INT8[I8] + 2**40, f"{2**40} does not fit.*i32"),
    "two types": (lambda: X8[I8] + INT8[I8], "f32 and i32.*cast"),
    "text as a body": (lambda: sd.compute("Y", I8, wrong("x")), "'x' is neither an expression nor a number"),
    "no output": (lambda: sd.Task([]), "at least one output"),
    "an input as output": (lambda: sd.Task([X8]), "X is an output but not computed"),
    "an output given twice": (lambda: sd.Task([sd.compute("Y", I8, X8[I8])] * 2), "given twice"),
    "outputs of one name": (
        lambda: sd.Task([sd.compute("Y", I8, X8[I8]), sd.compute("Y", I8, X8[I8] * 2)]),
        "same name: Y, Y",
    ),
    "inputs of one name": (
        lambda: sd.Task([sd.compute("Y", I8, X8[I8] + sd.tensor("X", (8,))[I8])]),
        "same name: X, X",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_user_is_told_of(mistake: str) -> None:
    do, message = MISTAKES[mistake]
    with pytest.raises(sd.UserError, match=message):
        do()


def test_a_task_takes_a_single_tensor_and_a_tensor_a_single_extent() -> None:
    X = sd.tensor("X", M)
    i = sd.axis(M)
    x = normal(M)
    np.testing.assert_array_equal(sd.build(sd.Task(sd.compute("Y", i, X[i] * 2)))(x), x * 2)


def test_iterating_over_a_tensor_ends_at_once() -> None:
    with pytest.raises(TypeError, match="X"):
        list(X8)


# ---- code as text


def test_a_kernel_shows_its_loops_its_ir_and_its_assembly() -> None:
    kernel = sd.build(product(), constants={"B": normal(K, M)})
    loops = kernel.show()
    assert loops == kernel.show("loops")
    assert "for " in loops
    assert "define " in kernel.show("ir")
    assert "ret" in kernel.show("asm")
    assert "define " not in kernel.show("asm")
    assert repr(loops) == str(loops)  # a prompt shows lines, not \\n
    assert len(loops.splitlines()) > 3


def test_a_kernel_shows_the_code_of_its_own_schedule() -> None:
    task, target = product(64, 64, 64), sd.detect()
    space = sd.sketches(task, target)
    schedules = [s.schedule(p) for s in space for p in s.sample_legal(2, rng())]
    b = normal(64, 64)
    assert len({sd.build(task, constants={"B": b}, schedule=schedule).show() for schedule in schedules}) > 1


def test_a_kernel_without_code_and_another_level_are_refused() -> None:
    with pytest.raises(sd.UserError, match="'loops', 'ir' or 'asm', not as 'llvm'"):
        sd.build(product(), constants={"B": normal(K, M)}).show("llvm")
    with pytest.raises(sd.UserError, match="extent 0"):
        sd.build(product(0), constants={"B": normal(K, M)}).show()
