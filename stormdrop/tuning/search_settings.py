"""Settings of the search: every tuning parameter that is not itself a tuned value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.tuning.cost_model import CostSettings
from stormdrop.tuning.droplet import DropletSettings
from stormdrop.tuning.storm import StormSettings

GPU_BATCH = 16
"""The batch of a droplet on a GPU. Building one candidate for a GPU takes a fifth of a second and timing it a
hundredth. With as many CPUs, sixteen candidates are built in the time of one.
"""


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Budgets are arguments of `tune`; these are the habits of the search."""

    batch: int = 64
    """The number of candidates that are built together; a droplet requests fewer."""
    storm_trials: int = 300
    """The latest trial at which droplets take over from the storm."""
    storm_patience: int = 128
    """Droplets take over after so many trials of the storm without a gain of `gain`. On recorded tables this saves a
    fifth to a third of a search's trials and costs nothing (`python -m benchmarks.stopping`)."""
    storm_share: float = 0.7
    """The storm's share of a budget that is too small for both storm and droplets."""
    patience: int | None = None
    """The trials without a gain of `gain` after which the search stops; None: never."""
    gain: float = 0.005
    finalists: int = 5
    """The number of candidates that challenge the incumbent in the end. The incumbent stays unless a finalist is faster
    by `gain`, beyond chance.
    """
    known: int = 8
    """The store's best schedules of the task, measured again at the start."""
    donated: int = 10
    """Candidates from other tasks' schedules that are measured at the start: so many by the cost model, and the nearest
    task's."""
    opening_batch: int = 4
    """The number of opening candidates that are built together. Few, so that the most promising candidates are timed
    before the rest are built, which takes seconds for Winograd convolutions.
    """
    reuse_trials: int = 24
    """The trials of the droplet from the best of other tasks' schedules: before the storm, or alone if only reuse is
    wanted.
    """
    training_rows: int = 20_000
    """The cost model starts from so many of the store's measurements, a sample of all tasks."""
    storm: StormSettings = field(default_factory=StormSettings)
    droplet: DropletSettings = field(default_factory=DropletSettings)
    cost: CostSettings = field(default_factory=CostSettings)

    def on(self, target: Target) -> TuneSettings:
        """Returns these settings with the batches that suit a target."""
        if not isinstance(target, Gpu):
            return replace(self, opening_batch=max(self.opening_batch, 2 * target.threads))
        droplet = replace(self.droplet, batch=max(GPU_BATCH, self.droplet.batch))
        return replace(self, opening_batch=max(GPU_BATCH, self.opening_batch), droplet=droplet)
