"""If, Loop and Scan whose conditions and numbers of steps are constants, as Stormdrop needs them.

A body is a draft of its own. Its formal inputs hold the values of the first step; outer values that it reads are
inputs of it under another name. `Body.graph` gives every value that the body defines a prefix, and outer values their
own names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper, numpy_helper

from tests.fuzz.draft import TYPES, Draft, Maker, Refused
from tests.fuzz.makers import gathering, movement
from tests.fuzz.makers.arguments import anything, axis_of, drawn, either_sign, fixed
from tests.fuzz.recipe import port

Array = NDArray[Any]
INSIDE = {**movement.MAKERS, **gathering.MAKERS}
MOST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph under construction in draft `d` of the outer draft `outer`."""

    outer: Draft
    d: Draft
    formals: list[str]
    captured: dict[str, str]

    @classmethod
    def start(cls, outer: Draft, formals: Sequence[Array]) -> Body:
        d = Draft(outer.rng, outer.opset, outer.special, outer.empties)
        names = [d.input(a.shape, array=a) for a in formals]
        captured: dict[str, str] = {}
        for _ in range(outer.among(0, 1, 1, 2) if formals else outer.among(1, 1, 2)):
            name = anything(outer, most=500)
            alias = d.input(outer.shape(name), array=outer.held[name].plain)
            d.held[alias] = outer.held[name]
            captured[alias] = name
        return cls(outer, d, names, captured)

    def some(self, count: int) -> list[str]:
        """Results of a few nodes, drawn freely."""
        for _ in range(8):
            if len(self.d.nodes) >= count:
                break
            try:
                draw(self.d)
            except Refused:
                continue
        if not self.d.made:
            self.d.one("Identity", self.d.pick(dtypes=TYPES))
        return list(self.d.made)

    def graph(self, results: Sequence[str], prefix: str) -> onnx.GraphProto:
        """The subgraph, its own names behind the prefix. The body's new inputs become inputs of the outer draft."""
        d, own = self.d, list[str]()
        for name in results:  # every output is computed by a node of the body, and named once
            own.append(name if name in d.made and name not in own else d.one("Identity", name))
        recipe = d.recipe(own)
        names = dict(self.captured)
        for name, array in recipe.inputs.items():
            if name not in self.formals and name not in names:
                names[name] = fixed(self.outer, array)

        def renamed(name: str) -> str:
            return names.get(name, prefix + name) if name else ""

        nodes = [
            replace(
                node,
                inputs=tuple(map(renamed, node.inputs)),
                outputs=tuple(map(renamed, node.outputs)),
                attributes={k: _renamed_graph(v, names, prefix) for k, v in node.attributes.items()},
            )
            for node in recipe.nodes
        ]
        return helper.make_graph(
            [n.proto() for n in nodes],
            f"{prefix}body",
            [port(renamed(n), d.inputs[n]) for n in self.formals],
            [port(renamed(n), d.held[n].plain) for n in own],
            [numpy_helper.from_array(a, renamed(k)) for k, a in recipe.constants.items()],
        )


def _renamed_graph(value: Any, names: Mapping[str, str], prefix: str) -> Any:
    """A subgraph of a subgraph with its names behind the prefix as well; other attributes as they are."""
    if not isinstance(value, onnx.GraphProto):
        return value
    graph = onnx.GraphProto()
    graph.CopyFrom(value)
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name = names.get(item.name, prefix + item.name)
    for node in graph.node:
        for listed in (node.input, node.output):
            for k, name in enumerate(listed):
                listed[k] = names.get(name, prefix + name) if name else ""
        for a in node.attribute:
            if a.HasField("g"):
                a.g.CopyFrom(_renamed_graph(a.g, names, prefix))
    return graph


def draw(d: Draft) -> None:
    """One node, or a few: movement, arithmetic, now and then control flow again."""
    if d.chance(0.5):
        stepped(d, d.pick(dtypes=TYPES))
    elif d.chance(0.05):
        d.among(branch, loop, scan)(d)
    else:
        makers = list(INSIDE.values())
        weights = np.array([w for w, _ in makers])
        makers[int(d.rng.choice(len(makers), p=weights / weights.sum()))][1](d)


