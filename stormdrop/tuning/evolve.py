"""Evolution as array operations: thousands of rows are mutated, crossed, compared and selected at once.

A row of a `Genome` holds, per knob, the place of its value among the knob's choices; operators turn matrices of places
into matrices of places. A canonical value that is no choice (it was clamped) stands for the next larger choice. That
choice is clamped to it again: values(places(p)) has the canonical form p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.knobs import Knob
from stormdrop.tuning.strategy import Points

Rng = np.random.Generator
Rows = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Codes = NDArray[np.int8]
MAX_KNOBS = 1024
MAX_TABLE = 1 << 20
_FACTORS = np.array([0.25, 0.5, 2.0, 4.0])


class Genome:
    """The choices of a space's knobs, laid out so that a single array search serves any mixture of knobs."""

    def __init__(self, knobs: Sequence[Knob]) -> None:
        if len(knobs) > MAX_KNOBS:
            raise ValueError(f"a space has at most {MAX_KNOBS} knobs, not {len(knobs)}")
        self.names = tuple(k.name for k in knobs)
        self.counts: Rows = np.array([len(k.choices) for k in knobs], dtype=np.int64)
        self.live: Rows = np.flatnonzero(self.counts > 1)
        self._first: Rows = np.concatenate([[0], np.cumsum(self.counts)])[:-1].astype(np.int64)
        self._choices: Rows = np.array([c for k in knobs for c in k.choices], dtype=np.int64)
        self._stride = float(self._choices.max(initial=0)) + 2.0
        # Ascending over all knobs: knob k's choices lie between k and k + 1 strides.
        self._keys: NDArray[np.float64] = self._choices + self._stride * np.repeat(np.arange(len(knobs)), self.counts)
        self._table = self._place_table() if self._stride * len(knobs) <= MAX_TABLE else None
        axes = [k.axis for k in knobs]
        pairs = [(i, j) for i, j in permutations(self.live, 2) if axes[i] == axes[j] is not None]
        self.siblings: Rows = np.array(pairs).reshape(-1, 2)
        """Ordered pairs of knobs of one axis, between which a factor can be shifted."""
        names = [k.axis or k.name for k in knobs], [k.stage for k in knobs]
        self.groups: tuple[Rows, ...] = tuple(map(_numbered, names))
        """For every knob the number of its axis, and of its stage; crossover keeps these groups together."""

    @property
    def combinations(self) -> int:
        """The number of rows; equal programs count separately."""
        return prod(self.counts.tolist())

    def everything(self) -> Rows:
        """Returns every row; check `combinations` first."""
        if not len(self.counts):
            return np.zeros((1, 0), np.int64)
        return np.stack(np.unravel_index(np.arange(self.combinations), tuple(self.counts)), axis=1)

    def random(self, n: int, rng: Rng) -> Rows:
        return rng.integers(0, self.counts, size=(n, len(self.counts)))

    def places(self, points: Points) -> Rows:
        """Returns the place of the smallest choice that is not below each value."""
        values = np.minimum(points, int(self._stride) - 1)
        if self._table is not None:
            return self._table[values + int(self._stride) * np.arange(len(self.counts))]
        return self._searched(values)

    def _searched(self, values: Points) -> Rows:
        keys = values + self._stride * np.arange(len(self.counts))
        return np.minimum(np.searchsorted(self._keys, keys) - self._first, self.counts - 1)

    def _place_table(self) -> Rows:
        """Returns the places of all values from 0 on, knob after knob. A look-up takes a third of a search's time."""
        values = np.broadcast_to(np.arange(int(self._stride))[:, None], (int(self._stride), len(self.counts)))
        return self._searched(values).T.reshape(-1)

    def values(self, rows: Rows) -> Points:
        return self._choices[self._first + rows]

    def value(self, knobs: Rows, places: Rows) -> Points:
        """Returns the values of single entries."""
        return self._choices[self._first[knobs] + places]

    def nearest(self, knobs: Rows, values: NDArray[Any]) -> Rows:
        """Returns, for single entries, the place of the choice closest by ratio, the smaller on a tie; 0 counts as a
        half.
        """
        first, last = self._first[knobs], self._first[knobs] + self.counts[knobs] - 1
        keys = np.clip(values, 0.0, self._stride - 1.0) + self._stride * knobs
        above = np.clip(np.searchsorted(self._keys, keys), first, last)
        below = np.maximum(above - 1, first)
        wanted = np.maximum(values, 0.5)
        up, down = (np.abs(np.log2(np.maximum(self._choices[i], 0.5) / wanted)) for i in (above, below))
        return np.where(up < down, above, below) - first


