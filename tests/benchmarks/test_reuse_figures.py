"""Figures of reuse, computed from tables that were not measured but written down here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.reuse.figures import (
    expected_gain,
    gain,
    gain_tasks,
    matrix,
    model_values,
    others,
    pool_curve,
    pool_speed,
    reused_ratio,
    task_values,
)
from benchmarks.reuse.picture import save_matrix
from benchmarks.reuse.table import Row, SearchKind, Table, allowed, donors_in, family_of, mark_of
from benchmarks.reuse.text import gain_text, report
from stormdrop import zoo
from stormdrop.space.schedule import Schedule

SCHEDULE = {"class": "v0", "variant": 0, "steps": [], "values": {}}
ORIGIN = {"cpu": "a machine", "target": "cpu/avx2/2", "commit": "c0ffee"}


def recipient(name: str, calls: Mapping[str, int], class_key: str = "v0", cold: bool = False) -> Row:
    keys = {"digest": name, "task": name, "class": class_key, "cold": cold, "calls": dict(calls)}
    return {"kind": "recipient", "id": f"{name}/{'cold' if cold else 'warm'}", **keys, **ORIGIN}


def donors(name: str, given: Mapping[str, Sequence[float | tuple[float, float]]], seconds: float = 1.0) -> Row:
    """What donors give a recipient: ratios of candidates, the same in both halves unless both are given."""
    ratios: dict[str, Any] = {}
    links: dict[str, Any] = {}
    for far, (donor, each) in enumerate(given.items()):
        marks = [f"{name}-{donor}-{k}" for k in range(len(each))]
        ratios |= {m: list(r) if isinstance(r, tuple) else [r, r] for m, r in zip(marks, each)}
        links[f"{donor}/warm"] = ["class", float(far), marks]
    row = {"kind": "donors", "id": f"{name}/warm", "donors": links, "ratios": ratios, "default_seconds": seconds}
    return row | ORIGIN


def duel(name: str, ratio: float, seconds: float = 1.0) -> Row:
    origin = "default" if ratio == 1 else "nothing"
    found = {"schedule": SCHEDULE, "origin": origin, "ratio": ratio, "default_seconds": seconds, "tried": []}
    return {"kind": "duel", "id": f"{name}/warm", **found, **ORIGIN}


def search(name: str, how: SearchKind, curve: Sequence[tuple[float, float]], seconds: float = 10.0) -> Row:
    """A search whose curve has these seconds and ratios; the last is the winner's."""
    marks = [f"{how}-{k}" for k in range(len(curve))]
    found: Row = {"curve": [[at, k + 1, mark] for k, ((at, _), mark) in enumerate(zip(curve, marks))]}
    found |= {"schedules": dict.fromkeys(marks, SCHEDULE), "winner": SCHEDULE}
    spent = {"seconds": seconds, "trials": len(curve), "budget_seconds": 8.0, "default_seconds": 1.0}
    return {"kind": "search", "id": f"{name}/warm", "how": how, **found, **spent, "ratio": curve[-1][1], **ORIGIN}


def won(name: str, ratio: float) -> Row:
    """What a task's search without donors found."""
    return search(name, "nothing", [(1.0, ratio)])


def in_turns(searches: Sequence[Row], ratios: Sequence[Sequence[tuple[float, float]]]) -> Row:
    """The improvements of one task's searches, timed in turns with each other: the ratios of their curves."""
    timed = {point[2]: r for row, curve in zip(searches, ratios) for point, (_, r) in zip(row["curve"], curve)}
    return {"kind": "curves", "id": searches[0]["id"], "ratios": timed, "default_seconds": 1.0, **ORIGIN}


def three_models() -> Table:
    """Each model has one task of its own; alexnet shares another one with vgg16."""
    return Table.of(
        [
            recipient("a", {"alexnet": 1}),
            recipient("b", {"alexnet": 3, "vgg16": 1}),
            recipient("c", {"vgg16": 1}),
            recipient("d", {"densenet121": 2}),
            *(won(name, ratio) for name, ratio in {"a": 0.5, "b": 0.7, "c": 0.6, "d": 1.0}.items()),
            donors("a", {"b": [0.5], "c": [0.9, 0.8], "d": [1.2]}, seconds=2.0),
            donors("b", {"a": [0.7], "c": [1.1], "d": [0.75]}, seconds=1.0),
            donors("c", {"a": [0.9], "b": [0.6], "d": [1.3]}),
            donors("d", {"a": [1.1], "b": [1.1], "c": [0.95]}),
            duel("a", 0.5, seconds=2.0),
            duel("b", 0.7),
            duel("c", 0.6),
            duel("d", 1.0),
        ]
    )


