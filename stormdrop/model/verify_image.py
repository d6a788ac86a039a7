"""The check whether an image can be run: each address is in its buffer's kind of memory and in bounds, and each output
is written.

Two properties are left to the memory plan and to `builder.grouping`: calls that share arena bytes run at different
times, and iterations of a group are independent.
"""

from __future__ import annotations

import math

from stormdrop.base.codec import LARGEST
from stormdrop.base.errors import UserError
from stormdrop.device.artifact import BufferSpec, problem_of
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.model.image import Address, Image
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.structures import Scope

MOST_DIMENSIONS = 32
_SPACES = {
    Scope.INPUT: ("input", "output", "arena", "weights"),
    Scope.OUTPUT: ("output", "arena"),
    Scope.CONSTANT: ("weights",),
    Scope.PACKED: ("weights",),
    Scope.WORKSPACE: ("arena",),
}
_WRITTEN = (Scope.OUTPUT, Scope.WORKSPACE, Scope.PACKED)
"""The scopes of written buffers: every unit of a parallel phase writes an element in such a buffer."""


def verify(image: Image) -> None:
    """Raises UserError that names the step and the buffer."""
    for ports in (image.inputs, image.outputs):
        names = [port.name for port in ports]
        if len(set(names)) < len(names):
            raise UserError(f"{image.name}: two inputs or two outputs have one name: {', '.join(names)}")
        for port in ports:
            # Also without its zeros: NumPy refuses strides that overflow, even the strides of an empty array.
            nbytes = ITEMSIZE[port.dtype] * math.prod(n for n in port.shape if n)
            if len(port.shape) > MOST_DIMENSIONS or nbytes > LARGEST:
                raise UserError(f"{image.name}: {port!r} is no array that NumPy can hold")
    for k, kernel in enumerate(image.kernels):
        if not kernel.code:
            raise UserError(f"{image.name}: kernel {k} has no code")
        elements = sum(b.elements for b in kernel.buffers if b.scope in _WRITTEN)
        if (most := max((*kernel.extents, *kernel.prepare_extents), default=0)) > max(1, elements):
            raise UserError(f"{image.name}: kernel {k} writes {elements} elements, in {most} parallel units")
    written: set[int] = set()
    for n, step in enumerate(image.calls):
        where = f"{image.name}: step {n} ({step.label})"
        if not 0 <= step.kernel < len(image.kernels):
            raise UserError(f"{where}: there is no kernel {step.kernel}")
        buffers = image.kernels[step.kernel].buffers
        if len(step.addresses) != len(buffers):
            raise UserError(f"{where}: {len(step.addresses)} addresses for {len(buffers)} buffers")
        for buffer, address in zip(buffers, step.addresses):
            problem = _problem(image, buffer, address)
            if problem:
                raise UserError(f"{where}: {buffer.scope} {buffer.name}: {problem}")
            if address is not None and address.space == "output" and buffer.scope is Scope.OUTPUT:
                written.add(address.index)
    problem = problem_of(image.extents, image.groups) if image.groups else ""
    if problem:
        raise UserError(f"{image.name}: {problem}")
    for k, port in enumerate(image.outputs):
        if port.nbytes and k not in written:
            raise UserError(f"{image.name}: no step writes the output {port!r}")


def _problem(image: Image, buffer: BufferSpec, address: Address | None) -> str:
    if address is None:
        return "" if buffer.scope in (Scope.CONSTANT, Scope.PACKED) and not buffer.resident else "it has no address"
    if address.space not in _SPACES.get(buffer.scope, ()):
        return f"it cannot be in the space {address.space!r}"
    ports = {"input": image.inputs, "output": image.outputs}.get(address.space)
    if ports is not None:
        if not 0 <= address.index < len(ports):
            return f"there is no {address.space} {address.index}"
        size = ports[address.index].nbytes
    elif address.index:
        return f"there is only one block of {address.space}"
    else:
        size = image.arena_bytes if address.space == "arena" else image.weights_bytes
    # An array with gaps between its elements reaches further; its view is not known here.
    if not 0 <= address.offset <= size - buffer.nbytes:
        return f"{buffer.nbytes} bytes at {address.offset} are not within the {size} there are"
    align = ALIGN_BYTES if buffer.scope in (Scope.PACKED, Scope.WORKSPACE) else ITEMSIZE[buffer.dtype]
    return f"its offset {address.offset} is no multiple of {align}" if address.offset % align else ""