def _numbered(names: Sequence[str]) -> Rows:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


# Operators. Each takes rows of places and returns new rows; a row without a possible move stays unchanged.


def stepped(g: Genome, rows: Rows, rng: Rng) -> Rows:
    """Moves one knob to an adjacent choice."""
    rows, i = rows.copy(), np.arange(len(rows))
    k = rng.choice(g.live, size=len(rows))
    rows[i, k] = _stepped(g, k, rows[i, k], rng)
    return rows


def _stepped(g: Genome, knobs: Rows, places: Rows, rng: Rng) -> Rows:
    step = np.where(rng.random(len(places)) < 0.5, 1, -1)
    moved = places + step
    return np.where((moved < 0) | (moved >= g.counts[knobs]), places - step, moved)


def redrawn(g: Genome, rows: Rows, rng: Rng) -> Rows:
    """Sets one knob to any of its choices."""
    rows = rows.copy()
    k = rng.choice(g.live, size=len(rows))
    rows[np.arange(len(rows)), k] = rng.integers(0, g.counts[k])
    return rows


def scaled(g: Genome, rows: Rows, rng: Rng) -> Rows:
    """Moves one knob to the choice nearest to a half, a quarter, twice or four times its value."""
    rows, i = rows.copy(), np.arange(len(rows))
    k = rng.choice(g.live, size=len(rows))
    rows[i, k] = g.nearest(k, g.value(k, rows[i, k]) * rng.choice(_FACTORS, size=len(rows)))
    return rows


def scattered(g: Genome, rows: Rows, rng: Rng, strength: float = 1.0) -> Rows:
    """Changes several knobs at once, about two at strength 1: each to an adjacent choice or to any choice."""
    rows = rows.copy()
    mean = np.minimum(1.0 + strength * rng.exponential(size=(len(rows), 1)), len(g.live))
    row, at = np.nonzero(rng.random((len(rows), len(g.live))) * len(g.live) < mean)
    k = g.live[at]
    rows[row, k] = np.where(rng.random(len(k)) < 0.5, _stepped(g, k, rows[row, k], rng), rng.integers(0, g.counts[k]))
    return rows


def shifted(g: Genome, rows: Rows, rng: Rng) -> Rows:
    """Moves a factor from one level of an axis to another: a -> a·f, b -> b / f, to the nearest choices."""
    if not len(g.siblings):
        return stepped(g, rows, rng)
    rows, i = rows.copy(), np.arange(len(rows))
    a, b = rng.choice(g.siblings, size=len(rows)).T
    before = g.value(a, rows[i, a])
    # Half of the factors lead to an adjacent choice; these are smaller than two if choices are dense.
    near = _stepped(g, a, rows[i, a], rng)
    is_near = rng.random(len(rows)) < 0.5
    rows[i, a] = np.where(is_near, near, g.nearest(a, before * rng.choice(_FACTORS, size=len(rows))))
    rows[i, b] = g.nearest(b, g.value(b, rows[i, b]) * before / np.maximum(g.value(a, rows[i, a]), 1))
    return rows


def crossed(g: Genome, rows: Rows, mates: Rows, rng: Rng) -> Rows:
    """Combines knobs of two parents: each knob singly, or all knobs of an axis or of a stage together."""
    own = rng.random(rows.shape) < 0.5
    way = rng.integers(0, 1 + len(g.groups), size=len(rows))
    for number, group in enumerate(g.groups, 1):
        together = rng.random((len(rows), int(group.max(initial=0)) + 1)) < 0.5
        own = np.where((way == number)[:, None], together[:, group], own)
    return np.where(own, rows, mates)


@dataclass(frozen=True, slots=True)
class Operators:
    """The relative frequency of each operator; `move` copies values from one space to another."""

    step: float = 0.25
    redraw: float = 0.15
    scale: float = 0.1
    scatter: float = 0.15
    shift: float = 0.15
    cross: float = 0.15
    move: float = 0.05

    def drawn(self, n: int, strength: float, rng: Rng) -> Codes:
        """Returns the number of an operator for each of `n` children; more strength favours operators with larger
        changes.
        """
        stronger = {"scatter": strength, "redraw": strength}
        weights = np.array([getattr(self, name) * stronger.get(name, 1.0) for name in OPERATORS])
        if not weights.sum():
            weights[OPERATORS.index("scatter")] = 1.0
        return rng.choice(len(weights), size=n, p=weights / weights.sum()).astype(np.int8)