# ---- who may give ----------------------------------------------------------------------------------------------------


def test_models_that_vary_one_architecture_are_one_family() -> None:
    families = {name: family_of(name) for name in zoo.names()}
    assert len({families[f"resnet{depth}"] for depth in (18, 34, 50, 101, 152)}) == 1
    assert len({families[f"vgg{depth}"] for depth in (11, 13, 16, 19)}) == 1
    assert families["googlenet"] == families["inception_v3"]
    assert families["resnet3d_18"] != families["resnet18"]
    assert families["mobilenet_v2"] != families["mnasnet1_0"]


def test_a_held_out_model_knows_neither_its_own_tasks_nor_those_of_its_family() -> None:
    table = Table.of(
        [
            recipient("held", {"resnet50": 1}),
            recipient("sister", {"resnet101": 1}),
            recipient("shared", {"resnet18": 2, "vgg16": 1}),
            recipient("other", {"vgg16": 1}),
        ]
    )
    assert [r.digest for r in allowed(table, table.recipients["held/warm"])] == ["other"]
    assert [r.digest for r in allowed(table, table.recipients["other/warm"])] == ["held", "sister"]


def test_a_task_is_held_out_at_both_temperatures() -> None:
    table = Table.of([recipient("x", {"resnet50": 1}, cold=True), recipient("x", {"vgg16": 1})])
    assert allowed(table, table.recipients["x/cold"]) == []


def test_a_donor_model_gives_only_tasks_that_the_other_model_does_not_have() -> None:
    table = three_models()
    a = table.recipients["a/warm"]
    assert donors_in(table, "vgg16", a, "alexnet") == {"c/warm"}
    assert donors_in(table, "alexnet", a, "alexnet") == {"b/warm"}


# ---- matrix and pools ------------------------------------------------------------------------------------------------


def test_the_matrix_has_the_time_by_default_over_the_time_with_the_fastest_candidates() -> None:
    found = matrix(three_models())
    assert found.by_donor["alexnet"]["vgg16"] == pytest.approx((2 + 3) / (2 * 0.8 + 3))
    assert found.by_donor["alexnet"]["densenet121"] == pytest.approx((2 + 3) / (2 + 3 * 0.75))
    assert found.by_donor["alexnet"]["alexnet"] == pytest.approx((2 + 3) / (2 * 0.5 + 3 * 0.7))
    assert found.by_donor["densenet121"]["alexnet"] == 1.0
    assert found.all_donors["alexnet"] == pytest.approx((2 + 3) / (2 * 0.8 + 3 * 0.75))
    assert found.best["alexnet"] == pytest.approx((2 + 3) / (2 * 0.5 + 3 * 0.7))


def test_a_candidate_that_is_chosen_by_one_half_of_its_timings_is_judged_by_the_other() -> None:
    table = Table.of(
        [recipient("a", {"m": 1}), recipient("b", {"n": 1}), donors("a", {"b": [(0.8, 1.1), (0.9, 0.95)]})]
    )
    ratio = reused_ratio(table, table.recipients["a/warm"], {"b/warm"})
    assert ratio == pytest.approx((1.1 + 0.9) / 2)


def test_a_larger_pool_is_never_worse() -> None:
    rng = np.random.default_rng(0)
    names = ["alexnet", "vgg16", "densenet121", "googlenet", "squeezenet1_0", "mnasnet1_0"]
    rows: list[Row] = []
    tasks = {f"{name}{k}": name for name in names for k in range(3)}
    for task, name in tasks.items():
        rows.append(recipient(task, {name: int(rng.integers(1, 4))}))
    for task, name in tasks.items():
        given = {d: list(rng.uniform(0.6, 1.5, 2)) for d, model in tasks.items() if model != name}
        best = float(rng.uniform(0.5, 0.9))
        rows += [donors(task, given, float(rng.uniform(0.1, 2))), duel(task, best), won(task, best)]
    table = Table.of(rows)
    curve = pool_curve(table)
    assert [p.size for p in curve] == [1, 2, 3, 4, 5]
    speeds = [p.speed for p in curve]
    assert speeds == sorted(speeds)
    assert speeds[-1] > speeds[0]
    for model in names:
        assert pool_speed(table, model, others(table, model)) >= max(matrix(table).by_donor[model].values()) - 1e-9


