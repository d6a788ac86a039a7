"""Learning an experience from a store: donors, trees, and the margin from which donors are taken unmeasured.

The margin is set by cross-validation. The tuned models are dealt into at most `FOLDS` folds, and each fold is held out
once: its tasks are offered what compiling would offer them, from the winners of the other folds, and trees grown on
the other folds predict the gains. Where the search for the task has timed such candidates and the default schedule, the
candidate with the largest prediction is a pick whose gain is known. The margin is the least predicted gain such that
the picks that reach it pay:

    the mean of their log2 gains is at least its standard error (gains above LARGE_GAIN count as that),
    and all tasks together take no longer with them than with defaults.

Without enough such tasks nothing is learned, and nothing is taken unmeasured.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from stormdrop.cost.gain_trees import grown
from stormdrop.errors import StormdropError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import (
    DonorEntry,
    Evidence,
    Experience,
    entry_of,
    judged_by,
    path_beside,
    promising,
    rules_text,
    save,
)
from stormdrop.reservoir.gains import TimedTrials, gain_over_default, gain_over_incumbent, timed_trials
from stormdrop.reservoir.record import DEFAULT, DONOR, group_name
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.training import TrainingRows
from stormdrop.reservoir.verdict import Verdict
from stormdrop.space.judge import judge_of
from stormdrop.space.offer import OfferedSchedule, predictions
from stormdrop.space.rules import RULES
from stormdrop.space.scorer import Scorer, differences_from
from stormdrop.space.sketch import replay
from stormdrop.target.machine import Target
from stormdrop.version import __version__

MOST_TASKS = 64
"""Tasks that picks are made for, those measured last: each takes a tenth of a second."""
ROWS = 6000
"""The most trials to learn from, a sample over all tasks: growing trees half a dozen times takes a few seconds. Trials
of defaults come on top of it."""
FOLDS = 6
LEAST_FOLDS = 3
LEAST_TASKS = 12
"""Tasks with a pick, over all folds."""
LEAST_PICKS = 6
"""Picks that a margin must rest on."""
SURE = 1.0
"""Standard errors by which the mean gain of these picks must exceed none. With two, or where no single fold might lose,
noise in the timings of a few tasks kept six of ten held-out models from taking anything."""
LARGE_GAIN = 1.25
"""A larger gain counts as this one where the mean is compared with its error: it must not make the mean less sure."""
LEAST_GAIN = 1.01
"""The least margin: a smaller predicted gain is not worth leaving the default."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What was predicted for held-out tasks, and what was measured; one row for each task."""

    predicted: Floats
    """log2 of the largest gain that the trees predict for a donor."""
    gained: Floats
    """log2 of the gain of that donor, as timed."""
    seconds: Floats
    """Of the default schedule."""


def learned(store: Store, target: Target, without: Collection[str] = ()) -> Experience | None:
    """The experience that a store's trials on a machine give; None where they are too few. Tasks whose digests are in
    `without` are neither donors nor learned from.
    """
    features, left_out = judge_of(target).features, frozenset(without)
    rows = _kept(store.training(target, ROWS, with_defaults=True), left_out)
    folds = _folds(rows)
    if len(set(folds.values())) < LEAST_FOLDS:
        return None
    donors = donors_of_store(store, target, without)
    gain_rows = _gain_rows(rows, folds)
    held_out = _held_out(gain_rows, folds, _timed_tasks(store, target, rows), donors)
    if len(held_out.gained) < LEAST_TASKS:
        return None
    margin = margin_of(held_out)
    scorer = gain_rows.scorer()
    if scorer is None:
        return None
    picks = held_out.predicted >= np.log2(margin) if margin is not None else np.zeros(len(held_out.gained), bool)
    gain = float(2.0 ** held_out.gained[picks].mean()) if picks.any() else 1.0
    stamp = target.key(), judged_by(target), features.version, rules_text(RULES)
    evidence = Evidence(len(held_out.gained), int(picks.sum()), gain)
    return Experience(*stamp, donors, scorer, margin, evidence, provenance(target))


def keep_learned(store: Store, target: Target) -> Experience | None:
    """Learn from a store, and write the result beside it, in place of what was learned before. A store in memory has no
    such place: nothing is done.

    Raises StoreError and UserError.
    """
    if store.path is None:
        return None
    found, path = learned(store, target), path_beside(store.path, target)
    try:
        if found is None:
            path.unlink(missing_ok=True)
        else:
            save(path, found)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return found


