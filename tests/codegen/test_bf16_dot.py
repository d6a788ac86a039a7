"""Dot products of bf16: pairs along k, summed in f32 by one instruction where the machine has it."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from stormdrop.base.errors import BuildError
from stormdrop.builder.building import program_of
from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import assemble
from stormdrop.device.host import detect
from stormdrop.model.kernel import build as kernel_of
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import cross
from stormdrop.target.machine import target_from_json
from stormdrop.target.microkernels import BF16_DOT
from tests.support import crew
from tests.support.trials import Given

BF16 = np.dtype(ml_dtypes.bfloat16)
WITH_DOT = replace(cross("avx512"), cpu="znver4", has_bf16_dot=True)
INSTRUCTION = "llvm.x86.avx512bf16.dpbf16ps.512"
needs_instruction = pytest.mark.skipif(not detect().has_bf16_dot, reason="this CPU has no AVX512_BF16")


def test_every_sketch_of_a_product_of_bf16_uses_the_instruction_where_there_is_one() -> None:
    task = build("GMM", (1, 64, 96, 128), "bf16")
    assert BF16_DOT in WITH_DOT.microkernels
    for sketch in sketches(task, WITH_DOT):
        assert any(step.rule == "dot" for step in sketch.structure.steps)
    text = emit(program_of(task, None, WITH_DOT), WITH_DOT)
    assert INSTRUCTION in text
    assert assemble(text, WITH_DOT)


def test_products_of_f32_and_other_machines_are_as_before() -> None:
    for dtype, target in (("f32", WITH_DOT), ("bf16", cross("avx512")), ("bf16", cross("neon"))):
        task = build("GMM", (1, 64, 96, 128), dtype)  # type: ignore[arg-type]
        assert all(step.rule != "dot" for sketch in sketches(task, target) for step in sketch.structure.steps)


def test_pairs_of_a_row_are_one_load_in_the_innermost_loop() -> None:
    task = build("GMM", (1, 64, 96, 128), "bf16")
    program = program_of(task, None, WITH_DOT)
    kernel = next(f for f in emit(program, WITH_DOT).split("define internal void") if INSTRUCTION in f)
    assert "load i16" not in kernel


def test_a_machine_without_the_instruction_says_so() -> None:
    task = build("GMM", (1, 8, 32, 16), "bf16")
    schedule = default_schedule(task, WITH_DOT)
    with pytest.raises(BuildError, match="no dot products of bf16"):
        emit(program_of(task, schedule, cross("avx512")), cross("avx512"))


def test_the_instruction_is_a_field_of_the_target_that_older_files_do_not_have() -> None:
    assert target_from_json(WITH_DOT.to_json()) == WITH_DOT
    older = {name: value for name, value in WITH_DOT.to_json().items() if name != "has_bf16_dot"}
    assert target_from_json(older) == replace(WITH_DOT, has_bf16_dot=False)
    assert not WITH_DOT.with_isa("avx2").has_bf16_dot


@needs_instruction
@pytest.mark.parametrize("name", ["GMM", "DEN"])
@pytest.mark.parametrize("shape", [(1, 5, 37, 300), (1, 33, 17, 31), (2, 3, 64, 1), (1, 1, 100, 77)])
def test_random_points_are_within_the_bound_of_sums_in_f32(name: str, shape: tuple[int, ...]) -> None:
    """Products of bf16 are exact, every sum is rounded to f32: odd and even k, one row and many."""
    outcome = crew.check([Given(f"dot {name} {shape}", build(name, shape, "bf16"), points=12)])
    assert outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


@needs_instruction
def test_denormal_products_count_as_zero_and_infinities_as_they_are() -> None:
    task = build("GMM", (1, 2, 32, 4), "bf16")
    x, w = np.zeros((1, 2, 4), BF16), np.zeros((1, 4, 32), BF16)
    x[0, 0], w[0, :, 0] = 2.0**-70, 2.0**-70  # products of 2⁻¹⁴⁰ are denormal in f32
    x[0, 1, 1], w[0, 1, 5] = np.inf, 2.0
    y = kernel_of(task, constants={t.name: w for t in task.constants})(x)
    assert y[0, 0, 0] == 0.0
    assert y[0, 1, 5] == np.inf
    assert np.isnan(y[0, 1, 6])  # infinity times zero
