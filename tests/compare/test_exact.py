"""The four results of comparing outputs: right, a less exact peer, ill-conditioned, wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from stormdrop.compare.exact import SHAKEN_RUNS, CheckedOutput, ExactReference, ShakenPeer, judged
from stormdrop.compare.interpreter import interpret
from stormdrop.compare.oracle import agreements
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from tests.support.graphs import Array, graph_of

LARGE = 2.0**24 + 2.0**10 + 8.0
"""A number that f32 holds exactly, and that takes x's digits behind the point."""
X = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)


def product() -> Graph:
    b = GraphBuilder()
    w = b.constant(np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32), name="w")
    y = b.emit("MatMul", b.input("x", (4, 6), "f32"), w, transpose_a=0, transpose_b=0)
    return graph_of(b, y, b.emit("ArgMax", y, axis=1, last=0))


def cancellation() -> Graph:
    """(x + c) - c."""
    b = GraphBuilder()
    c = b.constant(LARGE, "f32", name="c")
    y = b.emit("Sub", b.emit("Add", b.input("x", (4, 6), "f32"), c), c)
    return graph_of(b, y)


def checked(
    graph: Graph, ours: Sequence[Array], peer: Sequence[Array], seconds: float = 60.0, told: list[str] | None = None
) -> list[CheckedOutput]:
    def named(arrays: Sequence[Array]) -> Mapping[str, Array]:
        return dict(zip(graph.output_names, arrays))

    beside = agreements(graph.output_names, named(ours), named(peer))
    reference = ExactReference(graph, {"x": X, "bound": X}, seconds)
    return judged(beside, named(ours), named(peer), reference, ([] if told is None else told).append)


def test_outputs_within_the_tolerance_are_right() -> None:
    graph = product()
    arrays = interpret(graph, [X])
    results = checked(graph, arrays, arrays)
    assert [c.conclusion for c in results] == ["right", "right"]
    assert all(c.ok for c in results)


def test_a_peer_off_the_f64_reference_is_less_exact() -> None:
    graph = product()
    y, top = interpret(graph, [X])
    float_output, index = checked(graph, [y, top], [y * np.float32(1.01), (top + 1) % 5])
    assert [float_output.conclusion, index.conclusion] == ["peer less exact"] * 2
    assert float_output.ok
    assert float_output.exact is not None
    assert float_output.exact.ours.relative < 1e-6
    assert float_output.exact.peer.relative == pytest.approx(0.01, rel=1e-3)
    assert float_output.exact.rounding is None


def test_our_output_off_the_f64_reference_is_wrong() -> None:
    graph = product()
    y, top = interpret(graph, [X])
    float_output, index = checked(graph, [y * np.float32(1.01), (top + 1) % 5], [y, top])
    assert [float_output.conclusion, index.conclusion] == ["wrong", "wrong"]
    assert not float_output.ok
    assert float_output.exact is not None
    assert float_output.exact.rounding is not None
    assert 0 < float_output.exact.rounding[0] < 1e-5


def test_an_output_that_one_rounding_moves_as_far_is_ill_conditioned() -> None:
    graph = cancellation()
    (ours,) = interpret(graph, [X])
    (output,) = checked(graph, [ours], [X])
    assert output.agreement.relative > 0.01
    assert output.conclusion == "ill-conditioned"
    assert output.ok
    (wild,) = checked(graph, [ours * np.float32(100) + np.float32(1000)], [X])
    assert wild.conclusion == "wrong"


def test_an_index_that_one_rounding_moves_is_ill_conditioned() -> None:
    b = GraphBuilder()
    c = b.constant(LARGE, "f32", name="c")
    graph = graph_of(b, b.emit("ArgMax", b.emit("Add", b.input("x", (4, 6), "f32"), c), axis=1, last=0))
    (ours,) = interpret(graph, [X])
    (output,) = checked(graph, [ours], [np.argmax(X, axis=1, keepdims=True)])
    assert output.conclusion == "ill-conditioned"


@pytest.mark.parametrize(("offset", "conclusion"), [(0, "ill-conditioned"), (500, "wrong")])
def test_integers_are_explained_by_roundings_only_if_they_are_no_farther(offset: int, conclusion: str) -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 6), "f32")
    y = b.emit("Cast", b.emit("Mul", x, b.constant(3.3e7, "f32")), to="i32")
    graph = graph_of(b, y)
    (ours,) = interpret(graph, [X])
    peer = interpret(graph, [X], "f64")[0] + 1
    (output,) = checked(graph, [(ours + 1 + offset).astype(np.int32)], [peer.astype(np.int32) + 3])
    assert output.conclusion == conclusion


