"""Which part of a task's space a table records: of some sketches a grid of choices with about the wanted number of
programs.

A grid has homes, points that it must hold: one that proved good, and the estimate's favourite, with which a search
begins. First it grows: knobs are widened one after the other, over their whole
range, those first that make good points rarest. Then choices are taken out again that too many good points have in
common: good kernels abound, and a table full of them would tell no search from another. What is good, an estimate says
that was learned from measured times: the prior's own would give tables on which the prior is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.knobs import Knob
from stormdrop.space.sketch import Points, Sketch
from stormdrop.testing.tables import TableSpace

SIZES = (1, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # choices that a knob has while a grid grows, or all of its own
GOOD = 0.08  # a point is good whose estimate is this share above the best one's
GROWN = 3  # a grid grows to so many times the programs that are wanted
MOST_ROWS = 600_000  # of a product, most of which is clamped or illegal
MORE_ROWS = 150_000  # where it has as many programs already as are wanted
LEAST_CHOICES = 4  # are left of a knob that had grown to more, if that can be
AIM = 0.002  # the share of good points in a chosen grid
ROOM = 1.1  # a table may have this many times the programs that are wanted

Grid = tuple[tuple[int, ...], ...]
Sizes = tuple[int, ...]
Estimate = Callable[[Sketch, Points], NDArray[np.float64]]
"""Seconds, or anything that is proportional to them."""


def chosen_spaces(homes: Sequence[tuple[Sketch, Points]], points: int, estimate: Estimate) -> tuple[TableSpace, ...]:
    """Spaces whose rows are to be measured, about `points` in all, few of them good: seconds are NaN so far.

    Each sketch comes with the points that its space must hold, or with one.
    """
    grown: list[TableSpace] = []
    for sketch, home in homes:
        space = space_of(sketch, grown_grid(sketch, np.atleast_2d(home), GROWN * points // len(homes), estimate))
        grown.append(replace(space, seconds=estimate(sketch, space.points).astype(np.float32)))
    found = shrunk(grown, points, GOOD, [np.atleast_2d(home) for _, home in homes])
    return tuple(replace(s, seconds=np.full(len(s.points), np.nan, np.float32)) for s in found)


def space_of(sketch: Sketch, grid: Grid) -> TableSpace:
    """All programs of a grid; nothing is known of their seconds."""
    rows = legal_rows(sketch, grid)
    nothing = np.full(len(rows), np.nan, np.float32)
    of = sketch.task, sketch.variant, sketch.structure, sketch.target
    return TableSpace(*of, grid=grid, points=rows, seconds=nothing, spread=nothing)


def legal_rows(sketch: Sketch, grid: Grid) -> Points:
    """The canonical legal rows of a grid, each once."""
    live = [i for i, choices in enumerate(grid) if len(choices) > 1]
    every = np.repeat(np.array([[c[0] for c in grid]], dtype=np.int64), _combinations(grid), axis=0)
    if live:
        axes = np.meshgrid(*(np.asarray(grid[i], dtype=np.int64) for i in live), indexing="ij")
        every[:, live] = np.stack([a.reshape(-1) for a in axes], axis=1)
    every = sketch.canonical(every)
    rows = every[np.sort(np.unique(_row_hashes(every), return_index=True)[1])]
    return rows[sketch.legal(rows)]


def _row_hashes(points: Points) -> NDArray[np.uint64]:
    """64 bits of each row, by random odd multipliers."""
    draws = np.random.default_rng(7).integers(0, 2**63, size=points.shape[1], dtype=np.uint64)
    return points.astype(np.uint64) @ (draws * np.uint64(2) + np.uint64(1))


def _combinations(grid: Grid) -> int:
    total = 1
    for choices in grid:
        total *= len(choices)
    return total


# ---- growing
# -----------------------------------------------------------------------------------------------------------


def grown_grid(sketch: Sketch, homes: Points, points: int, estimate: Estimate) -> Grid:
    """From the choices of the homes: the knob goes first that makes good points rarest for the rows it adds."""
    places = [np.searchsorted(k.choices, values).tolist() for k, values in zip(sketch.knobs, homes.T)]
    sizes: Sizes = (1,) * len(places)
    rows = legal_rows(sketch, _grid(sketch.knobs, places, sizes))
    count, share = len(rows), _good(estimate(sketch, rows), GOOD)
    while count < points:
        options: list[tuple[float, Sizes, int, float]] = []
        for i, k in enumerate(sketch.knobs):
            wider = min(n for n in (*SIZES, len(k.choices) + 1) if n > sizes[i])
            others = (*sizes[:i], min(wider, len(k.choices)), *sizes[i + 1 :])
            grid = _grid(sketch.knobs, places, others)
            if others == sizes or _combinations(grid) > (MOST_ROWS if GROWN * count < points else MORE_ROWS):
                continue
            rows = legal_rows(sketch, grid)
            if len(rows) > count:
                rarer = _good(estimate(sketch, rows), GOOD)
                options.append((float(np.log(share / rarer) / np.log(len(rows) / count)), others, len(rows), rarer))
        if not options:
            break
        _, sizes, count, share = max(options, key=lambda o: o[0])
    return _grid(sketch.knobs, places, sizes)


def _grid(knobs: Sequence[Knob], places: Sequence[Sequence[int]], sizes: Sizes) -> Grid:
    """Choices of every knob spread over its range, the homes' places among them."""
    spread = [{*spread_over(len(k.choices), own[0], n), *own} for k, own, n in zip(knobs, places, sizes)]
    return tuple(tuple(k.choices[i] for i in sorted(each)) for k, each in zip(knobs, spread))


