"""The memory that a launch sees: its arguments, the module's constants, and the shared memory of each block.

All of it is one array of bytes, so that a pointer is an index into it, whatever its address space. Every part is
surrounded by bytes that belong to nobody; `owner` says for every granule (the smallest unit that the kernel accesses)
which part it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.faults import Fault, FaultKind
from tests.emulator.llvm_types import Array, Type

Bytes = NDArray[np.uint8]
ALIGN = 256
GAP = 1024
POISON = np.array([0xFFF5A5A5], np.uint32).view(np.uint8)
"""NaN as f32 and as f64; what shared memory holds when a block begins."""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBuffer:
    """A block of global memory. Its address modulo 256 is `skew`."""

    name: str
    data: Bytes
    is_writable: bool = False
    skew: int = 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that points into a block: several may point into one."""

    buffer: GlobalBuffer
    offset: int


KernelArgument = GlobalBuffer | Pointer | None
"""None: a null pointer."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    start: int
    nbytes: int


class Memory:
    """Owners count from 1: first what is read-only, then what is writable; the shared memory of blocks is negative."""

    def __init__(
        self,
        arguments: Sequence[KernelArgument],
        constants: Mapping[str, bytes],
        blocks: int,
        shared_bytes: int,
        granule: int,
    ) -> None:
        """Shared memory for `blocks` blocks at a time."""
        self.granule, self.shift = granule, granule.bit_length() - 1
        pointers = [Pointer(a, 0) if isinstance(a, GlobalBuffer) else a for a in arguments]
        given = list(dict.fromkeys(p.buffer for p in pointers if p is not None))
        read_only = [b for b in given if not b.is_writable]
        read_only += [GlobalBuffer(name, np.frombuffer(data, np.uint8)) for name, data in constants.items()]
        self.buffers = read_only + [b for b in given if b.is_writable]
        self.first_writable = len(read_only) + 1
        self.parts: list[_Part] = []
        end = ALIGN
        for buffer in self.buffers:
            start = end + buffer.skew % ALIGN
            self.parts.append(_Part(buffer.name, start, buffer.data.nbytes))
            end = _rounded(start + buffer.data.nbytes + GAP)
        self.shared_start, self.shared_bytes = end, shared_bytes
        self.shared_stride = _rounded(shared_bytes + GAP)
        self.nbytes = end + blocks * self.shared_stride + ALIGN
        self.bytes = np.zeros(self.nbytes, np.uint8)
        self.bytes.view(np.uint32)[:] = POISON.view(np.uint32)[0]
        self.owner = np.zeros(self.nbytes // granule, np.int32)
        for number, (part, buffer) in enumerate(zip(self.parts, self.buffers), 1):
            self.bytes[part.start : part.start + part.nbytes] = buffer.data
            self.owner[part.start >> self.shift : -(-(part.start + part.nbytes) // granule)] = number
        for block in range(blocks):
            start = self.shared_base(block)
            self.owner[start >> self.shift : (start + shared_bytes) >> self.shift] = -(block + 1)
        starts = {buffer: part.start for part, buffer in zip(self.parts, self.buffers)}
        self.addresses = [0 if p is None else starts[p.buffer] + p.offset for p in pointers]
        """Of the arguments."""
        self.symbols = {part.name: part.start for part in self.parts if part.name in constants}
        self.read_invariantly = np.zeros(len(self.owner), np.bool_)
        """By granule, as `is_written`."""
        self.is_written = np.zeros(len(self.owner), np.bool_)
        self._rows: dict[tuple[str, int], Array] = {}

    def shared_base(self, block: int) -> int:
        """Of the shared memory of the block in this position."""
        return self.shared_start + block * self.shared_stride

    def poison_shared(self) -> None:
        words = self.bytes.view(np.uint32)
        words[self.shared_start >> 2 :] = POISON.view(np.uint32)[0]

    def copy_back(self) -> None:
        """What the kernel wrote, to the arguments' own arrays."""
        for part, buffer in zip(self.parts, self.buffers):
            if buffer.is_writable:
                buffer.data[...] = self.bytes[part.start : part.start + part.nbytes]

    # Accesses of many threads

    def owners(self, addresses: Array, nbytes: int) -> tuple[Array, Array]:
        """Who owns each access, and which accesses do not lie in one part."""
        first = self.owner.take(addresses >> self.shift, mode="clip")
        bad = first == 0
        if nbytes > self.granule:
            bad |= self.owner.take((addresses + (nbytes - 1)) >> self.shift, mode="clip") != first
        return first, bad

    def rows(self, dtype: np.dtype[Any], lanes: int) -> Array:
        """The memory as an array of rows of `lanes` elements."""
        key = (dtype.str, lanes)
        if key not in self._rows:
            self._rows[key] = self.bytes.view(dtype).reshape(-1, lanes)
        return self._rows[key]

    def load(self, addresses: Array, type: Type) -> Array:
        """Legal addresses, aligned to the element at least."""
        if type.item_bytes > 1 and np.any(addresses & (type.item_bytes - 1)):
            return self._load_bytes(addresses, type)
        if not type.lanes:
            return self.bytes.view(type.dtype).take(addresses // type.item_bytes)
        if type.nbytes & (type.nbytes - 1) == 0 and not np.any(addresses & (type.nbytes - 1)):
            return self.rows(type.dtype, type.lanes).take(addresses // type.nbytes, axis=0)
        return self.bytes.view(type.dtype).take((addresses // type.item_bytes)[..., None] + np.arange(type.lanes))

    def _load_bytes(self, addresses: Array, type: Type) -> Array:
        raw = self.bytes.take(addresses[..., None] + np.arange(type.nbytes)).view(type.dtype)
        return raw if type.lanes else raw[..., 0]

    def store(self, addresses: Array, values: Array, type: Type) -> None:
        if type.item_bytes > 1 and np.any(addresses & (type.item_bytes - 1)):
            raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(addresses), type.nbytes)
            self.bytes[addresses[:, None] + np.arange(type.nbytes)] = raw
        elif type.lanes:
            self.bytes.view(type.dtype)[(addresses // type.item_bytes)[:, None] + np.arange(type.lanes)] = values
        else:
            self.bytes.view(type.dtype)[addresses // type.item_bytes] = values

    def mark(self, flags: Array, addresses: Array, nbytes: int) -> None:
        """Set the flags of all granules of some accesses."""
        first = addresses >> self.shift
        for k in range(max(1, nbytes >> self.shift)):
            flags[first + k] = True

    # Messages

    def place(self, address: int) -> str:
        """An address as a person reads it."""
        if address >= self.shared_start - GAP // 2:
            block, offset = divmod(address - self.shared_start + GAP // 2, self.shared_stride)
            return f"byte {offset - GAP // 2} of {self.shared_bytes} shared bytes (position {block})"
        near = [p for p in self.parts if p.start - ALIGN <= address]
        part = near[-1] if near else None
        if part is None:
            return f"address {address:#x}, which is of no buffer"
        return f"byte {address - part.start} of {part.name} ({part.nbytes} bytes)"

    def check_invariance(self) -> None:
        both = np.nonzero(self.read_invariantly & self.is_written)[0]
        if len(both):
            raise Fault(FaultKind.STALE_INVARIANT, self.place(int(both[0]) << self.shift))


def _rounded(address: int) -> int:
    return -(-address // ALIGN) * ALIGN
