"""The native thread pool: correct under every way of calling, forking, interrupting and leaving."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stormdrop.base.errors import UserError
from stormdrop.codegen.llvm import Code, assemble, host
from stormdrop.device.pool import pool as pool_module
from stormdrop.device.pool.pool import Pool, shared_pool
from tests.support.pool_kernels import MIRROR, Place, records

# `mirror` is that of `tests.support.pool_kernels`.
# `halve`: y[i] = x[i] / 2.  `count`: x[16i] counts up to n, slowly.
KERNELS = """
define void @halve(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %x = load ptr, ptr %buffers, align 8
  %y.at = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %y.at, align 8
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %to = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %from, align 4
  %w = fmul float %v, 0.5
  store float %w, ptr %to, align 4
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @count(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) nounwind {
  %x = load ptr, ptr %buffers, align 8
  %n.at = getelementptr ptr, ptr %buffers, i64 1
  %n = load i64, ptr %n.at, align 8
  %cell = getelementptr [16 x i64], ptr %x, i64 %begin
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %next, %loop ]
  %next = add i64 %i, 1
  store volatile i64 %next, ptr %cell, align 8
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@dataclass(frozen=True)
class AnyMachine:
    triple: str
    cpu: str = ""
    features: str = ""


CODE = Code(assemble(MIRROR + KERNELS, AnyMachine(host()[0])))


@dataclass(frozen=True)
class Steps:
    """Kernels to be run one after another, and what their records point to."""

    records: npt.NDArray[np.int64]
    held: list[npt.NDArray[Any]]

    @property
    def job(self) -> tuple[int, int]:
        return self.records.ctypes.data, len(self.records)


def listed(*steps: tuple[str, list[int], list[int]], scratch: npt.NDArray[np.int64] | None = None) -> Steps:
    places: list[Place] = []
    held: list[npt.NDArray[Any]] = [np.zeros(0)] if scratch is None else [scratch]
    for k, (kernel, buffers, _) in enumerate(steps):
        table = np.array(buffers, np.uint64)
        place = (0, 0) if scratch is None else (scratch.ctypes.data + 16 * k, scratch.strides[0])
        places.append((CODE.address(kernel), table.ctypes.data, place[0], place[1]))
        held.append(table)
    return Steps(records(places, [extents for *_, extents in steps]), held)


def launch(pool: Pool, kernel: str, buffers: list[int], extents: list[int]) -> None:
    steps = listed((kernel, buffers, extents))
    pool.run(*steps.job)


def mirrors_correctly(pool: Pool, n: int, phases: int) -> bool:
    x = np.random.default_rng(n).integers(0, 1 << 40, n)
    ends = [x.copy(), np.full(n, -1)]
    launch(pool, "mirror", [ends[0].ctypes.data, ends[1].ctypes.data, n], [n] * phases)
    return bool(np.array_equal(ends[phases % 2], (x[::-1] if phases % 2 else x) + phases))


# About half a second at a nanosecond a step; the tests that use it assert no time.
LONG = 400_000_000


def long_job(pool: Pool) -> npt.NDArray[np.int64]:
    cells = np.zeros((pool.threads, 16), np.int64)
    launch(pool, "count", [cells.ctypes.data, LONG], [pool.threads])
    return cells[:, 0]


@pytest.fixture(params=[1, 2, 5])
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


@pytest.fixture
def pair() -> Pool:
    return Pool(2)


# ---- jobs ----------------------------------------------------------------------------------------------------------


def test_phases_are_separated_by_barriers(pool: Pool) -> None:
    assert all(mirrors_correctly(pool, n, phases) for n in (1, 2, 61, 1000) for phases in (1, 2, 3, 200))


def test_a_job_without_phases_does_nothing(pool: Pool) -> None:
    for _ in range(50):
        launch(pool, "mirror", [0, 0, 0], [])
    assert mirrors_correctly(pool, 10, 3)


def test_jobs_are_correct_whether_workers_spin_or_sleep(pool: Pool) -> None:
    for pause in (0.0, 1e-5, 1e-4, 1e-3):
        for _ in range(30):
            time.sleep(pause)
            assert mirrors_correctly(pool, 17, 3)


# ---- lists of steps -------------------------------------------------------------------------------------------------


def mirrors(n: int, phases: list[int]) -> tuple[Steps, Callable[[], bool]]:
    """Steps of so many phases, each of which hands its result to the next one, and whether all have run once, in
    order.
    """
    x = np.random.default_rng(n).integers(0, 1 << 40, n)
    ends = [x.copy(), np.full(n, -1)]
    steps: list[tuple[str, list[int], list[int]]] = []
    done = 0
    for count in phases:
        steps.append(("mirror", [ends[done % 2].ctypes.data, ends[1 - done % 2].ctypes.data, n], [n] * count))
        done += count
    return listed(*steps), lambda: bool(np.array_equal(ends[done % 2], (x[::-1] if done % 2 else x) + done))


@pytest.mark.parametrize(
    "phases", [[], [1], [0], [1, 1], [3, 1, 2], [0, 2, 0, 0, 1, 0], [1] * 100, [2, 5] * 30], ids=len
)
def test_steps_run_in_order_with_a_barrier_after_every_phase(pool: Pool, phases: list[int]) -> None:
    for n in (1, 3, 1000):
        steps, came_out_right = mirrors(n, phases)
        pool.run(*steps.job)
        assert came_out_right()
    assert mirrors_correctly(pool, 17, 3)


def test_lists_of_any_length_follow_each_other_whether_workers_spin_or_sleep(pool: Pool) -> None:
    for pause in (0.0, 1e-5, 1e-3):
        for k in range(20):
            time.sleep(pause)
            steps, came_out_right = mirrors(33, [k % 3, 1, k % 2])
            pool.run(*steps.job)
            assert came_out_right()
            assert mirrors_correctly(pool, 17, 2)


def test_whole_runs_and_single_steps_are_timed(pool: Pool) -> None:
    n, x, y = 64, np.zeros(64, np.int64), np.zeros(64, np.int64)
    there, back = [x.ctypes.data, y.ctypes.data, n], [y.ctypes.data, x.ctypes.data, n]
    steps = listed(("mirror", there, [n]), ("mirror", [], []), ("mirror", back, [n]))
    whole = pool.bench(*steps.job, 50)
    each = pool.profile(*steps.job, 40)
    assert (x == 180).all()
    assert (whole.shape, each.shape) == ((50,), (40, 2))
    assert (each >= 0).all()
    assert whole.sum() > 0
    assert (each.sum(axis=0) > 0).all()
    assert pool.profile(steps.job[0], 0, 5).shape == (5, 0)
    assert pool.profile(steps.job[0], 1, 5).shape == (5, 1)


def test_the_time_of_a_step_is_its_own() -> None:
    """A step a hundred thousand times as long as its neighbours stands out where it is."""
    cell = np.zeros(16, np.int64)
    for place in range(3):
        steps = listed(*(("count", [cell.ctypes.data, 10 ** (6 if k == place else 1)], [1]) for k in range(3)))
        assert np.median(shared_pool(1).profile(*steps.job, 9), axis=0).argmax() == place


def test_several_python_threads_may_run_jobs_at_once(pool: Pool) -> None:
    verdicts: list[bool] = []

    def caller(n: int) -> None:
        for _ in range(100):
            steps, came_out_right = mirrors(n, [1, 2, 1])
            pool.run(*steps.job)
            verdicts.append(came_out_right() and mirrors_correctly(pool, n, 2))

    callers = [threading.Thread(target=caller, args=(n,)) for n in (5, 64, 129, 1000)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert len(verdicts) == 400
    assert all(verdicts)


# ---- several callers, modes -----------------------------------------------------------------------------------------


def test_a_running_job_leaves_the_gil_to_others(pair: Pool) -> None:
    job = threading.Thread(target=long_job, args=(pair,))
    job.start()
    steps = 0
    while job.is_alive():
        steps += 1
        time.sleep(0)
    assert steps > 100  # holding the GIL would allow one or two


def test_idle_workers_cost_nothing(pair: Pool) -> None:
    assert mirrors_correctly(pair, 100, 2)
    before = time.process_time()
    time.sleep(2)
    assert time.process_time() - before < 0.02


def test_the_callers_float_mode_holds_on_every_thread_and_only_for_the_job(pair: Pool) -> None:
    native = pool_module._native()
    flush_to_zero = 0x8000 if platform.machine() == "x86_64" else 1 << 24
    tiny = np.full(64, np.finfo(np.float32).tiny, np.float32)  # its half is subnormal

    def halves() -> npt.NDArray[np.float32]:
        out = np.full(64, np.nan, np.float32)
        launch(pair, "halve", [tiny.ctypes.data, out.ctypes.data], [64])
        return out

    mode = native.float_mode()
    assert (halves() > 0).all()
    native.set_float_mode(mode | flush_to_zero)
    try:
        flushed = halves()
    finally:
        native.set_float_mode(mode)
    assert (flushed.view(np.uint32) == 0).all()
    assert (halves().view(np.uint32) != 0).all()


# ---- interruption, leaving -----------------------------------------------------------------------------------------


def test_an_interrupt_waits_for_the_job_and_leaves_the_pool_usable(pair: Pool) -> None:
    cells = np.zeros((2, 16), np.int64)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        launch(pair, "count", [cells.ctypes.data, LONG], [2])
    assert (cells[:, 0] == LONG).all()
    assert mirrors_correctly(pair, 100, 5)


def started_by(run: Callable[[], object]) -> set[threading.Thread]:
    before = set(threading.enumerate())
    run()
    return set(threading.enumerate()) - before


def test_a_forgotten_pools_workers_leave() -> None:
    pools = [Pool(3)]
    workers = started_by(lambda: mirrors_correctly(pools[0], 9, 2))
    assert len(workers) == 2
    pools.clear()
    for worker in workers:
        worker.join()


def test_one_thread_needs_no_worker() -> None:
    assert not started_by(lambda: mirrors_correctly(shared_pool(1), 100, 3))


def test_shared_pools_are_one_per_count() -> None:
    assert shared_pool(2) is shared_pool(2)
    assert shared_pool(2) is not shared_pool(1)


@pytest.mark.parametrize("threads", [0, -3])
def test_a_pool_needs_a_thread(threads: int) -> None:
    with pytest.raises(UserError, match="1 or more"):
        Pool(threads)


def test_other_platforms_are_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    uncached: Any = pool_module._native.__wrapped__
    monkeypatch.setattr(pool_module, "_native", uncached)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match=r"Linux on x86_64 or aarch64; this is linux on riscv64.*futex"):
        Pool(1)


# ---- fork, exit ----------------------------------------------------------------------------------------------------


def succeeds_in_a_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(20)
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_from_an_idle_pool_computes(pair: Pool) -> None:
    assert mirrors_correctly(pair, 33, 3)
    assert succeeds_in_a_child(lambda: mirrors_correctly(pair, 33, 3) and mirrors_correctly(Pool(3), 33, 3))
    assert mirrors_correctly(pair, 33, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_during_a_job_computes(pair: Pool) -> None:
    cells: list[npt.NDArray[np.int64]] = []
    job = threading.Thread(target=lambda: cells.append(long_job(pair)))
    job.start()
    while not pair._crew:
        time.sleep(0.001)
    time.sleep(0.02)
    assert succeeds_in_a_child(lambda: mirrors_correctly(pair, 33, 3))
    job.join()
    assert (cells[0] == LONG).all()


SCRIPT = """
import atexit, sys, threading, time
sys.path[:0] = sys.argv[1:]
from test_pool import *
def later(): assert mirrors_correctly(shared_pool(2), 50, 3); print("later", end="")
"""

EXITS = {
    "workers are asleep": "mirrors_correctly(Pool(2), 9, 3); pool = shared_pool(2); long_job(pool); time.sleep(0.05)",
    "workers spin": "pool = shared_pool(2); mirrors_correctly(pool, 9, 3)",
    "a job is running": """
threading.Thread(target=long_job, args=(shared_pool(2),), daemon=True).start()
time.sleep(0.05)
""",
    "jobs keep coming": """
def forever():
    while True: mirrors_correctly(shared_pool(2), 1000, 3)
for _ in range(3): threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
""",
    "a timing loop is running": """
steps = listed(("mirror", [], [0]))
threading.Thread(target=shared_pool(2).bench, args=(*steps.job, 10**9), daemon=True).start()
time.sleep(0.2)
""",
    "a profile is running": """
steps, check = mirrors(1000, [1, 2, 3])  # the check holds the arrays
threading.Thread(target=shared_pool(2).profile, args=(*steps.job, 10**6), daemon=True).start()
time.sleep(0.2)
""",
    "an exit handler runs a job": "atexit.register(later); pool = shared_pool(2); mirrors_correctly(pool, 9, 3)",
}


@pytest.mark.parametrize("situation", EXITS)
def test_the_interpreter_exits_cleanly_when(situation: str) -> None:
    here = os.path.dirname(__file__)
    paths = [here, os.path.dirname(os.path.dirname(here))]
    command = [sys.executable, "-c", SCRIPT + EXITS[situation], *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("later" if "handler" in situation else "")
