"""Operators against NumPy, compiled; hostile values; shapes against expressions; random schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.compare.interpreter import interpret
from stormdrop.device.host import detect
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import verify
from stormdrop.ir import build as ir
from stormdrop.ir.expr import binary, call
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.model.kernel import build
from stormdrop.operators.broadcast import reshaped_indices
from stormdrop.operators.node import Attribute, task_of
from stormdrop.space.sketch import sketches
from tests.support.trials import targets

Array = NDArray[Any]
RNG = np.random.default_rng(7)


def run(op: str, *arrays: Array, **attributes: Attribute) -> Array:
    """One node on a compiled kernel, checked against the interpreter."""
    b = GraphBuilder()
    names = {
        np.dtype(np.float32): "f32",
        np.dtype(np.float64): "f64",
        np.dtype(np.int32): "i32",
        np.dtype(np.int64): "i64",
    }
    values = [b.input(f"x{k}", a.shape, names.get(a.dtype, "bool")) for k, a in enumerate(arrays)]  # pyright: ignore[reportArgumentType]
    graph = b.graph([b.emit(op, *values, **attributes)], ["y"], "g", 17)
    verify(graph)
    kernel = build(task_of(graph.nodes[0]), threads=1)
    named = {f"x{k}": a for k, a in enumerate(arrays)}
    compiled = kernel(*(named[t.name] for t in kernel.inputs))
    (reference,) = interpret(graph, list(arrays))
    if compiled.dtype.kind == "f":
        np.testing.assert_allclose(compiled, reference, rtol=2e-5, atol=2e-6)
    else:
        np.testing.assert_array_equal(compiled, reference)
    return compiled


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gathering_clamps_wild_indices(dtype: Any) -> None:
    x = floats(5, 19)
    info = np.iinfo(dtype)
    wild = np.array([0, 4, -1, -5, 5, -6, 1000, info.max, info.min], dtype)
    safe = np.clip(np.where(wild < 0, wild.astype(np.int64) + 5, wild.astype(np.int64)), 0, 4)
    np.testing.assert_array_equal(run("Gather", x, wild, axis=0), x[safe])
    np.testing.assert_array_equal(run("Gather", x, wild, axis=1).shape, (5, 9))
    wide = np.resize(wild, (9, 19))
    expected = np.take_along_axis(x, np.resize(safe, (9, 19)), 0)
    np.testing.assert_array_equal(run("GatherElements", x, wide, axis=0), expected)


def test_scattering_ignores_wild_indices_and_the_last_update_wins() -> None:
    x, u = floats(6), floats(5)
    indices = np.array([1, 100, -2, 1, -100], np.int64)
    expected = x.copy()
    expected[4], expected[1] = u[2], u[3]
    np.testing.assert_array_equal(run("ScatterElements", x, indices, u, axis=0, reduction="none"), expected)
    np.testing.assert_array_equal(run("ScatterND", x, indices[:, None], u, reduction="none"), expected)
    added = run("ScatterElements", x, indices, u, axis=0, reduction="add")
    np.testing.assert_allclose(added[1], x[1] + u[0] + u[3], rtol=1e-6)


def test_the_first_of_equal_maxima_is_found_and_nan_counts_as_largest() -> None:
    x = np.array([[1, 3, 3, 2], [np.nan, 1, np.nan, 5], [2, 2, 2, 2]], np.float32)
    assert run("ArgMax", x, axis=1, keepdims=1, last=0).ravel().tolist() == np.argmax(x, 1).tolist()
    assert run("ArgMin", x, axis=1, keepdims=1, last=0).ravel().tolist() == np.argmin(x, 1).tolist()
    assert run("ArgMax", x[::2], axis=1, keepdims=1, last=1).ravel().tolist() == [2, 3]


def test_the_largest_come_in_order_and_equal_ones_in_place() -> None:
    x = np.array([3, 1, 3, 2, 3, 0], np.float32)
    assert run("TopKIndices", x, axis=0, k=4, largest=1).tolist() == [0, 2, 4, 3]
    assert run("TopKIndices", x, axis=0, k=6, largest=0).tolist() == [5, 1, 3, 0, 2, 4]


SHAPES = [
    ((6,), (2, 3)),
    ((2, 3, 4), (24,)),
    ((2, 3, 4), (4, 3, 2)),
    ((1, 6, 1), (3, 1, 2)),
    ((), (1, 1)),
    ((4, 1, 3), (2, 2, 3)),
    ((5, 4, 3), (5, 12)),
]


@pytest.mark.parametrize(("before", "after"), SHAPES)
def test_reshaping_reads_every_element_in_order(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", before, "f32")
    node_graph = b.graph([b.emit("Reshape", x, shape=after)], ["y"], "g", 17)
    data = floats(*before)
    (result,) = evaluate(task_of(node_graph.nodes[0]), {"x0": data}).values()
    np.testing.assert_array_equal(result, data.reshape(after))


def test_a_dimension_that_stays_is_read_without_division() -> None:
    axes = [axis(5), axis(6), axis(7)]
    indices = reshaped_indices((5, 2, 3, 7), axes)
    assert indices[0] is axes[0]
    assert indices[3] is axes[2]


def test_a_read_under_a_condition_is_not_used_outside_it() -> None:
    import stormdrop as sd

    x, i = sd.tensor("x", (40,)), sd.axis(40)
    task = sd.Task([sd.compute("y", i, sd.where(i < 5, x[i] * 2.0, 0.0) + x[i])])
    data = floats(40)
    np.testing.assert_allclose(build(task, threads=1)(data), np.where(np.arange(40) < 5, data * 3, data), rtol=1e-6)


def test_an_index_made_of_data_must_be_clamped() -> None:
    import stormdrop as sd

    x, k, i = sd.tensor("x", (40,)), sd.tensor("k", (9,), "i64"), sd.axis(9)
    with pytest.raises(sd.UserError, match="clamp"):
        build(sd.Task([sd.compute("y", i, x[k[i]])]), threads=1)


WINDOW: dict[str, Attribute] = {
    "kernel": (3, 3),
    "strides": (2, 1),
    "dilations": (1, 2),
    "before": (1, 2),
    "after": (2, 1),
    "layout": "NCHW",
}
NODES: list[tuple[str, list[tuple[int, ...]], dict[str, Attribute]]] = [
    ("Gather", [(9, 33)], {"axis": 1}),
    ("Softmax", [(5, 17, 3)], {"axis": 1}),
    ("Standardize", [(4, 6, 35)], {"axes": (1, 2), "epsilon": 1e-5}),
    ("Conv", [(2, 6, 9, 8), (4, 3, 3, 3)], {"groups": 2, **WINDOW}),
    ("Conv", [(1, 6, 9, 8), (6, 1, 3, 3)], {"groups": 6, **WINDOW}),
    ("ConvTranspose", [(1, 4, 5, 6), (4, 3, 3, 3)], {"groups": 1, "extents": (10, 8), **WINDOW}),
    ("MaxPool", [(2, 5, 9, 8)], WINDOW),
    ("MaxPoolIndices", [(1, 3, 9, 8)], WINDOW),
    ("Concat", [(3, 5), (3, 18), (3, 1)], {"axis": 1}),
    ("Pad", [(7, 19)], {"before": (3, 5), "after": (2, 18), "mode": "reflect", "value": 0.0}),
    ("CumSum", [(3, 21)], {"axis": 1, "exclusive": 1, "reverse": 1}),
    ("TopKIndices", [(3, 19)], {"axis": 1, "k": 7, "largest": 1}),
    ("ArgMax", [(6, 35)], {"axis": 0, "keepdims": 1, "last": 0}),
    ("MatMul", [(2, 1, 9, 20), (3, 33, 20)], {"transpose_b": 1}),
    ("Einsum", [(3, 4, 5), (5, 4, 6)], {"equation": "bij,jik->bk"}),
]


@pytest.mark.parametrize(("op", "shapes", "attributes"), NODES)
def test_random_schedules_compute_what_the_reference_computes(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Attribute]
) -> None:
    b = GraphBuilder()
    values = [b.input(f"x{k}", s, "f32") for k, s in enumerate(shapes)]
    arrays = [floats(*s) for s in shapes]
    if op == "Gather":
        values.append(b.input("at", (21,), "i64"))
        arrays.append(RNG.integers(-33, 33, 21))
    b.emit(op, *values, **attributes)
    task = task_of(b.nodes[0])
    named = {f"x{k}": a for k, a in enumerate(arrays)}
    (wanted,) = evaluate(task, named, precision="f64").values()
    target = detect().with_threads(1)
    found = sketches(task, target)
    rng = np.random.default_rng(3)
    for k in rng.permutation(len(found))[:3]:
        sketch = found[k]
        for point in sketch.sample_legal(2, rng):
            kernel = build(task, schedule=sketch.schedule(point), threads=1)
            np.testing.assert_allclose(
                kernel(*(named[t.name] for t in task.runtime_inputs)), wanted, rtol=1e-4, atol=1e-5
            )


def test_functions_that_branch_are_right_in_every_loop() -> None:
    """Sine jumps over a call, remainders and integer powers are calls: in reductions rolled, unrolled and masked."""
    x, n = tensor("X", (7, 53)), tensor("N", (7, 53), "i32")
    i, k = axis(7), reduce_axis(53)
    bodies = {
        "sine": compute("S", i, ir.sum(call("sin", x[i, k]), k)),
        "remainder": compute("R", i, ir.sum(binary("fmod", x[i, k], 0.37), k)),
        "power": compute("P", i, ir.sum(binary("pow", n[i, k], n[i, k] % 5), k)),
        "most": compute("M", i, ir.reduce_max(call("cos", x[i, k]), k)),
    }
    rng = np.random.default_rng(3)
    size = 10.0 ** rng.uniform(-3, 9, (7, 53))
    named = {"X": (floats(7, 53) * size).astype(np.float32), "N": rng.integers(-50, 50, (7, 53)).astype(np.int32)}
    named["X"][:, ::3] = floats(7, 18)
    for name, result in bodies.items():
        task = Task([result])
        given = [named[t.name] for t in task.inputs]
        (wanted,) = evaluate(task, {t.name: named[t.name] for t in task.inputs}).values()
        for target in targets():
            found = sketches(task, target.with_threads(1))
            for sketch in (found[k] for k in rng.permutation(len(found))[:4]):
                for point in sketch.sample_legal(2, rng):
                    schedule = sketch.schedule(point)
                    result = build(task, schedule=schedule, threads=1, target=target)(*given)
                    what = f"{name} {target.isa} {schedule}"
                    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=1e-5, err_msg=what)
