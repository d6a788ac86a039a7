"""f16 and bf16 in a model: nodes that only move elements keep them, all others compute in f32 and round their result.

    y: f16 = Relu(x: f16)   ->   Cast(Relu(Cast(x, f32)), f16, storage=1)

`storage` marks a rounding that no node of the file asks for: `graph.halves` may leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from stormdrop.frontend.movement import MOVEMENT
from stormdrop.frontend.schema import Form
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Value
from stormdrop.ir.dtypes import HALVES, Dtype

MOVES = frozenset(MOVEMENT) | {
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


def widened(build: GraphBuilder, inputs: Sequence[Value | None]) -> list[Value | None]:
    """The inputs with halves cast to f32."""
    return [build.cast(v, "f32") if v is not None and v.dtype in HALVES else v for v in inputs]


def result_types(form: Form | None, inputs: Sequence[Value | None], count: int) -> list[Dtype | None]:
    """For each of `count` results the half that the file stores it as, None for other types.

    A result has the type of the inputs of its group; of an operator without a form, that of the first half.
    """
    if form is None:
        return [next((v.dtype for v in inputs if v is not None and v.dtype in HALVES), None)] * count
    groups: dict[str, Dtype] = {}
    for k, v in enumerate(inputs):
        formal = form.formals[k] if k < len(form.formals) else form.last
        if v is not None and v.dtype in HALVES and formal is not None and formal.group is not None:
            groups[formal.group] = v.dtype
    return [groups.get(form.results[min(k, len(form.results) - 1)]) for k in range(count)]


def narrowed(build: GraphBuilder, value: Value | None, dtype: Dtype | None) -> Value | None:
    """A result in the type that the file gives it."""
    if value is None or dtype is None or value.dtype != "f32":
        return value
    return build.emit("Cast", value, to=dtype, storage=1)
