"""The making of groups (`device.artifact`) at compile time: phases of a model that need no barrier between them.

Phases are processed in their order. A phase joins the group before it in one of three ways:

    serial        One thread is estimated to run it faster than all threads, which need a barrier. The group is a chain
                  of such phases, and runs on one thread.
    independent   It touches nothing that another phase of the group writes, and writes nothing that one touches.
    local         It does share bytes that are written with other phases of the group, but only within one iteration of
                  the group. Proved from the affine intervals of `lower.touches`, iteration by iteration.

Otherwise it begins a new group. Estimates, target data and kernels decide: equal models have equal groups on equal
targets.

Invariant: an iteration of a group touches nothing that another iteration of the group writes. The proof assumes that
buffers with different keys are disjoint memory. The layout of the arena keeps them disjoint while the group runs, by
way of `concurrent_calls`.

Summaries of a kernel's phases, the input of grouping (`builder.grouping`): the memory that a phase touches, and
estimates of its time on one thread and on all threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stormdrop.base.codec import Amount
from stormdrop.base.environment import variable
from stormdrop.base.errors import UserError
from stormdrop.device.artifact import Group
from stormdrop.lower.program import Program
from stormdrop.lower.touches import Ints, PhaseTouches, Touch, touches_of
from stormdrop.space.cpu_judge import CpuAssessment, CpuJudge
from stormdrop.space.judge import arithmetic_seconds
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import Cpu

LONG_BARRIERS = 10
"""A kernel of one phase is *long* if its arithmetic takes one thread more time than so many barriers. A long phase is
never worth running on one thread, so the judge's estimate, which takes 1.5 ms to compute, is left out.
"""


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """The summary of one phase of a call. `seconds` is the estimated time on all threads of the target, `alone` the
    estimated seconds on one thread. For long phases (`LONG_BARRIERS`) both are lower bounds.
    """

    seconds: Amount
    alone: Amount
    memory: PhaseTouches


def summaries_of(program: Program, sketch: Sketch, point: Points, target: Cpu) -> tuple[PhaseSummary, ...]:
    """Returns the summaries of the phases that a call runs, without load-time phases.

    `program` is the lowered `point` of `sketch`.
    """
    phases = [phase for phase in program.phases if not phase.at_load]
    least = arithmetic_seconds(sketch.task, target)
    if len(phases) == 1 and least > LONG_BARRIERS * target.barrier_seconds:
        return (PhaseSummary(least / target.threads, least, touches_of(phases[0])),)
    values = sketch.values(point)
    structure = sketch.at(values)
    together, alone = (
        _phase_seconds(CpuJudge(machine).assess(structure, values)) for machine in (target, target.with_threads(1))
    )
    return tuple(PhaseSummary(together[p.name], alone[p.name], touches_of(p)) for p in phases)


def _phase_seconds(assessment: CpuAssessment) -> dict[str, float]:
    """Returns estimated seconds by phase.

    A phase has the id of its outermost stage; stages computed inside that are added.
    """
    seconds_by_phase: dict[str, float] = {}
    for cost, seconds in zip(assessment.costs, assessment.each_seconds):
        name = cost.stage.host or cost.stage.id
        seconds_by_phase[name] = seconds_by_phase.get(name, 0.0) + float(seconds)
    return seconds_by_phase


MEANS = ("serial", "independent", "local")
"""The values of `STORMDROP_GROUPS`: the ways in which a phase joins a group."""
MOST_CHAIN_SECONDS = 15e-6
"""No phase is appended to a serial group that would take longer than this with it. The other threads wait meanwhile,
and fall asleep if they wait for longer than they spin (`pool_settings.SPIN_MICROSECONDS`).
"""
MOST_ITERATIONS = 1 << 15
"""The most iterations, of a phase or of the group, for which phases are tested for being local."""
L2_SHARE = 0.5
"""The part of the L2 that all constants of a parallel group may fill. A thread runs its share of a group in several
parts, and each part goes through all phases. The constants should stay in the L2 from one part to the next.
"""
IMBALANCE = 0.02
"""The excess of a group's imbalance (`_Maker._imbalance`) that is allowed over the imbalance of its least balanced
phase.
"""


def means_from(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Returns the members of `MEANS` to use: the members that `STORMDROP_GROUPS` names, by default all.

    Raises UserError for unknown names.
    """
    text = variable("STORMDROP_GROUPS", environ)
    if not text or text == "none":
        return frozenset(() if text else MEANS)
    means = frozenset(part.strip() for part in text.split(","))
    if not means <= set(MEANS):
        raise UserError(f"STORMDROP_GROUPS is {text!r}; it takes none, or some of {', '.join(MEANS)}")
    return means


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPhase:
    """A phase of a model's call: the index of the call, the index of the phase in the call, and the memory it uses.

    `places` has an entry for each slot of the call's pointer table. An entry is the key of a buffer of the model, and
    the byte offset of the kernel's buffer in it. None: memory that no phase writes, such as constants.
    """

    call: int
    phase: int
    summary: PhaseSummary
    places: Sequence[tuple[Hashable, int] | None]
    constants: Mapping[int, int] = field(default_factory=dict[int, int])
    """The constants of the phase's call: their sizes in bytes, by slot."""

    @property
    def extent(self) -> int:
        return self.summary.memory.extent

    def touched(self) -> Iterator[tuple[Hashable, int, Touch]]:
        """Yields the touches of buffers that may be written, each with its entry of `places`: key, offset, touch."""
        for touch in self.summary.memory.touches:
            place = self.places[touch.slot]
            if place is not None:
                yield *place, touch

    def iterations(self, group_extent: int) -> tuple[Ints, Ints]:
        """Returns the range of the phase's iterations that each iteration of a group runs: begins and ends."""
        edges = -(-np.arange(group_extent + 1, dtype=np.int64) * self.extent // group_extent)
        return edges[:-1], edges[1:]


def grouped(phases: Sequence[PlacedPhase], target: Cpu, means: frozenset[str]) -> tuple[Group, ...]:
    """Returns the groups of a model's phases, none of which may be empty.

    No groups at all, (), stand for a barrier after every phase: returned if no phase joins another, and none becomes
    serial.
    """
    if target.threads == 1 or not means:
        return ()
    maker = _Maker(target, means)
    for phase in phases:
        maker.add(phase)
    drafts = maker.groups
    if all(len(d.phases) == 1 and d.extent == d.phases[0].extent for d in drafts):
        return ()
    return tuple(Group(d.extent, tuple((p.call, p.phase) for p in d.phases)) for d in drafts)


def concurrent_calls(groups: Sequence[Group], calls: int) -> list[tuple[int, int]]:
    """Returns for each call the first and the last call that may run at the same time.

    These are calls with phases in the same parallel groups. Buffers of such calls must not share memory.
    """
    spans = [(k, k) for k in range(calls)]
    for group in groups:
        if not group.is_serial:
            first, last = group.phases[0][0], group.phases[-1][0]
            for call, _ in group.phases:
                spans[call] = min(spans[call][0], first), max(spans[call][1], last)
    return spans


def unordered(phases: Sequence[PlacedPhase], extent: int) -> tuple[PlacedPhase, PlacedPhase] | None:
    """Returns two phases that need a barrier between them in a group of `extent` iterations; None if there are no such
    phases.

    The phases need a barrier if an iteration of one may touch bytes that the other phase writes in another iteration.
    """
    for n, later in enumerate(phases):
        for earlier in phases[:n]:
            if not _is_local(earlier, later, extent):
                return earlier, later
    return None


@dataclass(slots=True)
class _Draft:
    """A group in the making."""

    extent: int
    phases: list[PlacedPhase]
    seconds: float = 0.0
    """The estimate of a serial group on its one thread; unused in parallel groups."""

    @property
    def is_serial(self) -> bool:
        return self.extent == 1


@dataclass(slots=True)
class _Maker:
    """Builds groups from phases in their order: each is added to the last group, or begins another."""

    target: Cpu
    means: frozenset[str]
    groups: list[_Draft] = field(default_factory=list[_Draft])
    written_serially: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    """The property that the last group that wrote a buffer was serial, by buffer key. Buffers without an entry are the
    model's inputs. Serial groups run on thread 0, the caller's, whose own caches hold their results and the inputs.
    """

    def add(self, phase: PlacedPhase) -> None:
        group = self.groups[-1] if self.groups else None
        is_short = phase.extent == 1 or ("serial" in self.means and self._is_faster_alone(phase))
        if group is None or not (self._chained(group, phase, is_short) or self._joined(group, phase)):
            self.groups.append(_Draft(1 if is_short else phase.extent, [phase], phase.summary.alone))
        is_serial = self.groups[-1].is_serial
        self.written_serially |= {key: is_serial for key, _, touch in phase.touched() if touch.is_written}

    def _is_faster_alone(self, phase: PlacedPhase) -> bool:
        """Returns whether one thread is estimated to be at least as fast as all of them.

            alone + bytes that other threads wrote / handover rate of one thread  <=  seconds + barrier

        `handover_gbs` is the rate of all threads together. Of a buffer that a parallel group wrote, other threads wrote
        all but a T-th.
        """
        threads, seconds = self.target.threads, phase.summary.alone
        for key, _, touch in phase.touched():
            if not touch.is_written and not self.written_serially.get(key, True):
                nbytes = _span(phase, touch) * (threads - 1) / threads
                seconds += nbytes / (self.target.handover_gbs * 1e9 / threads)
        return seconds <= phase.summary.seconds + self.target.barrier_seconds

    def _chained(self, group: _Draft, phase: PlacedPhase, is_short: bool) -> bool:
        """Appends the phase to a serial group if that is allowed; returns whether it was."""
        seconds = group.seconds + phase.summary.alone
        if not (group.is_serial and is_short and "serial" in self.means and seconds <= MOST_CHAIN_SECONDS):
            return False
        group.phases.append(phase)
        group.seconds = seconds
        return True

    def _joined(self, group: _Draft, phase: PlacedPhase) -> bool:
        """Adds the phase to a parallel group if a legal and balanced group extent exists; returns whether it does."""
        phases = [*group.phases, phase]
        if group.is_serial or sum(sum(p.constants.values()) for p in phases) > L2_SHARE * self.target.l2_bytes:
            return False
        is_independent = not any(True for p in group.phases for _ in _shared(p, phase))
        if ("independent" if is_independent else "local") not in self.means:
            return False
        extents = [p.extent for p in phases]
        allowed = max(map(self._imbalance, extents)) + IMBALANCE
        for extent in dict.fromkeys((max(extents), math.gcd(*extents), min(extents))):
            if self._imbalance(extent) <= allowed and unordered(phases, extent) is None:
                group.phases, group.extent = phases, extent
                return True
        return False

    def _imbalance(self, extent: int) -> float:
        """Returns the iterations of the busiest thread over the mean."""
        threads = self.target.threads
        return -(-extent // threads) * threads / extent


def _span(phase: PlacedPhase, touch: Touch) -> int:
    """Returns the distance in bytes from the first to the last byte that any iteration touches.

    It is an upper bound of the bytes read or written.
    """
    moved = sum(abs(stride) * (n - 1) for stride, n in zip(touch.strides, phase.summary.memory.loops))
    return touch.high - touch.low + moved


def _shared(a: PlacedPhase, b: PlacedPhase) -> Iterator[tuple[int, Touch, int, Touch]]:
    """Yields pairs of touches, one of each phase, that may overlap and of which at least one writes.

    Each pair is the offset and touch of `a`, and the offset and touch of `b`.
    """
    for key, offset, touch in a.touched():
        for other_key, other_offset, other in b.touched():
            if key == other_key and (touch.is_written or other.is_written):
                begin, end = _bounds(a, offset, touch)
                other_begin, other_end = _bounds(b, other_offset, other)
                if begin < other_end and other_begin < end and _columns_meet(touch, offset, other, other_offset):
                    yield offset, touch, other_offset, other


def _columns_meet(touch: Touch, offset: int, other: Touch, other_offset: int) -> bool:
    """Returns whether two accesses to a buffer may have a byte in common, judged by their columns; True if unknown."""
    one, two = touch.columns, other.columns
    return one is None or two is None or one.meets(offset, two, other_offset)


def _bounds(phase: PlacedPhase, offset: int, touch: Touch) -> tuple[int, int]:
    """Returns the bytes [begin, end) of the buffer within which all iterations touch it."""
    moves = [stride * (n - 1) for stride, n in zip(touch.strides, phase.summary.memory.loops)]
    return offset + touch.low + sum(min(0, m) for m in moves), offset + touch.high + sum(max(0, m) for m in moves)


def _may_be_apart(a: PlacedPhase, b: PlacedPhase, offset: int, touch: Touch, other_offset: int, other: Touch) -> bool:
    """Returns whether each phase's first iteration ends before the bytes of the other's last.

    This is a necessary condition of `_is_local` that is cheap to test.
    """
    end, other_end = offset + touch.high, other_offset + other.high
    last = offset + touch.low + sum(s * (n - 1) for s, n in zip(touch.strides, a.summary.memory.loops))
    other_last = other_offset + other.low + sum(s * (n - 1) for s, n in zip(other.strides, b.summary.memory.loops))
    return end <= other_last and other_end <= last


def _is_local(a: PlacedPhase, b: PlacedPhase, group_extent: int) -> bool:
    """Returns whether two phases may run in a group of `group_extent` iterations without a barrier.

    They may if no iteration of the group touches bytes that another iteration writes. The tested condition is
    sufficient: the interval of one phase in iteration i ends at or before the begin of the other phase's interval in
    iteration j. It is tested for every pair of `_shared`, in both directions, and i < j.
    """
    shared = list(_shared(a, b))
    if not shared or group_extent == 1:
        return True
    if max(a.extent, b.extent, group_extent) > MOST_ITERATIONS:
        return False
    if not all(_may_be_apart(a, b, *pair) for pair in shared):
        return False
    for offset, touch, other_offset, other in shared:
        lows, highs = a.summary.memory.intervals(touch, *a.iterations(group_extent))
        other_lows, other_highs = b.summary.memory.intervals(other, *b.iterations(group_extent))
        for ends, is_some, begins, is_other in (
            (highs + offset, highs > lows, other_lows + other_offset, other_highs > other_lows),
            (other_highs + other_offset, other_highs > other_lows, lows + offset, highs > lows),
        ):
            last_end = np.maximum.accumulate(np.where(is_some, ends, np.iinfo(np.int64).min))[:-1]  # of all i < j
            if (is_other[1:] & (last_end > begins[1:])).any():
                return False
    return True
