"""The packing layouts of a model's constants at several sizes: the first size fixes them, later ones follow.

A kernel that gains more than 3 % by a layout of its own (`lower.packed_layout`) may have it while all such layouts
together take at most a quarter of what the first ones take. A schedule that tuning decided for a size keeps its layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from stormdrop.builder.building import Packing
from stormdrop.device.artifact import Artifact
from stormdrop.graph.partition import TaskCall
from stormdrop.lower.packed_layout import PackedLayout
from stormdrop.target.structures import Scope

OWN_SHARE = 0.25
MOST_GROWTH = 4
"""By which packing may make constants larger: Winograd's filters of 6x6 for 3x3."""

Names = tuple[str, ...]
"""Of the constants that a kernel packs together."""


class Packings:
    """What is packed, and how, by the names of the constants in the graph: they do not depend on sizes."""

    def __init__(self) -> None:
        self._known: dict[Names, list[PackedLayout]] = {}
        self._first_bytes = 0
        self._own_bytes = 0
        self._lock = Lock()  # of the layouts and their bytes: threads compile several sizes at once

    def begin(self) -> PackingRound:
        """For the kernels of one more size."""
        return PackingRound(self)

    def known(self, names: Names) -> Sequence[PackedLayout]:
        return self._known.get(names, ())

    @property
    def room_bytes(self) -> int:
        """What layouts beyond the first may still take."""
        return int(OWN_SHARE * self._first_bytes) - self._own_bytes

    def note(self, call: TaskCall, layout: PackedLayout, artifact: Artifact) -> None:
        nbytes = sum(b.nbytes for b in artifact.buffers if b.scope is Scope.PACKED and b.resident)
        with self._lock:
            layouts = self._known.setdefault(constant_names(call), [])
            if layout in layouts:
                return
            if layouts:
                self._own_bytes += nbytes
            else:
                self._first_bytes += nbytes
            layouts.append(layout)


class PackingRound:
    """The kernels of one size: what they may use is divided before they are built, since they are built together."""

    def __init__(self, packings: Packings) -> None:
        self._packings, self._room_bytes = packings, packings.room_bytes

    def packing(self, calls: Sequence[TaskCall], is_scheduled: bool) -> Packing:
        """For one kernel that serves these calls; with a schedule that was decided it keeps its own layout."""
        known = tuple(self._packings.known(constant_names(calls[0])))
        if not known:
            return Packing()
        raw_bytes = sum(v.nbytes for call in calls for t, v in zip(call.task.inputs, call.inputs) if t.constant)
        most_bytes = raw_bytes * (MOST_GROWTH if len(calls[0].task.variants) > 1 else 1)
        if is_scheduled:
            return Packing(known)
        may_own = most_bytes <= self._room_bytes
        self._room_bytes -= most_bytes if may_own else 0
        return Packing(known, may_own)


def constant_names(call: TaskCall) -> Names:
    return tuple(v.name for t, v in zip(call.task.inputs, call.inputs) if t.constant)