def stepped(d: Draft, x: str) -> str:
    """Another value of the same shape and type."""
    dtype, shape = d.dtype(x), d.shape(x)
    if dtype == np.bool_:
        return d.one("Not", x) if d.chance(0.4) else d.one(d.among("And", "Or", "Xor"), x, d.value(shape, dtype))
    match d.among("binary", "binary", "unary", "narrow", "reversed", "where"):
        case "unary":
            return d.one(d.among("Tanh", "Sigmoid", "Neg", "Abs") if dtype.kind == "f" else d.among("Neg", "Abs"), x)
        case "narrow":
            other = d.value([e if d.chance(0.5) else 1 for e in shape], dtype)
            return d.one(d.among("Add", "Sub"), x, other)
        case "reversed" if shape:
            axis = axis_of(d, len(shape))
            ends = (d.integers([v]) for v in (-1, np.iinfo(np.int64).min, axis, -1))
            return d.one("Slice", x, *ends)
        case "where":
            return d.one(
                "Where", d.value([e if d.chance(0.5) else 1 for e in shape], np.bool_), x, d.value(shape, dtype)
            )
        case _:
            return d.one(d.among("Add", "Sub", "Mul", "Max"), x, d.value(shape, dtype))


def _prefix(d: Draft, letter: str) -> str:
    return f"{letter}{len(d.nodes)}_"


# ---- If --------------------------------------------------------------------------------------------------------------


def _condition(d: Draft) -> str:
    """True or false: a constant, or what follows from the shape of a value."""
    if d.chance(0.7):
        return d.constant(np.array(d.chance(0.5)).reshape(d.among((), (1,))))
    return d.one(d.among("Greater", "Less", "Equal"), d.one("Size", anything(d)), d.constant(np.int64(d.whole(0, 100))))


def branch(d: Draft) -> list[str]:
    """Both branches give as many results of the same types; their shapes may differ."""
    condition = _condition(d)
    first = Body.start(d, ())
    made = first.some(d.among(1, 2, 3))
    results = [made[int(k)] for k in d.rng.permutation(len(made))[: d.among(1, 1, 2)]]
    second = Body.start(d, ())
    second.some(d.among(1, 2))
    others = [_of_type(second.d, first.d.dtype(r)) for r in results]
    graphs = [first.graph(results, _prefix(d, "t")), second.graph(others, _prefix(d, "e" if d.chance(0.5) else "t"))]
    if d.chance(0.5):
        graphs.reverse()
    return d.emit("If", condition, results=len(results), then_branch=graphs[0], else_branch=graphs[1])


def _of_type(d: Draft, dtype: DTypeLike) -> str:
    try:
        return d.pick(dtypes=(dtype,))
    except Refused:
        return d.constant(drawn(d, d.dims(most=50), dtype))


# ---- Loop ------------------------------------------------------------------------------------------------------------


def _states(d: Draft) -> list[str]:
    """What is handed from step to step."""
    return [anything(d, most_rank=4, most=300) for _ in range(d.among(0, 1, 1, 2))]


