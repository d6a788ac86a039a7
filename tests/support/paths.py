"""Which ways through lowering and code generation a program took, seen in the program and in its LLVM text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from stormdrop.ir.affine import Affine, Interval, conjuncts, decide
from stormdrop.ir.expr import Axis, Const, Expr, Var, rewrite
from stormdrop.lower.borders import borders
from stormdrop.lower.program import Finish, For, If, Phase, Program, ReduceLoop, RegisterTile, Save, Update, statements
from stormdrop.space.access import axes_of
from stormdrop.space.sketch import Sketch
from stormdrop.space.structure import ComputeAt, DerivationStep

BUCKETS = ((1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"))


def bucket(value: int) -> str:
    return next((label for most, label in BUCKETS if value <= most), "9+")


def observe(sketch: Sketch, values: Mapping[str, int], program: Program, text: str) -> set[str]:
    """The names of everything that occurs."""
    found = {_step(sketch, s) for s in sketch.structure.steps}
    found |= {_knob(name, value) for name, value in values.items()}
    for stage in sketch.structure.stages:
        kind = "copy" if stage.reader is not None else "stage"
        found.add(f"{kind} at {stage.level.value}")
    for phase in program.phases:
        found |= _phase_paths(phase)
    for name, pattern in TEXT.items():
        if re.search(pattern, text):
            found.add(name)
    return found


TEXT = {
    "masked load": r"@llvm\.masked\.load",
    "masked store": r"@llvm\.masked\.store",
    "gather": r"call .*@llvm\.masked\.gather",
    "scatter": r"call .*@llvm\.masked\.scatter",
    "border: page": r"select i1 [^,]+, ptr [^,]+, ptr @page",
    "fma": r"@llvm\.fma\.",
    "transposed load": r"shufflevector <(\d+) x \w+> %v\d+, <\1 x \w+> %v",
    "loop that may be empty": r"br i1 %v\d+, label %loop\d+, label %done\d+",
}


def _step(sketch: Sketch, step: DerivationStep) -> str:
    match step.rule, step.args:
        case (("place" | "pack"), args):
            return f"{step.rule} {args[-1]}"
        case "tile", (str(form), str(axis), *_):
            vector = "no vector" if axis == "-" else "reduced vector" if axis.startswith("r") else "vector"
            return f"tile {form} {vector}"
        case _:
            return step.rule


def _knob(name: str, value: int) -> str:
    """`s1.a0.2` is level 2 of a spatial axis; a copy's id has a part more: `s1.0.r0.1`."""
    parts = name.split(".")
    if parts[-1] == "peel":
        return f"knob peel {value}"
    if parts[-1] in ("unroll", "v"):
        return f"knob {parts[-1]} {bucket(value)}"
    if len(parts) == 4:
        return f"knob copy.{parts[-1]} {'1' if value == 1 else '2-4' if value <= 4 else '5+'}"
    if name == "parts":
        return "parts of a reduction"
    kind = "reduce" if parts[-2].startswith("r") else "space"
    return f"knob {kind}.{parts[-1]} {bucket(value)}"


def _phase_paths(phase: Phase) -> set[str]:
    found = {"phase at load" if phase.at_load else "phase"}
    bounds: dict[Expr, Interval] = {v: (0, n - 1) for v, n in phase.loops}
    loops: dict[RegisterTile, list[ReduceLoop]] = {}
    for s in statements(phase.body):
        match s:
            case For(var, trips, most, _):
                bounds[var] = (0, max(0, most - 1))
                found.add("loop of constant trips" if isinstance(trips, Const) else "loop with a tail")
            case If(_, then, orelse):
                values = [[u.value for u in statements(body) if isinstance(u, Update)] for body in (then, orelse)]
                if all(len(v) == 1 for v in values) and values[0][0] is not values[1][0]:
                    found.add("border: tile with a body for the interior")
            case ReduceLoop():
                loops.setdefault(s.tile, []).append(s)
                bounds[s.var] = (0, max(0, s.longest - 1))
                found |= _loop_paths(s)
            case Update():
                found |= _borders(s.tile, s.value, loops[s.tile], bounds)
            case Finish():
                found |= _tile_paths(s.tile) | _borders(s.tile, s.value, [], bounds)
            case Save(tile):
                found.add("partial sums" + (" of a reduced vector" if tile.stage.vector_is_reduced else ""))
            case _:
                pass
    found |= set(_variant_paths(phase))
    return found


