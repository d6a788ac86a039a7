"""How the threads of a pool wait and where they run: arguments, else environment variables, else defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stormdrop.environment import variable
from stormdrop.errors import UserError
from stormdrop.runtime.cpus import Affinity, affinity_of, cpus_for
from stormdrop.runtime.threads import available_cpus, thread_count

# About what waking a sleeper costs. No sched_yield while spinning: threads that yield to each other can share one CPU
# for a quarter of a second beside an idle one (measured: 14 µs a region instead of 0.2); those that sleep part sooner.
SPIN_MICROSECONDS = 30.0
CROWDED_SPIN_MICROSECONDS = 2.0  # with more threads than CPUs a spinning thread keeps the one it waits for from running
MOST_SPIN_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`spin` is in microseconds, None for the default, which depends on how many CPUs there are for the threads."""

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
        """Raises UserError for values that have no meaning, in arguments or variables."""
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
        """The CPU of each thread, as this process may use them now; empty where they are the system's choice.

        A pool of one thread has no worker, and the caller goes where it likes. Raises UserError.
        """
        return cpus_for(self.affinity, self.threads) if self.threads > 1 else ()

    @property
    def is_crowded(self) -> bool:
        """Whether there are more threads than CPUs."""
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
        told = f"0 (sleep at once) to {MOST_SPIN_MICROSECONDS:,.0f}; the default is {SPIN_MICROSECONDS:g}"
        raise UserError(f"{name} is {value!r:.60}; give a number of microseconds, {told}")
    return number
