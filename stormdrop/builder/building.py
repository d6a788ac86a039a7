"""From a schedule to an artifact: resolve it to a point, lower the point, emit LLVM IR, assemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stormdrop.base.errors import UserError
from stormdrop.builder.grouping import PhaseSummary, summaries_of
from stormdrop.codegen.emit import emit
from stormdrop.codegen.fingerprint import fingerprint, has_fingerprint
from stormdrop.codegen.gpu import emit_module, emit_prepare
from stormdrop.codegen.llvm import assemble, assembly
from stormdrop.device.artifact import Artifact, BufferSpec, Launch
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.lower.lower import lower
from stormdrop.lower.packed_layout import PackedLayout, layout_of, sharing_point
from stormdrop.lower.program import Program, View, buffers_of
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import Cpu
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

Views = Mapping[str, View]
"""The memory layout of run-time inputs and outputs that are not row-major, by name."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Layouts in which other models hold a kernel's constants, and whether there is memory for an own layout."""

    known: tuple[PackedLayout, ...] = ()
    may_own: bool = True


def program_of(
    task: Task, schedule: Schedule | None, target: Target, views: Views | None = None, rules: Sequence[Rule] = RULES
) -> Program:
    """Returns the loop program of a schedule for this task, re-fitted if it came from another shape; None: of the
    default.
    """
    return lowered(*resolve(task, schedule, target, rules), views)


def lowered(sketch: Sketch, point: Sequence[int] | Points, views: Views | None = None) -> Program:
    """Returns the loop program of one point."""
    values = sketch.values(point)
    return lower(sketch.task, sketch.at(values), sketch.tilings(values), views)


def text_of(program: Program, target: Target) -> str:
    """Returns a program as LLVM IR; for a GPU, without its load-time phases."""
    return emit_module(program, target) if isinstance(target, Gpu) else emit(program, target)


class CodeText(str):
    """Code for people: a prompt and a notebook show its lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def code_text(program: Program, target: Target, level: str) -> CodeText:
    """Returns a program as text: the "loops", the LLVM "ir" or the "asm". Raises UserError, BuildError."""
    match level:
        case "loops":
            return CodeText(program)
        case "ir":
            return CodeText(text_of(program, target))
        case "asm":
            return CodeText(assembly(text_of(program, target), target))
        case _:
            raise UserError(f"code is shown as 'loops', 'ir' or 'asm', not as {level!r:.60}")


def code_from(text: str, target: Target) -> bytes:
    """Returns machine code of LLVM IR; for a GPU, PTX if there is no assembler but a driver. Raises BuildError."""
    if isinstance(target, Gpu):
        from stormdrop.device.cuda.assembler import machine_code

        return machine_code(assembly(text, target), target.architecture)
    return assemble(text, target)


def artifact_of(program: Program, target: Target) -> Artifact:
    """Compiles a program to an artifact. Raises BuildError."""
    return described(program, code_from(text_of(program, target), target))


def described(program: Program, code: bytes) -> Artifact:
    """Returns the artifact of a program with the given machine code; for a GPU, code of the call phases alone."""
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
    """Returns machine code of the load-time phases of a GPU's program, for this machine."""
    host = detect(1)
    prepare = emit_prepare(program, host)
    return b"" if prepare is None else assemble(prepare, host)


def build_artifact(
    task: Task, schedule: Schedule | None, target: Target, views: Views | None = None, rules: Sequence[Rule] = RULES
) -> Artifact:
    """Compiles a schedule to machine code; None: the default schedule. Raises ScheduleError, BuildError."""
    return artifact_of(program_of(task, schedule, target, views, rules), target)


def code_of(task: Task, schedule: Schedule, target: Target, rules: Sequence[Rule] = RULES) -> str:
    """Returns the fingerprint of a schedule's LLVM IR, for row-major arrays."""
    return fingerprint(text_of(program_of(task, schedule, target, rules=rules), target))


Deviation = Literal["", "fitted", "shared", "default"]
"""The difference between the built and the given schedule. Empty: none, or no schedule was given. Fitted: its values
are no legal point for the task, and were moved to a legal point. Shared: it was replaced by a schedule that packs
constants as other models do. Default: it could not be replayed.
"""


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel of a model."""

    artifact: Artifact
    is_changed: bool = False
    """Its schedule's code has another fingerprint than was expected."""
    layout: PackedLayout | None = None
    """The layout of its constants, if they are shared."""
    phases: tuple[PhaseSummary, ...] = ()
    """The phases of a call, if requested; empty for a GPU, and unnecessary for one thread."""
    deviation: Deviation = ""
    """The difference between the built and the given schedule."""


def build_for_model(
    task: Task,
    schedule: Schedule | None,
    target: Target,
    views: Views | None = None,
    rules: Sequence[Rule] = RULES,
    code: str | None = None,
    packing: Packing | None = None,
    summarise: bool = False,
) -> BuiltKernel:
    """Builds a kernel as `build_artifact` does. `code` is the expected fingerprint of the code for row-major arrays.

    With `packing`, constants are packed as in other models if that costs little. `summarise` adds summaries of the
    phases.
    """
    if packing is None:
        sketch, point = resolve(task, schedule, target, rules)
    else:
        sketch, point = sharing_point(task, schedule, target, rules, packing.known, packing.may_own)
    layout = layout_of(sketch, point) if packing is not None else None
    deviation: Deviation = ""
    if schedule is not None:
        own = resolve(task, schedule, target, rules) if packing is not None else (sketch, point)
        if layout is not None and layout != layout_of(*own):
            deviation, code = "shared", None
        elif own[0].schedule(own[1]).by_name != schedule.by_name:
            deviation = "fitted"
    program = lowered(sketch, point, views)
    text = text_of(program, target)
    is_same = True
    if schedule is not None and code is not None:
        is_same = has_fingerprint(text_of(lowered(sketch, point), target) if views else text, code)
    phases: tuple[PhaseSummary, ...] = ()
    if summarise and isinstance(target, Cpu) and target.threads > 1:
        phases = summaries_of(program, sketch, point, target)
    return BuiltKernel(described(program, code_from(text, target)), not is_same, layout, phases, deviation)
