"""Calibration: measure this machine's rates, fit the coefficients of its estimate, and show what that changes.

peak            multiply-adds and bandwidths (`device.peak`)
coefficients    fitted to the trials of this machine in the store (`space.fit`), and kept only if they order programs
                of tasks outside the fit better
models          compiled with default schedules before and after, and timed in turns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from stormdrop.compiler.choose import Choice
from stormdrop.compiler.compile import Source, read_graph, tasks_of
from stormdrop.compiler.model_build import build_model
from stormdrop.device.arrays import random_inputs
from stormdrop.device.calibration import calibrated, save_coefficients
from stormdrop.device.host import nominal
from stormdrop.device.peak import measure_peak
from stormdrop.graph.index_ranges import index_ranges
from stormdrop.graph.partition import Partition
from stormdrop.measure.stopwatch import race
from stormdrop.space.default import default_schedule
from stormdrop.space.fit import Fit, Observation, fit
from stormdrop.space.rules import RULES
from stormdrop.store.store import Store
from stormdrop.store.training import by_sketch
from stormdrop.target.coefficients import FITTED
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import Peak

MOST_TRIALS = 4000
RACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DefaultsTimed:
    """A model by default schedules, with the nominal estimate and with the calibrated one, timed in turns."""

    model: str
    tasks: int
    changed: int
    """The number of tasks with another default schedule now."""
    nominal_seconds: float
    calibrated_seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    nominal: Cpu
    calibrated: Cpu
    peak: Peak
    fit: Fit | None
    coefficients_reason: str
    """The origin of the calibrated coefficients, and the reason if they are the nominal ones."""
    models: tuple[DefaultsTimed, ...]

    def to_json(self) -> dict[str, object]:
        names = ("peak_gflops", "l2_gbs", "l3_gbs", "dram_gbs")
        rates = {n: [getattr(self.nominal, n), getattr(self.calibrated, n)] for n in names}
        both = self.nominal.coefficients, self.calibrated.coefficients
        return {
            "target": self.nominal.key(),
            "rates": rates,
            "coefficients": {n: [getattr(c, n) for c in both] for n in FITTED},
            "fit": None if self.fit is None else {n: v for n, v in asdict(self.fit).items() if n != "coefficients"},
            "told": self.coefficients_reason,
            "models": [asdict(m) for m in self.models],
        }


def calibrate(
    threads: int | None,
    store: Store | None,
    models: Sequence[Source] = (),
    fresh: bool = False,
    reset: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measures rates, fits coefficients, keeps both for `detect`, and times the models.

    `reset` forgets the coefficients instead.

    Raises UserError for a model that cannot be read, before anything is measured.
    """
    partitions = [tasks_of(read_graph(model)) for model in models]
    plain = nominal(threads)
    tell("measuring the peak")
    peak = measure_peak(plain, fresh)
    save_coefficients(plain, None)
    fitted, reason = None, "nominal, as asked for"
    if not reset:
        fitted, reason = _fitted(calibrated(plain), store, tell)
    if fitted is not None and fitted.is_better:
        save_coefficients(plain, fitted.coefficients)
    target = calibrated(plain)
    timed = tuple(_timed(parts, plain, target, tell) for parts in partitions)
    return Calibration(plain, target, peak, fitted, reason, timed)


def _fitted(target: Cpu, store: Store | None, tell: Callable[[str], None]) -> tuple[Fit | None, str]:
    trials = [] if store is None else store.measured(target, MOST_TRIALS)
    seconds = np.array([t.seconds for t in trials], np.float64)
    observations = [
        Observation(rows.sketch, rows.points, seconds[rows.indices], trials[rows.indices[0]].group)
        for rows in by_sketch(trials, target, RULES)
    ]
    tell(f"fitting to {sum(len(o.seconds) for o in observations)} trials")
    try:
        fitted = fit(target, observations)
    except ValueError as error:
        return None, f"nominal: {error}"
    if fitted.is_better:
        return fitted, f"fitted to {fitted.programs} programs of {fitted.tasks} tasks"
    return fitted, f"nominal: fitted to {fitted.programs} programs they would not order those of other tasks better"


def _timed(parts: Partition, plain: Cpu, target: Cpu, tell: Callable[[str], None]) -> DefaultsTimed:
    tell(f"timing {parts.graph.name}")
    before, after = (t.with_weights(parts.constant_bytes) for t in (plain, target))
    tasks = {call.task.digest: call.task for call in parts.calls}
    changed = sum(default_schedule(task, before) != default_schedule(task, after) for task in tasks.values())
    models = {name: build_model(parts, t, lambda task: Choice()) for name, t in (("nominal", before), ("now", after))}
    inputs = list(random_inputs(models["now"].inputs, ranges=index_ranges(parts.graph)).values())
    runs = race({name: lambda m=m: m(*inputs) for name, m in models.items()}, RACE_SECONDS)
    return DefaultsTimed(parts.graph.name, len(tasks), changed, *(runs[n].seconds for n in ("nominal", "now")))
