"""`stormdrop tune`: search for fast kernels for whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from stormdrop.cli import options
from stormdrop.cli.show_hint import print_show_hint
from stormdrop.cli.source import Source, source_options
from stormdrop.ir.shape import shapes_text
from stormdrop.report.console import heading, notes, print_pairs, say
from stormdrop.report.text import counted, expected_text, seconds_text, span_text, stored_text

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.tuning.events import Event
    from stormdrop.tuning.objectives import Objective
    from stormdrop.tuning.subject import Subject
    from stormdrop.tuning.tuned import Tuned

EARLY = 0.95
"""A search that spent less of its seconds seems to have ended early."""


@click.command(
    epilog="""\b
Examples:
  stormdrop tune resnet50.onnx                     ends by itself
  stormdrop tune resnet50.onnx --time 5m           again: goes on
  stormdrop tune a.onnx b.onnx --objective 5ms,12ms
  stormdrop tune zoo:mobilenet_v2 --trials 1000
  stormdrop tune m.onnx --shapes input=8x3x224x224 --threads 1
  stormdrop tune m.onnx --shapes x=1x64 --shapes x=8x64 --weights 1,3
  stormdrop tune resnet18.onnx --reuse only        what other models found
  stormdrop tune resnet50.onnx --time 1m --json | jq .in_model
""",
)
@partial(source_options, several=True)
@options.count("--trials", "Candidates to measure at most, of all tasks together.")
@options.duration(
    "--time", "seconds", help_text="Tune for at most so long, time for proofs included: 300, 90s, 5m, 1h."
)
@options.count("--patience", "End a task's search after so many trials without a gain of 1 %.  [default: 256]")
@click.option(
    "--objective",
    type=options.objective_of,
    default="latency",
    show_default=True,
    metavar="latency|speedup|T,T,…",
    help="Minimise the sum of latencies, their geometric mean, or the excess over a target for each model: 5ms,12ms.",
)
@click.option(
    "--weights",
    type=options.weights_of,
    metavar="W,W,…",
    help="Weights of the latencies in their sum, for each size of --shapes, or each MODEL.  [default: 1 each]",
)
@click.option(
    "--search", type=click.Choice(options.SEARCHES), default="storm+droplet", show_default=True, help="The strategy."
)
@click.option(
    "--reuse",
    type=click.Choice(options.REUSES),
    default="seed",
    show_default=True,
    help="Begin from related tasks' schedules; measure only these; or use none.",
)
@click.option("--donor", "donors", multiple=True, metavar="NAME", help="Reuse this model's only; may be repeated.")
@options.seed("the search and the data")
@options.kept
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; warnings are shown.")
@options.on_models
@click.pass_context
def tune(
    ctx: click.Context,
    sources: tuple[Source, ...],
    trials: int | None,
    seconds: float | None,
    patience: int | None,
    objective: Objective,
    weights: tuple[float, ...] | None,
    search: str,
    reuse: str,
    donors: tuple[str, ...],
    seed: int,
    store: options.StoreFile,
    quiet: bool,
    target_name: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Find fast kernels for MODELs (ONNX files or zoo:NAME) on this machine, and keep them in the store.

    Every task is measured; trials go to the tasks with the most expected gain per second. Without --trials or --time
    the search ends when another minute is expected to gain less than 0.5 %. Earlier measurements are not repeated.
    Ctrl-C ends the search with its results so far; a second one aborts. In the end each model is timed, tuned and
    untuned; schedules that make it slower are reverted. `stormdrop compile`, `run` and `bench` use the decisions.

    Several sizes of one MODEL that leaves dimensions open are tuned together: repeat --shapes.
    """
    from stormdrop.device.targets import peak_meter
    from stormdrop.report.logs import LogListener
    from stormdrop.report.objective import objective_json, target_of
    from stormdrop.report.progress import TuningProgress, print_tuned
    from stormdrop.tuning.events import Warned
    from stormdrop.tuning.objectives import TotalLatency, WeightedLatency
    from stormdrop.tuning.tune import MODEL_SETTINGS, TuneOptions
    from stormdrop.tuning.tune import tune as tune_subjects

    if len(sources) > 1 and sources[0].sizes:
        raise click.UsageError("--shapes gives several shapes of one input: tune one MODEL at several sizes")
    each = [at_size for source in sources for at_size in source.each_size()]
    if weights is not None:
        if not isinstance(objective, TotalLatency):
            raise click.UsageError("--weights are for --objective latency")
        if len(weights) != len(each):
            raise click.UsageError(f"--weights gives {len(weights)} weights for {len(each)} models or sizes")
        objective = WeightedLatency(weights)
    subjects = [_subject(at_size) for at_size in each]
    target = options.machine(target_name, threads)
    settings = MODEL_SETTINGS.on(target)
    chosen = TuneOptions(
        trials=trials,
        seconds=seconds,
        search=search,
        seed=seed,
        objective=objective,
        settings=settings if patience is None else replace(settings, patience=patience),
        rules=each[0].rules,
        reuse=reuse,
        donors=donors or None,
    )
    opened, meter = store.tune(), peak_meter(target)
    peak_gflops = meter.gflops()
    is_logged, logged = options.log_options(ctx).verbosity > 0, LogListener(peak_gflops)
    with TuningProgress(notes(), peak_gflops) as progress:

        def listen(event: Event) -> None:
            logged(event)
            if not is_logged and (not quiet or isinstance(event, Warned)):
                progress(event)

        tuned_models = tune_subjects(subjects, target, chosen, store=opened, listen=listen)
    peak_gflops = max(peak_gflops, meter.gflops())
    kept = str(opened.path) if opened is not None and opened.path is not None else None
    several = "models" if len(sources) > 1 else "sizes"
    shared = {"peak_gflops": peak_gflops, "store": kept, "objective": objective_json(objective, tuned_models)}
    trees = [
        {**tuned.to_json(), **shared, "in_model": None if tuned.in_model is None else tuned.in_model.to_json()}
        for tuned in tuned_models
    ]

    def print_text(console: Console) -> None:
        for number, (source, tuned) in enumerate(zip(sources * len(subjects), tuned_models)):
            if len(subjects) > 1:
                heading(console, tuned.name if len(sources) > 1 else f"{tuned.name} at {shapes_text(tuned.shapes)}")
            print_tuned(console, tuned, peak_gflops)
            if tuned.costliest is not None:
                print_show_hint(console, source, tuned.costliest.id)
            _print_summary(console, tuned, target_of(objective, number), is_alone=len(subjects) == 1)
        if len(subjects) > 1:
            heading(console, f"all {several}")
        _print_search(console, tuned_models, objective, kept, seconds)

    options.show(as_json, trees[0] if len(trees) == 1 else {several: trees}, print_text)