def test_integer_inputs_are_shaken_by_the_weights_and_the_results_between() -> None:
    b = GraphBuilder()
    ids = b.input("x", (4, 6), "i64")
    table = b.constant(np.random.default_rng(3).standard_normal((9, 3)).astype(np.float32), name="table")
    rows = b.emit("Gather", table, ids, axis=0)
    graph = graph_of(b, b.emit("ReduceSum", rows, axes=(0, 1), keepdims=0))
    reference = ExactReference(graph, {"x": np.arange(24).reshape(4, 6) % 9}, 60.0)
    (plain,), (shaken,), (again,) = (
        list(r.values()) for r in (reference.run(), reference.shaken(0), reference.shaken(0))
    )
    assert 0 < np.abs(shaken - plain).max() < 1e-4
    np.testing.assert_array_equal(shaken, again)


def test_numbers_of_few_bits_are_exact_and_are_not_shaken() -> None:
    b = GraphBuilder()
    half = b.constant(np.array([0.5, 1.0, 255.0, 0.0, np.inf], np.float32), name="c")
    graph = graph_of(b, b.emit("Add", b.input("x", (5,), "f32"), half), b.emit("Mul", half, half))
    x = np.array([1, 2, 3, 4, 5], np.float32)
    shaken = ExactReference(graph, {"x": x}, 60.0).shaken(0)
    np.testing.assert_array_equal(next(iter(shaken.values())), [1.5, 3.0, 258.0, 4.0, np.inf])


def test_outputs_that_are_not_finite_in_f32_are_compared_as_f32() -> None:
    b = GraphBuilder()
    x = b.input("x", (1,), "f32")
    graph = graph_of(b, b.emit("Exp", x))
    named = {"x": np.array([100.0], np.float32)}
    y = interpret(graph, named)[0]
    assert np.isinf(y).all()
    ours, peer = {graph.output_names[0]: y}, {graph.output_names[0]: np.zeros(1, np.float32)}
    beside = agreements(graph.output_names, ours, peer)
    (output,) = judged(beside, ours, peer, ExactReference(graph, named, 60.0), lambda _: None)
    assert output.conclusion == "peer less exact"


def test_without_time_the_peer_alone_judges_and_the_limit_is_named() -> None:
    graph, told = product(), list[str]()
    y, top = interpret(graph, [X])
    results = checked(graph, [y, top], [y * np.float32(1.01), top], 0.0, told)
    assert [c.conclusion for c in results] == ["wrong", "right"]
    assert all(c.exact is None for c in results)
    assert told == ["the f64 reference takes longer than 0 s: nothing but the other side judges"]


def test_without_time_to_shake_nothing_is_ill_conditioned(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, told = cancellation(), list[str]()
    (ours,) = interpret(graph, [X])

    def refuse(self: ExactReference, seed: int) -> dict[str, Array]:
        raise MemoryError("no memory")

    monkeypatch.setattr(ExactReference, "shaken", refuse)
    (output,) = checked(graph, [ours], [X], told=told)
    assert output.conclusion == "wrong"
    assert told == [f"no memory: 0 of {SHAKEN_RUNS} shaken runs were made"]


@pytest.mark.parametrize(("ours", "conclusion"), [("rounded", "ill-conditioned"), ("off by 1 %", "wrong")])
def test_without_an_f64_reference_the_peer_on_rounded_inputs_judges(ours: str, conclusion: str) -> None:
    def peer(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        x = inputs["x"]
        return {"y": (x * np.float32(LARGE)) % np.float32(1.0) if ours == "rounded" else x * inputs["k"]}

    inputs = {"x": X, "k": np.array(3)}
    shaken = ShakenPeer(peer, inputs)
    expected = shaken.run()
    found = shaken.shaken(7) if ours == "rounded" else {"y": (expected["y"] * 1.01).astype(expected["y"].dtype)}
    (output,) = judged(agreements(["y"], found, expected), found, expected, shaken, lambda _: None)
    assert output.conclusion == conclusion
    assert output.exact is not None
    assert not output.exact.is_f64
