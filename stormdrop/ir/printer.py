"""The text of expressions and tasks: one statement a line, stable names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stormdrop.ir.build import distinct, renamed_axes
from stormdrop.ir.expr import Axis, Bin, Call, Cast, Cmp, Const, Expr, Load, Reduce, Select, Var, walk

if TYPE_CHECKING:
    from stormdrop.ir.tensor import Task, Tensor

_SIGNS = {
    "add": ("+", 4),
    "sub": ("-", 4),
    "mul": ("*", 5),
    "div": ("/", 5),
    "floordiv": ("//", 5),
    "mod": ("%", 5),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "and": ("and", 2),
    "or": ("or", 1),
}


def with_distinct_names(e: Expr) -> Expr:
    """Returns the expression with a name of its own for each axis."""
    axes: dict[Axis, None] = {}
    for node in walk(e):
        axes.update(dict.fromkeys(node.axes if isinstance(node, Reduce) else [node] if isinstance(node, Axis) else ()))
    return renamed_axes(e, distinct(axes))


def show(e: Expr, outer: int = 0) -> str:
    """Returns the expression as source, with only the parentheses it needs."""
    match e:
        case Const(value):
            return str(value)
        case Var(name) | Axis(name):
            return name
        case Bin(op, a, b) | Cmp(op, a, b) if op in _SIGNS:
            sign, rank = _SIGNS[op]
            text = f"{show(a, rank)} {sign} {show(b, rank + 1)}"
            return f"({text})" if rank < outer else text
        case Bin(op, a, b) | Cmp(op, a, b):
            return f"{op}({show(a)}, {show(b)})"
        case Select(c, a, b):
            return f"where({show(c)}, {show(a)}, {show(b)})"
        case Call(fn, a):
            return f"{fn}({show(a)})"
        case Cast(a, dtype):
            return f"{dtype}({show(a)})"
        case Load(tensor, indices):
            return f"{tensor.name}[{', '.join(show(i) for i in indices)}]"
        case Reduce(combiner, axes, body):
            return f"{combiner}({show(body)}, {', '.join(a.name for a in axes)})"
        case _:
            return f"<{type(e).__name__}>"


def show_stage(t: Tensor) -> str:
    c = t.compute
    assert c is not None
    head = f"{t.name}[{', '.join(f'{a.name}:{a.extent}' for a in c.axes)}]"
    if c.combiner is None:
        return f"{head} = {show(c.body)}"
    over = ", ".join(f"{a.name}:{a.extent}" for a in c.reduce_axes)
    return f"{head} = {c.combiner}({show(c.body)}; {over})"


def show_task(task: Task) -> str:
    lines = [f"task {task.name}"]
    lines += [f"  input {t!r}" for t in task.inputs]
    for variant in task.variants:
        if len(task.variants) > 1:
            lines.append(f"  variant {variant.name}")
        lines += [f"  s{k}: {show_stage(t)}" for k, t in enumerate(variant.stages)]
    lines.append(f"  output {', '.join(t.name for t in task.outputs)}")
    return "\n".join(lines)
