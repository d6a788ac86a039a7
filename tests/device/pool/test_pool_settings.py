"""Settings of a pool: where their values come from, how long its threads spin, and which CPUs they run on."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.device.pool import pool as pool_settings
from stormdrop.device.pool.pool import Pool, PoolSettings, pool_for, shared_pool
from stormdrop.device.pool.pool_ir import SPIN_TICKS_OFFSET
from stormdrop.graph.builder import GraphBuilder
from tests.support.graphs import graph_of
from tests.support.pool_jobs import mirrors, pool_job

ALLOWED = tuple(sorted(os.sched_getaffinity(0)))
two_cpus = pytest.mark.skipif(len(ALLOWED) < 2, reason="there is one CPU only")


def cpu_of(thread: int) -> int:
    """The CPU on which a thread of this process was last."""
    text = Path(f"/proc/self/task/{thread}/stat").read_text()
    return int(text.rpartition(")")[2].split()[36])


def workers_of(pool: Pool) -> list[int]:
    assert pool._crew is not None
    return [worker.native_id or 0 for worker in pool._crew.workers]


@pytest.fixture
def mask() -> Generator[None]:
    """The test may bind its thread to a CPU."""
    yield
    os.sched_setaffinity(0, ALLOWED)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_arguments_come_before_variables_and_variables_before_defaults() -> None:
    environ = {"STORMDROP_THREADS": "1", "STORMDROP_SPIN": "5", "STORMDROP_AFFINITY": "compact"}
    assert PoolSettings.of(environ={}, threads=2) == PoolSettings(2, None, "none")
    assert PoolSettings.of(environ=environ) == PoolSettings(1, 5.0, "compact")
    assert PoolSettings.of(2, 0, "none", environ=environ) == PoolSettings(2, 0.0, "none")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("STORMDROP_SPIN", "long", "STORMDROP_SPIN is 'long'.*microseconds"),
        ("STORMDROP_SPIN", "-1", r"0 \(sleep at once\) to 1,000,000"),
        ("STORMDROP_AFFINITY", "close", "STORMDROP_AFFINITY is 'close'.*'compact', 'spread'"),
        ("STORMDROP_AFFINITY", "8191,8190", "may not use CPU 8191"),
    ],
)
def test_a_wrong_variable_says_what_to_do(name: str, value: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        PoolSettings.of(2, environ={name: value}).cpus()


def test_threads_spin_as_long_as_is_said_and_less_where_they_are_more_than_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_settings, "available_cpus", lambda: 2)
    assert PoolSettings(2).spin_seconds == pytest.approx(30e-6)
    assert PoolSettings(3).spin_seconds == pytest.approx(2e-6)
    assert PoolSettings(3, 50.0).spin_seconds == pytest.approx(50e-6)
    ticks: list[int] = []
    for spin in (0, 100, 1000):
        pool = Pool(2, spin=spin)
        assert mirrors(pool, 3)
        assert pool._crew is not None
        ticks.append(ctypes.c_int64.from_address(pool._crew.block + SPIN_TICKS_OFFSET).value)
    assert ticks[0] == 0
    assert ticks[2] == pytest.approx(10 * ticks[1], rel=1e-3)


# ---- which pool ------------------------------------------------------------------------------------------------------


def test_equal_settings_share_a_pool_and_others_do_not() -> None:
    assert pool_for(2) is pool_for(2, pool="shared") is shared_pool(2)
    assert pool_for(2, 5) is pool_for(2, 5.0)
    assert pool_for(2, 5) is not pool_for(2)
    assert pool_for(2, pool="own") is not pool_for(2, pool="own")


def test_a_pool_of_the_callers_is_taken_as_it_is() -> None:
    pool = Pool(2, spin=0)
    assert pool_for(2, pool=pool) is pool
    with pytest.raises(UserError, match="leave out threads="):
        pool_for(3, pool=pool)
    with pytest.raises(UserError, match=r"give them to sd\.Pool"):
        pool_for(2, 5, pool=pool)


def relu(**settings: Any) -> sd.Model:
    b = GraphBuilder()
    return sd.compile(
        graph_of(b, b.emit("Relu", b.input("x", (512, 512), "f32"))), schedules=lambda _: None, **settings
    )


X = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)


def test_a_model_runs_on_the_pool_that_it_is_given(tmp_path: Path) -> None:
    pool = sd.Pool(threads=3, spin=0)
    model = relu(pool=pool)
    assert model.threads == 3
    assert np.array_equal(model(X), np.maximum(X, 0))
    assert len(workers_of(pool)) == 2
    model.save(tmp_path / "m.sd")
    loaded = sd.load_compiled(tmp_path / "m.sd", pool=sd.Pool(4))
    assert loaded.threads == 4
    for other in (loaded, sd.load_compiled(tmp_path / "m.sd", 2, spin=5, pool="own"), relu(threads=2, affinity="none")):
        assert np.array_equal(other(X), np.maximum(X, 0))


def test_jobs_on_pools_of_their_own_run_at_once() -> None:
    here, met = np.zeros(1, np.int64), np.zeros((2, 8), np.int64)
    jobs = [pool_job("meet", [here.ctypes.data, place.ctypes.data], [1]) for place in met]
    callers = [threading.Thread(target=job.run, args=(Pool(2),)) for job in jobs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert met[:, 0].tolist() == [2, 2]


def test_a_models_own_pool_goes_when_the_model_is_closed() -> None:
    before = set(threading.enumerate())
    model = relu(threads=2, pool="own")
    model(X)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 1
    model.close()
    gc.collect()
    for worker in workers:
        worker.join(20)
        assert not worker.is_alive()


# ---- CPUs ------------------------------------------------------------------------------------------------------------


@two_cpus
@pytest.mark.parametrize("affinity", ["compact", "spread", ALLOWED[:2], ALLOWED[1::-1]])
def test_every_thread_runs_on_its_cpu_and_the_callers_mask_stays(affinity: Any, mask: None) -> None:
    pool = Pool(2, affinity=affinity)
    cpus = pool.cpus
    assert mirrors(pool, 3)
    (worker,) = workers_of(pool)
    assert os.sched_getaffinity(worker) == {cpus[1]}
    for start in (cpus[1], cpus[0]):  # on the worker's CPU they would share it while the other idles
        os.sched_setaffinity(0, {start})
        os.sched_setaffinity(0, ALLOWED)
        assert any(mirrors(pool, 1) and cpu_of(threading.get_native_id()) == cpus[0] for _ in range(1000))
    assert os.sched_getaffinity(0) == set(ALLOWED)


@two_cpus
def test_a_caller_that_may_not_use_its_cpu_stays_where_it_is(mask: None) -> None:
    pool = Pool(2, affinity=ALLOWED[:2])
    os.sched_setaffinity(0, {ALLOWED[1]})
    assert mirrors(pool, 20)
    assert os.sched_getaffinity(0) == {ALLOWED[1]}
    assert cpu_of(threading.get_native_id()) == ALLOWED[1]


@two_cpus
@pytest.mark.parametrize("spin", [0, 1000])
def test_workers_leave_the_callers_cpu_however_long_they_spin(spin: float, mask: None) -> None:
    pool = Pool(2, spin=spin)
    assert mirrors(pool, 1)
    (worker,) = workers_of(pool)
    os.sched_setaffinity(0, {ALLOWED[0]})
    os.sched_setaffinity(worker, {ALLOWED[0]})
    os.sched_setaffinity(worker, ALLOWED)
    assert any(mirrors(pool, 1) and cpu_of(worker) != ALLOWED[0] for _ in range(10_000))


@two_cpus
def test_a_forked_child_binds_workers_of_its_own() -> None:
    pool = Pool(2, affinity="compact")
    assert mirrors(pool, 3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            is_right = mirrors(pool, 3) and os.sched_getaffinity(workers_of(pool)[0]) == {pool.cpus[1]}
            status = 0 if is_right else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("spin", [0, 200])
def test_workers_that_wait_sleep_after_they_have_spun(spin: float) -> None:
    pool = Pool(2, spin=spin)
    assert mirrors(pool, 3)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02
