"""Packing the weights of an image: each kernel packs or copies the constants of its calls.

Packing runs on the host, whatever device the image is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stormdrop.device.artifact import BufferSpec
from stormdrop.device.device import Array, BufferPlace, Bytes
from stormdrop.device.host_device import HostDevice, HostPacker, host_device
from stormdrop.device.threads import thread_count
from stormdrop.model.image import Address, Image
from stormdrop.model.verify_image import verify
from stormdrop.target.structures import Scope

Constants = Callable[[int], Mapping[str, Array]]
"""The raw constants of a call by the names of its kernel's buffers; asked for once, and not kept."""
Place = Callable[[BufferSpec, Address], BufferPlace]
"""Returns the memory that a packed constant is written to."""


def pack(image: Image, constants: Constants, device: HostDevice | None = None) -> Bytes:
    """Returns the weights of an image, with each packed constant at its address."""
    verify(image)
    device = device or host_device(thread_count() if image.is_for_gpu else image.threads)
    weights = device.allocate(image.weights_bytes)
    for _ in packed_calls(image, constants, device, lambda _, address: BufferPlace(weights, address.offset)):
        pass
    return weights.read(0, image.weights_bytes)


def packed_calls(
    image: Image, constants: Constants, device: HostDevice, place: Place
) -> Iterator[list[tuple[int, Bytes]]]:
    """Yields the packed constants of a call after the other, the largest call first, with their offsets in the image.

    `constants(n)` is asked for call n just before the call is packed, and only if the call has constants to pack: raw
    weights can be freed one after another. Calls of one kernel with the same addresses are packed once.
    """
    packers: dict[int, HostPacker] = {}
    done: set[tuple[int, tuple[Address | None, ...]]] = set()
    # The largest first: what packing needs for a moment comes on top of little.
    raw_bytes = [sum(b.nbytes for b in kernel.buffers if b.scope is Scope.CONSTANT) for kernel in image.kernels]
    for n, call in sorted(enumerate(image.calls), key=lambda item: -raw_bytes[item[1].kernel]):
        artifact = image.kernels[call.kernel]
        kept = tuple(a if buffer.is_kept else None for buffer, a in zip(artifact.buffers, call.addresses))
        if not any(kept) or (call.kernel, kept) in done:
            continue
        done.add((call.kernel, kept))
        if call.kernel not in packers:
            packers[call.kernel] = HostPacker(artifact, device)
        places = [place(b, a) if a is not None else None for b, a in zip(artifact.buffers, kept)]
        packers[call.kernel].prepare(constants(n), places)
        yield [
            (a.offset, p.memory.read(p.offset, b.nbytes))
            for b, a, p in zip(artifact.buffers, kept, places)
            if a is not None and p is not None
        ]
