"""Planted bugs: the checks of this suite must catch each of them, and nothing without one.

The property check must catch bugs in lowering and code generation, the nets of `tests.nets` bugs above tasks. Most bugs
of the first kind change the loop program or its LLVM text between lowering and machine code. Other bugs patch a
function of the product. All are mistakes that an engineer of this compiler could make.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stormdrop.codegen import tile
from stormdrop.frontend import onnx as frontend
from stormdrop.graph import passes
from stormdrop.graph.graph import Graph
from stormdrop.ir.affine import ZERO
from stormdrop.ir.expr import Bin, Combiner, Const, Dtype, Expr, Load, Scalar, binary, rewrite, substitute
from stormdrop.lower import lower as lowering
from stormdrop.lower.program import (
    Access,
    Finish,
    For,
    Phase,
    Program,
    ReduceLoop,
    RegisterTile,
    Start,
    Stmt,
    Update,
    statements,
)
from stormdrop.report import model_reports as report
from stormdrop.tuning import loop
from stormdrop.tuning.tuned import TaskRow
from tests.conftest import DEFAULT_POINTS
from tests.nets import public_names
from tests.nets.catalogue import NETS
from tests.nets.json_keys import COMMANDS, json_keys
from tests.nets.models import networks, node_suite
from tests.nets.recorded import Results
from tests.nets.tuning import described, task_events
from tests.support import crew
from tests.support.programs import changed, with_accesses, with_tiles
from tests.support.tasks import DRAWN
from tests.support.trials import Plant

TRIALS = range(2 * len(DRAWN))
"""At least two tasks of every kind, about 450 points."""


def remainder_tile_is_a_row_short(program: Program) -> Program:
    """A variant behind an `else` has fewer rows than another one of its stage."""
    most = {id: max(t.row_count for t in tiles) for id, tiles in tiles_of(program).items()}

    def short(t: RegisterTile) -> RegisterTile:
        if t.row_count == most[t.stage.id]:
            return t
        return replace(t, rows=tuple((a, max(1, n - 1)) for a, n in t.rows))

    return with_tiles(program, short)


def tiles_of(program: Program) -> dict[str, list[RegisterTile]]:
    found: dict[str, list[RegisterTile]] = {}
    for phase in program.phases:
        for s in statements(phase.body):
            if isinstance(s, Finish):
                found.setdefault(s.tile.stage.id, []).append(s.tile)
    return found


def mask_is_ignored(program: Program) -> Program:
    return with_accesses(program, lambda access: replace(access, masked=False))


def tail_trips_are_rounded_down(program: Program) -> Program:
    def visit(e: Expr) -> Expr | None:
        match e:
            case Bin("floordiv", Bin("add", a, Const()), Const() as b):
                return Bin("floordiv", a, b)
            case _:
                return None

    return changed(program, lambda s: replace(s, trips=rewrite(s.trips, visit)) if isinstance(s, For) else s)


def packed_panel_has_a_wrong_stride(program: Program) -> Program:
    def wrong(access: Access) -> Access:
        if not access.buffer.name.endswith(".packed"):
            return access
        return replace(access, coefficients=tuple((a, c + (a.kind == "reduce")) for a, c in access.coefficients))

    return with_accesses(program, wrong)


def partial_sums_are_not_loaded_again(program: Program) -> Program:
    yes = Const(True, "bool")
    return changed(program, lambda s: replace(s, first=yes) if isinstance(s, Start) else s)


def finish_is_applied_twice(program: Program) -> Program:
    def twice(s: Stmt) -> Stmt:
        if not isinstance(s, Finish):
            return s
        own = Load(s.tile.stage.acc, s.tile.stage.axes)
        return replace(s, value=substitute(s.value, {own: s.value}))

    return changed(program, twice)


def rest_of_the_unrolling_is_dropped(program: Program) -> Program:
    def short(s: Stmt) -> Stmt:
        if isinstance(s, ReduceLoop) and s.unroll > 1 and isinstance(s.low, Const) and isinstance(s.high, Const):
            turn, length = s.step * s.unroll, int(s.high.value) - int(s.low.value)
            if length > turn:
                return replace(s, high=Const(int(s.low.value) + length // turn * turn, "i64"))
        return s

    return changed(program, short)


def narrowed_loop_is_one_too_short(program: Program) -> Program:
    """Where a border cuts a loop at its end, it cuts one more."""

    def short(s: Stmt) -> Stmt:
        match s:
            case ReduceLoop(high=Bin("min", a, b)) if not s.tile.base[s.axis].terms:
                return replace(s, high=binary("min", a, binary("sub", b, 1)))
            case _:
                return s

    return changed(program, short)


def window_is_read_one_pixel_aside(program: Program) -> Program:
    """A reduce axis that moves along an image counts from one."""

    def aside(s: Stmt) -> Stmt:
        if not isinstance(s, Update):
            return s
        moved = {
            e: replace(a, outer=a.outer.shifted(sum(c for x, c in a.coefficients if x.name == "kw")))
            for e, a in s.reads.items()
        }
        return replace(s, reads={e: a if e.tensor.constant else moved[e] for e, a in s.reads.items()})

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
    narrowed_loop_is_one_too_short,
    rest_of_the_unrolling_is_dropped,
    window_is_read_one_pixel_aside,
    last_unit_is_left_out,
)
TEXTS = (border_page_holds_ones, lanes_of_a_tail_mask_are_reversed, horizontal_sum_loses_its_last_half)


def is_caught(plant: Plant | None = None) -> bool:
    """Whether some point is refused by the verifier, computes something wrong, writes where it may not, or crashes;
    other errors are not meant.
    """
    outcome = crew.run(TRIALS, crew.Orders(plant=plant), stop_after=1)
    print(outcome.points, "points;", outcome.failures[:1])
    errors = [f for f in outcome.failures if re.match(r"trial|\w+Error(?!: malformed program)", f)]
    assert not errors
    return bool(outcome.failures)


@pytest.mark.parametrize("mistake", PROGRAMS, ids=lambda f: f.__name__)
def test_a_mistake_in_the_loop_program_is_caught(mistake: Callable[[Program], Program]) -> None:
    assert is_caught(Plant(program=mistake))


@pytest.mark.parametrize("mistake", TEXTS, ids=lambda f: f.__name__)
def test_a_mistake_in_the_generated_code_is_caught(mistake: Callable[[str], str]) -> None:
    assert is_caught(Plant(text=mistake))


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


def test_without_a_mistake_the_property_test_checks_the_same_trials() -> None:
    assert set(TRIALS) <= set(crew.seeds_for(DEFAULT_POINTS))


# ---- above tasks -------------------------------------------------------------------------------------------------


def changed_entries(net: str, now: Results) -> list[str]:
    """Returns the names of the entries of a part of a net that are not as recorded."""
    recorded = NETS[net].recorded()
    return [name for name, result in now.items() if recorded.get(name) != result]


def test_an_importer_that_ignores_an_attribute_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not changed_entries("node_suite", node_suite("leakyrelu"))
    monkeypatch.setitem(frontend.IMPORTERS, "LeakyRelu", lambda n: n.build.emit("LeakyRelu", n.input(0), alpha=0.01))
    assert set(changed_entries("node_suite", node_suite("leakyrelu"))) >= {"test_leakyrelu", "test_leakyrelu_example"}


def test_a_graph_pass_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(graph: Graph) -> Graph:
        return graph

    assert not changed_entries("networks", networks(["small_images"]))
    without = [(name, same if name == "scales into weights" else function) for name, function in passes.PASSES]
    monkeypatch.setattr(passes, "PASSES", without)
    assert changed_entries("networks", networks(["small_images"])) == ["small_images tasks", "small_images partition"]


def test_a_key_of_json_with_another_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"run": COMMANDS["run"]}
    right = report.summary_json

    def renamed(name: str, array: report.Array) -> dict[str, object]:
        return {key.replace("not_finite", "infinite"): value for key, value in right(name, array).items()}

    keys = {name for name in NETS["json_keys"].recorded() if name.startswith("run: ")}
    assert json_keys(run).keys() == keys
    monkeypatch.setattr(report, "summary_json", renamed)
    assert json_keys(run).keys() ^ keys == {"run: outputs[].not_finite", "run: outputs[].infinite"}


def test_an_event_of_tuning_with_wrong_seconds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> dict[str, str]:
        return {f"task {key}": value for key, value in described(task_events()).items()}

    assert not changed_entries("tuning", now())
    right = loop.Measured

    def slower(row: TaskRow, *more: Any) -> loop.Measured:
        return right(replace(row, seconds=2 * (row.seconds or 0.0)), *more)

    monkeypatch.setattr(loop, "Measured", slower)
    assert changed_entries("tuning", now()) == ["task Measured: contents"]


def test_a_public_option_with_another_default_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = public_names.heading

    def wrong(name: str) -> str:
        return right(name).replace("winograd: bool = True", "winograd: bool = False")

    monkeypatch.setattr(public_names, "heading", wrong)
    assert changed_entries("public_names", public_names.signatures()) == ["compile", "tune"]
