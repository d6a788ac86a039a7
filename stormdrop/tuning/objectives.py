"""Objectives: the quantity that a search for one or several models minimises, as a function of their latencies.

    latency of model j = Σ count of task i in model j · best seconds of task i
    ∂objective/∂best of task i = Σ slope of model j · count of task i in model j

An objective computes its value and its exact slopes ∂objective/∂latency, none of them negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Protocol

from stormdrop.base.errors import UserError


class Objective(Protocol):
    """The quantity to minimise."""

    def value(self, latencies: Sequence[float]) -> float: ...
    def slopes(self, latencies: Sequence[float]) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class TotalLatency:
    """The sum of all latencies."""

    def value(self, latencies: Sequence[float]) -> float:
        return sum(latencies)

    def slopes(self, latencies: Sequence[float]) -> list[float]:
        return [1.0] * len(latencies)


@dataclass(frozen=True, slots=True)
class WeightedLatency:
    """The weighted sum of all latencies: how often each model, or each size of one model, is run."""

    weights: tuple[float, ...]
    """Positive, one for each model."""

    def __post_init__(self) -> None:
        for w in self.weights:
            if not 0 < w < inf:
                raise UserError(f"weights must be positive numbers, got {w:g}")

    def value(self, latencies: Sequence[float]) -> float:
        return sum(w * seconds for w, seconds in zip(self.weights, latencies, strict=True))

    def slopes(self, latencies: Sequence[float]) -> list[float]:
        return list(self.weights)


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """The seconds that latencies exceed their targets by, summed: a model that meets its target gets no more rounds."""

    targets: tuple[float, ...]
    """Seconds, one for each model."""

    def value(self, latencies: Sequence[float]) -> float:
        return sum(max(0.0, latency - target) for latency, target in zip(latencies, self.targets, strict=True))

    def slopes(self, latencies: Sequence[float]) -> list[float]:
        return [float(latency > target) for latency, target in zip(latencies, self.targets, strict=True)]


@dataclass(frozen=True, slots=True)
class GeometricMean:
    """The geometric mean of latencies. Its minimum maximises the mean speedup over any fixed references."""

    def value(self, latencies: Sequence[float]) -> float:
        if not latencies or min(latencies) <= 0:
            return 0.0
        return exp(sum(map(log, latencies)) / len(latencies))

    def slopes(self, latencies: Sequence[float]) -> list[float]:
        mean = self.value(latencies)
        return [mean / (len(latencies) * latency) if latency > 0 else 0.0 for latency in latencies]


NAMED: Mapping[str, Objective] = {"latency": TotalLatency(), "speedup": GeometricMean()}
"""The objectives by name, for `sd.tune(objective=)` and `--objective`."""


def objective_for(given: Objective | str | None, models: int) -> Objective:
    """Returns the objective that an option names; None names the total latency.

    Raises UserError for an unknown name, and for an objective of another number of models.
    """
    if isinstance(given, str):
        if given not in NAMED:
            raise UserError(
                f"objective={given!r} is unknown; give {', '.join(NAMED)}, or an object such as LatencyTargets"
            )
        return NAMED[given]
    match given:
        case LatencyTargets(targets) if len(targets) != models:
            raise UserError(f"latency targets given: {len(targets)}, models: {models}; give one for each")
        case WeightedLatency(weights) if len(weights) != models:
            raise UserError(f"weights given: {len(weights)}, models or sizes: {models}; give one for each")
        case _:
            return given or TotalLatency()
