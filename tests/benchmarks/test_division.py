"""The benchmark of dividing a search: curves of searches, and when each reaches what both reach."""

from __future__ import annotations

from benchmarks.division import compared, curve_of
from stormdrop.tuning.tuned import TaskRow


def row(id: str, seconds: float | None, default: float | None, count: int = 1) -> TaskRow:
    return TaskRow(id=id, label=id, count=count, flops=0.0, seconds=seconds, default_seconds=default)


def test_a_curve_sums_the_best_times_over_the_defaults() -> None:
    moves = [
        (1.0, row("a", 4.0, 4.0, count=2)),
        (2.0, row("b", 2.0, 2.0)),
        (3.0, row("a", 3.0, 4.0, count=2)),
        (4.0, row("a", 3.5, 4.0, count=2)),  # another best, timed in turns: the curve does not rise
        (5.0, row("c", None, None)),
    ]
    assert curve_of(moves) == [(1.0, 1.0), (2.0, 1.0), (3.0, 0.8), (4.0, 0.8)]


def test_both_ways_are_judged_by_the_worse_end() -> None:
    fast, slow = [(1.0, 1.0), (5.0, 0.8), (9.0, 0.7)], [(1.0, 1.0), (8.0, 0.8)]
    found = compared({"gradient": fast, "share": slow})
    assert found == {"ends": {"gradient": 0.7, "share": 0.8}, "seconds": {"gradient": 5.0, "share": 8.0}}
