"""Recording a table with a measurer that answers by a formula: what is measured, what is held out, and resumption."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.reuse.__main__ import made_store
from benchmarks.reuse.budgets import PASSES, Budgets, expected_seconds
from benchmarks.reuse.held_out import HeldOutStores
from benchmarks.reuse.networks import Network
from benchmarks.reuse.recording import Recorder, commit, spread
from benchmarks.reuse.table import Table, TableFile, mark_of, read_rows
from benchmarks.reuse.turns import in_turns, together
from stormdrop.base.errors import RunError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import DEFAULT, DONOR
from stormdrop.store.store import Store
from stormdrop.target import Surroundings
from stormdrop.target.cpu import cross
from stormdrop.testing.tables import AnsweringMeasurer, Request
from stormdrop.tuning.api import tune
from stormdrop.tuning.reuse import MOST_DONORS
from tests.tuning.test_tune import by_knobs

TARGET = cross("avx2").with_threads(2)
BUDGETS = Budgets(seconds=None, trials=12, gain_seconds=None, long_trials=40)


class Killed(BaseException):
    """Stands for the end of the process."""


@dataclass
class Formula(AnsweringMeasurer):
    """Times by the sum of the knobs; dies after so many requests."""

    lives: int | None = None
    searched: list[Task] = field(default_factory=list[Task])
    broken: frozenset[Schedule] = frozenset()

    def answers(self, asked: Request) -> list[Result]:
        if self.lives is not None:
            if self.lives == 0:
                raise Killed
            self.lives -= 1
        if asked.kind == "measure" and (not self.searched or self.searched[-1] is not asked.task):
            self.searched.append(asked.task)
        found = [Failure("crash", "it died") if s in self.broken else by_knobs(s) for s in asked.candidates]
        if asked.kind != "retime":
            return found
        return [replace(r, samples=r.samples[: asked.rounds]) if isinstance(r, Timing) else r for r in found]


@cache
def networks() -> tuple[Network, ...]:
    """Three models of matrix products; the second and the third share one."""
    a, b, c, shared = (build("GMM", (1, n, 24, 40)) for n in (16, 24, 40, 56))
    first = Network("alexnet", False, ((a, 2),))
    return first, Network("vgg16", False, ((b, 1), (shared, 1))), Network("vgg19", False, ((c, 1), (shared, 3)))


def digests() -> tuple[str, set[str]]:
    """Of alexnet's task, and of those of the other family."""
    return networks()[0].tasks[0][0].digest, {t.digest for n in networks()[1:] for t, _ in n.tasks}


def recorder(path: Path, measurer: Formula | None = None, models: Iterable[Network] = ()) -> Recorder:
    measurers = {False: measurer or Formula()}
    trials = Store.open(path.with_suffix(".sqlite"))
    return Recorder(TableFile(path), tuple(models) or networks(), TARGET, measurers, BUDGETS, trials, lambda _: None)


def record(path: Path, measurer: Formula | None = None, models: Iterable[Network] = ()) -> Table:
    found = recorder(path, measurer, models)
    found.winners()
    found.donors()
    found.reuse(path.parent)
    return found.table


def kinds(path: Path) -> Counter[tuple[str, ...]]:
    return Counter((row["kind"], row["id"], row.get("how", "")) for row in read_rows(path))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "table.jsonl"
    record(path)
    return path


def test_every_task_is_searched_once_whatever_the_number_of_its_models(recorded: Path) -> None:
    table = Table.of(read_rows(recorded))
    assert len(table.recipients) == 4
    assert set(table.searches) == {(id, how) for id in table.recipients for how in ("nothing", "only")} | {
        (id, how) for id in table.recipients for how in ("seed", "again") if table.first_best[id].ratio <= 1 / 1.05
    }
    assert [dict(r.calls) for r in table.recipients.values()][2] == {"vgg16": 1, "vgg19": 3}
    assert set(table.best) == set(table.recipients)


def test_rows_say_what_was_measured_where_and_by_which_version(recorded: Path) -> None:
    for row in read_rows(recorded):
        assert {"commit", "cpu", "target", "date", "digest", "class"} <= set(row)
        assert row["target"] == TARGET.key()
        if row["kind"] != "recipient":
            assert row["models"]
            assert row["families"] == sorted({"alexnet" if m == "alexnet" else "vgg" for m in row["models"]})


def test_ratios_are_those_of_the_measurer(recorded: Path) -> None:
    table = Table.of(read_rows(recorded))
    tasks = {t.digest: t for network in networks() for t, _ in network.tasks}
    for (id, _), search in table.searches.items():
        task = tasks[table.recipients[id].digest]
        default, winner = by_knobs(default_schedule(task, TARGET)), by_knobs(search.winner)
        assert not isinstance(default, Failure)
        assert not isinstance(winner, Failure)
        assert search.ratio == pytest.approx(winner.seconds / default.seconds, abs=1e-4)
        assert search.final_ratio == search.ratio


