"""The budget of each search, and the time that recording the missing rows of a table will take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks.reuse.table import Recipient, SearchKind, Table

Pass = Literal["winners", "donors", "reuse", "long", "model"]
PASSES: tuple[Pass, ...] = get_args(Pass)
SEARCH_ENDS, DUEL_TAKES, DONOR_TAKES, REUSE_TAKES, MODEL_TAKES = 3.0, 1.5, 0.13, 5.5, 15.0
"""Expected seconds, in this order: of a search's final duel and proof, of a recipient's duel, of timing one donor's
candidates, of a search from donors alone, of timing one whole model."""
LONG_RATE = 30.0
"""Trials in a second of a search that is limited by trials."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """The limits of one search of each kind. `seconds`, `trials`: of the first search from nothing. `gain_seconds`: of
    the searches with and without reuse that are compared, on tasks with something to gain.
    """

    seconds: float | None = 5.0
    trials: int | None = None
    gain_seconds: float | None = 15.0
    long_trials: int = 2000
    donors: int = 4
    """From each model, the winners of this many tasks are re-fitted to a recipient: those nearest to it."""

    def of(self, kind: SearchKind) -> tuple[float | None, int | None]:
        """Seconds and trials; neither: the search ends by itself."""
        match kind:
            case "nothing":
                return self.seconds, self.trials
            case "seed" | "again":
                return self.gain_seconds, self.trials
            case "only":
                return None, None
            case "long":
                return None, self.long_trials


def expected_seconds(
    table: Table, recipients: Sequence[Recipient], budgets: Budgets, passes: Iterable[Pass]
) -> dict[Pass, float]:
    """Seconds that the rows still missing take, by pass. A fifth of the tasks without a duel is assumed to have
    something to gain.
    """
    n = max(1, len(recipients))
    left: dict[SearchKind, int] = {
        kind: sum((r.id, kind) not in table.searches for r in recipients) for kind in get_args(SearchKind)
    }
    unknown = sum(r.id not in table.first_best for r in recipients)
    gaining = (sum(map(table.has_gain, recipients)) + unknown / 5) / n
    search = (budgets.seconds or (budgets.trials or 300) / LONG_RATE) + SEARCH_ENDS
    compared = (budgets.gain_seconds or search) + SEARCH_ENDS
    names = table.model_names
    donors = DUEL_TAKES + DONOR_TAKES * min(n, budgets.donors * len(names))
    found: dict[Pass, float] = {
        "winners": left["nothing"] * search,
        "donors": sum(r.id not in table.links for r in recipients) * donors,
        "reuse": left["only"] * REUSE_TAKES + gaining * (left["seed"] + left["again"]) * compared,
        "long": gaining * left["long"] * (budgets.long_trials / LONG_RATE + SEARCH_ENDS),
        "model": sum(name not in table.models for name in names) * MODEL_TAKES,
    }
    return {name: found[name] for name in passes}
