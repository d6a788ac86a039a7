"""A graph on the reference interpreter, node by node: slow, and independent of all code generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.base.errors import UserError
from stormdrop.graph.graph import Graph
from stormdrop.ir.expr import FLOATS, NUMPY
from stormdrop.ir.tensor import Task
from stormdrop.operators.node import Node, OperatorKind, Value, evaluate_node, task_of

Array = NDArray[Any]
Precision = Literal["f64"] | None


def interpret(
    graph: Graph,
    inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike],
    precision: Precision = None,
    shaken: Callable[[Value, Array, int], Array] = lambda _value, array, _terms: array,
    tick: Callable[[], None] = lambda: None,
) -> list[Array]:
    """Returns the outputs in order; with precision "f64" every float in between is a float64, and so are the outputs.

    `shaken` replaces each float value: inputs, constants, and results, each of which is a sum of so many terms. `tick`
    is called often and may raise.

    Raises UserError for missing or misshapen inputs.
    """
    values: dict[Value, Array] = dict(graph.constants)
    named = inputs if isinstance(inputs, Mapping) else dict(zip(graph.input_names, inputs))
    for v in graph.inputs:
        if v.name not in named:
            raise UserError(f"no array is given for input {v}")
        array = np.asarray(named[v.name])
        if array.shape != v.shape or array.dtype != NUMPY[v.dtype]:
            raise UserError(f"input {v} is given as {array.dtype}{list(array.shape)}")
        values[v] = array
    if precision == "f64":
        values = {v: a.astype(np.float64) if v.dtype in FLOATS else a for v, a in values.items()}
    values = {v: shaken(v, a, 1) if v.dtype in FLOATS else a for v, a in values.items()}
    last = {v: k for k, node in enumerate(graph.nodes) for v in node.inputs}
    kept = set(graph.outputs)
    for k, node in enumerate(graph.nodes):
        arrays = {v: values[v] for v in node.inputs}
        if node.operator.kind is OperatorKind.VIEW:
            values[node.output] = arrays[node.inputs[0]].reshape(node.output.shape)
        else:
            task = _task(node)
            result = evaluate_node(node, task, arrays, precision, tick)
            is_float = node.output.dtype in FLOATS
            values[node.output] = shaken(node.output, result, _terms(task)) if is_float else result
        for v in set(node.inputs):
            if last[v] == k and v not in kept:
                del values[v]
    return [values[v] for v in graph.outputs]


def _task(node: Node) -> Task:
    task = task_of(node)
    if task.outputs[0].shape != node.output.shape or task.outputs[0].dtype != node.output.dtype:
        raise UserError(f"{node} is expressed as {task.outputs[0]!r}")
    return task


def _terms(task: Task) -> int:
    """Returns the number of terms of the task's longest sum."""
    computes = [t.compute for t in task.variants[0].stages if t.compute is not None]
    return max((math.prod(a.extent for a in c.reduce_axes) for c in computes if c.combiner == "sum"), default=1)
