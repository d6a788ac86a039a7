"""Packed constants of several images, each held in memory once.

    shared = SharedWeights(device)
    image, chunks = shared.packed(image, constants)     # the image's addresses now count through the chunks

Two images share a packed constant if its bytes are equal, slack included: the same constant in the same packing
layout. The new constants of an image are one chunk of memory, which lives as long as a model that reads from it.

Invariant: a chunk is never written after it is listed.

Packing the weights of an image: each kernel packs or copies the constants of its calls.

Packing runs on the host, whatever device the image is for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Lock
from weakref import ref

import numpy as np

from stormdrop.device.artifact import BufferSpec
from stormdrop.device.cpus import thread_count
from stormdrop.device.device import Array, BufferPlace, Bytes, Memory
from stormdrop.device.host_device import HostDevice, HostPacker, host_device
from stormdrop.model.image import Address, Image, verify
from stormdrop.target import whole_lines
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


class WeightChunk:
    """A read-only block of packed constants in a device's memory."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.nbytes = memory, memory.nbytes


@dataclass(frozen=True, slots=True)
class _Held:
    chunk: ref[WeightChunk]
    offset: int


class SharedWeights:
    """All packed constants of the models of one family on one device, by content."""

    def __init__(self, device: HostDevice) -> None:
        self.device = device
        self._held: dict[bytes, _Held] = {}
        self._lock = Lock()
        """Images are packed one at a time: concurrent packing would hold equal constants twice."""

    @property
    def nbytes(self) -> int:
        """The bytes of all chunks in use."""
        chunks = {chunk for held in self._held.values() if (chunk := held.chunk()) is not None}
        return sum(chunk.nbytes for chunk in chunks)

    def packed(
        self, image: Image, constants: Constants, copied: Iterable[tuple[int, Bytes]] = ()
    ) -> tuple[Image, tuple[WeightChunk, ...]]:
        """Packs the constants of an image; `copied` constants, each with its offset, are stored unchanged.

        The result's weight addresses are offsets in the concatenation of the chunks.
        """
        with self._lock:
            return self._packed(image, constants, copied)

    def _packed(
        self, image: Image, constants: Constants, copied: Iterable[tuple[int, Bytes]]
    ) -> tuple[Image, tuple[WeightChunk, ...]]:
        verify(image)
        digests: dict[int, bytes] = {}  # by offset in the image
        sizes: dict[bytes, int] = {}
        known: dict[bytes, tuple[WeightChunk, int]] = {}  # chunks are held until the image is done
        fresh: dict[bytes, Bytes] = {}

        def note(offset: int, data: Bytes) -> None:
            digest = digests[offset] = blake2b(data.data, digest_size=32).digest()
            sizes[digest] = data.nbytes
            held = self._held.get(digest)
            chunk = held.chunk() if held is not None else None
            if held is not None and chunk is not None:
                known[digest] = chunk, held.offset
            elif digest not in fresh:
                fresh[digest] = data

        def place(buffer: BufferSpec, address: Address) -> BufferPlace:
            return BufferPlace(self.device.allocate(buffer.nbytes))

        for kept in packed_calls(image, constants, self.device, place):
            for offset, data in kept:
                note(offset, data)
        for offset, data in copied:
            note(offset, data)
        if fresh:
            chunk = WeightChunk(self.device.allocate(sum(whole_lines(sizes[digest]) for digest in fresh)))
            at = 0
            for digest in list(fresh):
                chunk.memory.write(at, fresh.pop(digest))
                known[digest] = chunk, at
                at += whole_lines(sizes[digest])
            for digest, (owner, offset) in known.items():
                if owner is chunk:
                    self._held[digest] = _Held(ref(chunk), offset)
        self._held = {digest: held for digest, held in self._held.items() if held.chunk() is not None}
        return _moved(image, {offset: known[digest] for offset, digest in digests.items()})


def _moved(image: Image, places: Mapping[int, tuple[WeightChunk, int]]) -> tuple[Image, tuple[WeightChunk, ...]]:
    """Returns the image with its weights in the chunks; `places` has the place of each constant by its old offset."""
    chunks = tuple(dict.fromkeys(chunk for chunk, _ in places.values()))
    *starts, total = chunk_starts([chunk.nbytes for chunk in chunks])
    base = dict(zip(chunks, starts))
    begins = {begin: base[chunk] + offset for begin, (chunk, offset) in places.items()}
    return _with_weights(image, begins, total), chunks


def moved_weights(image: Image, chunks: Sequence[WeightChunk], starts: Sequence[int], total: int) -> Image:
    """Returns an image whose chunks of weights begin at `starts` in a block of `total` bytes."""
    old = chunk_starts([chunk.nbytes for chunk in chunks])
    return _with_weights(image, dict(zip(old, starts)), total)


def _with_weights(image: Image, places: Mapping[int, int], total: int) -> Image:
    """Returns the image with moved parts of its weights: `places` has the new offset of each part by the old offset."""
    begins = sorted(places)

    def moved(a: Address | None) -> Address | None:
        if a is None or a.space != "weights":
            return a
        begin = begins[bisect_right(begins, a.offset) - 1]  # a slice of a constant begins behind the constant
        return replace(a, offset=places[begin] + a.offset - begin)

    calls = tuple(replace(call, addresses=tuple(map(moved, call.addresses))) for call in image.calls)
    image = replace(image, calls=calls, weights_bytes=total)
    verify(image)
    return image


def chunk_starts(sizes: Sequence[int]) -> list[int]:
    """Returns the offset of each block in the concatenation of all blocks, and the end of the last block."""
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
