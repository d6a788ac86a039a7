"""The gain of tuned models, and the value of the objective: in the models if these were timed, else as estimated."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from stormdrop.report.text import counted, seconds_text
from stormdrop.tuning.objectives import GeometricMean, LatencyTargets, Objective, WeightedLatency
from stormdrop.tuning.tuned import InModel, Tuned


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


def objective_rows(objective: Objective, results: Sequence[Tuned]) -> list[tuple[str, str]]:
    """Returns the value of the objective, for people."""
    where = "in the model" if all(t.in_model is not None for t in results) else "estimated"
    worth = [_worth(t) for t in results]
    match objective:
        case LatencyTargets(targets):
            met = sum(w.seconds <= target for w, target in zip(worth, targets, strict=True))
            value = f"{counted(len(targets), 'latency target')}, {met} met"
        case GeometricMean():
            value = f"speedup {_mean_speedup(worth):.2f}x, the geometric mean"
        case _:
            total, weights = _total(objective, worth)
            weighted = f" weighted {', '.join(f'{w:g}' for w in weights)}" if weights else ""
            value = f"latency{weighted} {seconds_text(total.seconds)} (untuned: {seconds_text(total.default_seconds)})"
            if len(worth) > 1 and total.rounds:
                value = f"{value}, {gain_text(total)}"
    return [("objective", f"{value}, {where}")]


def target_rows(target: float | None, tuned: Tuned) -> list[tuple[str, str]]:
    """Returns whether one model meets its latency target.

    The search, which times kernels alone, may have reached another result.
    """
    if target is None:
        return []
    seconds = _worth(tuned).seconds
    where = "estimated" if tuned.in_model is None else "in the model"
    outcome = "met" if seconds <= target else "missed"
    return [("target", f"{seconds_text(target)}, {outcome}: {seconds_text(seconds)} {where}")]


def objective_json(objective: Objective, results: Sequence[Tuned]) -> dict[str, object]:
    """Returns the objective of all models together: its value in seconds, or as a speedup."""
    worth = [_worth(t) for t in results]
    match objective:
        case LatencyTargets(targets):
            met = [w.seconds <= target for w, target in zip(worth, targets, strict=True)]
            value = objective.value([w.seconds for w in worth])
            return {"name": "targets", "value": value, "targets": list(targets), "met": met}
        case GeometricMean():
            return {"name": "speedup", "value": _mean_speedup(worth)}
        case _:
            total, weights = _total(objective, worth)
            gain = total.to_json()
            shown = {key: gain[key] for key in ("speedup", "interval", "change")} if total.rounds else {}
            listed = {"weights": list(weights)} if weights else {}
            return {"name": "latency", **listed, "value": total.seconds, **shown}


def _total(objective: Objective, worth: Sequence[InModel]) -> tuple[InModel, tuple[float, ...]]:
    """Returns the sum of latencies and its weights; no weights if all are equal by definition."""
    weights = objective.weights if isinstance(objective, WeightedLatency) else ()
    return InModel.total(worth, weights or (1.0,) * len(worth)), weights


def target_of(objective: Objective, number: int) -> float | None:
    """Returns the latency target of one of the models; None if there are no targets."""
    return objective.targets[number] if isinstance(objective, LatencyTargets) else None


def _worth(tuned: Tuned) -> InModel:
    return tuned.in_model or InModel(tuned.seconds, tuned.default_seconds)


def _mean_speedup(worth: Sequence[InModel]) -> float:
    ratios = [w.default_seconds / w.seconds for w in worth if w.seconds and w.default_seconds]
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else 1.0
