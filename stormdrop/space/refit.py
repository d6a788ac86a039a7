"""Schedule transfer (re-fitting): the schedule of one task, the donor, yields candidates for another task.

    same class          replay the donor's derivation; its tile sizes are re-fitted to the new extents
    same anchor class   derive the anchor stages as the donor does, the epilogue as a default schedule does

Tile sizes are re-fitted in three ways, since no single way is right for every axis:

    by value    the lengths of inner tiles stay; the outermost loop takes what remains, as TVM replays a log
    by ratio    the outermost tile grows or shrinks with the extent; the outermost loop keeps its trip count
    even        as by value, each length then moved to the nearest that cuts the extent into equal pieces

Every candidate is a legal point of a sketch of the task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf, prod

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.keys import anchor_results, anchor_stages
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Task, Variant
from stormdrop.space.default import ranked
from stormdrop.space.derive import checked, enumerate_structures
from stormdrop.space.knobs import PARTS
from stormdrop.space.nest import Trips, cuts
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replayed, variant_of
from stormdrop.space.structure import Args, Stage, Structure
from stormdrop.target.machine import Target

READER_RULES = frozenset({"inline", "fuse", "place"})
"""Rules that depend on the readers of a stage. The epilogue, which reads an anchor's results, differs from the
donor's."""
SAMPLES = 64
"""Samples of each component of a sketch with another epilogue. They choose the knobs that the donor does not have."""

Way = Callable[[Sequence[int], int, int], Sequence[int]]
"""A function from the donor's trip counts of an axis (innermost first), the axis's extent and the donor's extent to the
new trip counts."""


def refit(
    schedule: Schedule, donor: Task, task: Task, target: Target, rules: Sequence[Rule] = RULES
) -> tuple[Schedule, ...]:
    """Returns distinct candidates for a task from the schedule of another task: by value, by ratio, even.

    The result is empty if the tasks share neither a class nor an anchor class, or if the derivation does not apply to
    the task. Raises ScheduleError if the schedule is not of the donor's class.
    """
    origin = replayed(donor, variant_of(donor, schedule), schedule.steps, target, checked(rules))
    values = schedule.by_name
    if not set(origin.names) <= set(values):
        raise ScheduleError("the schedule lacks a knob of its sketch")
    try:
        carried = _of_class(origin, values, task) or _of_anchor(origin, values, task)
        return () if carried is None else carried.candidates()
    except ScheduleError:
        return ()


@dataclass(frozen=True, slots=True)
class _Carried:
    """A sketch of the task, and the donor's stages and values under the task's stage ids."""

    sketch: Sketch
    donor: Mapping[str, Stage]
    values: Mapping[str, int]
    """The donor's values; default values for knobs that the donor does not have."""

    def candidates(self) -> tuple[Schedule, ...]:
        points = [self.sketch.fit(self._moved(way)) for way in (_by_value, _by_ratio, _evenly)]
        return tuple(dict.fromkeys(self.sketch.schedule(point[0]) for point in points))

    def seconds(self) -> float:
        """Returns the estimate of the point that is fitted by value; infinite if no point is legal."""
        try:
            return float(self.sketch.prior(self.sketch.fit(self.values))[0])
        except ScheduleError:
            return inf

    def _moved(self, way: Way) -> dict[str, int]:
        """Returns the values, with re-fitted trip counts for every axis that the donor has too."""
        moved, vector_bytes = dict(self.values), self.sketch.target.vector_bytes
        for stage in self._structure().stages:
            if stage.id not in self.donor:
                continue
            now, before = _steps(stage, vector_bytes), _steps(self.donor[stage.id], vector_bytes)
            for axis, levels in cuts(stage):
                id, names = stage.axis_id(axis), [cut.knob for cut in levels if cut.source is Trips.KNOB]
                is_shared = any(cut.source in (Trips.READER, Trips.LANES) for cut in levels)
                if names and not is_shared and id in before and all(name in moved for name in names):
                    moved |= zip(names, way([moved[name] for name in names], now[id], before[id]))
        return moved

    def _structure(self) -> Structure:
        """Returns the structure with the number of parts that a split reduction has in this task."""
        parts = next((k for k in self.sketch.knobs if k.name == PARTS), None)
        if parts is None:
            return self.sketch.structure
        return self.sketch.at({PARTS: parts.nearest(self.values.get(PARTS, parts.choices[0]))})


