"""Searches with a planted fault: what tests of the real ones must notice."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from stormdrop.ir.tensor import Task
from stormdrop.space import refit
from stormdrop.space.default import default_schedule
from stormdrop.space.knobs import Knob, Move, neighbour_rows
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.target.machine import Target
from stormdrop.tuning import descent, evolve, session
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.evolve import Codes, Genome, Rng, Rows
from stormdrop.tuning.reuse import Source
from stormdrop.tuning.session import Session
from stormdrop.tuning.strategies import Context, RandomSearch
from stormdrop.tuning.strategy import Candidate, Outcome, Points, Proposal, Strategy, candidate

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
def storms_without_mutation() -> Generator[None]:
    """Children are their parents: a storm knows nothing but its seeds and what it draws at random."""

    def same(g: Genome, parents: Rows, operators: Codes, strength: float, rng: Rng) -> Rows:
        return parents.copy()

    def unmoved(to: Genome, rows: Rows, donors: Points, link: evolve.SharedKnobs) -> Rows:
        return rows

    with patch.object(evolve, "mutated", same), patch.object(evolve, "moved", unmoved):
        yield


@contextmanager
def models_that_learn_nothing() -> Generator[None]:
    """No trees are ever grown: the estimate ranks."""

    def refresh(model: CostModel) -> bool:
        return False

    with patch.object(CostModel, "refresh", refresh):
        yield


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
def droplets_that_only_go_up() -> Generator[None]:
    """A descent knows half of the moves."""

    def up(knobs: tuple[Knob, ...], point: Sequence[int]) -> tuple[list[Move], Points]:
        moves, rows = neighbour_rows(knobs, point)
        kept = [i for i, m in enumerate(moves) if m.sign > 0]
        return [moves[i] for i in kept], rows[kept]

    with patch.object(descent, "neighbour_rows", up):
        yield


@contextmanager
def refits_that_give_the_default() -> Generator[None]:
    """Whatever the donor, re-fitting gives the task's default schedule."""

    def default(task: Task, sources: Sequence[Source], target: Target, rules: Sequence[Rule] = RULES) -> list[Schedule]:
        return [default_schedule(task, target)] if sources else []

    with patch.object(session, "refitted", default):
        yield


@contextmanager
def refits_that_forget_the_tiles() -> Generator[None]:
    """A donor's derivation is carried over, its trip counts are not: every knob takes its least choice."""

    def forgotten(carried: object, way: refit.Way) -> Mapping[str, int]:
        return {}

    with patch("stormdrop.space.refit._Carried._moved", forgotten):
        yield


@contextmanager
def refits_that_drop_the_anchors_steps() -> Generator[None]:
    """Where epilogues differ, the anchor stages are derived as if the donor had chosen nothing for them."""

    def derived(
        task: Task, number: int, steps: object, target: Target, rules: tuple[Rule, ...]
    ) -> list[tuple[Sketch, dict[str, int]]]:
        return with_epilogue(task, number, frozenset(), target, rules)

    with_epilogue = refit._with_epilogue
    with patch.object(refit, "_with_epilogue", derived):
        yield


@contextmanager
def refits_of_equal_classes_only() -> Generator[None]:
    """Tasks that share the anchor class alone give each other nothing."""

    def nothing(origin: object, values: Mapping[str, int], task: Task) -> None:
        return None

    with patch.object(refit, "_of_anchor", nothing):
        yield


@contextmanager
def donors_that_are_ranked_the_wrong_way_round() -> Generator[None]:
    """The worst-ranked of what other tasks give are measured first."""

    def reversed_score(one: Session, c: Candidate) -> float:
        return -score(one, c)

    score = Session._score
    with patch.object(Session, "_score", reversed_score):
        yield
