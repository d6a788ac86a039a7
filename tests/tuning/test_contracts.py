"""What a search may expect of any measurer and of any store. A new one is added to the fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.operators.catalogue import build
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.store.store import Store
from stormdrop.testing.tables import TableMeasurer
from stormdrop.tuning.resources import Measures
from tests.support.records import ELSEWHERE, HERE, failure, make_records, small_task
from tests.support.tables import formula_table


@dataclass(frozen=True, slots=True)
class Station:
    """A measurer, a task, schedules that it can measure, and one of another class."""

    measures: Measures
    task: Task
    good: list[Schedule]
    foreign: Schedule


def drawn(sketch: Sketch, n: int) -> list[Schedule]:
    return [sketch.schedule(p) for p in sketch.sample_legal(n, np.random.default_rng(3))]


@pytest.fixture(scope="module", params=["real", "table"])
def station(request: pytest.FixtureRequest) -> Iterator[Station]:
    target = detect(2)
    foreign = drawn(sketches(build("DOT", (100,)), target)[0], 1)[0]
    if request.param == "real":
        task = build("GMM", (1, 32, 48, 40))
        with Measurer(target, MeasureSettings(min_seconds=0.002)) as measurer:
            yield Station(measurer, task, drawn(sketches(task, target)[0], 3), foreign)
    else:
        table = formula_table("C2D", (1, 7, 7, 32, 32, 3, 1, 1), 400)
        space = table.spaces[0]
        good = [space.schedule(p) for p in space.points[np.isfinite(space.seconds)][:3]]
        yield Station(TableMeasurer(table), table.task, good, foreign)


def test_results_come_in_the_order_of_the_candidates(station: Station) -> None:
    a, b, c = station.good
    results = station.measures.measure(station.task, [a, station.foreign, b, c])
    assert [type(r) for r in results] == [Timing, Failure, Timing, Timing]
    assert isinstance(results[1], Failure)
    assert results[1].kind == "schedule"


def test_a_timing_has_seconds_and_samples(station: Station) -> None:
    for result in station.measures.measure(station.task, station.good):
        assert isinstance(result, Timing)
        assert 0 < result.floor <= result.seconds
        assert result.samples
        assert result.runs >= 1


def test_no_candidates_give_no_results(station: Station) -> None:
    assert station.measures.measure(station.task, []) == []
    assert station.measures.retime(station.task, [], 2) == []


def test_meanwhile_is_called_once(station: Station) -> None:
    called: list[bool] = []
    station.measures.measure(station.task, station.good[:1], meanwhile=lambda: called.append(True))
    assert called == [True]


def test_what_is_clearly_slower_than_the_best_is_stopped_early(station: Station) -> None:
    (alone,) = station.measures.measure(station.task, station.good[:1])
    assert isinstance(alone, Timing)
    assert not alone.stopped_early
    (beaten,) = station.measures.measure(station.task, station.good[:1], best=alone.floor / 100)
    assert isinstance(beaten, Timing)
    assert beaten.stopped_early


def test_retiming_gives_a_sample_of_every_round(station: Station) -> None:
    results = station.measures.retime(station.task, [station.good[0], station.foreign, station.good[1]], 4)
    assert [len(r.samples) if isinstance(r, Timing) else r.kind for r in results] == [4, "schedule", 4]


def test_a_proof_is_a_timing_or_says_what_is_wrong(station: Station) -> None:
    assert isinstance(station.measures.prove(station.task, station.good[0], station.good[1]), Timing)
    assert isinstance(station.measures.prove(station.task, station.good[0]), Timing)
    refused = station.measures.prove(station.task, station.foreign)
    assert isinstance(refused, Failure)
    assert refused.kind == "schedule"


@pytest.fixture(params=["file", "memory"])
def keeps(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s.sqlite") if request.param == "file" else Store.in_memory() as store:
        yield store


def test_trials_come_back_in_order_failures_among_them(keeps: Store) -> None:
    records = [*make_records(3), replace(make_records(1)[0], result=failure()), *make_records(2, seed=1)]
    keeps.add(records[:2])
    keeps.add([])
    keeps.add(records[2:])
    found = keeps.trials(small_task(), HERE, rules=RULES)
    assert [(r.schedule, r.result, r.number) for r in found] == [(r.schedule, r.result, r.number) for r in records]


def test_trials_of_other_tasks_machines_and_temperatures_are_kept_apart(keeps: Store) -> None:
    keeps.add([*make_records(1), *make_records(2, cold=True), *make_records(3, small_task(64))])
    keeps.add(make_records(4, target=ELSEWHERE))
    assert len(keeps.trials(small_task(), HERE, rules=RULES)) == 1
    assert len(keeps.trials(small_task(), HERE.with_cold_weights(True), rules=RULES)) == 2
    assert len(keeps.trials(small_task(64), HERE, rules=RULES)) == 3
    assert len(keeps.trials(small_task(), ELSEWHERE, rules=RULES)) == 4
    assert keeps.trials(small_task(64), ELSEWHERE, rules=RULES) == []