OPERATORS = tuple(f.name for f in fields(Operators))
_OF_ONE_ROW = {"step": stepped, "redraw": redrawn, "scale": scaled, "shift": shifted}


def mutated(g: Genome, parents: Rows, operators: Codes, strength: float, rng: Rng) -> Rows:
    """Returns a child of each parent, by the operator assigned to it; rows that are to move between spaces stay
    unchanged.
    """
    rows = parents.copy()
    for code in np.unique(operators):
        at = np.flatnonzero(operators == code)
        match OPERATORS[code]:
            case "scatter":
                rows[at] = scattered(g, parents[at], rng, strength)
            case "cross":
                rows[at] = crossed(g, parents[at], parents[rng.integers(len(parents), size=len(at))], rng)
            case "move":
                pass
            case name:
                rows[at] = _OF_ONE_ROW[name](g, parents[at], rng)
    return rows


@dataclass(frozen=True, slots=True)
class SharedKnobs:
    """The knobs that two spaces have in common: their columns in the destination space and in the source space."""

    to: Rows
    source: Rows


def linked(to: Genome, source: Genome) -> SharedKnobs | None:
    """Returns the knobs that `to` and `source` share by name; None if they are less than half of the knobs that can
    move.
    """
    at = {name: i for i, name in enumerate(source.names)}
    common = np.array([k for k in to.live if to.names[k] in at], dtype=np.int64)
    if not len(common) or 2 * len(common) < len(to.live):
        return None
    return SharedKnobs(common, np.array([at[to.names[k]] for k in common], dtype=np.int64))


def moved(to: Genome, rows: Rows, donors: Points, link: SharedKnobs) -> Rows:
    """Returns rows of one space with the values of another's points for knobs of both, at the nearest choices."""
    rows = rows.copy()
    shape = (len(rows), len(link.to))
    knobs = np.broadcast_to(link.to, shape)
    rows[:, link.to] = to.nearest(knobs.reshape(-1), donors[:, link.source].reshape(-1)).reshape(shape)
    return rows


# Telling rows apart, drawing parents, picking.


class Hasher:
    """Rows of integers to 64 bits, by random odd multipliers; different rows collide once in 2^64 pairs or so."""

    def __init__(self, width: int) -> None:
        draws = np.random.default_rng(0x5EED).integers(0, 2**63, size=width, dtype=np.uint64)
        self._multipliers: Hashes = draws * np.uint64(2) + np.uint64(1)

    def __call__(self, points: Points) -> Hashes:
        return points.astype(np.uint64) @ self._multipliers


def unseen(hashes: Hashes, *seen: Hashes) -> NDArray[np.int64]:
    """Returns the first index of each value that no other array holds, in order."""
    first = np.unique(hashes, return_index=True)[1]
    for others in seen:
        first = first[~np.isin(hashes[first], others)]
    return np.sort(first)


def drawn(count: int, n: int, pressure: float, rng: Rng) -> NDArray[np.int64]:
    """Returns `n` of `count` ranks, with density falling as (1 - rank / count) ^ pressure: 0 draws evenly."""
    ranks = count * (1.0 - rng.random(n) ** (1.0 / (1.0 + pressure)))
    return np.minimum(ranks.astype(np.int64), count - 1)


def spread(points: Points, n: int, near: int, chosen: Points) -> list[int]:
    """Returns the first `n` rows, best first; at most `near` of them differ in at most one column from an earlier row.

    `chosen` are rows selected before, elsewhere. Rows that were passed over fill up at the end.
    """
    selected: list[int] = []
    close = np.zeros(len(points), bool)
    for row in chosen:
        close |= (points != row).sum(axis=1) <= 1
    passed: list[int] = []
    for i in range(len(points)):
        if len(selected) == n:
            break
        if close[i]:
            if not near:
                passed.append(i)
                continue
            near -= 1
        selected.append(i)
        close |= (points != points[i]).sum(axis=1) <= 1
    return selected + passed[: n - len(selected)]
