"""Bugs planted into lowering and code generation: the property check must catch each of them, and nothing without one.

Most of them change the loop program or its LLVM text between lowering and machine code; the others patch a function of
the product. All are mistakes that somebody writing this compiler could make.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from stormdrop.codegen import instance, tile
from stormdrop.codegen.borders import Narrowing
from stormdrop.ir.affine import ZERO, Affine
from stormdrop.ir.expr import Axis, Bin, Combiner, Const, Dtype, Expr, Load, Scalar, rewrite, substitute
from stormdrop.lower import lower as lowering
from stormdrop.lower.program import Access, For, If, Phase, Program, Stmt, Tile
from tests.support import crew
from tests.support.tasks import DRAWN
from tests.support.trials import Plant

TRIALS = range(2 * len(DRAWN))
"""At least two tasks of every kind, about 450 points."""


def changed(program: Program, tile: Callable[[Tile], Tile], at_load: bool = True) -> Program:
    """The program with every tile replaced."""

    def visit(s: Stmt) -> Stmt:
        match s:
            case For():
                return replace(s, body=tuple(map(visit, s.body)))
            case If():
                return replace(s, then=tuple(map(visit, s.then)), orelse=tuple(map(visit, s.orelse)))
            case Tile():
                return tile(s)

    def phase(p: Phase) -> Phase:
        return replace(p, body=tuple(map(visit, p.body))) if at_load or not p.at_load else p

    return replace(program, phases=tuple(map(phase, program.phases)))


def with_trips(program: Program, trips: Callable[[Expr], Expr]) -> Program:
    """The program with the trip counts of all serial loops rewritten."""

    def visit(s: Stmt) -> Stmt:
        match s:
            case For():
                return replace(s, trips=trips(s.trips), body=tuple(map(visit, s.body)))
            case If():
                return replace(s, then=tuple(map(visit, s.then)), orelse=tuple(map(visit, s.orelse)))
            case Tile():
                return s

    return replace(program, phases=tuple(replace(p, body=tuple(map(visit, p.body))) for p in program.phases))


def remainder_tile_is_a_row_short(program: Program) -> Program:
    def visit(s: Stmt, last: bool = False) -> Stmt:
        match s:
            case For():
                return replace(s, body=tuple(visit(x) for x in s.body))
            case If():
                return replace(s, then=tuple(visit(x) for x in s.then), orelse=tuple(visit(x, True) for x in s.orelse))
            case Tile():
                return replace(s, rows=tuple((a, max(1, n - 1)) for a, n in s.rows)) if last else s

    return replace(program, phases=tuple(replace(p, body=tuple(visit(s) for s in p.body)) for p in program.phases))


def mask_is_ignored(program: Program) -> Program:
    return changed(program, lambda t: replace(t, live=None))


def tail_trips_are_rounded_down(program: Program) -> Program:
    def visit(e: Expr) -> Expr | None:
        match e:
            case Bin("floordiv", Bin("add", a, Const()), Const() as b):
                return Bin("floordiv", a, b)
            case _:
                return None

    return with_trips(program, lambda trips: rewrite(trips, visit))


def packed_panel_has_a_wrong_stride(program: Program) -> Program:
    def wrong(access: Access) -> Access:
        if not access.buffer.name.endswith(".packed"):
            return access
        return replace(access, coefficients=tuple((a, c + (a.kind == "reduce")) for a, c in access.coefficients))

    return changed(program, lambda t: replace(t, access={load: wrong(x) for load, x in t.access.items()}))


def partial_sums_are_not_loaded_again(program: Program) -> Program:
    yes = Const(True, "bool")
    return changed(program, lambda t: replace(t, accumulate=t.accumulate and replace(t.accumulate, first=yes)))


def finish_is_applied_twice(program: Program) -> Program:
    def twice(t: Tile) -> Tile:
        own = Load(t.stage.acc, t.stage.axes)
        return replace(t, stage=replace(t.stage, finish=substitute(t.stage.finish, {own: t.stage.finish})))

    return changed(program, twice)


def rest_of_the_unrolling_is_dropped(program: Program) -> Program:
    def short(t: Tile) -> Tile:
        loops = list(t.reduce)
        for k, loop in enumerate(loops):
            turn = loop.step * loop.unroll
            if loop.unroll > 1 and loop.span.is_fixed and loop.span.longest > turn:
                length = loop.span.longest // turn * turn
                loops[k] = replace(
                    loop, span=replace(loop.span, length=Const(length, "i64"), lengths=frozenset({length}))
                )
        return replace(t, reduce=tuple(loops))

    return changed(program, short)


def window_is_read_one_pixel_aside(program: Program) -> Program:
    """A reduce axis that moves along an image counts from one."""

    def aside(t: Tile) -> Tile:
        moved: dict[Axis, Affine] = {
            a: b.shifted(1) if a.kind == "reduce" and a.name == "kw" else b for a, b in t.base.items()
        }
        return replace(t, base=moved)

    return changed(program, aside, at_load=False)


def last_unit_is_left_out(program: Program) -> Program:
    def short(p: Phase) -> Phase:
        loops = tuple((v, n - 1 if k == 0 and n > 1 else n) for k, (v, n) in enumerate(p.loops))
        return p if p.at_load else replace(p, loops=loops)

    return replace(program, phases=tuple(map(short, program.phases)))


def border_page_holds_ones(text: str) -> str:
    def ones(found: re.Match[str]) -> str:
        name, n, kind = found.groups()
        item = f"{kind} 1.0" if kind in ("float", "double") else f"{kind} 1"
        return f"{name} = internal constant [{n} x {kind}] [{', '.join([item] * int(n))}]"

    return re.sub(r"(@page\.\S+) = internal constant \[(\d+) x (\w+)\] zeroinitializer", ones, text)


def lanes_of_a_tail_mask_are_reversed(text: str) -> str:
    def backwards(found: re.Match[str]) -> str:
        return f"{found[1]}<{', '.join(reversed(found[2].split(', ')))}>"

    return re.sub(r"(icmp sgt <\d+ x i32> %v\d+, )<([^>]+)>", backwards, text)


def horizontal_sum_loses_its_last_half(text: str) -> str:
    """The two lanes that remain at the end are both lane 0."""
    return re.sub(r"(extractelement <2 x \w+> %v\d+, i64) 1\b", r"\1 0", text)


PROGRAMS = (
    remainder_tile_is_a_row_short,
    mask_is_ignored,
    tail_trips_are_rounded_down,
    packed_panel_has_a_wrong_stride,
    partial_sums_are_not_loaded_again,
    finish_is_applied_twice,
    rest_of_the_unrolling_is_dropped,
    window_is_read_one_pixel_aside,
    last_unit_is_left_out,
)
TEXTS = (border_page_holds_ones, lanes_of_a_tail_mask_are_reversed, horizontal_sum_loses_its_last_half)


def is_caught(plant: Plant | None = None) -> bool:
    """Whether some point computes something wrong, writes where it may not, or crashes; other errors are not meant."""
    outcome = crew.run(TRIALS, crew.Orders(plant=plant), stop_after=1)
    print(outcome.points, "points;", outcome.failures[:1])
    assert not any(re.match(r"trial|\w+Error", failure) for failure in outcome.failures), outcome.failures
    return bool(outcome.failures)


@pytest.mark.parametrize("mistake", PROGRAMS, ids=lambda f: f.__name__)
def test_a_mistake_in_the_loop_program_is_caught(mistake: Callable[[Program], Program]) -> None:
    assert is_caught(Plant(program=mistake))


@pytest.mark.parametrize("mistake", TEXTS, ids=lambda f: f.__name__)
def test_a_mistake_in_the_generated_code_is_caught(mistake: Callable[[str], str]) -> None:
    assert is_caught(Plant(text=mistake))


def test_a_narrowed_loop_that_is_one_too_short_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = instance.narrowings

    def wrong(tile: Tile) -> list[Narrowing]:
        return [replace(n, form=n.form.shifted(-1)) for n in right(tile)]

    monkeypatch.setattr(instance, "narrowings", wrong)
    assert is_caught()


def test_a_maximum_that_starts_from_zero_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tile.identity_of

    def wrong(combiner: Combiner, dtype: Dtype) -> Scalar:
        return 0.0 if combiner == "max" else right(combiner, dtype)

    monkeypatch.setattr(tile, "identity_of", wrong)
    assert is_caught()


def test_a_scratch_box_whose_start_is_not_subtracted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lowering._box_region

    def wrong(*args: object) -> lowering.Region:
        region = right(*args)  # type: ignore[arg-type]
        return replace(region, base=(ZERO,) * len(region.base))

    monkeypatch.setattr(lowering, "_box_region", wrong)
    assert is_caught()


def test_a_kernel_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "HANG_SECONDS", 2.0)
    endless = "entry:\n  br label %spin\nspin:\n  br label %spin\nafter:\n  switch i64 %phase"
    plant = Plant(text=lambda text: text.replace("entry:\n  switch i64 %phase", endless))
    outcome = crew.run([DRAWN.index("ADR")], crew.Orders(only=0, plant=plant))
    (failure,) = outcome.failures
    assert failure.startswith("no answer within 2 s")
    assert f"case {DRAWN.index('ADR')}:0: ADR" in failure


def test_without_a_mistake_nothing_is_caught() -> None:
    assert not is_caught()
