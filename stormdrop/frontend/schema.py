"""The types of a node's inputs and results: ONNX's schemas of operators, and halves.

    check(node, 17, inputs)            # raises UserError if the node is not of the form that its schema declares

Invariant: importers are called only for nodes of the right form, so they check only shapes and numbers.

Moves keep f16 and bf16; all other nodes compute in f32 and round their result:

    y: f16 = Relu(x: f16)   ->   Cast(Relu(Cast(x, f32)), f16, storage=1)

`storage` marks a rounding that is no node of the file: `graph.fuse.halves` may omit it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.frontend.movement import MOVEMENT
from stormdrop.frontend.node_reader import Binding, EmptyOptional, ValueSequence
from stormdrop.frontend.sequences import SEQUENCES
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.dtypes import HALVES, ITEMSIZE, SIGNED, UNSIGNED, Dtype
from stormdrop.operators.node import Value, shown

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
_KINDS_OF_TYPES = {"tensor": "a tensor", "seq": "a sequence", "optional": "an optional value"}
OLDEST, NEWEST = 7, 28
"""Versions of the standard operators."""


@dataclass(frozen=True, slots=True)
class Formal:
    """An input as declared. Inputs of one `group` have one type."""

    name: str
    group: str | None
    dtypes: frozenset[Dtype]
    is_optional: bool
    kinds: frozenset[str]
    """`tensor`, `seq` and `optional`, as far as the input may be of these types."""


@dataclass(frozen=True, slots=True)
class Form:
    """An operator of one version.

    `last` stands for all inputs after the listed inputs, if their number is open.
    """

    formals: tuple[Formal, ...]
    last: Formal | None
    least_inputs: int
    most_outputs: int
    kinds: Mapping[str, int]
    required: tuple[str, ...]
    results: tuple[str, ...]
    """The group of each output; the last entry applies to all further outputs."""


@cache
def form_of(op: str, version: int) -> Form | None:
    """Returns the form of an operator; None if ONNX does not define the operator.

    An operator that is newer than `version` has its newest form; a removed operator has its last form.
    """
    newest = schema(op, NEWEST)
    if newest is None:
        return None
    declared = schema(op, version) or newest
    if declared.deprecated:
        declared = schema(op, declared.since_version - 1) or declared
    wider = {i.name: set(i.types) for i in newest.inputs}  # types that only a later version accepts do no harm
    constraints = {c.type_param_str for c in declared.type_constraints}
    formals: list[Formal] = []
    last: Formal | None = None
    for i in declared.inputs:
        types = set(i.types) | wider.get(i.name, set())
        group = i.type_str if i.type_str in constraints and i.is_homogeneous else None
        dtypes: frozenset[Dtype] = frozenset(d for d, t in TYPES.items() if t in types)
        type_kinds = frozenset(t.partition("(")[0] for t in types)
        formal = Formal(i.name, group, dtypes, i.option.name == "Optional", type_kinds)
        if i.option.name == "Variadic":
            last = formal
        else:
            formals.append(formal)
    kinds = {name: int(a.type.value) for name, a in declared.attributes.items()}
    required = tuple(name for name, a in declared.attributes.items() if a.required)
    results = tuple(str(o.type_str) for o in declared.outputs)
    return Form(tuple(formals), last, int(declared.min_input), int(declared.max_output), kinds, required, results)


def schema(op: str, version: int, domain: str = "") -> Any:
    """Returns ONNX's schema of an operator in a version of its domain; None if ONNX does not define the operator."""
    from onnx import defs

    try:
        return defs.get_schema(op, version, domain)
    except Exception:  # SchemaError, which is no public class
        return None


def is_unchanged(op: str, version: int) -> bool:
    """Returns whether an operator of an old version is unchanged in the oldest supported version."""
    then, now = schema(op, version), schema(op, OLDEST)
    return then is not None and now is not None and then.since_version == now.since_version


def check(node: Any, version: int, inputs: Sequence[Binding | None], kinds: Mapping[str, int]) -> None:
    """Raises UserError unless a node has the form of its operator; `kinds` are the kinds of its attributes, by name."""
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


