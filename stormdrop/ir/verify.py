"""What makes a compute and a task well formed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stormdrop.errors import UserError
from stormdrop.ir.affine import bounds
from stormdrop.ir.expr import Axis, Expr, Load, Reduce, Select, Var, children, walk

if TYPE_CHECKING:
    from stormdrop.ir.tensor import Compute, Task


def verify_compute(name: str, c: Compute) -> None:
    """Raise UserError where an axis is used twice or not declared, or a reduction stands inside a body."""
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
    _verify_indices(name, c.body)


def _verify_indices(name: str, body: Expr) -> None:
    """Unguarded reads with known bounds must lie inside the tensor."""
    for load in _unguarded(body):
        for d, (i, extent) in enumerate(zip(load.indices, load.tensor.shape)):
            known = bounds(i, lambda _: None)
            if known and known[0] <= known[1] and (known[0] < 0 or known[1] >= extent):
                where = f"reads dimension {d} of {load.tensor!r} from {known[0]} to {known[1]}"
                raise UserError(f"{name}: {load} {where}, outside 0 to {extent - 1}")


def _unguarded(e: Expr) -> Iterator[Load]:
    """The loads that happen whatever is selected; the same load may also stand inside a selection."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend((node.condition,) if isinstance(node, Select) else children(node))
            if isinstance(node, Load):
                yield node


def verify_task(task: Task) -> None:
    """Every variant has outputs of the same shapes and types, all of them computed, and reads the same inputs."""
    from stormdrop.ir.tensor import walk_tensors

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
        read = {t for t in walk_tensors(variant.outputs) if t.compute is None}
        if read != set(task.inputs):
            differ = ", ".join(sorted(t.name for t in read ^ set(task.inputs)))
            raise UserError(f"variant {variant.name} reads other inputs than the first variant: {differ}")
        if len(set(variant.outputs)) != len(variant.outputs):
            raise UserError(f"{', '.join(t.name for t in variant.outputs)}: an output is given twice")
        for mine, first in zip(variant.outputs, task.outputs):
            if (mine.shape, mine.dtype) != (first.shape, first.dtype):
                raise UserError(f"variant {variant.name} computes {mine!r}, not {first!r}")
