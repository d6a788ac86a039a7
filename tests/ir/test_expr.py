"""Expressions: interning, types of constants, the affine normal form, bounds."""

import itertools
import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.affine import Affine, affine, bounds, conjunction, conjuncts, decide, normal
from stormdrop.ir.expr import (
    Axis,
    Bin,
    Cmp,
    Const,
    Dtype,
    Expr,
    Select,
    Var,
    binary,
    compare,
    rewrite,
    select,
    substitute,
    walk,
)
from stormdrop.ir.tensor import axis, compute, tensor

I, J, K = axis(4, "i"), axis(3, "j"), axis(5, "k")
AXES = (I, J, K)
POINTS = [dict(zip(AXES, p)) for p in itertools.product(*(range(a.extent) for a in AXES))]


def run(e: Expr, env: Mapping[Axis, int]) -> int:
    """An integer expression by Python's own arithmetic."""
    match e:
        case Const(value):
            return int(value)
        case Axis():
            return env[e]
        case Bin(op, a, b) | Cmp(op, a, b):
            x, y = run(a, env), run(b, env)
            results = {
                "add": x + y,
                "sub": x - y,
                "mul": x * y,
                "min": min(x, y),
                "max": max(x, y),
                "and": x and y,
                "or": x or y,
                "lt": x < y,
                "le": x <= y,
                "gt": x > y,
                "ge": x >= y,
                "eq": x == y,
                "ne": x != y,
            }
            return x // y if op == "floordiv" else x % y if op == "mod" else int(results[op])
        case Select(c, a, b):
            return run(a, env) if run(c, env) else run(b, env)
        case _:
            raise AssertionError(e)


small = st.integers(-6, 6)
positive = st.integers(1, 5).map(lambda v: Const(v, "i64"))
leaves = st.one_of(st.sampled_from(AXES), small.map(lambda v: Const(v, "i64")))


def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    condition = st.builds(compare, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), inner, inner)
    return st.one_of(
        st.builds(binary, st.sampled_from(["add", "sub", "min", "max", "mul"]), inner, inner),
        st.builds(binary, st.just("mul"), inner, small.map(lambda v: Const(v, "i64"))),
        st.builds(binary, st.sampled_from(["floordiv", "mod"]), inner, positive),
        st.builds(select, condition, inner, inner),
    )


integers = st.recursive(leaves, grow, max_leaves=8)
comparisons = st.builds(compare, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), integers, integers)
conditions = st.recursive(
    comparisons, lambda inner: st.builds(binary, st.sampled_from(["and", "or"]), inner, inner), max_leaves=3
)


def test_equal_parts_make_the_same_object():
    a = tensor("A", (4, 3))
    assert a[I, J] * 2.0 + 4 is a[I, J] * 2.0 + 4.0
    assert (I + 1) * 2 is (I + 1) * 2
    assert I + J is not J + I


def test_constants_keep_type_and_sign():
    kinds = [
        Const(1, "i64"),
        Const(1, "i32"),
        Const(1.0, "f32"),
        Const(1.0, "f64"),
        Const(True, "bool"),
        Const(0.0, "f32"),
        Const(-0.0, "f32"),
    ]
    assert len(set(kinds)) == len(kinds)
    assert Const(1, "f32") is Const(1.0, "f32")
    assert Const(float("nan"), "f32") is Const(float("nan"), "f32")
    assert str(Const(-0.0, "f32").value) == "-0.0"


def test_folded_integers_wrap_as_computed_ones_do():
    kinds: list[tuple[Dtype, int]] = [("i32", 31), ("i64", 63)]
    for dtype, bits in kinds:
        least, most = Const(-(2**bits), dtype), Const(2**bits - 1, dtype)
        assert binary("add", most, 1) is least
        assert binary("sub", least, 1) is most
        assert binary("mul", most, 2) is Const(-2, dtype)
        assert binary("floordiv", least, Const(-1, dtype)) is least