def _check_types(form: Form, inputs: Sequence[Binding | None]) -> None:
    groups: dict[str, Dtype] = {}
    for k, v in enumerate(inputs):
        formal = form.formals[k] if k < len(form.formals) else form.last
        assert formal is not None  # more inputs than that were refused
        if v is None:
            if k < form.least_inputs and not formal.is_optional:
                raise UserError(f"input {k} ({formal.name}) is missing")
            continue
        if not _is_allowed(v, formal):
            raise UserError(f"input {k} ({formal.name}) is {v}; it may be {_listed(formal)}")
        if not isinstance(v, Value):
            continue
        if formal.dtypes and v.dtype not in formal.dtypes:
            allowed = ", ".join(d for d in TYPES if d in formal.dtypes)
            raise UserError(f"input {k} ({formal.name}) is {v.dtype}; it may be {allowed}")
        if formal.group is not None and groups.setdefault(formal.group, v.dtype) != v.dtype:
            other = groups[formal.group]
            raise UserError(f"input {k} ({formal.name}) is {v.dtype}, but one before it is {other}; both must be alike")


def _listed(formal: Formal) -> str:
    return " or ".join(text for kind, text in _KINDS_OF_TYPES.items() if kind in formal.kinds)


def _is_allowed(binding: Binding, formal: Formal) -> bool:
    """Returns whether an input may be of the kind of the binding: tensor, sequence or empty optional value."""
    match binding:
        case Value():
            return bool(formal.kinds - {"seq"})
        case ValueSequence():
            return bool(formal.kinds & {"seq", "optional"})
        case EmptyOptional():
            return formal.is_optional or "optional" in formal.kinds


MOVES = frozenset({*MOVEMENT, *SEQUENCES}) | {
    "Identity",
    "BitCast",
    "Cast",
    "CastLike",
    "Where",
    "Dropout",
    "Gather",
    "GatherElements",
    "GatherND",
    "ReverseSequence",
    "Compress",
    "Unique",
}
"""Operators that take halves as they are: they move, choose or convert elements."""


ALWAYS_F32: dict[str, frozenset[int]] = {
    "SimplifiedLayerNormalization": frozenset({1}),
    "SkipLayerNormalization": frozenset({1, 2}),
    "SkipSimplifiedLayerNormalization": frozenset({1, 2}),
}
"""Outputs of operators without a form that are f32 beside halves: statistics of rows."""


def widened(build: GraphBuilder, inputs: Sequence[Binding | None]) -> list[Binding | None]:
    """Returns the inputs with halves cast to f32."""
    return [build.cast(v, "f32") if isinstance(v, Value) and v.dtype in HALVES else v for v in inputs]


def result_types(op: str, form: Form | None, inputs: Sequence[Binding | None], count: int) -> list[Dtype | None]:
    """Returns for each of `count` results the half type in which the file stores it, None for other types.

    A result has the type of the inputs of its group; of an operator without a form, that of the first half.
    """
    if form is None:
        halves: list[Dtype] = [v.dtype for v in inputs if isinstance(v, Value) and v.dtype in HALVES]
        f32 = ALWAYS_F32.get(op, frozenset())
        return [halves[0] if halves and k not in f32 else None for k in range(count)]
    groups: dict[str, Dtype] = {}
    for k, v in enumerate(inputs):
        formal = form.formals[k] if k < len(form.formals) else form.last
        if isinstance(v, Value) and v.dtype in HALVES and formal is not None and formal.group is not None:
            groups[formal.group] = v.dtype
    return [groups.get(form.results[min(k, len(form.results) - 1)]) for k in range(count)]


def narrowed(build: GraphBuilder, value: Binding | None, dtype: Dtype | None) -> Binding | None:
    """Returns a result in the type that the file gives it."""
    if not isinstance(value, Value) or dtype is None or value.dtype != "f32":
        return value
    return build.emit("Cast", value, to=dtype, storage=1)
