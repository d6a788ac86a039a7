"""Recorded results of nets: reading, comparing and writing the files in `data`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
ACCEPTED = "accepted.txt"

Results = Mapping[str, str]
"""Results by name. A name begins with the network, case or command that the result belongs to."""


@dataclass(frozen=True, slots=True)
class Net:
    """A named function that computes results, and the file that holds the recorded ones."""

    name: str
    compute: Callable[[], Results]

    @property
    def file(self) -> Path:
        return DATA / f"{self.name}.json"

    def recorded(self) -> dict[str, str]:
        return json.loads(self.file.read_text())

    def record(self, results: Results) -> None:
        self.file.write_text(json.dumps(dict(sorted(results.items())), indent=0) + "\n")


def differences(recorded: Results, now: Results) -> list[str]:
    """Returns a line for each result that is not as recorded, with both results."""
    lines: list[str] = []
    for name in sorted({*recorded, *now}):
        before, after = recorded.get(name, "not recorded"), now.get(name, "gone")
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    return lines


def note(reason: str) -> None:
    """Appends a reason to the list of recordings."""
    with (DATA / ACCEPTED).open("a") as file:
        file.write(reason + "\n")
