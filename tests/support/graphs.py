"""Two graphs side by side: the same interface, the same values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from stormdrop.compare.interpreter import interpret
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph, verify
from stormdrop.ir.expr import NUMPY
from stormdrop.operators.node import Array, Value

HOSTILE = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 3e38, -7.5])


def graph_of(b: GraphBuilder, *outputs: Value) -> Graph:
    return b.graph(outputs, [f"out{k}" for k in range(len(outputs))], "g", 17)


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


def random_inputs(graph: Graph, rng: np.random.Generator, hostile: bool = False) -> list[Array]:
    arrays: list[Array] = []
    for v in graph.inputs:
        if v.dtype in ("f32", "f64"):
            a = rng.standard_normal(v.shape)
            if hostile:
                a = np.where(rng.random(v.shape) < 0.5, rng.choice(HOSTILE, v.shape), a)
        else:
            a = rng.integers(0, 2, v.shape) if v.dtype == "bool" else rng.integers(-50, 50, v.shape)
        arrays.append(np.asarray(a, NUMPY[v.dtype]))
    return arrays


def interface(graph: Graph) -> object:
    return graph.inputs, graph.output_names, [(v.shape, v.dtype) for v in graph.outputs]


def assert_same(before: Graph, after: Graph, within: float = 0.0, hostile: bool = False, seed: int = 0) -> None:
    """Both verify, have one interface and compute the same: bit by bit but for the sign of zero, or `within` a part of
    an output's size.
    """
    verify(before)
    verify(after)
    assert interface(after) == interface(before)
    given = random_inputs(before, np.random.default_rng(seed), hostile)
    with np.errstate(all="ignore"):
        pairs = list(zip(interpret(before, given), interpret(after, given)))
    for wanted, found in pairs:
        if within:
            size = float(np.max(np.abs(wanted), initial=1e-30, where=np.isfinite(wanted)))
            np.testing.assert_allclose(found, wanted, rtol=0, atol=within * size)
        else:
            np.testing.assert_array_equal(found, wanted)


def rewritten(function: Callable[[Graph], Graph], before: Graph, within: float = 0.0, hostile: bool = False) -> Graph:
    """What a pass makes of a graph, checked against it. A second run finds nothing left to do."""
    after = function(before)
    assert_same(before, after, within, hostile)
    assert function(after) is after
    return after


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def window(
    kernel: Sequence[int], before: Sequence[int] = (), after: Sequence[int] = (), strides: Sequence[int] = ()
) -> dict[str, tuple[int, ...]]:
    """The attributes of a window node; after is before, unless it is given."""
    rank = len(kernel)
    return {
        "kernel": tuple(kernel),
        "strides": tuple(strides or [1] * rank),
        "dilations": (1,) * rank,
        "before": tuple(before or [0] * rank),
        "after": tuple(after or before or [0] * rank),
    }
