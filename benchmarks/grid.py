"""Which part of a task's space a table records: the best few sketches, of each a grid of choices with about the wanted number of programs.

A grid begins with the best point by the prior. Knobs are widened one after the other, always over their whole range; first those
that make good points rarest for the programs they add. A table full of equally good programs would tell no search from another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stormdrop.ir.tensor import Task
from stormdrop.measure.replay import TableSpace, row_hashes
from stormdrop.space.default import ranked
from stormdrop.space.knobs import Knob
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.machine import Target

SIZES = (1, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # choices that a knob has in a grid, or all of its own
GOOD = 1.08  # a point whose prior is at most this many times the grid's best
MOST_ROWS = 400_000  # of a product, most of which is clamped or illegal
SLACK = 0.12  # a grid may have this share of programs more, or fewer, than were asked for

RARE = 0.003  # of a grid's points should be good, not more
EXCHANGES = 300  # grids to look at for that

Grid = tuple[tuple[int, ...], ...]
Sizes = tuple[int, ...]


def chosen_spaces(task: Task, target: Target, points: int, most: int = 3, rare: float = RARE) -> tuple[TableSpace, ...]:
    """Spaces whose rows are to be measured: seconds are NaN so far. The best sketches by the prior share the points evenly."""
    found = ranked(sketches(task, target))[:most]
    spaces: list[TableSpace] = []
    left = points
    for i, (sketch, best, _) in enumerate(found):
        grid, rows = chosen_grid(sketch, best, left // (len(found) - i), rare)
        left -= len(rows)
        nothing = np.full(len(rows), np.nan, np.float32)
        spaces.append(TableSpace(task, sketch.variant, sketch.structure, target, grid, rows, nothing, nothing))
    return tuple(spaces)


def chosen_grid(sketch: Sketch, best: Points, points: int, rare: float = RARE) -> tuple[Grid, Points]:
    """The choices of every knob, and the canonical legal rows they spell: about `points`, fewer where there are no more."""
    home = [int(np.searchsorted(k.choices, v)) for k, v in zip(sketch.knobs, best)]
    sizes = exchanged(sketch, home, widened(sketch, home, points), points, rare)
    grid = _grid(sketch.knobs, home, sizes)
    return grid, legal_rows(sketch, grid)


def widened(sketch: Sketch, home: Sequence[int], points: int) -> Sizes:
    """Numbers of choices, from one each: the knob goes first that makes good points rarest for the rows it adds."""
    sizes: Sizes = (1,) * len(home)
    count, share = 1, 1.0
    while count < (1 - SLACK) * points:
        options: list[tuple[float, Sizes, int, float]] = []
        for i in range(len(sizes)):
            wider = _resized(sketch.knobs, sizes, i, 1)
            found = _judged(sketch, home, wider) if wider else None
            if wider and found and count < found[0] <= (1 + SLACK) * points:
                options.append((np.log(share / found[1]) / np.log(found[0] / count), wider, *found))
        if not options:
            break
        _, sizes, count, share = max(options, key=lambda o: o[0])
    return sizes


def exchanged(sketch: Sketch, home: Sequence[int], sizes: Sizes, points: int, rare: float) -> Sizes:
    """Widen one knob and narrow another, as long as good points become rarer by it and are not rare enough."""
    judged = _judged(sketch, home, sizes)
    rng = np.random.default_rng(0)
    pairs = [(i, j) for i in range(len(sizes)) for j in range(len(sizes)) if i != j]
    waiting: list[tuple[int, int]] = [pairs[k] for k in rng.permutation(len(pairs))]
    tries = 0
    while waiting and judged and judged[1] > rare and tries < EXCHANGES:
        i, j = waiting.pop()
        narrower = _resized(sketch.knobs, sizes, i, -1)
        other = _resized(sketch.knobs, narrower, j, 1) if narrower else None
        if other is None:
            continue
        tries += 1
        found = _judged(sketch, home, other)
        if found and abs(found[0] / points - 1) <= SLACK and found[1] < judged[1]:
            sizes, judged = other, found
            waiting = [pairs[k] for k in rng.permutation(len(pairs))]
    return sizes


def _resized(knobs: Sequence[Knob], sizes: Sizes, i: int, by: int) -> Sizes | None:
    """One knob's number of choices up or down the ladder of sizes; None at its ends."""
    count = len(knobs[i].choices)
    ladder = sorted({min(n, count) for n in SIZES})
    at = ladder.index(sizes[i]) + by
    return (*sizes[:i], ladder[at], *sizes[i + 1 :]) if 0 <= at < len(ladder) else None


