"""The content of a store, one line for each task, machine and temperature."""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.store.database import Connection


@dataclass(frozen=True, slots=True)
class Filters:
    """The selection of trials or verdicts. `task` is a name or the beginning of a digest, `target` a target's key."""

    task: str | None = None
    target: str | None = None
    cold: bool | None = None
    verified: bool | None = None


@dataclass(frozen=True, slots=True)
class VerdictSummary:
    """The newest verdict of this installation, for the task in any model."""

    method: str
    seconds: float
    against_seconds: float
    is_change: bool
    """A schedule other than the incumbent was chosen."""
    is_timing_old: bool = False
    """The code has changed since it was timed."""

    @property
    def gain(self) -> float:
        """The speed relative to the incumbent; 1 if the incumbent stayed."""
        return self.against_seconds / self.seconds if self.is_change and self.seconds else 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The results for one task on one machine at one temperature."""

    digest: str
    name: str
    class_key: str
    target: str
    cold: bool
    trials: int
    failed: int
    seconds: float | None
    """The seconds of the fastest verified trial, else of the fastest trial that was not stopped early."""
    verified: bool
    flops: float
    created: float
    """The time of the last trial, by the clock of then; without trials, the time of the verdict."""
    verdict: VerdictSummary | None = None

    @property
    def gflops(self) -> float | None:
        return self.flops / self.seconds / 1e9 if self.seconds and self.flops else None


_TRIALS = """SELECT task_id, machine_id, cold, count(*) AS trials, sum(seconds IS NULL) AS failed, max(id) AS last,
        min(CASE WHEN verified = 1 AND stopped_early = 0 THEN seconds END) AS proved,
        min(CASE WHEN stopped_early = 0 THEN seconds END) AS timed
    FROM trial GROUP BY task_id, machine_id, cold"""
_VERDICTS = """SELECT * FROM verdict WHERE id IN (SELECT max(id) FROM verdict
    WHERE model = '' AND provenance <> 'imported' GROUP BY task_id, machine_id, cold)"""
_QUERY = f"""WITH g AS ({_TRIALS}), v AS ({_VERDICTS}),
        k AS (SELECT task_id, machine_id, cold FROM g UNION SELECT task_id, machine_id, cold FROM v)
    SELECT task.digest, task.name, task.class_key, machine.key, k.cold, coalesce(g.trials, 0), coalesce(g.failed, 0),
        coalesce(g.proved, g.timed), g.proved IS NOT NULL, task.flops, coalesce(trial.created, v.created),
        v.method, v.seconds, v.against_seconds, v.schedule <> v.against,
        v.is_timing_old OR v.provenance = 'migrated'
    FROM k JOIN task ON task.id = k.task_id JOIN machine ON machine.id = k.machine_id
        LEFT JOIN g ON (g.task_id, g.machine_id, g.cold) = (k.task_id, k.machine_id, k.cold)
        LEFT JOIN v ON (v.task_id, v.machine_id, v.cold) = (k.task_id, k.machine_id, k.cold)
        LEFT JOIN trial ON trial.id = g.last
    ORDER BY coalesce(g.last, 0), v.id"""


def summaries(c: Connection, wanted: Filters) -> list[Summary]:
    """Returns summaries in the order of their last measurements; tasks with nothing but a verdict come first."""
    lines: list[Summary] = []
    for *columns, method, seconds, against_seconds, is_change, is_old in c.execute(_QUERY):
        digest, name, class_key, target, cold, trials, failed, best, verified, flops, created = columns
        decided = method, seconds, against_seconds, bool(is_change), bool(is_old)
        verdict = None if method is None else VerdictSummary(*decided)
        counts = trials, failed, best, bool(verified), flops, created
        lines.append(Summary(digest, name, class_key, target, bool(cold), *counts, verdict))
    return [s for s in lines if _is_wanted(s, wanted)]


def _is_wanted(s: Summary, wanted: Filters) -> bool:
    task = wanted.task
    if task is not None and s.name != task and not (len(task) >= 4 and s.digest.startswith(task)):
        return False
    pairs = ((wanted.target, s.target), (wanted.cold, s.cold), (wanted.verified, s.verified))
    return all(value is None or value == own for value, own in pairs)
