"""Knobs: the integer coordinates of a sketch, each with an ordered tuple of choices."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stormdrop.ir.expr import Axis
from stormdrop.ir.memo import memoised
from stormdrop.space.access import transposing_axis
from stormdrop.space.nest import (
    Trips,
    cuts,
    depth_knob,
    group_knob,
    layout_knob,
    nest_of,
    peel_knob,
    pieces_knob,
    residents_knob,
    unroll_knob,
    vectors_knob,
)
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
GROUPS = (1, 2, 4, 8, 16)
MOST_SPLIT_STEPS = 2
"""The most steps of split operands in one trip of a loop. With more steps the assembler holds too many parts at
once."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One coordinate of a point.

    `unit` is the unit of a value. Units of tiles are trips, rows and few rows (of the register tile), vectors, and
    steps (unroll factor). Further units are parts (of a reduction), depth (of a pipeline), pieces (of a vector),
    residents (blocks of a multiprocessor), group (rows of blocks), and flag.
    """

    name: str
    choices: tuple[int, ...]  # ascending
    unit: str = "trips"

    @property
    def axis(self) -> str | None:
        """The axis that the knob tiles, e.g. `s2.a0`; None if the knob is not a tile size. Knobs of the same axis can
        exchange factors.
        """
        return None if self.unit not in TILE_UNITS else self.name.rpartition(".")[0] or None

    @property
    def stage(self) -> str:
        return (self.axis or self.name).rpartition(".")[0]

    def nearest(self, value: float) -> int:
        """Returns the choice closest to a value by ratio, the smaller on a tie.

        Numbers below one half count as one half.
        """
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
    """Returns the choices of rows for a stage without reuse: at most 8, on the two innermost axes but the vector axis.
    Such a stage gains little from rows.
    """
    if axis is transposing_axis(stage):
        return _up_to(axis.extent, (1, 2, 4, 8, 16))
    inner = [a for a in stage.axes if a is not stage.vector][-2:]
    most = min(axis.extent, 8) if axis in inner else 1
    return _up_to(most, (1, 2, 3, 4, 6, 8))


def knobs_of(s: Structure, target: Target) -> tuple[Knob, ...]:
    """Returns the knobs of all stages; `parts` is not among them."""
    found: list[Knob] = []
    for stage in s.stages:
        is_cooperative = nest_of(stage).is_cooperative
        found += (
            _block_knobs(s, stage, target.vector_bytes) if is_cooperative else _stage_knobs(stage, target.vector_bytes)
        )
    return tuple(found)


PARTS = "parts"


def parts_knob(splits: Sequence[OpenSplit], target: Target) -> Knob:
    """Returns the number of parts of every open split: powers of two and power-of-two multiples of the threads.

    All splits share the knob. Its choices are few: each choice needs a structure and a trace of its own.
    """
    counts = {2 << k for k in range(8)} | {target.threads << k for k in range(4)}
    most = max(FEWEST_PARTS, MOST_PARTS_PER_THREAD * target.threads)
    if isinstance(target, Gpu):
        counts, most = {2, 4, 8, 16, 32, 64}, 64
    fitting = {even_count(splits, n) for n in counts if FEWEST_PARTS <= n <= most}
    return Knob(PARTS, tuple(sorted(fitting)), "parts")


def likely_parts(splits: Sequence[OpenSplit], target: Target) -> tuple[int, ...]:
    """Returns the choices of `parts` worth an estimate before any measurement.

    `ideal` parts give every multiprocessor of a GPU `LIKELY_BLOCKS` blocks of a typical tile; the choices go from about
    `ideal` to six times as many.
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
    has_reuse = nest.stages_operands
    kinds = {level.number: level.kind for level in nest.spatial}
    found: list[Knob] = []
    for axis, levels in cuts(stage):
        steps = -(-axis.extent // granules.get(axis, lanes if axis is stage.vector else 1))
        for cut in reversed(levels):
            if cut.source is not Trips.KNOB:
                continue
            name = cut.knob
            if axis.kind == "reduce" and nest.reduces_across_threads:
                found.append(Knob(name, _up_to(power_above(steps), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))))
            elif axis.kind == "reduce":
                most = min(steps, MOST_REDUCE_BLOCK // granules.get(axis, 1))
                few = (
                    (1, 2, 3, 4, 8, 16, 32, 64) if stage.matrix is not None else (*range(1, 9), 12, 16, 24, 32, 48, 64)
                )
                found.append(Knob(name, _up_to(most, few)))
            elif kinds[cut.loop.number] is LoopKind.VIRTUAL_THREAD:
                found.append(Knob(name, _up_to(steps, (1, 2, 4)), "few rows"))
            elif kinds[cut.loop.number] is LoopKind.WARP:
                found.append(Knob(name, _up_to(steps, (1, 2, 4, 8))))
            elif stage.matrix is not None:
                is_group = axis in granules
                found.append(Knob(name, _up_to(steps, (1, 2, 3, 4, 6, 8, 16) if is_group else (1, 2, 4, 7, 8)), "rows"))
            elif kinds[cut.loop.number] is LoopKind.THREAD:
                most = min(steps, MOST_TILE_THREADS) if has_reuse else steps
                even = {-(-steps // n) for n in range(1, 5)}
                found.append(
                    Knob(name, tuple(c for c in sorted({*THREAD_CHOICES, *even}) if c <= min(1024, max(1, most))))
                )
            elif axis is stage.vector:
                found.append(Knob(name, _up_to(steps, (1, 2, 4)), "vectors"))
            elif has_reuse:
                found.append(Knob(name, _up_to(steps, (1, 2, 3, 4, 5, 6, 7, 8)), "rows"))
            else:
                found.append(Knob(name, _few_rows(stage, axis), "few rows"))
    name = depth_knob(stage)
    if name is not None:
        has_copies = any(copy.reader == stage.id for copy in s.stages)
        found.append(Knob(name, (1, 2, 3, 4) if has_copies else (1,), "depth"))
    name = unroll_knob(stage)
    if name is not None:
        inner = stage.reduce_axes[-1].extent
        most = 32 if stage.matrix is None or stage.matrix.kernel.products == 1 else MOST_SPLIT_STEPS
        found.append(Knob(name, _up_to(min(inner, most), sorted({1, 2, 4, 8, 16, 32, inner})), "steps"))
    name = peel_knob(stage)
    if name is not None:
        found.append(Knob(name, (0, 1) if stage.reduce_axes[-2].extent <= 8 else (0,), "flag"))
    others = (
        (layout_knob, (0, 1), "flag"),
        (pieces_knob, _up_to(lanes, (1, 2, 4)), "pieces"),
        (residents_knob, (1, 2, 3, 4), "residents"),
        (group_knob, GROUPS, "group"),
    )
    found += [Knob(name, choices, unit) for knob, choices, unit in others if (name := knob(stage)) is not None]
    return tuple(found)


@memoised()
def _stage_knobs(stage: Stage, vector_bytes: int) -> tuple[Knob, ...]:
    lanes = vector_bytes // stage.itemsize
    nest = nest_of(stage)
    found: list[Knob] = []
    for axis, levels in cuts(stage):
        steps = axis.extent if axis is not stage.vector else -(-axis.extent // lanes)
        for cut in reversed(levels):
            if cut.source is not Trips.KNOB:
                continue
            if axis.kind == "reduce" or cut.loop.number != nest.register:
                found.append(Knob(cut.knob, tile_choices(steps)))
            elif axis is stage.vector:
                found.append(Knob(cut.knob, _up_to(steps, (1, 2, 3, 4, 6, 8)), "vectors"))
            elif nest.is_blocked:
                found.append(Knob(cut.knob, register_choices(axis.extent), "rows"))
            else:
                found.append(Knob(cut.knob, _few_rows(stage, axis), "few rows"))
    name = vectors_knob(stage)
    if name is not None and stage.vector is not None:
        found.append(Knob(name, _up_to(-(-stage.vector.extent // lanes), (1, 2, 4, 8)), "vectors"))
    name = unroll_knob(stage)
    if name is not None:
        inner = stage.reduce_axes[-1].extent
        found.append(Knob(name, _up_to(min(inner, 24), sorted({1, 2, 3, 4, 8, 16, inner})), "steps"))
    name = peel_knob(stage)
    if name is not None:
        found.append(Knob(name, (0, 1) if stage.reduce_axes[-2].extent <= 8 else (0,), "flag"))
    return tuple(found)
