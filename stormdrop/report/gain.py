"""The gain of a tuned model as text: a speedup with its interval, or that the rounds show none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stormdrop.tuning.model_events import InModel


def gain_text(timed: InModel) -> str:
    """Returns the speedup over the untuned model; "no measurable change" if the noise of the machine is larger."""
    speedup = timed.speedup
    if not timed.rounds:
        return f"{speedup.ratio:.2f}x"
    if all(tuned == default for tuned, default in timed.rounds):
        return "no change: all schedules are the default ones"
    interval = f"95 % interval {speedup.low:.2f}x to {speedup.high:.2f}x, {speedup.rounds} rounds in turns"
    if timed.change == "none":
        return f"no measurable change ({interval})"
    return f"{speedup.ratio:.2f}x ({interval})"
