"""`stormdrop tune`: search for fast kernels for a whole model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from stormdrop.cli import options
from stormdrop.cli.op import open_store
from stormdrop.cli.source import Source, source_options
from stormdrop.errors import StormdropError
from stormdrop.report.console import notes, print_pairs, results, say
from stormdrop.report.text import counted, one_line, seconds_text, span_text

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.compare.in_model import InModel
    from stormdrop.graph.partition import Partition
    from stormdrop.search.model_events import ModelEvent, TunedModel
    from stormdrop.space.rules import Rule


@click.command(
    epilog="""\b
Examples:
  stormdrop tune resnet50.onnx --time 5m           again: goes on
  stormdrop tune zoo:mobilenet_v2 --trials 1000
  stormdrop tune m.onnx --shapes input=8x3x224x224 --threads 1
  stormdrop tune resnet18.onnx --reuse only        what other models found
  stormdrop tune resnet50.onnx --time 1m --json | jq .in_model
""",
)
@source_options
@options.count("--trials", "Candidates to measure at most, of all tasks together.  [default: about 64 a task]")
@options.duration("--time", "seconds", told="Tune for at most so long: 300, 90s, 5m, 1h.")
@click.option(
    "--search", type=click.Choice(options.SEARCHES), default="storm+droplet", show_default=True, help="How to search."
)
@click.option(
    "--reuse",
    type=click.Choice(options.REUSES),
    default="seed",
    show_default=True,
    help="Begin from related tasks' schedules; measure those alone; or use none.",
)
@click.option("--donor", "donors", multiple=True, metavar="NAME", help="Reuse this model's only; may be repeated.")
@options.seed("the search and the data")
@options.kept
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; warnings are shown.")
@options.on_models
@click.pass_context
def tune(
    ctx: click.Context,
    source: Source,
    trials: int | None,
    seconds: float | None,
    search: str,
    reuse: str,
    donors: tuple[str, ...],
    seed: int,
    store_path: str | None,
    quiet: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Find fast kernels for a MODEL (an ONNX file or zoo:NAME) on this machine, and keep them in the store.

    Every task is measured; most trials go to those in which the model spends its time. What earlier runs measured is
    not measured again. Ctrl-C ends the search with what is known by then; a second one aborts. `stormdrop compile`,
    `run` and `bench` take what the store knows.
    """
    rules, parts = source.rules, source.open().parts  # the graph as imported is not kept
    from stormdrop.report.logs import LogListener
    from stormdrop.report.model_progress import ModelProgress, print_tuned
    from stormdrop.runtime.host import detect
    from stormdrop.runtime.peak import PeakMeter
    from stormdrop.search.events import Warned
    from stormdrop.search.tune_model import tune_model

    target = detect(threads)
    console, store = notes(), open_store(store_path)
    meter = PeakMeter(target)
    peak_gflops = meter.gflops()
    is_logged, logged = options.log_options(ctx).verbosity > 0, LogListener(peak_gflops=peak_gflops)
    with ModelProgress(console, peak_gflops) as progress:

        def listen(event: ModelEvent) -> None:
            logged(event)
            if not is_logged and (not quiet or isinstance(event, Warned)):
                progress(event)

        tuned = tune_model(
            parts,
            target,
            trials=trials,
            seconds=seconds,
            search=search,
            seed=seed,
            store=store,
            listen=listen,
            rules=rules,
            reuse=reuse,
            donors=donors or None,
        )
    peak_gflops = max(peak_gflops, meter.gflops())
    if not as_json:
        print_tuned(results(), tuned, peak_gflops)
    timed = _in_model(parts, tuned, console, quiet, rules)
    kept = str(store.path) if store is not None and store.path is not None else None
    if as_json:
        more = {"peak_gflops": peak_gflops, "store": kept, "in_model": timed.to_json() if timed is not None else None}
        options.print_json({**tuned.to_json(), **more})
    else:
        _print_summary(tuned, timed, kept)


def _in_model(
    parts: Partition, tuned: TunedModel, console: Console, quiet: bool, rules: tuple[Rule, ...]
) -> InModel | None:
    """The model itself, tuned and untuned. What goes wrong here takes nothing from what was found."""
    from stormdrop.compare.in_model import in_model

    try:
        timed = partial(in_model, parts, tuned.target, tuned.schedules, tuned.defaults, rules=rules)
        if quiet:
            return timed()
        with console.status("") as status:
            return timed(tell=lambda text: status.update(text))
    except StormdropError as error:
        say(console, f"the model itself could not be timed: {one_line(str(error), 500)}")
        return None


def _print_summary(tuned: TunedModel, timed: InModel | None, kept: str | None) -> None:
    console = results()
    failed = [t for t in tuned.tasks if t.failure]
    if failed:
        names = ", ".join(f"{t.id} {t.label}" for t in failed)
        say(console, f"left as they are, since nothing of them could be timed: {names}")
    console.print()
    spent = f"{counted(tuned.trials, 'trial')}, {tuned.failed} failed, in {span_text(tuned.tuning_seconds)}"
    default = seconds_text(tuned.default_seconds)
    rows = [
        ("search", f"{spent}; ended by: {tuned.stopped}"),
        ("stored", kept or "nothing is kept"),
        ("estimated", f"{seconds_text(tuned.seconds)}, each kernel timed alone (defaults: {default})"),
    ]
    if timed is not None:
        gain = f"{timed.default_seconds / timed.seconds:.2f}x" if timed.seconds else ""
        untuned = seconds_text(timed.default_seconds)
        rows.append(("in-model", f"{seconds_text(timed.seconds)} (untuned: {untuned}), {gain}"))
    print_pairs(console, rows)
