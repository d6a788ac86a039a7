"""A thread that loses its CPU to another program while others wait for it is moved to one of theirs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Generator

import numpy as np
import pytest

from stormdrop.device.pool.pool import Pool
from stormdrop.device.pool.pool_ir import SEAT_BYTES, SEATS_OFFSET
from tests.support.pool_jobs import mirrors, pool_job

ALLOWED = tuple(sorted(os.sched_getaffinity(0)))
MOVED_AT = 20  # in a seat: the phase in which the thread was last moved
TOIL = 300_000  # about 0.1 ms

pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="there is one CPU only")


@pytest.fixture
def neighbour() -> Generator[int]:
    """A CPU that another program keeps busy; the test may bind its own thread to another one."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        os.sched_setaffinity(process.pid, {ALLOWED[1]})
        yield ALLOWED[1]
    finally:
        os.sched_setaffinity(0, ALLOWED)
        process.kill()
        process.wait()


def toils(pool: Pool, extent: int = 16) -> bool:
    cells = np.zeros((extent, 16), np.int64)
    pool_job("toil", [cells.ctypes.data, TOIL], [extent] * 3).run(pool)
    return bool((cells[:, 0] == TOIL).all())


def place(pool: Pool, cpu: int) -> tuple[int, ctypes.c_int32]:
    """Puts the worker of a pool of two on a CPU, where it gives way to all others, and leaves its mask as it is; the
    worker, and in which phase it was moved.
    """
    assert pool._crew is not None
    worker = pool._crew.workers[0].native_id or 0
    os.setpriority(os.PRIO_PROCESS, worker, 19)
    os.sched_setaffinity(worker, {cpu})
    os.sched_setaffinity(worker, ALLOWED)
    return worker, ctypes.c_int32.from_address(pool._crew.block + SEATS_OFFSET + SEAT_BYTES + MOVED_AT)


def test_a_worker_that_loses_its_cpu_is_moved_to_that_of_who_waits(neighbour: int) -> None:
    pool = Pool(2)
    assert mirrors(pool, 1)
    os.sched_setaffinity(0, {ALLOWED[0]})
    worker, moved = place(pool, neighbour)
    for _ in range(1000):
        place(pool, neighbour)  # again, since where other tests run too, the system may have moved it first
        assert toils(pool)
        if moved.value:
            break
    if not moved.value and ("PYTEST_XDIST_WORKER" in os.environ or os.getloadavg()[0] > len(ALLOWED)):
        pytest.skip("other tests keep all CPUs busy: there is no idle one to move it to")
    assert moved.value
    assert os.sched_getaffinity(worker) == set(ALLOWED)
    assert toils(pool)


def test_workers_that_are_bound_to_cpus_stay_there(neighbour: int) -> None:
    pool = Pool(2, affinity=[ALLOWED[0], neighbour])
    assert mirrors(pool, 1)
    assert pool._crew is not None
    worker = pool._crew.workers[0].native_id or 0
    assert all(toils(pool) for _ in range(20))
    assert os.sched_getaffinity(worker) == {neighbour}
