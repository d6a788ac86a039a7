"""`stormdrop tune`: search for fast kernels for a whole model."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from stormdrop.cli.op import SEARCHES, open_store
from stormdrop.cli.options import Duration, json_option, log_options, threads_option, verbosity_of
from stormdrop.cli.source import Source, source_options
from stormdrop.errors import StormdropError

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.compare.in_model import InModel
    from stormdrop.graph.partition import Partition
    from stormdrop.search.model_events import ModelEvent, TunedModel
    from stormdrop.space.rules import Rule


@click.command(
    short_help="Find fast kernels for a whole model.",
    epilog="""\b
Examples:
  stormdrop tune resnet50.onnx --time 5m           again: goes on
  stormdrop tune zoo:mobilenet_v2 --trials 1000
  stormdrop tune m.onnx --shapes input=8x3x224x224 --threads 1
  stormdrop tune resnet50.onnx --time 1m --json | jq .in_model
""",
)
@source_options
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Candidates to measure at most, of all tasks together.  [default: about 64 a task]",
)
@click.option("--time", "seconds", type=Duration(), metavar="T", help="Tune for at most so long: 300, 90s, 5m, 1h.")
@click.option(
    "--search", type=click.Choice(SEARCHES), default="storm+droplet", show_default=True, help="How to search."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S", help="Of the search and the data."
)
@click.option(
    "--store",
    "store_path",
    metavar="PATH",
    help="Where measurements are kept and found again; 'none': nowhere.  [default: in the user's cache directory]",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; warnings are shown.")
@threads_option
@json_option
@log_options
@click.pass_context
def tune(
    ctx: click.Context,
    source: Source,
    trials: int | None,
    seconds: float | None,
    search: str,
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
    rules, parts = source.rules, _parts(source)
    from stormdrop.report.console import notes, results
    from stormdrop.report.model_progress import print_tuned
    from stormdrop.runtime.host import detect
    from stormdrop.runtime.peak import PeakMeter
    from stormdrop.search.tune_model import tune_model

    target = detect(threads)
    console, store = notes(), open_store(store_path)
    meter = PeakMeter(target)
    peak_gflops = meter.gflops()
    with _Listener(console, peak_gflops, quiet, is_logged=verbosity_of(ctx).verbosity > 0) as listen:
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
        )
    peak_gflops = max(peak_gflops, meter.gflops())
    if not as_json:
        print_tuned(results(), tuned, peak_gflops)
    timed = _in_model(parts, tuned, console, quiet, rules)
    kept = str(store.path) if store is not None and store.path is not None else None
    if as_json:
        more = {"peak_gflops": peak_gflops, "store": kept, "in_model": timed.to_json() if timed is not None else None}
        click.echo(json.dumps({**tuned.to_json(), **more}, allow_nan=False))
    else:
        _print_summary(tuned, timed, kept)


def _parts(source: Source) -> Partition:
    return source.open().parts  # and nothing else of it: the graph as imported is not kept


class _Listener:
    """The live table or the log; warnings in any case."""

    def __init__(self, console: Console, peak_gflops: float, quiet: bool, is_logged: bool) -> None:
        from stormdrop.report.logs import ModelLogListener
        from stormdrop.report.model_progress import ModelProgress

        self._console = console
        self._logged = ModelLogListener(peak_gflops=peak_gflops)
        self._progress = None if quiet or is_logged else ModelProgress(console, peak_gflops)
        self._is_logged = is_logged

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def __call__(self, event: ModelEvent) -> None:
        from stormdrop.report.console import say
        from stormdrop.report.text import one_line
        from stormdrop.search.events import Warned

        self._logged(event)
        if self._progress is not None:
            self._progress(event)
        elif isinstance(event, Warned) and not self._is_logged:
            say(self._console, one_line(event.message, 500))


def _in_model(
    parts: Partition, tuned: TunedModel, console: Console, quiet: bool, rules: tuple[Rule, ...]
) -> InModel | None:
    """The model itself, tuned and untuned. What goes wrong here takes nothing from what was found."""
    from stormdrop.compare.in_model import in_model
    from stormdrop.report.console import say
    from stormdrop.report.text import one_line

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
    from stormdrop.report.console import print_pairs, results, say
    from stormdrop.report.text import counted, seconds_text, span_text

    console = results()
    failed = [t for t in tuned.tasks if t.failure]
    if failed:
        say(
            console,
            f"left as they are, since nothing of them could be timed: {', '.join(f'{t.id} {t.label}' for t in failed)}",
        )
    console.print()
    spent = (
        f"{counted(tuned.trials, 'trial')}, {tuned.failed} failed, in "
        f"{span_text(tuned.tuning_seconds)}; ended by: {tuned.stopped}"
    )
    estimated = (
        f"{seconds_text(tuned.seconds)}, each kernel timed alone (defaults: {seconds_text(tuned.default_seconds)})"
    )
    rows = [("search", spent), ("stored", kept or "nothing is kept"), ("estimated", estimated)]
    if timed is not None:
        gain = f"{timed.default_seconds / timed.seconds:.2f}x" if timed.seconds else ""
        rows.append(
            ("in-model", f"{seconds_text(timed.seconds)} (untuned: {seconds_text(timed.default_seconds)}), {gain}")
        )
    print_pairs(console, rows)
