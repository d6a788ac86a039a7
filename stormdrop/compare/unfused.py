"""Running a graph node by node, each as a kernel of its own: slow, simple, and what every faster way is checked
against.

Views are NumPy's. A task is compiled once per digest. With `pack` the model's constants are constants of the kernels
too: packed when a node first runs, as a real model's weights must be; without it they are inputs like any other, and
nodes of equal shapes share one kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.errors import UserError
from stormdrop.graph.express import VIEWS, task_of
from stormdrop.graph.graph import Graph, Node, Value
from stormdrop.ir.expr import NUMPY
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task
from stormdrop.runtime.kernel import Kernel, build

Array = NDArray[Any]


class Unfused:
    """Compiled tasks by digest, shared by all graphs run with it.

    With `interpret` nothing is built: the reference runs.
    """

    def __init__(self, interpret: bool = False, pack: bool = False, threads: int | None = None) -> None:
        self.interpret, self.pack = interpret, pack
        self.threads = threads
        self.kernels: dict[str, Kernel] = {}
        self.calls = 0
        self._packed: dict[Node, Kernel] = {}

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
            values[node.output] = self.node(
                node, [values[v] for v in node.inputs], graph.constants if self.pack else ()
            )
            for v in set(node.inputs):
                if last[v] == k and v not in kept:
                    del values[v]
        return [values[v] for v in graph.outputs]

    def node(self, node: Node, inputs: Sequence[Array], constants: Collection[Value] = ()) -> Array:
        """One node's result; those of its inputs that are `constants` are packed into its kernel."""
        if node.op in VIEWS:
            return inputs[0].reshape(node.output.shape)
        self.calls += 1
        arrays = {f"x{k}": a for k, a in enumerate(dict(zip(node.inputs, inputs)).values())}
        if node in self._packed:
            kernel = self._packed[node]
            return kernel(*(arrays[t.name] for t in kernel.task.runtime_inputs))
        task = task_of(node, constants if any(v not in constants for v in node.inputs) else ())
        if task.outputs[0].shape != node.output.shape or task.outputs[0].dtype != node.output.dtype:
            raise UserError(f"{node} is expressed as {task.outputs[0]!r}")
        if self.interpret:
            (result,) = evaluate(task, {t.name: arrays[t.name] for t in task.inputs}).values()
            return np.asarray(result, NUMPY[node.output.dtype])
        return self._kernel(node, task, arrays)(*(arrays[t.name] for t in task.runtime_inputs))

    def _kernel(self, node: Node, task: Task, arrays: Mapping[str, Array]) -> Kernel:
        """The kernel of this digest; one with constants is the node's own, but takes its schedule from the first of its
        kind.
        """
        known = self.kernels.get(task.digest)
        if known is not None and not task.constants:
            return known
        given = {t.name: arrays[t.name] for t in task.constants}
        kernel = build(task, given, known.schedule if known is not None else None, self.threads)
        self.kernels.setdefault(task.digest, kernel)
        if task.constants:
            self._packed[node] = kernel
        return kernel


def run_unfused(graph: Graph, inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike]) -> list[Array]:
    """One run with kernels of its own, weights packed."""
    return Unfused(pack=True).run(graph, inputs)
