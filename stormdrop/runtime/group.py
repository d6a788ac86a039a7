"""Groups of kernel phases: what the threads of a host run between two barriers.

A model's calls have phases, each a parallel range. Without more knowledge a barrier follows every phase. A `Group` puts
phases that follow each other together. It is itself a parallel range, whose iterations are divided among the threads;
one iteration runs a range of each of its steps, in order and on one thread:

    serial       every step covers the group's only iteration: one thread runs all of them
    parallel     every step covers all iterations: iteration i runs the i-th fraction of each step
    mixed        a step covers a part of the iterations, here steps A and B the first, C and D the second:
                 offset 0 span 1 · offset 0 span 1 · offset 1 span 1 · offset 1 span 1

Invariant: iterations of a group depend on nothing that another iteration of the group writes (`runtime.grouping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stormdrop.runtime.strict import LARGEST, SIZE

GROUP_FORM = {"extent": range(1, LARGEST + 1), "steps": [(SIZE, SIZE, SIZE, range(1, LARGEST + 1))]}
"""Of `Group.to_json`, for `strict.conform`."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A phase of a call; it covers `span` iterations of its group, from `offset` on."""

    call: int
    phase: int
    offset: int
    span: int


@dataclass(frozen=True, slots=True)
class Group:
    """Phases without a barrier between them, over a range of `extent` iterations."""

    extent: int
    steps: tuple[GroupStep, ...]

    @property
    def is_serial(self) -> bool:
        return self.extent == 1

    def to_json(self) -> dict[str, object]:
        return {"extent": self.extent, "steps": [[s.call, s.phase, s.offset, s.span] for s in self.steps]}

    @staticmethod
    def from_json(tree: dict[str, Any]) -> Group:
        """The inverse of `to_json`, for a tree that conforms to `GROUP_FORM`."""
        return Group(tree["extent"], tuple(GroupStep(*row) for row in tree["steps"]))


def single_groups(extents: Sequence[Sequence[int]]) -> tuple[Group, ...]:
    """Every phase in a group of its own; `extents` are those of the phases of each call. Empty phases are left out."""
    return tuple(
        Group(extent, (GroupStep(call, phase, 0, extent),))
        for call, phases in enumerate(extents)
        for phase, extent in enumerate(phases)
        if extent
    )


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as the pool's record has it: `words` follow entry, buffers, scratch and its stride."""

    call: int
    words: tuple[int, ...]


def step_rows(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> list[StepRow]:
    """The steps of all groups. Words: phase, extent, offset, span, and of a group's first step the number of the
    group's steps and its extent, of others 0.
    """
    rows: list[StepRow] = []
    for group in groups:
        for n, s in enumerate(group.steps):
            own = (len(group.steps), group.extent) if n == 0 else (0, 0)
            rows.append(StepRow(s.call, (s.phase, extents[s.call][s.phase], s.offset, s.span, *own)))
    return rows


def problem_of(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> str:
    """What is wrong with groups of phases with these extents, or an empty string.

    Every phase that is not empty must be in one group, in order, and its iterations must be run once.
    """
    wanted = [(call, p) for call, phases in enumerate(extents) for p, extent in enumerate(phases) if extent]
    if [(s.call, s.phase) for group in groups for s in group.steps] != wanted:
        return "its groups are not all of its phases in their order"
    for group in groups:
        for s in group.steps:
            extent = extents[s.call][s.phase]
            if s.offset + s.span > group.extent:
                return f"phase {s.phase} of step {s.call} covers more than the {group.extent} iterations of its group"
            if s.span != extent and s.span * extent > LARGEST:
                return f"phase {s.phase} of step {s.call} has too many iterations for its group"
    return ""
