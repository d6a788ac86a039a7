"""Which phases of a model need no barrier between them: the making of groups (`runtime.group`) at compile time.

Phases are taken in their order. A phase joins the group before it in one of three ways:

    serial        it takes longer on all threads, with the barrier and the movement of its data, than on one thread; the
                  group is such a chain already
    independent   it touches nothing that another phase of the group writes, and writes nothing that one touches
    local         what it shares with phases of the group, each iteration of the group shares with itself only: proved
                  from the affine intervals of `lower.touches`, iteration by iteration

Otherwise it begins a group. Where the model's constants do not fit the last cache (`Cpu.is_cold`), threads that wait
for the end of a group load the largest constant of the next one. Estimates, target data and kernels decide: equal
models have equal groups.

Invariant: iterations of a group touch nothing that another iteration of the group writes, as long as buffers with
different keys do not overlap in memory while the group runs (`concurrent_calls`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stormdrop.environment import variable
from stormdrop.errors import UserError
from stormdrop.lower.touches import Ints, Touch
from stormdrop.runtime.group import Group, Prefetch
from stormdrop.runtime.summary import PhaseSummary
from stormdrop.target.cpu import Cpu

PREFETCH = "prefetch"
MEANS = ("serial", "independent", "local", PREFETCH)
"""All ways in which phases join a group, and whether threads that wait load constants of the next one."""
USUAL = MEANS[:-1]
"""Without prefetching, which gained nothing: 2 threads hardly wait, and the L3 of 16 held all constants."""
MOST_CHAIN_SECONDS = 15e-6
"""Of a serial group: threads that wait for longer than they spin fall asleep."""
MOST_ITERATIONS = 1 << 15
"""Of a phase whose iterations are compared one by one."""
L2_SHARE = 0.5
"""Of the L2 that constants of a group may fill: a thread goes through all phases for each of its parts."""
AHEAD_BYTES, AHEAD_L2_SHARE = 512 << 10, 0.5
"""What a thread that waits loads at most: so many bytes, and so much of its L2."""
IMBALANCE = 0.02
"""What the busiest thread's share of a group may exceed that of its least balanced phase by."""


