"""Which cases are recorded. Everything follows from seeds, and no target is this machine's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stormdrop.compiler.compile import load, tasks_of
from stormdrop.graph.partition import Partition
from stormdrop.graph.storage import storage
from stormdrop.ir import build as sd
from stormdrop.ir.expr import FLOATS, LOGICAL, UNARY, Axis, Dtype, Expr, binary, compare, select
from stormdrop.ir.expr import call as function
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Task, Tensor, axis, compute, reduce_axis, tensor
from stormdrop.lower.program import View
from stormdrop.model.kernel import is_empty
from stormdrop.operators.catalogue import OPERATORS, build
from stormdrop.operators.indexing import clamped, wrapped
from stormdrop.space.default import default_schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from tests.fuzz.model import random_model
from tests.replay.cases import Case, numbered
from tests.replay.machines import ISAS, machine
from tests.support.tasks import OWN, random_task
from tests.support.trials import random_views

SHAPES = Path(__file__).parents[2] / "benchmarks" / "operators.json"
MOST_FLOPS = 5e8
NETWORKS = ("resnet50", "mobilenet_v2", "densenet121", "bert_base_seq128", "squeezenet1_0", "shufflenet_v2_x1_0")
KERNELS_OF_A_NETWORK = 10
GRAPH_TASKS = 36
COMPUTED: tuple[Dtype, ...] = ("f32", "f64", "i32", "i64", "bool")
"""The types that have arithmetic."""
MORE_POINTS = {"DEN": 2}
"""It alone packs run-time operands, in one of several places."""
Kernel = tuple[Task, dict[str, View]]


def drawn_cases() -> list[Case]:
    """More than 400."""
    return numbered([*_operators(), *_own_tasks(), *_arithmetic(), *_indices(), *_graph_tasks(), *_networks()])


def _default(group: str, task: Task, target: Target, views: Mapping[str, View] | None = None) -> Case:
    return Case(0, group, task, default_schedule(task, target), target, dict(views or {}), is_default=True)


def _random(
    group: str, task: Task, target: Target, rng: np.random.Generator, views: Mapping[str, View] | None = None
) -> Case:
    """A random point of a random sketch; half of them on random views where none are given."""
    found = sketches(task, target)
    sketch = found[int(rng.integers(len(found)))]
    schedule = sketch.schedule(sketch.sample_legal(1, rng)[0])
    if views is None:
        views = random_views(task, rng) if rng.random() < 0.5 else {}
    return Case(0, group, task, schedule, target, dict(views))


def _operators() -> Iterator[Case]:
    """Each operator on each instruction set: the default at a usual shape and at an odd one, and random points."""
    usual = json.loads(SHAPES.read_text())
    for n, name in enumerate(OPERATORS):
        rng = np.random.default_rng([1, n])
        tasks = sorted((build(name, shape) for shape in usual[name]), key=lambda task: task.flops)
        tasks = [task for task in tasks if task.flops <= MOST_FLOPS] or tasks[:1]
        for k, isa in enumerate(ISAS):
            target = machine(isa, 1 + (n + k) % 2)
            odd = random_task(name, rng, "f64" if (n + k) % 5 == 4 else "f32", long=k == n % 5)
            yield _default(name, tasks[k % len(tasks)], target)
            yield _default(name, odd, target)
            for _ in range(1 + MORE_POINTS.get(name, 0)):
                yield _random(name, (tasks[0], odd)[(n + k) % 2], target, rng)


def _own_tasks() -> Iterator[Case]:
    """What operators do not have: several outputs, integers, products, minima, Winograd."""
    for n, name in enumerate(OWN):
        rng = np.random.default_rng([2, n])
        for k in range(3):
            target = machine(ISAS[(n + 2 * k) % len(ISAS)], 1 + k % 2)
            yield _random(name, random_task(name, rng, "f64" if k == 2 else "f32"), target, rng)


def _arithmetic() -> Iterator[Case]:
    """Every operation on every element type."""
    for n, dtype in enumerate(COMPUTED):
        rng = np.random.default_rng([4, n])
        for k, isa in enumerate(ISAS):
            task = Task(_all_operations(dtype, extent=(37, 64)[(n + k) % 2]), name=f"all operations on {dtype}")
            target = machine(isa, 1 + (n + k) % 2)
            yield _random("arithmetic", task, target, rng) if k % 2 else _default("arithmetic", task, target)


ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "fmod", "min", "max", "pow", "copysign")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _all_operations(dtype: Dtype, extent: int) -> list[Tensor]:
    """A tensor for each operation that the element type has, for each conversion, and for each reduction."""
    x, y = tensor("X", (3, extent), dtype), tensor("Y", (3, extent), dtype)
    is_float, is_integer = dtype in FLOATS, dtype in ("i32", "i64")
    unary = [
        fn for fn in UNARY if (fn == "not" if dtype == "bool" else fn in ("neg", "abs") if is_integer else fn != "not")
    ]
    arithmetic = (
        LOGICAL
        if dtype == "bool"
        else [op for op in ARITHMETIC if is_float or op not in ("div", "pow", "fmod", "copysign")]
    )
    made: list[Tensor] = []

    def add(make: Callable[[Expr, Expr], Expr]) -> None:
        i, j = axis(3, "i"), axis(extent, "j")
        made.append(compute(f"Z{len(made)}", (i, j), make(x[i, j], y[i, j])))

    for fn in unary:
        add(lambda a, b, fn=fn: function(fn, a))
    for op in arithmetic:
        add(lambda a, b, op=op: binary(op, a, b))
    for op in COMPARISONS:
        add(lambda a, b, op=op: compare(op, a, b))
    for other in COMPUTED:
        if other != dtype:
            add(lambda a, b, other=other: sd.cast(a, other))
    for reduce in (sd.sum, sd.prod, sd.reduce_max, sd.reduce_min):
        i, k = axis(3, "i"), reduce_axis(extent, "k")
        made.append(compute(f"Z{len(made)}", i, reduce(x[i, k], k)))
    return made


def _indices() -> Iterator[Case]:
    """Positions as data, data as positions, and positions that are no linear function of the axes."""
    for k, isa in enumerate(ISAS):
        rng = np.random.default_rng([5, k])
        task = Task(_index_operations(extent=(37, 64)[k % 2]), name="index arithmetic")
        yield _default("indices", task, machine(isa, 1 + k % 2))
        yield _random("indices", task, machine(isa, 2 - k % 2), rng)


def _index_operations(extent: int) -> list[Tensor]:
    x, table, chosen = tensor("X", (3, extent)), tensor("T", (5, extent)), tensor("I", (3,), "i64")
    made: list[Tensor] = []

    def add(make: Callable[[Axis, Axis], Expr]) -> None:
        i, j = axis(3, "i"), axis(extent, "j")
        made.append(compute(f"Z{len(made)}", (i, j), make(i, j)))

    add(lambda i, j: sd.cast(i * 100 + j, "f32"))
    add(lambda i, j: sd.cast(j % 5 + (j - 9) // 4, "f32") * x[i, j])
    add(lambda i, j: x[i, j % 7] + x[(i + j) % 3, (j * 5) // 8])
    add(lambda i, j: x[i, select(j < 20, j, 20)] - x[i, sd.maximum(j - 11, 0)])
    add(lambda i, j: select((j < 3) | ((j >= 20) & (i > 0)), x[i, j], table[i, j]))
    add(lambda i, j: table[clamped(chosen[i], 5), (extent - 1) - j])
    add(lambda i, j: table[clamped(wrapped(chosen[i] - 3, 5), 5), j // 2])
    return made


def _graph_tasks() -> Iterator[Case]:
    """Fused kernels of random models, each of a class of its own, by default and at random."""
    rng = np.random.default_rng(3)
    seen: set[str] = set()
    seed = 0
    while len(seen) < GRAPH_TASKS:
        drawn = random_model(seed)
        proto = drawn.recipe.proto({name: drawn.held[name].plain for name in drawn.recipe.outputs})
        new = [k for k in _kernels(tasks_of(load(proto))) if k[0].class_key not in seen]
        for task, views in new[:2]:
            seen.add(task.class_key)
            target = machine(ISAS[len(seen) % len(ISAS)], 1 + len(seen) // len(ISAS) % 2)
            if len(seen) % 3 == 0:
                yield _random("graph", task, target, rng, views)
            else:
                yield _default("graph", task, target, views)
        seed += 1


def _networks() -> Iterator[Case]:
    for n, name in enumerate(NETWORKS):
        parts = tasks_of(load(f"zoo:{name}"))
        found = _kernels(parts)
        for k in range(KERNELS_OF_A_NETWORK):
            task, views = found[k * (len(found) - 1) // (KERNELS_OF_A_NETWORK - 1)]
            target = machine(ISAS[(n + k) % len(ISAS)], 1 + k // len(ISAS) % 2)
            yield _default(name, task, target.with_weights(parts.constant_bytes), views)


def _kernels(parts: Partition) -> list[Kernel]:
    """The distinct kernels of a model, in order, with the views through which they see its memory."""
    laid = storage(parts)
    found: dict[object, Kernel] = {}
    for call in laid.calls:
        runtime = [v for t, v in zip(call.task.inputs, call.inputs) if not t.constant]
        tensors = (*call.task.runtime_inputs, *call.task.outputs)
        views = {
            t.name: View(laid.places[v].strides)
            for t, v in zip(tensors, [*runtime, call.output])
            if not _is_row_strides(laid.places[v].strides, v.shape)
        }
        if not is_empty(call.task):
            found.setdefault((call.task.digest, *views.items()), (call.task, views))
    return list(found.values())


def _is_row_strides(strides: Sequence[int], shape: Sequence[int]) -> bool:
    return all(a == b for a, b, n in zip(strides, row_strides(shape), shape) if n > 1)
