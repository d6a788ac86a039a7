"""Running a graph node by node, each as a kernel of its own: slow, simple, and what every faster way is checked against.

A kernel is built once per task digest; views are NumPy's. Constants are handed to kernels like any other input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.errors import UserError
from stormdrop.graph.express import VIEWS, task_of
from stormdrop.graph.graph import Graph, Node, Value, shown
from stormdrop.ir.expr import NUMPY
from stormdrop.ir.interp import evaluate
from stormdrop.runtime.kernel import Kernel, build

Array = NDArray[Any]


class Unfused:
    """Kernels by digest, shared by all graphs run with it. With `interpret` nothing is built: the reference runs."""

    def __init__(self, interpret: bool = False, threads: int | None = None) -> None:
        self.interpret = interpret
        self.threads = threads
        self.kernels: dict[str, Kernel] = {}
        self.calls = 0

    def run(self, graph: Graph, inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike]) -> list[Array]:
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
            values[node.output] = self.node(node, [values[v] for v in node.inputs])
            for v in set(node.inputs):
                if last[v] == k and v not in kept:
                    del values[v]
        return [values[v] for v in graph.outputs]

    def node(self, node: Node, inputs: Sequence[Array]) -> Array:
        """One node's result."""
        if node.op in VIEWS:
            return inputs[0].reshape(node.output.shape)
        task = task_of(node)
        arrays = {f"x{k}": a for k, a in enumerate(dict(zip(node.inputs, inputs)).values())}
        if tuple(task.outputs[0].shape) != node.output.shape or task.outputs[0].dtype != node.output.dtype:
            raise UserError(f"{shown(node.name)}: {node} is expressed as {task.outputs[0]!r}")
        self.calls += 1
        given = {t.name: arrays[t.name] for t in task.inputs}
        if self.interpret:
            (result,) = evaluate(task, given).values()
            return np.asarray(result, NUMPY[node.output.dtype])
        kernel = self.kernels.get(task.digest)
        if kernel is None:
            kernel = self.kernels[task.digest] = build(task, threads=self.threads)
        return kernel(*(given[t.name] for t in task.runtime_inputs))


def run_unfused(graph: Graph, inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike]) -> list[Array]:
    """One run with kernels of its own."""
    return Unfused().run(graph, inputs)
