"""Making a portfolio from a store: of each class, the few winners that serve all tasks of the class within 5 %.

For each class there is a table (task, schedule) -> time relative to the task's verdict. The first column is the default
schedule; the others are the verdicts of tasks that the default does not serve, re-fitted to each task:

    measured     both the re-fitted schedule and the verdict's are among the task's trials
    predicted    by the trees learned from the store; marked in the counts
    infinite     it cannot be re-fitted, or nothing predicts
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf

import numpy as np

from stormdrop.errors import ScheduleError, StormdropError
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import Experience, entry_of, judged_by, rules_text
from stormdrop.reservoir.learning import learned, provenance
from stormdrop.reservoir.portfolio import SLACK, cover
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.verdict import Verdict
from stormdrop.space.judge import judge_of
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.scorer import Scorer
from stormdrop.space.sketch import replay
from stormdrop.target.machine import Target

TRIALS = 50_000


@dataclass(frozen=True, slots=True)
class ClassCover:
    """One class of a portfolio."""

    class_key: str
    name: str
    """Of one of its tasks."""
    tasks: int
    by_default: int
    """Tasks that the default schedule serves."""
    schedules: int
    """Chosen besides the default."""
    uncovered: int
    measured: int
    predicted: int
    """Cells of the table that were measured, or predicted, besides the tasks' own verdicts."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Winner:
    """A verdict that beats its task's default by more than the slack, and the trials of its task."""

    verdict: Verdict
    model: str
    seconds: Mapping[Schedule, float]


def portfolio_of(
    store: Store, target: Target, without: Collection[str] = (), tell: Callable[[str], None] = lambda _: None
) -> tuple[Experience, list[ClassCover]]:
    """A portfolio for a target, and what it covers. Tasks whose digests are in `without` have no part in it.

    `tell` hears what is done.
    """
    left_out = frozenset(without)
    tell("learning what trials say of schedules that were not tried")
    experience = learned(store, target, left_out)
    scorer = experience.scorer if experience is not None else None
    tasks = {(task.digest, cold): task for task, cold in store.tasks(target) if task.digest not in left_out}
    winners: dict[str, list[_Winner]] = {}
    trials: dict[tuple[str, bool], dict[Schedule, float]] = {}
    for trial in store.measured(target, TRIALS):
        if trial.seconds is not None:
            known = trials.setdefault((trial.task.digest, trial.cold), {})
            known[trial.schedule] = min(trial.seconds, known.get(trial.schedule, inf))
    for verdict, model in store.decided(target):
        key = verdict.task.digest, verdict.target.is_cold
        if key in tasks and verdict.target.key() == target.key() and verdict.against_seconds > SLACK * verdict.seconds:
            winner = _Winner(verdict, model, trials.get(key, {}))
            winners.setdefault(verdict.task.class_key, []).append(winner)
    covers: list[ClassCover] = []
    chosen: list[_Winner] = []
    for class_key, members in sorted(_by_class(tasks).items()):
        tell(members[0].name)
        some, told = _covered(class_key, members, winners.get(class_key, []), target, scorer)
        chosen += some
        covers.append(told)
    entries = (
        entry_of(v.task, v.schedule, v.target, w.model, v.against_seconds / v.seconds)
        for w in chosen
        for v in (w.verdict,)
    )
    donors = tuple(e for e in entries if e is not None)
    made = {**provenance(target), "tasks": len(tasks), "trials": sum(map(len, trials.values()))}
    if experience is None:
        stamp = target.key(), judged_by(target), judge_of(target).features.version, rules_text(RULES)
        return Experience(*stamp, donors, made=made), covers
    scorer = experience.scorer if experience.margin is not None else None
    return replace(experience, donors=donors, scorer=scorer, made=made), covers


def _by_class(tasks: Mapping[tuple[str, bool], Task]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks.values():
        found.setdefault(task.class_key, []).append(task)
    return found


def _covered(
    class_key: str, members: Sequence[Task], winners: Sequence[_Winner], target: Target, scorer: Scorer | None
) -> tuple[list[_Winner], ClassCover]:
    """The winners to keep of a class, and what they cover."""
    counts = {"measured": 0, "predicted": 0}
    table = np.full((len(winners), 1 + len(winners)), inf)
    for row, winner in enumerate(winners):
        table[row, 0] = winner.verdict.against_seconds / winner.verdict.seconds
        for column, donor in enumerate(winners, 1):
            if column == row + 1:
                table[row, column] = 1.0
            else:
                table[row, column], how = _relative(winner, donor.verdict, target, scorer)
                counts[how] = counts.get(how, 0) + 1
    found = cover(table) if winners else None
    columns, uncovered = (found.columns[1:], found.uncovered) if found is not None else ((), 0)
    kept = [winners[k - 1] for k in columns]
    served = len(members) - len(winners)
    measured, predicted = counts["measured"], counts["predicted"]
    told = ClassCover(class_key, members[0].name, len(members), served, len(kept), uncovered, measured, predicted)
    return kept, told


def _relative(winner: _Winner, donor: Verdict, target: Target, scorer: Scorer | None) -> tuple[float, str]:
    """The time of a donor's schedule, re-fitted to the winner's task, relative to the winner's; and how it is known."""
    own, at = winner.verdict, target.with_cold_weights(winner.verdict.target.is_cold)
    try:
        candidates = refit(donor.schedule, donor.task, own.task, at)
    except ScheduleError:
        return inf, "absent"
    seconds = winner.seconds
    timed = [seconds[c] / seconds[own.schedule] for c in candidates if c in seconds and own.schedule in seconds]
    if timed:
        return min(timed), "measured"
    if scorer is None or not candidates:
        return inf, "absent"
    try:
        places = [replay(own.task, schedule, at) for schedule in (own.schedule, *candidates)]
    except StormdropError:
        return inf, "absent"
    rows = np.concatenate([sketch.features(point[None]) for sketch, point in places])
    scores = scorer.scores(rows.astype(np.float32), judge_of(at).features)
    return float(2.0 ** (scores[0] - scores[1:].max())), "predicted"
