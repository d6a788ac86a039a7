"""Lines of a store: out, in again, and changed on the way."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from stormdrop.store.store import Filters, Imported, Store
from tests.support.records import HERE


def exported(store: Store, wanted: Filters | None = None) -> list[str]:
    file = io.StringIO()
    count = store.export(file, wanted)
    lines = file.getvalue().splitlines()
    assert len(lines) == count
    return lines


def imported(store: Store, lines: list[str] | bytes, foreign: bool = False) -> Imported:
    content = lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode()
    return store.import_(io.BytesIO(content), HERE, foreign)


def changed(*path: str | int, to: Any) -> Callable[[Any], None]:
    """Returns a change of the value at a path in a JSON tree."""

    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return change
