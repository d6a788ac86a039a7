"""A verdict: tuning's decision for a task on a machine at a temperature. `compile` uses verdicts, never lone trials.

    Verdict ──verdict_row──▶ VerdictRow ──▶ a row of the table `verdict`
    VerdictRow ──verdict_of──▶ Verdict

A verdict always names a concrete schedule, also if the default schedule stays. The newest verdict of its key (task,
machine, temperature, model) holds, by row id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from stormdrop.ir.tensor import Task
from stormdrop.space.schedule import Schedule
from stormdrop.store.database import StoreError
from stormdrop.store.record import Record, Versions
from stormdrop.store.rows import VerdictRow, columns_of, fields_of, is_duration, text
from stormdrop.target.machine import Target

Provenance = Literal["measured", "imported", "migrated"]
"""The source of a verdict: this installation, a file of lines, or a verified record of a store without verdicts."""
NO_CHALLENGER = "no challenger"
"""The method of a verdict for an incumbent that nothing seemed faster than."""
VERIFIED_RECORD = "verified record"
"""The method of a verdict that was made of a verified record: nothing challenged it, and it may be the default."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`schedule` is to be used for `task` on `target`, at the target's temperature."""

    task: Task
    target: Target
    schedule: Schedule
    seconds: float
    """The seconds of the deciding measurement: of one run of the kernel, or, with `model`, of the model."""
    against: Schedule
    """The incumbent of the deciding measurement; `schedule` itself if the incumbent stayed."""
    against_seconds: float
    method: str
    """The method of the decision: duel, no challenger, in the model, verified record."""
    rounds: int
    """The number of rounds in turns that timed both schedules."""
    proof: str
    """The compared part of the kernel's output, and the reference of the comparison."""
    versions: Versions
    code: str
    """The fingerprint of the measured LLVM IR; empty if it is not known."""
    model: str = ""
    """The digest of the partition that accepted it as a whole; empty: it holds for the task anywhere."""
    provenance: Provenance = "measured"
    is_timing_old: bool = False
    """The code has changed since it was timed, and its output was checked again; so are migrated verdicts."""
    created: float = 0.0
    """Unix time, by the wall clock, for people."""


def verdict_row(verdict: Verdict) -> VerdictRow:
    """Returns the row of a verdict. Raises StoreError if its times are not numbers."""
    if not (is_duration(verdict.seconds) and is_duration(verdict.against_seconds)):
        figures = f"it took {verdict.seconds} s against {verdict.against_seconds} s"
        raise StoreError(f"a verdict on {text(verdict.task.name)} cannot be kept: {figures}")
    return VerdictRow(**columns_of(verdict))


def verdict_of(row: VerdictRow, task: Task, target: Target) -> Verdict:
    """Returns the verdict of a row. `target` replaces the row's target if its format is obsolete.

    Raises UserError for a schedule that this version cannot read.
    """
    fields = fields_of(Verdict, row, task, target)
    fields["provenance"] = provenance = row.provenance if row.provenance in get_args(Provenance) else "imported"
    fields["is_timing_old"] |= provenance == "migrated"  # the version that timed it is unknown
    return Verdict(**fields)


def imported_verdict(record: Record, seconds: float) -> Verdict:
    """Returns the verdict of another installation's verified record: a schedule to begin from, unused by compiling."""
    return Verdict(
        task=record.task,
        target=record.target,
        schedule=record.schedule,
        seconds=seconds,
        against=record.schedule,
        against_seconds=seconds,
        method=VERIFIED_RECORD,
        rounds=0,
        proof="as whoever wrote the line says",
        versions=record.versions,
        code="",
        provenance="imported",
        created=record.created,
    )
