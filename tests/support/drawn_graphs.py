"""Tasks of random small graphs: one to six nodes, through the passes of the graph layer, cut into kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import TaskCall, call_of, partition
from stormdrop.graph.passes import optimise
from stormdrop.ir.expr import Dtype, Expr, loads
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.operators.node import Value
from stormdrop.operators.pointwise import POINTWISE
from tests.support.exactness import is_judged
from tests.support.graph_draft import MOST_ELEMENTS, Array, GraphDraft, Refused, random_data
from tests.support.graph_steps import STEPS
from tests.support.tasks import work

DTYPES: tuple[Dtype, ...] = ("f32", "f32", "f32", "f64", "i32", "i64", "i64", "bool")
MOST_NODES = 6
MOST_WORK = 100_000
DRAWS = 100
BY_DATA = frozenset(
    {
        "Gather",
        "GatherElements",
        "GatherND",
        "ReverseSequence",
        "ScatterElements",
        "ScatterND",
        "GridSample",
        "Interpolate",
    }
)
PLAIN = frozenset(
    {*(operator.name for operator in POINTWISE), "Gather", "Transpose", "Reshape", "Slice", "Expand", "Repeat", "Tile"}
)


@dataclass(frozen=True)
class Drawn:
    """A task and its data."""

    task: Task
    arrays: Mapping[str, Array]


def draw(seed: int, sizes: int) -> Drawn:
    """The task of a random graph. Equal seeds give equal operators; shapes follow `sizes` as far as these allow it."""
    for attempt in range(DRAWS):
        draft = GraphDraft([5, seed, attempt], [6, sizes, attempt])
        try:
            _fill(draft)
        except Refused:
            continue
        drawn = _drawn(draft, np.random.default_rng([7, sizes, attempt]))
        if drawn is not None:
            return drawn
    raise AssertionError(f"graph {seed}: none of {DRAWS} drawn makes sense")


def _fill(d: GraphDraft) -> None:
    """Inputs, the first of them often an image, and nodes."""
    if d.chance(0.35):
        d.input(d.shape(d.among(3, 4)), d.among("f32", "f32", "f64"))
    for _ in range(1 if d.values else d.among(1, 1, 2)):
        d.input(d.shape(d.among(1, 2, 2, 3, 3, 4)), d.among(*DTYPES))
    for k in range(1, 1 + int(d.pick.integers(1, MOST_NODES + 1))):
        d.step(k)
        d.values.append(_node(d))


def _node(d: GraphDraft) -> Value:
    """Something done to a value, most often to the last one."""
    weights = np.array([w for w, _ in STEPS])
    for _ in range(30):
        step = STEPS[int(d.pick.choice(len(STEPS), p=weights / weights.sum()))][1]
        x = d.values[-1] if d.chance(0.75) else d.among(*d.values)
        try:
            y = step(d, x)
        except (Refused, UserError):
            continue
        if 0 < y.size <= MOST_ELEMENTS and y.rank <= 5 and y not in d.b.constants:
            return y
    raise Refused


def _drawn(d: GraphDraft, rng: np.random.Generator) -> Drawn | None:
    """A kernel of the graph with its data, if it is small and can be judged."""
    read = {v for n in d.b.nodes for v in n.inputs}
    outputs = [n.output for n in d.b.nodes if n.output not in read]
    graph = optimise(d.b.graph(outputs, [f"y{k}" for k in range(len(outputs))], "random", 17))
    call = _chosen(d, graph)
    if call is None or work(call.task) > MOST_WORK:
        return None
    constants = zip(call.task.inputs, call.inputs)
    arrays = {t.name: graph.constants[v] for t, v in constants if v in graph.constants}
    ranges = index_ranges(call.task)
    for t in call.task.runtime_inputs:
        if t.name not in arrays:
            arrays[t.name] = random_data(t.shape, t.dtype, rng, ranges.get(t))
    return Drawn(call.task, arrays) if is_judged(call.task, arrays) else None


def _chosen(d: GraphDraft, graph: Graph) -> TaskCall | None:
    """One kernel of the graph, rather a larger one; or, where that can be, the whole graph as one kernel."""
    if d.chance(0.4) and len(graph.outputs) == 1 and graph.nodes and _can_be_one(graph):
        return call_of(graph.nodes, graph.constants)
    calls = partition(graph).calls
    weights = np.array([len(c.nodes) ** 2.0 for c in calls])
    return calls[int(d.pick.choice(len(calls), p=weights / weights.sum()))] if calls else None


def _can_be_one(graph: Graph) -> bool:
    """Whether no index that is data reads what lies inside a border: its test would not protect the read."""
    made = {n.output: n for n in graph.nodes}

    def plain(v: Value) -> bool:
        node = made.get(v)
        return node is None or (node.op in PLAIN and all(plain(u) for u in node.inputs))

    return all(plain(v) for n in graph.nodes if n.op in BY_DATA for v in n.inputs)


def index_ranges(task: Task) -> dict[Tensor, int]:
    """The inputs that indices are read from, each with the smallest extent that they choose from."""
    found: dict[Tensor, int] = {}

    def note(e: Expr, extent: int) -> None:
        for load in loads(e):
            t = load.tensor
            if t.compute is not None:
                note(t.compute.body, extent)
            elif t.dtype in ("i32", "i64"):
                found[t] = min(extent, found.get(t, extent))

    for stage in (t for v in task.variants for t in v.stages):
        assert stage.compute is not None
        for load in loads(stage.compute.body):
            for index, extent in zip(load.indices, load.tensor.shape):
                note(index, extent)
    return found
