"""Kernels for the thread pool, as LLVM IR text, and records of their steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stormdrop.device.artifact import Group, single_groups, step_rows
from stormdrop.device.pool.pool_ir import STEP_WORDS

Place = tuple[int, int, int, int]
"""Of a kernel: its address, that of its pointer table, thread 0's scratch, bytes from one thread's to the next."""


def records(
    places: Sequence[Place], extents: Sequence[Sequence[int]], groups: Sequence[Group] = ()
) -> npt.NDArray[np.int64]:
    """The records of a job: calls of kernels with so many phases, each phase a group of its own unless given."""
    rows = step_rows(extents, groups or single_groups(extents))
    found = [(*places[row.call], *row.words) for row in rows]
    return np.array(found, np.int64).reshape(-1, STEP_WORDS)


MIRROR = """
; Phase p writes y[i] = x[n-1-i] + 1, and x and y change places with each phase: a phase that begins too early shows.
define void @mirror(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %odd = and i64 %phase, 1
  %even = xor i64 %odd, 1
  %x.at = getelementptr ptr, ptr %buffers, i64 %odd
  %y.at = getelementptr ptr, ptr %buffers, i64 %even
  %x = load ptr, ptr %x.at, align 8
  %y = load ptr, ptr %y.at, align 8
  %n.at = getelementptr ptr, ptr %buffers, i64 2
  %n = load i64, ptr %n.at, align 8
  %last = sub i64 %n, 1
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %j = sub i64 %last, %i
  %from = getelementptr i64, ptr %x, i64 %j
  %to = getelementptr i64, ptr %y, i64 %i
  %v = load i64, ptr %from, align 8
  %w = add i64 %v, 1
  store i64 %w, ptr %to, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
