"""The storage of a tuning run's measurements and decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stormdrop.base.errors import StormdropError
from stormdrop.store.record import Record
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.tuning.events import Warned, ignore


@dataclass(slots=True)
class Keeper:
    """A store that all sessions of a run write to, until it takes no more: then it is given up with one warning."""

    store: Store | None = None
    warn: Callable[[Warned], None] = ignore
    failure: str = ""
    """Why the store took no more; empty while it takes everything."""
    decided: list[Verdict] | None = None
    """The list that receives verdicts instead of the store, if given."""

    def add(self, records: Sequence[Record]) -> None:
        self._add(lambda store: store.add(records))

    def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        if self.decided is not None:
            self.decided += verdicts
        else:
            self._add(lambda store: store.add_verdicts(verdicts))

    @property
    def is_open(self) -> bool:
        return self.store is not None and not self.failure

    def _add(self, write: Callable[[Store], None]) -> None:
        if self.store is None or self.failure:
            return
        try:
            write(self.store)
        except StormdropError as error:
            self.failure = str(error)
            self.warn(Warned(f"what is measured from here on is not kept: {error}"))
