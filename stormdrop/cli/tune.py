"""`stormdrop tune`: search for fast kernels for whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from stormdrop.base.errors import StormdropError
from stormdrop.cli import options
from stormdrop.cli.op import open_store
from stormdrop.cli.show_hint import print_show_hint
from stormdrop.cli.source import Source, source_options
from stormdrop.ir.shape import shapes_text
from stormdrop.report.console import heading, notes, print_pairs, results, say
from stormdrop.report.text import counted, expected_text, one_line, seconds_text, span_text, stored_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from stormdrop.graph.partition import Partition
    from stormdrop.space.rules import Rule
    from stormdrop.store.store import Store
    from stormdrop.store.verdict import Verdict
    from stormdrop.tuning.goal import Goal
    from stormdrop.tuning.model_events import ModelEvent, TunedModel

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
@options.duration("--time", "seconds", told="Tune for at most so long, time for proofs included: 300, 90s, 5m, 1h.")
@options.count("--patience", "End a task's search after so many trials without a gain of 1 %.  [default: 256]")
@click.option(
    "--objective",
    "goal",
    type=options.goal_of,
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
    goal: Goal,
    weights: tuple[float, ...] | None,
    search: str,
    reuse: str,
    donors: tuple[str, ...],
    seed: int,
    store_path: str | None,
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
    from stormdrop.tuning.goal import TotalLatency, WeightedLatency

    if len(sources) > 1 and sources[0].sizes:
        raise click.UsageError("--shapes gives several shapes of one input: tune one MODEL at several sizes")
    each = [at_size for source in sources for at_size in source.each_size()]
    if weights is not None:
        if not isinstance(goal, TotalLatency):
            raise click.UsageError("--weights are for --objective latency")
        if len(weights) != len(each):
            raise click.UsageError(f"--weights gives {len(weights)} weights for {len(each)} models or sizes")
        goal = WeightedLatency(weights)
    rules = each[0].rules
    read = [_read(at_size) for at_size in each]
    models, keys = [parts for parts, _ in read], [key for _, key in read]
    from stormdrop.device.targets import peak_meter
    from stormdrop.report.logs import LogListener
    from stormdrop.report.model_progress import ModelProgress, print_tuned
    from stormdrop.report.objective import objective_json, target_of
    from stormdrop.tuning.events import Warned
    from stormdrop.tuning.tune_model import MODEL_SETTINGS, tune_models

    target = options.machine(target_name, threads)
    settings = MODEL_SETTINGS.on(target)
    console, store = notes(), open_store(store_path)
    decided: list[Verdict] = []
    meter = peak_meter(target)
    peak_gflops = meter.gflops()
    is_logged, logged = options.log_options(ctx).verbosity > 0, LogListener(peak_gflops=peak_gflops)
    with ModelProgress(console, peak_gflops) as progress:

        def listen(event: ModelEvent) -> None:
            logged(event)
            if not is_logged and (not quiet or isinstance(event, Warned)):
                progress(event)

        found = tune_models(
            models,
            target,
            trials=trials,
            seconds=seconds,
            goal=goal,
            search=search,
            seed=seed,
            store=store,
            listen=listen,
            rules=rules,
            reuse=reuse,
            donors=donors or None,
            settings=settings if patience is None else replace(settings, patience=patience),
            decided=decided,
        )
    peak_gflops = max(peak_gflops, meter.gflops())
    kept = str(store.path) if store is not None and store.path is not None else None
    accepted = [
        _accepted(parts, tuned, store, console, quiet, rules, decided, key)
        for parts, tuned, key in zip(models, found, keys)
    ]
    several = "models" if len(sources) > 1 else "sizes"
    if not as_json:
        for number, (source, tuned) in enumerate(zip(sources, accepted)):
            if len(accepted) > 1:
                heading(results(), tuned.name if len(sources) > 1 else f"{tuned.name} at {shapes_text(tuned.shapes)}")
            print_tuned(results(), tuned, peak_gflops)
            if tuned.costliest is not None:
                print_show_hint(results(), source, tuned.costliest.id)
            _print_summary(tuned, target_of(goal, number), is_alone=len(accepted) == 1)
        _print_search(accepted, goal, kept, seconds, several)
    if as_json:
        objective = objective_json(goal, accepted)
        shared = {"peak_gflops": peak_gflops, "store": kept, "objective": objective}
        reports = [
            {**tuned.to_json(), **shared, "in_model": None if tuned.in_model is None else tuned.in_model.to_json()}
            for tuned in accepted
        ]
        options.print_json(reports[0] if len(reports) == 1 else {several: reports})


def _read(source: Source) -> tuple[Partition, str]:
    """Returns a model's tasks at one size, and the key of the size. The graph as imported is not kept."""
    opened = source.open()
    return opened.tuned_parts, opened.size_key(source)


def _accepted(
    parts: Partition,
    tuned: TunedModel,
    store: Store | None,
    console: Console,
    quiet: bool,
    rules: tuple[Rule, ...],
    decided: Sequence[Verdict],
    key: str,
) -> TunedModel:
    """Returns the schedules that the model itself accepts. A failure here does not affect the results of the search."""
    from stormdrop.report.live import StatusLine
    from stormdrop.tuning.in_model import accept, kept_in, verdicts_of

    try:
        timed = partial(accept, parts, tuned, store, rules=rules, decided=decided, size=key)
        if quiet:
            return timed()
        with StatusLine(console) as line:  # without a thread of its own, which the timing would notice
            return timed(tell=line.tell)
    except StormdropError as error:
        say(console, f"the model itself could not be timed: {one_line(str(error), 500)}")
        return tuned if store is None else kept_in(store, tuned, verdicts_of(tuned, decided))


def _print_summary(tuned: TunedModel, latency_target: float | None, is_alone: bool) -> None:
    """Prints the result of one model; with several models, its trials too."""
    from stormdrop.report.gain import gain_text
    from stormdrop.report.objective import target_rows

    console = results()
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
    found: Sequence[TunedModel], goal: Goal, kept: str | None, seconds: float | None, several: str
) -> None:
    """Prints the results that the models share: the search, its objective, the store."""
    from stormdrop.report.objective import objective_rows

    first = found[0]
    trials = f"{counted(first.trials, 'trial')}, {first.failed} failed, in " if len(found) == 1 else ""
    expected = "" if first.expected_gain is None else f"; {expected_text(first.expected_gain)}"
    not_kept = next((t.not_kept for t in found if t.not_kept), "")
    is_early = seconds is not None and first.stopped == "seconds" and first.tuning_seconds < EARLY * seconds
    ended = f"{first.stopped}{' (the rest was kept for proofs)' if is_early else ''}"
    rows = [
        *objective_rows(goal, found),
        ("search", f"{trials}{span_text(first.tuning_seconds)}; ended by: {ended}{expected}"),
        ("stored", stored_text(kept, not_kept)),
    ]
    if len(found) > 1:
        heading(results(), f"all {several}")
    print_pairs(results(), rows)
