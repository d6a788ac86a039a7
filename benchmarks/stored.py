"""Measurements in a JSON file, stored row by row: a command goes on where it was stopped, or where its time was up.

rows = StoredRows(path, minutes=10)
rows.once("long", "GMM seed 0", measure)      # measures and stores, unless the file has it
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.core import say

SHOWN = 300  # characters of a row


class TimeIsUp(Exception):
    """The next row would probably not be measured in time."""


class StoredRows:
    """The parts of a results file, each a dict of rows."""

    def __init__(self, path: Path, minutes: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`minutes` may be spent on new rows, from now on."""
        self.path, self._clock = path, clock
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self._end = None if minutes is None else clock() + 60 * minutes
        self._longest = 0.0  # seconds of a row that was measured here

    def once(self, part: str, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stored row of a part, measured and stored if it is not there.

        Raises TimeIsUp, before it measures, where as long a row as any before would end too late.
        """
        rows = self.results.setdefault(part, {})
        if key not in rows:
            began = self._clock()
            if self._end is not None and began + self._longest > self._end:
                raise TimeIsUp
            rows[key] = measure()
            self._longest = max(self._longest, self._clock() - began)
            say(f"{part}: {key}: {json.dumps(rows[key])[:SHOWN]}")
            self.save()
        return rows[key]

    def save(self) -> None:
        """Replace the file as a whole: whoever stops the command never leaves half of one."""
        self.path.parent.mkdir(exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.results, indent=1) + "\n")
        temporary.replace(self.path)
