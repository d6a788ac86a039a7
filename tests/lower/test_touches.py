"""The bytes that a phase is said to touch hold all that its code touches, iteration by iteration."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.builder.building import lowered, text_of
from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import Code, assemble
from stormdrop.device.host import detect
from stormdrop.ir.expr import NUMPY
from stormdrop.lower.program import View
from stormdrop.lower.touches import Columns, PhaseTouches, Touch, touches_of
from stormdrop.space.default import default_point
from stormdrop.space.sketch import sketches
from stormdrop.target.structures import Scope
from tests.support.drawn_graphs import draw
from tests.support.traced import KERNEL, TraceLog
from tests.support.trials import GRAPHS

SEEDS = range(GRAPHS + 2000, GRAPHS + 2016)
MOST_ITERATIONS = 200


def is_within(columns: Columns | None, begin: int, end: int, narrowed: int) -> bool:
    if columns is None:
        return True
    start = (begin - columns.begin) % columns.period
    return start + end - begin <= columns.end - columns.begin - narrowed


def untold(seed: int, narrowed: int = 0) -> list[str]:
    """Accesses of a random program that are not within what it is said to touch; `narrowed` bytes are left out of
    that.
    """
    drawn, target, rng = draw(seed, seed), detect(2), np.random.default_rng(seed)
    found = sketches(drawn.task, target)
    sketch = found[int(rng.integers(len(found)))]
    program = lowered(sketch, sketch.sample_legal(1, rng)[0])
    log = TraceLog()
    code = Code(assemble(log.instrumented(text_of(program, target)), target))
    memory = [np.zeros(b.elements * np.dtype(NUMPY[b.dtype]).itemsize + 512, np.uint8) for b in program.buffers]
    for buffer, block in zip(program.buffers, memory):
        if buffer.scope in (Scope.INPUT, Scope.CONSTANT):
            raw = np.ascontiguousarray(drawn.arrays[buffer.name]).reshape(-1).view(np.uint8)
            block[: raw.nbytes] = raw
    table = (ctypes.c_void_p * max(1, len(memory)))(*(block.ctypes.data for block in memory))
    scratch = np.zeros(program.scratch_bytes + 512, np.uint8)
    problems: list[str] = []
    for number, phase in enumerate(p for p in program.phases if not p.at_load):
        told = touches_of(phase)
        assert told.extent == phase.extent
        edges = np.arange(phase.extent + 1)
        ranges = [(t, *told.intervals(t, edges[:-1], edges[1:])) for t in told.touches]
        for i in range(min(phase.extent, MOST_ITERATIONS)):
            log.taken()
            KERNEL(code.address(ENTRY))(ctypes.addressof(table), scratch.ctypes.data, number, i, i + 1)
            for first, last, is_written in log.taken().tolist():
                for slot, block in enumerate(memory):
                    begin, end = first - block.ctypes.data, last - block.ctypes.data
                    if not 0 <= begin < block.nbytes:
                        continue
                    inside = [
                        lows[i] <= begin
                        and end <= highs[i] - narrowed
                        and is_within(touch.columns, begin, end, narrowed)
                        for touch, lows, highs in ranges
                        if (touch.slot, touch.is_written) == (slot, bool(is_written))
                    ]
                    if not any(inside):
                        problems.append(f"{program.buffers[slot]}[{begin}:{end}] in iteration {i} of {phase.name}")
    return problems


@pytest.mark.parametrize("seed", SEEDS)
def test_code_touches_nothing_else(seed: int) -> None:
    assert untold(seed) == []


def test_one_element_too_few_is_noticed() -> None:
    assert sum(bool(untold(seed, narrowed=1)) for seed in SEEDS[:5]) >= 4


def test_columns_of_a_part_of_the_channels_are_told_and_checked() -> None:
    """A wide array of which a kernel reads or writes some columns: views have other strides than the tensor."""
    x, y = sd.tensor("X", (5, 6, 24)), (sd.axis(5), sd.axis(6), sd.axis(24))
    task = sd.Task([sd.compute("Y", y, x[y] * 2.0)])
    target = detect(2)
    sketch, point = default_point(task, target)
    program = lowered(sketch, point, {"Y": View((6 * 64, 64, 1))})
    (phase,) = program.phases
    written = [t.columns for t in touches_of(phase).touches if t.is_written]
    assert written == [Columns(0, 96, 256)]


def test_columns_meet_where_they_have_a_byte_in_common() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        period = int(rng.integers(2, 12))
        one, two = (Columns(b, b + int(rng.integers(1, period)), period) for b in rng.integers(0, period, 2).tolist())
        offsets = rng.integers(0, 40, 2).tolist()
        sets = [{(b + o) % period for b in range(c.begin, c.end)} for c, o in zip((one, two), offsets)]
        assert one.meets(offsets[0], two, offsets[1]) == bool(sets[0] & sets[1])
    assert Columns(0, 1, 8).meets(0, Columns(4, 5, 16), 0)


def test_ranges_of_iterations_touch_what_their_iterations_touch() -> None:
    touch = Touch(0, True, -4, 8, (100, -8))
    phase = PhaseTouches((3, 4), (touch,))
    begins, ends = np.array([0, 0, 3, 5, 4, 11]), np.array([1, 4, 5, 5, 12, 12])
    lows, highs = phase.intervals(touch, np.array([0, 4, 8]), np.array([4, 8, 12]))
    assert lows.tolist() == [-28, 72, 172]
    assert highs.tolist() == [8, 108, 208]
    for begin, end in zip(begins, ends):
        lows, highs = phase.intervals(touch, np.array([begin]), np.array([end]))
        places = [100 * (i // 4) - 8 * (i % 4) for i in range(begin, end)]
        wanted = (min(places) - 4, max(places) + 8) if places else (0, 0)
        assert (int(lows[0]), int(highs[0])) == wanted
