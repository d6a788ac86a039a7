"""Numbers at the edge: divisions that trap elsewhere, indices out of range, casts that do not fit, NaN where an order
is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from tests.support.abused_onnx import NUMPY, B, D, F, I, L, expected, held, model, node, one, port

LOWEST, HIGHEST = -(2**63), 2**63 - 1
KINDS = (I, L)


def pairs(kind: int) -> tuple[Any, Any]:
    """All pairs of numbers that are interesting."""
    span = np.iinfo(NUMPY[kind])
    values = np.array([span.min, span.min + 1, -7, -1, 0, 1, 2, 7, span.max - 1, span.max], NUMPY[kind])
    return np.repeat(values, len(values)), np.tile(values, len(values))


def computed_and_folded(op: str, kind: int, a: Any, b: Any, **attributes: Any) -> Any:
    """What a kernel computes; folding the same node must give the same."""
    ends = [port("y", None, kind)]
    nodes = [node(op, "a b", "y", **attributes)]
    found = sd.compile(model(nodes, [port("a", a.shape, kind), port("b", b.shape, kind)], ends))(a, b)
    np.testing.assert_array_equal(sd.compile(model(nodes, [], ends, {"a": a, "b": b}))(), found)
    return found


def wrapped(value: int, kind: int) -> int:
    bits = 8 * np.dtype(NUMPY[kind]).itemsize
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_integer_division_never_traps(kind: int) -> None:
    a, b = pairs(kind)
    found = computed_and_folded("Div", kind, a, b)
    right = [
        0 if y == 0 else wrapped(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), kind)
        for x, y in zip(a.tolist(), b.tolist())
    ]
    assert found.tolist() == right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmod", [0, 1])
def test_integer_remainders_never_trap(kind: int, fmod: int) -> None:
    a, b = pairs(kind)
    found = computed_and_folded("Mod", kind, a, b, fmod=fmod)
    right = [
        0 if y == 0 else (abs(x) % abs(y)) * (-1 if x < 0 else 1) if fmod else x % y
        for x, y in zip(a.tolist(), b.tolist())
    ]
    assert found.tolist() == right


@pytest.mark.parametrize("kind", KINDS)
def test_division_by_a_constant_zero_or_minus_one_never_traps(kind: int) -> None:
    a, _ = pairs(kind)
    for op, by, right in (
        ("Div", 0, np.zeros_like(a)),
        ("Mod", 0, np.zeros_like(a)),
        ("Mod", -1, np.zeros_like(a)),
        ("Div", -1, np.array([wrapped(-x, kind) for x in a.tolist()])),
    ):
        found = sd.compile(one(op, a.shape, {"by": np.array(by, NUMPY[kind])}, kind))(a)
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_products_and_signs_wrap(kind: int) -> None:
    a, b = pairs(kind)
    for op, function in (("Add", int.__add__), ("Sub", int.__sub__), ("Mul", int.__mul__)):
        right = [wrapped(function(x, y), kind) for x, y in zip(a.tolist(), b.tolist())]
        assert computed_and_folded(op, kind, a, b).tolist() == right
    for op, function in (("Abs", abs), ("Neg", int.__neg__)):
        assert sd.compile(one(op, a.shape, kind=kind))(a).tolist() == [wrapped(function(x), kind) for x in a.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_powers_of_integers_are_exact(kind: int) -> None:
    """Those of i32 were once cut off instead of rounded: 20 to the 7 was 1279999999."""
    a, b = np.repeat(np.arange(-20, 21), 24), np.tile(np.arange(-4, 20), 41)
    right = [wrapped(x**y, kind) if y >= 0 else x**-y if abs(x) == 1 else 0 for x, y in zip(a.tolist(), b.tolist())]
    assert computed_and_folded("Pow", kind, a.astype(NUMPY[kind]), b.astype(NUMPY[kind])).tolist() == right


FLOATS = [
    np.nan,
    np.inf,
    -np.inf,
    1e30,
    -1e30,
    2.0**31,
    -(2.0**31),
    2.0**63,
    -(2.0**63),
    0.5,
    -0.5,
    -0.0,
    3.99,
    -3.99,
    1e10,
]


@pytest.mark.parametrize("kind", [F, D])
@pytest.mark.parametrize("to", [I, L, B])
def test_casts_saturate_and_nan_is_zero(kind: int, to: int) -> None:
    x = np.array(FLOATS, NUMPY[kind])
    nodes, ends = [node("Cast", "x", "y", to=to)], [port("y", None, to)]
    found = sd.compile(model(nodes, [port("x", x.shape, kind)], ends))(x)
    np.testing.assert_array_equal(sd.compile(model(nodes, [], ends, {"x": x}))(), found)
    if to == B:
        assert found.tolist() == (x != 0).tolist()
        return
    span = np.iinfo(NUMPY[to])
    whole = [
        0 if np.isnan(v) else span.min if v <= span.min else span.max if v >= span.max else int(v) for v in x.tolist()
    ]
    assert found.tolist() == whole


@pytest.mark.parametrize("op", ["Acosh", "Asin", "Acos", "Atanh", "Log", "Sqrt"])
def test_functions_are_nan_outside_their_domain(op: str) -> None:
    x = np.array([-1e30, -5, -1, -0.5, 0, 0.5, 0.999, 1, 1.5, 1e30, np.inf, np.nan], np.float32)
    m = one(op, x.shape)
    np.testing.assert_allclose(sd.compile(m)(x), expected(m, {"x": x})["y"], rtol=1e-5, atol=1e-6)


def test_the_remainder_of_floats_is_exact() -> None:
    rng = np.random.default_rng(3)
    a = np.concatenate([rng.standard_normal(500) * 1e6, [2.0**31, -(2.0**31), 5.0, np.inf, 1.0, np.nan, 1e30]]).astype(
        np.float32
    )
    b = np.concatenate([rng.standard_normal(500), [3.0, 3.99, np.inf, 2.0, 0.0, 1.0, 1e-40]]).astype(np.float32)
    m = model([node("Mod", "a b", "y", fmod=1)], [port("a", a.shape), port("b", b.shape)], "y")
    found = sd.compile(m)(a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.fmod(a, b))


# ---- indices

WILD = np.array([0, 2, -1, -3, 3, -4, 100, -100, 2**31 - 1, -(2**31), HIGHEST, LOWEST])
X = np.arange(9, dtype=np.float32).reshape(3, 3)


def nearest(k: int) -> int:
    """An index wraps once if it is negative, then is clamped."""
    return min(max(k + 3 if k < 0 else k, 0), 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_gathering_reads_nothing_outside(kind: int, axis: int) -> None:
    at = np.clip(WILD, *((-(2**31), 2**31 - 1) if kind == I else (LOWEST, HIGHEST))).astype(NUMPY[kind])
    found = sd.compile(
        model([node("Gather", "x i", "y", axis=axis)], [port("x", (3, 3)), port("i", (12,), kind)], "y")
    )(X, at)
    np.testing.assert_array_equal(found, np.take(X, [nearest(k) for k in at.tolist()], axis))


def test_gathering_elements_and_slices_reads_nothing_outside() -> None:
    at = WILD.reshape(4, 3)
    rows = np.array([[nearest(k) for k in row] for row in at.tolist()])
    found = sd.compile(
        model([node("GatherElements", "x i", "y", axis=0)], [port("x", (3, 3)), port("i", (4, 3), L)], "y")
    )(X, at)
    np.testing.assert_array_equal(found, np.take_along_axis(X, rows, 0))
    found = sd.compile(model([node("GatherND", "x i", "y")], [port("x", (3, 3)), port("i", (6, 2), L)], "y"))(
        X, WILD.reshape(6, 2)
    )
    np.testing.assert_array_equal(found, [X[nearest(a), nearest(b)] for a, b in WILD.reshape(6, 2).tolist()])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattering_writes_nothing_outside(reduction: str) -> None:
    updates = np.full((4, 3), -5, np.float32)
    functions: dict[str, Callable[[float, float], float]] = {
        "none": lambda a, b: b,
        "add": add,
        "mul": mul,
        "max": max,
        "min": min,
    }
    right = X.copy()
    for j, row in enumerate(WILD.reshape(4, 3).tolist()):
        for k, at in enumerate(row):
            if -3 <= at < 3:
                right[at, k] = functions[reduction](right[at, k], updates[j, k])
    ports = [port("x", (3, 3)), port("i", (4, 3), L), port("u", (4, 3))]
    found = sd.compile(model([node("ScatterElements", "x i u", "y", reduction=reduction)], ports, "y"))(
        X, WILD.reshape(4, 3), updates
    )
    np.testing.assert_array_equal(found, right)


def test_wild_lengths_and_classes_are_harmless() -> None:
    m = model([node("ReverseSequence", "x n", "y")], [port("x", (3, 3)), port("n", (3,), L)], "y")
    found = sd.compile(m)(X, np.array([HIGHEST, LOWEST, 2]))
    np.testing.assert_array_equal(found[:, 1:], [[1, 5], [4, 2], [7, 8]])
    assert set(found[:, 0].tolist()) <= {0, 3, 6}
    m = model(
        [node("OneHot", "i d v", "y")],
        [port("i", (12,), L)],
        "y",
        {"d": np.array(3), "v": np.array([0, 1], np.float32)},
    )
    inside = [k + 3 if k < 0 else k for k in WILD.tolist()]
    np.testing.assert_array_equal(sd.compile(m)(WILD), [[float(k == c) for c in range(3)] for k in inside])


@pytest.mark.parametrize("at", [3, -4, HIGHEST, LOWEST])
def test_constant_indices_outside_are_refused_by_name(at: int) -> None:
    for op in ("Gather", "GatherElements"):
        with pytest.raises(sd.UserError, match="node n: an index lies outside"):
            sd.read_graph(one(op, (3, 3), {"i": np.full((1, 3), at)}))


# ---- order


@pytest.mark.parametrize("kind", [F, D])
@pytest.mark.parametrize("largest", [0, 1])
def test_ordering_with_nan_is_a_permutation_with_nan_as_the_largest(kind: int, largest: int) -> None:
    """Equal ranks of NaNs once made positions that no element has."""
    x = np.array([1, np.nan, 3, np.nan, -np.inf, np.inf, 0, 0.0], NUMPY[kind])
    ends = [port("v", None, kind), port("i", None, L)]
    m = model([node("TopK", "x k", "v i", largest=largest)], [port("x", (8,), kind)], ends, {"k": np.array([8])})
    values, positions = sd.compile(m)(x)
    right = sorted(
        range(8), key=lambda k: (x[k] if not np.isnan(x[k]) else np.inf, np.isnan(x[k])), reverse=bool(largest)
    )
    right = [
        k for value in dict.fromkeys(map(str, x[right])) for k in range(8) if str(x[k]) == value
    ]  # equal ones as they stand
    assert positions.tolist() == right
    np.testing.assert_array_equal(values, x[right])


@pytest.mark.parametrize("k", [-1, 5, HIGHEST])
def test_more_than_all_or_fewer_than_none_cannot_be_ordered(k: int) -> None:
    m = model(
        [node("TopK", "x k", "v i", name="n")],
        [port("x", (3, 4))],
        [port("v"), port("i", None, L)],
        {"k": np.array([k])},
    )
    with pytest.raises(sd.UserError, match=f"node n: {k} elements cannot be taken of 4"):
        sd.read_graph(m)


def test_none_can_be_ordered() -> None:
    m = model([node("TopK", "x k", "v i")], [port("x", (3, 4))], [port("v"), port("i", None, L)], {"k": np.array([0])})
    assert [a.shape for a in sd.compile(m)(np.zeros((3, 4), np.float32))] == [(3, 0), (3, 0)]


@pytest.mark.parametrize(
    "op", [f"Reduce{kind}" for kind in ("Sum", "Mean", "Max", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")]
)
def test_reductions_of_whole_numbers_work(op: str) -> None:
    x = np.arange(1, 13).reshape(3, 4)
    m = one(op, (3, 4), {"axes": np.array([1])}, L, opset=20)
    found = sd.compile(m)(x)
    assert found.dtype == np.int64
    np.testing.assert_allclose(
        found, expected(m, {"x": x})["y"], atol=1 if "Log" in op else 0
    )  # truncated at another digit


def test_a_running_sum_over_many_needs_little_memory_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of positions was once looked at: 20 GB for 50,000."""
    import tracemalloc

    from stormdrop.compiler.compile import tasks_of
    from stormdrop.device.host import detect
    from stormdrop.space.default import default_schedule

    (use,) = tasks_of(sd.read_graph(one("CumSum", (100_000,), {"axis": np.array(0)}))).tasks
    tracemalloc.start()
    default_schedule(use.task, detect())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20


def test_constants_of_any_bits_are_kept() -> None:
    c = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    found = sd.compile(model([node("Identity", "c", "y")], [], "y", [held("c", c)]))()
    assert found.tobytes() == c.tobytes()
