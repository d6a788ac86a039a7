"""Jobs for the thread pool whose results show what went wrong: a phase too early, an iteration twice or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stormdrop.codegen.llvm import AnyOf, Code, assemble, host
from stormdrop.device.pool.pool import Pool
from tests.support.pool_kernels import MIRROR, records

# `tally`: count[i] += 1 for every iteration.
# `toil`: count[16i] counts up to n, slowly.
# `meet`: raises a count and waits, for a second or so, until it is 2; notes what it saw last.
KERNELS = """
define void @tally(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %count = load ptr, ptr %buffers, align 8
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %at = getelementptr i64, ptr %count, i64 %i
  %old = atomicrmw add ptr %at, i64 1 monotonic, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @toil(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %count = load ptr, ptr %buffers, align 8
  %n.at = getelementptr i64, ptr %buffers, i64 1
  %n = load i64, ptr %n.at, align 8
  br label %each
each:
  %i = phi i64 [ %begin, %0 ], [ %next, %counted ]
  %cell = getelementptr [16 x i64], ptr %count, i64 %i
  br label %loop
loop:
  %k = phi i64 [ 0, %each ], [ %k.next, %loop ]
  %k.next = add i64 %k, 1
  store volatile i64 %k.next, ptr %cell, align 8
  %again = icmp slt i64 %k.next, %n
  br i1 %again, label %loop, label %counted
counted:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %each, label %done
done:
  ret void
}
define void @meet(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %count = load ptr, ptr %buffers, align 8
  %seen.at = getelementptr ptr, ptr %buffers, i64 1
  %seen = load ptr, ptr %seen.at, align 8
  %old = atomicrmw add ptr %count, i64 1 seq_cst, align 8
  br label %look
look:
  %i = phi i64 [ 0, %0 ], [ %i.next, %look ]
  %i.next = add i64 %i, 1
  %now = load atomic i64, ptr %count seq_cst, align 8
  %alone = icmp ult i64 %now, 2
  %patient = icmp ult i64 %i.next, 2000000000
  %again = and i1 %alone, %patient
  br i1 %again, label %look, label %done
done:
  store i64 %now, ptr %seen, align 8
  ret void
}
"""
CODE = Code(assemble(MIRROR + KERNELS, AnyOf(host()[0])))


@dataclass(frozen=True)
class PoolJob:
    """Steps for the pool, and the arrays that their records point to."""

    records: npt.NDArray[np.int64]
    held: tuple[npt.NDArray[Any], ...]

    def run(self, pool: Pool) -> None:
        pool.run(self.records.ctypes.data, len(self.records), self.held)


def pool_job(kernel: str, buffers: list[int], extents: list[int], steps: int = 1) -> PoolJob:
    """So many steps that each run a kernel's phases."""
    table = np.array(buffers, np.int64)
    place = (CODE.address(kernel), table.ctypes.data, 0, 0)
    return PoolJob(records([place] * steps, [extents] * steps), (table,))


def mirrors(pool: Pool, repeats: int, n: int = 61, phases: int = 12) -> bool:
    """Whether phases that each read what all threads wrote in the phase before give the right result every time."""
    for _ in range(repeats):
        x, y = np.arange(n), np.full(n, -1)
        pool_job("mirror", [x.ctypes.data, y.ctypes.data, n], [n] * phases).run(pool)
        if not np.array_equal(x, np.arange(n) + phases):
            return False
    return True


def tallies(pool: Pool, repeats: int, extents: tuple[int, ...] = (1, 2, 9, 100, 0, 37)) -> bool:
    """Whether every iteration of every phase of two steps runs exactly once, every time."""
    expected = np.zeros(max(extents), np.int64)
    for extent in extents:
        expected[:extent] += 2
    for _ in range(repeats):
        count = np.zeros_like(expected)
        pool_job("tally", [count.ctypes.data], list(extents), steps=2).run(pool)
        if not np.array_equal(count, expected):
            return False
    return True
