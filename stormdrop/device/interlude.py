"""A kernel that imitates the effect of a model on the caches between two runs of one of its kernels.

A kernel that is run repeatedly finds its operands and its code in the near caches (L1 and L2). In a model, other
kernels have replaced the contents of these caches, and the threads that computed the inputs have just written them. An
interlude runs before every timed run and leaves the caches in that state, in three phases:

    flush     The timed kernel's code, and on a cold target its constants, are flushed from all caches.
    read      On a warm target, the code is first read back as data. Then every thread reads its share of an evicting
              block: as many bytes as the model touches between two runs, at most a little more than all L2s. Evicted
              lines, the code among them, are then found in the last-level cache.
    rewrite   Thread t of T writes the t-th of T contiguous shares of each input: one byte of every line, with the value
              that it has.

No value changes, so a kernel's outputs are right after any number of interludes. On a warm target a `Rotation` reads
another copy of the constants in every run. On a cold target, such copies would have to fill the last-level cache twice:
hundreds of megabytes for each candidate on a server.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property

import numpy as np

from stormdrop.codegen import ENTRY
from stormdrop.codegen.llvm import AnyOf, assemble, host
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import Argument, BoundCall, BufferPlace, InputArray, Memory
from stormdrop.device.host_device import HostDevice, HostKernel, HostMemory
from stormdrop.device.rotation import Rotation
from stormdrop.target import ALIGN_BYTES, Surroundings, whole_lines
from stormdrop.target.cpu import Cpu
from stormdrop.target.structures import Scope

MOST_COPIES = 128
"""The most copies of a kernel's constants, since every copy is two more recorded calls."""


class Action(IntEnum):
    """An action on the cache lines of a range. The value is the index of the phase that performs it."""

    FLUSH = 0
    READ = 1
    REWRITE = 2


@dataclass(frozen=True, slots=True)
class LineRange:
    """Memory with an action for its cache lines: thread t of T processes the t-th of T contiguous shares."""

    action: Action
    place: Argument
    nbytes: int


_FLUSH = {
    "x86_64": 'asm sideeffect "clflush ($0)", "r,~{memory},~{dirflag},~{fpsr},~{flags}"',
    "aarch64": 'asm sideeffect "dc civac, $0\\0Aic ivau, $0", "r,~{memory}"',
}
_INTERLUDE = """
; Buffers: a table of i64 (threads, ranges, then an action and a number of lines for each range), and the ranges.
; Iteration t of phase p does action p to share t of every range that has this action, range after range.
define void @kernel(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %table = load ptr, ptr %buffers, align 8
  %threads = load i64, ptr %table, align 8
  %count.at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count.at, align 8
  br label %threads.head
threads.head:
  %t = phi i64 [ %begin, %0 ], [ %t.next, %ranges.done ]
  %t.more = icmp slt i64 %t, %end
  br i1 %t.more, label %ranges, label %out
ranges:
  %r = phi i64 [ 0, %threads.head ], [ %r.next, %range.done ]
  %r.more = icmp slt i64 %r, %count
  br i1 %r.more, label %range, label %ranges.done
range:
  %r.next = add i64 %r, 1
  %action.k = mul i64 %r.next, 2
  %lines.k = add i64 %action.k, 1
  %action.at = getelementptr i64, ptr %table, i64 %action.k
  %lines.at = getelementptr i64, ptr %table, i64 %lines.k
  %action = load i64, ptr %action.at, align 8
  %lines = load i64, ptr %lines.at, align 8
  %place.at = getelementptr ptr, ptr %buffers, i64 %r.next
  %place = load ptr, ptr %place.at, align 8
  %wanted = icmp eq i64 %action, %phase
  br i1 %wanted, label %share, label %range.done
share:
  %t.after = add i64 %t, 1
  %before = mul i64 %lines, %t
  %until = mul i64 %lines, %t.after
  %low = udiv i64 %before, %threads
  %high = udiv i64 %until, %threads
  br label %lines.head
lines.head:
  %i = phi i64 [ %low, %share ], [ %i.next, %next ]
  %i.more = icmp slt i64 %i, %high
  br i1 %i.more, label %line, label %range.done
line:
  %i.next = add i64 %i, 1
  %offset = mul i64 %i, $LINE$
  %at = getelementptr i8, ptr %place, i64 %offset
  switch i64 %action, label %rewrite [ i64 0, label %flush i64 1, label %read ]
flush:
  call void $FLUSH$(ptr %at)
  br label %next
read:
  %seen = load volatile i8, ptr %at, align 1
  br label %next
rewrite:
  %value = load volatile i8, ptr %at, align 1
  store volatile i8 %value, ptr %at, align 1
  br label %next
next:
  br label %lines.head
range.done:
  br label %ranges
ranges.done:
  %t.next = add i64 %t, 1
  br label %threads.head
out:
  ret void
}
"""


