"""docs/api.md is what the docstrings say."""

from __future__ import annotations

import stormdrop
from tests.support.api_reference import PAGE, page


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == page(), "write it: python -m tests.support.api_reference"


def test_the_reference_has_every_public_name() -> None:
    headings = {line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")}
    assert set(stormdrop.__all__) - {"__version__"} <= headings


def test_the_reference_shows_options_and_exceptions() -> None:
    text = PAGE.read_text()
    for part in (
        "winograd: bool = True",
        "goal: Goal | None = None",
        "class sd.ModelError(UserError)",
        "close() -> None",
    ):
        assert part in text
