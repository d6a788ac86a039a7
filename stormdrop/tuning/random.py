"""Random search: seeds, then legal points of all sketches in turn. The yardstick for every other strategy.

No point is proposed twice. Outcomes do not influence later proposals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stormdrop.tuning.strategy import Candidate, Outcome, Proposal, Space, candidate

DRAWS = 4  # attempts to find an unseen point of a sketch before its turn passes


class RandomSearch:
    """Samples every sketch in turn; ends once no sketch yields a new point."""

    phase = "random"
    eager = True

    def __init__(self, spaces: Sequence[Space], rng: np.random.Generator, seeds: Iterable[Candidate] = ()) -> None:
        self._spaces, self._rng = spaces, rng
        self._seeds = list(dict.fromkeys(seeds))[::-1]
        self._asked: set[Candidate] = set()
        self._drawn: list[list[Candidate]] = [[] for _ in spaces]
        self._turn = 0

    def ask(self, n: int) -> Proposal:
        """Returns at most `n` candidates that were never proposed before; fewer, or none, once no further points are
        drawn.
        """
        found: list[Candidate] = []
        barren = 0
        while len(found) < n and barren < len(self._spaces):
            one = self._seeds.pop() if self._seeds else self._next(n)
            if one is None:
                barren += 1
            elif one not in self._asked:
                self._asked.add(one)
                found.append(one)
                barren = 0
        return Proposal(tuple(found))

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Marks the candidates of all outcomes as proposed, also candidates from elsewhere."""
        self._asked.update(outcome.candidate for outcome in outcomes)

    def _next(self, n: int) -> Candidate | None:
        """Returns a new point of the next sketch in turn."""
        k = self._turn = (self._turn + 1) % len(self._spaces)
        for _ in range(DRAWS):
            while self._drawn[k]:
                one = self._drawn[k].pop()
                if one not in self._asked:
                    return one
            self._drawn[k] = [candidate(k, row) for row in self._spaces[k].sample_legal(max(16, n), self._rng)]
        return None
