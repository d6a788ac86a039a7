"""A tuned model as a page for notebooks: its gain, and a table of its tasks. No script, nothing is loaded.

All text is escaped, because names and messages are untrusted.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from stormdrop.report.gain import gain_text
from stormdrop.report.text import clean, name_text, node_text, seconds_text, span_text, threads_text

if TYPE_CHECKING:
    from stormdrop.tuning.model_events import TunedModel, TunedTask

COLUMNS = (
    *("task", "what", "node", "shapes", "count"),
    *("default", "tuned", "speedup", "GFLOP/s", "trials", "failed", "ended"),
)
TEXTS = ("task", "what", "node", "shapes", "ended")
"""The columns that are no numbers."""


def model_html(tuned: TunedModel) -> str:
    """Returns the HTML that a notebook displays for the result of `sd.tune` of a model."""
    target = tuned.target
    head = "".join(f'<th style="text-align:{_side(name)}">{_text(name)}</th>' for name in COLUMNS)
    rows = "".join(f"<tr>{''.join(map(_cell, COLUMNS, _cells(task)))}</tr>" for task in tuned.tasks)
    return (
        f'<div class="stormdrop"><strong>{_text(name_text(tuned.name))}</strong> on {_text(target.name)}, '
        f"{_text(target.isa)}, {threads_text(target.threads)}: {_text(worth(tuned))}"
        f"<table><tr>{head}</tr>{rows}</table>"
        f"{_text(tuned.strategy)}, seed {tuned.seed}: {tuned.trials} trials, {tuned.failed} failed, in "
        f"{span_text(tuned.tuning_seconds)}; ended by: {_text(tuned.stopped)}{_hint(tuned)}</div>"
    )


def _hint(tuned: TunedModel) -> str:
    row = tuned.costliest
    return "" if row is None else f"<br><code>stormdrop show MODEL {_text(row.id)}</code> shows how a task is computed"


def worth(tuned: TunedModel) -> str:
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


def _text(text: str) -> str:
    return escape(clean(text))