def interlude_ir(machine: str, features: str = "") -> str:
    """Returns the LLVM IR for a machine of `_FLUSH`; `features` are LLVM's, such as '+clflushopt,+avx2'."""
    flush = _FLUSH[machine]
    if "+clflushopt" in features.split(","):
        flush = flush.replace("clflush", "clflushopt")  # overlap each other, while a clflush waits for the last
    return _INTERLUDE.replace("$LINE$", str(ALIGN_BYTES)).replace("$FLUSH$", flush)


@cache
def _code() -> bytes:
    triple, _, features = host()
    return assemble(interlude_ir(platform.machine(), features), AnyOf(triple))


def interlude(device: HostDevice, ranges: Sequence[LineRange]) -> BoundCall:
    """Returns a call that performs the action of each range: first all flushes, then all reads, then all rewrites.

    Ranges of one action are processed in their order.
    """
    threads, wanted = device.pool.threads, {some.action for some in ranges}
    lines = [x for some in ranges for x in (some.action, -(-some.nbytes // ALIGN_BYTES))]
    table = device.allocate(8 * (2 + len(lines)))
    table.write(0, np.array([threads, len(ranges), *lines], np.int64).view(np.uint8))
    kernel = device.load(Artifact(_code(), (), tuple(threads if action in wanted else 0 for action in Action)))
    return BoundCall(kernel, (BufferPlace(table), *(some.place for some in ranges)))


class SurroundedBenches:
    """A maker of benches that time kernels in the state of one model: constants rotated, an interlude before every run.

    All benches share the evicting block. They also share the block for copies of constants, so that making a bench
    invalidates the previous bench, unless that was made with `is_kept`. Inputs are rewritten if they lie in `arena` or
    are the caller's arrays.
    """

    def __init__(
        self, device: HostDevice, target: Cpu, surroundings: Surroundings, arena: Memory | None = None
    ) -> None:
        self._device, self._arena = device, arena
        self._touched_bytes = surroundings.touched_bytes
        self._is_cold = target.is_cold
        self._copies_bytes = min(surroundings.touched_bytes, target.l3_bytes)
        near_bytes = target.l2_bytes + target.l2_bytes // 4  # more than the L2: replacement is not exactly LRU
        evicted_bytes = min(device.pool.threads * near_bytes, surroundings.touched_bytes)
        self._evicting = device.allocate(whole_lines(evicted_bytes))

    @cached_property
    def _copies(self) -> HostMemory:
        return self._device.allocate(self._copies_bytes)

    def bench(self, call: BoundCall, constants: Sequence[int], is_kept: bool = False) -> Rotation:
        """Returns a bench of a call; `constants` are the indices of its arguments that are constants.

        With `is_kept` it has a block of its own for their copies, and stays valid when other benches are made. On a
        warm target, constants are not rotated if they are more than half of the bytes that the model touches.
        """
        is_rotated = not self._is_cold and 2 * self._bytes_of(call, constants) <= self._touched_bytes
        rotated = constants if is_rotated else ()
        block = None if not rotated else self._device.allocate(self._copies_bytes) if is_kept else self._copies
        before = interlude(self._device, self.ranges(call, constants))
        return Rotation(self._device, call, rotated, block, before, MOST_COPIES)

    def ranges(self, call: BoundCall, constants: Sequence[int]) -> list[LineRange]:
        """Returns the ranges of an interlude before every run of a call.

        The evicting block is shortened by the size of the call's constants, since reading another copy of them evicts
        as well.
        """
        own_bytes = self._bytes_of(call, constants)
        buffers, (code, code_bytes) = call.kernel.artifact.buffers, _code_of(call)
        flushed = constants if self._is_cold else ()
        ranges = [LineRange(Action.FLUSH, call.arguments[k], buffers[k].nbytes) for k in flushed]
        ranges.append(LineRange(Action.FLUSH, code, code_bytes))
        if not self._is_cold:
            ranges.append(LineRange(Action.READ, code, code_bytes))
        ranges.append(LineRange(Action.READ, BufferPlace(self._evicting), max(0, self._evicting.nbytes - own_bytes)))
        for buffer, place in zip(buffers, call.arguments):
            if buffer.scope is Scope.INPUT and self._is_rewritable(place):
                ranges.append(LineRange(Action.REWRITE, place, buffer.nbytes))
        return ranges

    @staticmethod
    def _bytes_of(call: BoundCall, constants: Sequence[int]) -> int:
        return sum(call.kernel.artifact.buffers[k].nbytes for k in constants)

    def _is_rewritable(self, place: Argument) -> bool:
        return isinstance(place, InputArray) or (isinstance(place, BufferPlace) and place.memory is self._arena)


def _code_of(call: BoundCall) -> tuple[BufferPlace, int]:
    """Returns the machine code of a call's kernel as a buffer, and its size in bytes."""
    assert isinstance(call.kernel, HostKernel)
    address, nbytes = call.kernel.code.section(ENTRY)
    code = np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8)
    return BufferPlace(HostMemory(code)), nbytes
