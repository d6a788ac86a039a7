"""The rules for well-formed graphs."""

from __future__ import annotations

from stormdrop.base.errors import UserError
from stormdrop.graph.graph import Graph, Value
from stormdrop.graph.shapes import infer
from stormdrop.ir.expr import NUMPY


def verify(graph: Graph) -> None:
    """Raises UserError if the graph is malformed.

    - A value is defined twice, or read before its definition.
    - A node's result differs from its operator's result for its inputs.
    - A constant's array contradicts its value.
    - A node or constant is never read.
    """
    defined: dict[str, Value] = {}

    def define(v: Value, what: str) -> None:
        if v.name in defined:
            raise UserError(f"{what} {v} is defined twice")
        defined[v.name] = v

    def check(v: Value, what: object) -> None:
        # `what` is formatted only for an error: a graph may have a hundred thousand nodes.
        if defined.get(v.name) != v:
            raise UserError(f"{what} reads {v}, which is not defined before it")

    for v in graph.inputs:
        define(v, "input")
    for v, array in graph.constants.items():
        define(v, "constant")
        if array.shape != v.shape or array.dtype != NUMPY[v.dtype]:
            raise UserError(f"constant {v} holds {array.dtype}{list(array.shape)}")
    for node in graph.nodes:
        for v in node.inputs:
            check(v, node)
        if len(node.outputs) != 1:
            raise UserError(f"{node}: a node has one output")
        shape, dtype = infer(node.op, node.inputs, node.attributes)
        if (shape, dtype) != (node.output.shape, node.output.dtype):
            raise UserError(f"{node}: {node.op} gives {dtype}{list(shape)}")
        define(node.output, "value")
    for v in graph.outputs:
        check(v, "the model's end")
    if len(graph.output_names) != len(graph.outputs):
        raise UserError(f"{len(graph.outputs)} outputs have {len(graph.output_names)} names")
    read = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
    for node in graph.nodes:
        if node.output not in read:
            raise UserError(f"{node}: nothing reads it")
    for v in graph.constants:
        if v not in read:
            raise UserError(f"constant {v}: nothing reads it")
