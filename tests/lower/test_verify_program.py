"""Broken programs are refused, each for its own reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stormdrop.base.errors import BuildError
from stormdrop.ir.expr import Const, Load, binary, loads, substitute
from stormdrop.ir.tensor import tensor
from stormdrop.lower.borders import borders, without
from stormdrop.lower.program import (
    Access,
    Buffer,
    Finish,
    For,
    If,
    Program,
    ReduceLoop,
    RegisterTile,
    Spread,
    Start,
    Stmt,
    Update,
)
from stormdrop.lower.verify_program import verify
from tests.lower.test_golden import EXAMPLES
from tests.support.programs import changed, with_accesses, with_tiles

NOTHING = If(Const(True, "bool"), ())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_lowered_program_is_well_formed(name: str) -> None:
    verify(EXAMPLES[name].program())


def a_loop_is_missing(program: Program) -> Program:
    return changed(program, lambda s: If(Const(True, "bool"), s.body) if isinstance(s, For) else s)


def two_loops_have_one_variable(program: Program) -> Program:
    def nested(s: Stmt) -> Stmt:
        return replace(s, body=(s,)) if isinstance(s, For) and not isinstance(s.body[0], For) else s

    return replace(program, phases=tuple(replace(p, body=tuple(map(nested, p.body))) for p in program.phases))


def accumulators_are_not_started(program: Program) -> Program:
    return changed(program, lambda s: NOTHING if isinstance(s, Start) else s)


def accumulators_are_not_finished(program: Program) -> Program:
    return changed(program, lambda s: NOTHING if isinstance(s, Finish) else s)


def accumulators_are_finished_twice(program: Program) -> Program:
    def twice(s: Stmt) -> Stmt:
        return If(Const(True, "bool"), (s, replace(s)), (s, replace(s))) if isinstance(s, Finish) else s

    return replace(program, phases=tuple(replace(p, body=tuple(map(twice, p.body))) for p in program.phases))


def accumulators_are_finished_on_one_side(program: Program) -> Program:
    return changed(program, lambda s: If(s.condition, s.then) if isinstance(s, If) and _ends(s) else s)


def _ends(s: If) -> bool:
    return isinstance(s.then[0], Finish)


def an_axis_is_not_reduced(program: Program) -> Program:
    return changed(program, lambda s: s.body[0] if isinstance(s, ReduceLoop) and s.is_innermost else s)


def a_loop_runs_once_more(program: Program) -> Program:
    def longer(s: Stmt) -> Stmt:
        return replace(s, trips=binary("add", s.trips, 1), most=s.most + 1) if isinstance(s, For) else s

    return changed(program, longer)


def a_reduce_loop_begins_before_its_border(program: Program) -> Program:
    return changed(program, lambda s: replace(s, low=Const(0, "i64")) if isinstance(s, ReduceLoop) else s)


def a_tile_has_a_row_too_many(program: Program) -> Program:
    def larger(t: RegisterTile) -> RegisterTile:
        return replace(t, rows=tuple((a, n + (a.extent > 1)) for a, n in t.rows))

    return with_tiles(program, larger)


def a_guard_is_forgotten(program: Program) -> Program:
    def bare(s: Stmt) -> Stmt:
        if not isinstance(s, Update):
            return s
        return replace(s, value=without(s.value, frozenset(n.condition.b for n in borders(s.value))))  # type: ignore[attr-defined]

    return changed(program, bare)


def one_of_two_reads_has_no_guard(program: Program) -> Program:
    def added(s: Stmt) -> Stmt:
        if not isinstance(s, Update) or not borders(s.value):
            return s
        return replace(
            s, value=binary("add", s.value, next(load for load in loads(s.value) if load.tensor.name == "X"))
        )

    return changed(program, added)


def a_mask_is_forgotten(program: Program) -> Program:
    return with_accesses(program, lambda access: replace(access, masked=False))


def the_end_of_a_vector_is_not_masked(program: Program) -> Program:
    return changed(program, lambda s: replace(s, masked=False) if isinstance(s, ReduceLoop) else s)


def a_step_is_longer_than_its_vectors(program: Program) -> Program:
    return changed(program, lambda s: replace(s, step=2 * s.step) if isinstance(s, ReduceLoop) else s)


def a_read_has_no_access(program: Program) -> Program:
    return changed(program, lambda s: replace(s, reads={}) if isinstance(s, Update) else s)


def a_panel_has_longer_rows(program: Program) -> Program:
    def wrong(access: Access) -> Access:
        if not access.buffer.name.endswith(".packed"):
            return access
        return replace(access, coefficients=tuple((a, c + (a.kind == "reduce")) for a, c in access.coefficients))

    return with_accesses(program, wrong)


def a_broadcast_is_read_as_a_vector(program: Program) -> Program:
    return with_accesses(program, lambda access: replace(access, spread=Spread.CONTIGUOUS))


def scratch_is_too_small(program: Program) -> Program:
    return replace(program, scratch_bytes=program.scratch_bytes - 256)


def scratch_buffers_overlap(program: Program) -> Program:
    moved: dict[Buffer, Buffer] = {}

    def first(access: Access) -> Access:
        b = access.buffer
        return replace(access, buffer=moved.setdefault(b, replace(b, scratch_offset=0) if b.slot < 0 else b))

    return with_accesses(program, first)


def a_page_is_selected_above_all_loops(program: Program) -> Program:
    def hoisted(s: Stmt) -> Stmt:
        if not isinstance(s, Update):
            return s
        first = s.tile.stage.reduce_axes[0]
        reads = {e: replace(a, page=a.page and replace(a.page, above=first)) for e, a in s.reads.items()}
        return replace(s, reads=reads)

    return changed(program, hoisted)


def an_index_is_data(program: Program) -> Program:
    def by_data(s: Stmt) -> Stmt:
        if not isinstance(s, Update):
            return s
        (x, w), data = loads(s.value), tensor("I", (4,), "i64")
        read = Load(x.tensor, (*x.indices[:-1], data[0]))
        reads = {read: s.reads[x], w: s.reads[w], data[0]: s.reads[x]}
        return replace(s, value=substitute(s.value, {x: read}), reads=reads)

    return changed(program, by_data)


MISTAKES: list[tuple[str, Callable[[Program], Program], str]] = [
    ("gmm_tails", a_loop_is_missing, "is not the variable of a loop around"),
    ("gmm_tails", two_loops_have_one_variable, "two loops over m_s0.1a2_1"),
    ("gmm_tails", accumulators_are_not_started, "not started"),
    ("dot_in_parts", accumulators_are_not_finished, "are not finished"),
    ("dot_in_parts", accumulators_are_finished_twice, "already finished"),
    ("gmm_tails", accumulators_are_finished_on_one_side, "finished on one side"),
    ("gmm_tails", an_axis_is_not_reduced, "is not reduced over each of its axes once"),
    ("gmm_tails", a_loop_runs_once_more, "may leave 0"),
    ("c2d_border", a_reduce_loop_begins_before_its_border, "may leave 0"),
    ("gmm_tails", a_tile_has_a_row_too_many, "may leave 0"),
    ("c2d_border", a_guard_is_forgotten, "may leave 0"),
    ("c2d_border", one_of_two_reads_has_no_guard, "may leave 0"),
    ("c2d_border", a_page_is_selected_above_all_loops, "above kh, but depends on kh"),
    ("gmm_tails", an_index_is_data, "may leave 0"),
    ("gmm_tails", a_mask_is_forgotten, "neither masked nor inside its buffer"),
    ("dot_in_parts", the_end_of_a_vector_is_not_masked, "is partial, but not masked"),
    ("dot_in_parts", a_step_is_longer_than_its_vectors, "a step of 16 along k, not 8"),
    ("gmm_tails", a_read_has_no_access, "has no access"),
    ("gmm_tails", a_panel_has_longer_rows, "an address in W.packed"),
    ("gmm_tails", a_broadcast_is_read_as_a_vector, "do not lie side by side"),
    ("gmm_tails", scratch_is_too_small, "bytes of scratch"),
    ("sfm_in_one_phase", scratch_buffers_overlap, "share scratch memory"),
]


@pytest.mark.parametrize(("example", "mistake", "reason"), MISTAKES, ids=[m.__name__ for _, m, _ in MISTAKES])
def test_a_broken_program_is_refused(example: str, mistake: Callable[[Program], Program], reason: str) -> None:
    with pytest.raises(BuildError, match=reason):
        verify(mistake(EXAMPLES[example].program()))
