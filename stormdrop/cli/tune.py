"""`stormdrop tune`: search for fast kernels for whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from stormdrop.cli import options
from stormdrop.cli.op import open_store
from stormdrop.cli.source import Source, source_options
from stormdrop.errors import StormdropError
from stormdrop.report.console import heading, notes, print_pairs, results, say
from stormdrop.report.text import counted, expected_text, one_line, seconds_text, span_text, stored_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from stormdrop.graph.partition import Partition
    from stormdrop.reservoir.store import Store
    from stormdrop.reservoir.verdict import Verdict
    from stormdrop.search.goal import Goal
    from stormdrop.search.model_events import ModelEvent, TunedModel
    from stormdrop.space.rules import Rule

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
    help="Minimise the sum of latencies, their geometric mean, or what exceeds a target for each model: 5ms,12ms.",
)
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
    sources: tuple[Source, ...],
    trials: int | None,
    seconds: float | None,
    patience: int | None,
    goal: Goal,
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

    Every task is measured; trials go where they are expected to gain most per second. Without --trials or --time the
    search ends when another minute is expected to gain less than 0.5 %. What earlier runs measured is not measured
    again. Ctrl-C ends the search with what is known by then; a second one aborts. In the end each model is timed, tuned
    and untuned; what makes it slower is reverted. `stormdrop compile`, `run` and `bench` take what was decided.
    """
    rules, models = sources[0].rules, [source.open().parts for source in sources]  # graphs as imported are not kept
    from stormdrop.driver.tune import learn
    from stormdrop.report.logs import LogListener
    from stormdrop.report.model_progress import ModelProgress, print_tuned
    from stormdrop.report.objective import objective_json, target_of
    from stormdrop.runtime.targets import peak_meter
    from stormdrop.search.events import Warned
    from stormdrop.search.tune_model import MODEL_SETTINGS, tune_models

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
    accepted = [_accepted(parts, tuned, store, console, quiet, rules, decided) for parts, tuned in zip(models, found)]
    if not as_json:
        for number, tuned in enumerate(accepted):
            if len(accepted) > 1:
                heading(results(), tuned.name)
            print_tuned(results(), tuned, peak_gflops)
            _print_summary(tuned, target_of(goal, number), is_alone=len(accepted) == 1)
        _print_search(accepted, goal, kept, seconds)
    if store is not None:
        with console.status("learning from what was measured"):
            learn(store, target, lambda told: say(console, one_line(told, 500)))
    if as_json:
        objective = objective_json(goal, accepted)
        shared = {"peak_gflops": peak_gflops, "store": kept, "objective": objective}
        reports = [
            {**tuned.to_json(), **shared, "in_model": None if tuned.in_model is None else tuned.in_model.to_json()}
            for tuned in accepted
        ]
        options.print_json(reports[0] if len(reports) == 1 else {"models": reports})


def _accepted(
    parts: Partition,
    tuned: TunedModel,
    store: Store | None,
    console: Console,
    quiet: bool,
    rules: tuple[Rule, ...],
    decided: Sequence[Verdict],
) -> TunedModel:
    """What the model itself accepts. What goes wrong here takes nothing from what was found."""
    from stormdrop.driver.in_model import accept, kept_in, verdicts_of

    try:
        timed = partial(accept, parts, tuned, store, rules=rules, decided=decided)
        if quiet:
            return timed()
        with console.status("") as status:
            return timed(tell=lambda text: status.update(text))
    except StormdropError as error:
        say(console, f"the model itself could not be timed: {one_line(str(error), 500)}")
        return tuned if store is None else kept_in(store, tuned, verdicts_of(tuned, decided))


def _print_summary(tuned: TunedModel, latency_target: float | None, is_alone: bool) -> None:
    """What one model came to; beside others, its trials too."""
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
        gain = f"{timed.default_seconds / timed.seconds:.2f}x" if timed.seconds else ""
        untuned = seconds_text(timed.default_seconds)
        rows.append(("in-model", f"{seconds_text(timed.seconds)} (untuned: {untuned}), {gain}"))
    print_pairs(console, [*rows, *target_rows(latency_target, tuned)])
    if not is_alone:
        console.print()


def _print_search(found: Sequence[TunedModel], goal: Goal, kept: str | None, seconds: float | None) -> None:
    """What the models share: the search, its objective, the store."""
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
        heading(results(), "all models")
    print_pairs(results(), rows)
