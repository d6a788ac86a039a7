"""f16 and bf16 in a model: moves keep halves; all other nodes compute in f32 and round their result.

    y: f16 = Relu(x: f16)   ->   Cast(Relu(Cast(x, f32)), f16, storage=1)

`storage` marks a rounding that is no node of the file: `graph.fuse` may omit it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stormdrop.frontend.movement import MOVEMENT
from stormdrop.frontend.node_reader import Binding
from stormdrop.frontend.schema import Form
from stormdrop.frontend.sequences import SEQUENCES
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.dtypes import HALVES, Dtype
from stormdrop.operators.node import Value

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
