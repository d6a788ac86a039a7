"""The state of the lowering of a program: storage, scratch memory, spans of axes, bounds of loop variables.

Spans: contiguous ranges of an axis, each with the set of lengths it takes over all iterations.

The set shows which trip counts are constant, and for which tail lengths a register tile needs a body.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.affine import ZERO, Affine, Interval, affine
from stormdrop.ir.expr import ITEMSIZE, Axis, Const, Expr, Var, binary
from stormdrop.ir.tensor import Tensor
from stormdrop.lower.packed_layout import Region
from stormdrop.lower.program import Buffer
from stormdrop.space.nest import nest_of
from stormdrop.space.structure import Stage, Structure
from stormdrop.space.tiling import Tiling, is_computed_whole
from stormdrop.target import ALIGN_BYTES, whole_lines
from stormdrop.target.structures import Scope


@dataclass(frozen=True, slots=True)
class Span:
    """A range of an axis that begins at `base`. `length`, over loop variables, takes the values `lengths`."""

    base: Affine
    length: Expr
    lengths: frozenset[int]

    @property
    def is_fixed(self) -> bool:
        return len(self.lengths) == 1

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)


def whole(axis: Axis) -> Span:
    return Span(ZERO, Const(axis.extent, "i64"), frozenset({axis.extent}))


def split(span: Span, inner: int, var: Var) -> tuple[Expr, int, Span]:
    """Tiles a span by `inner`: the trip count, its maximum, and the span of one trip of the loop over `var`."""
    counts = {-(-n // inner) for n in span.lengths}
    most = max(counts)
    full = {inner} if any(n >= inner for n in span.lengths) else set[int]()
    lengths = frozenset(full | {n % inner for n in span.lengths if n % inner})
    trips = Const(most, "i64") if len(counts) == 1 else span.length
    if not isinstance(trips, Const) and inner > 1:  # rounded up
        trips = binary("floordiv", binary("add", trips, inner - 1), inner)
    if most == 1 and len(counts) == 1:
        return trips, 1, span
    base = span.base + Affine(((var, inner),))
    if len(lengths) == 1:
        length: Expr = Const(next(iter(lengths)), "i64")
    else:
        length = binary("min", Const(inner, "i64"), binary("sub", span.length, binary("mul", var, inner)))
    return trips, most, Span(base, length, lengths)


def index_span(index: Expr, around: Mapping[Axis, Span], extent: int) -> Span:
    """Returns the range of values that an affine index takes while its axes run over their spans (bounds inference)."""
    form = affine(index)
    base = Affine((), form.constant)
    length: Affine = Affine((), 1)
    choices: list[list[int]] = []
    for atom, c in form.terms:
        assert isinstance(atom, Axis)
        span = around[atom] if atom in around else whole(atom)
        if c > 0:
            base = base + span.base.scaled(c)
        else:
            base = base + span.base.scaled(c) + affine(span.length).scaled(c).shifted(-c)
        length = length + affine(span.length).scaled(abs(c)).shifted(-abs(c))
        choices.append([abs(c) * (n - 1) for n in span.lengths])
    lengths = frozenset(1 + sum(pick) for pick in itertools.product(*choices))
    if max(lengths) > extent:  # only a guarded read (padding) can run past its producer
        raise ScheduleError(f"a region of {max(lengths)} exceeds the extent {extent}")
    return Span(base, length.expr(), lengths)


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
