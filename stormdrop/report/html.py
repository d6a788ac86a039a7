"""Results of tuning as pages for notebooks: the curve and the schedule of a single task, a table of a model's tasks.

A page has no script and loads nothing. All text is escaped, because names and messages are untrusted.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape
from importlib.util import find_spec
from io import BytesIO

from stormdrop.device.calibration import load_peak
from stormdrop.report.objective import gain_text
from stormdrop.report.plot import draw
from stormdrop.report.search_result import search_rows
from stormdrop.report.text import clean, name_text, node_text, seconds_text, span_text, speed_text
from stormdrop.target.gpu import Gpu
from stormdrop.tuning.curve import improvements
from stormdrop.tuning.tuned import Tuned, TunedTask

COLUMNS = (
    *("task", "what", "node", "shapes", "count"),
    *("default", "tuned", "speedup", "GFLOP/s", "trials", "failed", "ended"),
)
TEXTS = ("task", "what", "node", "shapes", "ended")
"""The columns that are no numbers."""


def tuned_html(tuned: Tuned) -> str:
    """Returns the HTML that a notebook displays for the result of `sd.tune`."""
    target = tuned.target
    subject = f"<strong>{_text(name_text(tuned.name))}</strong> on {_text(target.name)}, {_text(target.isa)}, "
    body = _model(tuned) if tuned.is_model else _task(tuned)
    return f'<div class="stormdrop">{subject}{target.units}{body}</div>'


def _task(tuned: Tuned) -> str:
    target = tuned.target
    measured = None if isinstance(target, Gpu) else load_peak(target)  # the peak of data sheets is never reached
    peak_gflops = 0.0 if measured is None else measured.gflops
    speed = speed_text(tuned.seconds, tuned.task.flops, peak_gflops)
    rows = "".join(
        f'<tr><th style="text-align:left">{_text(name)}</th><td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in [("time", speed), *search_rows(tuned, None)]
    )
    code = _text("\n".join([*map(str, tuned.best.steps), *(f"{n} = {v}" for n, v in tuned.best.values)]), keep="\n")
    schedule = f"<details><summary>schedule</summary><pre>{code}</pre></details>"
    return f"{_curve(tuned, peak_gflops)}<table>{rows}</table>{schedule}"


def _curve(tuned: Tuned, peak_gflops: float) -> str:
    """Returns the image that `--plot` draws; empty without matplotlib, or if nothing could be timed."""
    if find_spec("matplotlib") is None or not improvements(tuned.history):
        return ""
    image = BytesIO()
    draw([tuned], peak_gflops).savefig(image, format="png")
    data = b64encode(image.getvalue()).decode()
    return f'<img style="display:block" alt="the best so far" src="data:image/png;base64,{data}"/>'


def _model(tuned: Tuned) -> str:
    head = "".join(f'<th style="text-align:{_side(name)}">{_text(name)}</th>' for name in COLUMNS)
    rows = "".join(f"<tr>{''.join(map(_cell, COLUMNS, _cells(task)))}</tr>" for task in tuned.tasks)
    search = f"{_text(tuned.strategy)}, seed {tuned.seed}: {tuned.trials} trials, {tuned.failed} failed, in "
    return (
        f": {_text(worth(tuned))}<table><tr>{head}</tr>{rows}</table>"
        f"{search}{span_text(tuned.tuning_seconds)}; ended by: {_text(tuned.stopped)}{_hint(tuned)}"
    )


def _hint(tuned: Tuned) -> str:
    row = tuned.costliest
    return "" if row is None else f"<br><code>stormdrop show MODEL {_text(row.id)}</code> shows how a task is computed"


def worth(tuned: Tuned) -> str:
    """Returns the latency by default and as tuned: of the model if it was timed, else the sum of its kernels."""
    timed = tuned.in_model
    before, after = (timed.default_seconds, timed.seconds) if timed else (tuned.default_seconds, tuned.seconds)
    if not after:
        return "not timed"
    gain = gain_text(timed) if timed else f"{before / after:.2f}x (its kernels alone)"
    return f"{seconds_text(before)} → {seconds_text(after)}, {gain}"


def _cells(task: TunedTask) -> tuple[str, ...]:
    before, after = task.default_seconds, task.seconds
    return (
        task.id,
        name_text(task.label),
        node_text(task.node),
        task.shapes,
        str(task.count),
        seconds_text(before) if before else "",
        seconds_text(after) if after else "",
        f"{before / after:.2f}x" if before and after else "",
        f"{task.gflops:.1f}" if task.gflops else "",
        str(task.trials),
        str(task.failed),
        task.failure or task.ended,
    )


def _cell(column: str, text: str) -> str:
    return f'<td style="text-align:{_side(column)}">{_text(text)}</td>'


def _side(column: str) -> str:
    return "left" if column in TEXTS else "right"


def _text(text: str, keep: str = "") -> str:
    return escape(clean(text, keep=keep))
