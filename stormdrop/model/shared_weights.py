"""Packed constants of several images, each held in memory once.

    shared = SharedWeights(device)
    image, chunks = shared.packed(image, constants)     # the image's addresses now count through the chunks

Two images share a packed constant if its bytes are equal, slack included: the same constant in the same packing
layout. The new constants of an image are one chunk of memory, which lives as long as a model that reads from it.

Invariant: a chunk is never written after it is listed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Lock
from weakref import ref

import numpy as np

from stormdrop.device.artifact import BufferSpec
from stormdrop.device.device import BufferPlace, Bytes, Memory
from stormdrop.device.host_device import HostDevice
from stormdrop.model.image import Address, Image
from stormdrop.model.verify_image import verify
from stormdrop.model.weights import Constants, packed_calls
from stormdrop.target import whole_lines


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
