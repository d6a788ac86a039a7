"""While a block of packed constants is used, the next block is prefetched: every line of it once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.builder.building import lowered
from stormdrop.codegen.emit import emit
from stormdrop.ir.expr import ARITHMETIC, Bin, Cmp, Const, Expr, Select, Var
from stormdrop.lower.prefetch import LEAST_BYTES, with_prefetches
from stormdrop.lower.program import For, If, Prefetch, Program, ReduceLoop, Stmt, Update, statements
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_point
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.cpu import cross
from stormdrop.target.gpu import gpu

TARGET = cross("avx512").with_threads(2)


def product(rows: int, columns: int, inner: int) -> sd.Task:
    a, b = sd.tensor("A", (rows, inner)), sd.tensor("W", (inner, columns), constant=True)
    i, j, k = sd.axis(rows), sd.axis(columns), sd.reduce_axis(inner)
    return sd.Task([sd.compute("Y", (i, j), sd.sum(a[i, k] * b[k, j], k))])


def value(e: Expr, at: Mapping[Var, int]) -> int:
    """Of index arithmetic."""
    match e:
        case Const(constant):
            return int(constant)
        case Var():
            return at[e]
        case Bin(op, a, b):
            return int(ARITHMETIC[op](value(a, at), value(b, at)))
        case Cmp(op, a, b):
            return int(ARITHMETIC[op](value(a, at), value(b, at)))
        case Select(condition, a, b):
            return value(a if value(condition, at) else b, at)
        case _:
            raise AssertionError(e)


def runs(body: tuple[Stmt, ...], at: dict[Var, int]) -> Iterator[tuple[Prefetch, dict[Var, int]]]:
    """Every run of an innermost loop that prefetches, with the variables of the loops around it."""
    for s in body:
        match s:
            case For():
                for k in range(value(s.trips, at)):
                    yield from runs(s.body, {**at, s.var: k})
            case If():
                yield from runs(s.then if value(s.condition, at) else s.orelse, at)
            case ReduceLoop(body=(Update(),)):
                yield from ((p, at) for p in s.prefetches)
            case ReduceLoop():
                yield from runs(s.body, at)
            case _:
                pass


def points(task: sd.Task, count: int) -> Iterator[tuple[Sketch, Program]]:
    rng = np.random.default_rng(0)
    for sketch in sketches(task, TARGET):
        for point in sketch.sample_legal(count, rng):
            yield sketch, with_prefetches(lowered(sketch, point), 0)


def prefetches(program: Program) -> list[Prefetch]:
    found = [s for phase in program.phases for s in statements(phase.body) if isinstance(s, ReduceLoop)]
    return [p for loop in found for p in loop.prefetches]


@pytest.mark.parametrize("task", [product(24, 96, 64), product(30, 80, 100), build("C2D", (1, 6, 6, 32, 48, 3, 1, 1))])
def test_the_next_block_is_prefetched_and_each_use_has_its_share(task: sd.Task) -> None:
    seen = 0
    for _, program in points(task, 30):
        for phase in program.phases:
            unit = {var: 0 for var, _ in phase.loops}
            if phase.at_load or not any(isinstance(s, ReduceLoop) and s.prefetches for s in statements(phase.body)):
                continue
            found = [(p, value(p.access.outer.expr(), at), at) for p, at in runs(phase.body, unit)]
            blocks = [list(group) for _, group in groupby(found, key=lambda run: run[1])]
            starts = [group[0][1] for group in blocks]
            for number, group in enumerate(blocks[:-1]):
                if starts[number] in starts[:number] or starts[number + 1] in starts[: number + 1]:
                    continue  # the blocks are gone through once more: they are in the cache
                seen += 1
                assert {start + value(p.distance, at) for p, start, at in group} == {starts[number + 1]}
                uses = sorted(value(p.use.expr(), at) for p, _, at in group)
                assert uses == sorted(set(uses)), "two uses fetch the same lines"
                assert uses[-1] < group[0][0].uses
    assert seen > 50


def test_a_block_that_was_fetched_before_is_not_fetched_again() -> None:
    again = 0
    for _, program in points(product(64, 64, 64), 60):
        for phase in program.phases:
            for p, at in runs(phase.body, {var: 0 for var, _ in phase.loops}):
                serial = [var for var in at if var not in dict(phase.loops)]
                outer = [v for v in serial if not p.access.outer.coefficient(v) and not p.use.coefficient(v)]
                if any(at[var] for var in outer):
                    again += 1
                    assert value(p.distance, at) == 0
    assert again


def test_each_trip_prefetches_its_share_of_the_lines() -> None:
    written = 0
    for _, program in points(product(24, 96, 64), 20):
        most = 0
        for phase in program.phases:
            for loop in (s for s in statements(phase.body) if isinstance(s, ReduceLoop)):
                lines = loop.unroll * loop.tile.chunks, loop.tile.chunks  # of a trip, and of a remaining step
                most += sum(-(-n // p.uses) for p in loop.prefetches for n in lines)
        count = emit(program, TARGET).count("call void @llvm.prefetch")
        assert count <= most
        written += count
    assert written


def test_only_large_constants_of_a_cpu_are_prefetched() -> None:
    small, large = product(256, 256, 512), product(256, 1024, 1024)
    for task, wanted in ((small, False), (large, True)):
        nbytes = sum(t.nbytes for t in task.constants)
        assert (nbytes >= LEAST_BYTES) == wanted
        sketch, point = default_point(task, TARGET)
        assert bool(prefetches(lowered(sketch, point))) == wanted
    sketch, point = default_point(large, gpu())
    assert not prefetches(lowered(sketch, point))
