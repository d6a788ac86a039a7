"""Keys: what the class and the anchor class of a variant do not see, and what they must see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import pytest

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import partition
from stormdrop.graph.passes import optimise
from stormdrop.ir import build as sd
from stormdrop.ir.expr import Const, binary
from stormdrop.ir.keys import anchor_results, anchor_stages
from stormdrop.ir.tensor import Task, Tensor, axis, compute, reduce_axis, tensor
from stormdrop.operators.broadcast import elementwise, pad_constant
from stormdrop.operators.catalogue import build
from stormdrop.operators.node import Value
from stormdrop.operators.normalize import standardize
from tests.support.drawn_graphs import draw
from tests.support.tasks import NAMES, random_task

GRAPHS = 60


@cache
def tasks() -> tuple[Task, ...]:
    """Every operator of the catalogue, tasks of our own, and kernels of random graphs."""
    made = [random_task(name, np.random.default_rng(k)) for k, name in enumerate(NAMES)]
    return (*made, *(draw(seed, seed).task for seed in range(GRAPHS)))


def keys(task: Task) -> list[tuple[str, str]]:
    return [(v.class_key, v.anchor_key) for v in task.variants]


def changed(task: Task, change: Callable[[Any], Any]) -> Task:
    """The task with a change in its JSON."""
    data: Any = copy.deepcopy(task.to_json())
    return Task.from_json(change(data) or data)


def every_body(data: Any, change: Callable[[Any], Any]) -> None:
    """Replace every node of every body, inner nodes first."""

    def visit(e: Any) -> Any:
        return change([visit(x) if isinstance(x, list) else x for x in e]) if isinstance(e, list) else e

    for variant in data["variants"]:
        for stage in variant["stages"]:
            stage["body"] = visit(stage["body"])


# ---- every task ------------------------------------------------------------------------------------------------------


def test_no_key_sees_a_name() -> None:
    def rename(data: Any) -> None:
        for k, t in enumerate(data["inputs"]):
            t["name"] = f"other{k}"
        for stage in (s for v in data["variants"] for s in v["stages"]):
            stage["name"] += "x"
            stage["axes"] = [["q", extent] for _, extent in stage["axes"]]

    for task in tasks():
        assert keys(changed(task, rename)) == keys(task)


def test_no_key_sees_a_number_that_may_stand_for_a_size() -> None:
    seen = 0

    def other(e: Any) -> Any:
        nonlocal seen
        if e[0] != "const" or e[1] not in ("f32", "f64") or float(e[2]) == 0 or not isfinite(float(e[2])):
            return e
        seen += 1
        return [*e[:2], repr(float(e[2]) * 1.5)]

    for task in tasks():
        if "'pow'" in str(task.to_json()):
            continue  # exponents are seen
        assert keys(changed(task, lambda data: every_body(data, other))) == keys(task), str(task)
    assert seen > 50


def test_the_class_sees_which_inputs_are_constant() -> None:
    for task in tasks():

        def flip(data: Any) -> None:
            for t in data["inputs"]:
                t["constant"] = not t["constant"]

        if task.inputs:
            assert changed(task, flip).class_key != task.class_key


def test_both_keys_see_what_a_reduction_combines_by() -> None:
    def combine(data: Any) -> None:
        for stage in (s for v in data["variants"] for s in v["stages"]):
            if stage["combiner"]:
                stage["combiner"] = "min" if stage["combiner"] != "min" else "max"

    reduced = [t for t in tasks() if t.anchor_key]
    assert len(reduced) > 30
    for task in reduced:
        for before, now in zip(keys(task), keys(changed(task, combine))):
            assert before[0] != now[0]
            assert before[1] != now[1]


def test_an_epilogue_changes_the_class_and_not_the_anchor() -> None:
    for task in tasks():
        output = task.outputs[0]
        if len(task.outputs) > 1 or output.dtype not in ("f32", "f64"):
            continue
        longer = Task([elementwise(lambda e: sd.tanh(e[0]), [output])])
        assert longer.class_key != task.class_key
        assert longer.anchor_key == task.anchor_key


def test_the_anchor_stages_are_the_reductions_and_what_they_read() -> None:
    for task in tasks():
        for variant in task.variants:
            anchors = anchor_stages(variant)
            assert all(t in anchors for t in variant.stages if t.compute is not None and t.compute.combiner is not None)
            assert all(t.compute is not None and t.compute.combiner is not None for t in anchor_results(variant))
            assert bool(variant.anchor_key) == bool(anchors)


# ---- single kernels --------------------------------------------------------------------------------------------------


def _normalised(n: int) -> Task:
    return Task([standardize(tensor("X", (4, n)), [1], 1e-5)])


def _attention(width: int) -> Task:
    q, k = tensor("Q", (6, width)), tensor("K", (5, width))
    i, j, c = axis(6), axis(5), reduce_axis(width)
    scores = compute("S", (i, j), sd.sum(q[i, c] * k[j, c], c))
    return Task([elementwise(lambda e: e[0] * width**-0.5, [scores])])


def test_a_layer_norm_has_one_class_at_any_width() -> None:
    assert len({_normalised(n).class_key for n in (2, 7, 768, 1024)}) == 1


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_division_by_a_number_is_of_the_class_of_a_product(dtype: Any) -> None:
    x = tensor("X", (4, 5), dtype)

    def by(op: str, number: float) -> Task:
        return Task([elementwise(lambda e: binary(op, e[0], Const(number, e[0].dtype)), [x])])

    product = by("mul", 3.0).class_key
    assert product == by("mul", 0.5).class_key == by("div", 0.5).class_key == by("div", 3.0).class_key
    others = [by(op, number) for op in ("mul", "div") for number in (0.0, float("inf"))]
    others += [by("sub", 3.0), Task([elementwise(lambda e: 3.0 / e[0], [x])])]
    assert len({product, *(task.class_key for task in others)}) == 7


def test_a_division_by_a_tensor_is_no_product() -> None:
    x, y = tensor("X", (4, 5)), tensor("Y", (4, 5), constant=True)
    quotient, product = (Task([elementwise(lambda e, op=op: binary(op, e[0], e[1]), [x, y])]) for op in ("div", "mul"))
    assert quotient.class_key != product.class_key


def test_both_keys_are_blind_to_a_division_under_a_reduction() -> None:
    def total(op: str, number: float) -> Task:
        x, i, k = tensor("X", (4, 5)), axis(4), reduce_axis(5)
        return Task([compute("Y", i, sd.sum(binary(op, x[i, k], number), k))])

    assert len({key for task in (total("mul", 2.0), total("div", 3.0)) for key in keys(task)}) == 1


def test_the_scale_of_an_attention_is_no_part_of_its_class() -> None:
    assert len({_attention(n).class_key for n in (3, 32, 64)}) == 1


@pytest.mark.parametrize("exponent", [2.5, -1.5])
def test_exponents_are_seen(exponent: float) -> None:
    x = tensor("X", (4, 5))

    def power(by: float) -> Task:
        return Task([elementwise(lambda e: binary("pow", e[0], Const(by, "f32")), [x])])

    assert power(exponent).class_key != power(3.7).class_key


def test_the_value_of_a_border_is_seen_where_it_is_zero_or_infinite() -> None:
    def padded(value: float) -> Task:
        p = pad_constant(tensor("X", (4, 5)), (0, 1), (0, 1), value, (1,))
        i, k = axis(4), reduce_axis(7)
        return Task([compute("Y", i, sd.reduce_max(p[i, k], k))])

    classes = [padded(value).class_key for value in (0.0, float("-inf"), 2.0, 3.0)]
    assert len(set(classes)) == 3
    assert classes[2] == classes[3]


def test_the_order_of_an_operands_axes_is_seen() -> None:
    a, i, j, k = tensor("A", (4, 5)), axis(4), axis(3), reduce_axis(5)

    def product(b: Tensor, turned: bool) -> Task:
        return Task([compute("C", (i, j), sd.sum(a[i, k] * (b[j, k] if turned else b[k, j]), k))])

    plain, turned = product(tensor("B", (5, 3)), False), product(tensor("B", (3, 5)), True)
    assert plain.class_key != turned.class_key
    assert plain.anchor_key != turned.anchor_key


# ---- kernels of the graph layer --------------------------------------------------------------------------------------


def _convolution(stride: int, kernel: int, *after: str, size: int = 12) -> Task:
    b = GraphBuilder()
    x = b.input("x", (1, size, size, 16), "f32")
    w = b.constant(np.ones((kernel, kernel, 16, 32), np.float32))
    both = (kernel // 2,) * 2
    how: dict[str, Any] = {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "before": both, "after": both}
    y = b.emit("Conv", x, w, **how, dilations=(1, 1), groups=1, layout="NHWC")
    for k, op in enumerate(after):
        y = b.emit(op, y, *_second(b, op, y, k))
    return _only_task(b.graph([y], ["y"], "g", 20))


def _second(b: GraphBuilder, op: str, y: Value, k: int) -> Iterator[Value]:
    """The other operand of a sum: first a bias, then a residual."""
    if op == "Add":
        yield b.constant(np.ones(y.shape[-1], np.float32)) if k == 0 else b.input(f"x{k}", y.shape, "f32")


def _only_task(graph: Graph) -> Task:
    (call,) = (c for c in partition(optimise(graph)).calls if c.task.anchor_key)
    return call.task


def test_direct_schedules_pass_between_strides_whether_or_not_there_is_winograd() -> None:
    one, two = _convolution(1, 3, "Add", "Relu"), _convolution(2, 3, "Add", "Relu")
    assert (len(one.variants), len(two.variants)) == (3, 1)
    assert one.class_key == two.class_key == _convolution(1, 1, "Add", "Relu", size=20).class_key
    assert len({v.class_key for v in one.variants}) == 3


def test_convolutions_with_other_epilogues_have_one_anchor() -> None:
    epilogues = [(), ("Add",), ("Add", "Relu"), ("Add", "Add", "Relu"), ("Add", "Sigmoid")]
    found = [_convolution(1, 3, *after, size=9 + k) for k, after in enumerate(epilogues)]
    assert len({t.class_key for t in found}) == len(found)
    for variants in zip(*(t.variants for t in found), strict=True):
        assert len({v.anchor_key for v in variants}) == 1


def test_a_convolution_and_a_product_have_other_anchors() -> None:
    assert build("GMM", (1, 8, 8, 8)).anchor_key != _convolution(1, 1).anchor_key
