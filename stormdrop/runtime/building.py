"""From a schedule to an artifact: resolve it to a point, lower the point, emit LLVM IR, assemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stormdrop.codegen import gpu
from stormdrop.codegen.emit import emit
from stormdrop.codegen.fingerprint import fingerprint, has_fingerprint
from stormdrop.codegen.llvm import AnyOf, assemble, host
from stormdrop.ir.tensor import Task
from stormdrop.lower.lower import lower
from stormdrop.lower.program import Program, View, buffers_of
from stormdrop.runtime.artifact import Artifact, BufferSpec, Launch
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import ISAS, Cpu, cross
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
    """The LLVM module of a program. A GPU's has no load-time phases."""
    match target:
        case Cpu():
            return emit(program, target)
        case Gpu():
            return gpu.build(program, target)[0]


def artifact_of(program: Program, target: Target) -> Artifact:
    """Machine code for a program. Raises BuildError."""
    return _assembled(program, text_of(program, target), target)


def _assembled(program: Program, text: str, target: Target) -> Artifact:
    match target:
        case Cpu():
            return described(program, assemble(text, target))
        case Gpu():
            from stormdrop.runtime.cuda.assembler import machine_code

            return described(program, machine_code(gpu.ptx(text, target), target.architecture))


def described(program: Program, code: bytes) -> Artifact:
    """The artifact of a program whose machine code is given: that of the call phases alone, for a GPU."""
    used = {b for p in program.phases if not p.at_load for b in buffers_of(p)}
    calls = [p for p in program.phases if not p.at_load]
    is_gpu = any(p.threads for p in calls)
    return Artifact(
        code,
        tuple(BufferSpec(b.name, b.dtype, b.scope, b.elements, b in used) for b in program.buffers),
        tuple(p.extent for p in calls),
        tuple(p.extent for p in program.phases if p.at_load),
        program.scratch_bytes,
        tuple(Launch(p.extent, p.threads, p.shared_bytes) for p in calls) if is_gpu else (),
        _host_code(program) if is_gpu else b"",
    )


def _host_code(program: Program) -> bytes:
    """The load-time phases of a GPU's program, for any machine of this one's architecture."""
    triple = AnyOf(host()[0])
    isa = ISAS["neon" if triple.triple.startswith(("aarch64", "arm64")) else "sse"]
    text = gpu.emit_prepare(program, replace(cross(isa.name), triple=triple.triple))
    return assemble(text, replace(triple, cpu=isa.cpu)) if text is not None else b""


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
    return _assembled(program, text, target), has_fingerprint(plain, code)
