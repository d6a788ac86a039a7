"""A random model as plain data: arrays and nodes, written to JSON and to ONNX.

A recipe is what the fuzzer shrinks and keeps, so it is easier to change than a ModelProto: names, NumPy arrays and
attributes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
IR_VERSIONS = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}
"""The file format's version for an operator set; the newest for newer ones."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: names of its inputs ("" is an absent one) and outputs, attributes as `helper.make_node` takes
    them.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def proto(self) -> onnx.NodeProto:
        return helper.make_node(self.op, list(self.inputs), list(self.outputs), **self.attributes)

    def bodies(self) -> list[onnx.GraphProto]:
        """The subgraphs of an If, Loop or Scan."""
        return [v for v in self.attributes.values() if isinstance(v, onnx.GraphProto)]

    def reads(self) -> set[str]:
        """Names of the inputs, and of outer values that the subgraphs may read."""
        return {name for name in self.inputs if name} | {n for body in self.bodies() for n in _read_inside(body)}

    def leaves(self) -> list[Node]:
        """The node; for control flow, the nodes of its subgraphs that hold none."""
        bodies = self.bodies()
        return [leaf for body in bodies for n in body.node for leaf in Node.of(n).leaves()] if bodies else [self]

    @classmethod
    def of(cls, proto: onnx.NodeProto) -> Node:
        attributes = {a.name: _text(helper.get_attribute_value(a)) for a in proto.attribute}
        return cls(proto.op_type, tuple(proto.input), tuple(proto.output), attributes)

    def __str__(self) -> str:
        shown = "".join(f", {k}={_attribute_text(v)}" for k, v in self.attributes.items())
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(n or '-' for n in self.inputs)}{shown})"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model and the arrays it is run on."""

    opset: int
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    def proto(self, types: Mapping[str, Array]) -> onnx.ModelProto:
        """The ONNX model; `types` has an array of the type and shape of every output."""
        graph = helper.make_graph(
            [n.proto() for n in self.nodes],
            "random",
            [port(k, a) for k, a in self.inputs.items()],
            [port(k, types[k]) for k in self.outputs],
            [numpy_helper.from_array(a, k) for k, a in self.constants.items()],
        )
        return _model(graph, self.opset)

    def pruned(self) -> Recipe:
        """Without nodes, inputs and constants that no output needs."""
        needed = set(self.outputs)
        nodes: list[Node] = []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                nodes.append(node)
                needed |= node.reads()
        inputs = {k: a for k, a in self.inputs.items() if k in needed}
        constants = {k: a for k, a in self.constants.items() if k in needed}
        return replace(self, nodes=tuple(reversed(nodes)), inputs=inputs, constants=constants)

    def __str__(self) -> str:
        lines = [f"opset {self.opset}"]
        lines += [f"{k}: {a.dtype}{list(a.shape)}" for k, a in self.inputs.items()]
        lines += [f"{k}: constant {a.dtype}{list(a.shape)}{_values_text(a)}" for k, a in self.constants.items()]
        return "\n".join([*lines, *map(str, self.nodes), f"return {', '.join(self.outputs)}"])

    def to_json(self) -> dict[str, Any]:
        return {
            "opset": self.opset,
            "inputs": {k: array_to_json(a) for k, a in self.inputs.items()},
            "constants": {k: array_to_json(a) for k, a in self.constants.items()},
            "nodes": [
                {
                    "op": n.op,
                    "inputs": list(n.inputs),
                    "outputs": list(n.outputs),
                    "attributes": {k: _attribute_to_json(v) for k, v in n.attributes.items()},
                }
                for n in self.nodes
            ],
            "outputs": list(self.outputs),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        nodes = [
            Node(
                n["op"],
                tuple(n["inputs"]),
                tuple(n["outputs"]),
                {k: _attribute_from_json(v) for k, v in n["attributes"].items()},
            )
            for n in data["nodes"]
        ]
        return cls(
            data["opset"],
            {k: array_from_json(v) for k, v in data["inputs"].items()},
            {k: array_from_json(v) for k, v in data["constants"].items()},
            tuple(nodes),
            tuple(data["outputs"]),
        )


def port(name: str, a: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)


def node_model(node: Node, given: Mapping[str, Array], opset: int) -> onnx.ModelProto:
    """A model of one node whose inputs are all given at run time."""
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    return _model(helper.make_graph([node.proto()], "node", [port(k, a) for k, a in given.items()], outputs), opset)


def _model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    version = IR_VERSIONS.get(opset, 8 if opset < 18 else 11)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)


def _nodes_inside(body: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a subgraph, and of the subgraphs of its nodes."""
    found = list(body.node)
    for node in body.node:
        found += [inner for a in node.attribute if a.HasField("g") for inner in _nodes_inside(a.g)]
    return found


def _read_inside(body: onnx.GraphProto) -> set[str]:
    """Every name that a node in the body reads, those defined inside as well."""
    return {name for node in _nodes_inside(body) for name in node.input if name}


def _text(value: Any) -> Any:
    """ONNX holds texts as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    return [_text(v) for v in value] if isinstance(value, list) else value


def array_to_json(a: Array) -> dict[str, Any]:
    """Shape, type and values; floats as text that gives the same bits (NaN and infinities included)."""
    values: Sequence[Any] = a.reshape(-1).tolist()
    if a.dtype.kind == "f":
        values = [v if np.isfinite(v) else str(v) for v in values]
    return {"dtype": str(a.dtype), "shape": list(a.shape), "values": values}


def array_from_json(data: Mapping[str, Any]) -> Array:
    values = [float(v) if isinstance(v, str) else v for v in data["values"]]
    return np.array(values, data["dtype"]).reshape(data["shape"])


def _attribute_to_json(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return {"tensor": array_to_json(numpy_helper.to_array(value))}
    if isinstance(value, onnx.GraphProto):
        return {"graph": base64.b64encode(value.SerializeToString()).decode()}
    return value


def _attribute_from_json(value: Any) -> Any:
    if isinstance(value, dict) and "tensor" in value:
        return numpy_helper.from_array(array_from_json(value["tensor"]))
    if isinstance(value, dict) and "graph" in value:
        return onnx.GraphProto.FromString(base64.b64decode(value["graph"]))
    return value


def _attribute_text(value: Any) -> str:
    if isinstance(value, onnx.TensorProto):
        return str(numpy_helper.to_array(value).tolist())
    return "<graph>" if isinstance(value, onnx.GraphProto) else str(value)


def _values_text(a: Array) -> str:
    return f" = {a.tolist()}" if a.size <= 8 else ""