def test_our_choice_of_a_donor_model_is_never_of_the_family() -> None:
    rows = [recipient("a", {"resnet50": 1}), recipient("b", {"resnet18": 1}), recipient("c", {"vgg16": 1})]
    rows += [donors("a", {"b": [0.5], "c": [0.9]}), donors("b", {"a": [1.0]}), donors("c", {"a": [1.0]})]
    rows += [duel("a", 0.5), duel("b", 0.5), duel("c", 0.9), won("a", 0.5), won("b", 0.5), won("c", 0.9)]
    table = Table.of(rows)
    assert expected_gain(table, "resnet50", "resnet18") > expected_gain(table, "resnet50", "vgg16") > 0
    found = matrix(table)
    assert found.chosen == {"resnet50": "vgg16", "resnet18": "vgg16", "vgg16": "resnet50"}
    assert found.all_donors["resnet50"] == pytest.approx(1 / 0.9)


def test_a_donor_is_expected_to_give_what_it_won_without_donors() -> None:
    """Its best known schedule may come from the model that is held out."""
    rows = [recipient("a", {"resnet50": 1}), recipient("b", {"vgg16": 1}), donors("a", {"b": [0.9]})]
    rows += [duel("a", 0.5), duel("b", 0.5), won("a", 0.5), won("b", 0.8)]
    assert expected_gain(Table.of(rows), "resnet50", "vgg16") == pytest.approx(0.2)


def test_the_matrix_is_drawn(tmp_path: Path) -> None:
    table = three_models()
    save_matrix(tmp_path / "matrix.png", matrix(table), pool_curve(table), "a machine")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")


# ---- value and gain --------------------------------------------------------------------------------------------------


def test_the_value_of_search_weights_tasks_by_their_time_in_the_model() -> None:
    table = three_models()
    alexnet, vgg, densenet = model_values(table)
    assert (alexnet.tasks, alexnet.gaining) == (2, 2)
    assert alexnet.speed == pytest.approx(5 / (2 * 0.5 + 3 * 0.7))
    assert vgg.speed == pytest.approx(2 / (0.7 + 0.6))
    assert densenet.speed == 1.0
    assert [v.recipient.digest for v in task_values(table)] == ["a", "c", "b", "d"]


def test_tasks_with_something_to_gain_are_fixed_by_the_first_duel() -> None:
    rows = [recipient(name, {"m": 1}) for name in "abc"]
    table = Table.of([*rows, duel("a", 1 / 1.06), duel("b", 1 / 1.04), duel("c", 1.0), duel("b", 0.5), duel("a", 1.0)])
    assert [r.digest for r in gain_tasks(table)] == ["a"]


def gaining_table(tasks: int, long: int | None = None) -> Table:
    """`long`: so many of the tasks were also searched for long; None: all."""
    rows: list[Row] = []
    for k in range(tasks):
        name = f"t{k}"
        curves: dict[SearchKind, list[tuple[float, float]]] = {
            "again": [(1.0, 1.0), (4.0, 0.6), (8.0, 0.505)],
            "only": [(0.5, 0.9), (1.0, 0.509)] if k % 2 else [(0.5, 0.9), (1.0, 0.6)],
            "seed": [(2.0, 0.5)],
            "long": [(1.0, 1.0), (60.0, 0.5)],
        }
        if long is not None and k >= long:
            del curves["long"]
        searches = [search(name, how, curve, 60.0 if how == "long" else 10.0) for how, curve in curves.items()]
        rows += [recipient(name, {"m": 1}), duel(name, 0.5), *searches, in_turns(searches, list(curves.values()))]
    rows += [recipient("calm", {"m": 1}), duel("calm", 1.0), search("calm", "only", [(1.0, 1.005)])]
    rows += [recipient("behind", {"m": 1}), duel("behind", 1.0), search("behind", "only", [(1.0, 1.03)])]
    return Table.of(rows)