def spread_over(count: int, home: int, n: int) -> list[int]:
    """`n` of `count` places over their whole range, `home` among them."""
    places = np.unique(np.linspace(0, count - 1, n).round().astype(np.int64))
    places[np.argmin(np.abs(places - home))] = home
    return sorted({int(p) for p in places})


def _good(seconds: NDArray[np.floating], slack: float) -> float:
    """The share that takes at most (1 + slack) times the fewest seconds."""
    return float((seconds <= (1 + slack) * np.nanmin(seconds)).mean())


# ---- shrinking
# ---------------------------------------------------------------------------------------------------------


def pruned(
    spaces: Sequence[TableSpace], points: int, near: float, slack: float, choices: int = 2
) -> tuple[TableSpace, ...]:
    """Spaces with choices taken out until fewer than `near` of their points are within `slack` of the best.

    At least `points`, and so many choices of a knob, stay. A choice goes that takes more good points with it, for all
    that it takes, than any other.
    """
    found = tuple(spaces)
    while _good(_seconds(found), slack) >= near:
        smaller = _smaller(found, points, slack, choices, 0.0)
        if smaller is None or _good(_seconds(smaller), slack) >= _good(_seconds(found), slack):
            break
        found = smaller
    return found


def shrunk(spaces: Sequence[TableSpace], points: int, slack: float, homes: Sequence[Points]) -> tuple[TableSpace, ...]:
    """Spaces with choices taken out until hardly more than `points` are left, their homes among them, and good ones are
    rare.

    They become as rare as `AIM`, not rarer: a needle is found by luck. Knobs keep several choices as long as that can
    be.
    """
    found = tuple(spaces)
    for choices in range(LEAST_CHOICES, 0, -1):
        while len(_seconds(found)) > points * ROOM and (smaller := _smaller(found, points, slack, choices, AIM, homes)):
            found = smaller
    return found


def _smaller(
    spaces: tuple[TableSpace, ...], points: int, slack: float, choices: int, aim: float, homes: Sequence[Points] = ()
) -> tuple[TableSpace, ...] | None:
    """The spaces without the choice that is best taken out; None where too few points would be left without any.

    That is the one which leaves good points rarest for what it takes; or as rare as they are, where that is less than
    `aim`.
    """
    least = points // (3 * len(spaces)) if homes else 1  # of each space
    count, share = len(_seconds(spaces)), _good(_seconds(spaces), slack)
    options: list[tuple[float, tuple[TableSpace, ...]]] = []
    for k, space in enumerate(spaces):
        for smaller in _without_one_choice(space, choices):
            others = (*spaces[:k], smaller, *spaces[k + 1 :])
            seconds = _seconds(others)
            keeps_home = not homes or bool(smaller.legal(homes[k]).all())
            is_enough = points <= len(seconds) < count and len(smaller.points) >= least
            if is_enough and keeps_home and np.isfinite(seconds).any():
                options.append((float(np.log(share / _good(seconds, slack)) / np.log(count / len(seconds))), others))
    if share < aim:
        best = min(options, key=lambda o: abs(o[0]), default=None)
    else:
        best = max(options, key=lambda o: o[0], default=None)
    return best[1] if best else None


def _seconds(spaces: Sequence[TableSpace]) -> NDArray[np.float32]:
    return np.concatenate([s.seconds for s in spaces])


def _without_one_choice(space: TableSpace, least: int) -> Iterator[TableSpace]:
    for i, choices in enumerate(space.grid):
        if len(choices) <= least:
            continue
        stands_for = np.minimum(np.searchsorted(choices, space.points[:, i]), len(choices) - 1)
        for place in range(len(choices)):
            smaller = replace(
                space, grid=(*space.grid[:i], (*choices[:place], *choices[place + 1 :]), *space.grid[i + 1 :])
            )
            kept = stands_for != place
            own = space.points[~kept]
            kept[~kept] = (smaller.canonical(own) == own).all(axis=1)  # a larger choice is clamped to the same
            yield replace(smaller, points=space.points[kept], seconds=space.seconds[kept], spread=space.spread[kept])
