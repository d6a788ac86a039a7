"""How to search: everything about tuning that is not a tuned value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stormdrop.cost.model import CostSettings
from stormdrop.search.droplet import DropletSettings
from stormdrop.search.storm import StormSettings
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

GPU_BATCH = 16
"""Of a droplet. Building one candidate for a GPU takes a fifth of a second and timing it a hundredth: where there are
as many CPUs, sixteen are built in the time of one."""


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Budgets are arguments of `tune`; these are the habits of the search."""

    batch: int = 64
    """Candidates that are built together; a droplet asks for fewer."""
    storm_trials: int = 300
    """Where droplets take over from the storm, at the latest."""
    storm_patience: int = 128
    """Droplets take over after so many trials of the storm without a gain of `gain`. On recorded tables this saves a
    fifth to a third of a search's trials and costs nothing (`python -m benchmarks.stopping`)."""
    storm_share: float = 0.7
    """Of a budget that is too small for both."""
    patience: int | None = None
    """Stop after this many trials without a gain of `gain`; None: never."""
    gain: float = 0.005
    finalists: int = 5
    """That challenge the incumbent in the end; it stays unless one of them is faster by `gain`, beyond chance."""
    known: int = 8
    """The store's best schedules of the task, measured again at the start."""
    donated: int = 10
    """Candidates from other tasks' schedules that are measured at the start: so many by the cost model, and the nearest
    task's."""
    opening_batch: int = 4
    """So many of them are built together: few, so that the most promising ones are timed before the others are built,
    which takes seconds where they are Winograd convolutions."""
    reuse_trials: int = 24
    """Of the droplet from the best of other tasks' schedules: before the storm, or where these alone are used."""
    training_rows: int = 20_000
    """The cost model starts from so many of the store's measurements, a sample of all tasks."""
    storm: StormSettings = field(default_factory=StormSettings)
    droplet: DropletSettings = field(default_factory=DropletSettings)
    cost: CostSettings = field(default_factory=CostSettings)

    def on(self, target: Target) -> TuneSettings:
        """These settings, with what suits this target."""
        if not isinstance(target, Gpu):
            return replace(self, opening_batch=max(self.opening_batch, 2 * target.threads))
        droplet = replace(self.droplet, batch=max(GPU_BATCH, self.droplet.batch))
        return replace(self, opening_batch=max(GPU_BATCH, self.opening_batch), droplet=droplet)
