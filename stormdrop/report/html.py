"""A tuned task as a page for notebooks: figures, a curve of the search, the schedule. No script, nothing is loaded.

All text is escaped: names and messages are other people's.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape
from importlib.util import find_spec
from io import BytesIO

from stormdrop.device.calibration import load_peak
from stormdrop.report.plot import draw
from stormdrop.report.search_result import search_rows
from stormdrop.report.text import clean, speed_text
from stormdrop.target.gpu import Gpu
from stormdrop.tuning.curve import improvements
from stormdrop.tuning.events import Tuned


def tuned_html(tuned: Tuned) -> str:
    """Returns the HTML that a notebook displays for the result of `sd.tune`."""
    target = tuned.target
    measured = None if isinstance(target, Gpu) else load_peak(target)  # the peak of data sheets is never reached
    peak_gflops = 0.0 if measured is None else measured.gflops
    speed = speed_text(tuned.seconds, tuned.task.flops, peak_gflops)
    rows = "".join(
        f'<tr><th style="text-align:left">{_text(name)}</th><td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in [("time", speed), *search_rows(tuned, None)]
    )
    code = _text("\n".join([*map(str, tuned.best.steps), *(f"{n} = {v}" for n, v in tuned.best.values)]))
    return (
        f'<div class="stormdrop"><strong>{_text(tuned.task.name)}</strong> on '
        f"{_text(target.name)}, {_text(target.isa)}, "
        f"{target.units}{_curve(tuned, peak_gflops)}<table>{rows}</table>"
        f"<details><summary>schedule</summary><pre>{code}</pre></details></div>"
    )


def _curve(tuned: Tuned, peak_gflops: float) -> str:
    """Returns the image that `--plot` draws; empty without matplotlib, or if nothing could be timed."""
    if find_spec("matplotlib") is None or not improvements(tuned.history):
        return ""
    image = BytesIO()
    draw([tuned], peak_gflops).savefig(image, format="png")
    data = b64encode(image.getvalue()).decode()
    return f'<img style="display:block" alt="the best so far" src="data:image/png;base64,{data}"/>'


def _text(text: str) -> str:
    return escape(clean(text, keep="\n"))
