"""Machine code for machines that are not here: everything assembles, and the matrix product's inner loop is what it
should be.
"""

from __future__ import annotations

import platform
import re
from functools import cache

import numpy as np
import pytest

from stormdrop.builder.building import program_of
from stormdrop.codegen.emit import ENTRY, emit
from stormdrop.codegen.llvm import _global_symbols, assemble, assembly
from stormdrop.ir.expr import Dtype, binary, call
from stormdrop.ir.tensor import Task, axis, compute, tensor
from stormdrop.lower.lower import lower
from stormdrop.operators.catalogue import OPERATORS, build
from stormdrop.space.default import default_schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target
from tests.support.tasks import random_task

POINTS = 20
SHAPES = 4
FEW_POINTS_OF_WORK = 20_000
ARM = ("neon", "sve512")


@pytest.mark.parametrize("isa", ARM)
@pytest.mark.parametrize("name", OPERATORS)
def test_random_points_of_every_operator_assemble_and_need_nothing_else(
    name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points of all sketches in turn, at a few shapes; nothing is called that LLVM would have to find elsewhere."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")  # objects of other machines are not looked into
    rng = np.random.default_rng([list(OPERATORS).index(name), ARM.index(isa)])
    target = cross(isa)
    for k in range(SHAPES):
        task = random_task(name, rng, "f64" if k == SHAPES - 1 else "f32", most=FEW_POINTS_OF_WORK)
        found = sketches(task, target)
        for n in range(POINTS // SHAPES):
            sketch = found[(k * POINTS // SHAPES + n) % len(found)]
            values = sketch.values(sketch.sample_legal(1, rng)[0])
            code = assemble(emit(lower(task, sketch.at(values), sketch.tilings(values)), target), target)
            defined, needed = _global_symbols(code)
            assert ENTRY in defined
            assert not needed


@pytest.mark.parametrize("isa", ARM)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_powers_remainders_and_sines_assemble_and_need_nothing_else(
    dtype: Dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are the functions with routines of their own."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    target = cross(isa)
    x, y, i = tensor("X", (100,), dtype), tensor("Y", (100,), dtype), axis(100)
    bodies = [binary("pow", x[i], y[i])]
    if dtype in ("f32", "f64"):
        bodies += [binary("fmod", x[i], y[i]), x[i] % y[i], call("sin", x[i]) + call("cos", y[i])]
    for body in bodies:
        task = Task([compute("Z", i, body)])
        code = assemble(emit(program_of(task, default_schedule(task, target), target), target), target)
        assert not _global_symbols(code)[1]


# ---- the inner loop of a matrix product -------------------------------------------------------------------------

FMA = re.compile(r"v?fn?m(la|ls|add)")
LOAD = {"arm": re.compile(r"ld"), "x86": re.compile(r"v?(mov[ua]p[sd]|movs[sd]|broadcast)")}
COUNTING = {
    "arm": re.compile(r"(add|sub|subs|cmp|b\.|cbn?z|mov$)"),
    "x86": re.compile(r"(add|sub|inc|dec|cmp|test|lea|j)"),
}
PREFETCH = re.compile(r"prefetch|prfm")
STACK = {"arm": re.compile(r"\[sp\b"), "x86": re.compile(r"\(%rsp")}


@cache
def inner_loop(isa: str) -> tuple[tuple[str, str], ...]:
    """The basic block with most multiply-adds of GMM 512³ by the default schedule: (mnemonic, operands) of each
    instruction.
    """
    target: Target = cross(isa).with_threads(2)
    task = build("GMM", [1, 512, 512, 512])
    text = assembly(emit(program_of(task, default_schedule(task, target), target), target), target)
    blocks: list[list[tuple[str, str]]] = [[]]
    for line in text.splitlines():
        code = re.split(r"//|#[^-\d]", line)[0].strip()
        if not code or (code.startswith(".") and not code.endswith(":")):
            continue
        if code.endswith(":"):
            blocks.append([])
            continue
        mnemonic, _, operands = code.partition("\t")
        blocks[-1].append((mnemonic, operands))
        if re.match(r"(b|b\..*|cbn?z|tbn?z|ret|j\w+)$", mnemonic):
            blocks.append([])
    return tuple(max(blocks, key=lambda block: sum(FMA.match(m) is not None for m, _ in block)))


def family(isa: str) -> str:
    return "arm" if isa in ARM else "x86"


@pytest.mark.parametrize("isa", [*ARM, "avx512", "avx2"])
def test_the_inner_loop_is_a_loop_of_multiply_adds_that_spills_nothing(isa: str) -> None:
    block = inner_loop(isa)
    assert sum(FMA.match(m) is not None for m, _ in block) >= 16, block
    assert re.match(r"b\.|cbn?z|j", block[-1][0]), block[-1]
    touching = [" ".join(i) for i in block if STACK[family(isa)].search(i[1])]
    assert not touching, touching
    stores = [" ".join(i) for i in block if i[0].startswith("st") or (re.match(r"v?mov", i[0]) and i[1].endswith(")"))]
    assert not stores, stores


@pytest.mark.parametrize("isa", [*ARM, "avx512", "avx2"])
def test_the_inner_loop_is_four_fifths_multiply_adds_and_loads(isa: str) -> None:
    block = inner_loop(isa)
    useful = [m for m, _ in block if FMA.match(m) or LOAD[family(isa)].match(m)]
    assert len(useful) >= 0.8 * len(block), f"{len(useful)} of {len(block)}"


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_the_inner_loop_on_x86_does_nothing_else_but_count(isa: str) -> None:
    rest = [i for i in inner_loop(isa) if not (FMA.match(i[0]) or LOAD["x86"].match(i[0]) or PREFETCH.match(i[0]))]
    assert all(COUNTING["x86"].match(m) for m, _ in rest), rest
    assert len(rest) <= 5, rest  # two pointers, the counter, its test, the jump


@pytest.mark.parametrize("isa", [*ARM, "avx512", "avx2"])
def test_a_trip_of_the_inner_loop_prefetches_one_line(isa: str) -> None:
    """It reads several: many tiles share a block of constants, and so the prefetches of the next one."""
    assert sum(PREFETCH.match(name) is not None for name, _ in inner_loop(isa)) == 1


@pytest.mark.parametrize("isa", ARM)
def test_the_inner_loop_on_arm_does_nothing_else_but_count_and_advance(isa: str) -> None:
    rest = [i for i in inner_loop(isa) if not (FMA.match(i[0]) or LOAD["arm"].match(i[0]) or PREFETCH.match(i[0]))]
    assert all(COUNTING["arm"].match(m) for m, _ in rest), rest