def _variant_paths(phase: Phase) -> Iterator[str]:
    by_stage: dict[str, dict[RegisterTile, None]] = {}
    for s in statements(phase.body):
        if isinstance(s, Finish):
            by_stage.setdefault(s.tile.stage.id, {})[s.tile] = None
    for variants in by_stage.values():
        lengths = list(zip(*(dict(t.rows).values() for t in variants)))
        ragged = sum(len(set(column)) > 1 for column in lengths)
        yield ("full tile only", "remainder of one axis", "remainders of two axes", "remainders of three axes")[ragged]
        if any(len(set(column)) > 2 for column in lengths):
            yield "three lengths of one axis"


def _tile_paths(t: RegisterTile) -> set[str]:
    found: set[str] = set()
    stage = t.stage
    if t.live is not None:
        found.add("masked vectors" if isinstance(t.live, Const) else "vectors masked by a tail")
    elif stage.vector in stage.axes:
        found.add("whole vectors")
    if stage.is_reduction and stage.finish.dtype == stage.acc.dtype and stage.tensor is not stage.acc:
        found.add("finished in registers")
    if stage.level is ComputeAt.UNIT and stage.reader is None and stage.is_reduction:
        found.add("reduction in scratch")
    if stage.guard is not None:
        found.add("guarded finish")
    return found


def _loop_paths(loop: ReduceLoop) -> set[str]:
    found: set[str] = set()
    is_known = isinstance(loop.low, Const) and isinstance(loop.high, Const)
    if loop.written_out:
        found.add("reduce loop written out")
    if loop.prefetches:
        found.add("prefetch")
    if loop.tile.base[loop.axis].terms and loop.axis.extent % loop.longest:
        found.add("reduce block with a tail")
    if loop.axis in loop.tile.stage.reduce_axes and "max(0" in str(loop.low):
        found.add("border: narrowed loop")
    if loop.step > 1:
        found.add("reduced vector with a masked end" if loop.masked else "reduced vector of whole steps")
    if loop.unroll > 1:
        ragged = not is_known or loop.longest // loop.step % loop.unroll
        found.add("unrolled with a rest" if ragged else "unrolled evenly")
    return found


def _borders(t: RegisterTile, value: Expr, loops: list[ReduceLoop], bounds: Mapping[Expr, Interval]) -> set[str]:
    found: set[str] = set()
    for part in dict.fromkeys(part for n in borders(value) for part in conjuncts(n.condition)):
        answers = set(_answers(t, part, loops, bounds))
        if len(answers) > 1:
            found.add("border: decided per instance")
        elif answers == {True}:
            found.add("border: never reached")
        if None in answers and t.stage.vector in axes_of(part) and t.lanes > 1:
            found.add("border: lane mask")
    return found


def _answers(
    t: RegisterTile, part: Expr, loops: list[ReduceLoop], bounds: Mapping[Expr, Interval]
) -> Iterator[bool | None]:
    """What is known of a condition in every instance of the unrolled axes."""
    by_axis = {loop.axis: loop for loop in loops}
    offsets: list[list[tuple[Axis, int]]] = [[(a, k) for k in range(n)] for a, n in t.rows if a in axes_of(part)]
    offsets += [[(x.axis, k) for k in range(x.longest)] for x in loops if x.written_out and x.axis in axes_of(part)]
    known = dict(bounds)
    lane = Var("lane of the tile")
    known[lane] = (0, t.vectors * t.lanes - 1)
    for instance in itertools.product(*offsets):
        at = dict(instance)

        def place(n: Expr, at: Mapping[Axis, int] = at) -> Expr | None:
            if not isinstance(n, Axis):
                return None
            form = t.base[n].shifted(at.get(n, 0))
            if n in by_axis and n not in at:
                form = form + Affine(((by_axis[n].var, 1),))
            if n is t.stage.vector and n not in by_axis:
                form = form + Affine(((lane, 1),))
            return form.expr()

        yield decide(rewrite(part, place), known.get)
