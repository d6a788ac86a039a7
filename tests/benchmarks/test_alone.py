"""The comparison of kernels alone with the same kernels in their model."""

from __future__ import annotations

import pytest

from benchmarks.alone import compared, table
from stormdrop.model.profile import Profile, ProfileRow


def row(label: str, share: float, standalone: float, judged: float) -> ProfileRow:
    """A kernel of a model that takes a second; the times alone are shares of its own."""
    return ProfileRow(label, label, 1, share, share, standalone=standalone * share, judged=judged * share)


def test_kernels_of_one_percent_count_and_the_furthest_is_named() -> None:
    rows = (row("a", 0.6, 0.95, 1.02), row("b", 0.3, 0.5, 0.92), row("c", 0.095, 1.2, 1.3), row("d", 0.005, 9.0, 9.0))
    found = compared(Profile("m", 2, 10, 1.0, 100.0, rows))
    assert found["large"] == 3
    again, judged = found["again"], found["judged"]
    assert (again["near"], judged["near"]) == pytest.approx((1 / 3, 2 / 3))
    assert (again["worst_kernel"], judged["worst_kernel"]) == ("b", "c")
    assert (again["worst"], judged["worst"]) == pytest.approx((0.5, 1.3))
    assert judged["sum"] == pytest.approx((0.6 * 1.02 + 0.3 * 0.92 + 0.095 * 1.3) / 0.995)
    lines = table({"machine": {"m": {"2": {"seconds": 1.0, "kernels": 4, **found}}}}).splitlines()
    assert lines[-1].startswith("| m | 2 | 1000.00 | 3 of 4 | 33% | ")
    assert lines[-1].endswith("| 67% | 1.02 | 1.30 | c, 9.5% |")
