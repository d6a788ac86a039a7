"""Figures of reuse: arithmetic on a recorded table, without measuring anything.

The `speed` of a model is the time of its recorded tasks with default schedules over their time with other schedules.
Tasks with a small share of the model's time (`--share` of recording) are left out of both. Where the fastest of several
measured candidates is chosen, one half of the timings chooses and the other half judges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from benchmarks.core import geometric_mean
from benchmarks.reuse.table import DonorLink, ModelWorth, Recipient, SearchKind, Table, donors_in, family_of, mark_of
from stormdrop.tuning.reuse import MOST_DONORS

NEAR = 1.02
"""A search has reached the best known when it takes at most this many times as long."""
LEAST_GAINING = 20
"""With fewer tasks that have something to gain, nothing is claimed."""
EARLY = 0.05
"""`Gain.saved` looks at searches after this share of the time of the long search."""
BEHIND = 0.01
"""A task is behind its default if it is slower by more than this share; less is noise."""
CLEARLY = 0.98
"""A candidate must take less than this share of the default's time in one half of its timings to be chosen."""


def speed(table: Table, model: str, ratio_of: Callable[[Recipient], float]) -> float:
    """The speed of a model whose recorded tasks take `ratio_of` times as long as with their defaults."""
    found = table.of_model(model)
    whole = sum(table.weight(r, model) for r in found)
    return whole / sum(table.weight(r, model) * ratio_of(r) for r in found)


def best_ratio(table: Table, recipient: Recipient) -> float:
    """The ratio of the best known schedule; 1 where that is the default."""
    best = table.best.get(recipient.id)
    return 1.0 if best is None else min(1.0, best.ratio)


def best_in_curves(table: Table, recipient: Recipient) -> float:
    """The ratio of the fastest of the best known schedule and the winners of all compared searches, as timed in turns
    with their improvements. A duel of another day does not decide between them.
    """
    best, ratios = table.best.get(recipient.id), table.curve_ratios.get(recipient.id, {})
    known = None if best is None else ratios.get(mark_of(best.schedule))
    if known is None:
        return best_ratio(table, recipient)
    searches = [s for (id, _), s in table.searches.items() if id == recipient.id and s.curve and s.curve[-1].mark]
    return min(1.0, known, *(s.final_ratio for s in searches))


# ---- value of search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskValue:
    """A task's best known schedule against its default. `share`: its largest share of any model's recorded time."""

    recipient: Recipient
    default_seconds: float
    speed: float
    origin: str
    share: float


@dataclass(frozen=True, slots=True)
class ModelValue:
    """A model with the best known schedules against defaults. `gaining`: its tasks with something to gain."""

    model: str
    tasks: int
    gaining: int
    speed: float
    """From its tasks, each timed alone."""
    worth: ModelWorth | None
    """The model timed as a whole; None where it was not."""


def task_values(table: Table) -> list[TaskValue]:
    """The largest gains first."""
    found: list[TaskValue] = []
    whole = {m: sum(table.weight(r, m) for r in table.of_model(m)) for m in table.model_names}
    for recipient in table.recipients.values():
        if (best := table.best.get(recipient.id)) is not None:
            share = max(table.weight(recipient, m) / whole[m] for m in recipient.calls)
            seconds = table.default_seconds[recipient.id]
            found.append(TaskValue(recipient, seconds, 1 / best_ratio(table, recipient), best.origin, share))
    return sorted(found, key=lambda v: -v.speed)


def model_values(table: Table) -> list[ModelValue]:
    gaining = {r.id for r in gain_tasks(table)}
    return [
        ModelValue(
            model,
            len(table.of_model(model)),
            sum(r.id in gaining for r in table.of_model(model)),
            speed(table, model, lambda r: best_ratio(table, r)),
            table.models.get(model),
        )
        for model in table.model_names
        if table.of_model(model)
    ]


# ---- donors ----------------------------------------------------------------------------------------------------------


def reused_ratio(table: Table, recipient: Recipient, donors: Collection[str], most: int | None = None) -> float:
    """The ratio of the fastest among the default and the candidates of these donors; with `most`, of the nearest ones.

    One half of the timings chooses and the other judges; the mean of both ways round.
    """
    links = [link for link in table.links.get(recipient.id, ()) if link.donor in donors]
    links = sorted(links, key=lambda link: link.order)[:most]
    halves = [table.ratios[recipient.id][mark] for mark in dict.fromkeys(m for link in links for m in link.marks)]
    if not halves:
        return 1.0
    first, second = min(halves, key=lambda h: h.first), min(halves, key=lambda h: h.second)
    judged = first.second if first.first < CLEARLY else 1.0, second.first if second.second < CLEARLY else 1.0
    return sum(judged) / 2


