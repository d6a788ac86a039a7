"""The phases of a model's calls with the buffers that they touch, before memory is planned: for `builder.grouping`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stormdrop.builder.grouping import PhaseSummary, PlacedPhase
from stormdrop.device.artifact import Artifact
from stormdrop.graph.storage import Storage
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.target.structures import Scope


def placed_phases(
    laid: Storage, kernels: Sequence[Artifact], summaries: Sequence[Sequence[PhaseSummary]]
) -> list[PlacedPhase]:
    """Of all calls, in order; `kernels` and `summaries` are those of each call. Empty phases are left out."""
    found: list[PlacedPhase] = []
    for k, (call, kernel) in enumerate(zip(laid.calls, kernels)):
        inputs = iter([v for t, v in zip(call.task.inputs, call.inputs) if not t.constant])
        places: list[tuple[Hashable, int] | None] = []
        for s, buffer in enumerate(kernel.buffers):
            if buffer.scope in (Scope.INPUT, Scope.OUTPUT):
                place = laid.places[next(inputs) if buffer.scope is Scope.INPUT else call.output]
                places.append((place.buffer, place.offset * ITEMSIZE[buffer.dtype]))
            else:
                places.append(((k, s), 0) if buffer.scope is Scope.WORKSPACE else None)
        constants = {s: buffer.nbytes for s, buffer in enumerate(kernel.buffers) if buffer.is_kept}
        for p, summary in enumerate(summaries[k]):
            if kernel.extents[p]:
                found.append(PlacedPhase(k, p, summary, places, constants))
    return found
