"""All operators of the graph, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stormdrop.base.errors import UserError
from stormdrop.operators.contract import PRODUCTS
from stormdrop.operators.formula import FORMULAS
from stormdrop.operators.indexing import INDEXING
from stormdrop.operators.movement import MOVEMENT
from stormdrop.operators.node import Attribute, Node, Operator, Value, shown
from stormdrop.operators.normalize import NORMALISATION
from stormdrop.operators.pointwise import POINTWISE
from stormdrop.operators.regions import REGIONS
from stormdrop.operators.window import WINDOWS

FAMILIES = (POINTWISE, MOVEMENT, INDEXING, NORMALISATION, PRODUCTS, WINDOWS, REGIONS, FORMULAS)
GRAPH_OPERATORS: Mapping[str, Operator] = {operator.name: operator for family in FAMILIES for operator in family}


def node_of(operator: str | Operator, inputs: Sequence[Value], attributes: Mapping[str, Attribute], name: str) -> Node:
    """Returns a node without outputs; `operator` is a record, or the name of a record in this table.

    Raises UserError for a name that is not in the table.
    """
    if isinstance(operator, Operator):
        return Node(operator, tuple(inputs), (), attributes, name)
    if operator not in GRAPH_OPERATORS:
        raise UserError(f"{shown(operator)} is no operator of the graph; stormdrop/operators/table.py lists them")
    return Node(GRAPH_OPERATORS[operator], tuple(inputs), (), attributes, name)
