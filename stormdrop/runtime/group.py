"""Groups of kernel phases: what the threads of a host run between two barriers.

A model's calls have phases, each a parallel range. By default a barrier follows every phase. A `Group` is a run of
consecutive phases, of one call or of several, with a barrier only after the last. The group is itself a parallel range,
whose iterations are divided among the threads. Iteration i of a group of n iterations runs, of each phase in turn, the
iterations [⌈extent·i/n⌉, ⌈extent·(i+1)/n⌉), all on one thread. A group of one iteration is serial: a chain of phases on
one thread.

A thread that has nothing left to do in a group may prefetch constants of the next group into its L2 (`Prefetch`).

Invariant: an iteration of a group touches nothing that another iteration of the group writes (`runtime.grouping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from stormdrop.runtime.strict import LARGEST, SIZE, Nullable

GROUP_FORM = (range(1, LARGEST + 1), [(SIZE, SIZE)], Nullable((SIZE, SIZE, bool, SIZE)))
"""The form of `Group.to_json`, which `strict.conform` checks."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A constant of a call in the next group, named by its slot in the call's pointer table, of which each waiting
    thread loads at most `most_bytes`.

    `is_divided`: thread t of T will read about the bytes [size·t/T, size·(t+1)/T); otherwise every thread reads all.
    """

    call: int
    slot: int
    is_divided: bool
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Phases without a barrier between them, over a range of `extent` iterations. A phase is written (index of its
    call, index of the phase in the call).
    """

    extent: int
    phases: tuple[tuple[int, int], ...]
    prefetch: Prefetch | None = None
    """What threads load while they wait for the end of the group."""

    @property
    def is_serial(self) -> bool:
        return self.extent == 1

    def to_json(self) -> list[object]:
        return [
            self.extent,
            [list(phase) for phase in self.phases],
            list(astuple(self.prefetch)) if self.prefetch is not None else None,
        ]

    @staticmethod
    def from_json(tree: list[Any]) -> Group:
        """The inverse of `to_json`, for a tree that conforms to `GROUP_FORM`."""
        extent, phases, prefetch = tree
        return Group(extent, tuple((call, phase) for call, phase in phases), prefetch and Prefetch(*prefetch))


def single_groups(extents: Sequence[Sequence[int]]) -> tuple[Group, ...]:
    """Every phase in a group of its own. `extents[call][phase]` is the extent of a phase; empty phases are left out."""
    return tuple(
        Group(extent, ((call, phase),))
        for call, phases in enumerate(extents)
        for phase, extent in enumerate(phases)
        if extent
    )


@dataclass(frozen=True, slots=True)
class StepRow:
    """Those words of the pool's step (`%step` in `pool_ir`) that the groups decide, for one phase of one call.

        entry, buffers, scratch, scratch stride | `words` | prefetch address | `prefetch_words`

    The other words are addresses, which whoever records the step fills in.
    """

    call: int
    words: tuple[int, ...]
    prefetch: Prefetch | None = None

    def prefetch_words(self, nbytes: int, threads: int) -> tuple[int, int]:
        """For a constant of `nbytes`: the bytes that each thread loads, and the distance from where one thread begins
        to where the next one does.
        """
        assert self.prefetch is not None
        share = nbytes // threads if self.prefetch.is_divided else nbytes
        return min(share, self.prefetch.most_bytes), share if self.prefetch.is_divided else 0


def step_rows(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> list[StepRow]:
    """The steps of all groups, one for each phase. The four `words` of a step: index of the phase in its call, extent
    of the phase, extent of the group, and the number of steps in the group if this is its first, else 0.
    """
    rows: list[StepRow] = []
    for group in groups:
        for n, (call, phase) in enumerate(group.phases):
            size = 0 if n else len(group.phases)
            prefetch = None if n else group.prefetch
            rows.append(StepRow(call, (phase, extents[call][phase], group.extent, size), prefetch))
    return rows


def problem_of(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> str:
    """What is wrong with the groups of a model whose phases have these extents; an empty string if nothing is.

    The groups, one after the other, must list every phase that is not empty once, in order. Products of extents must
    not overflow, and a prefetch must name a call that exists.
    """
    wanted = [(call, p) for call, phases in enumerate(extents) for p, extent in enumerate(phases) if extent]
    if [phase for group in groups for phase in group.phases] != wanted or not all(group.phases for group in groups):
        return "its groups are not all of its phases in their order"
    for group in groups:
        for call, phase in group.phases:
            extent = extents[call][phase]
            if group.extent != extent and group.extent * extent > LARGEST:  # the pool multiplies them
                return f"phase {phase} of step {call} has too many iterations for its group"
        if group.prefetch is not None and group.prefetch.call >= len(extents):
            return f"there is no step {group.prefetch.call}, whose constants are loaded ahead"
    return ""
