"""`stormdrop calibrate`: the estimate that picks default schedules, fitted to this machine."""

from __future__ import annotations

import click

from stormdrop.cli import options
from stormdrop.report.console import notes, say


@click.command(
    epilog="""\b
Examples:
  stormdrop calibrate                         measure rates, fit to what was measured here
  stormdrop calibrate zoo:resnet50 m.onnx     and time default schedules before and after
  stormdrop calibrate --reset                 back to nominal coefficients
""",
)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--reset", is_flag=True, help="Forget fitted coefficients; measured rates stay.")
@click.option("--fresh", is_flag=True, help="Measure the rates again, even if they are known.")
@options.kept
@options.threads
@options.as_json
def calibrate(
    models: tuple[str, ...], reset: bool, fresh: bool, store: options.StoreFile, threads: int | None, as_json: bool
) -> None:
    """Fit the estimate of kernels to this machine: it picks default schedules, and the first candidates of a search.

    Rates are measured (see `stormdrop peak`). Coefficients are fitted to the trials of this machine in the store, and
    kept only if they order programs of tasks outside the fit better.
    """
    from stormdrop.doctor.calibrate import calibrate
    from stormdrop.report.machine import print_calibration

    done = calibrate(threads, store.tune(), models, fresh, reset, lambda text: say(notes(), text))
    options.show(as_json, done.to_json(), lambda console: print_calibration(console, done))
