"""The drawn progress, and what is refused before anything is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
from stormdrop.operators.catalogue import build
from stormdrop.report.plot import SUFFIXES, check_plot, save_plot
from tests.support.searches import tiny, tuned

pytest.importorskip("matplotlib")
from stormdrop.report.plot import draw

FALLING = [9e-6, Failure("build", "x"), 5e-6, 6e-6, 4e-6, 3e-6]


def test_one_search_has_a_staircase_in_both_panels() -> None:
    figure = draw([tuned(FALLING)], 100.0)
    by_time, by_trials = figure.axes[:2]
    for axes, x in ((by_time, [0.5, 1.5, 2.5, 3.0, 3.0]), (by_trials, [1, 3, 5, 6, 6])):
        (line,) = axes.lines
        assert np.asarray(line.get_xdata()).tolist() == x
        assert np.asarray(line.get_ydata()).tolist() == pytest.approx([9e-6, 5e-6, 4e-6, 3e-6, 3e-6])
    assert (by_time.get_xlabel(), by_trials.get_xlabel()) == ("time of search (s)", "trials")
    assert by_time.get_ylabel() == "best time so far (µs)"
    assert "GMM 1 13 17 11" in figure.get_suptitle()


@pytest.mark.parametrize("values", [FALLING, [90e-6, 30e-6, 20e-6]])
def test_the_share_of_peak_is_on_a_second_axis_and_inverse_to_the_time(values: list[float | Failure]) -> None:
    search = tuned(values)
    figure = draw([search], 100.0)
    figure.draw_without_rendering()
    (shares,) = figure.axes[1].child_axes
    assert shares.get_ylabel() == "share of peak"
    low, high = shares.get_ylim()
    marks = [share for share in shares.get_yticks() if low <= share <= high]
    assert len(marks) >= 3
    for share in marks:
        seconds = search.task.flops / share / 1e9 / 100.0
        height = figure.axes[1].transData.transform((0.0, seconds))[1]
        assert shares.transData.transform((0.0, share))[1] == pytest.approx(height)


def test_a_task_without_operations_has_no_second_axis() -> None:
    assert not draw([tuned(FALLING, task=build("TRN", (8, 8)))], 100.0).axes[1].child_axes


def test_droplets_are_shaded_for_one_search_and_marked_for_several() -> None:
    alone = draw([tuned(FALLING, droplet_from=4)], 100.0)
    assert [t.get_text().strip() for t in alone.axes[0].texts] == ["droplets"]
    assert len(alone.axes[0].patches) == 1
    several = draw([tuned(FALLING, droplet_from=4), tuned(FALLING, "random")], 100.0)
    assert not several.axes[0].patches
    (marker,) = [line for line in several.axes[0].lines if line.get_marker() == "v"]
    assert np.asarray(marker.get_xdata()).tolist() == [1.5]
    assert np.asarray(marker.get_ydata()).tolist() == pytest.approx([5e-6])


def test_every_search_has_its_own_line_and_name() -> None:
    figure = draw([tuned(FALLING, name) for name in ("random", "storm", "droplet")], 100.0)
    names = [t.get_text().partition(":")[0] for t in figure.legends[0].get_texts()]
    assert names == ["random", "storm", "droplet"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3


def test_a_scale_is_logarithmic_only_where_trials_differ_much() -> None:
    assert draw([tuned([9e-6, 2e-6])]).axes[0].get_yscale() == "log"
    assert draw([tuned([2.1e-6, 2e-6])]).axes[0].get_yscale() == "linear"


def test_a_dollar_sign_in_a_name_is_no_formula(tmp_path: Path) -> None:
    save_plot(tmp_path / "x.png", [tuned(FALLING, task=Task(tiny().outputs, name="a $\\frac$ b \x1b[31m"))])


@pytest.mark.parametrize(
    ("suffix", "values"),
    [*((suffix, FALLING) for suffix in SUFFIXES), (".svg", [1e-6]), (".svg", [Failure("build", "x")])],
)
def test_any_search_can_be_saved_in_any_format(suffix: str, values: list[float | Failure], tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    check_plot(path)
    save_plot(path, [tuned(values)], 100.0)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x.bmp", "ends in .png, .svg, .pdf"),
        ("x", "ends in .png"),
        ("nowhere/x.png", "there is no directory"),
        ("folder.png", "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_refused_beforehand(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=told):
        check_plot(tmp_path / name)


def test_a_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'stormdrop\[plot\]'"):
        check_plot(tmp_path / "x.png")


def test_a_file_that_cannot_be_written_in_the_end_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save_plot(tmp_path / "gone" / "x.png", [tuned(FALLING)])
