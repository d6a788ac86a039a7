"""Searches with a planted fault: what tests of the real ones must notice."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from stormdrop.ir.tensor import Task
from stormdrop.search import descent, session
from stormdrop.search.random import RandomSearch
from stormdrop.search.reuse import Source
from stormdrop.search.strategies import Context
from stormdrop.search.strategy import Candidate, Outcome, Points, Proposal, Strategy, candidate
from stormdrop.space.default import default_schedule
from stormdrop.space.knobs import Knob
from stormdrop.space.moves import Move, neighbour_rows
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

DRAWN = 4096


def picks_at_random(context: Context) -> Strategy:
    """A storm that ranks nothing."""
    return RandomSearch(context.spaces, context.rng, context.seeds)


class FavouritesOnly:
    """A storm that never explores: it measures what the estimate likes best and learns nothing from it."""

    phase = "storm"
    eager = True

    def __init__(self, context: Context) -> None:
        priors: dict[Candidate, float] = {}
        for k, space in enumerate(context.spaces):
            points = space.sample_legal(DRAWN, context.rng)
            priors |= {candidate(k, p): float(seconds) for p, seconds in zip(points, space.prior(points))}
        self._left = list(dict.fromkeys([*context.seeds, *sorted(priors, key=priors.__getitem__)]))

    def ask(self, n: int) -> Proposal:
        now, self._left = self._left[:n], self._left[n:]
        return Proposal(tuple(now))

    def tell(self, outcomes: Sequence[Outcome]) -> None: ...


@contextmanager
def droplets_that_never_move() -> Generator[None]:
    """A descent has no neighbours."""

    def none(knobs: tuple[Knob, ...], point: Sequence[int]) -> tuple[list[Move], Points]:
        return [], np.zeros((0, len(knobs)), np.int64)

    with patch.object(descent, "neighbour_rows", none):
        yield


@contextmanager
def droplets_that_move_one_knob() -> Generator[None]:
    """A descent knows the moves of its first knob that has any."""

    def few(knobs: tuple[Knob, ...], point: Sequence[int]) -> tuple[list[Move], Points]:
        moves, rows = neighbour_rows(knobs, point)
        first = min((m.touched[0] for m in moves if len(m.touched) == 1), default=0)
        kept = [i for i, m in enumerate(moves) if set(m.touched) == {first}]
        return [moves[i] for i in kept], rows[kept]

    with patch.object(descent, "neighbour_rows", few):
        yield


@contextmanager
def refits_that_give_the_default() -> Generator[None]:
    """Whatever the donor, re-fitting gives the task's default schedule."""

    def default(task: Task, sources: Sequence[Source], target: Target, rules: Sequence[Rule] = RULES) -> list[Schedule]:
        return [default_schedule(task, target)] if sources else []

    with patch.object(session, "refitted", default):
        yield
