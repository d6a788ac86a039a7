"""Derivation rules as a user would write them, in a module that other processes can import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stormdrop.space.rules import Args
from stormdrop.space.structure import Stage, Structure
from stormdrop.target.machine import Target


@dataclass(frozen=True)
class Reverse:
    """Turn the order of a reduction's loops round.

    for i, j: for k, l: …   ->   for i, j: for l, k: …
    """

    name: str = "reverse"
    version: int = 1

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        return [None, ()] if len(stage.reduce_axes) > 1 else [None]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        return s.updated(stage, replace(stage, reduce_axes=stage.reduce_axes[::-1]))


@dataclass(frozen=True)
class AlwaysReverse(Reverse):
    """The same wherever it applies, so that no sketch of a convolution does without it."""

    name: str = "always_reverse"

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        return [()] if len(stage.reduce_axes) > 1 else [None]


@dataclass(frozen=True)
class Limited(Reverse):
    """Made with an argument, it is another rule than the one that is made without."""

    name: str = "limited"
    most: int = 4
