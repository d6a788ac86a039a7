"""How the pool divides a phase: parts are claimed as threads come, and only a claimed part is waited for.

The stress tests run the pool's own code with a random pause after every atomic operation: whatever order the system
may choose, some run has it.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stormdrop.codegen.llvm import AnyOf, Code, assemble, host
from stormdrop.device.pool import pool as pool_module
from stormdrop.device.pool.pool import Pool
from stormdrop.device.pool.pool_ir import PARTS, pool_ir
from tests.support.pool_jobs import mirrors
from tests.support.pool_kernels import records

# `tally`: count[i] += 1 for every iteration, and the thread's scratch[phase] += their number.
# `gate`: as tally, but who runs iteration `held` waits there until `wanted` other iterations have been counted.
KERNELS = """
define void @tally(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %count = load ptr, ptr %buffers, align 8
  %own.at = getelementptr i64, ptr %scratch, i64 %phase
  %own = load i64, ptr %own.at, align 8
  %n = sub i64 %end, %begin
  %own.next = add i64 %own, %n
  store i64 %own.next, ptr %own.at, align 8
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
define void @gate(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %count = load ptr, ptr %buffers, align 8
  %held.at = getelementptr i64, ptr %buffers, i64 1
  %held = load i64, ptr %held.at, align 8
  %wanted.at = getelementptr i64, ptr %buffers, i64 2
  %wanted = load i64, ptr %wanted.at, align 8
  %after = icmp sge i64 %held, %begin
  %before = icmp slt i64 %held, %end
  %mine = and i1 %after, %before
  br i1 %mine, label %wait, label %run
wait:
  %seen = load atomic i64, ptr %count monotonic, align 8
  %enough = icmp sge i64 %seen, %wanted
  br i1 %enough, label %run, label %wait
run:
  %n = sub i64 %end, %begin
  %old = atomicrmw add ptr %count, i64 %n monotonic, align 8
  ret void
}
"""

CODE = Code(assemble(KERNELS, AnyOf(host()[0])))


@dataclass(frozen=True)
class Job:
    """Steps for the pool, and the arrays that their records point to."""

    records: npt.NDArray[np.int64]
    held: tuple[npt.NDArray[np.int64], ...]

    def run(self, pool: Pool) -> None:
        pool.run(self.records.ctypes.data, len(self.records))


def job(kernel: str, buffers: list[int], extents: list[int], scratch: npt.NDArray[np.int64]) -> Job:
    table = np.array(buffers, np.int64)
    place = (CODE.address(kernel), table.ctypes.data, scratch.ctypes.data, scratch.strides[0])
    return Job(records([place], [extents]), (table, scratch))


@pytest.fixture(params=[1, 2, 3, 7])
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


def test_every_iteration_runs_once_on_some_thread_with_that_threads_scratch(pool: Pool) -> None:
    extents = [0, 1, 2, 3, 7, 8, 9, 1000, 0, 12345]
    count = np.zeros(max(extents), np.int64)
    scratch = np.zeros((pool.threads, 64), np.int64)
    for _ in range(20):
        count[:], scratch[:] = 0, 0
        job("tally", [count.ctypes.data], extents, scratch).run(pool)
        assert np.array_equal(count, sum((np.arange(len(count)) < extent).astype(np.int64) for extent in extents))
        assert scratch.sum(axis=0)[: len(extents)].tolist() == extents


def test_a_held_part_leaves_the_rest_of_its_threads_share_to_the_others() -> None:
    """The holder of the first iteration waits for all iterations of other parts: they must be run by someone else."""
    extent, threads = 160, 2
    part = -(-extent // threads // PARTS)
    pool = Pool(threads)
    for held in (0, extent - 1):
        count = np.zeros(1, np.int64)
        job("gate", [count.ctypes.data, held, extent - part], [extent], np.zeros((2, 8), np.int64)).run(pool)
        assert count[0] == extent


def test_threads_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = threading.Event()

    def stay_away(_crew: object, _t: int) -> None:
        leave.wait()

    monkeypatch.setattr(pool_module._Crew, "_enter", stay_away)
    pool = Pool(4)
    count = np.zeros(100, np.int64)
    scratch = np.zeros((4, 8), np.int64)
    for _ in range(3):
        job("tally", [count.ctypes.data], [100, 30, 1], scratch).run(pool)
    leave.set()
    assert count.sum() == 3 * 131
    assert scratch[1:].sum() == 0


# ---- random pauses at every synchronisation point --------------------------------------------------------------------

PAUSES = """
@random = internal global i64 88172645463325252
define internal void @dawdle() nounwind {  ; now and then some microseconds
  %a = load atomic i64, ptr @random monotonic, align 8
  %b = shl i64 %a, 13
  %c = xor i64 %a, %b
  %d = lshr i64 %c, 7
  %e = xor i64 %c, %d
  %f = shl i64 %e, 17
  %g = xor i64 %e, %f
  store atomic i64 %g, ptr @random monotonic, align 8
  %dice = lshr i64 %g, 59
  %rarely = icmp eq i64 %dice, 0
  br i1 %rarely, label %wait, label %done
wait:
  %h = lshr i64 %g, 48
  %n = and i64 %h, 255
  br label %again
again:
  %i = phi i64 [ 0, %wait ], [ %i.next, %again ]
  call void @pause()
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %n
  br i1 %more, label %again, label %done
done:
  ret void
}
"""
ATOMIC = re.compile(r"^(  .*(?: atomic |atomicrmw |cmpxchg ).*)$", re.MULTILINE)


def dawdling(change: Callable[[str], str] = str) -> str:
    """The pool's code with a random pause before and after every atomic operation."""
    text = change(pool_ir(platform.machine()))
    return ATOMIC.sub(r"  call void @dawdle()\n\1\n  call void @dawdle()", text) + PAUSES


def pool_of(text: str, threads: int, spin: float | None = None) -> Pool:
    def changed(_machine: str) -> str:
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "pool_ir", changed)
        native = pool_module._native.__wrapped__()
    pool = Pool(threads, spin=spin)
    pool._native = native
    return pool


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_random_pauses_change_no_result(threads: int) -> None:
    assert mirrors(pool_of(dawdling(), threads), 300)


