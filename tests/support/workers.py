"""The processes of a measurer, to be watched or hurt."""

from __future__ import annotations

from stormdrop.measure.measurer import Measurer


def worker_pids(measurer: Measurer) -> tuple[int, ...]:
    """Those that run: the runner and the builders."""
    return tuple(worker.pid for worker in (measurer._runner, *measurer._builders) if worker.pid is not None)
