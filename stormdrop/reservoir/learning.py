"""Learning an experience from a store: donors, trees, and the margin from which donors are taken unmeasured.

The margin is set by cross-validation. The tuned models are dealt into at most `FOLDS` folds, and each fold is held out
once. Trees grown on the other folds predict, for each held-out task, the gain of its timed donors over its default. The
donor with the largest prediction is what compiling would pick; its gain as timed is known. The margin is the least
predicted gain such that the picks that reach it pay:

    the mean of their log2 gains is at least twice its standard error,
    and no fold takes longer with them than with defaults by more than TOLERANCE.

Without enough such tasks nothing is learned, and nothing is taken unmeasured.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.cost.model import CostModel, CostSettings
from stormdrop.errors import UserError
from stormdrop.reservoir.experience import (
    DonorEntry,
    Evidence,
    Experience,
    entry_of,
    judged_by,
    path_beside,
    rules_text,
    save,
)
from stormdrop.reservoir.record import DEFAULT, DONOR
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.training import TrainingRows
from stormdrop.space.features import FeatureSet
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES
from stormdrop.target.machine import Target
from stormdrop.version import __version__

ROWS = 6000
"""The most trials to learn from, a sample over all tasks: growing trees half a dozen times takes a few seconds."""
FOLDS = 6
LEAST_FOLDS = 3
LEAST_TASKS = 12
"""Tasks with timed donors, over all folds."""
LEAST_PICKS = 6
"""Picks that a margin must rest on."""
SURE = 2.0
"""Standard errors by which the mean gain of these picks must exceed none. With one, of ten models that were held out
one lost 7 %."""
LEAST_GAIN = 1.02
"""The least margin: a smaller predicted gain is not worth leaving the default."""
TOLERANCE = 0.01
"""By how much a fold may become slower."""

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
    fold: Ints


def learned(store: Store, target: Target, without: Collection[str] = ()) -> Experience | None:
    """The experience that a store's trials on a machine give; None where they are too few. Tasks whose digests are in
    `without` are neither donors nor learned from.
    """
    features = judge_of(target).features
    rows = _kept(store.training(target, ROWS), frozenset(without))
    folds = _folds(rows)
    if folds.max(initial=-1) + 1 < LEAST_FOLDS or len(_evidence(rows, features)) < LEAST_TASKS:
        return None
    held_out = _held_out(rows, folds, features)
    margin = margin_of(held_out)
    scorer = _grown(rows, np.ones(len(rows.seconds), bool), features).scorer()
    if scorer is None:
        return None
    picks = held_out.predicted >= np.log2(margin) if margin is not None else np.zeros(len(held_out.gained), bool)
    gain = float(2.0 ** held_out.gained[picks].mean()) if picks.any() else 1.0
    stamp = target.key(), judged_by(target), features.version, rules_text(RULES)
    evidence = Evidence(len(held_out.gained), int(picks.sum()), gain)
    return Experience(*stamp, donors_of_store(store, target, without), scorer, margin, evidence, provenance(target))


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
        entry_of(v.task, v.schedule, v.target, model, v.against_seconds / v.seconds)
        for v, model in store.decided(target)
        if v.task.digest not in left_out
    )
    return tuple(e for e in entries if e is not None)


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
    """Whether these picks gain beyond chance, and no fold becomes too slow."""
    gains = held_out.gained[picked]
    if gains.mean() < SURE * gains.std(ddof=1) / np.sqrt(len(gains)):
        return False
    after = np.where(picked, held_out.seconds / 2.0**held_out.gained, held_out.seconds)
    folds = range(int(held_out.fold.max()) + 1)
    before = np.array([held_out.seconds[held_out.fold == f].sum() for f in folds])
    now = np.array([after[held_out.fold == f].sum() for f in folds])
    return bool((now <= (1.0 + TOLERANCE) * before).all())


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


def _folds(rows: TrainingRows) -> Ints:
    """The fold of each row. All rows of a task are in one fold, and all tasks of a model; an operator that was tuned
    alone counts as a model. The largest models are dealt out first, each to the fold with the fewest rows.
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
    return np.array([fold_of[name] for name in homes], np.int64)


def _evidence(rows: TrainingRows, features: FeatureSet) -> list[tuple[int, Ints]]:
    """For each group with timed donors: the row of its default schedule, and the donors' rows."""
    donated = np.array([s == DONOR for s in rows.strategies], bool)
    found: list[tuple[int, Ints]] = []
    for g in range(len(rows.names)):
        own = np.flatnonzero((rows.group == g) & np.isfinite(rows.seconds))
        default = _default_row(rows, own, features)
        donors = own[donated[own] & (own != default)]
        found += [(default, donors)] if default is not None and len(donors) else []
    return found


def _default_row(rows: TrainingRows, own: Ints, features: FeatureSet) -> int | None:
    """Of one group's rows, that of the newest default schedule; None where no row is known to be one.

    Rows without such a mark are older than it. If the features of none were computed anew, their default is the one
    with the least estimate.
    """
    if marked := [k for k in own.tolist() if rows.strategies[k] == DEFAULT]:
        return marked[-1]
    if not len(own) or rows.was_recomputed[own].any():
        return None
    return int(own[np.argmin(rows.features[own, features.index("prior")])])


def _grown(rows: TrainingRows, which: NDArray[np.bool_], features: FeatureSet) -> CostModel:
    """A cost model grown on the rows where `which` holds."""
    model = CostModel(features, CostSettings(max_rows=ROWS))
    model.add_rows(rows.features[which], rows.seconds[which], rows.group[which], rows.names)
    model.refresh()
    return model


def _held_out(rows: TrainingRows, folds: Ints, features: FeatureSet) -> HeldOut:
    """Cross-validation: for each fold, what trees grown on the other folds predict for its tasks."""
    evidence = _evidence(rows, features)
    columns: list[tuple[float, float, float, int]] = []
    for fold in range(int(folds.max()) + 1):
        left_out = [(d, donors) for d, donors in evidence if folds[d] == fold]
        model = _grown(rows, folds != fold, features) if left_out else None
        for default, donors in left_out if model is not None else ():
            assert model is not None
            scores = model.predict(rows.features[[default, *donors.tolist()]])
            best = int(np.argmax(scores[1:]))
            seconds = float(rows.seconds[default])
            gained = float(np.log2(seconds / rows.seconds[donors[best]]))
            columns.append((float(scores[1 + best] - scores[0]), gained, seconds, fold))
    predicted, gained, seconds, fold = (np.array(column) for column in zip(*columns))
    return HeldOut(predicted, gained, seconds, fold.astype(np.int64))


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
