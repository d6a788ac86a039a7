"""`stormdrop store donors`: the schedules of other tasks from which tuning begins. Options of all `store` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.cli.source import Source, source_options
from stormdrop.report.console import notes, say
from stormdrop.report.text import one_line

if TYPE_CHECKING:
    from stormdrop.store.store import Store

_help_text = "The store's file.  [default: reservoir.sqlite in STORMDROP_CACHE_DIR, else in the user's cache directory]"
store_option = options.output("--store", "path", metavar="PATH", help_text=_help_text)


def place_of(path: Path | None) -> Path:
    from stormdrop.store.store import default_path

    return default_path() if path is None else path.absolute()


def viewed(path: Path | None) -> Store:
    """Opens the store for reading. An absent store in the default place counts as empty."""
    from stormdrop.store.store import Store

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
@store_option
@options.as_json
def donors(source: Source, donors: tuple[str, ...], threads: int | None, path: Path | None, as_json: bool) -> None:
    """Show for each task of a MODEL the winners of other tasks from which `stormdrop tune` would begin.

    A winner of the task's class has the same stages, at other sizes; a winner of its anchor class has another epilogue.
    The distance is 1 for a factor of two in one extent. The score of a donor model depends on the shares of time of the
    classes for which it has winners.
    """
    from stormdrop.report.donors import donors_json, print_donors
    from stormdrop.tuning.donors import by_class, donor_models, donors_of_model
    from stormdrop.tuning.reuse import absent_donors

    with viewed(path) as opened:
        if warning := absent_donors(donors, opened):
            say(notes(), one_line(warning, 500))
        parts = source.open().parts
        target = options.machine(None, threads).with_weights(parts.constant_bytes)
        lines = donors_of_model(parts, target, opened, donors or None, source.rules)
    classes, models = by_class(lines), donor_models(lines)
    tree = donors_json(lines, classes, models)
    options.show(as_json, tree, lambda console: print_donors(console, lines, classes, models))
