"""The records of operators: an operator needs a record and an importer, and nothing else."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
from onnx import TensorProto, helper

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.onnx import DOMAINS, load
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.partition import partition
from stormdrop.graph.passes import optimise
from stormdrop.ir import build
from stormdrop.ir.expr import Expr
from stormdrop.operators.node import Node, OperatorKind, Value
from stormdrop.operators.pointwise import pointwise
from stormdrop.operators.table import FAMILIES, GRAPH_OPERATORS


def _logit(n: Node, x: Expr) -> Expr:
    return build.log(x / (1.0 - x)) * n.number("scale")


LOGIT = pointwise("Logit", _logit, is_costly=True)


def _import_logit(n: NodeReader) -> Value:
    return n.build.emit(LOGIT, n.input(0), scale=n.number("scale", 1.0))


def test_a_record_and_an_importer_add_an_operator_that_is_fused_and_folded() -> None:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 5)) for name in ("x", "y")]
    half = helper.make_tensor("half", TensorProto.FLOAT, (5,), [0.25] * 5)
    nodes = [
        helper.make_node("Logit", ["x"], ["a"], domain="my.ops", scale=2.0),
        helper.make_node("Logit", ["half"], ["b"], domain="my.ops"),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    graph = helper.make_graph(nodes, "logits", infos[:1], infos[1:], [half])
    proto = helper.make_model(graph, opset_imports=domains)
    x = np.random.default_rng(0).uniform(0.05, 0.95, (3, 5)).astype(np.float32)
    with patch.dict(DOMAINS, {"my.ops": {"Logit": _import_logit}}):
        (call,) = partition(optimise(load(proto))).calls
        y = sd.compile(proto)(x)
    assert call.label == "Logit+Add+Relu"
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, np.maximum(2 * np.log(wide / (1 - wide)) + math.log(1 / 3), 0), rtol=1e-5, atol=1e-5)


def test_names_are_unique_and_each_elementwise_record_has_its_scalar_function() -> None:
    assert len(GRAPH_OPERATORS) == sum(map(len, FAMILIES))
    for operator in GRAPH_OPERATORS.values():
        assert (operator.kind is OperatorKind.POINTWISE) == (operator.scalar is not None), operator.name


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="Logit is no operator of the graph"):
        GraphBuilder().emit("Logit")
