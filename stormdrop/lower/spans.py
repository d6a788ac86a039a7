"""Spans: contiguous ranges of an axis, each with the set of lengths it takes over all iterations.

The set shows which trip counts are constant, and for which tail lengths a register tile needs a body.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.affine import ZERO, Affine, affine
from stormdrop.ir.expr import Axis, Const, Expr, Var, binary


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
