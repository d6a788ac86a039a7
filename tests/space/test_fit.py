"""A fit finds the coefficients of a machine that is not the nominal one, and tells when there is nothing to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stormdrop.operators.catalogue import build
from stormdrop.space.fit import Observation, fit
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.coefficients import CPU_COEFFICIENTS, FITTED, CpuCoefficients
from stormdrop.target.cpu import Cpu, cross

OPERATORS = (
    ("GMM", (1, 128, 96, 160)),
    ("GMM", (1, 512, 512, 512)),
    ("C2D", (1, 14, 14, 64, 96, 3, 1, 1)),
    ("C2D", (1, 28, 28, 32, 64, 1, 1, 0)),
    ("DEP", (1, 28, 28, 64, 3, 1, 1)),
    ("SFM", (64, 200)),
    ("NRM", (8, 64, 64)),
    ("MXP", (1, 28, 28, 64, 3, 2, 1)),
)


def observed(coefficients: CpuCoefficients, noise: float) -> tuple[Cpu, list[Observation]]:
    """Programs whose seconds are what another machine's estimate says, with noise."""
    target = cross("avx512")
    other = replace(target, coefficients=coefficients)
    rng, found = np.random.default_rng(0), list[Observation]()
    for name, arguments in OPERATORS:
        task = build(name, arguments)
        for sketch in sketches(task, target)[:2]:
            points = sketch.sample_legal(30, rng)
            seconds = Sketch(task, sketch.variant, sketch.structure, other).prior(points)
            found.append(Observation(sketch, points, seconds * np.exp(noise * rng.standard_normal(len(points))), name))
    return target, found


def distance(a: CpuCoefficients, b: CpuCoefficients, name: str) -> float:
    return abs(float(np.log2(getattr(a, name) / getattr(b, name))))


def test_planted_coefficients_are_found() -> None:
    planted = replace(CPU_COEFFICIENTS, tile_cycles=60.0, fork_seconds=6e-6, load_slots=2.0)
    target, observations = observed(planted, noise=0.03)
    found = fit(target, observations)
    assert found.is_better
    assert found.error_after < found.error_before / 4
    assert found.regret_after < found.regret_before
    for name in FITTED:
        before, after = (distance(c, planted, name) for c in (CPU_COEFFICIENTS, found.coefficients))
        assert after < max(0.5 * before, 0.4)  # a penalty holds it back


def test_without_a_difference_the_fit_is_not_kept() -> None:
    target, observations = observed(CPU_COEFFICIENTS, noise=0.03)
    assert not fit(target, observations).is_better


def test_a_fit_needs_several_tasks() -> None:
    target, observations = observed(CPU_COEFFICIENTS, noise=0.0)
    with pytest.raises(ValueError, match="needs 4"):
        fit(target, observations[:4])
