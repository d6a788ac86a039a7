"""The size of a command that takes a model at one size, if the file leaves dimensions open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stormdrop.cli import options
from stormdrop.report.console import notes, say

if TYPE_CHECKING:
    from stormdrop.compiler.specialise import OpenSource

    Shapes = Mapping[str, tuple[int, ...]]


def only_size(model: str, opened: OpenSource) -> Shapes:
    """Returns the shapes at batch 1, with a note. Raises UserError if other dimensions are open."""
    from stormdrop.compiler.open_sizes import OpenSizes

    sizes = OpenSizes.of(opened)
    batch = sizes.batch_of_one()
    if batch is None:
        raise sizes.needed(model, lambda shapes: options.command_with(options.shape_arguments(shapes), model))
    _say_batch(model, batch)
    return batch


def first_size(model: str, opened: OpenSource) -> Shapes:
    """Returns the shapes of the first size that works, with a note."""
    from stormdrop.compiler.open_sizes import OpenSizes
    from stormdrop.ir.shape import shapes_text

    sizes = OpenSizes.of(opened)
    if (batch := sizes.batch_of_one()) is not None:
        _say_batch(model, batch)
        return batch
    (shapes,) = sizes.first().sizes
    say(notes(), f"dimensions are open: {shapes_text(shapes)} is taken; --shapes gives another size")
    return shapes


def _say_batch(model: str, shapes: Shapes) -> None:
    from stormdrop.compiler.open_sizes import batch_text

    say(notes(), f"{batch_text(model, shapes)}; --shapes gives another size")
