"""`stormdrop store …`: look at measurements, move them, tidy them up."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.cli.options import StoreFile
from stormdrop.cli.source import Source, source_options
from stormdrop.report.console import notes, say
from stormdrop.report.text import bytes_text, clean, counted, one_line

if TYPE_CHECKING:
    from stormdrop.store.store import Filters, Imported, Store

EXAMPLES = """\b
Examples:
  stormdrop store ls                                the content, one line for each task
  stormdrop store best "C2D 1 56 56 64 64 3 1 1"    the fastest schedule of a task
  stormdrop store donors zoo:resnet18               the tasks with schedules that help this model
  stormdrop store export trials.jsonl               everything, as lines of JSON
  stormdrop store import trials.jsonl               take over measurements of another installation
  stormdrop store prune --max-size 200MB            remove the oldest trials
  stormdrop store forget 3fa9c1                     remove the decisions for a task
"""
SHOWN_REFUSALS = 20
SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
AGES = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, "y": 365 * 86400.0}


def filter_options(command: Any) -> Any:
    machine = click.option("--machine", "target", metavar="KEY", help="Only this machine's, named as `ls` prints it.")
    cold = click.option("--cold/--warm", "cold", default=None, help="Only trials with weights out of cache, or in it.")
    return machine(cold(command))


@click.group(epilog=EXAMPLES)
def store() -> None:
    """Look at measurements, move them, tidy them up.

    Every trial of every search is kept in one file, with its task, its schedule, the machine and the versions of its
    measurement. Later searches begin from it, and so does the cost model.
    """


@store.command(
    short_help="The path of the store.",
    epilog="\b\nExamples:\n  stormdrop store path\n  du -h $(stormdrop store path)\n",
)
@options.stored
@options.as_json
def path(store: StoreFile, as_json: bool) -> None:
    """Print the path of the store, existing or not."""
    place = store.place
    tree = {"path": str(place), "exists": place.exists()}
    options.show(as_json, tree, lambda _: click.echo(str(place).encode("utf-8", "surrogateescape")))


@store.command(
    short_help="The size of the store.", epilog="\b\nExamples:\n  stormdrop store size\n  stormdrop store size --json\n"
)
@options.stored
@options.as_json
def size(store: StoreFile, as_json: bool) -> None:
    """Print the size of the store, and the numbers of its trials and tasks."""
    from stormdrop.report.store import print_size, size_of

    with store.view() as opened:
        tree = size_of(opened, store.place)
    options.show(as_json, tree, lambda console: print_size(console, tree))


@store.command(
    short_help="The content: one line for each task.",
    epilog="""\b
Examples:
  stormdrop store ls
  stormdrop store ls --cold
  stormdrop store ls --model resnet18               what was measured while it was tuned
  stormdrop store ls --json | jq '.tasks[] | select(.failed > 0)'
""",
)
@click.option("--model", metavar="NAME", help="Only tasks that were measured while this model was tuned.")
@options.stored
@filter_options
@options.as_json
def ls(model: str | None, store: StoreFile, target: str | None, cold: bool | None, as_json: bool) -> None:
    """List tasks: one line for each task, machine and temperature, the last measured task at the end.

    The best time is the time of a verified winner; with a question mark, of a trial that is not verified yet. The
    verdict decides the schedule of `compile`: its method, and its speedup over the incumbent.
    """
    from stormdrop.report.store import print_summaries, summary_json
    from stormdrop.store.store import Filters
    from stormdrop.tuning.reuse import absent_donors

    with store.view() as opened:
        summaries = opened.summaries(Filters(target=target, cold=cold))
        if model is not None:
            absent_donors([model], opened)  # raises if there is no trial of it
            digests = opened.digests([model])
            summaries = [s for s in summaries if s.digest in digests]
    tree = {"tasks": [summary_json(s) for s in summaries]}
    options.show(as_json, tree, lambda console: print_summaries(console, summaries))


@store.command(
    short_help="The fastest schedule of a task, and its verdict.",
    epilog="""\b
Examples:
  stormdrop store best "GMM 1 512 512 512"
  stormdrop store best 3fa9c1                    the beginning of its digest, as `ls` prints it
  stormdrop store best 3fa9c1 --cold --json
