"""A verdict: tuning's decision for a task on a machine at a temperature. `compile` uses verdicts, never lone trials.

    Verdict ──verdict_row──▶ VerdictRow ──▶ a row of the table `verdict`
    VerdictRow ──verdict_of──▶ Verdict

A verdict always names a concrete schedule, also if the default schedule stays. The newest verdict of its key (task,
machine, temperature, model) holds, by row id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from stormdrop.ir.tensor import Task
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import Record, Versions
from stormdrop.store.rows import SharedRow, StoreError, compact, is_duration, read, target_of, target_text, text
from stormdrop.store.rows import task_columns as columns_of
from stormdrop.target.machine import Target

Provenance = Literal["measured", "imported", "migrated"]
"""The source of a verdict: decided by this installation; read from a file of lines; made of a verified record of a
store without verdicts.
"""
NO_CHALLENGER = "no challenger"
"""The method of a verdict for an incumbent that nothing seemed faster than."""
VERIFIED_RECORD = "verified record"
"""The method of a verdict that was made of a verified record: nothing challenged it, and it may be the default."""
PROOF_CHARACTERS = 500


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


@dataclass(frozen=True, slots=True)
class VerdictRow(SharedRow):
    cold: int
    schedule: str
    seconds: float
    against: str
    against_seconds: float
    method: str
    rounds: int
    proof: str
    code: str
    model: str
    provenance: str
    is_timing_old: int
    created: float


def verdict_row(verdict: Verdict) -> VerdictRow:
    """Returns the row of a verdict. Raises StoreError if its times are not numbers."""
    v, versions = verdict, verdict.versions
    if not (is_duration(v.seconds) and is_duration(v.against_seconds)):
        told = f"it took {v.seconds} s against {v.against_seconds} s"
        raise StoreError(f"a verdict on {text(v.task.name)} cannot be kept: {told}")
    return VerdictRow(
        *columns_of(v.task),
        v.target.key(),
        target_text(v.target),
        versions.stormdrop,
        versions.llvm,
        versions.features,
        int(v.target.is_cold),
        compact(v.schedule.to_json()),
        float(v.seconds),
        compact(v.against.to_json()),
        float(v.against_seconds),
        text(v.method),
        v.rounds,
        text(v.proof, PROOF_CHARACTERS),
        v.code,
        v.model,
        v.provenance,
        int(v.is_timing_old),
        float(v.created),
    )


def verdict_of(row: VerdictRow, task: Task, target: Target) -> Verdict:
    """Returns the verdict of a row. `target` replaces the row's target if its format is obsolete.

    Raises UserError for a schedule that this version cannot read.
    """
    found: Any = row.provenance if row.provenance in get_args(Provenance) else "imported"
    return Verdict(
        task,
        target_of(row.target_json, target).with_cold_weights(bool(row.cold)),
        read("schedule", Schedule.from_json, row.schedule).of(task),
        row.seconds,
        read("schedule", Schedule.from_json, row.against).of(task),
        row.against_seconds,
        row.method,
        row.rounds,
        row.proof,
        Versions(row.stormdrop, row.llvm, row.feature_version),
        row.code,
        row.model,
        found,
        bool(row.is_timing_old) or found == "migrated",  # by whom it was timed is not known
        row.created,
    )


def imported_verdict(record: Record, seconds: float) -> Verdict:
    """Returns the verdict of another installation's verified record: a schedule to begin from, unused by compiling."""
    return Verdict(
        record.task,
        record.target,
        record.schedule,
        seconds,
        record.schedule,
        seconds,
        VERIFIED_RECORD,
        0,
        "as whoever wrote the line says",
        record.versions,
        "",
        provenance="imported",
        created=record.created,
    )
