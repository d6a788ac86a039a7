"""Figures of reuse: arithmetic on a recorded table, without measuring anything.

Of a model, `speed` is the time of its recorded tasks by default over their time with other schedules; tasks below 1 %
of the model's time are not recorded and left out of both. What is chosen by measuring is chosen by one half of a
candidate's timings and judged by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

from benchmarks.reuse.table import DonorLink, ModelWorth, Recipient, SearchKind, Table, donors_in, family_of
from stormdrop.search.reuse import MOST_DONORS

NEAR = 1.02
"""A search is there when it is within 2 % of the best known."""
LEAST_GAINING = 20
"""With fewer tasks that have something to gain, nothing is claimed."""
EARLY = 0.05
"""Of the time of a long search."""
BEHIND = 0.01
"""What a task may be slower than its default by noise."""
CLEARLY = 0.98
"""A candidate must take less than this share of the default's time in one half of its timings to be chosen."""


def geometric_mean(values: Iterable[float]) -> float:
    each = list(values)
    return exp(sum(map(log, each)) / len(each))


def speed(table: Table, model: str, ratio_of: Callable[[Recipient], float]) -> float:
    """Of a model's recorded tasks, each at a ratio to its default's time."""
    found = table.of_model(model)
    whole = sum(table.weight(r, model) for r in found)
    return whole / sum(table.weight(r, model) * ratio_of(r) for r in found)


def best_ratio(table: Table, recipient: Recipient) -> float:
    """Of the best known schedule; 1 is the default's."""
    best = table.best.get(recipient.id)
    return 1.0 if best is None else min(1.0, best.ratio)


# ---- value of search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskValue:
    """Best known against default. `share`: of the time of the recorded tasks of the model that it weighs most in."""

    recipient: Recipient
    default_seconds: float
    speed: float
    origin: str
    share: float


@dataclass(frozen=True, slots=True)
class ModelValue:
    model: str
    tasks: int
    gaining: int
    speed: float
    """Of its tasks, each timed alone."""
    worth: ModelWorth | None


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
    """The fastest of the default and what these donors give, with `most` only the nearest so many of them.

    Chosen by one half of the timings and judged by the other, both ways round.
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
    """Of a model that may take from all models of a pool."""

    def ratio_of(recipient: Recipient) -> float:
        donors = {id for donor in pool for id in donors_in(table, donor, recipient, model)}
        return reused_ratio(table, recipient, donors, most)

    return speed(table, model, ratio_of)


def others(table: Table, model: str) -> list[str]:
    """Models that are not of its family: what it may take from where it is held out."""
    return [m for m in table.model_names if family_of(m) != family_of(model) and table.of_model(m)]


def expected_gain(table: Table, model: str, donor: str) -> float:
    """What a donor model is expected to save of a model's time, before anything of the model is measured: for each task
    the gain of the donor's nearest winner at home, halved with every unit of distance and for another epilogue.
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
    at_home = 1 - best_ratio(table, table.recipients[link.donor])
    return at_home * 0.5 ** (link.distance + (link.key != "class"))


def shared_classes(table: Table, model: str, donor: str) -> float:
    """The choice of `stormdrop store donors` and of the transfer-tuning paper: Σ over classes of P · √W, P the class's
    share of the time and W the number of the donor model's winners of the class.
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
    """Speeds over the default. `by_donor[target][donor]`: from one donor model; a model's own are its siblings'."""

    models: Sequence[str]
    by_donor: Mapping[str, Mapping[str, float]]
    chosen: Mapping[str, str]
    """By `expected_gain`, of the models outside of the family; empty where there is none."""
    chosen_by_classes: Mapping[str, str]
    """By `shared_classes`."""
    all_donors: Mapping[str, float]
    """From all models outside of the family, every candidate measured."""
    nearest: Mapping[str, float]
    """The same with the candidates of the nearest donors only."""
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
    """Geometric means over models, each with the so many donor models that are expected to help most."""

    size: int
    speed: float
    nearest: float


def pool_curve(table: Table, most: int = 10) -> list[PoolPoint]:
    """Models of the family are never in a pool. Ends where no model has more donors."""
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
    """Fixed by the duels before anything was reused: the best known was faster than the default by 5 % or more."""
    return [r for r in table.recipients.values() if table.has_gain(r)]


@dataclass(frozen=True, slots=True)
class Gain:
    """Of the tasks with something to gain. Without enough of them (`is_claim`), nothing is claimed.

    `reached`: seconds until within 2 % of the best known, by kind of search, for each task; a search that never got
    there counts as the whole budget, that of the search from nothing. `saved`: what a search with reuse saved after 5 %
    of the time of the long search, as a share of what that saved in the end.
    """

    tasks: int
    searched: int
    reached: Mapping[SearchKind, Sequence[float]]
    saved: Mapping[SearchKind, float]
    long_tasks: int
    others: int
    behind: Sequence[tuple[Recipient, float]]
    """Other tasks that search from donors left behind the default by more than 1 %, with their ratios."""

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
    reached: dict[SearchKind, list[float]] = {kind: [] for kind in ("again", *kinds)}
    for recipient in searched:
        budget = table.searches[recipient.id, "again"].seconds
        wanted = NEAR * best_ratio(table, recipient)
        for kind, seconds in reached.items():
            until = table.searches[recipient.id, kind].seconds_until(wanted)
            seconds.append(budget if until is None else until)
    long = [r for r in searched if (r.id, "long") in table.searches]
    rest = [r for r in table.recipients.values() if r not in tasks and (r.id, "only") in table.searches]
    behind = [(r, ratio) for r in rest if (ratio := table.searches[r.id, "only"].ratio) > 1 + BEHIND]
    saved: dict[SearchKind, float] = {kind: _saved(table, long, kind) for kind in kinds} if long else {}
    return Gain(len(tasks), len(searched), reached, saved, len(long), len(rest), behind)


def _saved(table: Table, tasks: Sequence[Recipient], kind: SearchKind) -> float:
    """Σ seconds saved early with reuse / Σ seconds that long searches saved in the end, over all calls."""
    early = late = 0.0
    for recipient in tasks:
        long, seconds = table.searches[recipient.id, "long"], table.default_seconds[recipient.id]
        weight = seconds * sum(recipient.calls.values())
        early += weight * (1 - table.searches[recipient.id, kind].ratio_after(EARLY * long.seconds))
        late += weight * (1 - min(1.0, long.ratio))
    return early / late if late > 0 else 1.0


# ---- zero measurement ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ZeroResult:
    """Of a held-out model: speed over the default with schedules that were taken unmeasured, and the best known's."""

    model: str
    speed: float
    best: float
    taken: int
    """Tasks that got another schedule than their default, of so many."""
    tasks: int

    @property
    def share(self) -> float | None:
        """Of the gain of the best known; None where that is too little to divide by."""
        return (1 - 1 / self.speed) / (1 - 1 / self.best) if self.best > 1 + BEHIND else None


def zero(table: Table) -> list[ZeroResult]:
    """Of models all of whose recorded tasks were decided."""
    found: list[ZeroResult] = []
    for model in table.model_names:
        tasks = table.of_model(model)
        if not tasks or any(r.id not in table.unmeasured for r in tasks):
            continue
        taken = sum(table.unmeasured[r.id] is not None for r in tasks)
        own = speed(table, model, lambda r: table.unmeasured[r.id] or 1.0)
        found.append(ZeroResult(model, own, speed(table, model, lambda r: best_ratio(table, r)), taken, len(tasks)))
    return found
