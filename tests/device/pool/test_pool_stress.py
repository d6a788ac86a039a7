"""The pool while its threads are stopped for a while, at every synchronisation point and by signals at any instruction.

A stopped thread stands for one whose CPU another program took. It stops for longer than any thread spins, so the others
go on without it, fall asleep and are woken. Bugs that are planted on purpose must be found, or the tests prove nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from stormdrop.codegen.llvm import AnyOf, Code, assemble, host
from stormdrop.device.pool import pool as pool_settings
from stormdrop.device.pool.pool import Pool
from stormdrop.device.pool.pool_ir import MACHINES, pool_ir
from tests.device.pool.test_pool_parts import ATOMIC, pool_of
from tests.support.pool_jobs import mirrors, tallies

NANOSLEEP = {"x86_64": 35, "aarch64": 101}[platform.machine()]
STOPS = f"""
define internal void @nap(i64 %nanoseconds) nounwind {{
  %time = alloca [2 x i64], align 8
  %rest.at = getelementptr i64, ptr %time, i64 1
  store i64 0, ptr %time, align 8
  store i64 %nanoseconds, ptr %rest.at, align 8
  %address = ptrtoint ptr %time to i64
  %r = call i64 @system(i64 {NANOSLEEP}, i64 %address, i64 0, i64 0)
  ret void
}}
"""
SOMETIMES = """
@lot = internal global i64 88172645463325252
define internal void @sometimes() nounwind {  ; one time of 256, up to a millisecond
  %a = load atomic i64, ptr @lot monotonic, align 8
  %b = shl i64 %a, 13
  %c = xor i64 %a, %b
  %d = lshr i64 %c, 7
  %e = xor i64 %c, %d
  %f = shl i64 %e, 17
  %g = xor i64 %e, %f
  store atomic i64 %g, ptr @lot monotonic, align 8
  %dice = lshr i64 %g, 56
  %stops = icmp eq i64 %dice, 0
  br i1 %stops, label %stop, label %done
stop:
  %long = and i64 %g, 1048575
  call void @nap(i64 %long)
  br label %done
done:
  ret void
}
"""
HANDLER = """
define void @handler(i32 %signal) nounwind {
  call void @nap(i64 1000000)
  ret void
}
"""


def stopping(change: Callable[[str], str] = str) -> str:
    """The pool's code, in which a thread now and then stops before or after an atomic operation."""
    text = change(pool_ir(platform.machine()))
    return ATOMIC.sub(r"  call void @sometimes()\n\1\n  call void @sometimes()", text) + STOPS + SOMETIMES


def is_right(pool: Pool, repeats: int) -> bool:
    return mirrors(pool, repeats) and tallies(pool, repeats)


@pytest.fixture(scope="module")
def code() -> str:
    return stopping()


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_that_stop_at_synchronisation_points_change_no_result(code: str, threads: int) -> None:
    assert is_right(pool_of(code, threads), 60)


def test_eight_callers_share_a_pool_whose_threads_stop(code: str) -> None:
    pool = pool_of(code, 3)
    verdicts: list[bool] = []
    callers = [threading.Thread(target=lambda: verdicts.append(is_right(pool, 8))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert verdicts == [True] * 8


# ---- signals ---------------------------------------------------------------------------------------------------------


@contextmanager
def stopped_at_random(threads: list[int]) -> Generator[list[int]]:
    """Stops one of these threads for a millisecond, again and again, wherever it is; who was stopped, in order."""
    code = Code(assemble(MACHINES[platform.machine()] + STOPS + HANDLER, AnyOf(host()[0])))
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    before = libc.signal(signal.SIGUSR1, code.address("handler"))
    chosen: list[int] = []
    over = threading.Event()

    def storm() -> None:
        rng = random.Random(0)
        while not over.wait(rng.uniform(0, 5e-4)):
            chosen.append(rng.choice(threads))
            signal.pthread_kill(chosen[-1], signal.SIGUSR1)

    sender = threading.Thread(target=storm)
    sender.start()
    try:
        yield chosen
    finally:
        over.set()
        sender.join()
        time.sleep(0.01)  # the last one stopped goes on
        libc.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_that_are_stopped_anywhere_change_no_result(threads: int) -> None:
    pool = Pool(threads)
    assert mirrors(pool, 1)
    assert pool._crew is not None
    everybody = [threading.get_ident(), *(worker.ident or 0 for worker in pool._crew.workers)]
    with stopped_at_random(everybody) as chosen:
        while len(chosen) < 300:
            assert is_right(pool, 1)
    assert set(chosen) == set(everybody)


# ---- few CPUs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_quota_of_one_cpu_is_enough(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_settings, "available_cpus", lambda: 1)
    pool = Pool(threads)
    assert pool.settings.is_crowded == (threads > 1)
    assert is_right(pool, 20)


@pytest.mark.parametrize("spin", [None, 0, 500])
@pytest.mark.parametrize("threads", [2, 5])
def test_a_mask_of_one_cpu_is_enough(threads: int, spin: float | None) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # workers inherit it
    try:
        assert is_right(Pool(threads, spin=spin), 5)
    finally:
        os.sched_setaffinity(0, allowed)


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    return change


CLAIM = "  %r = cmpxchg ptr %word, i64 %seen, i64 %next acq_rel monotonic, align 8\n"
PLANTED = {
    "two threads claim one part": replaced(
        CLAIM,
        "  store atomic i64 %next, ptr %word monotonic, align 8\n"
        "  %r.0 = insertvalue {i64, i1} undef, i64 %seen, 0\n"
        "  %r = insertvalue {i64, i1} %r.0, i1 true, 1\n",
    ),
    "who waits for a phase is not woken": replaced(
        "  call void @raise(ptr %phase.at)\n  ret i1 true\n",
        "  %raised = atomicrmw add ptr %phase.at, i32 1 seq_cst, align 4\n  ret i1 true\n",
    ),
}


RIGHT, WRONG, ASLEEP = 0, 1, 2


def verdict_of_a_child(code: str) -> int:
    """What comes of the pool's code in a process that can be given up: all its threads may sleep for ever.

    They sleep as soon as they wait, so that one that nobody wakes is noticed on a quiet machine too.
    """
    child = os.fork()
    if child == 0:
        status = WRONG
        try:
            verdicts: list[bool] = []
            caller = threading.Thread(target=lambda: verdicts.append(is_right(pool_of(code, 3, spin=0), 100)))
            caller.start()
            used = -1.0
            while caller.is_alive() and time.process_time() - used > 1e-3:
                used = time.process_time()
                caller.join(1.0)
            status = ASLEEP if not verdicts else RIGHT if verdicts[0] else WRONG
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("bug", ["nothing", *PLANTED])
def test_a_planted_bug_is_caught(bug: str) -> None:
    """In some of several processes: on a quiet machine the caller of one may never have to wait for another thread."""
    code = stopping(PLANTED.get(bug, str))
    tries = 3 if bug == "nothing" else 16
    assert all(verdict_of_a_child(code) == RIGHT for _ in range(tries)) == (bug == "nothing")
