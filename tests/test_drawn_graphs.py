"""The random graphs of the property test: what is drawn of them, and which of them can be judged."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.ir import build as sd
from stormdrop.ir.expr import Axis, Cast, Dtype, Expr, walk
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.operators.pointwise import POINTWISE
from tests.support.drawn_graphs import draw, index_ranges
from tests.support.exactness import is_judged
from tests.support.trials import GRAPHS, Trial

DRAWS = range(GRAPHS, GRAPHS + 600)


def test_a_seed_gives_the_same_task_and_data_for_ever() -> None:
    for seed in DRAWS[:40]:
        one, two = draw(seed, seed), draw(seed, seed)
        assert one.task.digest == two.task.digest
        assert all(np.array_equal(one.arrays[name], two.arrays[name]) for name in one.arrays)
    assert Trial(GRAPHS + 1).task.digest == draw(GRAPHS + 1, GRAPHS + 1).task.digest


def test_most_graphs_are_drawn_at_another_shape_of_their_class() -> None:
    pairs = [(draw(seed, seed).task, draw(seed, seed + 7).task) for seed in DRAWS[:100]]
    assert sum(a.class_key == b.class_key and a.digest != b.digest for a, b in pairs) > 50


def test_operators_of_every_kind_are_drawn_and_put_together() -> None:
    words: set[str] = set()
    together = 0
    for seed in DRAWS:
        name = draw(seed, seed).task.name
        words |= {re.sub(r"\d.*", "", part) for part in name.split("+")}
        together += "+" in name
    read = {"Gather", "GatherElements", "GatherND", "Interpolate"}
    moved = {"Pad", "Slice", "Concat", "Transpose", "Reshape", "Trilu"}
    reduced = {"ReduceSum", "ReduceMax", "MatMul", "Einsum", "Conv", "MaxPool", "SumPool", "Softmax"}
    missing = (read | moved | reduced | {"Cast", "Where", "Less", "Mod"}) - words
    assert not missing
    assert len(words & {operator.name for operator in POINTWISE}) > 25
    assert together > len(DRAWS) // 3


def test_every_type_is_converted_to_every_other() -> None:
    found: set[tuple[Dtype, Dtype]] = set()
    for seed in DRAWS:
        for t in draw(seed, seed).task.variants[0].stages:
            assert t.compute is not None
            found |= {(n.a.dtype, n.dtype) for n in walk(t.compute.body) if isinstance(n, Cast)}
    kinds: tuple[Dtype, ...] = ("f32", "f64", "i32", "i64", "bool")
    assert {(a, b) for a in kinds for b in kinds if a != b} <= found


def test_indices_lie_inside_what_they_choose_from() -> None:
    seen = 0
    for seed in DRAWS[:300]:
        drawn = draw(seed, seed)
        for t, extent in index_ranges(drawn.task).items():
            values = drawn.arrays[t.name]
            assert values.min(initial=0) >= -extent
            assert values.max(initial=0) < max(1, extent)
            seen += 1
    assert seen > 30


# ---- exactness -----------------------------------------------------------------------------------------------------

X = tensor("X", (6,))
QUARTERS = (np.arange(-3, 3) / 4).astype(np.float32)
THIRDS = (np.arange(-4, 2) / 3).astype(np.float32)


def judged(body: Expr, x: NDArray[Any] = QUARTERS) -> bool:
    (i,) = {n for n in walk(body) if isinstance(n, Axis)}
    return is_judged(Task([compute("Y", i, body)]), {"X": x})


def at() -> Expr:
    return X[axis(6)]


def test_exact_values_may_be_compared_and_rounded_ones_may_not() -> None:
    assert judged(at() * 0.5 + 1.0 > 0.75)
    x = at()
    assert not judged(sd.exp(x) > x)
    assert judged(sd.exp(at()))
    assert not judged(at() * 0.5 > 0.25, THIRDS)


def test_a_conversion_to_an_integer_needs_an_exact_value() -> None:
    assert judged(sd.cast(at() * 4.0, "i32"))
    assert not judged(sd.cast(sd.tanh(at()), "i32"))


def test_a_relu_of_a_rounded_value_is_no_jump() -> None:
    assert judged(sd.relu(sd.tanh(at())))


def test_what_overflows_or_leaves_a_domain_is_not_judged() -> None:
    assert not judged(sd.exp(at() * 1000.0))
    assert not judged(sd.sqrt(at()))
    assert not judged(1.0 / at())
    x = at()
    assert judged(1.0 / (x * x + 0.5))


def test_a_long_product_of_quarters_is_rounded() -> None:
    k = reduce_axis(6)
    i = axis(1)
    product = compute("P", i, sd.prod(X[k] * 0.25, k))
    i = axis(1)
    assert not is_judged(Task([compute("Y", i, product[i] > 0.5)]), {"X": QUARTERS + 9})
    assert is_judged(Task([compute("Y", i, product[i] + 0.5)]), {"X": QUARTERS + 9})


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_large_integers_are_rounded_as_floats_and_small_ones_are_not(dtype: Dtype) -> None:
    n, i = tensor("N", (4,), dtype), axis(4)
    task = Task([compute("Y", i, sd.cast(n[i], "f32") > 3.0)])
    kind = np.int32 if dtype == "i32" else np.int64
    assert is_judged(task, {"N": np.array([1, 2, 3, 4], kind)})
    assert not is_judged(task, {"N": np.array([1, 2, 3, 2**24 + 1], kind)})