def test_improvements_of_compared_searches_are_timed_in_the_turns_of_the_best_known(recorded: Path) -> None:
    table = Table.of(read_rows(recorded))
    gaining = [r for r in table.recipients.values() if table.has_gain(r)]
    assert gaining
    for (id, kind), search in table.searches.items():
        is_compared = kind != "nothing" and table.recipients[id] in gaining
        assert bool(search.curve) == is_compared
        assert [p.ratio for p in search.curve] == [table.curve_ratios[id][p.mark] for p in search.curve]
    assert all(mark_of(table.best[r.id].schedule) in table.curve_ratios[r.id] for r in gaining)


def test_every_task_is_timed_with_the_winners_of_all_others(recorded: Path) -> None:
    table = Table.of(read_rows(recorded))
    for id, links in table.links.items():
        assert {link.donor for link in links} == set(table.recipients) - {id}
        assert all(link.marks and link.key == "class" for link in links)
        assert all(mark in table.ratios[id] for link in links for mark in link.marks)


def test_the_nearest_tasks_of_all_and_of_each_model_give(tmp_path: Path) -> None:
    near = Network("alexnet", False, tuple((build("GMM", (1, 16 + n, 24, 40)), 1) for n in range(8)))
    far = Network("vgg16", False, ((build("GMM", (1, 96, 64, 80)), 1),))
    file = TableFile(tmp_path / "table.jsonl")
    found = Recorder(file, (near, far), TARGET, {False: Formula()}, replace(BUDGETS, donors=1, trials=4))
    found.winners()
    found.donors()
    table = found.table
    first = next(iter(table.recipients.values()))
    ids = [r.id for r in table.recipients.values()]
    assert {link.donor for link in table.links[first.id]} == {*ids[1 : 1 + MOST_DONORS], ids[-1]}


def test_the_best_known_is_at_least_as_fast_as_what_a_search_or_a_donor_gave(recorded: Path) -> None:
    table = Table.of(read_rows(recorded))
    for id, best in table.best.items():
        searched = [s.ratio for (one, _), s in table.searches.items() if one == id]
        given = [ratios.both for ratios in table.ratios[id].values()]
        assert best.ratio <= min(1.0, *searched, *given) / 0.99 + 1e-3


