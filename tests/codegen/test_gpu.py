"""GPU programs: what the judge says of a point is what lowering makes of it, and what it computes is right."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stormdrop.builder.building import lowered
from stormdrop.codegen.gpu import emit_module
from stormdrop.codegen.llvm import assembly
from stormdrop.ir.expr import Expr
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Task
from stormdrop.lower.program import (
    Barrier,
    CommitCopies,
    Finish,
    Program,
    Threads,
    Update,
    WaitForCopies,
    statements,
)
from stormdrop.lower.verify_program import verify
from stormdrop.operators.catalogue import build as operator
from stormdrop.space.default import default_point
from stormdrop.space.gpu_judge import GpuAssessment, GpuJudge
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.gpu import ARCHITECTURES, gpu
from tests.emulator.building import text_artifact
from tests.emulator.device import EmulatedDevice
from tests.emulator.trials import results

TARGET = gpu("sm_90")
SMALL: dict[str, tuple[int, ...]] = {
    "GMM": (2, 19, 12, 20),
    "C1D": (1, 14, 4, 8, 3, 2, 1),
    "C2D": (1, 7, 7, 8, 8, 3, 1, 1),
    "GRP": (1, 7, 7, 8, 8, 3, 1, 1, 2),
    "DEP": (1, 9, 9, 8, 3, 1, 1),
    "T2D": (1, 4, 4, 8, 4, 4, 2, 1),
    "NRM": (2, 17, 12),
    "SFM": (5, 50),
    "TBG": (1, 8, 2, 12),
    "MXP": (1, 9, 9, 8, 3, 2, 1),
    "GMV": (33, 40),
    "DOT": (1000,),
    "TRN": (17, 20),
}


def assessed(sketch: Sketch, point: Points) -> GpuAssessment:
    values = sketch.values(point)
    return GpuJudge(TARGET).assess(sketch.at(values), values)


def check_computes(task: Task, program: Program) -> None:
    rng = np.random.default_rng(5)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in task.inputs}
    found = results(task, arrays, text_artifact(program, TARGET), EmulatedDevice(3))
    wanted = evaluate(task, arrays)
    for t in task.outputs:
        np.testing.assert_allclose(found[t.name], wanted[t.name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_the_default_schedule_of_an_operator_computes_what_the_reference_computes(name: str) -> None:
    task = operator(name, SMALL[name])
    program = lowered(*default_point(task, TARGET))
    verify(program)
    check_computes(task, program)


@pytest.mark.parametrize("name", SMALL)
def test_launches_and_shared_memory_are_those_that_the_judge_counts(name: str) -> None:
    rng = np.random.default_rng(2)
    for sketch in sketches(operator(name, SMALL[name]), TARGET):
        for point in sketch.sample_legal(3, rng):
            phases = [phase for phase in lowered(sketch, point).phases if not phase.at_load]
            judged = {phase.root.stage.id: phase for phase in assessed(sketch, point).phases}
            for phase in phases:
                cost = judged[phase.name]
                counted = (int(cost.blocks), int(cost.threads), int(cost.shared_bytes))
                assert counted == (phase.extent, phase.threads, phase.shared_bytes), sketch.values(point)


def point_of(sketch: Sketch, **values: int) -> Points:
    """The point with these values of some knobs of stage s0; all others are 1, flags 0."""
    least = {knob.name: 0 if knob.unit == "flag" else 1 for knob in sketch.knobs}
    named = {name: values.get(name.removeprefix("s0.").replace(".", "_"), least[name]) for name in sketch.names}
    return sketch.canonical(np.array([[named[name] for name in sketch.names]], dtype=np.int64))[0]


def staged_product(n: int, m: int, k: int) -> Sketch:
    found = sketches(operator("GMM", (1, n, m, k)), TARGET)
    return next(s for s in found if [step.rule for step in s.structure.steps] == ["tile", "pack"])


TILE = {"a1_3": 4, "a1_4": 4, "a2_3": 4, "a2_4": 1, "a2_2": 2, "r0_1": 4, "unroll": 8}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", [(32, 64, 64), (21, 28, 52)])
def test_a_pipeline_of_any_depth_computes_a_product(depth: int, sizes: tuple[int, int, int]) -> None:
    sketch = staged_product(*sizes)
    program = lowered(sketch, point_of(sketch, **TILE, depth=depth))
    verify(program)
    body = list(statements(program.phases[0].body))
    copies = [s for s in body if isinstance(s, Finish) and s.tile.stage.reader is not None]
    waits = [s.pending for s in body if isinstance(s, WaitForCopies)]
    assert all(s.is_asynchronous == (depth > 1) for s in copies)
    assert waits == ([depth - 2] if depth > 1 else [])
    assert sum(isinstance(s, CommitCopies) for s in body) == (2 if depth > 1 else 0)
    assert sum(isinstance(s, Barrier) for s in body) == (1 if depth > 1 else 2)
    check_computes(sketch.task, program)


@pytest.mark.parametrize(("layout", "pieces"), [(0, 4), (1, 1), (1, 2), (1, 4)])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_operand_lies_in_shared_memory_in_either_order_and_is_copied_in_pieces(
    layout: int, pieces: int, depth: int
) -> None:
    sketch = staged_product(21, 28, 52)
    values = TILE | {"0_layout": layout, "0_pieces": pieces, "1_pieces": 2}
    program = lowered(sketch, point_of(sketch, **values, depth=depth))
    verify(program)
    copies = [s for s in statements(program.phases[0].body) if isinstance(s, Finish) and s.tile.stage.reader]
    assert {s.tile.lanes for s in copies} == {4 // pieces, 2}
    check_computes(sketch.task, program)


def test_reduce_axes_first_let_a_thread_read_its_rows_as_one_vector() -> None:
    sketch = staged_product(256, 256, 256)
    loads: list[int] = []
    for layout in (0, 1):
        program = lowered(sketch, point_of(sketch, **(TILE | {"0_layout": layout, "unroll": 1})))
        loads.append(emit_module(program, TARGET).count("= load "))
    assert loads[0] - loads[1] == 3  # four rows by one load instead of four


@pytest.mark.parametrize("group", [1, 2, 4])
def test_rows_of_blocks_are_passed_together_where_their_number_allows_it(group: int) -> None:
    sketch = staged_product(96, 64, 16)
    program = lowered(sketch, point_of(sketch, **TILE, group=group))  # 6 rows of 2 blocks
    verify(program)
    assert [n for _, n in program.phases[0].loops] == ([3, 2, 2] if group == 2 else [6, 2])
    check_computes(sketch.task, program)


def test_the_assembler_is_told_how_many_blocks_must_be_resident() -> None:
    sketch = staged_product(64, 64, 64)
    text = emit_module(lowered(sketch, point_of(sketch, **TILE, residents=3)), TARGET)
    assert '"nvvm.minctasm"="3"' in text


def wavefronts(addresses: list[int], width: int) -> int:
    """Cycles of one access of a warp in shared memory: 128 bytes of threads at a time, once for every word of the
    busiest bank.
    """
    cycles, together = 0, 128 // width
    for first in range(0, len(addresses), together):
        words = {word for a in addresses[first : first + together] for word in range(a // 4, (a + width) // 4)}
        cycles += max(Counter(word % 32 for word in words).values())
    return cycles


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize(("threads", "vectors", "block"), [(8, 1, 3), (8, 1, 4), (8, 1, 8), (4, 2, 4), (16, 4, 4)])
def test_bank_conflicts_of_the_estimate_are_those_of_the_addresses(
    layout: int, rows: int, threads: int, vectors: int, block: int
) -> None:
    sketch = staged_product(256, 256, 256)
    values = {"a1_3": 8, "a1_4": rows, "a2_3": threads, "a2_4": vectors, "r0_1": block, "unroll": 4}
    point = point_of(sketch, **values, **{"0_layout": layout})
    program = lowered(sketch, point)
    (update,) = (s for s in statements(program.phases[0].body) if isinstance(s, Update))
    (block_threads,) = (s for s in program.phases[0].body if isinstance(s, Threads))
    cost = assessed(sketch, point).phases[0].root
    for load, access in update.reads.items():
        addresses: list[int] = []
        for thread in range(32):
            digits: dict[Expr, int] = {}
            for var, n in reversed(block_threads.loops):
                digits[var], thread = thread % n, thread // n
            addresses.append(4 * sum(c * digits.get(atom, 0) for atom, c in access.outer.terms))
        ((operand, _, width),) = ((o, n, w) for o, n, w in cost.loads if o.tensor is load.tensor)
        assert cost.wavefronts(operand, width) == wavefronts(addresses, int(width)), load


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_product_is_assembled_with_wide_accesses_and_asynchronous_copies(architecture: str) -> None:
    target = gpu(architecture)
    sketch = staged_product(256, 256, 256)
    program = lowered(sketch, point_of(sketch, **TILE, depth=3))
    code = assembly(emit_module(program, target), target)
    phase = next(phase for phase in program.phases if not phase.at_load)
    assert (phase.extent, phase.threads) == (16 * 8, 16)
    assert f".target {architecture}" in code
    assert {"cp.async.cg.shared.global", "ld.shared.v4", "st.global.v4", "fma.rn.f32"} <= {
        word for word in ("cp.async.cg.shared.global", "ld.shared.v4", "st.global.v4", "fma.rn.f32") if word in code
    }
    assert ".local" not in code
    assert "div.s64" not in code


def test_the_reduction_of_a_row_is_divided_among_the_threads_of_a_block() -> None:
    task = operator("NRM", (3, 40, 50))
    sketch = next(s for s in sketches(task, TARGET) if not s.structure.splits)
    values = dict.fromkeys(sketch.names, 1) | {"s1.r0.1": 8, "s1.r1.1": 16}
    program = lowered(sketch, np.array([values[name] for name in sketch.names]))
    verify(program)
    assert program.phases[0].threads == 128
    text = emit_module(program, TARGET)
    assert text.count("llvm.nvvm.shfl.sync.bfly.f32(i32 -1") == 5
    check_computes(task, program)


def test_features_have_a_value_for_every_name_at_every_point() -> None:
    for name in ("GMM", "C2D", "SFM"):
        for sketch in sketches(operator(name, SMALL[name]), TARGET):
            points = sketch.sample_legal(4, np.random.default_rng(0))
            matrix = sketch.features(points)
            assert matrix.shape == (len(points), len(GpuJudge(TARGET).features))
            assert np.isfinite(matrix).all()
