"""What the store keeps, what it gives back, and what it forgets first."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Timing
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.rules import RULES
from stormdrop.space.sketch import sketches
from stormdrop.space.structure import DerivationStep
from stormdrop.store.record import Record, Versions
from stormdrop.store.store import Filters, Store, StoreError
from tests.support.own_rules import Reverse
from tests.support.records import ELSEWHERE, HERE, VERSIONS, failure, make_records, small_task, timing
from tests.support.remarks import remarks


def same(a: Record, b: Record) -> bool:
    assert (a.features is None) == (b.features is None)
    assert a.features is None or (b.features is not None and a.features.tobytes() == b.features.tobytes())
    assert a.task.digest == b.task.digest
    return replace(a, features=None, task=b.task) == replace(b, features=None)


def of_another_rule(record: Record) -> Record:
    steps = (DerivationStep("fold", 9, "s0"), *record.schedule.steps)
    return replace(record, schedule=replace(record.schedule, steps=steps))


def test_a_record_comes_back_as_it_was(store: Store) -> None:
    kept = [
        *make_records(5, cold=True),
        *make_records(1, cold=True, result=Failure("wrong", "off by one\n\x1b[31mred\x00 ü", 0.125)),
        replace(make_records(1, cold=True)[0], features=None, seed=2**200, model="", verified=True),
        *make_records(1, cold=True, result=Timing(1e-7, 0.0, 1, 0.0, True)),
    ]
    store.add(kept)
    found = store.trials(small_task(), HERE, cold=True)
    assert len(found) == len(kept)
    assert all(same(a, b) for a, b in zip(found, kept))


def test_best_is_the_fastest_that_was_verified(store: Store) -> None:
    trials = make_records(6)
    winner = make_records(1, result=timing(0.5), verified=True)[0]
    slower = make_records(1, result=timing(0.7), verified=True)[0]
    store.add([winner, *trials, slower])
    found = store.best(small_task(), HERE)
    assert found is not None
    assert same(found, winner)


def test_best_without_a_verified_one_is_the_fastest_that_was_not_stopped_early(store: Store) -> None:
    brief = make_records(1, result=timing(1e-9, stopped_early=True))
    lost = make_records(3, result=failure())
    trials = make_records(6)
    store.add([*brief, *lost, *trials])
    found = store.best(small_task(), HERE)
    assert found is not None
    assert same(found, trials[-1])


def test_best_of_nothing_is_none(store: Store) -> None:
    assert store.best(small_task(), HERE) is None
    store.add(make_records(2, result=failure()))
    store.add(make_records(1, result=timing(1e-3, stopped_early=True)))
    assert store.best(small_task(), HERE) is None


def test_best_of_certain_versions_is_theirs(store: Store) -> None:
    old, new = Versions("0.0.9", "19.1", FEATURES.version), VERSIONS
    store.add(make_records(1, result=timing(1e-6), versions=old) + make_records(1, result=timing(1e-3), versions=new))
    found = [
        store.best(small_task(), HERE, versions=v) for v in (old, new, replace(new, features=99), Versions("1", "1", 1))
    ]
    assert [f and f.versions for f in found] == [old, new, new, None]
    anybody = store.best(small_task(), HERE)
    assert anybody is not None
    assert anybody.versions == old


def test_tasks_machines_and_temperatures_are_kept_apart(store: Store) -> None:
    keys = [
        (small_task(n), target, cold)
        for n in (32, 33)
        for target in (HERE, HERE.with_threads(1))
        for cold in (False, True)
    ]
    for count, (task, target, cold) in enumerate(keys, 1):
        store.add(make_records(count, task, target, cold))
    for count, (task, target, cold) in enumerate(keys, 1):
        assert store.known(task, target, cold) == count
        assert [r.target for r in store.trials(task, target, cold)] == [target.with_cold_weights(cold)] * count
        best = store.best(task, target, cold)
        assert best is not None
        assert (best.target.is_cold, best.number) == (cold, count)


def test_a_machine_measured_anew_is_the_same_machine(store: Store) -> None:
    anew = replace(HERE, peak_gflops=HERE.peak_gflops * 1.5)
    store.add(make_records(2) + make_records(3, target=anew))
    assert store.known(small_task(), HERE) == 5
    assert [r.target for r in store.trials(small_task(), anew)] == [HERE] * 2 + [anew] * 3


def test_a_task_of_another_name_is_the_same_task(store: Store) -> None:
    again = Task(variants=small_task().variants, name="conv_17")
    store.add(make_records(2))
    store.add(make_records(3, task=again))
    assert store.known(small_task(), HERE) == 5
    found = store.trials(again, HERE)
    assert {r.task.name for r in found} == {"conv_17"}
    assert len(store.summaries()) == 1


def test_unknown_rules_are_kept_but_skipped_with_a_remark(store: Store, recwarn: pytest.WarningsRecorder) -> None:
    known, unknown = make_records(3), of_another_rule(make_records(1, result=timing(1e-9), verified=True)[0])
    renewed = replace(
        known[0],
        schedule=replace(known[0].schedule, steps=tuple(replace(s, version=77) for s in known[0].schedule.steps)),
    )
    store.add([unknown, *known, renewed])
    assert len(store.trials(small_task(), HERE)) == 3
    assert "skipped: fold 9, pack 77, tile 77" in " ".join(remarks(recwarn))
    best = store.best(small_task(), HERE)
    assert best is not None
    assert same(best, known[-1])
    assert store.known(small_task(), HERE) == 5


def test_a_record_of_a_rule_that_is_passed_is_used(store: Store, recwarn: pytest.WarningsRecorder) -> None:
    known = make_records(3)
    steps = (*known[0].schedule.steps, DerivationStep("reverse", 1, "s0"))
    other = replace(known[0], schedule=replace(known[0].schedule, steps=steps), result=timing(1e-9))
    store.add([*known, other])
    rules = (*RULES, Reverse())
    assert len(store.trials(small_task(), HERE, rules=rules)) == 4
    best = store.best(small_task(), HERE, rules=rules)
    assert not remarks(recwarn)
    assert best is not None
    assert same(best, other)
    for _ in range(3):  # the remark is made once
        best = store.best(small_task(), HERE)
        assert best is not None
        assert same(best, known[-1])
    assert [text.rpartition(": ")[2] for text in remarks(recwarn)] == ["reverse 1"]
    assert store.best(small_task(17), HERE) is None
    assert len(store.trials(small_task(), HERE, rules=(*RULES, replace(Reverse(), version=2)))) == 3


def test_one_bad_record_keeps_its_whole_batch_out(store: Store) -> None:
    good = make_records(3)
    for bad in (timing(math.nan), timing(0.0), timing(-1.0), timing(math.inf), replace(timing(1.0), spread=math.nan)):
        with pytest.raises(StoreError, match="cannot be kept"):
            store.add([*good, *make_records(1, result=bad)])
    with pytest.raises(StoreError, match="elapsed"):
        store.add([*good, replace(good[0], elapsed=math.inf)])
    assert store.known(small_task(), HERE) == 0


def test_text_that_no_file_can_hold_is_mended(store: Store) -> None:
    store.add(make_records(1, result=failure("\udcff" + "x" * 100_000)))
    (found,) = store.trials(small_task(), HERE)
    assert isinstance(found.result, Failure)
    assert found.result.message.startswith("?xxx")
    assert len(found.result.message) < 5000


def test_adding_nothing_is_allowed(store: Store) -> None:
    store.add([])
    assert store.summaries() == []


# ---- what the cost model reads ---------------------------------------------------------------------------------------


def test_training_has_features_seconds_and_groups(store: Store) -> None:
    batches = [
        make_records(4),
        make_records(3, cold=True),
        make_records(2, task=small_task(7)),
        make_records(2, result=failure()),
    ]
    store.add([r for batch in batches for r in batch])
    rows = store.training(HERE)
    expected = [r.features for batch in batches for r in batch]
    assert rows.features.dtype == np.float32
    assert np.array_equal(rows.features, np.stack([f for f in expected if f is not None]))
    assert rows.seconds.dtype == np.float64
    assert np.array_equal(np.isnan(rows.seconds), [False] * 9 + [True] * 2)
    assert np.allclose(rows.seconds[:4], [5e-3, 4e-3, 3e-3, 2e-3])
    groups = [set(rows.group[a:b].tolist()) for a, b in ((0, 4), (4, 7), (7, 9), (9, 11))]
    assert all(len(g) == 1 for g in groups)
    assert groups[0] == groups[3]
    assert len({*groups[0], *groups[1], *groups[2]}) == 3
    assert set(rows.group.tolist()) == {0, 1, 2}
    tasks = [(small_task(), "warm"), (small_task(), "cold"), (small_task(7), "warm")]
    assert [rows.names[rows.group[i]] for i in (0, 4, 7)] == [f"{task.digest}/{heat}" for task, heat in tasks]


def test_features_of_another_version_are_computed_anew_and_missing_ones_too(store: Store) -> None:
    task = small_task()
    sketch = sketches(task, HERE)[0]
    points = sketch.sample_legal(12, np.random.default_rng(0))
    made = [replace(r, schedule=sketch.schedule(p)) for r, p in zip(make_records(len(points)), points)]
    features = [row.astype(np.float32) for row in sketch.features(points)]
    wrong = np.ones(len(FEATURES), np.float32)
    store.add([replace(r, features=f) for r, f in zip(made[:3], features)])
    store.add(
        [replace(r, features=wrong, versions=replace(VERSIONS, features=FEATURES.version + 1)) for r in made[3:5]]
    )
    store.add([replace(r, features=None) for r in made[5:7]])
    store.add([replace(r, features=wrong[1:]) for r in made[7:8]])
    store.add(make_records(6, target=ELSEWHERE))
    rows = store.training(HERE)
    assert np.array_equal(rows.features, np.stack(features[:8]))


def test_features_that_another_calibration_judged_are_computed_anew(store: Store) -> None:
    faster = replace(HERE, l2_gbs=2 * HERE.l2_gbs, coefficients=replace(HERE.coefficients, tile_cycles=30.0))
    before, after = (sketches(small_task(), target)[0] for target in (HERE, faster))
    points = before.sample_legal(4, np.random.default_rng(0))
    features = [sketch.features(points).astype(np.float32) for sketch in (before, after)]
    assert not np.array_equal(features[0], features[1])
    made = [
        replace(r, schedule=before.schedule(p), features=f) for r, p, f in zip(make_records(4), points, features[0])
    ]
    store.add(made)
    assert np.array_equal(store.training(HERE).features, features[0])
    assert np.array_equal(store.training(faster).features, features[1])


def test_features_that_earlier_nominal_coefficients_judged_are_computed_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = sketches(small_task(), HERE)[0]
    points = sketch.sample_legal(2, np.random.default_rng(0))
    wrong = np.ones(len(FEATURES), np.float32)
    made = [replace(r, schedule=sketch.schedule(p), features=wrong) for r, p in zip(make_records(2), points)]
    target = replace(HERE, name="another of this kind")  # whose JSON nobody has read yet
    store.add([replace(r, target=target) for r in made])
    later = replace(HERE.coefficients, version=HERE.coefficients.version + 1)
    for place in ("coefficients", "cpu"):
        monkeypatch.setattr(f"stormdrop.target.{place}.CPU_COEFFICIENTS", later)
    rows = store.training(replace(target, coefficients=later))
    assert len(rows.features) == 2
    assert not np.array_equal(rows.features[0], wrong)


def test_a_trial_whose_schedule_cannot_be_replayed_and_has_no_features_teaches_nothing(store: Store) -> None:
    store.add(make_records(2))
    store.add([replace(of_another_rule(r), features=None) for r in make_records(3)])
    rows = store.training(HERE)
    assert len(rows.features) == len(rows.seconds) == 2


def test_training_beyond_the_limit_is_a_sample_of_all_tasks_in_order(store: Store) -> None:
    """The second task was measured long ago, and less: it gives all it has."""
    store.add(make_records(3, task=small_task(7)))
    store.add(make_records(50))
    rows = store.training(HERE, limit=10)
    assert np.allclose(rows.seconds[:3], [4e-3, 3e-3, 2e-3])
    assert rows.group.tolist() == [rows.group[0]] * 3 + [rows.group[3]] * 7
    later = rows.seconds[3:]
    assert np.isclose(later[0], 51e-3)
    assert np.isclose(later[-1], 2e-3)  # the newest, and the fastest
    assert np.all(np.diff(later) < -5e-3)


def test_training_of_nothing_has_the_right_shapes(store: Store) -> None:
    rows = store.training(HERE)
    assert (rows.features.shape, rows.seconds.shape, rows.group.shape) == ((0, len(FEATURES)), (0,), (0,))


# ---- what people read ------------------------------------------------------------------------------------------------


def test_summaries_count_and_name_the_best(store: Store) -> None:
    store.add(
        make_records(4) + make_records(2, result=failure()) + make_records(1, result=timing(1e-9, stopped_early=True))
    )
    store.add(make_records(3, cold=True) + make_records(1, cold=True, verified=True, result=timing(0.25)))
    warm, cold = store.summaries()
    assert (warm.trials, warm.failed, warm.verified, warm.cold) == (7, 2, False, False)
    assert warm.seconds == pytest.approx(2e-3)
    assert (cold.trials, cold.failed, cold.verified, cold.seconds, cold.cold) == (4, 0, True, 0.25, True)
    assert warm.gflops == pytest.approx(2 * 32 * 48 * 40 / 2e-3 / 1e9)
    assert (warm.name, warm.digest, warm.class_key) == (small_task().name, small_task().digest, small_task().class_key)
    for summary in (warm, cold):
        best = store.best_of(summary)
        assert best is not None
        assert isinstance(best.result, Timing)
        assert best.result.seconds == summary.seconds


def test_summaries_can_be_asked_for_by_name_digest_machine_and_temperature(store: Store) -> None:
    store.add(
        make_records(1)
        + make_records(1, task=small_task(9))
        + make_records(1, cold=True)
        + make_records(1, target=ELSEWHERE)
    )
    task = small_task()
    assert len(store.summaries(Filters(task=task.name))) == 3
    assert len(store.summaries(Filters(task=task.digest[:8]))) == 3
    assert store.summaries(Filters(task=task.digest[:2])) == []
    assert len(store.summaries(Filters(task=task.name, cold=True))) == 1
    assert len(store.summaries(Filters(target=ELSEWHERE.key()))) == 1


# ---- forgetting ------------------------------------------------------------------------------------------------------


def test_beyond_the_cap_the_oldest_go_and_verified_ones_stay(tmp_path: Path) -> None:
    cap = 400 << 10
    with Store.open(tmp_path / "s.sqlite", cap_bytes=cap) as store:
        store.add(make_records(3, task=small_task(5), verified=True, seed=99))
        for seed in range(30):
            store.add(make_records(40, seed=seed))
            assert store.used_bytes <= cap
        found = store.trials(small_task(), HERE)
        assert 100 < len(found) < 600
        assert [(r.seed, r.number) for r in found[-40:]] == [(29, n + 1) for n in range(40)]
        assert [(r.seed, r.number) for r in found] == sorted((r.seed, r.number) for r in found)
        assert store.known(small_task(5), HERE) == 3
        assert store.integrity() == []


def test_a_clock_that_jumps_back_changes_no_order(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite", cap_bytes=300 << 10) as store:
        for seed in range(20):
            store.add(make_records(40, seed=seed, created=2e9 - 1e6 * seed))
        found = [(r.seed, r.number) for r in store.trials(small_task(), HERE)]
        assert found == sorted(found)
        assert found[-1] == (19, 40)
        assert found[0] > (0, 40)
        rows = store.training(HERE, limit=40)
        assert rows.seconds[-1] == pytest.approx(2e-3)


def test_prune_removes_the_oldest_and_the_file_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        for seed in range(30):
            store.add(make_records(50, seed=seed))
        store.add(make_records(1, verified=True, seed=77))
        store.prune(max_bytes=1 << 30)
        before = path.stat().st_size
        done = store.prune(max_bytes=store.used_bytes // 2)
        assert done.removed == 1501 - store.known(small_task(), HERE)
        assert done.after_bytes <= done.before_bytes // 2
        assert path.stat().st_size < 0.6 * before
        assert store.trials(small_task(), HERE)[-1].verified
        store.prune(max_bytes=0)
        assert store.summaries() == []
        assert store.integrity() == []
        store.add(make_records(2))
        assert store.known(small_task(), HERE) == 2


def test_prune_by_age_spares_winners_unless_told(store: Store) -> None:
    store.add(
        make_records(3, created=1000.0)
        + make_records(1, created=1000.0, verified=True)
        + make_records(2, created=5000.0)
    )
    assert store.prune(older_than=2000.0).removed == 3
    assert store.known(small_task(), HERE) == 3
    assert store.prune(older_than=2000.0, winners=True).removed == 1
    assert store.known(small_task(), HERE) == 2
