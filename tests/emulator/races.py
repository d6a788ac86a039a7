"""Finds accesses of different threads to one granule, one of them a write, that no barrier orders.

Between two barriers of a block (an *epoch*) nothing orders its threads; nothing ever orders two blocks of a launch. A
shuffle exchanges registers and orders no memory. Accesses are logged while a kernel runs and compared when an epoch
ends: the order in which the emulator happened to run the threads is irrelevant, every conflict of the accesses that
were made is found. Of global memory, only buffers that the launch may write are logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.faults import Fault, FaultKind
from tests.emulator.llvm_types import Array
from tests.emulator.memory import Memory
from tests.emulator.reading import Instruction

Ints = NDArray[np.int64]
NOBODY, MANY = 0, -1
"""In arrays of threads, which are numbered from 1 there: arrays of zeros cost nothing before they are touched."""


@dataclass(frozen=True, slots=True)
class Access:
    """One execution of an instruction: granules from `first` on, `width` of them, by each of `threads`."""

    instruction: Instruction
    first: Array
    width: int
    threads: Array
    is_write: bool

    def granules(self) -> tuple[Array, Array]:
        """Every granule and its thread."""
        if self.width == 1:
            return self.first, self.threads
        spread = self.first[:, None] + np.arange(self.width, dtype=self.first.dtype)
        return spread.reshape(-1), np.repeat(self.threads, self.width)


class RaceLog:
    """Threads are numbered through the whole launch: block · threads + thread."""

    def __init__(self, memory: Memory, threads: int) -> None:
        self.memory, self.threads = memory, threads
        self.reads: list[Access] = []
        self.writes: list[Access] = []
        granules = len(memory.owner)
        self._writer = np.zeros(granules, np.int64)
        """During a comparison: the number of a write in the list of all granules written, from 1."""
        # Over the whole launch: the last writer of a granule, a reader (MANY: of several blocks), and who these were.
        self._last_writer = np.zeros(granules, np.int64)
        self._reader = np.zeros(granules, np.int64)
        self._global_accesses: list[Access] = []
        self._written_by = np.zeros(granules, np.int32)
        self._read_by = np.zeros(granules, np.int32)

    def add(self, instruction: Instruction, first: Array, width: int, threads: Array, is_write: bool) -> None:
        (self.writes if is_write else self.reads).append(Access(instruction, first, width, threads, is_write))

    def end_epoch(self) -> None:
        """Compare what was logged: all running blocks have come to a barrier or to their end."""
        writes, reads = self.writes, self.reads
        self.writes, self.reads = [], []
        if writes:
            self._compare(writes, reads)
        shared = self.memory.shared_start >> self.memory.shift
        for access in (*writes, *reads):
            if access.first[0] < shared:
                self._compare_blocks(access)

    def _compare(self, writes: list[Access], reads: list[Access]) -> None:
        spread = [access.granules() for access in writes]
        granules = np.concatenate([g for g, _ in spread])
        threads = np.concatenate([t for _, t in spread])
        self._writer[granules] = np.arange(1, len(granules) + 1)
        others = threads[self._writer[granules] - 1]
        clash = np.nonzero(others != threads)[0]
        if len(clash):
            k = int(clash[0])
            self._report(int(granules[k]), writes, k, writes, int(self._writer[granules[k]]) - 1)
        for position, access in enumerate(reads):
            read, readers = access.granules()
            writer = self._writer.take(read) - 1
            clash = np.nonzero((writer >= 0) & (threads[writer] != readers))[0]
            if len(clash):
                k = int(clash[0])
                self._report(int(read[k]), writes, int(writer[k]), reads[position : position + 1], k)
        self._writer[granules] = NOBODY

    def _compare_blocks(self, access: Access) -> None:
        """An access to global memory, with those of other blocks earlier in the launch."""
        granules, threads = access.granules()
        number = len(self._global_accesses)
        self._global_accesses.append(access)
        blocks = threads // self.threads
        writers, readers = self._last_writer[granules], self._reader[granules]
        self._check_blocks(granules, threads, self._is_of_others(writers, blocks), writers, access, False)
        if access.is_write:
            self._check_blocks(granules, threads, self._is_of_others(readers, blocks), readers, access, True)
            self._last_writer[granules] = threads + 1
            self._written_by[granules] = number
            return
        self._reader[granules] = np.where(self._is_of_others(readers, blocks), MANY, threads + 1)
        mixed = self._is_of_others(self._reader[granules], blocks)  # blocks that read it in this very instruction
        self._reader[granules[mixed]] = MANY
        self._read_by[granules] = number

    def _is_of_others(self, who: Array, blocks: Array) -> Array:
        """Where there is a thread of another block."""
        return (who == MANY) | ((who != NOBODY) & ((who - 1) // self.threads != blocks))

    def _check_blocks(
        self, granules: Array, threads: Array, clash: Array, others: Array, access: Access, by_reader: bool
    ) -> None:
        found = np.nonzero(clash)[0]
        if not len(found):
            return
        k = int(found[0])
        numbers = self._read_by if by_reader else self._written_by
        other = self._global_accesses[int(numbers[granules[k]])]
        thread = int(others[k]) - 1 if int(others[k]) != MANY else None
        raise Fault(FaultKind.RACE, self._text(int(granules[k]), [(access, int(threads[k])), (other, thread)]))

    def _report(self, granule: int, first: list[Access], a: int, second: list[Access], b: int) -> None:
        raise Fault(FaultKind.RACE, self._text(granule, [_entry(first, a), _entry(second, b)]))

    def _text(self, granule: int, both: list[tuple[Access, Any]]) -> str:
        lines = [self.memory.place(granule << self.memory.shift)]
        for access, thread in both:
            who = "threads of several blocks"
            if thread is not None:
                who = f"thread {thread % self.threads} of block {thread // self.threads}"
            lines.append(f"{who} {'writes' if access.is_write else 'reads'} at {access.instruction}")
        return "\n  ".join(lines)


def _entry(accesses: list[Access], k: int) -> tuple[Access, int]:
    """The access and the thread of a granule by its number in the concatenated list."""
    for access in accesses:
        granules, threads = access.granules()
        if k < len(granules):
            return access, int(threads[k])
        k -= len(granules)
    raise AssertionError("no such granule")
