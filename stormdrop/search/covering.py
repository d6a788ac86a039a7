"""Making a portfolio from a store: of each class, the few winners that serve all tasks of the class within 5 %.

For each class there is a table (task, schedule) -> time relative to the task's verdict. The first column is the default
schedule; the others are the verdicts of tasks that the default does not serve, re-fitted to each task:

    measured     the schedule is among the task's trials; or it is the default, and the verdict's duel was against it
    predicted    by the trees learned from the store; marked in the counts
    infinite     it cannot be re-fitted, or nothing predicts

The default's own time tells whether it serves a task. The incumbent of a verdict need not be the default: a winner that
a later tuning confirmed was that tuning's incumbent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf

import numpy as np

from stormdrop.errors import ScheduleError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import Experience, entry_of, judged_by, rules_text
from stormdrop.reservoir.gains import (
    TimedTrials,
    gain_over_default,
    gain_over_incumbent,
    relative_seconds,
    timed_trials,
)
from stormdrop.reservoir.learning import learned, provenance
from stormdrop.reservoir.portfolio import SLACK, cover
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.verdict import Verdict
from stormdrop.space.default import default_schedule
from stormdrop.space.judge import judge_of
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.scorer import Scorer
from stormdrop.target.machine import Target


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
    """Tasks that none of these is known to serve, those without a verdict among them."""
    measured: int
    predicted: int
    """Cells of the table that trials measured, or trees predicted, besides the column of the default."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _History:
    """What the store knows of a task at a temperature."""

    task: Task
    target: Target
    """At the temperature."""
    verdict: Verdict | None
    model: str
    """The model whose tuning measured the task last; empty for a single operator."""
    timed: TimedTrials


@dataclass(frozen=True, slots=True)
class _Decided:
    """A task that has a verdict; a winner, if the verdict beats the default by more than the slack."""

    history: _History
    verdict: Verdict
    default: Schedule
    """Of this version."""
    gain: float
    """How many times as long the default takes; infinite where nothing says."""


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
    histories = [_history(store, task, target.with_cold_weights(cold)) for (_, cold), task in tasks.items()]
    covers: list[ClassCover] = []
    chosen: list[_Decided] = []
    for class_key, members in sorted(_by_class(histories).items()):
        tell(members[0].task.name)
        some, told = _covered(class_key, members, scorer)
        chosen += some
        covers.append(told)
    entries = (
        entry_of(v.task, v.schedule, v.target, w.history.model, _told_gain(w)) for w in chosen for v in (w.verdict,)
    )
    donors = tuple(e for e in entries if e is not None)
    made = {**provenance(target), "tasks": len(tasks), "trials": sum(len(h.timed.seconds) for h in histories)}
    if experience is None:
        stamp = target.key(), judged_by(target), judge_of(target).features.version, rules_text(RULES)
        return Experience(*stamp, donors, made=made), covers
    return replace(experience, donors=donors, made=made), covers


def _history(store: Store, task: Task, target: Target) -> _History:
    trials, verdict = store.trials(task, target), None
    model = next((trial.model for trial in reversed(trials) if trial.model), "")
    with suppress(UserError):  # a schedule that this version cannot read is no verdict
        verdict = store.verdict(task, target)
    return _History(task, target, verdict, model, timed_trials(trials))


def _by_class(histories: Sequence[_History]) -> dict[str, list[_History]]:
    found: dict[str, list[_History]] = {}
    for history in histories:
        found.setdefault(history.task.class_key, []).append(history)
    return found


def _covered(class_key: str, members: Sequence[_History], scorer: Scorer | None) -> tuple[list[_Decided], ClassCover]:
    """The winners to keep of a class, and what they cover."""
    counts = {"measured": 0, "predicted": 0}
    decided = [_decided(h, h.verdict, scorer) for h in members if h.verdict is not None]
    winners = [w for w in decided if w.gain > SLACK]
    table = np.full((len(winners), 1 + len(winners)), inf)
    for row, winner in enumerate(winners):
        table[row, 0] = winner.gain
        for column, donor in enumerate(winners, 1):
            if column == row + 1:
                table[row, column] = 1.0
            else:
                table[row, column], how = _relative_of_donor(winner, donor.verdict, scorer)
                counts[how] = counts.get(how, 0) + 1
    found = cover(table) if winners else None
    columns, uncovered = (found.columns[1:], found.uncovered) if found is not None else ((), 0)
    kept = [winners[k - 1] for k in columns]
    uncovered += len(members) - len(decided)
    measured, predicted = counts["measured"], counts["predicted"]
    served = len(decided) - len(winners)
    told = ClassCover(class_key, members[0].task.name, len(members), served, len(kept), uncovered, measured, predicted)
    return kept, told


def _decided(history: _History, verdict: Verdict, scorer: Scorer | None) -> _Decided:
    default = default_schedule(history.task, history.target)
    gain = gain_over_default(verdict, history.timed, history.target, default, scorer)
    return _Decided(history, verdict, default, gain)


def _told_gain(winner: _Decided) -> float:
    """The gain as a file has it: over the default, or over the incumbent where the default's time is not known."""
    return winner.gain if winner.gain < inf else gain_over_incumbent(winner.verdict)


def _relative_of_donor(winner: _Decided, donor: Verdict, scorer: Scorer | None) -> tuple[float, str]:
    """The time of a donor's schedule, re-fitted to the winner's task, relative to the winner's; and how it is known."""
    history = winner.history
    try:
        candidates = refit(donor.schedule, donor.task, history.task, history.target)
    except ScheduleError:
        return inf, "absent"
    return relative_seconds(winner.verdict, candidates, winner.default, history.timed, history.target, scorer)
