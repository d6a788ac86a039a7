"""Tasks as JSON: a table of tensors and computes in topological order; axes by position."""

from __future__ import annotations

from typing import Any, cast

from stormdrop.base.errors import UserError
from stormdrop.ir.expr import FLOATS, Axis, Bin, Call, Cast, Cmp, Const, Expr, Load, Select
from stormdrop.ir.tensor import Compute, Task, Tensor, Variant, computed

FORMAT = 1


def task_to_json(task: Task) -> dict[str, object]:
    inputs = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "constant": t.constant} for t in task.inputs]
    variants = [_variant_to_json(task, v) for v in task.variants]
    return {"format": FORMAT, "name": task.name, "inputs": inputs, "variants": variants}


def nameless(task: Task) -> object:
    """Returns a task's JSON without names: equal for tasks that differ in names alone."""
    inputs = [[list(t.shape), t.dtype, t.constant] for t in task.inputs]
    variants = [_variant_to_json(task, v) for v in task.variants]
    return [inputs, [[v["outputs"], v["error_bound"], [_unnamed(stage) for stage in v["stages"]]] for v in variants]]


def _unnamed(stage: dict[str, Any]) -> list[object]:
    spatial, reduce = ([extent for _, extent in stage[key]] for key in ("axes", "reduce"))
    return [spatial, reduce, stage["combiner"], stage["body"]]


def _variant_to_json(task: Task, variant: Variant) -> dict[str, Any]:
    names: dict[Tensor, str] = {t: f"i{k}" for k, t in enumerate(task.inputs)}
    stages: list[object] = []
    for k, t in enumerate(variant.stages):
        names[t] = f"s{k}"
        c = t.compute
        assert c is not None
        stages.append(
            {
                "name": t.name,
                "axes": [[a.name, a.extent] for a in c.axes],
                "reduce": [[a.name, a.extent] for a in c.reduce_axes],
                "combiner": c.combiner,
                "body": _expr_to_json(c.body, c.axis_ids, names),
            }
        )
    outputs = [names[t] for t in variant.outputs]
    return {"name": variant.name, "error_bound": variant.error_bound, "stages": stages, "outputs": outputs}


def _expr_to_json(e: Expr, axes: dict[Expr, str], names: dict[Tensor, str]) -> object:
    def go(x: Expr) -> object:
        return _expr_to_json(x, axes, names)

    match e:
        case Const(value, dtype):
            return ["const", dtype, repr(value) if dtype in FLOATS else value]
        case Axis():
            return axes[e]
        case Bin() | Cmp() | Select() | Call():
            parts = [getattr(e, name) for name in e.__match_args__]
            return [type(e).__name__.lower(), *(go(x) if isinstance(x, Expr) else x for x in parts)]
        case Cast(a, dtype):
            return ["cast", dtype, go(a)]
        case Load(tensor, indices):
            return ["load", names[tensor], *(go(i) for i in indices)]
        case _:
            raise UserError(f"{e} cannot be written to JSON")


def task_from_json(data: Any) -> Task:
    """Returns the task of its JSON. Raises UserError if `data` is not a task of a known format."""
    try:
        if data["format"] != FORMAT:
            raise UserError(f"this task has format {data['format']}; this version reads {FORMAT}")
        inputs = {
            f"i{k}": Tensor(t["name"], tuple(t["shape"]), t["dtype"], bool(t["constant"]))
            for k, t in enumerate(data["inputs"])
        }
        return Task(variants=[_variant_from_json(v, dict(inputs)) for v in data["variants"]], name=data["name"])
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise UserError(f"not a task: {error!r}") from error


def _variant_from_json(data: Any, tensors: dict[str, Tensor]) -> Variant:
    for k, s in enumerate(data["stages"]):
        axes = [Axis(str(n), int(x), "spatial") for n, x in s["axes"]]
        reduce_axes = [Axis(str(n), int(x), "reduce") for n, x in s["reduce"]]
        env = {f"a{i}": a for i, a in enumerate(axes)} | {f"r{i}": a for i, a in enumerate(reduce_axes)}
        c = Compute(tuple(axes), _expr_from_json(s["body"], env, tensors), tuple(reduce_axes), s["combiner"])
        tensors[f"s{k}"] = computed(s["name"], c)
    return Variant(tuple(tensors[n] for n in data["outputs"]), data["name"], float(data["error_bound"]))


def _expr_from_json(data: Any, axes: dict[str, Axis], tensors: dict[str, Tensor]) -> Expr:
    def go(x: Any) -> Expr:
        return _expr_from_json(x, axes, tensors)

    if isinstance(data, str):
        return axes[data]
    match cast("list[Any]", data):
        case ["const", dtype, value]:
            return Const(float(value) if isinstance(value, str) else value, dtype)
        case ["bin", op, a, b]:
            return Bin(op, go(a), go(b))
        case ["cmp", op, a, b]:
            return Cmp(op, go(a), go(b))
        case ["select", c, a, b]:
            return Select(go(c), go(a), go(b))
        case ["call", fn, a]:
            return Call(fn, go(a))
        case ["cast", dtype, a]:
            return Cast(go(a), dtype)
        case ["load", name, *indices]:
            return Load(tensors[name], [go(i) for i in indices])
        case _:
            raise UserError(f"unknown expression {data!r}")