def test_pickling_interns_again():
    a = tensor("A", (4, 3), "i64")
    half = Const(0.5, "f64")
    for e in (I, Var("n"), Const(-0.0, "f32"), build.cast(I, "f32"), select(I < 2, I * 3, J), build.exp(half)):
        assert pickle.loads(pickle.dumps(e)) is e
    load = pickle.loads(pickle.dumps(a[I, J] + I))
    assert isinstance(load, Bin)
    assert load.b is I


def test_types_are_never_mixed_silently():
    x = tensor("X", (4,))
    with pytest.raises(UserError, match=r"sd\.cast"):
        _ = x[I] + I
    with pytest.raises(UserError, match="index must be an integer"):
        _ = x[x[I]]
    with pytest.raises(UserError, match="use // for i64"):
        _ = I / 2


def test_walk_sees_a_shared_node_once():
    shared = I * 2
    assert sum(n is shared for n in walk(shared + (shared + J))) == 1


def test_rewriting_nothing_returns_the_same_node():
    e = select(I < 2, I * 3 + J, J)
    assert rewrite(e, lambda _: None) is e
    assert substitute(e, {J: K}) is select(I < 2, I * 3 + K, K)


@given(integers)
def test_the_normal_form_has_the_same_value(e: Expr):
    form = affine(e).expr()
    assert all(run(form, env) == run(e, env) for env in POINTS)


@given(integers, integers, small, small)
def test_affine_forms_add_and_scale(a: Expr, b: Expr, factor: int, offset: int):
    form = (affine(a).scaled(factor) + affine(b)).shifted(offset)
    assert all(run(form.expr(), env) == run(a, env) * factor + run(b, env) + offset for env in POINTS)
    assert all(c != 0 for _, c in form.terms)


def test_affine_replaces_atoms():
    form = affine(I * 2 + J + 3).replace({I: Affine(((K, 5),), 1)})
    assert form == Affine(((K, 10), (J, 1)), 5)
    assert form.coefficient(K) == 10
    assert form.coefficient(I) == 0


@given(integers)
def test_bounds_hold_every_value(e: Expr):
    known = bounds(e, lambda _: None)
    if known is not None:
        assert all(known[0] <= run(e, env) <= known[1] for env in POINTS)


def test_bounds_of_sums_are_exact():
    assert bounds(I * 2 + K - 3, lambda _: None) == (-3, 7)
    assert bounds(I - I, lambda _: None) == (0, 0)
    assert bounds((K + 5) % 10, lambda _: None) == (5, 9)
    assert bounds(Var("n") + I, lambda e: (2, 9) if isinstance(e, Var) else None) == (2, 12)
    assert bounds(Var("n") + I, lambda _: None) is None


@given(conditions)
def test_a_decided_condition_holds_or_fails_everywhere(condition: Expr):
    decided = decide(condition, lambda _: None)
    if decided is not None:
        assert all(bool(run(condition, env)) is decided for env in POINTS)


@given(conditions)
def test_a_normal_condition_means_the_same(condition: Expr):
    assert all(run(normal(condition), env) == run(condition, env) for env in POINTS)
    parts = conjuncts(condition)
    assert all(run(conjunction(parts), env) == run(condition, env) for env in POINTS)


def test_an_undecided_condition_is_none():
    assert decide(I < 3, lambda _: None) is None
    assert decide((I < 4) & (J >= 0), lambda _: None) is True
    assert decide((I < 4) & (J > 2), lambda _: None) is False


def test_a_guard_that_is_too_weak_is_refused():
    x, i = tensor("X", (8,)), axis(8)
    with pytest.raises(UserError, match="outside 0 to 7"):
        compute("Y", i, select(i < 9, x[i + 1], 0.0))
    compute("Y", i, select(i < 7, x[i + 1], 0.0))
    with pytest.raises(UserError, match="outside 0 to 7"):
        compute("Y", i, select(i < 7, 0.0, x[i + 1]))


def test_a_condition_on_data_guards_nothing():
    x, i = tensor("X", (8,)), axis(8)
    with pytest.raises(UserError, match="outside 0 to 7"):
        compute("Y", i, select(x[i] > 0.0, x[i + 1], 0.0))
