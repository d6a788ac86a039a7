"""Graphs: what holds of every one, rewriting, printing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.compare.interpreter import interpret
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph, verify
from stormdrop.operators.node import Node, Value, shown
from stormdrop.operators.table import GRAPH_OPERATORS


def chain() -> Graph:
    """relu(x + 1) · 2."""
    b = GraphBuilder()
    x = b.input("x", (2, 3), "f32")
    y = b.emit("Relu", b.emit("Add", x, b.number(1, x)))
    return b.graph([b.emit("Mul", y, b.number(2, y))], ["out"], "chain", 17)


def test_a_graph_prints_one_node_a_line() -> None:
    lines = str(chain()).splitlines()
    assert lines[0] == "graph chain(%x: f32[2, 3])"
    assert [line.split(" = ")[1].split("(")[0] for line in lines if " = " in line and "constant" not in line] == [
        "Add",
        "Relu",
        "Mul",
    ]
    assert lines[-1].startswith("  return %")


def test_the_builder_makes_graphs_that_verify() -> None:
    verify(chain())


def test_a_value_read_before_it_is_defined_is_refused() -> None:
    g = chain()
    with pytest.raises(UserError, match="not defined before"):
        verify(replace(g, nodes=g.nodes[::-1]))


def test_a_value_defined_twice_is_refused() -> None:
    g = chain()
    with pytest.raises(UserError, match="defined twice"):
        verify(replace(g, nodes=(*g.nodes, g.nodes[-1])))


def test_a_result_of_another_shape_than_its_operator_gives_is_refused() -> None:
    g = chain()
    wrong = Value("w", (3, 2), "f32")
    bad = Node(GRAPH_OPERATORS["Relu"], (g.inputs[0],), (wrong,))
    with pytest.raises(UserError, match="gives"):
        verify(Graph(g.inputs, (wrong,), (bad,), {}))


def test_a_node_that_nothing_reads_is_refused() -> None:
    g = chain()
    dead = Node(GRAPH_OPERATORS["Neg"], (g.inputs[0],), (Value("dead", (2, 3), "f32"),))
    with pytest.raises(UserError, match="nothing reads"):
        verify(replace(g, nodes=(*g.nodes, dead)))
    verify(replace(g, nodes=(*g.nodes, dead)).pruned())


def test_rewriting_replaces_nodes_and_shares_the_rest() -> None:
    g = chain()

    def swap(node: Node) -> list[Node] | None:
        return [replace(node, operator=GRAPH_OPERATORS["Neg"], attributes={})] if node.op == "Relu" else None

    h = g.rewrite(swap)
    verify(h)
    assert [n.op for n in h.nodes] == ["Add", "Neg", "Mul"]
    assert h.nodes[0] is g.nodes[0]
    assert [n.op for n in g.nodes] == ["Add", "Relu", "Mul"]


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\0b", "<script>", "../etc/passwd", "a'b", "\x1b[31m", "ab" * 100])
def test_printed_names_hold_nothing_dangerous(name: str) -> None:
    text = shown(name)
    assert not set(text) & set("\"'\n\0<>/\x1b\\&")
    assert len(text) < 300


def test_what_depends_on_constants_alone_is_computed_at_once() -> None:
    b = GraphBuilder()
    two = b.constant(np.array([2, 3], np.int64))
    three = b.emit("Add", two, b.constant(1, "i64"))
    found = b.array(b.emit("Concat", two, three, axis=0))
    assert found is not None
    assert found.tolist() == [2, 3, 3, 4]
    assert not b.nodes


def test_a_constant_too_large_to_fold_stays_a_node() -> None:
    b = GraphBuilder()
    big = b.emit("Expand", b.constant(1.0, "f32"), shape=(1 << 26,))
    assert b.array(big) is None
    assert [n.op for n in b.nodes] == ["Expand"]


def test_a_value_beyond_all_memory_is_refused() -> None:
    b = GraphBuilder()
    with pytest.raises(UserError, match="elements"):
        b.emit("Expand", b.constant(1.0, "f32"), shape=(10**6, 10**6))


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(UserError, match="given as"):
        interpret(chain(), {"x": np.zeros((3, 2), np.float32)})