@pytest.mark.parametrize("lives", [1, 9, 40, 90])
def test_a_recording_that_was_killed_goes_on_where_it_ended(lives: int, tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "table.jsonl"
    with pytest.raises(Killed):
        record(path, Formula(lives))
    with path.open("a") as file:
        file.write('{"kind": "search", "id": "half a li')  # what a dying process had begun to write
    done = {task for kind, task, how in kinds(path) if (kind, how) == ("search", "nothing")}
    measurer = Formula()
    again = recorder(path, measurer)
    again.winners()
    assert {t.digest[:12] for t in measurer.searched} == {
        r.digest[:12] for r in again.table.recipients.values() if r.id not in done
    }
    record(path)
    assert kinds(path) == kinds(recorded)


def test_a_recording_that_is_complete_measures_nothing(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "table.jsonl"
    path.write_bytes(recorded.read_bytes())
    record(path, Formula(lives=0))
    assert path.read_bytes() == recorded.read_bytes()


def test_a_model_that_is_added_later_is_timed_with_the_others_and_they_with_it(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    record(path, models=networks()[:2])
    table = record(path)
    assert set(table.links) == set(table.recipients)
    for id, links in table.links.items():
        assert {link.donor for link in links} == set(table.recipients) - {id}
    assert {tuple(r.calls) for r in table.recipients.values()} == {
        ("alexnet",),
        ("vgg16",),
        ("vgg16", "vgg19"),
        ("vgg19",),
    }


def test_searches_with_reuse_know_nothing_of_the_held_out_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorder(tmp_path / "table.jsonl")
    found.winners()
    found.donors()
    seen: dict[str, set[str]] = {}
    rows: dict[str, int] = {}

    def watched(task: Task, *args: object, store: Store, **options: object) -> object:
        if options["reuse"] != "off":
            seen[task.digest] = {d.task.digest for d in store.donors(task, TARGET)}
            rows[task.digest] = len(store.training(TARGET).seconds)
        return tune(task, *args, store=store, **options)  # pyright: ignore

    monkeypatch.setattr("benchmarks.reuse.recording.tune", watched)
    found.reuse(tmp_path)
    alexnet, vggs = digests()
    assert seen[alexnet] == vggs
    assert all(seen[digest] == {alexnet} for digest in vggs)
    assert rows[alexnet] > rows[min(vggs)] > 0


def test_a_table_without_its_trials_teaches_what_it_has_timed(tmp_path: Path, recorded: Path) -> None:
    table = Table.of(read_rows(recorded))
    alexnet, vggs = digests()
    tasks = {t.digest: t for network in networks() for t, _ in network.tasks}
    ids = {r.id: tasks[r.digest] for r in table.recipients.values()}
    held_out = next(r for r in table.recipients.values() if r.digest == alexnet)
    with HeldOutStores(table, ids, TARGET, None, tmp_path).store_for(held_out) as store:
        assert {summary.digest for summary in store.summaries()} == vggs
        for id, task in ids.items():
            trials = {mark_of(r.schedule): r for r in store.trials(task, TARGET)}
            if id == held_out.id:
                assert not trials
                continue
            default, search = default_schedule(task, TARGET), table.searches[id, "nothing"]
            assert trials[mark_of(default)].strategy == DEFAULT
            donated = {m for link in table.links[id] if link.donor != held_out.id for m in link.marks}
            assert donated <= set(trials)
            assert {m for m, r in trials.items() if r.strategy == DONOR} <= donated
            verdict = store.verdict(task, TARGET)
            assert verdict is not None
            assert verdict.schedule == (search.winner if search.ratio < 1 else default)
            assert verdict.seconds == pytest.approx(min(1.0, search.ratio) * table.default_seconds[id])


def test_a_store_can_be_made_of_a_table(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.of(read_rows(recorded))
    uses = {n.name: [SimpleNamespace(task=task) for task, _ in n.tasks] for n in networks()}

    def partition_of(name: str) -> SimpleNamespace:
        return SimpleNamespace(tasks=uses[name])

    monkeypatch.setattr("benchmarks.reuse.__main__.partition_of", partition_of)
    assert made_store(table, TARGET, tmp_path / "made.sqlite") == 4
    with Store.open(tmp_path / "made.sqlite") as store:
        for network in networks():
            for task, _ in network.tasks:
                verdict, best = store.verdict(task, TARGET), table.best[f"{task.digest[:12]}/warm"]
                assert verdict is not None
                assert verdict.schedule == best.schedule


def test_trials_of_candidates_from_held_out_donors_are_held_out_too(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    found = recorder(path)
    found.winners()
    found.donors()
    table, tasks = found.table, {t.digest: t for n in networks() for t, _ in n.tasks}
    trials = Store.open(path.with_suffix(".sqlite"))
    ids = {id: tasks[r.digest] for id, r in table.recipients.items()}
    alexnet, vggs = digests()
    held_out = next(r for r in table.recipients.values() if r.digest == alexnet)
    store = HeldOutStores(table, ids, TARGET, trials, tmp_path).store_for(held_out)
    for id, task in ids.items():
        given = {mark_of(r.schedule) for r in store.trials(task, TARGET) if r.strategy == DONOR}
        allowed = {m for link in table.links[id] if link.donor != held_out.id for m in link.marks}
        every = {mark_of(r.schedule) for r in trials.trials(task, TARGET) if r.strategy == DONOR}
        assert every == set(table.ratios[id])
        assert given == (allowed if task.digest in vggs else set())
        assert given < every


def test_a_candidate_that_fails_is_counted_and_left_out() -> None:
    task = networks()[0].tasks[0][0]
    default = default_schedule(task, TARGET)
    good, bad = (s for s in _schedules(task, 3) if s != default)
    turns = in_turns(task, default, [good, bad, good], Formula(broken=frozenset({bad})), TARGET, 4, 2)
    assert set(turns.loads) == {default, good}
    assert len(turns.loads[good]) == 4
    assert turns.failures == {bad: "crash: it died"}
    with pytest.raises(RunError, match="default schedule cannot be timed"):
        in_turns(task, bad, [good], Formula(broken=frozenset({bad})), TARGET, 1, 1)


def _schedules(task: Task, n: int) -> list[Schedule]:
    tuned = tune(task, TARGET, trials=8, measurer=Formula())
    return [t.schedule for t in tuned.history][:n]


def test_few_candidates_are_held_at_once_where_each_needs_copies_of_its_weights() -> None:
    task, large_cache = build("GMM", (1, 16, 24, 40)), replace(TARGET, l3_bytes=256 << 20)
    assert together(task, large_cache) == 32
    assert together(task, large_cache, Surroundings(200 << 20, 20 << 20)) < 16
    assert together(task, large_cache.with_cold_weights(True)) < 8


def test_what_is_recorded_is_not_expected_to_take_time_again(tmp_path: Path, recorded: Path) -> None:
    fresh = recorder(tmp_path / "table.jsonl")
    before = expected_seconds(fresh.table, fresh.recipients, BUDGETS, PASSES)
    assert all(before.values())
    done = Table.of(read_rows(recorded))
    after = expected_seconds(done, list(done.recipients.values()), BUDGETS, PASSES)
    assert after["winners"] == after["donors"] == 0
    assert 0 <= after["reuse"] < before["reuse"]


def test_improvements_are_thinned_evenly_with_the_first_and_the_last() -> None:
    (schedule,) = _schedules(networks()[0].tasks[0][0], 1)
    bests = [(float(k), k, schedule) for k in range(50)]
    thinned = [k for _, k, _ in spread(bests, 10)]
    assert thinned[0] == 0
    assert thinned[-1] == 49
    assert len(thinned) == 10
    assert spread(bests[:7], 10) == bests[:7]


def test_equal_schedules_have_equal_marks_after_json() -> None:
    first, second = _schedules(networks()[0].tasks[0][0], 2)
    assert mark_of(Schedule.from_json(json.loads(json.dumps(first.to_json())))) == mark_of(first) != mark_of(second)


def test_a_folder_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit() == ""
