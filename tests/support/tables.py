"""Tables without a machine: the seconds of every point follow from a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.grid import chosen_spaces
from stormdrop.measure.replay import Table, TableSpace
from stormdrop.ops.catalogue import build
from stormdrop.space.default import ranked
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target, cross

Formula = Callable[[TableSpace], NDArray[np.float64]]


def target() -> Target:
    """Any, but always the same: tables do not depend on the machine that replays them."""
    return cross("avx512")


def rugged(space: TableSpace) -> NDArray[np.float64]:
    """The prior, with bumps along every knob that it knows nothing of; one point in about fifty fails."""
    logs = np.log2(np.maximum(space.points, 1))
    bumps = 0.3 * np.sin(1.7 * logs + np.arange(logs.shape[1])).sum(axis=1)
    fails = (space.points @ np.arange(3, 3 + 2 * logs.shape[1], 2)) % 53 == 0
    return np.where(fails, np.nan, space.prior(space.points) * np.exp(bumps))


def formula_table(name: str, sizes: tuple[int, ...], points: int, formula: Formula = rugged) -> Table:
    """A table of one operator, with about so many points."""
    task, machine = build(name, sizes), target()
    homes = [(sketch, point) for sketch, point, _ in ranked(sketches(task, machine))[:3]]
    spaces = [
        replace(s, seconds=formula(s).astype(np.float32), spread=np.full(len(s.points), 0.01, np.float32))
        for s in chosen_spaces(homes, points, 1.0, lambda sketch, points: sketch.prior(points))
    ]
    return Table(task, machine, tuple(spaces), {"made": "by a formula"})