def pool_speed(table: Table, model: str, pool: Collection[str], most: int | None = None) -> float:
    """The speed of a model that may take donors from all models of a pool."""

    def ratio_of(recipient: Recipient) -> float:
        donors = {id for donor in pool for id in donors_in(table, donor, recipient, model)}
        return reused_ratio(table, recipient, donors, most)

    return speed(table, model, ratio_of)


def others(table: Table, model: str) -> list[str]:
    """Models of other families: those that it may take donors from where it is held out."""
    return [m for m in table.model_names if family_of(m) != family_of(model) and table.of_model(m)]


def expected_gain(table: Table, model: str, donor: str) -> float:
    """The share of a model's time that a donor model is expected to save, before anything of the model is measured.

    A winner is expected to save of a task what it saved of its own task, halved for every unit of distance, and once
    more for another epilogue. The donor model's best winner counts. What a task's other donors gave it does not count:
    they may come from the model that is held out.
    """
    total = saved = 0.0
    for recipient in table.of_model(model):
        weight = table.weight(recipient, model)
        total += weight
        ids = donors_in(table, donor, recipient, model)
        links = [link for link in table.links.get(recipient.id, ()) if link.donor in ids]
        saved += weight * max((_expected(table, link) for link in links), default=0.0)
    return saved / total if total else 0.0


def _expected(table: Table, link: DonorLink) -> float:
    at_home = max(0.0, 1 - table.searches[link.donor, "nothing"].ratio)
    return at_home * 0.5 ** (link.distance + (link.key != "class"))


def shared_classes(table: Table, model: str, donor: str) -> float:
    """Σ P · √W over classes, P a class's share of the model's time and W the number of the donor model's winners in the
    class: by this, `stormdrop store donors` and the transfer-tuning paper choose a donor model.
    """
    weights: dict[str, float] = {}
    donors: dict[str, set[str]] = {}
    for recipient in table.of_model(model):
        weights[recipient.class_key] = weights.get(recipient.class_key, 0.0) + table.weight(recipient, model)
        ids = donors_in(table, donor, recipient, model)
        same = {id for id in ids if table.recipients[id].class_key == recipient.class_key}
        donors.setdefault(recipient.class_key, set()).update(same)
    whole = sum(weights.values())
    return sum(weight / whole * sqrt(len(donors[key])) for key, weight in weights.items())


@dataclass(frozen=True, slots=True)
class Matrix:
    """Speeds over the default, by model. `by_donor[model][donor]`: with donors from one model alone; where both are the
    same, with its other tasks as donors.
    """

    models: Sequence[str]
    by_donor: Mapping[str, Mapping[str, float]]
    chosen: Mapping[str, str]
    """The donor model with the largest `expected_gain`, of another family; empty where there is none."""
    chosen_by_classes: Mapping[str, str]
    """The same by `shared_classes`."""
    all_donors: Mapping[str, float]
    """With donors from all models of other families, every candidate measured."""
    nearest: Mapping[str, float]
    """The same, with the candidates of each task's nearest donors alone."""
    best: Mapping[str, float]


def matrix(table: Table) -> Matrix:
    models = [m for m in table.model_names if table.of_model(m)]
    outside = {m: others(table, m) for m in models}
    return Matrix(
        models,
        {m: {d: pool_speed(table, m, [d]) for d in models} for m in models},
        {m: max(outside[m], key=lambda d: expected_gain(table, m, d), default="") for m in models},
        {m: max(outside[m], key=lambda d: shared_classes(table, m, d), default="") for m in models},
        {m: pool_speed(table, m, outside[m]) for m in models},
        {m: pool_speed(table, m, outside[m], MOST_DONORS) for m in models},
        {m: speed(table, m, lambda r: best_ratio(table, r)) for m in models},
    )


@dataclass(frozen=True, slots=True)
class PoolPoint:
    """Geometric means of speeds over models. Each takes donors from the `size` models with the largest `expected_gain`.

    `nearest`: with the candidates of each task's nearest donors alone.
    """

    size: int
    speed: float
    nearest: float


