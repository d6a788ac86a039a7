"""Constant folding: evaluates nodes whose inputs are all constants, when a model is imported.

    folding = Folding()
    array = folding(node, arrays)          # None above the bounds: such a node stays in the graph

Common operators run in NumPy. All further operators run in the reference interpreter on their own tensor expression, so
folded nodes and kernels compute the same function.

Invariant: memory and work are bounded per node and in total, so a small file can cause neither huge memory use nor long
work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stormdrop.ir.expr import FLOATS, NUMPY
from stormdrop.ir.tensor import Task
from stormdrop.operators.node import Array, Node, evaluate_node, task_of

MOST_BYTES = 64 << 20
"""The largest folded result."""
MOST_STEPS = 1 << 24
"""The most points that the interpreter evaluates for one node; it evaluates some 10 to 100 million a second."""
MOST_FOLDED = 1 << 31
MOST_WORK = 1 << 25
"""The limits of bytes and steps for all nodes together."""
PRODUCTS_PER_STEP = {"f32": 256, "f64": 256}
"""The products counted as one step of a matrix product, as a library computes them much faster than the interpreter."""


class Folding:
    """Evaluates nodes until its share of memory and time is spent."""

    def __init__(self) -> None:
        self._bytes, self._steps = MOST_FOLDED, MOST_WORK

    def __call__(self, node: Node, inputs: Sequence[Array]) -> Array | None:
        """Returns the node's value, or None if it is too large to compute here."""
        if not inputs or node.output.nbytes > min(MOST_BYTES, self._bytes):
            return None
        task = None if _is_quick(node) else task_of(node)
        steps = _steps(task) if task is not None else _products(node)
        if steps > min(MOST_STEPS, self._steps):
            return None
        array = _value(node, inputs, task)
        self._bytes -= array.nbytes
        self._steps -= steps
        return array


def _is_quick(node: Node) -> bool:
    """Returns whether NumPy's result equals the interpreter's. Casts from floats saturate; NumPy's casts do not."""
    return node.operator.numpy is not None or (node.op == "Cast" and node.inputs[0].dtype not in FLOATS)


def _products(node: Node) -> int:
    if node.op != "MatMul":
        return 0
    a = node.inputs[0]
    return node.output.size * a.shape[-2 if node.integer("transpose_a", 0) else -1] // PRODUCTS_PER_STEP.get(a.dtype, 8)


def _value(node: Node, inputs: Sequence[Array], task: Task | None) -> Array:
    with np.errstate(all="ignore"):
        if node.operator.numpy is not None:
            result: Array = np.asarray(node.operator.numpy(node, inputs))
        elif task is None:
            result = inputs[0].astype(NUMPY[node.output.dtype])
        else:
            result = evaluate_node(node, task, dict(zip(node.inputs, inputs)))
    wanted = np.dtype(NUMPY[node.output.dtype])
    return np.ascontiguousarray(result, wanted).reshape(node.output.shape)


def _steps(task: Task) -> int:
    computes = [t.compute for t in task.variants[0].stages if t.compute]
    return sum(math.prod(a.extent for a in (*c.axes, *c.reduce_axes)) for c in computes)