def _subject(source: Source) -> Subject:
    """Returns a model's tasks at one size. The graph as imported is not kept."""
    from stormdrop.tuning.subject import Subject

    opened = source.open()
    return Subject.of_model(opened.tuned_parts, opened.size_key(source))


def _print_summary(console: Console, tuned: Tuned, latency_target: float | None, is_alone: bool) -> None:
    """Prints the result of one model; with several models, its trials too."""
    from stormdrop.report.objective import gain_text, target_rows

    failed = [t for t in tuned.tasks if t.failure]
    if failed:
        names = ", ".join(f"{t.id} {t.label}" for t in failed)
        say(console, f"left as they are, since nothing of them could be timed: {names}")
    console.print()
    default = seconds_text(tuned.default_seconds)
    rows = [] if is_alone else [("trials", f"{tuned.trials}, {tuned.failed} failed")]
    rows.append(("estimated", f"{seconds_text(tuned.seconds)}, each kernel timed alone (defaults: {default})"))
    timed = tuned.in_model
    if timed is not None:
        untuned = seconds_text(timed.default_seconds)
        rows.append(("in-model", f"{seconds_text(timed.seconds)} (untuned: {untuned}), {gain_text(timed)}"))
    print_pairs(console, [*rows, *target_rows(latency_target, tuned)])
    if not is_alone:
        console.print()


def _print_search(
    console: Console, tuned_models: Sequence[Tuned], objective: Objective, kept: str | None, seconds: float | None
) -> None:
    """Prints the results that the models share: the search, its objective, the store."""
    from stormdrop.report.objective import objective_rows

    first = tuned_models[0]
    trials = f"{counted(first.trials, 'trial')}, {first.failed} failed, in " if len(tuned_models) == 1 else ""
    expected = "" if first.expected_gain is None else f"; {expected_text(first.expected_gain)}"
    not_kept = next((t.not_kept for t in tuned_models if t.not_kept), "")
    is_early = seconds is not None and first.stopped == "seconds" and first.tuning_seconds < EARLY * seconds
    ended = f"{first.stopped}{' (the rest was kept for proofs)' if is_early else ''}"
    rows = [
        *objective_rows(objective, tuned_models),
        ("search", f"{trials}{span_text(first.tuning_seconds)}; ended by: {ended}{expected}"),
        ("stored", stored_text(kept, not_kept)),
    ]
    print_pairs(console, rows)
