"""The rules for well-formed computes and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import expr
from stormdrop.ir.affine import bounds, index_condition
from stormdrop.ir.dtypes import HALVES, Dtype
from stormdrop.ir.expr import Axis, Bin, Call, Cast, Cmp, Const, Expr, Load, Reduce, Select, Var, children, walk

if TYPE_CHECKING:
    from stormdrop.ir.tensor import Compute, Task


def verify_compute(name: str, c: Compute) -> None:
    """Raises UserError for an axis used twice or not declared, a reduction inside a body, or arithmetic on halves."""
    declared: set[Expr] = set()
    for a in (*c.axes, *c.reduce_axes):
        if a in declared:
            raise UserError(f"{name}: axis {a.name} is used twice")
        declared.add(a)
    for a in c.axes:
        if a.kind != "spatial":
            raise UserError(f"{name}: {a.name} is a reduce axis; it cannot index the output")
    for a in c.reduce_axes:
        if a.kind != "reduce":
            raise UserError(f"{name}: {a.name} is a spatial axis; reduce over sd.reduce_axis(…)")
        if a.extent == 0 and c.combiner in ("max", "min"):
            raise UserError(f"{name}: {c.combiner} over the empty axis {a.name} has no value")
    for node in walk(c.body):
        if isinstance(node, Axis) and node not in declared:
            raise UserError(f"{name}: axis {node.name} is neither an axis of the result nor reduced over")
        if isinstance(node, Var):
            raise UserError(f"{name}: {node.name} is no axis")
        if isinstance(node, Reduce):
            raise UserError(f"{name}: a reduction must be the whole body; give it a compute of its own")
        half = _half_computed_with(node)
        if half is not None:
            raise UserError(f"{name}: {node} computes with {half}; use sd.cast(…, 'f32')")
    if c.combiner is not None and c.body.dtype in HALVES:
        raise UserError(f"{name}: {c.combiner} of {c.body.dtype}; use sd.cast(…, 'f32')")
    _verify_indices(name, c.body)


def _half_computed_with(node: Expr) -> Dtype | None:
    """Returns the half type in which a node computes; None if it only moves, selects or converts to and from f32."""
    match node:
        case Call(fn) if fn in expr.BITS_AS:
            return None
        case Bin(_, a) | Cmp(_, a) | Call(_, a) if a.dtype in HALVES:
            return a.dtype
        case Cast(a, dtype) if "f32" not in (a.dtype, dtype):
            return next((d for d in (a.dtype, dtype) if d in HALVES), None)
        case _:
            return None


MOST_POINTS = 1 << 20  # a guarded read is proved by trying all values of the axes concerned, up to this many

Guard = tuple[Expr, bool]  # a condition on indices, and whether it holds


def _verify_indices(name: str, body: Expr) -> None:
    """Requires that every read lies inside its tensor under the index conditions around it.

    A condition on data guards nothing: both sides are computed. An index made of data is not judged here.
    """
    for load, guards in _reads(body, (), set()):
        for d, (i, extent) in enumerate(zip(load.indices, load.tensor.shape)):
            known = bounds(i, lambda _: None)
            if known is None or known[0] > known[1] or (known[0] >= 0 and known[1] < extent):
                continue
            reached = _reached(i, guards)  # intervals are too wide if one axis occurs twice, as in a mirrored index
            known = known if reached is None and not guards else reached
            if known is not None and (known[0] < 0 or known[1] >= extent):
                where = f"reads dimension {d} of {load.tensor!r} from {known[0]} to {known[1]}"
                raise UserError(f"{name}: {load} {where}, outside 0 to {extent - 1}")


def _reads(
    e: Expr, guards: tuple[Guard, ...], seen: set[tuple[Expr, tuple[Guard, ...]]]
) -> Iterator[tuple[Load, tuple[Guard, ...]]]:
    """Yields every load with the index conditions under which it happens."""
    if (e, guards) in seen:
        return
    seen.add((e, guards))
    if isinstance(e, Load):
        yield e, guards
    if isinstance(e, Select) and index_condition(e.condition):
        yield from _reads(e.a, (*guards, (e.condition, True)), seen)
        yield from _reads(e.b, (*guards, (e.condition, False)), seen)
        return
    for child in children(e):
        yield from _reads(child, guards, seen)


def _reached(i: Expr, guards: tuple[Guard, ...]) -> tuple[int, int] | None:
    """Returns the range of an index under all guards; None if the guards never hold, or for too many points to try."""
    axes = {n for n in walk(i) if isinstance(n, Axis)}
    relevant = [(c, holds) for c, holds in guards if axes & {n for n in walk(c) if isinstance(n, Axis)}]
    axes |= {n for c, _ in relevant for n in walk(c) if isinstance(n, Axis)}
    order = sorted(axes, key=lambda a: a.serial)
    if prod(a.extent for a in order) > MOST_POINTS:
        return None
    grid = dict(zip(order, np.ogrid[tuple(slice(0, a.extent) for a in order)])) if order else {}
    shape = tuple(a.extent for a in order)
    inside = np.ones(shape, bool)
    for c, holds in relevant:
        inside &= np.broadcast_to(_values(c, grid), shape) == holds
    values = np.broadcast_to(_values(i, grid), shape)[inside]
    return (int(values.min()), int(values.max())) if values.size else None


def _values(e: Expr, grid: Mapping[Axis, Any]) -> Any:
    """Evaluates an index expression on a grid of its axes."""
    match e:
        case Const(value):
            return value
        case Axis():
            return grid[e]
        case Bin(op, a, b) | Cmp(op, a, b):
            return expr.ARITHMETIC[op](_values(a, grid), _values(b, grid))
        case Select(c, a, b):
            return np.where(_values(c, grid), _values(a, grid), _values(b, grid))
        case _:
            raise UserError(f"{e} is no index")


def verify_task(task: Task) -> None:
    """Requires variants with equal inputs and with computed outputs of equal shapes and types."""
    if not task.outputs:
        raise UserError("a task needs at least one output")
    for what, tensors in (("inputs", task.inputs), ("outputs", task.outputs)):
        names = [t.name for t in dict.fromkeys(tensors)]
        if len(set(names)) != len(names):
            raise UserError(f"two {what} have the same name: {', '.join(sorted(names))}")
    for variant in task.variants:
        if len(variant.outputs) != len(task.outputs):
            raise UserError(f"variant {variant.name} has {len(variant.outputs)} outputs, not {len(task.outputs)}")
        for t in variant.outputs:
            if t.compute is None:
                raise UserError(f"{t.name} is an output but not computed")
        read = set(variant.inputs)
        if read != set(task.inputs):
            differ = ", ".join(sorted(t.name for t in read ^ set(task.inputs)))
            raise UserError(f"variant {variant.name} reads other inputs than the first variant: {differ}")
        if len(set(variant.outputs)) != len(variant.outputs):
            raise UserError(f"{', '.join(t.name for t in variant.outputs)}: an output is given twice")
        for mine, first in zip(variant.outputs, task.outputs):
            if (mine.shape, mine.dtype) != (first.shape, first.dtype):
                raise UserError(f"variant {variant.name} computes {mine!r}, not {first!r}")
