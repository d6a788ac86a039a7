"""`stormdrop store donors`, `transfer`, `portfolio` and `learn`: what other tasks' schedules are good for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stormdrop.cli import options
from stormdrop.cli.source import Source, source_options
from stormdrop.errors import StormdropError, UserError
from stormdrop.report.console import notes, results, say
from stormdrop.report.text import one_line

if TYPE_CHECKING:
    from stormdrop.driver.transfers import TaskTransfer
    from stormdrop.graph.partition import Partition
    from stormdrop.reservoir.store import Store
    from stormdrop.reservoir.verdict import Verdict
    from stormdrop.space.rules import Rule
    from stormdrop.target.machine import Target

_told = "The store's file.  [default: reservoir.sqlite in STORMDROP_CACHE_DIR, else in the user's cache directory]"
store_option = options.output("--store", "path", metavar="PATH", told=_told)


def place_of(path: Path | None) -> Path:
    from stormdrop.reservoir.store import default_path

    return default_path() if path is None else path.absolute()


def viewed(path: Path | None) -> Store:
    """To look at. There need not be a store in the default place: then nothing is known."""
    from stormdrop.reservoir.store import Store

    place = place_of(path)
    return Store.in_memory() if path is None and not is_there(place) else Store.view(place)


def is_there(place: Path) -> bool:
    try:
        return place.exists()
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror or error}") from error


def written(store: Store, path: Path | None) -> Store:
    if store.is_memory:
        raise UserError(f"{place_of(path)} cannot be written")
    return store


@click.command(
    short_help="Whose schedules would help a model.",
    epilog="""\b
Examples:
  stormdrop store donors zoo:resnet18
  stormdrop store donors model.onnx --donor resnet50 --threads 1
""",
)
@source_options
@click.option("--donor", "donors", multiple=True, metavar="NAME", help="Of this model's only; may be repeated.")
@options.threads
@store_option
@options.as_json
def donors(source: Source, donors: tuple[str, ...], threads: int | None, path: Path | None, as_json: bool) -> None:
    """Show for each task of a MODEL which winners of other tasks `stormdrop tune` would begin from.

    A winner of the task's class has the same stages, at other sizes; one of its anchor class has another epilogue. The
    distance is 1 for a factor of two in one extent. The gain to expect is what trees learned from the store predict
    over the default schedule; without enough trials there is none. Donor models are scored by the shares of time of the
    classes that they have winners of.
    """
    from stormdrop.driver.transfers import by_class, donor_models
    from stormdrop.report.reuse import donors_json, print_donors

    with viewed(path) as opened:
        found = _transfers(source, donors or None, threads, opened)[2]
    classes, models = by_class(found), donor_models(found)
    tree = donors_json(found, classes, models)
    options.show(as_json, tree, lambda console: print_donors(console, found, classes, models))


def _transfers(
    source: Source, models: tuple[str, ...] | None, threads: int | None, opened: Store
) -> tuple[Partition, Target, list[TaskTransfer]]:
    from stormdrop.driver.model_build import suited
    from stormdrop.driver.transfers import transfers
    from stormdrop.reservoir.experience import load, path_beside
    from stormdrop.search.reuse import absent_donors

    if warning := absent_donors(models or (), opened):
        say(notes(), one_line(warning, 500))
    parts = source.open().parts
    target = suited(options.machine(None, threads), parts)
    learned = load(path_beside(opened.path, target), target) if opened.path is not None else None
    with notes().status("re-fitting") as status:

        def tell(text: str) -> None:
            status.update(f"re-fitting, {one_line(text)}")

        return parts, target, transfers(parts, target, opened, learned, models, source.rules, tell)


@click.command(
    short_help="From one model's schedules to another model.",
    epilog="""\b
Examples:
  stormdrop store transfer resnet50 zoo:resnet18              who would get what
  stormdrop store transfer resnet50 zoo:resnet18 --measure    and keep what wins
  stormdrop store transfer znver4/avx512/2 m.onnx --threads 1 from another machine
