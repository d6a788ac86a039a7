"""Formula nodes: operators given as tensor expressions, which the node itself carries as text.

    operator, attributes = formula(task, "silu")       # a task with one output; its inputs are the node's inputs
    tensor = applied(node, tensors)                    # the formula over these tensors

A formula that reads every operand as NumPy broadcasts it, and nothing else, is a `PointwiseFormula`: it is fused like
all elementwise operators. Every other formula is a `Formula`, a kernel of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from stormdrop.ir.dtypes import Dtype, dtype_of
from stormdrop.ir.expr import Axis, Const, Expr, Load, loads, rewrite, substitute, walk
from stormdrop.ir.tensor import Compute, Task, Tensor, computed
from stormdrop.operators.broadcast import broadcast_shape
from stormdrop.operators.node import Attribute, Node, Operator
from stormdrop.operators.pointwise import broadcast, pointwise


def formula(task: Task, label: str) -> tuple[Operator, dict[str, Attribute]]:
    """Returns the operator and the attributes for a task with one output; `label` is the name of nodes in reports."""
    (result,) = task.outputs
    text = json.dumps(task.to_json(), separators=(",", ":"))
    attributes: dict[str, Attribute] = {"shape": result.shape, "dtype": result.dtype, "label": label}
    return POINTWISE_FORMULA if _is_pointwise(task) else FORMULA, {"formula": text, **attributes}


def _task(node: Node) -> Task:
    """Returns the formula as a task with new axes at each call: one formula may occur twice in a kernel."""
    return Task.from_json(json.loads(node.text("formula")))


def applied(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the formula over the tensors of the node's inputs."""
    task = _task(node)
    known: dict[Tensor, Tensor] = dict(zip(task.inputs, inputs))
    for stage in task.variants[0].stages:
        c = stage.compute
        assert c is not None

        def moved(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            return Load(known[e.tensor], [rewrite(i, moved) for i in e.indices])

        known[stage] = computed(stage.name, Compute(c.axes, rewrite(c.body, moved), c.reduce_axes, c.combiner))
    return known[task.outputs[0]]


def applied_to_elements(node: Node, *operands: Expr) -> Expr:
    """Returns a pointwise formula of scalars."""
    task = _task(node)
    c = task.outputs[0].compute
    assert c is not None
    by_tensor = dict(zip(task.inputs, operands))
    return substitute(c.body, {load: by_tensor[load.tensor] for load in loads(c.body)})


def _is_pointwise(task: Task) -> bool:
    stages = task.variants[0].stages
    c = task.outputs[0].compute
    if len(stages) != 1 or c is None or c.combiner is not None:
        return False
    shape = tuple(a.extent for a in c.axes)
    if not task.inputs or broadcast_shape(*(t.shape for t in task.inputs)) != shape:
        return False
    read = loads(c.body)
    inside = {i for load in read for index in load.indices for i in walk(index)}
    free = any(isinstance(e, Axis) and e not in inside for e in walk(c.body))
    return not free and all(_is_broadcast(load, c.axes) for load in read)


def _is_broadcast(load: Load, axes: Sequence[Axis]) -> bool:
    """Returns whether a load reads its tensor at the axes as NumPy broadcasts.

    Trailing dimensions are aligned, and dimensions of extent 1 are read at 0.
    """
    own = axes[len(axes) - len(load.indices) :]
    return len(load.indices) <= len(axes) and all(
        i is a or (n == 1 and isinstance(i, Const)) for i, a, n in zip(load.indices, own, load.tensor.shape)
    )


def _dtype(node: Node) -> Dtype:
    return dtype_of(node.text("dtype"))


FORMULA = Operator("Formula", lambda n: n.integers("shape"), applied, dtype=_dtype)
POINTWISE_FORMULA = pointwise("PointwiseFormula", applied_to_elements, shape=broadcast, dtype=_dtype, is_costly=True)
FORMULAS = (FORMULA, POINTWISE_FORMULA)
