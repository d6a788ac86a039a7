"""Measurements that go on where they were stopped, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import choice
from benchmarks.core import label
from benchmarks.long_storm import EXPECTED, long_table, mean_and_interval
from benchmarks.stored import StoredRows, TimeIsUp


class Clock:
    """Stands still but for what rows take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def row(self, seconds: float) -> dict[str, Any]:
        self.now += seconds
        return {"seconds": seconds}


def test_a_row_is_measured_once_also_by_the_next_process(tmp_path: Path) -> None:
    path, clock = tmp_path / "results.json", Clock()
    for _ in range(2):
        rows = StoredRows(path)
        assert rows.once("part", "a", lambda: clock.row(1.0)) == {"seconds": 1.0}
        rows.once("part", "b", lambda: clock.row(2.0))
    assert clock.now == 3.0


def test_nothing_is_begun_that_would_end_too_late(tmp_path: Path) -> None:
    clock = Clock()
    rows = StoredRows(tmp_path / "results.json", minutes=1, clock=clock)
    for key in "ab":
        rows.once("part", key, lambda: clock.row(25.0))
    with pytest.raises(TimeIsUp):
        rows.once("part", "c", lambda: clock.row(25.0))
    assert rows.once("part", "a", lambda: clock.row(25.0)) == {"seconds": 25.0}  # what is stored is no work
    assert clock.now == 50.0
    assert set(StoredRows(rows.path).results["part"]) == {"a", "b"}


def run(speed: float) -> dict[str, Any]:
    return {"speed": speed, "time": 0.2, "short_seconds": 10.0, "long_seconds": 50.0, "reached": None}


def test_operators_count_alike_however_many_runs_they_have() -> None:
    rows = {f"GMM 1 8 8 8 seed {k}": run(2.0) for k in range(3)} | {"SFM 8 8 seed 0": run(0.5)}
    middle, low, high = mean_and_interval(rows, "speed")
    assert middle == pytest.approx(1.0)
    assert (low, high) == pytest.approx((0.5, 2.0))


def test_the_interval_narrows_with_the_number_of_operators() -> None:
    def width(operators: int) -> float:
        rows = {f"O{k} 8 seed {s}": run(1.0 + 0.1 * ((k + s) % 3 - 1)) for k in range(operators) for s in range(3)}
        _, low, high = mean_and_interval(rows, "speed")
        assert low < 1.0 < high
        return high - low

    assert width(18) < 0.75 * width(6)


def test_the_table_says_how_many_runs_are_there() -> None:
    last = long_table("long", {"GMM 1 8 8 8 seed 0": run(1.02)}, EXPECTED["long"])[-1]
    assert last.startswith("1 of 54 runs;")
    assert "0.20 of the seconds" in last


def test_choices_are_counted_by_kernel_and_gain() -> None:
    name = label(*choice.KERNELS[0])
    one = {"moved": False, "found": False, "seconds": 5e-6}
    other = {"moved": True, "found": True, "seconds": 5e-6}
    text = choice.table({"0.0% planted": {f"{name} seed 0": one}, "3.0% planted": {f"{name} seed 0": other}})
    assert f"| 0.0% | {name} | 5.0 | 1 | 0 | – |" in text
    assert "| 3.0% | all |  | 1 | 1 | 1 |" in text
