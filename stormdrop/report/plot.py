"""The best so far over time and over trials, drawn by matplotlib for `--plot`.

matplotlib is an optional extra and is imported when something is drawn; no window is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.errors import UserError
from stormdrop.base.files import cannot_write
from stormdrop.measure.result import Timing
from stormdrop.report.text import clean, speed_text, time_unit
from stormdrop.tuning.curve import improvements, phases
from stormdrop.tuning.tuned import Tuned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # distinct for colour-blind eyes too
LOG_FROM = 3.0
"""Trials that differ by more than this factor are shown on a logarithmic scale."""
ROOM_ABOVE = 4.0
"""The limit of the drawn range, in multiples of the best. Slower trials are drawn at the upper edge, since the lower
edge matters.
"""


def check_plot(path: Path) -> None:
    """Raises UserError for a plot that is known to fail before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot draw {str(path)!r}: give a file that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UserError(f"cannot draw {str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"cannot draw {str(path)!r}: it cannot be written")
    if find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib: pip install 'stormdrop[plot]'")


def save_plot(path: Path, searches: Sequence[Tuned], peak_gflops: float = 0.0) -> None:
    """Raises UserError if the file cannot be written."""
    figure = draw(searches, peak_gflops)
    with cannot_write(path):
        figure.savefig(path, dpi=150)


def draw(searches: Sequence[Tuned], peak_gflops: float = 0.0) -> Figure:
    """Draws two panels, over time and over trials, one line for each search. Searches must be of one task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    task = searches[0].task
    target = searches[0].target
    figure.suptitle(_plain(f"{task.name} on {target.name}, {target.isa}, {target.units}"), size=11)
    is_alone = len(searches) == 1
    for tuned, colour in zip(searches, COLOURS * len(searches)):
        for axes, by_time in ((left, True), (right, False)):
            _line(axes, tuned, colour, by_time, is_alone, peak_gflops)
    _scale(left, searches)
    left.set_xlabel("time of search (s)")
    right.set_xlabel("trials")
    for axes in (left, right):
        axes.set_xlim(left=0)
        axes.grid(True, which="both", linewidth=0.5, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if task.flops and peak_gflops and left.lines:
        _share_axis(right, task.flops, peak_gflops)
    _legend(figure, left, is_alone)
    return figure


def _legend(figure: Figure, axes: Axes, is_alone: bool) -> None:
    """Adds a legend below both panels, so that it hides nothing."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    if any(line.get_marker() == "v" for line in axes.lines):
        handles.append(Line2D([], [], linestyle="none", marker="v", color="0.4", markersize=8))
        labels.append("droplets begin")
    figure.legend(handles, labels, loc="outside lower center", ncols=1 if is_alone else 2, frameon=False, fontsize=9)


def _line(axes: Axes, tuned: Tuned, colour: str, by_time: bool, is_alone: bool, peak_gflops: float) -> None:
    """Draws trials as dots, the best so far as a staircase, the result as a star; the begin of droplets is marked."""
    curve = improvements(tuned.history)
    if not curve:
        return
    last = tuned.history[-1]
    end = last.elapsed if by_time else last.number
    x = [i.elapsed if by_time else i.trial for i in curve] + [end]
    y = [i.seconds for i in curve] + [curve[-1].seconds]
    timed = [(t, t.result.seconds) for t in tuned.history if isinstance(t.result, Timing)]
    highest = ROOM_ABOVE * curve[-1].seconds
    dots = [(t.elapsed if by_time else t.number, min(s, highest)) for t, s in timed]
    axes.scatter(*zip(*dots), s=5, color=colour, alpha=0.25, linewidths=0, zorder=2)
    label = _plain(f"{tuned.strategy}: {speed_text(tuned.seconds, tuned.task.flops, peak_gflops)}")
    axes.step(x, y, where="post", color=colour, linewidth=1.8, label=label, zorder=3)
    runs = phases(tuned.history)
    for run in runs[1:] if len({run.name for run in runs}) > 1 else []:
        begin, finish = (run.began, run.ended) if by_time else (run.first, run.last)
        if run.name == "droplet" and is_alone:
            axes.axvspan(begin, finish, color=colour, alpha=0.08, linewidth=0, zorder=0)
            axes.text(begin, 0.99, " droplets", transform=axes.get_xaxis_transform(), va="top", size=9, color=colour)
        elif run.name == "droplet":
            level = next((v for p, v in zip(reversed(x), reversed(y)) if p <= begin), y[0])
            axes.plot([begin], [level], marker="v", color=colour, markersize=8, zorder=4)


def _scale(axes: Axes, searches: Sequence[Tuned]) -> None:
    """Scales the time axis in the unit that suits the best; logarithmic if trials differ much. Both panels share it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    curves = [curve for tuned in searches if (curve := improvements(tuned.history))]
    if not curves:
        return
    least = min(curve[-1].seconds for curve in curves)
    most = max(min(curve[0].seconds, ROOM_ABOVE * least) for curve in curves)
    unit, scale = time_unit(least)

    def label(seconds: float, _: object) -> str:
        return f"{seconds / scale:.4g}"

    axes.set_ylabel(f"best time so far ({unit})")
    if most > LOG_FROM * least:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(8))
    axes.set_ylim(least * 0.96, max(most, least * 1.15) * 1.04)
    axes.yaxis.set_major_formatter(FuncFormatter(label))


def _share_axis(axes: Axes, flops: float, peak_gflops: float) -> None:
    """Adds the same scale on the right as a share of the machine's peak."""
    from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

    def inverse(x: ArrayLike) -> ArrayLike:
        """Returns the share for a time, or the time for a share; matplotlib also passes 0."""
        return flops / 1e9 / peak_gflops / np.maximum(x, 1e-30)

    shares = axes.secondary_yaxis("right", functions=(inverse, inverse))
    shares.yaxis.set_major_locator(MaxNLocator(8))
    shares.yaxis.set_minor_locator(NullLocator())
    shares.yaxis.set_major_formatter(PercentFormatter(1.0))
    shares.set_ylabel("share of peak")


def _plain(text: str) -> str:
    """Escapes dollar signs, since a dollar sign would begin a formula."""
    return clean(text).replace("$", r"\$")
