"""Loads and stores of many threads: checked, logged for the search for races, then carried out."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.faults import Fault, FaultKind
from tests.emulator.llvm_types import Array, Type
from tests.emulator.memory import Memory
from tests.emulator.races import RaceLog
from tests.emulator.reading import Instruction
from tests.emulator.threads import Frame

SHARED = 3
GLOBAL = 1


class Accesses:
    """The memory of a launch as instructions use it."""

    def __init__(self, memory: Memory, log: RaceLog) -> None:
        self.memory, self.log = memory, log
        self.pending: Array = np.zeros(len(memory.owner), np.int32)
        """By granule: the number of the asynchronous copy under way to it, from 1."""
        self.pending_count = 0
        self.copy_names: list[Instruction] = []
        """The instruction of each copy, by number - 1."""

    def load(self, f: Frame, i: Instruction, address: Any, type: Type) -> Any:
        """What the threads of the present mask read; other threads get garbage."""
        if np.ndim(address) == 0:
            self._check_uniform(f, i, address, type)
            return self.memory.load(np.asarray(address), type)[()]
        lanes = f.lanes
        if lanes is None:
            self.check(f, i, address, None, type.nbytes, is_write=False)
            return self.memory.load(address, type)
        chosen = address[lanes]
        self.check(f, i, chosen, lanes, type.nbytes, is_write=False)
        shape = (f.threads.count, type.lanes) if type.lanes else (f.threads.count,)
        result = np.full(shape, type.scalar.garbage())
        result[lanes] = self.memory.load(chosen, type)
        return result

    def _check_uniform(self, f: Frame, i: Instruction, address: Any, type: Type) -> None:
        """All threads read one address; of memory that nobody writes, one look at it is enough."""
        owner = int(self.memory.owner.take(int(address) >> self.memory.shift, mode="clip"))
        lanes = f.lanes
        if 0 < owner < self.memory.first_writable:
            self.check(f, i, np.array([address]), np.zeros(1, np.int64), type.nbytes, is_write=False)
        else:
            count = f.threads.count if lanes is None else len(lanes)
            self.check(f, i, np.full(count, address), lanes, type.nbytes, is_write=False)

    def store(self, f: Frame, i: Instruction, address: Any, value: Any, type: Type) -> None:
        lanes = f.lanes
        count = f.threads.count
        addresses = np.broadcast_to(address, (count,))
        values = np.broadcast_to(value, (count, type.lanes) if type.lanes else (count,))
        if lanes is not None:
            addresses, values = addresses[lanes], values[lanes]
        self.check(f, i, addresses, lanes, type.nbytes, is_write=True)
        self.memory.store(addresses, values, type)

    def check(
        self,
        f: Frame,
        i: Instruction,
        addresses: Array,
        lanes: Array | None,
        nbytes: int,
        is_write: bool,
        align: int = 0,
        space: int = -1,
    ) -> None:
        """`addresses` of the threads at the positions `lanes`; alignment and address space are the instruction's."""
        memory = self.memory
        align = align or i.align
        space = i.source.space if space < 0 else space
        if align > 1 and (addresses & (align - 1)).any():
            self._fault(FaultKind.MISALIGNED, f, i, addresses, lanes, (addresses & (align - 1)) != 0, f"to {align}")
        owner, bad = memory.owners(addresses, nbytes)
        lowest, highest = int(owner.min()), int(owner.max())
        if space == SHARED or lowest < 0:
            mine = f.threads.shared_owner if lanes is None else f.threads.shared_owner[lanes]
            bad |= (owner != mine) & ((owner < 0) | (space == SHARED))
            if space == GLOBAL:
                bad |= owner < 0
        if bad.any():
            self._fault(FaultKind.OUT_OF_BOUNDS, f, i, addresses, lanes, bad, f"{nbytes} bytes")
        if highest > 0:
            if is_write:
                if lowest < memory.first_writable:
                    wrong = (owner > 0) & (owner < memory.first_writable)
                    if wrong.any():
                        self._fault(FaultKind.READ_ONLY, f, i, addresses, lanes, wrong, "")
                memory.mark(memory.is_written, addresses, nbytes)
            elif i.is_invariant:
                memory.mark(memory.read_invariantly, addresses, nbytes)
        if self.pending_count and lowest < 0:
            self._check_pending(f, i, addresses, lanes, nbytes)
        if lowest > 0 and highest < memory.first_writable:
            return
        self._log(f, i, addresses, lanes, nbytes, is_write, owner, lowest, highest)

    def _log(
        self,
        f: Frame,
        i: Instruction,
        addresses: Array,
        lanes: Array | None,
        nbytes: int,
        is_write: bool,
        owner: Array,
        lowest: int,
        highest: int,
    ) -> None:
        numbers = f.threads.number if lanes is None else f.threads.number[lanes]
        width = max(1, nbytes >> self.memory.shift)
        first = addresses >> self.memory.shift
        if highest < 0 or lowest >= self.memory.first_writable:
            self.log.add(i, first, width, numbers, is_write)
            return
        for part in (owner < 0, owner >= self.memory.first_writable):
            if part.any():
                self.log.add(i, first[part], width, numbers[part], is_write)

    def _check_pending(self, f: Frame, i: Instruction, addresses: Array, lanes: Array | None, nbytes: int) -> None:
        first = addresses >> self.memory.shift
        for k in range(max(1, nbytes >> self.memory.shift)):
            copies = self.pending.take(first + k)
            if copies.any():
                copy = self.copy_names[int(copies[np.nonzero(copies)[0][0]]) - 1]
                self._fault(FaultKind.PENDING_COPY, f, i, addresses, lanes, copies > 0, f"the copy at {copy}")

    def _fault(
        self, kind: FaultKind, f: Frame, i: Instruction, addresses: Array, lanes: Array | None, bad: Array, more: str
    ) -> None:
        k = int(np.nonzero(bad)[0][0])
        thread = k if lanes is None else int(lanes[k])
        who = f"thread {f.threads.in_block[thread]} of block {f.threads.block[thread]}"
        place = self.memory.place(int(addresses[k]))
        raise Fault(kind, f"{place}{', ' if more else ''}{more}\n  {who} at {i}; {int(bad.sum())} threads in all")
