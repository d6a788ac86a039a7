"""The strategies on tables: recorded ones, which were measured on a machine, and ones that a formula makes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from stormdrop.testing.replay import Replayed, run_on_table
from stormdrop.testing.tables import Table, TableMeasurer
from stormdrop.tuning.api import tune
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import STRATEGIES, Context, RandomSearch, StrategyFactory
from stormdrop.tuning.strategy import Outcome, Proposal, Strategy, candidate
from tests.support.tables import formula_table

FOLDER = Path(__file__).parents[1] / "data" / "tables"
RECORDED = sorted(FOLDER.glob("*.npz"))
SEEDS = range(5)
SLACK = 1.05


@cache
def recorded(path: Path) -> Table:
    return Table.load(path)


@cache
def made() -> Table:
    return formula_table("C2D", (1, 7, 7, 32, 32, 3, 1, 1), 400)


def random_search(context: Context) -> Strategy:
    return RandomSearch(context.spaces, context.rng)


def measurements(table: Table, factory: StrategyFactory, trials: int) -> float:
    """The median number until one is within 5 % of the optimum."""
    enough = SLACK * table.optimum
    needed = [run_on_table(table, factory, trials, seed, enough=enough).needed(enough) for seed in SEEDS]
    return median(np.inf if n is None else n for n in needed)


# ---- recorded tables
# ---------------------------------------------------------------------------------------------------

on_recorded = pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)


def load(path: Path) -> Table:
    return recorded(path)


def test_three_tables_are_shipped() -> None:
    assert [p.stem for p in RECORDED] == ["c1d", "c2d", "sfm"]


@on_recorded
def test_a_recorded_table_is_large_and_good_points_are_rare_in_it(path: Path) -> None:
    table = load(path)
    assert table.size >= 10_000
    assert 0 < table.share_within(0.05) < 0.005
    assert path.stat().st_size < 300_000


@on_recorded
def test_storm_and_droplet_need_at_most_half_of_what_random_search_needs(path: Path) -> None:
    table = load(path)
    chance = measurements(table, random_search, 3000)
    assert 2 * measurements(table, STRATEGIES["storm+droplet"], 1000) <= chance


# ---- any table
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_search_is_its_seeds_and_measures_nothing_twice(name: str, noise: float) -> None:
    first, again, other = (run_on_table(made(), STRATEGIES[name], 90, seed, noise=noise) for seed in (3, 3, 4))
    assert first == again
    assert len(set(first.candidates)) == len(first.candidates) == len(first.curve)
    assert len(first.curve) <= 90
    if name != "droplet":  # which starts where the prior says, whatever the seed
        assert first != other


def test_the_curve_falls_to_the_best_of_what_was_measured() -> None:
    done = run_on_table(made(), STRATEGIES["storm"], 100, 0)
    assert len(done.curve) == 100
    assert all(a >= b for a, b in zip(done.curve, done.curve[1:]))
    assert made().optimum <= done.curve[-1] < np.inf
    assert done.needed(done.curve[-1]) == 1 + done.curve.index(done.curve[-1])
    assert done.needed(0.0) is None


def test_a_search_ends_with_what_is_enough() -> None:
    enough = 1.3 * made().optimum
    done = run_on_table(made(), random_search, 10_000, 0, enough=enough)
    needed = done.needed(enough)
    assert needed is not None
    assert needed <= len(done.curve) < needed + TuneSettings().batch


def test_random_search_measures_a_whole_table_and_ends() -> None:
    done = run_on_table(made(), random_search, 10**6, 0)
    assert len(done.curve) > 0.95 * made().size
    assert done.curve[-1] <= 1.01 * made().optimum


class Dueller:
    """Measures one candidate, then duels it with a new one."""

    phase = "duel"
    eager = False

    def __init__(self, context: Context) -> None:
        rows = context.spaces[0].sample_legal(40, context.rng)
        self._candidates = [candidate(0, row) for row in rows]
        self.told: list[Outcome] = []

    def ask(self, n: int) -> Proposal:
        if not self.told:
            return Proposal(tuple(self._candidates[:1]))
        return Proposal(tuple(self._candidates[:2]), 5) if len(self.told) == 1 else Proposal(())

    def tell(self, outcomes: object) -> None:
        assert isinstance(outcomes, list)
        self.told += outcomes


def test_timing_a_known_candidate_again_is_counted_apart() -> None:
    strategies: list[Dueller] = []

    def factory(context: Context) -> Strategy:
        strategies.append(Dueller(context))
        return strategies[-1]

    done: Replayed = run_on_table(made(), factory, 100, 1, noise=0.1)
    assert len(done.curve) == 2
    assert done.duels == 5
    assert [len(o.samples) for o in strategies[0].told if o.value is not None] == [0, 5, 5]


def test_the_whole_loop_runs_on_a_table() -> None:
    """Recording, duels, finalists and proof: nothing in it needs a machine."""
    table = made()
    first, again = (
        tune(table.task, table.target, trials=150, seed=2, measurer=TableMeasurer(table, 0.02, 5), spaces=table.spaces)
        for _ in range(2)
    )
    schedules = [t.schedule for t in first.history]
    assert schedules == [t.schedule for t in again.history]
    assert len(set(schedules)) == len(schedules) <= 150
    assert first.best == again.best
    found = made().find(first.best)
    assert found is not None
    measured = [made().find(s) for s in schedules]
    best = min(float(m[0].seconds[m[1]]) for m in measured if m and np.isfinite(m[0].seconds[m[1]]))
    assert float(found[0].seconds[found[1]]) <= 1.05 * best
