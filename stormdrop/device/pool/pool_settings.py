"""Settings of a thread pool: the number of its threads, their waiting, and their placement.

Each is an argument, else an environment variable, else a default (`docs/threads.md`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stormdrop.base.environment import variable
from stormdrop.base.errors import UserError
from stormdrop.device.cpus import Affinity, affinity_of, cpus_for
from stormdrop.device.threads import available_cpus, thread_count

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
