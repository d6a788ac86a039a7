"""Knobs: the integer coordinates of a sketch, each with an ordered tuple of choices; and moves between neighbours.

Coordinate descent, on the prior or on measurements, uses only these moves:

    up, down      one knob to an adjacent choice
    shift         one knob of an axis up and another of the same axis down, or the reverse

A step counts choices, not values: step 2 is two choices further. A canonical value may lie between two choices; these
two choices are its neighbours. The rows after a move consist of choices; they may be neither canonical nor legal.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.expr import Axis
from stormdrop.ir.memo import memoised
from stormdrop.space.access import transposing_axis
from stormdrop.space.nest import Cut, Nest, Trips, cuts, nest_of, setting_knobs
from stormdrop.space.rules import FEWEST_PARTS, SPLIT_TILE, even_parts
from stormdrop.space.structure import OpenSplit, Stage, Structure
from stormdrop.space.tiling import cooperative_lanes, granules_of, power_above
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.structures import LoopKind

MAX_ROWS = 28
MOST_PARTS_PER_THREAD = 16
LIKELY_BLOCKS = 2  # of a multiprocessor


TILE_UNITS = frozenset({"trips", "rows", "few rows", "vectors"})
MOST_SPLIT_STEPS = 2
"""The most steps of split operands in one trip of a loop. With more steps the assembler holds too many parts at
once."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One coordinate of a point."""

    name: str
    choices: tuple[int, ...]
    """The values, ascending."""
    unit: str = "trips"
    """The unit of a value. Tiles have trips, rows, few rows and vectors; `steps` is an unroll factor.

    The remaining units are parts, depth, pieces, residents, group and flag (`nest.setting_knobs`).
    """

    @property
    def axis(self) -> str | None:
        """The axis that the knob tiles, e.g. `s2.a0`; it may have several knobs. None if the knob is no tile size."""
        return None if self.unit not in TILE_UNITS else self.name.rpartition(".")[0] or None

    @property
    def stage(self) -> str:
        return (self.axis or self.name).rpartition(".")[0]

    def nearest(self, value: float) -> int:
        """Returns the choice closest by ratio, the smaller on a tie; numbers below one half count as one half."""
        above = bisect_left(self.choices, value)
        if above in (0, len(self.choices)):
            return self.choices[max(0, above - 1)]
        low, high = self.choices[above - 1 : above + 1]
        value = max(value, 0.5)
        return low if value * value <= max(low, 0.5) * high else high


def _up_to(most: int, choices: Iterable[int]) -> tuple[int, ...]:
    """Returns the choices that do not exceed `most`, or 1."""
    return tuple(c for c in choices if c <= max(1, most))