""",
)
@click.argument("task")
@options.stored
@filter_options
@options.as_json
def best(task: str, store: StoreFile, target: str | None, cold: bool | None, as_json: bool) -> None:
    """Show the fastest known schedule of a TASK, given by name or by the beginning of its digest, on each machine.

    The verdict, if there is one, is shown too: the schedule of `compile`, its method, its incumbent, and its time.
    """
    from stormdrop.report.store import best_json, print_bests
    from stormdrop.store.store import Filters

    with store.view() as opened:
        wanted = Filters(task, target, cold)
        summaries = _summaries(opened, wanted)
        pairs = [(s, r, opened.verdict_of(s)) for s in summaries if (r := opened.best_of(s)) is not None]
    if not pairs:
        raise UserError(f"no trial of {task} could be timed, or all follow rules that this version does not know")
    tree = {"best": [best_json(s, r, v) for s, r, v in pairs]}
    options.show(as_json, tree, lambda console: print_bests(console, pairs))


def _summaries(opened: Store, wanted: Filters) -> list[Any]:
    """Returns the summaries of tasks. Raises UserError, with a suggestion, if there is none."""
    from difflib import get_close_matches

    if summaries := opened.summaries(wanted):
        return summaries
    near = get_close_matches(str(wanted.task), [s.name for s in opened.summaries()], 1)
    hint = "`stormdrop store ls` lists what it knows"
    if near and near[0] != wanted.task:
        hint = f"did you mean {near[0]!r}?"
    raise UserError(f"the store knows no such trials of {wanted.task}; {hint}")


@store.command(
    short_help="Write trials and verdicts as lines of JSON.",
    epilog="""\b
Examples:
  stormdrop store export trials.jsonl
  stormdrop store export --verified winners.jsonl
  stormdrop store export --task "GMM 1 512 512 512" | jq ".result.seconds // empty"
""",
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--task", metavar="TASK", help="Only this task's: its name, or the beginning of its digest.")
@click.option("--verified", is_flag=True, help="Only verified winners, and verdicts.")
@filter_options
@options.stored
@options.as_json
def export(
    file: str, task: str | None, verified: bool, store: StoreFile, target: str | None, cold: bool | None, as_json: bool
) -> None:
    """Write trials, then verdicts, to a FILE (default: stdout): a JSON object a line, for `import` anywhere."""
    from stormdrop.store.store import Filters

    if as_json and file == "-":
        raise click.UsageError("the lines themselves go to stdout: give a FILE to have a report with --json")
    wanted = Filters(task, target, cold, True if verified else None)
    with store.view() as opened:
        try:
            with click.open_file(file, "w", encoding="utf-8", atomic=True) as lines:
                trials, verdicts = (opened.export(lines, wanted, (kind,)) for kind in ("trial", "verdict"))
        except BrokenPipeError:
            raise  # click ends quietly if the reader has closed the pipe
        except OSError as error:
            raise UserError(f"{file} cannot be written: {error.strerror or error}") from error
    more = f" and {counted(verdicts, 'verdict')}" if verdicts else ""
    tree = {"exported": trials + verdicts, "verdicts": verdicts}
    options.show(as_json, tree, lambda _: click.echo(f"{counted(trials, 'trial')}{more} exported", err=True))


@store.command(
    name="import",
    short_help="Take over trials and verdicts from lines of JSON.",
    epilog="""\b
Examples:
  stormdrop store import trials.jsonl
  ssh laptop stormdrop store export | stormdrop store import -
  stormdrop store import --foreign other-machines.jsonl
""",
)
@click.argument("file", type=click.File("rb"))
@click.option("--foreign", is_flag=True, help="Also take measurements of other CPUs; they are kept apart.")
@options.stored
@options.as_json
def import_(file: BinaryIO, foreign: bool, store: StoreFile, as_json: bool) -> None:
    """Take over the trials and the verdicts of a FILE (`-`: stdin) that `export` wrote here or elsewhere.

    Known lines are skipped. A line that is neither a trial nor a verdict of this version is refused with its number and
    the reason; all other lines are kept. The exit code is 1 if any was refused. Imported verdicts are schedules for
    tuning to begin from: compiling uses only verdicts decided here.
    """
    with store.write() as opened:
        done = opened.import_(file, foreign=foreign)
    options.show(as_json, asdict(done), lambda _: _print_import(done))
    if done.refusals:
        raise SystemExit(1)


def _print_import(done: Imported) -> None:
    for refusal in done.refused[:SHOWN_REFUSALS]:
        click.echo(f"line {refusal.line}: {clean(refusal.reason)}", err=True)
    if done.refusals > SHOWN_REFUSALS:
        click.echo(f"and {done.refusals - SHOWN_REFUSALS} more", err=True)
    verdicts = f" ({counted(done.verdicts, 'verdict')})" if done.verdicts else ""
    click.echo(f"{done.kept} kept{verdicts}, {done.duplicates} known already, {done.refusals} refused")


@store.command(
    short_help="Forget old trials.",
    epilog="""\b
