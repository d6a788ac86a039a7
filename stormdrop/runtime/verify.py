"""Whether an image can be run: every address where its slot's kind of memory is, in bounds, and every output written.

What it cannot see is whether steps that share arena bytes do so at different times: that is the memory plan's promise.
"""

from __future__ import annotations

from stormdrop.errors import UserError
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.runtime.artifact import Slot
from stormdrop.runtime.image import Address, Image
from stormdrop.runtime.loaded import slot_bytes
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.scope import Scope

_SPACES = {
    Scope.INPUT: ("input", "output", "arena", "weights"),
    Scope.OUTPUT: ("output", "arena"),
    Scope.CONSTANT: ("weights",),
    Scope.PACKED: ("weights",),
    Scope.WORKSPACE: ("arena",),
}


def verify(image: Image) -> None:
    """Raises UserError that names the step and the slot."""
    for ports in (image.inputs, image.outputs):
        names = [port.name for port in ports]
        if len(set(names)) < len(names):
            raise UserError(f"{image.name}: two inputs or two outputs have one name: {', '.join(names)}")
    written: set[int] = set()
    for n, step in enumerate(image.steps):
        where = f"{image.name}: step {n} ({step.label})"
        if not 0 <= step.kernel < len(image.kernels):
            raise UserError(f"{where}: there is no kernel {step.kernel}")
        slots = image.kernels[step.kernel].slots
        if len(step.addresses) != len(slots):
            raise UserError(f"{where}: {len(step.addresses)} addresses for {len(slots)} slots")
        for slot, address in zip(slots, step.addresses):
            problem = _problem(image, slot, address)
            if problem:
                raise UserError(f"{where}: {slot.scope} {slot.name}: {problem}")
            if address is not None and address.space == "output" and slot.scope is Scope.OUTPUT:
                written.add(address.index)
    for k, port in enumerate(image.outputs):
        if port.nbytes and k not in written:
            raise UserError(f"{image.name}: no step writes the output {port!r}")


def _problem(image: Image, slot: Slot, address: Address | None) -> str:
    if address is None:
        return "" if slot.scope in (Scope.CONSTANT, Scope.PACKED) and not slot.resident else "it has no address"
    if address.space not in _SPACES[slot.scope]:
        return f"it cannot be in the space {address.space!r}"
    ports = {"input": image.inputs, "output": image.outputs}.get(address.space)
    if ports is not None:
        if not 0 <= address.index < len(ports):
            return f"there is no {address.space} {address.index}"
        size = ports[address.index].nbytes
    else:
        size = image.arena_bytes if address.space == "arena" else image.weights_bytes
    # How far a kernel reads from the pointer of a run-time array depends on its view, and is not known here.
    need = 0 if slot.scope in (Scope.INPUT, Scope.OUTPUT) else slot_bytes(slot)
    if not 0 <= address.offset <= size - need:
        return f"{need} bytes at {address.offset} are not within the {size} there are"
    align = ALIGN_BYTES if slot.scope in (Scope.PACKED, Scope.WORKSPACE) else ITEMSIZE[slot.dtype]
    return f"its offset {address.offset} is no multiple of {align}" if address.offset % align else ""
