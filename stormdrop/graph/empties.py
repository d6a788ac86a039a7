"""Removal of computations on values without elements.

After this pass a value without elements is an input or a constant. A node whose result has elements reads no value
without elements, so kernels never contain an empty loop.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.graph.fold import MOST_BYTES
from stormdrop.graph.graph import Graph
from stormdrop.graph.sweep import Sweep
from stormdrop.ir.expr import NUMPY, Scalar, identity_of
from stormdrop.operators.node import Node, Value, shown


def empties(graph: Graph) -> Graph:
    """Makes results without elements constants, and lets no other node read a value without elements.

        Concat(a, empty, b)        ->  Concat(a, b)
        ReduceSum over no element  ->  0, also a product with k = 0, a convolution of no channels; ReduceMax -> -inf
        Pad(empty, value)          ->  value everywhere
        Scatter(x, no updates)     ->  x

    Raises UserError if an operator would take an element from an empty tensor.
    """
    sweep = Sweep(graph)
    for given in graph.nodes:
        node = sweep.current(given)
        if node.output.size == 0:
            sweep.fold(node.output, np.zeros(node.output.shape, NUMPY[node.output.dtype]))
        elif not any(v.size == 0 for v in node.inputs):
            sweep.keep(node)
        elif node.op == "Concat":
            _joined(sweep, node)
        else:
            sweep.replace(node.output, _equal(sweep, node))
    return sweep.finished()


def _joined(sweep: Sweep, node: Node) -> None:
    parts = tuple(v for v in node.inputs if v.size)
    if len(parts) == 1:
        sweep.replace(node.output, parts[0])
    else:
        sweep.keep_rewritten(replace(node, inputs=parts))


def _equal(sweep: Sweep, node: Node) -> Value:
    """Returns the value that equals the result of a node whose operand is empty."""
    dtype = node.output.dtype
    if node.operator.combiner is not None:
        return _filled(sweep, node, identity_of(node.operator.combiner, dtype))
    match node.op:
        case "ScatterElements" | "ScatterND":
            return node.inputs[0]
        case "Pad" if len(node.inputs) > 1:
            return sweep.emit("Expand", node.inputs[1:], {"shape": node.output.shape}, node)
        case "Pad":
            return _filled(sweep, node, node.constant("value", dtype))
        case _:
            name = shown(node.name or node.output.name)
            raise UserError(f"{node.op} node {name}: there is nothing to take its result from")


def _filled(sweep: Sweep, node: Node, value: Scalar) -> Value:
    """Returns a constant of the node's shape; a constant too large to keep is expanded when the model runs."""
    shape, dtype = node.output.shape, node.output.dtype
    fits = node.output.nbytes <= MOST_BYTES
    filled = sweep.constant(np.full(shape if fits else (), value, NUMPY[dtype]), f"{node.output.name}.c")
    return filled if fits else sweep.emit("Expand", (filled,), {"shape": shape}, node)
