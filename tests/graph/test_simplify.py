"""Common subexpressions, folding, pads, empty values, outputs: structure and values on tiny graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.compare.interpreter import interpret
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph, verify
from stormdrop.graph.simplify import common_subexpressions, empties, fold_constants, own_outputs, pads_into_windows
from stormdrop.model.kernel import build
from stormdrop.operators.node import Node, Value, task_of
from stormdrop.operators.table import GRAPH_OPERATORS
from tests.support.graphs import assert_same, floats, graph_of, ops, random_inputs, rewritten, window

RNG = np.random.default_rng(3)


# Common subexpressions


def test_nodes_that_do_the_same_to_the_same_values_are_one() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (3, 4), "f32"), b.input("y", (3, 4), "f32")
    a, c = b.emit("Add", b.emit("Relu", x), y), b.emit("Add", y, b.emit("Relu", x))
    assert ops(rewritten(common_subexpressions, graph_of(b, b.emit("Sub", a, c)))) == {"Relu": 1, "Add": 1, "Sub": 1}


def test_nodes_of_other_attributes_stay_apart() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4), "f32")
    parts = [b.emit("Transpose", x, perm=(1, 0)), b.emit("Transpose", x, perm=(0, 1))]
    parts += [b.emit("Clip", x, min=0.0), b.emit("Clip", x, max=0.0)]
    assert len(rewritten(common_subexpressions, graph_of(b, *parts)).nodes) == 4


def test_pads_with_zeros_of_either_sign_stay_apart() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,), "f32")
    pads = [b.emit("Pad", x, before=(1,), after=(0,), mode="constant", value=v) for v in (0.0, -0.0)]
    g = common_subexpressions(graph_of(b, *(b.emit("Reciprocal", p) for p in pads)))
    assert len(g.nodes) == 4


def test_equal_constants_are_one_and_so_are_their_readers() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "f32")
    w = floats(RNG, 2, 3)
    other = w.copy()
    other[1, 2] += 1
    results = [b.emit("Mul", x, b.constant(a)) for a in (w, w.copy(), other, w.astype(np.float32).T.copy().T)]
    g = rewritten(common_subexpressions, graph_of(b, *results))
    assert (len(g.constants), len(g.nodes)) == (2, 2)


def test_constants_that_differ_in_bits_alone_stay_apart() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,), "f32")
    results = [b.emit("Div", x, b.constant(a, "f32")) for a in ([1.0, 0.0], [1.0, -0.0])]
    assert len(rewritten(common_subexpressions, graph_of(b, *results), hostile=True).constants) == 2


def test_outputs_that_are_the_same_become_one_value_under_two_names() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "f32")
    g = rewritten(common_subexpressions, graph_of(b, b.emit("Neg", x), b.emit("Neg", x)))
    assert g.outputs[0] == g.outputs[1]
    assert g.output_names == ("out0", "out1")


# Folding


def constant_chain() -> Graph:
    """x + relu(transpose(w)), w having become a constant only now."""
    b = GraphBuilder()
    x, w = b.input("x", (3, 2), "f32"), b.input("w", (2, 3), "f32")
    y = b.emit("Relu", b.emit("Transpose", w, perm=(1, 0)))
    g = graph_of(b, b.emit("Add", x, y))
    return replace(g, inputs=(x,), constants={w: floats(RNG, 2, 3)})


def test_what_has_become_constant_is_computed() -> None:
    g = rewritten(fold_constants, constant_chain())
    assert ops(g) == {"Add": 1}
    assert len(g.constants) == 1


def test_a_result_too_large_to_keep_stays_a_node() -> None:
    b = GraphBuilder()
    big = b.emit("Expand", b.constant(1.0, "f32"), shape=(1 << 26,))
    g = graph_of(b, big)
    assert fold_constants(g) is g


# Pads


@pytest.mark.parametrize("op", ["Conv", "SumPool"])
def test_zeros_around_an_image_become_the_windows_own(op: str) -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 2, 5, 4), "f32")
    p = b.emit("Pad", x, before=(0, 0, 1, 2), after=(0, 0, 0, 1), mode="constant", value=0.0)
    more = {"groups": 1} if op == "Conv" else {}
    weights = [b.constant(floats(RNG, 3, 2, 3, 2))] if op == "Conv" else []
    y = b.emit(op, p, *weights, layout="NCHW", **window((3, 2), (1, 0), (0, 1), (2, 1)), **more)
    g = rewritten(pads_into_windows, graph_of(b, y), within=2e-6)
    assert [(n.op, n.attributes["before"], n.attributes["after"]) for n in g.nodes] == [(op, (2, 2), (0, 2))]


def test_channels_last_windows_take_pads_of_their_dimensions() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 5, 4, 2), "f32")
    p = b.emit("Pad", x, before=(0, 1, 2, 0), after=(0, 0, 1, 0), mode="constant", value=0.0)
    g = rewritten(pads_into_windows, graph_of(b, b.emit("SumPool", p, layout="NHWC", **window((2, 2)))))
    assert ops(g) == {"SumPool": 1}


def test_the_lowest_number_around_an_image_goes_into_a_max_pool() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 2, 5), "f32")
    p = b.emit("Pad", x, before=(0, 0, 1), after=(0, 0, 1), mode="constant", value=-np.inf)
    assert ops(rewritten(pads_into_windows, graph_of(b, b.emit("MaxPool", p, layout="NCHW", **window((3,)))))) == {
        "MaxPool": 1
    }


@pytest.mark.parametrize(
    ("before", "mode", "value", "op"),
    [
        ((0, 0, 1), "constant", 0.0, "MaxPool"),
        ((0, 0, 1), "constant", 2.0, "SumPool"),
        ((0, 1, 0), "constant", 0.0, "SumPool"),
        ((0, 0, 1), "edge", 0.0, "SumPool"),
        ((0, 0, 1), "constant", -np.inf, "SumPool"),
        ((0, 0, 1), "constant", 0.0, "MaxPoolIndices"),
    ],
)
def test_other_pads_stay(before: tuple[int, ...], mode: str, value: float, op: str) -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 2, 5), "f32")
    p = b.emit("Pad", x, before=before, after=(0, 0, 0), mode=mode, value=value)
    g = graph_of(b, b.emit(op, p, layout="NCHW", **window((2,))))
    assert pads_into_windows(g) is g


def test_a_pad_with_another_reader_stays_for_all() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 1, 4), "f32")
    p = b.emit("Pad", x, before=(0, 0, 1), after=(0, 0, 1), mode="constant", value=0.0)
    pools = [b.emit("SumPool", p, layout="NCHW", **window((k,))) for k in (2, 3)]
    assert ops(rewritten(pads_into_windows, graph_of(b, *pools), within=2e-6)) == {"SumPool": 2}
    g = graph_of(b, *pools, b.emit("Neg", p))
    assert pads_into_windows(g) is g
    g = graph_of(b, *pools, p)
    assert pads_into_windows(g) is g


# Empty values


def no_node_reads_nothing(graph: Graph) -> bool:
    return not any(n.output.size == 0 or any(v.size == 0 for v in n.inputs) for n in graph.nodes)


def test_empty_parts_of_a_concat_are_dropped() -> None:
    b = GraphBuilder()
    x, y, none = b.input("x", (2, 3), "f32"), b.input("y", (2, 2), "f32"), b.input("none", (2, 0), "f32")
    g = rewritten(
        empties, graph_of(b, b.emit("Concat", x, none, y, axis=1), b.emit("Concat", none, b.emit("Neg", x), axis=1))
    )
    assert ops(g) == {"Concat": 1, "Neg": 1}
    assert no_node_reads_nothing(g)


@pytest.mark.parametrize(
    ("op", "value"), [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)]
)
def test_a_reduction_of_nothing_is_its_neutral_element(op: str, value: float) -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 0), "f32")
    g = empties(graph_of(b, b.emit(op, x, axes=(1,), keepdims=0)))
    verify(g)
    assert not g.nodes
    assert g.constants[g.outputs[0]].tolist() == [value, value]


def test_sums_over_no_products_are_zero() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (2, 0), "f32"), b.input("w", (0, 3), "f32")
    image, filters = b.input("image", (1, 0, 4), "f32"), b.constant(np.zeros((2, 0, 3), np.float32))
    pixels = b.input("pixels", (1, 2, 0), "f32")
    results = [b.emit("MatMul", x, w), b.emit("Conv", image, filters, groups=1, layout="NCHW", **window((3,)))]
    results += [b.emit(op, pixels, layout="NCHW", **window((2,), (1,), (1,))) for op in ("SumPool", "MaxPool")]
    g = empties(graph_of(b, *results))
    verify(g)
    assert not g.nodes
    assert [float(np.unique(g.constants[v])[0]) for v in g.outputs] == [0, 0, 0, -np.inf]


def test_a_pad_around_nothing_is_its_value_everywhere() -> None:
    b = GraphBuilder()
    none, value = b.input("none", (0, 2), "f32"), b.input("value", (), "f32")
    known = b.emit("Pad", none, before=(1, 0), after=(1, 1), mode="constant", value=2.5)
    given = b.emit("Pad", none, value, before=(1, 0), after=(0, 0), mode="constant", value=0.0)
    g = rewritten(empties, graph_of(b, known, given))
    assert ops(g) == {"Expand": 1}


def test_scattering_nothing_changes_nothing() -> None:
    b = GraphBuilder()
    x, at, what = b.input("x", (3,), "f32"), b.input("at", (0,), "i64"), b.input("what", (0,), "f32")
    y = b.emit("ScatterElements", b.emit("Neg", x), at, what, axis=0, reduction="none")
    g = empties(
        graph_of(b, y)
    )  # the reference knows no maximum over no updates: there is nothing to compare with but NumPy
    verify(g)
    assert ops(g) == {"Neg": 1}
    assert interpret(g, random_inputs(g, RNG))[0].shape == (3,)


def test_what_has_no_elements_is_not_computed() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 0), "f32")
    y = b.emit("Relu", b.emit("Add", x, b.number(1, x)))
    g = rewritten(empties, graph_of(b, y, b.emit("Concat", y, y, axis=0)))
    assert not g.nodes


def test_an_element_taken_out_of_nothing_is_the_models_fault() -> None:
    b = GraphBuilder()
    x, at = b.input("x", (0,), "f32"), b.input("at", (2,), "i64")
    with pytest.raises(UserError, match="nothing to take"):
        empties(graph_of(b, b.emit("Gather", x, at, axis=0)))


# Outputs


def test_every_output_is_written_by_a_node_of_its_own() -> None:
    b = GraphBuilder()
    x, c = b.input("x", (2,), "f32"), b.constant([1.0, 2.0], "f32")
    y = b.emit("Neg", x)
    g = rewritten(own_outputs, graph_of(b, y, x, c, y, x))
    assert ops(g) == {"Neg": 1, "Copy": 4}
    assert len(set(g.outputs)) == 5
    assert {n.output for n in g.nodes} == set(g.outputs)
    assert g.outputs[0] == y


def test_copies_take_the_outputs_name_unless_it_is_taken() -> None:
    x = Value("x", (2,), "f32")
    y = Value("y", (2,), "f32")
    g = Graph((x,), (x, x), (), {}, output_names=("x", "y"))
    h = own_outputs(g)
    assert [v.name for v in h.outputs] == ["x.1", "y"]
    g = Graph((x,), (y, y), (Node(GRAPH_OPERATORS["Neg"], (x,), (y,)),), {}, output_names=("z", "y"))
    assert [v.name for v in own_outputs(g).outputs] == ["y", "y.1"]


def test_a_copy_runs_as_a_kernel() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 5), "f32")
    g = own_outputs(graph_of(b, x))
    given = floats(RNG, 3, 5)
    (copy,) = g.nodes
    np.testing.assert_array_equal(build(task_of(copy), threads=1)(given), given)
    assert_same(graph_of(b, x), g)
