"""The result of a search and its cost, in rows of words: for `stormdrop op`, and for the page in a notebook."""

from __future__ import annotations

from stormdrop.report.text import counted, one_line, seconds_text, span_text, stored_text
from stormdrop.tuning.curve import (
    QUALITIES,
    building_seconds,
    failures,
    first_reaching,
    improvements,
    running_seconds,
    trials_per_second,
)
from stormdrop.tuning.tuned import Tuned

_ENDED = {
    "trials": "the trials are spent",
    "seconds": "the time is spent",
    "no further gain": "no further gain",
    "nothing left": "nothing left to try",
    "interrupted": "you interrupted it",
}
STILL_IMPROVING = 0.8
"""An improvement after this share of the trials: more of them may pay."""
MANY_FAILED = 0.3


def search_rows(tuned: Tuned, stored: str | None) -> list[tuple[str, str]]:
    """Returns name and value of everything of interest about the search for the best."""
    rows = [("search", _search(tuned)), ("spent", _spent(tuned))]
    if curve := improvements(tuned.history):
        marks = [(quality, first_reaching(curve, quality)) for quality in QUALITIES]
        reached_at = (f"{q:.0%} at trial {i.trial} ({span_text(i.elapsed)})" for q, i in marks if i is not None)
        rows.append(("progress", "of the final speed, " + ", ".join(reached_at)))
    rows += [
        ("failed", f"{f.count} by {f.kind}; the first: {one_line(f.first_message)}") for f in failures(tuned.history)
    ]
    if not tuned.verified:
        rows.append(("verified", "no: not timed again in a fresh process, nor compared with the reference there"))
    if stored is not None:
        rows.append(("stored", stored_text(stored, tuned.not_kept)))
    return rows


def _search(tuned: Tuned) -> str:
    done = f"{counted(tuned.trials, 'trial')}, {tuned.failed} failed, {trials_per_second(tuned):.1f}/s"
    ended = _ENDED.get(tuned.stopped, tuned.stopped)
    return f"{tuned.strategy}, seed {tuned.seed}: {done}; ended: {ended}"


def _spent(tuned: Tuned) -> str:
    build, run = span_text(building_seconds(tuned.history)), span_text(running_seconds(tuned.history))
    median = f"median {seconds_text(tuned.median_build_seconds)}"
    return f"{span_text(tuned.tuning_seconds)} in all; builders {build} ({median}), timed runs {run}"


def next_step(tuned: Tuned, is_stored: bool) -> str:
    """Returns a suggestion for the user; empty if there is none."""
    again = "it begins from what is stored" if is_stored else "with a --store it would begin from here"
    curve = improvements(tuned.history)
    if tuned.interrupted or not tuned.verified:
        return f"run it again to finish; {again}"
    if tuned.trials and tuned.failed > MANY_FAILED * tuned.trials:
        return "many candidates failed: --log-file PATH tells what each of them said"
    if tuned.stopped in ("trials", "seconds") and curve and curve[-1].trial > STILL_IMPROVING * tuned.trials:
        return f"it was still improving: run it again, with more --trials or --time; {again}"
    if tuned.stopped in ("no further gain", "nothing left"):
        return "another --seed looks elsewhere"
    return ""
