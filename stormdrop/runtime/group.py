"""Groups of kernel phases: what the threads of a host run between two barriers.

A model's calls have phases, each a parallel range. Without more knowledge a barrier follows every phase. A `Group` puts
phases that follow each other together. It is itself a parallel range, whose iterations are divided among the threads.
Iteration i of a group of n runs the i-th n-th of every phase, one after the other on one thread: iterations
[⌈extent·i/n⌉, ⌈extent·(i+1)/n⌉). So a group of one iteration is serial, a chain of phases on one thread.

A thread that has nothing left to do in a group may load constants that it will read in the next one into its L2.

Invariant: an iteration of a group touches nothing that another iteration of the group writes (`runtime.grouping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from stormdrop.runtime.strict import LARGEST, SIZE, Nullable

GROUP_FORM = (range(1, LARGEST + 1), [(SIZE, SIZE)], Nullable((SIZE, SIZE, bool, SIZE)))
"""Of `Group.to_json`, for `strict.conform`."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A constant of a later call, of which each thread loads `most_bytes` at most: by its entry in the pointer table.

    `is_divided`: thread t of T reads about the t-th T-th of it; otherwise all threads read all of it.
    """

    call: int
    slot: int
    is_divided: bool
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Phases without a barrier between them, over a range of `extent` iterations. A phase is the number of its call and
    its own number in the call.
    """

    extent: int
    phases: tuple[tuple[int, int], ...]
    prefetch: Prefetch | None = None
    """What threads load that wait for the end of the group."""

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
    """Every phase in a group of its own; `extents` are those of the phases of each call. Empty phases are left out."""
    return tuple(
        Group(extent, ((call, phase),))
        for call, phases in enumerate(extents)
        for phase, extent in enumerate(phases)
        if extent
    )


@dataclass(frozen=True, slots=True)
class StepRow:
    """A phase as the pool's record has it: `words` follow entry, buffers, scratch and its stride, and are followed by
    the address that `prefetch` has.
    """

    call: int
    words: tuple[int, ...]
    prefetch: Prefetch | None = None

    def prefetch_words(self, nbytes: int, threads: int) -> tuple[int, int]:
        """The bytes that each thread loads of a constant of so many, and the distance from one thread's to the next's;
        these follow the address.
        """
        assert self.prefetch is not None
        share = nbytes // threads if self.prefetch.is_divided else nbytes
        return min(share, self.prefetch.most_bytes), share if self.prefetch.is_divided else 0


def step_rows(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> list[StepRow]:
    """The steps of all groups. Words: phase, extent, the group's extent, and of a group's first step the number of its
    steps, of others 0.
    """
    rows: list[StepRow] = []
    for group in groups:
        for n, (call, phase) in enumerate(group.phases):
            size = 0 if n else len(group.phases)
            prefetch = None if n else group.prefetch
            rows.append(StepRow(call, (phase, extents[call][phase], group.extent, size), prefetch))
    return rows


def problem_of(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> str:
    """What is wrong with groups of phases with these extents, or an empty string.

    Every phase that is not empty must be in one group, in order, and its iterations must be run once.
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
