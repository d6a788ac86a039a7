"""Small files that ask for much memory, much time or endless nesting: refused by name before any of it is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

import stormdrop as sd
from stormdrop.frontend import onnx as frontend
from stormdrop.graph import builder
from stormdrop.graph.passes import optimise
from tests.support.abused_onnx import B, L, held, model, node, one, ones, port

BOMBS: dict[str, Callable[[], Any]] = {
    "Tile": lambda: one("Tile", (1,), {"times": np.array([10**12])}),
    "Pad": lambda: one("Pad", (1,), {"pads": np.array([2**62, 2**62])}),
    "Expand": lambda: one("Expand", (1,), {"shape": np.array([2**62])}),
    "Resize": lambda: one(
        "Resize", (1, 1, 4, 4), {"_": None, "scales": np.array([1, 1, 1e9, 1e9], np.float32)}, mode="linear"
    ),
    "Resize without end": lambda: one(
        "Resize", (1, 1, 4, 4), {"_": None, "s": np.array([1, 1, np.inf, np.nan], np.float32)}
    ),
    "Resize blurred": lambda: one(
        "Resize", (1, 10**7), {"_": None, "s": np.array([1, 1e-7], np.float32)}, mode="linear", antialias=1
    ),
    "Upsample": lambda: one("Upsample", (1, 1, 4, 4), {"scales": np.array([1, 1, 1e6, 1e6], np.float32)}, opset=9),
    "EyeLike": lambda: one("EyeLike", (10**5, 10**5)),
    "Hardmax": lambda: one("Hardmax", (10**9,)),
    "AveragePool": lambda: one("AveragePool", (1, 1, 4), kernel_shape=[2**30], pads=[2**30, 2**30]),
    "Conv": lambda: one("Conv", (1, 1, 4), {"w": ones(1, 1, 3)}, pads=[2**62, 2**62]),
    "ConvTranspose": lambda: one("ConvTranspose", (1, 1, 4), {"w": ones(1, 1, 3)}, strides=[2**40]),
    "Einsum": lambda: model(
        [node("Einsum", "x x x", "y", name="n", equation="a,b,c->abc")], [port("x", (10**5,))], "y"
    ),
    "Add": lambda: model([node("Add", "x z", "y", name="n")], [port("x", (10**6, 1)), port("z", (1, 10**6))], "y"),
    "OneHot": lambda: model(
        [node("OneHot", "x d v", "y", name="n")],
        [port("x", (1000,), L)],
        "y",
        {"d": np.array([10**9]), "v": np.array([0, 1], np.float32)},
    ),
    "Range": lambda: model(
        [node("Range", "a b c", "y", name="n")],
        [],
        "y",
        {"a": np.float32(0), "b": np.float32(np.inf), "c": np.float32(1)},
    ),
    "NonZero": lambda: model(
        [node("ConstantOfShape", "s", "a", value=held("v", np.array([1]))), node("NonZero", "a", "y", name="n")],
        [],
        [port("y", None, L)],
        {"s": np.array([1] * 20 + [1 << 23])},
    ),
    "Split": lambda: one("Split", (4,), num_outputs=2**40),
    "Loop": lambda: looping(1 << 62),
}


def looping(trips: int) -> Any:
    inner = [node("Identity", "go", "on"), node("Neg", "state", "next")]
    ends = [port("on", (), B), port("next", (2,))]
    body = helper.make_graph(inner, "b", [port("i", (), L), port("go", (), B), port("state", (2,))], ends)
    return model(
        [node("Loop", "trips _ x", "y", name="n", body=body)], [port("x", (2,))], "y", {"trips": np.array(trips)}
    )


@pytest.mark.parametrize("what", BOMBS)
def test_a_node_that_asks_for_too_much_is_refused_by_name(what: str) -> None:
    with pytest.raises(sd.UserError, match=r"\bnode n\b"):
        sd.read_graph(BOMBS[what]())


@pytest.mark.parametrize("op", ["Tile", "Concat"])
def test_a_chain_that_doubles_a_size_ends_where_it_is_too_large(op: str) -> None:
    tiles = [node("Tile", f"a{k} two", f"a{k + 1}") for k in range(60)]
    nodes = tiles if op == "Tile" else [node("Concat", f"a{k} a{k}", f"a{k + 1}", axis=0) for k in range(60)]
    for inputs, weights in (([port("a0", (1,))], {}), ([], {"a0": ones(1)})):
        with pytest.raises(sd.UserError, match="node n_a35"):
            sd.read_graph(model(nodes, inputs, "a60", {"two": np.array([2]), **weights} if op == "Tile" else weights))


def test_folding_stops_where_its_share_of_memory_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MOST_FOLDED", 4000)
    nodes = [node("Add", f"a{k} c", f"a{k + 1}") for k in range(20)]
    g = sd.read_graph(model(nodes, [], "a20", {"a0": ones(100), "c": ones(100)}))
    assert len(g.nodes) == 10


def test_folding_stops_where_its_share_of_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MOST_WORK", 5000)
    nodes = [node("ReduceSum", "c", f"a{k}", keepdims=0) for k in range(20)]
    nodes.append(node("Sum", " ".join(f"a{k}" for k in range(20)), "y"))
    m = model(nodes, [], "y", {"c": ones(1000)})
    assert sum(n.op == "ReduceSum" for n in sd.read_graph(m).nodes) == 15
    assert sd.compile(m)() == 20_000


def test_a_product_of_constants_is_folded_unless_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def folded(size: int, dtype: Any) -> bool:
        return not sd.read_graph(
            model([node("MatMul", "a a", "y")], [], "y", {"a": np.ones((size, size), dtype)})
        ).nodes

    assert folded(64, np.float32)
    assert folded(64, np.int64)
    monkeypatch.setattr(builder, "MOST_STEPS", 2000)
    assert folded(64, np.float32)
    assert not folded(64, np.int64)
    assert not folded(128, np.float32)


def test_the_passes_fold_within_bounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MOST_STEPS", 0)
    g = sd.read_graph(model([node("Exp", "c", "y")], [], "y", {"c": ones(100)}))
    assert len(optimise(g).nodes) == 1
    monkeypatch.setattr(builder, "MOST_STEPS", 1 << 20)
    assert [n.op for n in optimise(g).nodes] == ["Copy"]


# ---- functions and subgraphs

IMPORTS = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]


def calling(called: Sequence[tuple[str, Sequence[Any]]], first: str) -> Any:
    """A model of one node that calls a function, each given by its name and nodes from a to b."""
    defined = [helper.make_function("f", name, ["a"], ["b"], list(nodes), IMPORTS) for name, nodes in called]
    graph = helper.make_graph([node(first, "x", "y", domain="f")], "g", [port("x", (2,))], [port("y", (2,))])
    return helper.make_model(graph, opset_imports=IMPORTS, functions=defined)


def test_functions_that_call_each_other_in_a_circle_are_refused() -> None:
    circle = [("p", [node("q", "a", "b", domain="f")]), ("q", [node("p", "a", "b", domain="f")])]
    with pytest.raises(sd.UserError, match=r"function [pq] calls itself"):
        sd.read_graph(calling(circle, "p"))
    branch = helper.make_graph([node("p", "a", "z", domain="f")], "branch", [], [port("z")])
    inside = [
        node("Constant", "", "c", value=held("v", np.array(True))),
        node("If", "c", "b", then_branch=branch, else_branch=branch),
    ]
    with pytest.raises(sd.UserError, match="function p calls itself"):
        sd.read_graph(calling([("p", inside)], "p"))


def test_functions_that_double_are_not_written_out() -> None:
    doubling = [("f0", [node("Relu", "a", "b")])]
    for k in range(1, 60):
        doubling.append((f"f{k}", [node(f"f{k - 1}", "a", "t", domain="f"), node(f"f{k - 1}", "t", "b", domain="f")]))
    assert len(sd.read_graph(calling(doubling[:6], "f5")).nodes) == 32
    with pytest.raises(sd.UserError, match=f"more than {builder.MOST_NODES:,} nodes"):
        sd.read_graph(calling(doubling, "f59"))


def test_functions_nested_without_end_are_refused() -> None:
    deep = [(f"f{k}", [node(f"f{k - 1}" if k else "Relu", "a", "b", domain="f" if k else "")]) for k in range(2000)]
    with pytest.raises(sd.UserError, match="its functions cannot be expanded"):
        sd.read_graph(calling(deep, "f1999"))


def test_loops_in_loops_end_where_they_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "MOST_NODES", 5000)
    body: Any = None
    for depth in range(6):  # a thousand to the sixth
        last = (
            node("Neg", f"s{depth}", f"t{depth}")
            if body is None
            else node("Loop", f"trips _ s{depth}", f"t{depth}", body=body)
        )
        ends = [port(f"d{depth}", (), B), port(f"t{depth}", (2,))]
        starts = [port(f"i{depth}", (), L), port(f"c{depth}", (), B), port(f"s{depth}", (2,))]
        body = helper.make_graph([node("Identity", f"c{depth}", f"d{depth}"), last], "b", starts, ends)
    with pytest.raises(sd.UserError, match="more than 5,000 nodes"):
        sd.read_graph(
            model([node("Loop", "trips _ x", "y", body=body)], [port("x", (2,))], "y", {"trips": np.array(1000)})
        )


def test_recurrent_networks_one_after_the_other_end_where_they_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MOST_NODES", 5000)
    nodes: list[Any] = []
    for k in range(9):
        nodes += [node("RNN", f"a{k} w r", f"b{k}", hidden_size=1), node("Reshape", f"b{k} s", f"a{k + 1}")]
    m = model(
        nodes, [port("a0", (1000, 1, 1))], "a9", {"w": ones(1, 1, 1), "r": ones(1, 1, 1), "s": np.array([1000, 1, 1])}
    )
    with pytest.raises(sd.UserError, match="node n_b"):
        sd.read_graph(m)


def test_functions_of_one_name_are_refused() -> None:
    twice = [("p", [node("Relu", "a", "b")]), ("p", [node("Neg", "a", "b")])]
    with pytest.raises(sd.UserError, match="two functions"):
        sd.read_graph(calling(twice, "p"))
