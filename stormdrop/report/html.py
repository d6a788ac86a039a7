"""A tuned task as a page for notebooks: figures, a curve of the search, the schedule. No script, nothing is loaded.

All text is escaped: names and messages are other people's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from stormdrop.measure.result import Timing
from stormdrop.report.summary import search_rows
from stormdrop.report.text import clean, seconds_text, span_text, threads_text
from stormdrop.search.curve import Improvement, improvements, phases
from stormdrop.search.events import Tuned

WIDTH, HEIGHT = 560, 180
LEFT, RIGHT, TOP, BOTTOM = 64, 10, 10, 26
MOST_DOTS = 1000
ROOM_ABOVE = 4.0
"""Slower trials than this many times the best are drawn at the upper edge."""


def tuned_html(tuned: Tuned) -> str:
    """What a notebook shows for the result of `sd.tune`."""
    rows = "".join(
        f'<tr><th style="text-align:left">{_text(name)}</th><td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in [*_figures(tuned), *search_rows(tuned, None)]
    )
    code = _text("\n".join([*map(str, tuned.best.steps), *(f"{n} = {v}" for n, v in tuned.best.values)]))
    return (
        f'<div class="stormdrop"><strong>{_text(tuned.task.name)}</strong> on '
        f"{_text(tuned.target.name)}, {_text(tuned.target.isa)}, "
        f"{threads_text(tuned.target.threads)}{_svg(tuned)}<table>{rows}</table>"
        f"<details><summary>schedule</summary><pre>{code}</pre></details></div>"
    )


def _text(text: str) -> str:
    return escape(clean(text, keep="\n"))


def _figures(tuned: Tuned) -> list[tuple[str, str]]:
    rows = [("time", seconds_text(tuned.seconds))]
    if tuned.task.flops:
        peak = tuned.target.peak_gflops * tuned.target.threads
        share = f", {tuned.gflops / peak:.1%} of the target's {peak:.0f}" if peak > 0 else ""
        rows.append(("rate", f"{tuned.gflops:.1f} GFLOP/s{share}"))
    return rows


def _svg(tuned: Tuned) -> str:
    """The best so far over trials: a staircase among dots, the droplets' part shaded; time is logarithmic."""
    found = improvements(tuned.history)
    if not found:
        return ""
    across, down = _Scale(1, max(2, tuned.trials), LEFT, WIDTH - RIGHT), _down(found)
    parts = [
        f'<rect x="{across(p.first):.1f}" y="{TOP}" '
        f'width="{across(p.last) - across(p.first):.1f}" height="{HEIGHT - TOP - BOTTOM}" '
        'fill="#0072b2" opacity="0.1"><title>droplets</title></rect>'
        for p in phases(tuned.history)
        if p.name == "droplet" and p.first > 1
    ]
    parts += _dots(tuned, across, down)
    stairs = _staircase(found, tuned.trials, across, down)
    parts.append(f'<path d="{stairs}" fill="none" stroke="#0072b2" stroke-width="2"/>')
    parts += _labels(tuned, found, down)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'style="display:block" font-family="sans-serif" font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


class _Scale:
    """Maps low..high to pixels."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = low, high
        self._begin, self._factor = begin, (end - begin) / (high - low)

    def __call__(self, value: float) -> float:
        return self._begin + (min(max(value, self.low), self.high) - self.low) * self._factor


def _down(found: Sequence[Improvement]) -> _Scale:
    """Of log time; the best at the bottom. The first trial may have been hopeless."""
    least = found[-1].seconds
    most = max(min(found[0].seconds, ROOM_ABOVE * least), 1.2 * least)
    return _Scale(math.log(least * 0.97), math.log(most), HEIGHT - BOTTOM, TOP)


def _dots(tuned: Tuned, across: _Scale, down: _Scale) -> Iterable[str]:
    timed = [(t.number, t.result.seconds) for t in tuned.history if isinstance(t.result, Timing)]
    timed = [(number, seconds) for number, seconds in timed if seconds > 0]
    for number, seconds in timed[:: max(1, math.ceil(len(timed) / MOST_DOTS))]:
        centre = f'cx="{across(number):.1f}" cy="{down(math.log(seconds)):.1f}"'
        yield f'<circle {centre} r="1.5" fill="#0072b2" opacity="0.3"/>'


def _staircase(found: Sequence[Improvement], trials: int, across: _Scale, down: _Scale) -> str:
    path = f"M{across(found[0].trial):.1f} {down(math.log(found[0].seconds)):.1f}"
    path += "".join(f"H{across(i.trial):.1f}V{down(math.log(i.seconds)):.1f}" for i in found[1:])
    return f"{path}H{across(trials):.1f}"


def _labels(tuned: Tuned, found: Sequence[Improvement], down: _Scale) -> Iterable[str]:
    """The slowest and the fastest time that are shown, and how far the axis goes."""
    floor = HEIGHT - BOTTOM
    frame = f"M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}"
    yield f'<path d="{frame}" fill="none" stroke="currentColor" stroke-width="1" opacity="0.5"/>'
    for seconds in (math.exp(down.high), found[-1].seconds):
        y = down(math.log(seconds)) + 4
        yield f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{_text(seconds_text(seconds))}</text>'
    yield f'<text x="{LEFT}" y="{HEIGHT - 8}">trial 1</text>'
    end = f"trial {tuned.trials}, {span_text(tuned.history[-1].elapsed)}"
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{_text(end)}</text>'
