"""A graph on the reference interpreter, node by node: slow, and independent of all code generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.errors import UserError
from stormdrop.graph.express import VIEWS, task_of
from stormdrop.graph.graph import Graph, Node, Value
from stormdrop.ir.expr import NUMPY
from stormdrop.ir.interp import evaluate

Array = NDArray[Any]


def interpret(graph: Graph, inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike]) -> list[Array]:
    """The outputs in order. Raises UserError for missing or misshapen inputs."""
    values: dict[Value, Array] = dict(graph.constants)
    named = inputs if isinstance(inputs, Mapping) else dict(zip(graph.input_names, inputs))
    for v in graph.inputs:
        if v.name not in named:
            raise UserError(f"no array is given for input {v}")
        array = np.asarray(named[v.name])
        if array.shape != v.shape or array.dtype != NUMPY[v.dtype]:
            raise UserError(f"input {v} is given as {array.dtype}{list(array.shape)}")
        values[v] = array
    last = {v: k for k, node in enumerate(graph.nodes) for v in node.inputs}
    kept = set(graph.outputs)
    for k, node in enumerate(graph.nodes):
        values[node.output] = _result(node, {v: values[v] for v in node.inputs})
        for v in set(node.inputs):
            if last[v] == k and v not in kept:
                del values[v]
    return [values[v] for v in graph.outputs]


def _result(node: Node, inputs: Mapping[Value, Array]) -> Array:
    if node.op in VIEWS:
        return inputs[node.inputs[0]].reshape(node.output.shape)
    task = task_of(node)
    if task.outputs[0].shape != node.output.shape or task.outputs[0].dtype != node.output.dtype:
        raise UserError(f"{node} is expressed as {task.outputs[0]!r}")
    arrays = {f"x{k}": array for k, array in enumerate(inputs.values())}
    (result,) = evaluate(task, {t.name: arrays[t.name] for t in task.inputs}).values()
    return np.asarray(result, NUMPY[node.output.dtype])
