"""What `stormdrop op` reports of searches that were made up: comparisons, the store's part, the order of things."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import stormdrop.tuning.operator as operator
from stormdrop.cli.op import measured
from stormdrop.measure.result import Failure
from stormdrop.report.operator import print_operator
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.default import default_schedule
from stormdrop.store.record import Record, Versions
from stormdrop.store.store import Store
from stormdrop.tuning.operator import OperatorReport, Plan
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tune import TuneOptions
from stormdrop.tuning.tuned import Tuned
from tests.support.searches import events, one_thread, tiny, tuned

SEARCHES = {
    "random": [9e-6, Failure("timeout", "too slow"), 6e-6],
    "storm": [9e-6, 5e-6],
    "storm+droplet": [9e-6, 3e-6, 2e-6],
}


class Tuner:
    """Stands in for `tune`: gives back what was made up, and remembers how it was called."""

    def __init__(self, stopped: str = "trials") -> None:
        self.calls: list[tuple[TuneOptions, Store | None]] = []
        self.seen: list[int] = []
        self._stopped = stopped

    def __call__(
        self, subjects: list[Subject], target: Any, options: TuneOptions, *, store: Store | None, listen: Any
    ) -> tuple[Tuned]:
        task, name = subjects[0].tasks[0].task, str(options.search)
        self.calls.append((options, store))
        search = tuned(SEARCHES[name], name, stopped=self._stopped, task=task)
        tasks = (replace(search.tasks[0], schedule=default_schedule(task, target)),)
        search = replace(search, target=target, tasks=tasks, seed=options.seed)
        if store is not None:
            self.seen.append(store.known(task, target))
            store.add([record(search, t.result, t.number) for t in search.history])
        for event in events(search, options.trials, options.seconds):
            listen(event)
        return (search,)


def record(search: Tuned, result: Any, number: int) -> Record:
    features = np.zeros(len(FEATURES), np.float32)
    versions = Versions("0", "0", FEATURES.version)
    return Record(
        search.task,
        search.best,
        search.target,
        result,
        versions,
        search.strategy,
        0,
        number,
        0.1,
        features=features,
    )


class Meter:
    """A machine whose peak is always 100 GFLOP/s."""

    def __init__(self, *_: object) -> None:
        pass

    def gflops(self) -> float:
        return 100.0


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    made_up = Tuner()
    monkeypatch.setattr(operator, "tune", made_up)
    monkeypatch.setattr(operator, "peak_meter", Meter)
    return made_up


def plan(*searches: str, store: Store | None = None) -> Plan:
    return Plan("GMM", (1, 13, 17, 11), tiny(), one_thread(), searches, 3, 9.0, 5, store)


def report_of(wanted: Plan) -> tuple[OperatorReport, str]:
    said = io.StringIO()
    return measured(wanted, Console(file=said, width=300, markup=False, highlight=False), quiet=False), said.getvalue()


def text_of(report: OperatorReport, show: Sequence[str] = ("loops",)) -> str:
    out = io.StringIO()
    print_operator(Console(file=out, width=300, markup=False, highlight=False), report, show)
    return out.getvalue()


def test_budgets_and_seed_reach_the_search(tuner: Tuner) -> None:
    report_of(plan("storm"))
    ((options, store),) = tuner.calls
    assert (options.search, options.trials, options.seconds, options.seed, store) == ("storm", 3, 9.0, 5, None)


def test_one_search_has_its_keys_beside_the_operators(tuner: Tuner) -> None:
    found = json.loads(json.dumps(report_of(plan("random"))[0].to_json()))
    assert (found["op"], found["peak_gflops"], found["strategy"], found["trials"]) == ("GMM", 100.0, "random", 3)
    assert found["failures"] == {"timeout": 1}
    assert found["progress"] == [[1, 0.5, 9e-6], [3, 1.5, 6e-6]]
    assert found["best"]["share_of_peak"] == pytest.approx(2 * 13 * 17 * 11 / 6e-6 / 1e11)
    assert "searches" not in found


def test_several_searches_are_a_list(tuner: Tuner) -> None:
    found = report_of(plan("random", "storm"))[0].to_json()
    assert list(found) == ["op", "args", "dtype", "threads", "peak_gflops", "searches"]
    searches: Any = found["searches"]
    assert [s["strategy"] for s in searches] == ["random", "storm"]


def test_a_comparison_is_one_table_and_shows_the_best_kernel(tuner: Tuner) -> None:
    report, said = report_of(plan("random", "storm+droplet", "storm"))
    text = text_of(report)
    lines = [line.split() for line in text.splitlines() if line.startswith(("random ", "storm ", "storm+droplet "))]
    assert [(line[0], line[1]) for line in lines] == [("random", "6.00"), ("storm+droplet", "2.00"), ("storm", "5.00")]
    assert "schedule, the best, found by storm+droplet" in text
    assert "time      2.00 µs" in text
    assert said.count("tuning GMM") == 3


def test_compared_searches_see_nothing_of_each_other_and_are_all_kept(tuner: Tuner) -> None:
    store = Store.in_memory()
    wanted = plan("random", "storm", store=store)
    report_of(wanted)
    assert tuner.seen == [0, 0]
    assert store.known(wanted.task, wanted.target) == 5
    again, said = report_of(wanted)
    assert tuner.seen == [0, 0, 0, 0]
    assert "is in the store" not in said
    assert again.is_comparison


def test_a_task_that_is_known_is_announced_first_with_its_time(tuner: Tuner) -> None:
    store = Store.in_memory()
    wanted = plan("storm", store=store)
    assert report_of(wanted)[1].startswith("tuning GMM")
    said = report_of(wanted)[1].splitlines()
    speed = "5.00 µs, 1.0 GFLOP/s, 1.0% of peak"
    assert said[0] == f"GMM 1 13 17 11 is in the store, at {speed}, found by storm; the search begins from it"
    assert tuner.seen == [0, 2]


def test_an_interrupted_search_is_the_last(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    monkeypatch.setattr(operator, "tune", Tuner("interrupted"))
    report, said = report_of(plan("random", "storm", "storm+droplet"))
    assert len(report.searches) == 1
    assert "not run: storm, storm+droplet" in said


def test_an_unsteady_peak_is_told(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    rates = iter([100.0, 50.0])
    monkeypatch.setattr(Meter, "gflops", lambda self: next(rates))  # pyright: ignore[reportUnknownLambdaType]
    assert "the peak moved between 50 and 100 GFLOP/s" in report_of(plan("storm"))[1]


def test_a_quiet_run_leaves_progress_to_the_log(tuner: Tuner) -> None:
    said = io.StringIO()
    measured(plan("storm"), Console(file=said), quiet=True)
    assert said.getvalue() == ""


def test_the_report_names_the_file_that_keeps_the_trials(tuner: Tuner, tmp_path: Any) -> None:
    with Store.open(tmp_path / "x.sqlite") as store:
        report = report_of(plan("storm", store=store))[0]
    assert f"stored    {tmp_path / 'x.sqlite'}" in text_of(report)
    assert report.to_json()["store"] == str(tmp_path / "x.sqlite")
    assert report_of(plan("storm", store=Store.in_memory()))[0].to_json()["store"] is None
