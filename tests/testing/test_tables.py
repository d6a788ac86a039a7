"""Tables on disk, the restricted sketches they are searched as, and measuring by looking up."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grid import chosen_spaces, pruned, spread_over
from benchmarks.record import Partial, Recording, record
from stormdrop.base.errors import UserError
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.operators.catalogue import build
from stormdrop.space.default import ranked
from stormdrop.space.knobs import neighbour_rows
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.testing.tables import Request, Table, TableMeasurer, TableSpace
from tests.support.tables import formula_table


@cache
def table() -> Table:
    return formula_table("C2D", (1, 7, 7, 32, 32, 3, 1, 1), 400)


@pytest.fixture(params=[0, 1, 2])
def space(request: pytest.FixtureRequest) -> TableSpace:
    return table().spaces[request.param]


def full(space: TableSpace) -> Sketch:
    return Sketch(space.task, space.variant, space.structure, space.target)


def combinations(space: TableSpace, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    rng = np.random.default_rng(1)
    return np.stack([rng.choice(k.choices, size=n) for k in space.knobs], axis=1).astype(np.int64)


def some_schedule(finite: bool = True) -> tuple[Schedule, float]:
    space = table().spaces[0]
    row = int(np.flatnonzero(np.isfinite(space.seconds) == finite)[2])
    return space.schedule(space.points[row]), float(space.seconds[row])


# ---- spaces ----------------------------------------------------------------------------------------------------------


def test_every_combination_of_choices_is_a_row_or_was_illegal(space: TableSpace) -> None:
    points = combinations(space, 4000)
    canonical = space.canonical(points)
    assert np.array_equal(canonical, full(space).canonical(points))
    assert np.array_equal(space.legal(canonical), full(space).legal(canonical))
    assert space.legal(canonical).any()


def test_rows_are_canonical_and_each_occurs_once(space: TableSpace) -> None:
    assert np.array_equal(space.canonical(space.points), space.points)
    assert len(np.unique(space.points, axis=0)) == len(space.points)
    assert np.array_equal(space.rows(space.points), np.arange(len(space.points)))


def test_neighbours_of_a_clamped_row_are_on_the_grid(space: TableSpace) -> None:
    """Moving one knob of a row leaves clamped values in the others, which are no choices."""
    is_choice = np.stack([np.isin(space.points[:, i], k.choices) for i, k in enumerate(space.knobs)], axis=1)
    clamped = space.points[~is_choice.all(axis=1)]
    assert len(clamped)
    for point in clamped[:20]:
        moves = space.canonical(neighbour_rows(space.knobs, point.tolist())[1])
        assert np.array_equal(space.legal(moves), full(space).legal(moves))


def test_a_point_off_the_table_is_not_legal(space: TableSpace) -> None:
    wider = next(
        i for i, (few, all_) in enumerate(zip(space.knobs, full(space).knobs)) if len(few.choices) < len(all_.choices)
    )
    strange = space.points[:50].copy()
    strange[:, wider] = 97
    assert not space.legal(strange).any()
    assert np.isinf(space.assess(strange)).all()


def test_features_and_prior_are_the_sketchs(space: TableSpace) -> None:
    points = space.points[::7]
    assert np.array_equal(space.features(points), full(space).features(points))
    assert np.array_equal(space.prior(points), full(space).prior(points))
    outside = np.concatenate([points[:3], full(space).sample_legal(50, np.random.default_rng(0))])
    assert np.array_equal(space.prior(outside), full(space).prior(outside))


def test_sampling_reaches_every_row_and_nothing_else(space: TableSpace) -> None:
    rng = np.random.default_rng(0)
    few = space.sample_legal(10, rng)
    assert len(few) == 10
    assert space.legal(few).all()
    everything = space.sample_legal(10**6, rng)
    assert np.array_equal(np.unique(everything, axis=0), np.unique(space.points, axis=0))


def test_snapping_goes_down_to_a_recorded_choice(space: TableSpace) -> None:
    snapped = space.snapped(full(space).sample_legal(100, np.random.default_rng(0)))
    for i, k in enumerate(space.knobs):
        assert set(snapped[:, i].tolist()) <= set(k.choices)


def test_spaces_are_ranked_as_sketches_are() -> None:
    found = ranked(table().spaces)
    assert [s for s, _, _ in found] != []
    for space, point, seconds in found:
        assert space.legal(point[None, :])[0]
        assert seconds == pytest.approx(float(space.prior(point[None, :])[0]))


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_a_row_takes_what_was_recorded() -> None:
    schedule, seconds = some_schedule()
    (result,) = TableMeasurer(table()).measure(table().task, [schedule])
    assert isinstance(result, Timing)
    assert result.seconds == seconds
    assert not result.stopped_early


def test_what_failed_fails_and_what_is_missing_is_no_schedule() -> None:
    failed, _ = some_schedule(finite=False)
    known, _ = some_schedule()
    name = known.values[-1][0]
    strange = replace(known, values=(*known.values[:-1], (name, 97)))
    other_class = replace(known, class_key="another")
    no_steps = replace(known, steps=known.steps[:1])
    results = TableMeasurer(table()).measure(table().task, [failed, strange, other_class, no_steps])
    assert [r.kind for r in results if isinstance(r, Failure)] == ["build", "schedule", "schedule", "schedule"]


def test_another_tasks_candidates_are_not_in_the_table() -> None:
    schedule, _ = some_schedule()
    (result,) = TableMeasurer(table()).measure(build("C2D", [1, 7, 7, 32, 48, 3, 1, 1]), [schedule])
    assert isinstance(result, Failure)


def test_a_candidate_clearly_slower_than_the_best_is_brief() -> None:
    space = table().spaces[0]
    order = np.argsort(space.seconds)
    fast, slow = (space.schedule(space.points[i]) for i in (order[0], order[np.isfinite(space.seconds).sum() - 1]))
    results = TableMeasurer(table()).measure(table().task, [slow, fast, slow])
    assert [isinstance(r, Timing) and r.stopped_early for r in results] == [False, False, True]
    (result,) = TableMeasurer(table()).measure(table().task, [slow], best=float(space.seconds[order[0]]))
    assert isinstance(result, Timing)
    assert result.stopped_early


def test_the_caller_works_before_anything_is_measured() -> None:
    schedule, _ = some_schedule()
    calls: list[str] = []
    TableMeasurer(table()).measure(table().task, [schedule], meanwhile=lambda: calls.append("now"))
    assert calls == ["now"]


def test_noise_is_the_seeds_and_differs_between_rounds() -> None:
    schedule, seconds = some_schedule()
    first, again, other = (
        TableMeasurer(table(), 0.05, seed).retime(table().task, [schedule], 400)[0] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert isinstance(first, Timing)
    logs = np.log(np.array(first.samples) / seconds)
    assert len(set(first.samples)) == 400
    assert abs(logs.mean()) < 0.01
    assert 0.04 < logs.std() < 0.06
    assert first.seconds == np.median(first.samples)


def test_without_noise_rounds_and_proof_say_what_was_recorded() -> None:
    schedule, seconds = some_schedule()
    measurer = TableMeasurer(table())
    for result in (*measurer.retime(table().task, [schedule], 3), measurer.prove(table().task, schedule, schedule)):
        assert isinstance(result, Timing)
        assert set(result.samples) == {seconds}


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c2d.npz"
    table().save(path)
    back = Table.load(path)
    assert back.task.digest == table().task.digest
    assert back.target == table().target
    assert back.notes == table().notes
    assert back.optimum == table().optimum
    assert back.size == table().size
    for ours, theirs in zip(table().spaces, back.spaces, strict=True):
        assert ours.knobs == theirs.knobs
        assert ours.structure.steps == theirs.structure.steps
        rows = theirs.rows(ours.points)
        assert np.array_equal(theirs.seconds[rows], ours.seconds, equal_nan=True)
        assert np.allclose(theirs.spread[rows], ours.spread, rtol=1e-3)


def test_the_same_table_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        table().save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_point_takes_few_bytes(tmp_path: Path) -> None:
    table().save(tmp_path / "t.npz")
    assert (tmp_path / "t.npz").stat().st_size < 6000 + 12 * table().size


def changed(path: Path, **arrays: object) -> Path:
    table().save(path)
    with np.load(path, allow_pickle=False) as data:
        held = {k: data[k] for k in data.files} | {k: np.asarray(v) for k, v in arrays.items()}
    with path.open("wb") as file:
        np.savez(file, **held)  # type: ignore[arg-type]
    return path


def test_files_that_are_no_tables_are_refused_with_their_name(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no table")
    np.savez(tmp_path / "empty.npz", a=np.zeros(3))
    np.savez(tmp_path / "objects.npz", format=np.array([{}], dtype=object))
    for name in ("missing.npz", "text.npz", "empty.npz", "objects.npz"):
        with pytest.raises(UserError, match=name):
            Table.load(tmp_path / name)


def test_a_table_of_another_format_or_another_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="format 99"):
        Table.load(changed(tmp_path / "a.npz", format=99))
    with pytest.raises(UserError, match="differ in length"):
        Table.load(changed(tmp_path / "b.npz", seconds0=np.zeros(3, np.float32)))
    twice = np.repeat(table().spaces[0].points[:1] * 40, len(table().spaces[0].points), axis=0).T
    with pytest.raises(UserError, match="record the table again"):
        Table.load(changed(tmp_path / "c.npz", points0=twice))
    with np.load(tmp_path / "c.npz", allow_pickle=False) as data:
        about = json.loads(data["about"].tobytes())
    grid = about["sketches"][0]["grid"]
    about["sketches"][0]["grid"] = {f"x{k}": v for k, v in grid.items()}
    with pytest.raises(UserError, match="other knobs"):
        Table.load(changed(tmp_path / "d.npz", about=np.frombuffer(json.dumps(about).encode(), np.uint8)))
    about["sketches"][0]["grid"] = grid
    about["sketches"][0]["steps"][0][1] = 99
    with pytest.raises(UserError, match="v99"):
        Table.load(changed(tmp_path / "e.npz", about=np.frombuffer(json.dumps(about).encode(), np.uint8)))


def test_a_table_of_failures_has_no_optimum() -> None:
    nothing = replace(
        table(), spaces=tuple(replace(s, seconds=np.full_like(s.seconds, np.nan)) for s in table().spaces)
    )
    with pytest.raises(UserError, match="no successful measurement"):
        _ = nothing.optimum


# ---- grids -----------------------------------------------------------------------------------------------------------


def test_choices_are_spread_and_hold_the_home() -> None:
    for count, home, n in itertools.product((1, 2, 5, 24), (0, 1, 23), (1, 2, 3, 8)):
        if home < count and n <= count:
            places = spread_over(count, home, n)
            assert home in places
            assert len(places) == n
            assert places == sorted(set(places))
            assert n < 2 or places[-1] - places[0] >= (count - 1) / 2


def test_pruning_leaves_a_closed_table_with_fewer_good_points() -> None:
    before = table()
    after = replace(before, spaces=pruned(before.spaces, before.size // 2, before.share_within(0.2) / 2, 0.2))
    assert before.size // 2 <= after.size < before.size
    assert after.share_within(0.2) < before.share_within(0.2)
    for space in after.spaces:
        canonical = space.canonical(combinations(space, 2000))
        assert np.array_equal(space.legal(canonical), full(space).legal(canonical))
        assert np.array_equal(space.canonical(space.points), space.points)


def test_a_chosen_grid_holds_its_home_and_about_the_wanted_points() -> None:
    sketch = full(table().spaces[0])
    home = sketch.sample_legal(1, np.random.default_rng(3))[0]
    (space,) = chosen_spaces([(sketch, home)], 120, lambda s, points: s.prior(points))
    assert 120 <= len(space.points) <= 150
    assert space.legal(home[None, :])[0]
    assert np.isnan(space.seconds).all()


# ---- recording -------------------------------------------------------------------------------------------------------


class Stopping(TableMeasurer):
    """Broken off after so many batches."""

    batches = 10**9

    def answers(self, asked: Request) -> list[Result]:
        self.batches -= asked.kind == "measure"
        if self.batches < 0:
            raise KeyboardInterrupt
        return super().answers(asked)


def begun(path: Path, **identity: object) -> tuple[Recording, Partial]:
    partial = Partial(path, {"task": "c2d", **identity})
    if not partial.lines:
        partial.append(["grids"])
    spaces = tuple(replace(s, seconds=np.full_like(s.seconds, np.nan)) for s in table().spaces)
    return Recording(table().task, table().target, spaces, MeasureSettings()), partial


def test_a_recording_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    path = tmp_path / "t.partial"
    measurer = Stopping(table())
    measurer.batches = 3
    with pytest.raises(KeyboardInterrupt):
        record(*begun(path), measurer)
    with path.open("a") as file:
        file.write("[[0.001, 0.0")  # a line that was being written
    recording, partial = begun(path)
    assert len(partial.lines) == 4
    found = record(recording, partial, TableMeasurer(table()))
    assert found.size == table().size
    for theirs, ours in zip(found.spaces, table().spaces):
        assert np.array_equal(theirs.seconds, ours.seconds, equal_nan=True)
    with pytest.raises(UserError, match="another recording"):
        begun(path, threads=7)


def test_noise_at_the_top_is_averaged_out_by_timing_in_turns(tmp_path: Path) -> None:
    """Without it, the fastest of many noisy timings is one that was lucky."""
    found = record(*begun(tmp_path / "t.partial"), TableMeasurer(table(), 0.1, 1))
    k, row = min(
        ((k, i) for k, s in enumerate(found.spaces) for i in np.flatnonzero(np.isfinite(s.seconds))),
        key=lambda at: found.spaces[at[0]].seconds[at[1]],
    )
    assert table().spaces[k].seconds[row] <= 1.1 * table().optimum
    assert 0.9 * table().optimum < found.optimum < 1.1 * table().optimum
