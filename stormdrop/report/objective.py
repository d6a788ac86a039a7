"""What tuning was to minimise and what that came to: inside the models where these were timed, else as estimated."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from stormdrop.report.text import counted, seconds_text
from stormdrop.search.goal import GeometricMean, Goal, LatencyTargets
from stormdrop.search.model_events import InModel, TunedModel


def objective_rows(goal: Goal, found: Sequence[TunedModel]) -> list[tuple[str, str]]:
    """The value of the objective, for people."""
    where = "in the model" if all(t.in_model is not None for t in found) else "estimated"
    worth = [_worth(t) for t in found]
    match goal:
        case LatencyTargets(targets):
            met = sum(w.seconds <= target for w, target in zip(worth, targets, strict=True))
            value = f"{counted(len(targets), 'latency target')}, {met} met"
        case GeometricMean():
            value = f"speedup {_mean_speedup(worth):.2f}x, the geometric mean"
        case _:
            now, before = sum(w.seconds for w in worth), sum(w.default_seconds for w in worth)
            value = f"latency {seconds_text(now)} (untuned: {seconds_text(before)})"
    return [("objective", f"{value}, {where}")]


def target_rows(target: float | None, tuned: TunedModel) -> list[tuple[str, str]]:
    """Whether one model meets its latency target. The search, which times kernels alone, may have thought otherwise."""
    if target is None:
        return []
    seconds = _worth(tuned).seconds
    where = "estimated" if tuned.in_model is None else "in the model"
    outcome = "met" if seconds <= target else "missed"
    return [("target", f"{seconds_text(target)}, {outcome}: {seconds_text(seconds)} {where}")]


def objective_json(goal: Goal, found: Sequence[TunedModel]) -> dict[str, object]:
    """Of all models together; the value in seconds, or how many times faster."""
    worth = [_worth(t) for t in found]
    match goal:
        case LatencyTargets(targets):
            met = [w.seconds <= target for w, target in zip(worth, targets, strict=True)]
            value = goal.value([w.seconds for w in worth])
            return {"name": "targets", "value": value, "targets": list(targets), "met": met}
        case GeometricMean():
            return {"name": "speedup", "value": _mean_speedup(worth)}
        case _:
            return {"name": "latency", "value": sum(w.seconds for w in worth)}


def target_of(goal: Goal, number: int) -> float | None:
    """The latency target of one of the models, where there are targets."""
    return goal.targets[number] if isinstance(goal, LatencyTargets) else None


def _worth(tuned: TunedModel) -> InModel:
    return tuned.in_model or InModel(tuned.seconds, tuned.default_seconds)


def _mean_speedup(worth: Sequence[InModel]) -> float:
    ratios = [w.default_seconds / w.seconds for w in worth if w.seconds and w.default_seconds]
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else 1.0
