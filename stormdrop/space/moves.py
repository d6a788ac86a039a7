"""Moves: from one point to its neighbours. Coordinate descent, on the prior or on measurements, uses only these.

    up, down      one knob to an adjacent choice
    shift         one knob of an axis up and another of the same axis down, or the reverse

A step counts choices, not values: step 2 is two choices further. A canonical value may lie between two choices; these
two choices are its neighbours. The rows after a move consist of choices; they may be neither canonical nor legal.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.knobs import Knob

Points = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """A step of `knob` up (+1) or down (-1); `partner`, a knob of the same axis, keeps the product of both."""

    knob: int
    sign: int
    partner: int | None = None

    @property
    def touched(self) -> tuple[int, ...]:
        return (self.knob,) if self.partner is None else (self.knob, self.partner)


@lru_cache(maxsize=256)
def moves_of(knobs: tuple[Knob, ...]) -> tuple[Move, ...]:
    """Returns all moves: both signs of each knob, and of each ordered pair of knobs of one axis."""
    axes = [k.axis or k.name for k in knobs]
    free = [i for i, k in enumerate(knobs) if len(k.choices) > 1]
    partners = {i: (None, *(j for j in free if axes[j] == axes[i] and j != i)) for i in free}
    return tuple(Move(i, sign, j) for i in free for sign in (-1, 1) for j in partners[i])


def moved(knobs: Sequence[Knob], point: Sequence[int], moves: Sequence[Move], step: int = 1) -> tuple[int, ...] | None:
    """Returns the row after several moves of different knobs. Moves beyond the last choice are skipped.

    Returns None if the row does not change.
    """
    row = list(point)
    for move in moves:
        value = stepped(knobs[move.knob].choices, point[move.knob], move.sign * step)
        if value is None:
            continue
        row[move.knob] = value
        if move.partner is not None:
            row[move.partner] = knobs[move.partner].nearest(point[move.partner] * point[move.knob] / max(value, 1))
    return None if row == list(point) else tuple(row)


def stepped(choices: Sequence[int], value: int, step: int) -> int | None:
    """Returns the choice `step` choices above or below a value, clamped to the last; None if there is no choice."""
    if step > 0:
        above = bisect_right(choices, value)
        return choices[min(above + step, len(choices)) - 1] if above < len(choices) else None
    below = bisect_left(choices, value)
    return choices[max(below + step, 0)] if below > 0 else None


def neighbour_rows(knobs: tuple[Knob, ...], point: Sequence[int]) -> tuple[list[Move], Points]:
    """Returns the moves that change a point, and the rows after them."""
    (_, numbers), rows = Neighbourhood.of(knobs).rows(np.array([point], dtype=np.int64).reshape(1, len(knobs)))
    moves = moves_of(knobs)
    return [moves[k] for k in numbers], rows


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """All moves of some knobs as arrays: `moved`, vectorised over points and moves."""

    choices: NDArray[np.float64]  # a row per knob, padded with infinity
    counts: NDArray[np.int64]
    knob: NDArray[np.int64]  # by move
    up: NDArray[np.bool_]
    shifts: NDArray[np.int64]  # the moves with a partner
    partner: NDArray[np.int64]  # by shift: the partner's knob

    @staticmethod
    @lru_cache(maxsize=256)
    def of(knobs: tuple[Knob, ...]) -> Neighbourhood:
        moves = moves_of(knobs)
        choices = np.full((len(knobs), max((len(k.choices) for k in knobs), default=1)), np.inf)
        for row, k in zip(choices, knobs):
            row[: len(k.choices)] = k.choices
        shifts = [k for k, m in enumerate(moves) if m.partner is not None]
        return Neighbourhood(
            choices,
            np.array([len(k.choices) for k in knobs], np.int64),
            np.array([m.knob for m in moves], np.int64),
            np.array([m.sign > 0 for m in moves], bool),
            np.array(shifts, np.int64),
            np.array([moves[k].partner for k in shifts], np.int64),
        )

    def rows(self, points: Points, step: int = 1) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], Points]:
        """Returns ((points, moves), rows): each changed row after a move of a point, with its point and its move."""
        here = points.astype(np.float64)
        n = len(self.knob)
        table = np.arange(len(self.counts))
        below = (self.choices < here[:, :, None]).sum(axis=2)
        above = (self.choices <= here[:, :, None]).sum(axis=2)
        higher = self.choices[table, np.minimum(above + step, self.counts) - 1]
        lower = self.choices[table, np.maximum(below - step, 0)]
        value = np.where(self.up, higher[:, self.knob], lower[:, self.knob])
        possible = np.where(self.up, (above < self.counts)[:, self.knob], (below > 0)[:, self.knob])
        rows = np.repeat(here[:, None, :], n, axis=1)
        rows[:, np.arange(n), self.knob] = value
        if len(self.shifts):
            mover = self.knob[self.shifts]
            wanted = here[:, self.partner] * here[:, mover] / np.maximum(value[:, self.shifts], 1.0)
            rows[:, self.shifts, self.partner] = self._nearest(wanted)
        possible &= (rows != here[:, None, :]).any(axis=2)
        point, move = np.nonzero(possible)
        return (point, move), rows[point, move].astype(np.int64)

    def _nearest(self, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns `Knob.nearest` of every partner, vectorised."""
        choices = self.choices[self.partner]
        above = (choices < wanted[:, :, None]).sum(axis=2)
        table = np.arange(len(self.partner))
        low = choices[table, np.maximum(above - 1, 0)]
        high = choices[table, np.minimum(above, self.counts[self.partner] - 1)]
        wanted = np.maximum(wanted, 0.5)
        return np.where(wanted * wanted <= np.maximum(low, 0.5) * high, low, high)
