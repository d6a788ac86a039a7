"""Functions: a model's own functions, and the bodies that ONNX defines for its composite operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.frontend.node_reader import Binding, ValueSequence
from stormdrop.frontend.parsed import nested
from stormdrop.frontend.pointwise import ELEMENT_TYPES
from stormdrop.frontend.schema import schema
from stormdrop.graph.builder import MOST_NODES
from stormdrop.ir.expr import Dtype
from stormdrop.operators.node import Value, shown

Name = tuple[str, str]
"""An operator: its domain, and its name there."""
CODES: dict[Dtype, int] = {dtype: code for code, dtype in ELEMENT_TYPES.items()}


def local_functions_inlined(proto: Any) -> Any:
    """Returns the model with its own functions inlined. Raises UserError if a function calls itself."""
    from onnx import inliner

    calls = {(f.domain, f.name): _calls(f.node) for f in proto.functions}
    if len(calls) != len(proto.functions):
        raise UserError("two functions have the same name")
    sizes = _sizes(calls)
    written = sum(sizes.get(called, 1) * count for called, count in _calls(proto.graph.node).items())
    if written > MOST_NODES:
        raise UserError(f"its functions written out, it has more than {MOST_NODES:,} nodes")
    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:  # the inliner raises bare RuntimeErrors of its own
        raise UserError(f"its functions cannot be expanded: {shown(str(error))}") from error


def _calls(nodes: Iterable[Any]) -> Counter[Name]:
    """Returns the number of uses of each operator, subgraphs included."""
    return Counter((n.domain, n.op_type) for n in nested(nodes))


def _sizes(calls: Mapping[Name, Counter[Name]]) -> dict[Name, int]:
    """Returns the number of nodes of each inlined function.

    Raises UserError if a function calls itself, directly or not.
    """
    sizes: dict[Name, int] = {}
    order = TopologicalSorter({f: [c for c in called if c in calls] for f, called in calls.items()})
    try:
        for f in order.static_order():
            sizes[f] = sum(sizes.get(c, 1) * count for c, count in calls[f].items())
    except CycleError as error:
        (_, name), *_ = error.args[1]
        raise UserError(f"function {shown(name)} calls itself") from error
    return sizes


def schema_of(node: Any, versions: Mapping[str, int]) -> Any:
    """Returns ONNX's schema of a composite operator; None if it has no body or is unknown."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    composite = schema(node.op_type, versions.get(domain, 1), domain)
    return composite if composite and (composite.has_function or composite.has_context_dependent_function) else None


def body_of(node: Any, versions: Mapping[str, int], inputs: Sequence[Binding | None]) -> Any:
    """Returns the body for inputs of these types, a FunctionProto; None if it has no body."""
    from onnx import FunctionProto

    composite = schema_of(node, versions)
    if composite is None:
        return None
    if composite.has_function:
        return composite.function_body
    body = FunctionProto()
    given = [_type_of(v).SerializeToString() for v in inputs]
    fits = [v for v in composite.context_dependent_function_opset_versions if v <= versions.get("", 1)]
    if not fits:
        return None
    try:
        raw = composite.get_context_dependent_function_with_opset_version(max(fits), node.SerializeToString(), given)
    except Exception as error:  # bare RuntimeErrors of the builder, which checks little beforehand
        raise UserError(f"ONNX gives no body for it: {shown(str(error))}") from error
    body.ParseFromString(raw)
    return body if body.node else None


def _type_of(binding: Binding | None) -> Any:
    """Returns an onnx.TypeProto, empty for an absent input."""
    from onnx import TypeProto, helper

    match binding:
        case Value():
            return helper.make_tensor_type_proto(CODES[binding.dtype], binding.shape)
        case ValueSequence():
            return helper.make_sequence_type_proto(helper.make_tensor_type_proto(CODES[binding.dtype], None))
        case _:
            return TypeProto()


def bound_nodes(body: Any, composite: Any, node: Any, inner: Mapping[str, Binding], label: str) -> list[Any]:
    """Returns the body's nodes with the caller's attributes, without absent inputs; `label` names them in messages."""
    from onnx import NodeProto

    given = {a.name: a for a in node.attribute}
    for default in (*body.attribute_proto, *(a.default_value for a in composite.attributes.values())):
        if default.type:
            given.setdefault(default.name, default)
    absent = {formal for formal in body.input if formal not in inner}
    bound: list[Any] = []
    for original in body.node:
        copy = NodeProto()
        copy.CopyFrom(original)
        _bind_attributes(copy, given)
        _leave_out(copy, absent)
        copy.name = f"{label}/{original.name or next(iter(original.output), original.op_type)}"
        bound.append(copy)
    return bound


def _bind_attributes(node: Any, given: Mapping[str, Any]) -> None:
    for n in nested([node]):
        if not any(a.ref_attr_name for a in n.attribute):
            continue
        bound: list[Any] = []
        for a in n.attribute:
            source = given.get(a.ref_attr_name) if a.ref_attr_name else a
            if source is not None:
                copy = type(a)()
                copy.CopyFrom(source)
                copy.name = a.name
                bound.append(copy)
        del n.attribute[:]
        n.attribute.extend(bound)


def _leave_out(node: Any, absent: set[str]) -> None:
    for n in nested([node]):
        for k, name in enumerate(n.input):
            if name in absent:
                n.input[k] = ""