def provenance(target: Target) -> dict[str, str]:
    """When, by which version and on which CPU an experience was made; for people."""
    return {"date": time.strftime("%Y-%m-%d"), "stormdrop": __version__, "cpu": target.name}


def donors_of_store(store: Store, target: Target, without: Collection[str] = ()) -> tuple[DonorEntry, ...]:
    """The schedules for which tuning here has verdicts, on this kind of machine with any number of threads."""
    left_out = frozenset(without)
    entries = (
        entry_of(v.task, v.schedule, v.target, model, _gain(store, v))
        for v, model in store.decided(target)
        if v.task.digest not in left_out
    )
    return tuple(e for e in entries if e is not None)


def _gain(store: Store, verdict: Verdict) -> float:
    """How many times faster than the default a winner is; than the incumbent, where nothing says what the default was.

    The default is that of the tuning: finding this version's takes a tenth of a second for each task.
    """
    gain = gain_over_default(verdict, timed_trials(store.trials(verdict.task, verdict.target)), verdict.target)
    return gain if gain < inf else gain_over_incumbent(verdict)


def margin_of(held_out: HeldOut) -> float | None:
    """The least predicted gain, as a factor, such that the picks that reach it pay; None where there is none."""
    for least in np.unique(np.maximum(held_out.predicted, np.log2(LEAST_GAIN))).tolist():
        picked = held_out.predicted >= least
        if picked.sum() < LEAST_PICKS:
            return None
        if _pays(held_out, picked):
            return float(2.0**least)
    return None


def _pays(held_out: HeldOut, picked: NDArray[np.bool_]) -> bool:
    """Whether the mean gain of these picks is as large as its error, and they save more seconds than they cost."""
    gains = np.minimum(held_out.gained[picked], np.log2(LARGE_GAIN))
    if gains.mean() < SURE * gains.std(ddof=1) / np.sqrt(len(gains)):
        return False
    before = held_out.seconds[picked]
    return bool((before / 2.0 ** held_out.gained[picked]).sum() <= before.sum())


# ---- rows ------------------------------------------------------------------------------------------------------------


def _kept(rows: TrainingRows, without: frozenset[str]) -> TrainingRows:
    """The rows of tasks whose digests are not in `without`; their seconds are those of each trial's fastest run."""
    keep = np.array([_digest(rows.names[g]) not in without for g in rows.group.tolist()], bool)
    chosen = np.flatnonzero(keep).tolist()
    strategies, models = ([values[k] for k in chosen] for values in (rows.strategies, rows.models))
    matrix = rows.features[keep], rows.floors[keep], rows.group[keep]
    named = rows.names, rows.left_out, tuple(strategies), tuple(models)
    return TrainingRows(*matrix, *named, rows.floors[keep], rows.was_recomputed[keep])


def _digest(name: str) -> str:
    """The digest of a group's task, from the group's name."""
    return name.partition("/")[0]


def _folds(rows: TrainingRows) -> dict[str, int]:
    """The fold of each task, by digest, and of each model, by name. All tasks of a model are in one fold; an operator
    that was tuned alone counts as a model. The largest models are dealt out first, each to the fold with the fewest
    rows.
    """
    home: dict[str, str] = {}
    digests = [_digest(rows.names[g]) for g in rows.group.tolist()]
    for digest, model in zip(digests, rows.models):
        home.setdefault(digest, model or digest)
    homes = [home[digest] for digest in digests]
    sizes = {name: homes.count(name) for name in dict.fromkeys(homes)}
    filled = [0] * min(FOLDS, len(sizes))
    fold_of: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        fold_of[name] = filled.index(min(filled))
        filled[fold_of[name]] += sizes[name]
    return fold_of | {digest: fold_of[name] for digest, name in home.items()}


def _timed_tasks(store: Store, target: Target, rows: TrainingRows) -> list[tuple[Task, Target, TimedTrials]]:
    """The tasks some of whose trials came from donors, those measured last, at most `MOST_TASKS`."""
    donated = {rows.names[g] for g, strategy in zip(rows.group.tolist(), rows.strategies) if strategy == DONOR}
    found = [(task, cold) for task, cold in store.tasks(target) if group_name(task.digest, cold) in donated]
    machines = [(task, target.with_cold_weights(cold)) for task, cold in found[-MOST_TASKS:]]
    return [(task, own, timed_trials(store.trials(task, own))) for task, own in machines]