def test_a_search_that_never_comes_near_the_best_known_counts_as_the_whole_budget() -> None:
    found = gain(gaining_table(20))
    assert (found.tasks, found.searched) == (20, 20)
    assert found.reached["again"] == [8.0] * 20
    assert found.reached["only"] == [10.0, 1.0] * 10
    assert found.time_ratio("seed") == pytest.approx(2 / 8)
    assert found.time_ratio("only") == pytest.approx((10 / 8 * 1 / 8) ** 0.5)


def test_what_was_timed_in_the_same_turns_decides_when_a_search_is_near_the_best_known() -> None:
    """The duel saw a faster machine than the searches did: only ratios of one occasion are compared."""
    best = mark_of(Schedule.from_json(SCHEDULE))
    rows: list[Row] = [recipient("t", {"m": 1}), duel("t", 0.5)]
    ends: dict[SearchKind, float] = {"again": 4.0, "only": 1.0, "seed": 2.0}
    for how, at in ends.items():
        row = search("t", how, [(0.5, 0.9), (at, 0.6)])
        rows.append(row | {"curve": [[0.5, 1, "early"], [at, 2, best]], "schedules": {best: SCHEDULE}})
    assert gain(Table.of(rows)).searched == 0  # until the improvements are timed
    timed = {"kind": "curves", "id": "t/warm", "ratios": {"early": 0.7, best: 0.6}, "default_seconds": 1.0, **ORIGIN}
    found = Table.of([*rows, timed])
    assert gain(found).reached == {"again": [4.0], "only": [1.0], "seed": [2.0]}
    assert found.searches["t/warm", "seed"].final_ratio == 0.6
    faster = search("t", "long", [(9.0, 0.5)]) | {"curve": [[9.0, 3, "fast"]], "schedules": {"fast": SCHEDULE}}
    again = timed | {"ratios": {"early": 0.7, best: 0.6, "fast": 0.58}}
    assert gain(Table.of([*rows, faster, again])).reached["seed"] == [10.0]  # a winner is known too


def test_what_is_saved_early_is_compared_with_what_a_long_search_saves_in_the_end() -> None:
    found = gain(gaining_table(20))  # 5 % of 60 s are 3 s
    assert found.saved["seed"] == pytest.approx(1.0)
    assert found.saved["only"] == pytest.approx((0.4 + 0.491) / 2 / 0.5)
    assert gain(gaining_table(20, long=19)).saved == {}  # too few to say


def test_other_tasks_that_fall_behind_the_default_are_named() -> None:
    found = gain(gaining_table(1))
    assert found.others == 2
    assert [(r.digest, ratio) for r, ratio in found.behind] == [("behind", 1.03)]


def test_searches_whose_improvements_were_timed_on_different_occasions_are_not_compared() -> None:
    rows = [recipient("t", {"m": 1}), duel("t", 0.5)]
    hows: tuple[SearchKind, ...] = ("again", "only", "seed")
    rows += [search("t", how, [(1.0, 0.5)]) | {"curve": [[1.0, 1, 0.5]], "schedules": {}} for how in hows]
    assert gain(Table.of(rows)).searched == 0


def test_fewer_than_twenty_tasks_with_something_to_gain_make_no_claim() -> None:
    assert "| donors, then a search |" in gain_text(gaining_table(20))
    told = gain_text(gaining_table(19))
    assert "nothing is claimed" in told
    assert "|" not in told


# ---- the report -----------------------------------------------------------------------------------------------------


def test_the_report_of_a_table_without_results_is_empty() -> None:
    assert report(Table.of([recipient("a", {"m": 1})])) == ""
    text = report(three_models())
    assert text.startswith("a machine, avx2, 2 threads\n")
    assert "| 1 alexnet | 1.61 |" in text


def test_rows_of_ten_models_fit_the_page_of_figures() -> None:
    names = [*zoo.names()[:9], "shufflenet_v2_x1_0"]
    rows = [recipient(f"t{k}", {name: 1}) for k, name in enumerate(names)]
    rows += [recipient("shared", dict.fromkeys(names, 1))]
    rows += [duel(f"t{k}", 0.9) for k in range(len(names))] + [duel("shared", 0.5)]
    assert [line for line in report(Table.of(rows)).splitlines() if line.startswith("|") and len(line) > 120] == []
