"""The size of activations without running a network: mean and mean square, carried through its layers.

Weights are drawn so that every convolution and every matrix product gives mean square one, for the moments expected at
its input. Invariant: a value is treated as independent normal variables, a close approximation for deep random
networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]

# The rise of a maximum over so many neighbours above their mean, in standard deviations. Independent normal variables
# would give 1.03 and 1.49 and a small variance. Neighbours share a channel's level, so the rise is smaller (measured on
# GoogLeNet) and the variance stays.
_RISE = {4: 0.8, 9: 1.2}


@dataclass(frozen=True, slots=True)
class Moments:
    mean: float = 0.0
    square: float = 1.0

    @property
    def variance(self) -> float:
        return max(self.square - self.mean**2, 0.0)

    def through(self, function: Function) -> Moments:
        """Returns the moments of function(x), by Gauss-Hermite quadrature."""
        nodes, weights = _quadrature()
        values = function(self.mean + math.sqrt(self.variance) * nodes)
        return Moments(float(weights @ values), float(weights @ values**2))

    def plus(self, other: Moments) -> Moments:
        return Moments(self.mean + other.mean, self.square + other.square + 2 * self.mean * other.mean)

    def times(self, other: Moments) -> Moments:
        return Moments(self.mean * other.mean, self.square * other.square)

    def largest(self, window: int) -> Moments:
        """Returns the moments of a maximum over `window` neighbours."""
        centre = self.mean + math.sqrt(self.variance) * _RISE[window]
        return Moments(centre, centre**2 + self.variance)

    def average(self, window: int) -> Moments:
        """Returns the moments of a mean over `window` neighbours, half-way between independent and equal values.

        The middle is taken in logarithms.
        """
        return Moments(self.mean, self.mean**2 + self.variance / math.sqrt(window))


@cache
def _quadrature() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    return nodes, weights / weights.sum()


def mixture(parts: Sequence[tuple[int, Moments]]) -> Moments:
    """Returns the moments of a concatenation: parts weighted by their numbers of channels."""
    total = sum(count for count, _ in parts)
    return Moments(sum(n * m.mean for n, m in parts) / total, sum(n * m.square for n, m in parts) / total)


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


def relu6(x: Floats) -> Floats:
    return np.clip(x, 0, 6)


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def silu(x: Floats) -> Floats:
    return x * sigmoid(x)


def gelu(x: Floats) -> Floats:
    return x * np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
