"""Tables without a machine: the seconds of every point follow from a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.grid import space_of, spread_over
from stormdrop.operators.catalogue import build
from stormdrop.space.default import ranked
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target
from stormdrop.testing.tables import Table, TableSpace

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


def small_grid(sketch: Sketch, home: Points, points: int) -> TableSpace:
    """Four to six choices of as many knobs as it takes, the last ones first."""
    sizes = [1] * len(sketch.knobs)
    found = space_of(sketch, _grid(sketch, home, sizes))
    for size, i in product((4, 6), reversed(range(len(sizes)))):
        if len(found.points) >= points:
            break
        sizes[i] = min(size, len(sketch.knobs[i].choices))
        found = space_of(sketch, _grid(sketch, home, sizes))
    return found


def _grid(sketch: Sketch, home: Points, sizes: list[int]) -> tuple[tuple[int, ...], ...]:
    places = [int(np.searchsorted(k.choices, v)) for k, v in zip(sketch.knobs, home)]
    return tuple(
        tuple(k.choices[i] for i in spread_over(len(k.choices), h, n)) for k, h, n in zip(sketch.knobs, places, sizes)
    )


def formula_table(name: str, sizes: tuple[int, ...], points: int, formula: Formula = rugged) -> Table:
    """A table of one operator's best three sketches, with at least so many points of each."""
    task, machine = build(name, sizes), target()
    spaces = [small_grid(sketch, point, points) for sketch, point, _ in ranked(sketches(task, machine))[:3]]
    measured = [
        replace(s, seconds=formula(s).astype(np.float32), spread=np.full(len(s.points), 0.01, np.float32))
        for s in spaces
    ]
    return Table(task, machine, tuple(measured), {"made": "by a formula"})