Examples:
  stormdrop store prune --max-size 200MB
  stormdrop store prune --older-than 90d
  stormdrop store prune --older-than 1y --winners
""",
)
@click.option(
    "--max-size",
    "max_bytes",
    type=options.quantity("a size", SIZES, "100MB, 1.5GiB or a number of bytes"),
    metavar="SIZE",
    help="Forget the oldest trials until it fits; winners go last.",
)
@click.option(
    "--older-than",
    "age",
    type=options.quantity("an age", AGES, "12h, 30d, 2w or 1y"),
    metavar="AGE",
    help="Forget trials of that age, but no verified winners.",
)
@click.option("--winners", is_flag=True, help="With --older-than: verified winners too.")
@options.stored
@options.as_json
def prune(max_bytes: float | None, age: float | None, winners: bool, store: StoreFile, as_json: bool) -> None:
    """Remove old trials, and return their space."""
    if max_bytes is None and age is None:
        raise click.UsageError("there is no limit: give --max-size SIZE, --older-than AGE, or both")
    if winners and age is None:
        raise click.UsageError("--winners goes with --older-than")
    from stormdrop.store.evict import Pruned, prune_file

    older_than = None if age is None else time.time() - age
    most = None if max_bytes is None else int(max_bytes)
    done = Pruned(0, 0, 0) if store.is_absent() else prune_file(store.place, most, older_than, winners)
    sizes = f"{bytes_text(done.before_bytes)} before, {bytes_text(done.after_bytes)} now"
    text = f"{counted(done.removed, 'trial')} forgotten; {sizes}"
    options.show(as_json, asdict(done), lambda _: click.echo(text))


@store.command(
    short_help="Remove the decisions for a task.",
    epilog="""\b
Examples:
  stormdrop store forget 3fa9c1                     its verdicts, for compiling as if never tuned
  stormdrop store forget "GMM 1 512 512 512" --trials --cold
""",
)
@click.argument("task")
@click.option("--trials", is_flag=True, help="Also remove its measurements.")
@options.stored
@filter_options
@options.as_json
def forget(task: str, trials: bool, store: StoreFile, target: str | None, cold: bool | None, as_json: bool) -> None:
    """Remove the decisions for a TASK, given by name or by the beginning of its digest.

    These are its own verdicts, and its part in verdicts of models. `compile` treats it as never tuned, until it is
    tuned anew. Trials stay unless --trials is given: the next tuning begins from them.
    """
    from stormdrop.store.store import Filters

    with store.write() as opened:
        done = opened.forget(_summaries(opened, Filters(task, target, cold)), with_trials=trials)
    more = f" and {counted(done.trials, 'trial')}" if trials else ""
    text = f"{counted(done.verdicts, 'verdict')}{more} of {task} forgotten"
    options.show(as_json, asdict(done), lambda _: click.echo(text))


@store.command(
    short_help="The tasks with schedules that help a model.",
    epilog="""\b
Examples:
  stormdrop store donors zoo:resnet18
  stormdrop store donors model.onnx --donor resnet50 --threads 1
""",
)
@source_options
@click.option("--donor", "donors", multiple=True, metavar="NAME", help="Of this model's only; may be repeated.")
@options.threads
@options.stored
@options.as_json
def donors(source: Source, donors: tuple[str, ...], threads: int | None, store: StoreFile, as_json: bool) -> None:
    """Show for each task of a MODEL the winners of other tasks from which `stormdrop tune` would begin.

    A winner of the task's class has the same stages, at other sizes; a winner of its anchor class has another epilogue.
    The distance is 1 for a factor of two in one extent. The score of a donor model depends on the shares of time of the
    classes for which it has winners.
    """
    from stormdrop.report.donors import donors_json, print_donors
    from stormdrop.tuning.donors import by_class, donor_models, donors_of_model
    from stormdrop.tuning.reuse import absent_donors

    with store.view() as opened:
        if warning := absent_donors(donors, opened):
            say(notes(), one_line(warning, 500))
        parts = source.open().parts
        target = options.machine(None, threads).with_weights(parts.constant_bytes)
        lines = donors_of_model(parts, target, opened, donors or None, source.rules)
    classes, models = by_class(lines), donor_models(lines)
    tree = donors_json(lines, classes, models)
    options.show(as_json, tree, lambda console: print_donors(console, lines, classes, models))
