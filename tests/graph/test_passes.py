"""All passes together: random graphs and models keep their values, networks lose their batch norms, long graphs take no
recursion.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from stormdrop import zoo
from stormdrop.frontend.onnx import load
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph, verify
from stormdrop.graph.passes import PASSES, optimise
from stormdrop.operators.node import Value
from tests.support.graphs import assert_same, floats, graph_of, ops, window

Make = Callable[[GraphBuilder, np.random.Generator, Value], Value]
IMAGE = (2, 4, 5, 3)


def per_channel(b: GraphBuilder, rng: np.random.Generator, count: int = 4) -> Value:
    """What is added or multiplied: per channel, one number, sometimes the one that does nothing, sometimes a whole
    image.
    """
    kind = rng.integers(6)
    if kind < 2:
        return b.constant(np.float32(kind))
    if kind == 2:
        return b.constant(floats(rng, *IMAGE[1:]))
    return b.constant(floats(rng, 1, count, 1, 1) if kind < 5 else floats(rng, 1, 1, 1, 1))


def conv(b: GraphBuilder, rng: np.random.Generator, x: Value) -> Value:
    groups = int(rng.choice([1, 2, 4]))
    pad = int(rng.integers(2))
    kernel = 3 if pad else 1
    w = b.constant(floats(rng, 4, 4 // groups, kernel, kernel) * np.float32(0.5))
    return b.emit("Conv", x, w, groups=groups, layout="NCHW", **window((kernel, kernel), (pad, pad)))


def padded_pool(b: GraphBuilder, rng: np.random.Generator, x: Value) -> Value:
    op, value = ("SumPool", 0.0) if rng.integers(2) else ("MaxPool", float(rng.choice([0.0, -np.inf])))
    p = b.emit("Pad", x, before=(0, 0, 1, 1), after=(0, 0, 1, 1), mode="constant", value=value)
    return b.emit(op, p, layout="NCHW", **window((3, 3)))


def dense(b: GraphBuilder, rng: np.random.Generator, x: Value) -> Value:
    flat = b.reshape(x, (2, 60))
    y = b.emit("MatMul", flat, b.constant(floats(rng, 60, 60) * np.float32(0.2)), transpose_b=int(rng.integers(2)))
    return b.reshape(b.emit("Add", y, b.constant(floats(rng, 60))), IMAGE)


def halves(b: GraphBuilder, rng: np.random.Generator, x: Value) -> Value:
    cut = int(rng.integers(5))
    parts = [(0, cut), (cut, 4 - cut)]
    found = [b.emit("Slice", x, starts=(0, s if n else 0, 0, 0), steps=(1,) * 4, shape=(2, n, 5, 3)) for s, n in parts]
    return b.emit("Concat", *found[:: int(rng.choice([1, -1]))], axis=1)


def there_and_back(b: GraphBuilder, rng: np.random.Generator, x: Value) -> Value:
    order = tuple(int(d) for d in rng.permutation(4))
    y = b.emit("Relu", b.emit("Transpose", x, perm=order))
    return b.emit("Transpose", y, perm=tuple(int(d) for d in np.argsort(order)))


def reduced(b: GraphBuilder, rng: np.random.Generator, x: Value) -> Value:
    y = b.emit("ReduceSum", x, axes=(2, 3), keepdims=1)
    return b.emit("Expand", b.emit("Mul", y, b.number(1 / 15, y)), shape=IMAGE)


MAKES: list[Make] = [
    lambda b, rng, x: b.emit("Mul", x, per_channel(b, rng)),
    lambda b, rng, x: b.emit("Add", per_channel(b, rng), x),
    lambda b, rng, x: b.emit("Sub", x, per_channel(b, rng)),
    lambda b, rng, x: b.emit("Div", x, b.constant(floats(rng, 4, 1, 1) + 4)),
    lambda b, rng, x: b.emit("Relu", x),
    lambda b, rng, x: b.emit("Max", x, x),
    lambda b, rng, x: b.emit("Clip", x, max=3.0),
    conv,
    conv,
    conv,
    padded_pool,
    dense,
    halves,
    there_and_back,
    reduced,
]


def random_graph(seed: int) -> Graph:
    """Some twenty nodes on images, reading what was made before; outputs anywhere, some twice, some inputs and
    constants.
    """
    rng = np.random.default_rng(seed)
    b = GraphBuilder()
    made = [b.input("x", IMAGE, "f32"), b.input("y", IMAGE, "f32")]
    for _ in range(18):
        x = made[-1] if rng.random() < 0.7 else made[int(rng.integers(len(made)))]
        if rng.random() < 0.15:
            y = b.emit("Add", x, made[int(rng.integers(len(made)))])
        else:
            y = MAKES[int(rng.integers(len(MAKES)))](b, rng, x)
        made.append(b.emit("Tanh", y) if rng.random() < 0.2 else y)
    outputs = [made[-1], *(made[int(k)] for k in rng.integers(0, len(made), 3)), b.constant(floats(rng, 2))]
    return graph_of(b, *outputs)


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_compute_the_same_after_all_passes(seed: int) -> None:
    g = random_graph(seed)
    h = optimise(g)
    assert_same(g, h, within=1e-5)
    assert len(set(h.outputs)) == len(h.outputs)
    assert {n.output for n in h.nodes} >= set(h.outputs)


@pytest.mark.parametrize("seed", range(4))
def test_passes_find_nothing_more_in_their_own_result(seed: int) -> None:
    h = optimise(random_graph(seed))
    assert sum(ops(optimise(h)).values()) == len(h.nodes)


def test_listeners_hear_every_pass_in_order() -> None:
    g = random_graph(1)
    heard: list[tuple[str, Graph, Graph]] = []
    h = optimise(g, lambda name, before, after: heard.append((name, before, after)))
    assert [name for name, _, _ in heard] == [name for name, _ in PASSES]
    assert all(after is before for (_, _, after), (_, before, _) in pairwise(heard))
    assert heard[-1][2] is h


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_batch_norms_of_networks_vanish_into_weights(name: str) -> None:
    g = load(zoo.build(name))
    h = optimise(g)
    verify(h)
    before, after = ops(g), ops(h)
    assert before["Mul"] > 20
    assert after["Mul"] == 0
    assert after["Conv"] == before["Conv"]
    assert after["Add"] <= before["Add"]


def test_a_graph_of_many_nodes_needs_no_recursion() -> None:
    """Ten thousand additions are one, ten thousand relus too."""
    b = GraphBuilder()
    x = b.input("x", (3,), "f32")
    y = x
    for k in range(10_000):
        y = b.emit("Add", y, b.constant(np.float32(k % 7 - 3)))
    for _ in range(10_000):
        y = b.emit("Relu", y)
    assert ops(optimise(graph_of(b, y))) == {"Add": 1, "Relu": 1}
