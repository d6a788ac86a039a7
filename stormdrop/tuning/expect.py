"""The expected gain of further search, from the gain so far.

Bests fall about with the logarithm of the seconds spent. The gain of the next doubling of the seconds is estimated from
the gain of the last doubling. A part of the best, which falls with the rounds, is added for gains that a stalled curve
hides.

    gain(s) = (KEPT · gain of the last half of its seconds + DOUBT · best / rounds) · log2(1 + s / spent)

A gain ends at the floor. If a task has gained nothing yet, its first gain also costs the seconds of its proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from stormdrop.tuning.divide import Standing, worth_a_round

KEPT, DOUBT = 0.25, 1 / 16
"""The weights of the formula. On tables, a doubling gains about 0.2 of the gain of the last doubling. If the last
doubling gained nothing, the next gains 5 % after 2 rounds of 16 trials, 0.8 % after 5 and 0.2 % after 9.
"""


def expected_gains(standings: Sequence[Standing], seconds: float) -> list[float]:
    """Returns the expected gain of the goal for each task, if `seconds` more seconds are divided in the best way.

    Maximises Σ aᵢ · ln(1 + sᵢ / spentᵢ) with Σ (sᵢ + proofᵢ) = `seconds` over the tasks that get some. The solution is
    sᵢ = aᵢ / λ − spentᵢ, with one λ for all of them. A task is among them if its last second gains more than λ. The
    total gain must also grow, although the proof of the task takes seconds from the rest.
    """
    gains = [0.0] * len(standings)
    scales = {k: _scale(standings[k]) for k in worth_a_round(standings)}
    order = sorted(scales, key=lambda k: scales[k] / _spent(standings[k]), reverse=True)
    chosen: dict[int, float] = {}
    price = 0.0  # λ: the gain of the last second
    for k in order:
        if scales[k] / _spent(standings[k]) <= price:
            break
        among = [*chosen, k]
        left = seconds - sum(standings[j].proof_seconds for j in among)
        if left <= 0:
            continue
        dearer = sum(scales[j] for j in among) / (left + sum(_spent(standings[j]) for j in among))
        found = {j: scales[j] * log(max(1.0, scales[j] / dearer / _spent(standings[j]))) for j in among if dearer}
        if sum(found.values()) > sum(chosen.values()):
            chosen, price = found, dearer
    for k, gain in chosen.items():
        s = standings[k]
        gains[k] = min(gain, s.slope * max(0.0, (s.best or 0.0) - s.floor))
    return gains


def _scale(s: Standing) -> float:
    """Returns `a` of a · ln(1 + s / spent)."""
    assert s.best is not None
    half = next((r for r in reversed(s.history) if r.seconds <= s.spent / 2), s.history[0] if s.history else None)
    gained = max(0.0, half.best - s.best) if half is not None else 0.0  # timed in turns, a best may be slower
    return s.slope * (KEPT * gained + DOUBT * s.best / max(1.0, s.rounds)) / log(2)


def _spent(s: Standing) -> float:
    return max(s.spent, 1e-3)