def _judged(sketch: Sketch, home: Sequence[int], sizes: Sizes) -> tuple[int, float] | None:
    """How many rows a grid has, and which share of them is good by the prior; None where it is too large to be looked at."""
    grid = _grid(sketch.knobs, home, sizes)
    if _combinations(grid) > MOST_ROWS:
        return None
    rows = legal_rows(sketch, grid)
    prior = sketch.prior(rows)
    return len(rows), float((prior <= GOOD * prior.min()).mean())


def pruned(spaces: Sequence[TableSpace], least: int, near: float, slack: float = 0.05) -> tuple[TableSpace, ...]:
    """Measured spaces with choices taken out until at most `near` of their points are within `slack` of the optimum.

    Choices go that take more good points with them than bad ones; at least two of a knob and `least` points stay.
    """
    found = tuple(spaces)
    count, share = _measured(found, slack)
    while share >= near:
        options: list[tuple[float, tuple[TableSpace, ...], int, float]] = []
        for k, space in enumerate(found):
            for smaller in _without_one_choice(space):
                others = (*found[:k], smaller, *found[k + 1 :])
                left, rarer = _measured(others, slack)
                if least <= left < count and rarer < share:
                    options.append((np.log(share / rarer) / np.log(count / left), others, left, rarer))
        if not options:
            break
        _, found, count, share = max(options, key=lambda o: o[0])
    return found


def _without_one_choice(space: TableSpace) -> Iterator[TableSpace]:
    for i, choices in enumerate(space.grid):
        for c in choices if len(choices) > 2 else ():
            grid = (*space.grid[:i], tuple(x for x in choices if x != c), *space.grid[i + 1 :])
            smaller = replace(space, grid=grid)
            kept = (smaller.canonical(space.points) == space.points).all(axis=1)  # what the smaller grid still spells
            yield replace(smaller, points=space.points[kept], seconds=space.seconds[kept], spread=space.spread[kept])


def _measured(spaces: Sequence[TableSpace], slack: float) -> tuple[int, float]:
    seconds = np.concatenate([s.seconds for s in spaces])
    if not np.isfinite(seconds).any():
        return len(seconds), 1.0
    return len(seconds), float((seconds <= (1 + slack) * np.nanmin(seconds)).mean())


def legal_rows(sketch: Sketch, grid: Grid) -> Points:
    """The canonical legal rows of a grid, each once."""
    live = [i for i, choices in enumerate(grid) if len(choices) > 1]
    every = np.repeat(np.array([[c[0] for c in grid]], dtype=np.int64), _combinations(grid), axis=0)
    if live:
        axes = np.meshgrid(*(np.asarray(grid[i], dtype=np.int64) for i in live), indexing="ij")
        every[:, live] = np.stack([a.reshape(-1) for a in axes], axis=1)
    every = sketch.canonical(every)
    rows = every[np.sort(np.unique(row_hashes(every), return_index=True)[1])]
    return rows[sketch.legal(rows)]


def _grid(knobs: Sequence[Knob], home: Sequence[int], sizes: Sequence[int]) -> Grid:
    return tuple(tuple(k.choices[i] for i in spread_over(len(k.choices), h, n)) for k, h, n in zip(knobs, home, sizes))


def spread_over(count: int, home: int, n: int) -> list[int]:
    """`n` of `count` places over their whole range, `home` among them."""
    places = np.unique(np.linspace(0, count - 1, n).round().astype(np.int64))
    places[np.argmin(np.abs(places - home))] = home
    return sorted({int(p) for p in places})


def _combinations(grid: Grid) -> int:
    total = 1
    for choices in grid:
        total *= len(choices)
    return total
