"""Droplets: coordinate descent on measured values, from the best few points of a storm or from any start.

Starts are processed one after the other, the fastest first. Each descends to a point that no move improves (`descent`).
A later end replaces an earlier end only by winning a duel. The best is a start, unless a candidate was statistically
faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from stormdrop.tuning.descent import DropletDescent, DropletSettings, Ledger
from stormdrop.tuning.duel import Exchange, duel
from stormdrop.tuning.strategy import Candidate, Outcome, Proposal, Ranker, Space

DOUBT = 5.0


class Droplet:
    """A strategy of descents, one after the other; `best()` is the best end so far."""

    phase = "droplet"
    eager = False

    def __init__(
        self,
        spaces: Sequence[Space],
        starts: Sequence[tuple[Candidate, float | None]],
        ranker: Ranker,
        rng: np.random.Generator,
        settings: DropletSettings | None = None,
        asked: Mapping[Candidate, float | None] | None = None,
    ) -> None:
        """Creates a search from `starts`; a start without a value is measured first.

        `asked` maps candidates measured elsewhere to their values, None for a failure. They are not measured again.
        """
        self._spaces, self._ranker, self._rng, self._settings = spaces, ranker, rng, settings or DropletSettings()
        self._starts = list(dict.fromkeys(c for c, _ in starts))
        self._ledger = Ledger({**(asked or {}), **{c: v for c, v in starts if v is not None}})
        self._known = len(asked or ())
        self._champion: Candidate | None = None
        self.descents: list[DropletDescent] = []
        """The descents that have begun, in order."""
        self._asked: Proposal | None = None
        self._exchange = self._run()
        self._proposal: Proposal | None = next(self._exchange, None)

    def best(self) -> Candidate | None:
        """Returns the best end; the incumbent of an unfinished descent counts if it is ahead by more than noise.

        None until a start could be measured.
        """
        here = self.descents[-1].incumbent if self.descents and self._proposal is not None else None
        if self._champion is None or here is None:
            return here or self._champion
        is_ahead = self._ledger.value(here) < (1 - self._settings.margin) * self._ledger.value(self._champion)
        return here if is_ahead else self._champion

    def ask(self, n: int) -> Proposal:
        """Returns at most `n` new candidates; or a duel of known candidates, at least two of them even if `n` is 1.

        A duel costs no trial.
        """
        while self._proposal is not None:
            proposal = self._proposal
            if proposal.rounds:
                self._asked = Proposal(proposal.candidates[: max(2, n)], proposal.rounds)
                return self._asked
            fresh = [c for c in proposal.candidates if not self._ledger.knows(c)]
            if fresh:
                self._asked = Proposal(tuple(fresh[: max(0, min(n, self._settings.batch))]))
                return self._asked
            self._advance({})  # all of it was measured elsewhere
        return Proposal(())

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Stores the outcomes of candidates, also of candidates that the droplet did not propose.

        Candidates without outcomes count as failures.
        """
        by_candidate = {o.candidate: o for o in outcomes}
        asked, self._asked = self._asked, None
        answered = asked.candidates if asked is not None and any(c in by_candidate for c in asked.candidates) else ()
        by_candidate = {c: Outcome(c, None) for c in answered} | by_candidate
        self._ledger.record(by_candidate.values())
        if answered:
            self._advance({c: by_candidate[c] for c in answered})

    def _advance(self, outcomes: Mapping[Candidate, Outcome]) -> None:
        try:
            self._proposal = self._exchange.send(outcomes)
        except StopIteration:
            self._proposal = None

    def _run(self) -> Exchange[None]:
        while fresh := [c for c in self._starts if not self._ledger.knows(c)]:
            yield Proposal(tuple(fresh))
        starts = sorted((c for c in self._starts if self._ledger.value(c) < inf), key=self._ledger.value)
        passed: set[Candidate] = set()
        reach = max(self._settings.reach, DOUBT / max(1, self._known))
        limit = (1 + reach) * self._ledger.value(starts[0]) if starts else inf
        for start in [c for c in starts if self._ledger.value(c) <= limit][: self._settings.starts]:
            if start in passed or self._ledger.failed(start):
                continue
            rival = inf if self._champion is None else self._ledger.value(self._champion)
            descent = DropletDescent(
                start, self._spaces, self._ranker, self._rng, self._settings, self._ledger, rival, passed
            )
            self.descents.append(descent)
            end = yield from descent.run()
            if end is not None and end not in passed:
                yield from self._settle(end)
            passed |= {w.end for w in descent.path}

    def _settle(self, end: Candidate) -> Exchange[None]:
        """Replaces the best end so far by `end` if `end` wins a duel."""
        if self._champion is None or self._ledger.failed(self._champion):
            self._champion = end
            return
        if self._ledger.value(end) > (1 + self._settings.margin) * self._ledger.value(self._champion):
            return
        level = self._settings.alpha / max(1, self._settings.starts - 1)
        result = yield from duel(self._champion, [end], level, self._settings.duel)
        if result.winner is not None or (self._ledger.failed(self._champion) and not self._ledger.failed(end)):
            self._champion = end