@dataclass(frozen=True, slots=True)
class GainRows:
    """What trees of gains learn from: one row for each timed trial of a task whose default was timed too."""

    differences: NDArray[np.float32]
    """Of the trial's features and the default's."""
    gains: Floats
    """log2 of how many times faster than the default the trial is."""
    fold: Ints

    def scorer(self, without: int | None = None) -> Scorer | None:
        """Trees grown on all rows but those of one fold; None where there are too few rows."""
        which = self.fold != (-1 if without is None else without)
        return grown(self.differences[which], self.gains[which])


def _gain_rows(rows: TrainingRows, folds: Mapping[str, int]) -> GainRows:
    """A task's default is the newest trial that was measured as such."""
    default_of: dict[int, int] = {}
    for k, (group, strategy) in enumerate(zip(rows.group.tolist(), rows.strategies)):
        if strategy == DEFAULT and np.isfinite(rows.seconds[k]):
            default_of[group] = k
    kept = [k for k, group in enumerate(rows.group.tolist()) if group in default_of and np.isfinite(rows.seconds[k])]
    base = [default_of[group] for group in rows.group[kept].tolist()]
    fold = [folds[_digest(rows.names[group])] for group in rows.group[kept].tolist()]
    gains = np.log2(rows.seconds[base] / rows.seconds[kept])
    return GainRows(differences_from(rows.features[kept], rows.features[base]), gains, np.array(fold, np.int64))


def _held_out(
    rows: GainRows,
    folds: Mapping[str, int],
    tasks: Sequence[tuple[Task, Target, TimedTrials]],
    donors: Sequence[DonorEntry],
) -> HeldOut:
    """Cross-validation: for each fold, the picks of its tasks, by trees and donors of the other folds. A task's default
    is the one that its search timed.
    """
    columns: list[tuple[float, float, float]] = []
    for fold in range(max(folds.values(), default=-1) + 1):
        left_out = [(task, own, timed) for task, own, timed in tasks if folds.get(task.digest) == fold]
        scorer = rows.scorer(without=fold) if left_out else None
        # A held-out model's winners at another batch size or number of threads are of no task that has rows here.
        others = [d for d in donors if fold not in (folds.get(d.digest), folds.get(d.model))]
        for task, own, timed in left_out if scorer is not None else ():
            assert scorer is not None
            offered = [d.offered for d in promising(others, task, own)]
            if offered and (pick := _pick(task, own, offered, scorer, timed)) is not None:
                columns.append(pick)
    predicted, gained, seconds = zip(*columns) if columns else ((), (), ())
    return HeldOut(np.array(predicted), np.array(gained), np.array(seconds))


def _pick(
    task: Task, target: Target, offered: Sequence[OfferedSchedule], scorer: Scorer, timed: TimedTrials
) -> tuple[float, float, float] | None:
    """Of the candidates that were timed, the one with the largest prediction: log2 of its predicted gain and of its
    gain, and the default's seconds. None where no candidate or not the default was timed.
    """
    if timed.default is None:
        return None
    try:
        found = predictions(task, offered, scorer, replay(task, timed.default, target))
    except StormdropError:
        return None
    base = timed.seconds[timed.default]
    best = next((f for f in found if f.schedule in timed.seconds), None)
    if best is None:
        return None
    return float(np.log2(best.predicted)), float(np.log2(base / timed.seconds[best.schedule])), base


def described(experience: Experience | None) -> str:
    """For people: what was learned."""
    if experience is None:
        return "too few tasks with timed donors: nothing is taken unmeasured"
    evidence = experience.evidence or Evidence(0, 0, 1.0)
    if experience.margin is None:
        return f"no predicted gain was reliable on {evidence.tasks} tasks: nothing is taken unmeasured"
    gain = f"{evidence.picks} of {evidence.tasks} tasks held out gained {100 * (evidence.gain - 1):.1f} %"
    margin = f"taken unmeasured from a predicted gain of {100 * (experience.margin - 1):.1f} %"
    return f"{len(experience.donors)} donors, {margin}: {gain}"
