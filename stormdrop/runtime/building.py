"""From a schedule to an artifact: resolve it to a point, lower the point, emit LLVM IR, assemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stormdrop.codegen.emit import emit
from stormdrop.codegen.fingerprint import fingerprint, has_fingerprint
from stormdrop.codegen.gpu import build as build_module
from stormdrop.codegen.gpu import emit_prepare
from stormdrop.codegen.llvm import assemble, assembly
from stormdrop.ir.tensor import Task
from stormdrop.lower.lower import lower
from stormdrop.lower.program import Program, View, buffers_of
from stormdrop.runtime.artifact import Artifact, BufferSpec, Launch
from stormdrop.runtime.host import detect
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

Views = Mapping[str, View]
"""The memory layout of run-time inputs and outputs that are not row-major, by name."""


def program_of(
    task: Task, schedule: Schedule | None, target: Target, views: Views | None = None, rules: Sequence[Rule] = RULES
) -> Program:
    """The loop program of a schedule for this task, re-fitted if it came from another shape; None: of the default."""
    return lowered(*resolve(task, schedule, target, rules), views)


def lowered(sketch: Sketch, point: Sequence[int] | Points, views: Views | None = None) -> Program:
    """The loop program of one point."""
    values = sketch.values(point)
    return lower(sketch.task, sketch.at(values), sketch.tilings(values), views)


def text_of(program: Program, target: Target) -> str:
    """A program as LLVM IR: for a GPU, without its load-time phases."""
    return build_module(program, target)[0] if isinstance(target, Gpu) else emit(program, target)


def code_from(text: str, target: Target) -> bytes:
    """Machine code of LLVM IR; for a GPU, PTX where there is no assembler but a driver. Raises BuildError."""
    if isinstance(target, Gpu):
        from stormdrop.runtime.cuda.assembler import machine_code

        return machine_code(assembly(text, target), target.architecture)
    return assemble(text, target)


def artifact_of(program: Program, target: Target) -> Artifact:
    """Machine code for a program. Raises BuildError."""
    return _artifact(program, text_of(program, target), target)


def _artifact(program: Program, text: str, target: Target) -> Artifact:
    """The artifact of a program whose LLVM IR is given."""
    artifact = described(program, code_from(text, target))
    if not isinstance(target, Gpu):
        return artifact
    host = detect(1)
    prepare = emit_prepare(program, host)
    launches = tuple(Launch(p.extent, p.threads, p.shared_bytes) for p in program.phases if not p.at_load)
    return replace(artifact, launches=launches, prepare_code=b"" if prepare is None else assemble(prepare, host))


def described(program: Program, code: bytes) -> Artifact:
    """The artifact of a program whose machine code is given."""
    used = {b for p in program.phases if not p.at_load for b in buffers_of(p)}
    return Artifact(
        code,
        tuple(BufferSpec(b.name, b.dtype, b.scope, b.elements, b in used) for b in program.buffers),
        tuple(p.extent for p in program.phases if not p.at_load),
        tuple(p.extent for p in program.phases if p.at_load),
        program.scratch_bytes,
    )


def build_artifact(
    task: Task, schedule: Schedule | None, target: Target, views: Views | None = None, rules: Sequence[Rule] = RULES
) -> Artifact:
    """From a schedule to machine code; None: the default schedule. Raises ScheduleError, BuildError."""
    return artifact_of(program_of(task, schedule, target, views, rules), target)


def code_of(task: Task, schedule: Schedule, target: Target, rules: Sequence[Rule] = RULES) -> str:
    """The fingerprint of a schedule's LLVM IR, for row-major arrays."""
    return fingerprint(text_of(program_of(task, schedule, target, rules=rules), target))


def build_compared(
    task: Task, schedule: Schedule, target: Target, code: str, views: Views | None = None, rules: Sequence[Rule] = RULES
) -> tuple[Artifact, bool]:
    """As `build_artifact`, and whether the schedule's code for row-major arrays has the fingerprint `code`."""
    program = program_of(task, schedule, target, views, rules)
    text = text_of(program, target)
    plain = text_of(program_of(task, schedule, target, rules=rules), target) if views else text
    return _artifact(program, text, target), has_fingerprint(plain, code)
