"""The native thread pool: Python starts the threads, native code does the rest.

A kernel is `void k(ptr buffers, ptr scratch, i64 phase, i64 begin, i64 end)`, and each of its phases has an extent. A
job is a list of phases in groups. The iterations of a group are divided among the threads, each with scratch of its own
(`pool_ir`). Each thread has a share, and any thread may claim unclaimed parts of it. No iteration of a group begins
before all of the group before are done. The caller is thread 0. Workers wait for `go` in native code, without the GIL:
they spin for a while, then sleep on a futex (`pool_settings`). The threads process the whole job together, without a
return to Python in between.

Invariants: one job at a time (a native mutex, which no signal can leave locked). The caller's floating-point mode holds
on all threads. A forked child starts workers of its own when it first needs them. At exit, workers stay asleep in
native code, since a daemon thread that returns to a dying interpreter may crash it.

Settings of a thread pool: the number of its threads, their waiting, and their placement.

Each is an argument, else an environment variable, else a default (`docs/threads.md`).
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import platform
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from stormdrop.base.environment import variable
from stormdrop.base.errors import UserError
from stormdrop.device.cpus import Affinity, affinity_of, available_cpus, cpu_text, cpus_for, thread_count
from stormdrop.device.device import Account
from stormdrop.device.pool.pool_ir import (
    BLOCK_ALIGN,
    HOME_OFFSET,
    HURRY_OFFSET,
    MACHINES,
    SPIN_TICKS_OFFSET,
    SPREAD_OFFSET,
    THREADS_OFFSET,
    block_bytes,
    pool_ir,
)

# About what waking a sleeping thread costs. No sched_yield while spinning: threads that yield to each other can share
# one CPU for a quarter of a second while another CPU is idle (measured: 14 µs a phase instead of 0.2). If they sleep,
# the system separates them sooner.
SPIN_MICROSECONDS = 30.0
# The default with more threads than CPUs: a spinning thread may occupy the CPU that the thread it waits for needs.
CROWDED_SPIN_MICROSECONDS = 2.0
MOST_SPIN_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`spin`: microseconds that a waiting thread spins before it sleeps. None stands for the default, which depends on
    whether there are more threads than CPUs (`spin_seconds`).
    """

    threads: int
    spin: float | None = None
    affinity: Affinity = "none"

    @staticmethod
    def of(
        threads: int | None = None,
        spin: float | None = None,
        affinity: object = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> PoolSettings:
        """Returns the settings from arguments; None: from the environment variable, or else the default.

        Raises UserError for invalid values of either.
        """
        count = thread_count(threads, environ=environ)
        if spin is not None:
            microseconds = _microseconds(spin, "spin")
        else:
            text = variable("STORMDROP_SPIN", environ)
            microseconds = _microseconds(text, "STORMDROP_SPIN") if text else None
        if affinity is not None:
            cpus = affinity_of(affinity)
        else:
            cpus = affinity_of(variable("STORMDROP_AFFINITY", environ) or "none", "STORMDROP_AFFINITY")
        return PoolSettings(count, microseconds, cpus)

    def cpus(self) -> tuple[int, ...]:
        """Returns the CPU of each thread, out of the CPUs that this process may use now; empty if the system decides.

        A pool of one thread has no workers to bind, and its caller is not moved: empty. Raises UserError as `cpus_for`.
        """
        return cpus_for(self.affinity, self.threads) if self.threads > 1 else ()

    @property
    def is_crowded(self) -> bool:
        """Returns whether there are more threads than CPUs."""
        return self.threads > available_cpus()

    @property
    def spin_seconds(self) -> float:
        default = CROWDED_SPIN_MICROSECONDS if self.is_crowded else SPIN_MICROSECONDS
        return (default if self.spin is None else self.spin) * 1e-6


def _microseconds(value: Any, name: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= MOST_SPIN_MICROSECONDS:
        accepted = f"0 (sleep at once) to {MOST_SPIN_MICROSECONDS:,.0f}; the default is {SPIN_MICROSECONDS:g}"
        raise UserError(f"{name} is {value!r:.60}; give a number of microseconds, {accepted}")
    return number


EXIT_GRACE_SECONDS = 2.0


class Pool:
    """Threads that run one model after another, for `pool=` of `sd.compile` and `sd.load`.

    `Pool(threads=None, *, spin=None, affinity=None)`: `spin` is the time in microseconds for which a waiting thread
    spins before it sleeps. `affinity` is the placement of threads: "none", "compact", "spread", or the CPU of each
    thread, the caller's first. Omitted arguments are set by the environment. Any Python thread may call models on it,
    one call runs at a time, and the GIL is free. Workers start with the first call and leave when the pool is garbage.

    Raises UserError on any system but Linux on x86-64 or AArch64, for too many threads, and for CPUs that this process
    may not use.
    """

    settings: PoolSettings
    """The number of threads, how long they spin, and where they run."""
    threads: int
    """The number of threads, the caller's included."""
    cpus: tuple[int, ...]
    """The CPU of each thread; empty if the system decides."""

    def __init__(self, threads: int | None = None, *, spin: float | None = None, affinity: object = None) -> None:
        self.settings = PoolSettings.of(threads, spin, affinity)
        self.threads = self.settings.threads
        self.cpus = self.settings.cpus()
        self._native = _native()
        self._crew: _Crew | None = None
        self._starting = threading.Lock()
        _pools.add(self)

    def run(self, steps: int, count: int, held: object = None) -> None:
        """Runs `count` steps; `steps` is the address of their records.

        A record is `STEP_WORDS` int64: the kernel's address, its pointer table, thread 0's scratch, the bytes between
        the scratch of two threads, and the words of `group.step_rows`. `held` owns the memory to which the records
        point: it lives as long as a call that was bound to it.
        """
        crew = self._crew or self._assemble_crew()  # held here: the block lives as long as anybody is inside
        self._native.run(crew.block, steps, count)

    def run_alone(self, steps: int, count: int, held: object = None) -> None:
        """Runs steps as `run`, by the caller alone: no worker is woken, and other jobs are not waited for."""
        self._native.run(0, steps, count)

    def bench(self, steps: int, count: int, repeats: int, alone: bool = False) -> npt.NDArray[np.float64]:
        """Runs a job as `run` or `run_alone` does, `repeats` times natively, and returns the seconds of each run.

        The clock is the CPU's own counter (TSC, CNTVCT) between serialising instructions. Each figure has about 20 ns
        of overhead, and steps of 1–10 ns on x86-64 (10 on Zen) and 1–40 ns on AArch64. The scale is calibrated against
        the monotonic clock to about 1e-4.
        """
        return self._timed(steps, count, repeats, 1, alone)[:, 0]

    def profile(self, steps: int, count: int, repeats: int) -> npt.NDArray[np.float64]:
        """Returns seconds as `bench`, by run and step, for a job with every step in a group of its own.

        Reading the clock adds its 20 ns to every step.
        """
        return self._timed(steps, count, repeats, count)

    def account(self, steps: int, sizes: Sequence[int], repeats: int) -> Account:
        """Returns seconds by run and step, and the activity of the threads, of a job with groups of `sizes` steps.

        Reading the clocks adds half a microsecond to every group. The steps of a group divide its time in proportion to
        the time that threads spend in them.
        """
        count = sum(sizes)
        entries = np.zeros((repeats, self.threads, count, 3), np.int64)
        ticks = self._ticks(steps, count, repeats, count, entries.ctypes.data)
        if self.threads == 1:
            seconds = np.diff(ticks, axis=1) * _seconds_per_tick()
            _, busy, on = np.moveaxis(entries[: len(ticks), 0], -1, 0).astype(np.float64)
            off = np.clip(busy * _seconds_per_tick() - on * 1e-9, 0.0, seconds)
            return Account(seconds, np.zeros_like(seconds), seconds, off)
        ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        firsts, group = ends[:-1], np.repeat(np.arange(len(sizes)), sizes)
        began, _, on = np.moveaxis(entries[: len(ticks), :, firsts], -1, 0).astype(np.float64)
        late = np.where(began > 0, began - ticks[:, None, firsts], 0.0).mean(axis=1) * _seconds_per_tick()
        busy = entries[: len(ticks), ..., 1] * _seconds_per_tick()
        together = np.add.reduceat(busy, firsts, axis=2) if len(sizes) else busy
        off = np.maximum(together - on * 1e-9, 0.0).mean(axis=1)
        busy, together = busy.mean(axis=1), together.mean(axis=1)[:, group]
        share = np.divide(busy, together, out=1.0 / np.asarray(sizes, float)[group] + 0 * busy, where=together > 0)
        seconds = np.diff(ticks[:, ends], axis=1) * _seconds_per_tick()
        return Account(seconds[:, group] * share, late[:, group] * share, busy, off[:, group] * share)

    def _timed(self, steps: int, count: int, repeats: int, parts: int, alone: bool = False) -> npt.NDArray[np.float64]:
        ticks = self._ticks(steps, count, repeats, parts, alone=alone)
        seconds: npt.NDArray[np.float64] = np.diff(ticks, axis=1) * _seconds_per_tick()
        return seconds

    def _ticks(
        self, steps: int, count: int, repeats: int, parts: int, account: int = 0, alone: bool = False
    ) -> npt.NDArray[np.int64]:
        """Returns the counter at the beginning of each run and at the ends of its parts.

        There are fewer runs than requested only when the interpreter is about to exit.
        """
        crew = self._crew or self._assemble_crew()
        ticks = np.zeros((repeats, parts + 1), np.int64)
        block = 0 if alone else crew.block
        done = self._native.bench(block, steps, count, repeats, ticks.ctypes.data, parts != 1, account)
        return ticks[:done]

    def pin(self) -> None:
        """Binds the calling thread and every worker to a CPU of its own, if there are enough: for processes that
        measure.

        Without it two threads sometimes wake up on one CPU and share it for tens of milliseconds, which halves all
        timings.
        """
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
        if self.threads > len(cpus):
            return
        crew = self._crew or self._assemble_crew()
        for cpu, thread in zip(cpus, (0, *(worker.native_id or 0 for worker in crew.workers))):
            os.sched_setaffinity(thread, {cpu})

    def _assemble_crew(self) -> _Crew:
        with self._starting:
            if self._crew is None:
                self._crew = _Crew(self._native, self.settings, self.cpus)
            return self._crew

    def _retire_crew(self, deadline: float) -> None:
        """Retires the workers at exit: later callers (other exit handlers) do all the work of a job themselves."""
        with self._starting:
            crew, self._crew = self._crew, _Crew(self._native, PoolSettings(1))
        if crew is not None:
            crew.hush(deadline)

    def _forget_crew(self) -> None:
        """Resets the pool in a forked child: the workers are absent, and absent threads may hold its locks."""
        self._crew = None
        self._starting = threading.Lock()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        crew: _Crew | None = getattr(self, "_crew", None)
        if crew is not None and not is_finalizing():
            crew.stop()  # cannot wait: a running job would hold a reference to the pool


_shared_pools: dict[PoolSettings, Pool] = {}


def shared_pool(threads: int, spin: float | None = None, affinity: object = None) -> Pool:
    """Returns the process's pool with these settings, created at the first request; do not close it. Raises
    UserError.
    """
    settings = PoolSettings.of(threads, spin, affinity)
    pool = _shared_pools.get(settings)
    if pool is None:
        made = Pool(threads, spin=spin, affinity=affinity)
        pool = _shared_pools.setdefault(settings, made)  # the loser of a race has started no thread yet
    return pool


def pool_for(threads: int, spin: float | None = None, affinity: object = None, pool: Pool | str | None = None) -> Pool:
    """Returns the requested pool: the process's, the model's "own", or a pool of the caller's. Raises UserError."""
    if pool is None or pool == "shared":
        return shared_pool(threads, spin, affinity)
    if pool == "own":
        return Pool(threads, spin=spin, affinity=affinity)
    if not isinstance(pool, Pool):
        raise UserError(f"pool={pool!r:.60}; give 'shared', 'own', or a pool, sd.Pool(threads=2)")
    if spin is not None or affinity is not None:
        raise UserError(
            "spin= and affinity= of a pool that exists are settled: give them to sd.Pool(…), not with pool="
        )
    if threads != pool.threads:
        raise UserError(f"threads={threads}, and the pool has {pool.threads}: leave out threads=, or give another pool")
    return pool


class _Crew:
    """The workers of one pool in one process, and the control block they share (address 0: the caller works alone)."""

    def __init__(self, native: SimpleNamespace, settings: PoolSettings, cpus: Sequence[int] = ()) -> None:
        threads = settings.threads
        self._native = native
        self._memory = 0
        self.block = 0
        self.workers: list[threading.Thread] = []
        if threads == 1:
            return
        # Not Python's memory: it must outlive the interpreter, whose exit does not stop the workers.
        self._memory = _raw_calloc(1, block_bytes(threads) + BLOCK_ALIGN)
        if not self._memory:
            raise MemoryError
        self.block = -(-self._memory // BLOCK_ALIGN) * BLOCK_ALIGN
        numbers = {
            THREADS_OFFSET: threads,
            SPIN_TICKS_OFFSET: round(settings.spin_seconds / _seconds_per_tick()),
            SPREAD_OFFSET: not cpus and not settings.is_crowded,
            HOME_OFFSET: cpus[0] + 1 if cpus else 0,
        }
        for offset, number in numbers.items():
            ctypes.c_int64.from_address(self.block + offset).value = number
        try:
            for t in range(1, threads):
                worker = threading.Thread(target=self._enter, args=(t,), name=f"stormdrop-{t}", daemon=True)
                worker.start()
                self.workers.append(worker)
                if cpus:
                    os.sched_setaffinity(worker.native_id or 0, {cpus[t]})
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                raise UserError(f"cannot start {threads} threads ({error}); set STORMDROP_THREADS to fewer") from error
            if isinstance(error, OSError):
                raise UserError(
                    f"cannot keep threads on CPUs {cpu_text(cpus)}: {error}; give affinity='none'"
                ) from error
            raise

    def _enter(self, t: int) -> None:
        """Runs worker `t` until the crew is stopped."""
        self._native.worker(self.block, t)

    def stop(self) -> None:
        if self.block:
            self._native.stop(self.block)

    def hush(self, deadline: float) -> None:
        """Lets the running job end (a timing loop, its current run) and no other begin: the mutex stays locked."""
        if not self.block:
            return
        ctypes.c_int32.from_address(self.block + HURRY_OFFSET).value = 1
        while not self._native.try_lock(self.block) and time.monotonic() < deadline:
            time.sleep(1e-4)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._memory and not is_finalizing():
            _raw_free(self._memory)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._forget_crew()


def _at_exit() -> None:
    # A daemon thread's job may be using arrays that the interpreter is about to free.
    deadline = time.monotonic() + EXIT_GRACE_SECONDS
    for pool in list(_pools):
        pool._retire_crew(deadline)


# ---- native code ------------------------------------------------------------------------------------------------

_raw_calloc: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(
    ("PyMem_RawCalloc", ctypes.pythonapi)
)
_raw_free: Any = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))


_POINTER, _I64, _I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "run": (None, _POINTER, _POINTER, _I64),
    "bench": (_I64, _POINTER, _POINTER, _I64, _I64, _POINTER, _I32, _POINTER),
    "worker": (None, _POINTER, _I64),
    "stop": (None, _POINTER),
    "try_lock": (_I32, _POINTER),
    "ticks": (_I64,),
    "float_mode": (_I64,),
    "set_float_mode": (None, _I64),
}
"""Functions of `pool_ir` with the types of their results and arguments."""