def test_a_phase_that_does_not_wait_for_the_one_before_is_caught() -> None:
    eager = dawdling(lambda text: text.replace("call i32 @await(ptr %phase.at, i32 %phase", "add i32 0, 0 ;"))
    assert eager.count("add i32 0, 0 ;") == 1
    text = eager.replace("%current = icmp eq i32 %now, %phase", "%current = icmp eq i32 0, 0")
    assert not mirrors(pool_of(text, 3), 300)


# ---- CPUs ------------------------------------------------------------------------------------------------------------


def cpu_of(thread: int) -> int:
    """The CPU on which a thread of this process was last."""
    text = Path(f"/proc/self/task/{thread}/stat").read_text()
    return int(text.rpartition(")")[2].split()[36])


def test_a_worker_leaves_the_callers_cpu_and_keeps_its_affinity_mask() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one CPU only")
    pool = Pool(2)
    assert mirrors(pool, 1)
    assert pool._crew is not None
    worker = pool._crew.workers[0].native_id
    assert worker is not None
    shared = min(allowed)
    try:
        os.sched_setaffinity(0, {shared})
        os.sched_setaffinity(worker, {shared})
        assert mirrors(pool, 20)  # there is no other CPU for it
        assert cpu_of(worker) == shared
        os.sched_setaffinity(worker, allowed)
        assert any(mirrors(pool, 1) and cpu_of(worker) != shared for _ in range(10_000))
        # between its two system calls a worker is bound to its new CPU
        assert any(os.sched_getaffinity(worker) == allowed or time.sleep(0.001) for _ in range(5_000))
    finally:
        os.sched_setaffinity(0, allowed)
