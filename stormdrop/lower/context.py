"""The state of the lowering of a program: storage, scratch memory, spans of axes, bounds of loop variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stormdrop.ir.affine import Interval
from stormdrop.ir.expr import ITEMSIZE, Axis, Const, Expr, Var
from stormdrop.ir.tensor import Tensor
from stormdrop.lower.program import Buffer
from stormdrop.lower.regions import Region
from stormdrop.lower.spans import Span, index_span, split, whole
from stormdrop.space.nest import nest_of
from stormdrop.space.region import is_computed_whole
from stormdrop.space.structure import Stage, Structure
from stormdrop.space.tiling import Tiling
from stormdrop.target import ALIGN_BYTES, whole_lines
from stormdrop.target.scope import Scope


@dataclass(slots=True)
class LoweringContext:
    structure: Structure
    tilings: Mapping[str, Tiling]
    regions: dict[Tensor, Region]
    scratch: int = 0
    most_scratch: int = 0
    spans: dict[str, dict[Axis, Span]] = field(default_factory=dict[str, dict[Axis, Span]])
    known: dict[Expr, Interval] = field(default_factory=dict[Expr, Interval])  # bounds of the loop variables so far

    def allocate(self, name: str, tensor: Tensor, elements: int) -> Buffer:
        offset = self.scratch
        nbytes = elements * ITEMSIZE[tensor.dtype]
        self.scratch += whole_lines(nbytes) + ALIGN_BYTES
        self.most_scratch = max(self.most_scratch, self.scratch)
        return Buffer(name, tensor.dtype, Scope.SCRATCH, elements, scratch_offset=offset)


def parallel_loops(context: LoweringContext, stage: Stage, spans: dict[Axis, Span]) -> tuple[tuple[Var, int], ...]:
    """Returns the loops of a phase's parallel range; sets `spans` to the spans of one iteration."""
    tiling = context.tilings[stage.id]
    loops: list[tuple[Var, int]] = []
    for level in nest_of(stage).parallel:
        var = Var(f"{level.axis.name}_{stage.axis_id(level.axis)}_0")
        trips, most, piece = split(spans[level.axis], tiling.span[level], var)
        spans[level.axis] = piece
        assert isinstance(trips, Const)
        if most > 1:
            loops.append((var, most))
            context.known[var] = (0, most - 1)
    return tuple(loops)


def needed_spans(context: LoweringContext, stage: Stage) -> dict[Axis, Span]:
    """Returns the span of each axis that the readers need in the present iteration (bounds inference)."""
    spans_by_axis: dict[Axis, list[Span]] = {a: [] for a in stage.axes}
    for reader, load in context.structure.reads_of(stage.tensor):
        around = context.spans.get(reader.id) or needed_spans(context, reader)
        for own, i in zip(stage.place, load.indices):
            assert isinstance(own, Axis)
            spans_by_axis[own].append(index_span(i, around, own.extent))
    spans: dict[Axis, Span] = {a: whole(a) for a in stage.reduce_axes}
    for a, needed in spans_by_axis.items():
        is_whole = is_computed_whole(context.structure, stage, a)
        assert is_whole or len(set(needed)) == 1, f"readers of {stage.id} need different ranges of {a}"
        spans[a] = whole(a) if is_whole else needed[0]
    return spans
