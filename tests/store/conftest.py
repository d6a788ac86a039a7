"""The contract of a database: tests with a `store` run on each implementation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stormdrop.store.store import Store
from tests.support.stores import PlainDatabase


@pytest.fixture(params=["file", "memory", "another implementation"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "file":
            opened = Store.open(tmp_path / "s.sqlite")
        case "memory":
            opened = Store.in_memory()
        case _:
            opened = Store(PlainDatabase())
    with opened:
        yield opened