def means_from(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The ways to use. Raises UserError for unknown ones."""
    text = variable("STORMDROP_GROUPS", environ)
    if not text or text == "none":
        return frozenset(() if text else USUAL)
    found = frozenset(part.strip() for part in text.split(","))
    if not found <= set(MEANS):
        raise UserError(f"STORMDROP_GROUPS is {text!r}; it takes none, or some of {', '.join(MEANS)}")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPhase:
    """A phase of a call. `places`: for each slot of its pointer table a buffer and the offset in it, in bytes; None for
    what nobody writes.
    """

    call: int
    phase: int
    summary: PhaseSummary
    places: Sequence[tuple[Hashable, int] | None]
    constants: Mapping[int, int] = field(default_factory=dict[int, int])
    """Bytes of the constants that calls read, by slot."""

    @property
    def extent(self) -> int:
        return self.summary.memory.extent

    def touched(self) -> Iterator[tuple[Hashable, int, Touch]]:
        """Buffers that somebody writes, the offset of the kernel's in them, and what of it is touched."""
        for touch in self.summary.memory.touches:
            place = self.places[touch.slot]
            if place is not None:
                yield *place, touch

    def iterations(self, group: int) -> tuple[Ints, Ints]:
        """The phase's iterations in each iteration of a group: begins and ends."""
        edges = -(-np.arange(group + 1, dtype=np.int64) * self.extent // group)
        return edges[:-1], edges[1:]


def grouped(phases: Sequence[PlacedPhase], target: Cpu, means: frozenset[str]) -> tuple[Group, ...]:
    """The groups of a model's phases, which are not empty; none where every phase has one of its own."""
    if target.threads == 1 or not means:
        return ()
    maker = _Maker(target, means)
    for phase in phases:
        maker.add(phase)
    drafts = maker.groups
    ahead: list[Prefetch | None] = [None] * len(drafts)
    if PREFETCH in means and target.is_cold:
        ahead[:-1] = [_prefetch(draft.phases, target) for draft in drafts[1:]]
    if not any(ahead) and all(len(d.phases) == 1 and d.extent == d.phases[0].extent for d in drafts):
        return ()
    return tuple(Group(d.extent, tuple((p.call, p.phase) for p in d.phases), a) for d, a in zip(drafts, ahead))


def _prefetch(phases: Sequence[PlacedPhase], target: Cpu) -> Prefetch | None:
    """The largest constant of a group's phases, where that is worth loading ahead."""
    found: list[tuple[int, PlacedPhase, Touch]] = []
    for phase in phases:
        for touch in phase.summary.memory.touches:
            if touch.slot in phase.constants:
                found.append((_span(phase, touch), phase, touch))
    nbytes, phase, touch = max(found, key=lambda item: item[0], default=(0, None, None))
    if phase is None or touch is None or nbytes < target.l1_bytes:
        return None
    share = np.array([0]), np.array([-(-phase.extent // target.threads)])
    lows, highs = phase.summary.memory.intervals(touch, *share)
    is_divided = int(highs[0] - lows[0]) * target.threads <= 2 * nbytes
    most_bytes = min(AHEAD_BYTES, int(AHEAD_L2_SHARE * target.l2_bytes))
    return Prefetch(phase.call, touch.slot, is_divided, most_bytes)


def concurrent_calls(groups: Sequence[Group], calls: int) -> list[tuple[int, int]]:
    """For each call the first and the last call that may run at the same time: their memory must not be shared."""
    spans = [(k, k) for k in range(calls)]
    for group in groups:
        if not group.is_serial:
            first, last = group.phases[0][0], group.phases[-1][0]
            for call, _ in group.phases:
                spans[call] = min(spans[call][0], first), max(spans[call][1], last)
    return spans


def unordered(phases: Sequence[PlacedPhase], extent: int) -> tuple[PlacedPhase, PlacedPhase] | None:
    """Two phases of a group of `extent` iterations of which one may touch what another iteration of the other writes;
    None if there are none.
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
    """Of a serial group, on its thread."""

    @property
    def is_serial(self) -> bool:
        return self.extent == 1


@dataclass(slots=True)
class _Maker:
    target: Cpu
    means: frozenset[str]
    groups: list[_Draft] = field(default_factory=list[_Draft])
    written_serially: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    """By buffer, whether a serial group wrote it last; buffers that none has written are the caller's."""

    def add(self, phase: PlacedPhase) -> None:
        group = self.groups[-1] if self.groups else None
        is_short = phase.extent == 1 or ("serial" in self.means and self._is_faster_alone(phase))
        if group is None or not (self._chained(group, phase, is_short) or self._joined(group, phase)):
            self.groups.append(_Draft(1 if is_short else phase.extent, [phase], phase.summary.alone))
        is_serial = self.groups[-1].is_serial
        self.written_serially |= {key: is_serial for key, _, touch in phase.touched() if touch.is_written}

    def _is_faster_alone(self, phase: PlacedPhase) -> bool:
        """Whether one thread is estimated to need less than all of them: these need a barrier, the one has to fetch
        what others wrote.
        """
        threads, seconds = self.target.threads, phase.summary.alone
        for key, _, touch in phase.touched():
            if not touch.is_written and not self.written_serially.get(key, True):
                nbytes = _span(phase, touch) * (threads - 1) / threads
                seconds += nbytes / (self.target.handover_gbs * 1e9 / threads)
        return seconds <= phase.summary.seconds + self.target.barrier_seconds

    def _chained(self, group: _Draft, phase: PlacedPhase, is_short: bool) -> bool:
        """Whether the phase was appended to a serial group."""
        seconds = group.seconds + phase.summary.alone
        if not (group.is_serial and is_short and "serial" in self.means and seconds <= MOST_CHAIN_SECONDS):
            return False
        group.phases.append(phase)
        group.seconds = seconds
        return True

    def _joined(self, group: _Draft, phase: PlacedPhase) -> bool:
        """Whether the phase was added to a parallel group."""
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
        """Iterations of the busiest thread over the mean."""
        threads = self.target.threads
        return -(-extent // threads) * threads / extent


def _span(phase: PlacedPhase, touch: Touch) -> int:
    """Bytes from the first to the last that are touched."""
    moved = sum(abs(stride) * (n - 1) for stride, n in zip(touch.strides, phase.summary.memory.loops))
    return touch.high - touch.low + moved


def _shared(a: PlacedPhase, b: PlacedPhase) -> Iterator[tuple[int, Touch, int, Touch]]:
    """Accesses of two phases to a common buffer that may overlap, one of which writes; each with its offset."""
    for key, offset, touch in a.touched():
        for other_key, other_offset, other in b.touched():
            if key == other_key and (touch.is_written or other.is_written):
                begin, end = _bounds(a, offset, touch)
                other_begin, other_end = _bounds(b, other_offset, other)
                if begin < other_end and other_begin < end and _columns_meet(touch, offset, other, other_offset):
                    yield offset, touch, other_offset, other


def _columns_meet(touch: Touch, offset: int, other: Touch, other_offset: int) -> bool:
    """Whether two accesses to a buffer may have a byte in common, as far as their columns tell."""
    one, two = touch.columns, other.columns
    return one is None or two is None or one.meets(offset, two, other_offset)


def _bounds(phase: PlacedPhase, offset: int, touch: Touch) -> tuple[int, int]:
    """Bytes of the buffer that all iterations together touch."""
    moves = [stride * (n - 1) for stride, n in zip(touch.strides, phase.summary.memory.loops)]
    return offset + touch.low + sum(min(0, m) for m in moves), offset + touch.high + sum(max(0, m) for m in moves)


def _may_be_apart(a: PlacedPhase, b: PlacedPhase, offset: int, touch: Touch, other_offset: int, other: Touch) -> bool:
    """Whether the first iterations of two phases touch bytes before those of the last iterations: cheap to tell."""
    end, other_end = offset + touch.high, other_offset + other.high
    last = offset + touch.low + sum(s * (n - 1) for s, n in zip(touch.strides, a.summary.memory.loops))
    other_last = other_offset + other.low + sum(s * (n - 1) for s, n in zip(other.strides, b.summary.memory.loops))
    return end <= other_last and other_end <= last


def _is_local(a: PlacedPhase, b: PlacedPhase, group: int) -> bool:
    """Whether in a group of so many iterations each shares bytes that one phase writes with itself only.

    What earlier iterations touch must lie before what later ones do.
    """
    shared = list(_shared(a, b))
    if not shared or group == 1:
        return True
    if max(a.extent, b.extent, group) > MOST_ITERATIONS or not all(_may_be_apart(a, b, *pair) for pair in shared):
        return False
    for offset, touch, other_offset, other in shared:
        lows, highs = a.summary.memory.intervals(touch, *a.iterations(group))
        other_lows, other_highs = b.summary.memory.intervals(other, *b.iterations(group))
        for ends, is_some, begins, is_other in (
            (highs + offset, highs > lows, other_lows + other_offset, other_highs > other_lows),
            (other_highs + other_offset, other_highs > other_lows, lows + offset, highs > lows),
        ):
            before = np.maximum.accumulate(np.where(is_some, ends, np.iinfo(np.int64).min))[:-1]
            if (is_other[1:] & (before > begins[1:])).any():
                return False
    return True
