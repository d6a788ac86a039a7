"""Matrix products by matrix instructions, in the emulator: within the bounds of their precision, without a race."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from stormdrop.base.errors import BuildError
from stormdrop.builder.building import program_of
from stormdrop.codegen.llvm import assembly
from stormdrop.ir.interp import evaluate, magnitude
from stormdrop.lower.executed import executed_flops
from stormdrop.lower.program import Program, Update, statements
from stormdrop.lower.verify_program import verify
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.accuracy import EPS, error_bound
from stormdrop.target.gpu import gpu
from stormdrop.target.microkernels import MATRIX_KERNELS, Precision
from tests.emulator.building import text_artifact
from tests.emulator.device import EmulatedDevice
from tests.emulator.mutate import HARMFUL, mutations
from tests.emulator.test_ptx import assembled, needs_assembler
from tests.emulator.trials import MatrixTrial, emulated, results
from tests.support.tasks import DRAWN
from tests.support.trials import Case, Given

OPERATORS: dict[Precision, tuple[str, ...]] = {
    "tf32": ("GMM", "C2D", "TBG"),
    "3xtf32": ("GMM",),
    "bf16": ("GMM", "C1D", "TBG"),
    "fp16": ("GMM", "DIL"),
}


@pytest.mark.parametrize("precision", MATRIX_KERNELS)
def test_every_point_is_within_the_bounds_of_its_precision(precision: Precision) -> None:
    for name in OPERATORS[precision]:
        found = list(MatrixTrial(DRAWN.index(name), precision=precision).cases())
        assert found, f"no sketch of {name} uses matrix instructions"
        for case in found:
            problem = emulated(case)
            assert not problem, f"{problem}\n{case}"


@pytest.mark.parametrize("mistake", ["swapped fragments", "next row of a matrix", "dropped barrier", "dropped wait"])
def test_mistakes_in_matrix_products_are_noticed(mistake: str) -> None:
    case = pipelined_product()
    assert not emulated(case, seed=1)
    text = text_artifact(case.program(), case.target).code.decode()
    found = list(mutations(text, {mistake: HARMFUL[mistake]}))[:3]
    assert found
    for mutation in found:
        assert emulated(case, lambda _, text=mutation.text: text, seed=1), str(mutation)


def pipelined_product() -> Case:
    """Two warps with 16 rows and 16 columns each, four reduce blocks of which two are in flight."""
    subject = Given("product", build("GMM", (1, 32, 16, 64)))
    target = gpu().with_precision("bf16")
    sketch = next(s for s in sketches(subject.task, target) if "root" in s.structure.steps[-1].args)
    values = {k.name: k.choices[0] for k in sketch.knobs}
    values |= {"s0.a1.2": 2, "s0.a1.3": 2, "s0.a2.3": 2, "s0.depth": 3}
    values |= {"s0.0r.a1.2": 4, "s0.0r.a2.2": 16}
    point = sketch.canonical(np.array([[values[name] for name in sketch.names]]))
    assert sketch.values(point[0]) == values
    assert sketch.legal(point).all()
    return Case(subject, 0, sketch, tuple(int(x) for x in point[0]), {})


def test_three_products_of_tf32_are_about_as_exact_as_f32() -> None:
    task = build("GMM", (1, 24, 16, 400))
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in task.inputs}
    wanted, scale = evaluate(task, arrays, 0, "f64")["Y"], magnitude(task, arrays, 0)["Y"]
    errors: dict[str, float] = {}
    for precision in MATRIX_KERNELS:
        target = gpu().with_precision(precision)
        sketch = next(s for s in sketches(task, target) if "mma" in [step.rule for step in s.structure.steps])
        point = sketch.sample_legal(1, rng)[0]
        program = program_of(task, sketch.schedule(point), target)
        found = results(task, arrays, text_artifact(program, target), EmulatedDevice(1))["Y"]
        errors[precision] = float((np.abs(found - wanted) / scale).max()) / EPS
        assert errors[precision] <= error_bound(task.variants[0], target)
    assert errors["3xtf32"] < 2.0
    assert errors["tf32"] > 100 * errors["3xtf32"]
    assert errors["bf16"] > 2 * errors["tf32"]


def test_products_of_f32_use_no_matrix_instructions_unless_they_are_asked_for() -> None:
    task = build("GMM", (1, 64, 64, 64))
    assert not any(step.rule == "mma" for s in sketches(task, gpu()) for step in s.structure.steps)
    schedule = default_schedule(task, gpu().with_precision("bf16"))
    assert any(step.rule == "mma" for step in schedule.steps)
    for other in (gpu(), gpu().with_precision("tf32")):
        with pytest.raises(BuildError, match="mma bf16"):
            text_artifact(program_of(task, schedule, other), other)


def test_products_inside_winograds_transforms_stay_f32() -> None:
    from stormdrop.compiler.compile import tasks_of
    from stormdrop.frontend.onnx import load
    from stormdrop.zoo.builder import NetworkBuilder
    from stormdrop.zoo.export import model

    net = NetworkBuilder("layer", batch=1, opset=18)
    image = net.input("x", (32, 14, 14))
    proto = model(net.finish(net.conv(image, "conv", 32, 3, pad=1, bias=False)), seed=0)
    tasks = [call.task for call in tasks_of(load(proto.SerializeToString())).calls]
    (task,) = (task for task in tasks if len(task.variants) > 1)
    found = sketches(task, gpu().with_precision("tf32"))
    variants = {s.variant for s in found if any(step.rule == "mma" for step in s.structure.steps)}
    assert variants == {0}


# ---- code ------------------------------------------------------------------------------------------------------------


@cache
def default(precision: Precision, architecture: str) -> tuple[Program, str]:
    target = gpu(architecture).with_precision(precision)
    program = program_of(build("GMM", (1, 1024, 1024, 1024)), None, target)
    return program, assembly(text_artifact(program, target).code.decode(), target)


@pytest.mark.parametrize("precision", MATRIX_KERNELS)
def test_default_schedules_are_pipelines_of_matrix_instructions(precision: Precision) -> None:
    program, code = default(precision, "sm_90")
    verify(program)
    kind = {"tf32": "tf32", "3xtf32": "tf32", "bf16": "bf16", "fp16": "f16"}[precision]
    assert re.search(rf"mma\.sync\.aligned\.m16n8k\d+\.row\.col\.f32\.{kind}\.{kind}\.f32", code)
    assert "ldmatrix.sync.aligned.m8n8.x4.shared" in code
    assert re.search(r"cp\.async\.cg\.shared\.global \S+, \S+, 16", code)
    assert ".local" not in code


@needs_assembler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("precision", MATRIX_KERNELS)
def test_default_schedules_spill_no_registers(precision: Precision, architecture: str) -> None:
    cubin = assembled(default(precision, architecture)[1], architecture)
    assert set(cubin.spilled_bytes.values()) == {0}


def test_a_step_counts_the_operations_of_all_its_positions() -> None:
    program, _ = default("tf32", "sm_90")
    updates = [s for phase in program.phases for s in statements(phase.body) if isinstance(s, Update)]
    assert [u.depth for u in updates] == [8]
    assert executed_flops(program) >= 2 * 1024**3