def pool_curve(table: Table, most: int = 10) -> list[PoolPoint]:
    """Speeds by the size of the pool, up to `most` or until no model has more donor models. Pools never contain models
    of the same family.
    """
    models = [m for m in table.model_names if table.of_model(m) and others(table, m)]
    ranked = {m: sorted(others(table, m), key=lambda d: -expected_gain(table, m, d)) for m in models}
    sizes = range(1, 1 + min(most, max((len(r) for r in ranked.values()), default=0)))
    return [
        PoolPoint(
            size,
            geometric_mean(pool_speed(table, m, ranked[m][:size]) for m in models),
            geometric_mean(pool_speed(table, m, ranked[m][:size], MOST_DONORS) for m in models),
        )
        for size in sizes
    ]


# ---- time to the best known ------------------------------------------------------------------------------------------


def gain_tasks(table: Table) -> list[Recipient]:
    """The tasks with something to gain (`Table.has_gain`)."""
    return [r for r in table.recipients.values() if table.has_gain(r)]


@dataclass(frozen=True, slots=True)
class Gain:
    """Searches with reuse against searches from nothing, on tasks with something to gain. With too few of these tasks
    (`is_claim`), nothing is claimed.

    `reached`: by kind of search and for each task, the seconds until within 2 % of the best known; a search that never
    gets there counts with the whole time of the search from nothing. `saved`: the seconds of model time that searches
    with reuse save after 5 % of the long search's time, as a share of what long searches save in the end; empty where
    too few tasks were searched for long.
    """

    tasks: int
    searched: int
    reached: Mapping[SearchKind, Sequence[float]]
    saved: Mapping[SearchKind, float]
    long_tasks: int
    others: int
    behind: Sequence[tuple[Recipient, float]]
    """Of the `others`, tasks without something to gain: those that a search from donors left slower than their defaults
    by more than 1 %, with their ratios."""

    @property
    def is_claim(self) -> bool:
        return self.searched >= LEAST_GAINING

    def time_ratio(self, kind: SearchKind) -> float:
        """Geometric mean of the seconds with reuse over those from nothing."""
        return geometric_mean(a / b for a, b in zip(self.reached[kind], self.reached["again"], strict=True))


def gain(table: Table) -> Gain:
    tasks = gain_tasks(table)
    kinds: tuple[SearchKind, ...] = ("only", "seed")
    searched = [r for r in tasks if all((r.id, kind) in table.searches for kind in ("again", *kinds))]
    searched = [r for r in searched if _is_in_turns(table, r)]
    reached: dict[SearchKind, list[float]] = {kind: [] for kind in ("again", *kinds)}
    for recipient in searched:
        budget = table.searches[recipient.id, "again"].seconds
        wanted = NEAR * best_in_curves(table, recipient)
        for kind, seconds in reached.items():
            until = table.searches[recipient.id, kind].seconds_until(wanted)
            seconds.append(budget if until is None else until)
    long = [r for r in searched if (r.id, "long") in table.searches]
    rest = [r for r in table.recipients.values() if r not in tasks and (r.id, "only") in table.searches]
    behind = [(r, ratio) for r in rest if (ratio := table.searches[r.id, "only"].ratio) > 1 + BEHIND]
    is_claim = len(long) >= LEAST_GAINING
    saved: dict[SearchKind, float] = {kind: _saved(table, long, kind) for kind in kinds} if is_claim else {}
    return Gain(len(tasks), len(searched), reached, saved, len(long), len(rest), behind)


def _is_in_turns(table: Table, recipient: Recipient) -> bool:
    """Whether the improvements of its searches were timed in turns with each other: 2 % cannot be told otherwise."""
    improvements = table.improvements.get(recipient.id, {})
    return bool(improvements) and improvements.keys() <= table.curve_ratios.get(recipient.id, {}).keys()


def _saved(table: Table, tasks: Sequence[Recipient], kind: SearchKind) -> float:
    """Σ seconds saved early with reuse / Σ seconds that long searches save in the end, over all calls in all models."""
    early = late = 0.0
    for recipient in tasks:
        long, seconds = table.searches[recipient.id, "long"], table.default_seconds[recipient.id]
        weight = seconds * sum(recipient.calls.values())
        early += weight * (1 - table.searches[recipient.id, kind].ratio_after(EARLY * long.seconds))
        late += weight * (1 - min(1.0, long.final_ratio))
    return early / late if late > 0 else 1.0