@cache
def _native() -> SimpleNamespace:
    """Returns the functions of `pool_ir`, which release the GIL, compiled and loaded for this machine (25 ms).

    The result also holds the code, which must outlive the functions. Threads that race here each get valid functions.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise UserError(
            f"kernels run on Linux on {' or '.join(MACHINES)}; this is {sys.platform} on {machine}, for which the "
            "thread pool lacks the futex call and the cycle counter"
        )
    from stormdrop.codegen.llvm import AnyOf, Code, assemble, host  # 0.1 s, and not there on every platform

    code = Code(assemble(pool_ir(machine), AnyOf(host()[0])))
    functions = {name: ctypes.CFUNCTYPE(*kinds)(code.address(name)) for name, kinds in _SIGNATURES.items()}
    os.register_at_fork(after_in_child=_after_fork_in_child)
    atexit.register(_at_exit)
    return SimpleNamespace(code=code, **functions)


@cache
def _seconds_per_tick() -> float:
    """Returns the duration of a tick of the CPU's counter, measured over 10 ms.

    The clock call's jitter is well below 1 µs.
    """
    native = _native()

    def moment() -> tuple[int, int]:
        """Returns the counter and the clock at the same time: the closest of a few pairs."""
        pairs: list[tuple[int, int, int]] = []
        for _ in range(8):
            before = time.perf_counter_ns()
            ticks = native.ticks()
            after = time.perf_counter_ns()
            pairs.append((after - before, ticks, (before + after) // 2))
        return min(pairs)[1:]

    start_ticks, start_ns = moment()
    time.sleep(0.01)
    end_ticks, end_ns = moment()
    return (end_ns - start_ns) * 1e-9 / (end_ticks - start_ticks)