def loop(d: Draft) -> list[str]:
    """With a trip count, with a condition that ends it, or both; what a step gives is stacked.

    A loop of no steps is drawn without stacked results only: their shapes would be unknown to Stormdrop.
    """
    states, steps = _states(d), d.whole(0, MOST_STEPS)
    go_on = np.asarray(True)
    body = Body.start(d, [np.asarray(0, np.int64), go_on, *(d.held[s].plain for s in states)])
    inner, (at, go, *names) = body.d, body.formals
    stacked = d.among(0, 1, 1, 2) if steps else 0
    if not states and not stacked:
        steps, stacked = max(steps, 1), 1
    if d.chance(0.4):
        _element(body, at, steps)
    next_states = [_next(inner, name) for name in names]
    made = body.some(d.among(1, 2, 4)) if stacked else []
    results = [made[d.whole(0, len(made) - 1)] for _ in range(stacked)]
    match d.among("count", "count", "condition", "both"):
        case "count":
            count, condition, more = steps, d.among("", "constant"), d.among("same", "constant")
        case "condition" if steps:
            count, condition, more = None, d.among("", "constant"), "compared"
        case _:
            count, condition, more = steps + d.among(0, 2), "constant", "compared" if steps else "same"
    match more:
        case "compared":
            go = inner.one("Less", at, inner.constant(np.int64(steps - 1)))
        case "constant":
            go = inner.constant(go_on)
        case _:
            pass
    trips = "" if count is None else d.constant(np.array(count, np.int64).reshape(d.among((), (1,))))
    starts = d.constant(np.array(bool(steps) or more != "same")) if condition else ""
    graph = body.graph([go, *next_states, *results], _prefix(d, "l"))
    return d.emit("Loop", trips, starts, *states, results=len(states) + stacked, body=graph)


def _element(body: Body, at: str, steps: int) -> None:
    """The row of an outer value that belongs to the step."""
    outer, inner = body.outer, body.d
    try:
        name = outer.pick(lambda s: len(s) > 0 and s[0] >= max(steps, 1), TYPES)
    except Refused:
        return
    alias = inner.input(outer.shape(name), array=outer.held[name].plain)
    inner.held[alias] = outer.held[name]
    body.captured[alias] = name
    inner.one("Gather", alias, at, axis=0)


def _next(d: Draft, state: str) -> str:
    """The state after a step."""
    name = state
    for _ in range(d.among(0, 1, 1, 1, 2)):
        name = stepped(d, name)
    return name


# ---- Scan ------------------------------------------------------------------------------------------------------------


def scan(d: Draft) -> list[str]:
    """Along any dimension, in either direction; every slice that a step gives is stacked along any dimension."""
    states, steps = _states(d), d.whole(1, MOST_STEPS)
    sources: list[str] = []
    axes: list[int] = []
    for _ in range(d.among(1, 1, 2)):
        shape = list(d.dims(d.among(0, 1, 2, 2, 3), 200))
        axis = d.whole(0, len(shape))
        shape.insert(axis, steps)
        sources.append(
            d.take(lambda shape=tuple(shape): shape, TYPES, lambda s, a=axis: a < len(s) <= 4 and s[a] == steps)
        )
        axes.append(axis)
    slices = [np.take(d.held[x].plain, 0, axis=a) for x, a in zip(sources, axes)]
    body = Body.start(d, [*(d.held[s].plain for s in states), *slices])
    next_states = [_next(body.d, name) for name in body.formals[: len(states)]]
    made = body.some(d.among(1, 2, 4))
    stacked = d.among(0, 1, 1, 2) if states else d.among(1, 1, 2)
    results = [made[d.whole(0, len(made) - 1)] for _ in range(stacked)]
    attributes: dict[str, Any] = {"num_scan_inputs": len(sources)}
    if any(axes) or d.chance(0.3):
        attributes["scan_input_axes"] = [either_sign(d, a, d.rank(x)) for x, a in zip(sources, axes)]
    if d.chance(0.4):
        attributes["scan_input_directions"] = [d.among(0, 1) for _ in sources]
    if d.chance(0.4) and results:
        ranks = [body.d.rank(r) + 1 for r in results]
        attributes["scan_output_axes"] = [either_sign(d, d.whole(0, r - 1), r) for r in ranks]
    if d.chance(0.4) and results:
        attributes["scan_output_directions"] = [d.among(0, 1) for _ in results]
    graph = body.graph([*next_states, *results], _prefix(d, "s"))
    return d.emit("Scan", *states, *sources, results=len(states) + stacked, body=graph, **attributes)


MAKERS: dict[str, tuple[float, Maker]] = {"If": (0.6, branch), "Loop": (0.6, loop), "Scan": (0.6, scan)}