""",
)
@click.argument("origin", metavar="FROM")
@source_options
@click.option("--measure", is_flag=True, help="Time what is re-fitted beside the defaults, and keep what wins.")
@options.threads
@store_option
@options.as_json
def transfer(origin: str, source: Source, measure: bool, threads: int | None, path: Path | None, as_json: bool) -> None:
    """Show which tasks of a MODEL get a re-fitted schedule FROM another model, from which task, and the gain to expect.

    FROM is the name of a model that was tuned, or of a machine as `store ls` prints it. With --measure the re-fitted
    schedules are timed in turns with the default ones, what wins is proved and kept as a verdict, and the model itself
    is timed in the end.
    """
    from stormdrop.report.reuse import print_transfers, transfer_json
    from stormdrop.reservoir.store import Store

    with written(Store.open(path), path) if measure else viewed(path) as opened:
        parts, target, found = _transfers(source, (origin,), threads, opened)
        if not as_json:
            print_transfers(results(), found)
        tree: dict[str, object] = {"from": origin, "tasks": [transfer_json(line) for line in found]}
        if measure:
            tree |= _measured(parts, target, origin, opened, source.rules, as_json)
    if as_json:
        options.print_json(tree)


def _measured(
    parts: Partition, target: Target, origin: str, store: Store, rules: tuple[Rule, ...], is_quiet: bool
) -> dict[str, object]:
    """Let re-fitted schedules challenge the defaults; what the model accepts."""
    from stormdrop.driver.in_model import accept, kept_in, verdicts_of
    from stormdrop.driver.tune import learn
    from stormdrop.report.model_progress import ModelProgress, print_tuned
    from stormdrop.search.tune_model import tune_models

    decided: list[Verdict] = []
    with ModelProgress(notes(), target.peak_gflops) as progress:
        (tuned,) = tune_models(
            [parts], target, store=store, reuse="only", donors=[origin], decided=decided, rules=rules, listen=progress
        )
    with notes().status("timing the model"):
        try:
            tuned = accept(parts, tuned, store, rules=rules, decided=decided)
        except StormdropError:  # the model cannot be timed: what was proved is kept all the same
            kept_in(store, tuned, verdicts_of(tuned, decided))
            raise
        learn(store, target, lambda told: say(notes(), one_line(told, 500)))
    if not is_quiet:
        print_tuned(results(), tuned, target.peak_gflops)
    return {"measured": tuned.to_json(), "in_model": tuned.in_model.to_json() if tuned.in_model else None}


@click.command(
    short_help="The few schedules that cover each class.",
    epilog="""\b
Examples:
  stormdrop store portfolio                          what it would hold
  stormdrop store portfolio -o ~/portfolios
  stormdrop store portfolio --threads 1 --without resnet50 --without resnet18
""",
)
@options.output(
    "-o",
    "--output",
    metavar="FILE",
    told="Write it; into a folder, under its name.  [default: only say what it covers]",
)
@click.option("--without", multiple=True, metavar="NAME", help="Leave out all tasks of this model; may be repeated.")
@options.threads
@store_option
@options.as_json
def portfolio(
    output: Path | None, without: tuple[str, ...], threads: int | None, path: Path | None, as_json: bool
) -> None:
    """Choose of each class at most ten schedules, the default among them, that come within 5 % of the best known for
    every task of the class in the store.

    The file is for this kind of CPU and number of threads, and its name says so: znver4-avx512-2.json. In a folder that
    STORMDROP_PORTFOLIO names, its schedules are donors where a store has none of a class; so are those that come with
    Stormdrop.
    """
    from stormdrop.report.reuse import portfolio_json, print_portfolio
    from stormdrop.reservoir.experience import save
    from stormdrop.reservoir.portfolio import file_name
    from stormdrop.search.covering import portfolio_of

    target = options.machine(None, threads)
    if output is not None:
        output = output / file_name(target) if output.is_dir() else output
        options.refuse_unwritable(output)
    with viewed(path) as opened, notes().status("") as status:
        made, covers = portfolio_of(opened, target, opened.digests(without), lambda text: status.update(one_line(text)))
    if output is not None:
        save(output, made)
    tree = portfolio_json(made, covers, None if output is None else str(output))
    options.show(as_json, tree, lambda console: print_portfolio(console, made, covers))


@click.command(
    short_help="Learn from the store what compiling may take unmeasured.",
    epilog="\b\nExamples:\n  stormdrop store learn\n  stormdrop store learn --threads 1 --json\n",
)
@options.threads
@store_option
@options.as_json
def learn(threads: int | None, path: Path | None, as_json: bool) -> None:
    """Grow the trees that predict gains of re-fitted schedules, and set the margin from which they are taken.

    `stormdrop tune` does so when it ends. The result is kept beside the store.
    """
    from dataclasses import asdict

    from stormdrop.reservoir.learning import described, keep_learned

    target = options.machine(None, threads)
    with written(viewed(path), path) as opened, notes().status("learning from what was measured"):
        found = keep_learned(opened, target)
    evidence = None if found is None or found.evidence is None else asdict(found.evidence)
    margin, count = (None, 0) if found is None else (found.margin, len(found.donors))
    tree = {"target": target.key(), "margin": margin, "donors": count, "evidence": evidence}
    options.show(as_json, tree, lambda console: say(console, described(found)))
