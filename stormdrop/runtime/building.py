"""From a schedule to an artifact: resolve it to a point, lower the point, emit LLVM IR, assemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import assemble
from stormdrop.ir.tensor import Task
from stormdrop.lower.lower import lower
from stormdrop.lower.program import Program, View, buffers_of
from stormdrop.runtime.artifact import Artifact, BufferSpec
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch
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


def artifact_of(program: Program, target: Target) -> Artifact:
    """Machine code for a program. Raises BuildError."""
    return described(program, assemble(emit(program, target), target))


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