def _steps(stage: Stage, vector_bytes: int) -> dict[str, int]:
    """Returns the extents of a stage by axis id, in the unit of its knobs: vectors along the vector axis."""
    lanes = vector_bytes // stage.itemsize
    axes = (*stage.axes, *stage.reduce_axes)
    return {stage.axis_id(a): -(-a.extent // lanes) if a is stage.vector else a.extent for a in axes}


# ---- ways to re-fit the trip counts of an axis -----------------------------------------------------------------------


def _by_value(trips: Sequence[int], extent: int, before: int) -> Sequence[int]:
    return trips


def _by_ratio(trips: Sequence[int], extent: int, before: int) -> Sequence[int]:
    """Scales the product of the trip counts with the extent: the outermost count, then inner counts once it is 1."""
    scaled, rest = list(trips), extent / max(1, before)
    for k in reversed(range(len(scaled))):
        wanted = scaled[k] * rest
        scaled[k] = max(1, round(wanted))
        rest = min(1.0, wanted)
    return scaled


def _evenly(trips: Sequence[int], extent: int, before: int) -> Sequence[int]:
    """Cuts the extent into the nearest whole number of tiles of equal length, and each of these by the next level."""
    lengths: list[int] = []
    for count in range(len(trips), 0, -1):
        pieces = max(1, round(extent / max(1, prod(trips[:count]))))
        extent = -(-extent // pieces)
        lengths.append(extent)
    inner = [*lengths[1:], 1]
    return [-(-length // max(1, within)) for length, within in zip(lengths, inner)][::-1]


# ---- carrying a derivation over --------------------------------------------------------------------------------------


def _of_class(origin: Sketch, values: Mapping[str, int], task: Task) -> _Carried | None:
    """Returns the donor's derivation replayed on the variant of its class."""
    key = origin.task.variants[origin.variant].class_key
    for k, variant in enumerate(task.variants):
        if variant.class_key == key:
            sketch = replayed(task, k, origin.structure.steps, origin.target, origin.rules)
            return _Carried(sketch, {stage.id: stage for stage in origin.at(values).stages}, values)
    return None


def _of_anchor(origin: Sketch, values: Mapping[str, int], task: Task) -> _Carried | None:
    """Returns the donor's anchor stages with the task's epilogue: the derivation with the least estimate."""
    donor = origin.task.variants[origin.variant]
    k = next((k for k, v in enumerate(task.variants) if v.anchor_key == donor.anchor_key), None)
    if k is None or not donor.anchor_key:
        return None
    ids = dict(zip(_ids(donor), _ids(task.variants[k]), strict=True))
    steps = frozenset(
        ((s.rule, _mapped(s.stage, ids)), s.args) for s in origin.structure.steps if _root(s.stage) in ids
    )
    stages = {_mapped(s.id, ids): s for s in origin.at(values).stages if _root(s.id) in ids}
    own = {_mapped(name, ids): v for name, v in values.items() if _root(name) in ids or name == PARTS}
    candidates = _with_epilogue(task, k, steps, origin.target, origin.rules)
    carried = [_Carried(sketch, stages, {**defaults, **own}) for sketch, defaults in candidates]
    return min(carried, key=lambda c: c.seconds())


@memoised(64)
def _with_epilogue(
    task: Task, number: int, steps: frozenset[tuple[tuple[str, str], Args]], target: Target, rules: tuple[Rule, ...]
) -> list[tuple[Sketch, dict[str, int]]]:
    """Returns the sketches of a variant that derive the anchor stages by `steps`, each with its default values.

    Cached: most donors of a task differ in tile sizes only.
    """
    variant = task.variants[number]
    anchors = _ids(variant)
    results = {anchors[anchor_stages(variant).index(t)] for t in anchor_results(variant)}
    guided = [_Guided(rule, dict(steps), set(anchors), results) for rule in rules]
    candidates = [Sketch(task, number, s, target, rules) for s in enumerate_structures(variant, target, guided)]
    return [(sketch, sketch.values(point)) for sketch, point, _ in ranked(candidates, SAMPLES)]


def _ids(variant: Variant) -> list[str]:
    """Returns the ids of the anchor stages."""
    stages = variant.stages
    return [f"s{stages.index(t)}" for t in anchor_stages(variant)]


def _root(name: str) -> str:
    """Returns the id of the compute from which a stage or a knob derives: s1 for s1, s1p, s1.0 and s1p.a0.2."""
    match = re.match(r"(s\d+)p?\.", name + ".")
    return match[1] if match else ""


def _mapped(name: str, ids: Mapping[str, str]) -> str:
    root = _root(name)
    return ids[root] + name[len(root) :] if root in ids else name


@dataclass(frozen=True, slots=True, eq=False)
class _Guided:
    """A rule that offers the donor's choices for anchor stages if they apply, else its own options."""

    rule: Rule
    steps: Mapping[tuple[str, str], Args]
    anchors: Set[str]
    results: Set[str]

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def version(self) -> int:
        return self.rule.version

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        offered = self.rule.options(s, stage, target)
        root = _root(stage.id)
        if root not in self.anchors or (root in self.results and self.name in READER_RULES):
            return offered
        args = self.steps.get((self.name, stage.id))
        if args is None:
            return [None] if None in offered else offered
        try:
            self.apply(s, stage, args)
        except ScheduleError:
            return offered
        return [args]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        return self.rule.apply(s, stage, args)