def tile_choices(extent: int) -> tuple[int, ...]:
    """Returns trip counts up to an extent: small numbers, 2^k, 3 * 2^k, and even splits `ceil(extent / n)`."""
    extent = max(1, extent)
    base = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}
    power = 16
    while power < extent:
        base |= {power, power * 3 // 2}
        power *= 2
    base |= {-(-extent // n) for n in range(1, 9)}
    return _up_to(extent, sorted(base))


def register_choices(extent: int) -> tuple[int, ...]:
    """Returns the choices of rows of the register tile: small numbers and even splits of the extent, up to MAX_ROWS."""
    base = {*range(1, 17), 20, 24, MAX_ROWS} | {-(-extent // n) for n in range(1, 9)}
    return _up_to(min(extent, MAX_ROWS), sorted(base))


def _few_rows(stage: Stage, axis: Axis) -> tuple[int, ...]:
    """Returns the rows of a stage without reuse: at most 8, on the two innermost axes but the vector axis."""
    if axis is transposing_axis(stage):
        return _up_to(axis.extent, (1, 2, 4, 8, 16))
    inner = [a for a in stage.axes if a is not stage.vector][-2:]
    most = min(axis.extent, 8) if axis in inner else 1
    return _up_to(most, (1, 2, 3, 4, 6, 8))


def knobs_of(s: Structure, target: Target) -> tuple[Knob, ...]:
    """Returns the knobs of all stages; `parts` is not among them."""
    knobs: list[Knob] = []
    for stage in s.stages:
        if nest_of(stage).is_cooperative:
            knobs += _block_knobs(s, stage, target.vector_bytes)
        else:
            knobs += _stage_knobs(stage, target.vector_bytes)
    return tuple(knobs)


def smallest_values(s: Structure, target: Target) -> dict[str, int]:
    """Returns the smallest choice of every knob."""
    return {knob.name: knob.choices[0] for knob in knobs_of(s, target)}


PARTS = "parts"


def parts_knob(splits: Sequence[OpenSplit], target: Target) -> Knob:
    """Returns the knob of the parts of all open splits: few choices, since each needs a structure and a trace."""
    counts = {2 << k for k in range(8)} | {target.threads << k for k in range(4)}
    most = max(FEWEST_PARTS, MOST_PARTS_PER_THREAD * target.threads)
    if isinstance(target, Gpu):
        counts, most = {2, 4, 8, 16, 32, 64}, 64
    fitting = {even_count(splits, n) for n in counts if FEWEST_PARTS <= n <= most}
    return Knob(PARTS, tuple(sorted(fitting)), "parts")


def likely_parts(splits: Sequence[OpenSplit], target: Target) -> tuple[int, ...]:
    """Returns the choices of `parts` worth an estimate before any measurement.

    `ideal` parts give every multiprocessor of a GPU `LIKELY_BLOCKS` blocks of a typical tile.
    """
    choices = parts_knob(splits, target).choices
    if not isinstance(target, Gpu):
        return choices
    ideal = LIKELY_BLOCKS * target.multiprocessors * SPLIT_TILE / max(1, max(split.results for split in splits))
    return tuple(n for n in choices if ideal / 1.5 <= n <= ideal * 6) or (Knob(PARTS, choices).nearest(ideal),)


def even_count(splits: Sequence[OpenSplit], parts: int) -> int:
    """Returns the canonical value of `parts`: the largest `even_parts` over the splits."""
    return max(even_parts(split.extent, parts) for split in splits)


def merged(first: tuple[Knob, ...], second: tuple[Knob, ...]) -> tuple[Knob, ...]:
    """Merges two lists of the same knobs: every knob gets the union of its choices."""
    return tuple(
        replace(a, choices=tuple(sorted({*a.choices, *b.choices}))) for a, b in zip(first, second, strict=True)
    )


THREAD_CHOICES = (1, 2, 4, 7, 8, 14, 16, 28, 32, 49, 56, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
MOST_TILE_THREADS = 64  # along one axis of a stage with reuse
MOST_REDUCE_BLOCK = 64  # elements along one axis


@memoised()
def _block_knobs(s: Structure, stage: Stage, vector_bytes: int) -> tuple[Knob, ...]:
    """Returns the knobs of a stage in a thread block."""
    lanes, granules = cooperative_lanes(s, stage, vector_bytes), granules_of(s, stage, vector_bytes)
    nest = nest_of(stage)
    kinds = {level.number: level.kind for level in nest.spatial}
    knobs: list[Knob] = []
    for axis, levels in cuts(stage):
        granule = granules.get(axis, 1)
        steps = -(-axis.extent // granules.get(axis, lanes if axis is stage.vector else 1))
        for cut in _tuned(levels):
            if axis.kind == "reduce":
                knobs.append(Knob(cut.knob, _reduce_choices(stage, nest, steps, granule)))
            else:
                kind = kinds[cut.loop.number]
                choices, unit = _block_choices(stage, nest, axis, kind, steps, axis in granules)
                knobs.append(Knob(cut.knob, _up_to(steps, choices), unit))
    has_copies = any(copy.reader == stage.id for copy in s.stages)
    most_steps = 32 if stage.matrix is None or stage.matrix.kernel.products == 1 else MOST_SPLIT_STEPS
    return (*knobs, *_setting_knobs(stage, lanes, (1, 2, 4, 8, 16, 32), most_steps, has_copies))


def _tuned(levels: Sequence[Cut]) -> list[Cut]:
    """Returns the levels whose trip counts are knobs, outermost first."""
    return [cut for cut in reversed(levels) if cut.source is Trips.KNOB]


def _reduce_choices(stage: Stage, nest: Nest, steps: int, granule: int) -> tuple[int, ...]:
    """Returns the trips of a reduce loop in a thread block."""
    if nest.reduces_across_threads:
        return _up_to(power_above(steps), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
    few = (1, 2, 3, 4, 8, 16, 32, 64) if stage.matrix is not None else (*range(1, 9), 12, 16, 24, 32, 48, 64)
    return _up_to(min(steps, MOST_REDUCE_BLOCK // granule), few)


def _block_choices(
    stage: Stage, nest: Nest, axis: Axis, kind: LoopKind, steps: int, is_group: bool
) -> tuple[Iterable[int], str]:
    """Returns the trips of a spatial loop in a thread block, and their unit. `is_group`: a trip is a granule."""
    if kind is LoopKind.VIRTUAL_THREAD:
        return (1, 2, 4), "few rows"
    if kind is LoopKind.WARP:
        return (1, 2, 4, 8), "trips"
    if stage.matrix is not None:
        return (1, 2, 3, 4, 6, 8, 16) if is_group else (1, 2, 4, 7, 8), "rows"
    if kind is LoopKind.THREAD:
        most = min(1024, MOST_TILE_THREADS if nest.stages_operands else steps)
        return _up_to(most, sorted({*THREAD_CHOICES, *(-(-steps // n) for n in range(1, 5))})), "trips"
    if axis is stage.vector:
        return (1, 2, 4), "vectors"
    if nest.stages_operands:
        return range(1, 9), "rows"
    return _few_rows(stage, axis), "few rows"


@memoised()
def _stage_knobs(stage: Stage, vector_bytes: int) -> tuple[Knob, ...]:
    """Returns the knobs of a stage on a CPU."""
    lanes = vector_bytes // stage.itemsize
    nest = nest_of(stage)
    knobs: list[Knob] = []
    for axis, levels in cuts(stage):
        steps = axis.extent if axis is not stage.vector else -(-axis.extent // lanes)
        for cut in _tuned(levels):
            if axis.kind == "reduce" or cut.loop.number != nest.register:
                knobs.append(Knob(cut.knob, tile_choices(steps)))
            elif axis is stage.vector:
                knobs.append(Knob(cut.knob, _up_to(steps, (1, 2, 3, 4, 6, 8)), "vectors"))
            elif nest.is_blocked:
                knobs.append(Knob(cut.knob, register_choices(axis.extent), "rows"))
            else:
                knobs.append(Knob(cut.knob, _few_rows(stage, axis), "few rows"))
    return (*knobs, *_setting_knobs(stage, lanes, (1, 2, 3, 4, 8, 16), 24))


def _setting_knobs(
    stage: Stage, lanes: int, unrolls: tuple[int, ...], most_steps: int, has_copies: bool = False
) -> list[Knob]:
    """Returns the knobs that are not trip counts (`setting_knobs`)."""
    inner = stage.reduce_axes[-1].extent if stage.is_reduction else 1
    can_peel = len(stage.reduce_axes) > 1 and stage.reduce_axes[-2].extent <= 8
    vectors = 1 if stage.vector is None else -(-stage.vector.extent // lanes)
    choices = {
        "vectors": (_up_to(vectors, (1, 2, 4, 8)), "vectors"),
        "depth": ((1, 2, 3, 4) if has_copies else (1,), "depth"),
        "unroll": (_up_to(min(inner, most_steps), sorted({*unrolls, inner})), "steps"),
        "peel": ((0, 1) if can_peel else (0,), "flag"),
        "layout": ((0, 1), "flag"),
        "pieces": (_up_to(lanes, (1, 2, 4)), "pieces"),
        "residents": ((1, 2, 3, 4), "residents"),
        "group": ((1, 2, 4, 8, 16), "group"),
    }
    return [Knob(name, *choices[setting]) for setting, name in setting_knobs(stage).items()]


Points = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """A step of `knob` up (+1) or down (-1); `partner`, a knob of the same axis, keeps the product of both."""

    knob: int
    sign: int
    partner: int | None = None

    @property
    def touched(self) -> tuple[int, ...]:
        return (self.knob,) if self.partner is None else (self.knob, self.partner)


@lru_cache(maxsize=256)
def moves_of(knobs: tuple[Knob, ...]) -> tuple[Move, ...]:
    """Returns all moves: both signs of each knob, and of each ordered pair of knobs of one axis."""
    axes = [k.axis or k.name for k in knobs]
    free = [i for i, k in enumerate(knobs) if len(k.choices) > 1]
    partners = {i: (None, *(j for j in free if axes[j] == axes[i] and j != i)) for i in free}
    return tuple(Move(i, sign, j) for i in free for sign in (-1, 1) for j in partners[i])


def moved(knobs: Sequence[Knob], point: Sequence[int], moves: Sequence[Move], step: int = 1) -> tuple[int, ...] | None:
    """Returns the row after several moves of different knobs. Moves beyond the last choice are skipped.

    Returns None if the row does not change.
    """
    row = list(point)
    for move in moves:
        value = stepped(knobs[move.knob].choices, point[move.knob], move.sign * step)
        if value is None:
            continue
        row[move.knob] = value
        if move.partner is not None:
            row[move.partner] = knobs[move.partner].nearest(point[move.partner] * point[move.knob] / max(value, 1))
    return None if row == list(point) else tuple(row)


def stepped(choices: Sequence[int], value: int, step: int) -> int | None:
    """Returns the choice `step` choices above or below a value, clamped to the last; None if there is no choice."""
    if step > 0:
        above = bisect_right(choices, value)
        return choices[min(above + step, len(choices)) - 1] if above < len(choices) else None
    below = bisect_left(choices, value)
    return choices[max(below + step, 0)] if below > 0 else None


def neighbour_rows(knobs: tuple[Knob, ...], point: Sequence[int]) -> tuple[list[Move], Points]:
    """Returns the moves that change a point, and the rows after them."""
    (_, numbers), rows = Neighbourhood.of(knobs).rows(np.array([point], dtype=np.int64).reshape(1, len(knobs)))
    moves = moves_of(knobs)
    return [moves[k] for k in numbers], rows


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """All moves of some knobs as arrays: `moved`, vectorised over points and moves."""

    choices: NDArray[np.float64]  # a row per knob, padded with infinity
    counts: NDArray[np.int64]
    knob: NDArray[np.int64]  # by move
    up: NDArray[np.bool_]
    shifts: NDArray[np.int64]  # the moves with a partner
    partner: NDArray[np.int64]  # by shift: the partner's knob

    @staticmethod
    @lru_cache(maxsize=256)
    def of(knobs: tuple[Knob, ...]) -> Neighbourhood:
        moves = moves_of(knobs)
        choices = np.full((len(knobs), max((len(k.choices) for k in knobs), default=1)), np.inf)
        for row, k in zip(choices, knobs):
            row[: len(k.choices)] = k.choices
        shifts = [k for k, m in enumerate(moves) if m.partner is not None]
        return Neighbourhood(
            choices,
            np.array([len(k.choices) for k in knobs], np.int64),
            np.array([m.knob for m in moves], np.int64),
            np.array([m.sign > 0 for m in moves], bool),
            np.array(shifts, np.int64),
            np.array([moves[k].partner for k in shifts], np.int64),
        )

    def rows(self, points: Points, step: int = 1) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], Points]:
        """Returns ((points, moves), rows): each changed row after a move of a point, with its point and its move."""
        here = points.astype(np.float64)
        n = len(self.knob)
        table = np.arange(len(self.counts))
        below = (self.choices < here[:, :, None]).sum(axis=2)
        above = (self.choices <= here[:, :, None]).sum(axis=2)
        higher = self.choices[table, np.minimum(above + step, self.counts) - 1]
        lower = self.choices[table, np.maximum(below - step, 0)]
        value = np.where(self.up, higher[:, self.knob], lower[:, self.knob])
        possible = np.where(self.up, (above < self.counts)[:, self.knob], (below > 0)[:, self.knob])
        rows = np.repeat(here[:, None, :], n, axis=1)
        rows[:, np.arange(n), self.knob] = value
        if len(self.shifts):
            mover = self.knob[self.shifts]
            wanted = here[:, self.partner] * here[:, mover] / np.maximum(value[:, self.shifts], 1.0)
            rows[:, self.shifts, self.partner] = self._nearest(wanted)
        possible &= (rows != here[:, None, :]).any(axis=2)
        point, move = np.nonzero(possible)
        return (point, move), rows[point, move].astype(np.int64)

    def _nearest(self, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns `Knob.nearest` of every partner, vectorised."""
        choices = self.choices[self.partner]
        above = (choices < wanted[:, :, None]).sum(axis=2)
        table = np.arange(len(self.partner))
        low = choices[table, np.maximum(above - 1, 0)]
        high = choices[table, np.minimum(above, self.counts[self.partner] - 1)]
        wanted = np.maximum(wanted, 0.5)
        return np.where(wanted * wanted <= np.maximum(low, 0.5) * high, low, high)
