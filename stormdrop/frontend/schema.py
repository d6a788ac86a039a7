"""What ONNX says of an operator: how many inputs and outputs it has, of which types, and which attributes it takes.

    check(node, 17, inputs)            # raises UserError where the node is not of that form

Invariant: an importer is called for nodes of the right form only; what is left to it are shapes and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from stormdrop.errors import UserError
from stormdrop.graph.graph import Value, shown
from stormdrop.ir.dtypes import ITEMSIZE, SIGNED, UNSIGNED, Dtype

TYPES: dict[Dtype, str] = {
    "f32": "tensor(float)",
    "f64": "tensor(double)",
    "f16": "tensor(float16)",
    "bf16": "tensor(bfloat16)",
    **{dtype: f"tensor(int{8 * ITEMSIZE[dtype]})" for dtype in SIGNED},
    **{dtype: f"tensor(uint{8 * ITEMSIZE[dtype]})" for dtype in UNSIGNED},
    "bool": "tensor(bool)",
}
KINDS = {
    1: "a number",
    2: "an integer",
    3: "a text",
    4: "a tensor",
    5: "a graph",
    6: "a list of numbers",
    7: "a list of integers",
    8: "a list of texts",
}
NUMBER, INTEGER = 1, 2
OLDEST, NEWEST = 7, 28
"""Versions of the standard operators."""


@dataclass(frozen=True, slots=True)
class Formal:
    """An input as declared. Inputs of one `group` have one type."""

    name: str
    group: str | None
    dtypes: frozenset[Dtype]
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Form:
    """An operator of one version.

    `last` stands for all inputs behind those listed, where there may be any number of them.
    """

    formals: tuple[Formal, ...]
    last: Formal | None
    least_inputs: int
    most_outputs: int
    kinds: Mapping[str, int]
    required: tuple[str, ...]
    results: tuple[str, ...]
    """The group of each output; the last one's is that of all behind it."""


@cache
def form_of(op: str, version: int) -> Form | None:
    """None where ONNX does not know the operator.

    One that is newer than `version`, or given up before it, is taken as it is elsewhere.
    """
    newest = _schema(op, NEWEST)
    if newest is None:
        return None
    schema = _schema(op, version) or newest
    if schema.deprecated:
        schema = _schema(op, schema.since_version - 1) or schema
    wider = {i.name: set(i.types) for i in newest.inputs}  # what a later version takes as well does no harm
    constraints = {c.type_param_str for c in schema.type_constraints}
    formals: list[Formal] = []
    last: Formal | None = None
    for i in schema.inputs:
        types = set(i.types) | wider.get(i.name, set())
        group = i.type_str if i.type_str in constraints and i.is_homogeneous else None
        dtypes: frozenset[Dtype] = frozenset(d for d, t in TYPES.items() if t in types)
        formal = Formal(i.name, group, dtypes, i.option.name == "Optional")
        if i.option.name == "Variadic":
            last = formal
        else:
            formals.append(formal)
    kinds = {name: int(a.type.value) for name, a in schema.attributes.items()}
    required = tuple(name for name, a in schema.attributes.items() if a.required)
    results = tuple(str(o.type_str) for o in schema.outputs)
    return Form(tuple(formals), last, int(schema.min_input), int(schema.max_output), kinds, required, results)


def _schema(op: str, version: int) -> Any:
    from onnx import defs

    try:
        return defs.get_schema(op, version, "")
    except Exception:  # SchemaError, which is no public class
        return None


def is_unchanged(op: str, version: int) -> bool:
    """Whether an operator of an old version is the same in the oldest one that is supported."""
    then, now = _schema(op, version), _schema(op, OLDEST)
    return then is not None and now is not None and then.since_version == now.since_version


def check(node: Any, version: int, inputs: Sequence[Value | None], kinds: Mapping[str, int]) -> None:
    """Whether a node has the form of its operator; `kinds` are those of its attributes, by name. Raises UserError."""
    form = form_of(node.op_type, version)
    if form is None:
        return
    if len(inputs) < form.least_inputs or (form.last is None and len(inputs) > len(form.formals)):
        fixed = form.last is None and form.least_inputs == len(form.formals)
        wanted = f"{form.least_inputs}{'' if fixed else ' or more'}"
        raise UserError(f"it has {len(inputs)} inputs; {node.op_type} takes {wanted}")
    if not 1 <= len(node.output) <= form.most_outputs:
        raise UserError(f"it has {len(node.output)} outputs; {node.op_type} gives 1 to {form.most_outputs}")
    _check_types(form, inputs)
    for name, kind in kinds.items():
        wanted_kind = form.kinds.get(name, kind)
        if kind != wanted_kind and (wanted_kind, kind) != (NUMBER, INTEGER):
            given, wanted = (KINDS.get(k, "of another kind") for k in (kind, wanted_kind))
            raise UserError(f"attribute {shown(name)} is {given}, not {wanted}")
    for name in form.required:
        if name not in kinds:
            raise UserError(f"attribute {shown(name)} is missing")


def _check_types(form: Form, inputs: Sequence[Value | None]) -> None:
    groups: dict[str, Dtype] = {}
    for k, v in enumerate(inputs):
        formal = form.formals[k] if k < len(form.formals) else form.last
        assert formal is not None  # more inputs than that were refused
        if v is None:
            if k < form.least_inputs and not formal.is_optional:
                raise UserError(f"input {k} ({formal.name}) is missing")
            continue
        if formal.dtypes and v.dtype not in formal.dtypes:
            allowed = ", ".join(d for d in TYPES if d in formal.dtypes)
            raise UserError(f"input {k} ({formal.name}) is {v.dtype}; it may be {allowed}")
        if formal.group is not None and groups.setdefault(formal.group, v.dtype) != v.dtype:
            other = groups[formal.group]
            raise UserError(f"input {k} ({formal.name}) is {v.dtype}, but one before it is {other}; both must be alike")
