"""The invariant of the project: every legal point of every sketch computes what the reference interpreter computes.

pytest tests/test_property.py -s                    prints how often every path was taken
pytest tests/test_property.py --points 1000000      the long run
pytest tests/test_property.py --case 145:2          one case again, as a failure names it
"""

from __future__ import annotations

import pytest

from tests.support import crew
from tests.support.trials import Trial

OFTEN = 40

RULES = (
    "inline",
    "unroll",
    "rfactor",
    "fuse",
    "place thread",
    "place load",
    "tile SSRSRS vector",
    "tile SSRSRS reduced vector",
    "tile SSRS vector",
    "tile SSRS reduced vector",
    "tile SSS vector",
    "pack load",
    "pack thread",
    "pack block",
    "pack root",
)

PLACES = (
    "stage at root",
    "stage at thread",
    "stage at load",
    "copy at load",
    "copy at thread",
    "copy at block",
    "copy at root",
)

TAILS = (
    "full tile only",
    "remainder of one axis",
    "remainders of two axes",
    "loop of constant trips",
    "loop with a tail",
    "whole vectors",
    "masked vectors",
    "vectors masked by a tail",
    "masked load",
    "masked store",
    "reduce block with a tail",
    "unrolled evenly",
    "unrolled with a rest",
    "reduced vector of whole steps",
    "reduced vector with a masked end",
    "loop that may be empty",
)

BORDERS = (
    "border: narrowed loop",
    "border: decided per instance",
    "border: never reached",
    "border: page",
    "border: lane mask",
    "border: tile with a body for the interior",
)

OTHERS = (
    "gather",
    "scatter",
    "partial sums",
    "partial sums of a reduced vector",
    "finished in registers",
    "reduction in scratch",
    "reduce loop written out",
    "prefetch",
    "phase at load",
    "fma",
    "transposed load",
    "guarded finish",
)

KNOBS = (
    *(
        f"knob {kind} {size}"
        for kind in ("space.1", "space.2", "space.3", "reduce.1")
        for size in ("1", "2", "3-4", "5-8", "9+")
    ),
    *(f"knob copy.{level} {size}" for level in (1, 2) for size in ("1", "2-4", "5+")),
    *(f"knob unroll {size}" for size in ("1", "2", "3-4", "5-8", "9+")),
    *(f"knob v {size}" for size in ("1", "2", "3-4", "5-8")),
    "knob peel 0",
    "knob peel 1",
)


@pytest.mark.timeout(0)
def test_every_legal_point_computes_what_the_reference_computes(points: int, chosen_case: str) -> None:
    if chosen_case:
        pytest.skip("one case is replayed")
    outcome = crew.run(crew.seeds_for(points))
    print(outcome.report())
    assert not outcome.failures, f"{len(outcome.failures)} failures\n\n" + "\n\n".join(outcome.failures[:10])
    often = min(OFTEN, OFTEN * points // 4000)
    rare = {
        path: outcome.paths[path]
        for path in (*RULES, *PLACES, *TAILS, *BORDERS, *OTHERS, *KNOBS)
        if outcome.paths[path] < often
    }
    assert not rare, f"each path must occur {often} times"


def test_one_case_can_be_replayed_from_its_name(chosen_case: str) -> None:
    seed, _, number = (chosen_case or "4:1").partition(":")
    cases = [case for case in Trial(int(seed)).cases() if number in ("", str(case.number))]
    assert [str(c) for c in cases] == [str(c) for c in Trial(int(seed)).cases() if number in ("", str(c.number))]
    outcome = crew.run([int(seed)], crew.Orders(int(number) if number else None))
    print("\n\n".join(f"{c}\n{c.trial.task}\n{c.program()}" for c in cases) if chosen_case else outcome.report())
    assert outcome.points == len(cases)
    assert not outcome.failures, "\n\n".join(outcome.failures)


FAILED_ONCE = {
    "8684:3": "chunks of a masked end that share an address",
    "8685:5": "a transposed square that begins inside a border",
    "1000000336:0": "a masked store of truncated integers with one live lane",
    "1000000397:0": "an index that is data, under a border that depends on the lane",
    "1000000156:0": "a sum that is read inside a border",
    "1000000566:0": "the second part of a concatenation, packed",
    "1000000667:0": "the second part of a concatenation, computed where it is read",
    "1000001106:0": "a maximum finished by a reader that has more elements",
    "1000001980:0": "channels that begin inside a panel",
}


@pytest.mark.parametrize("case", FAILED_ONCE)
def test_cases_that_failed_once_pass(case: str) -> None:
    seed, _, number = case.partition(":")
    outcome = crew.run([int(seed)], crew.Orders(int(number)))
    assert outcome.points == 1
    assert not outcome.failures, FAILED_ONCE[case] + "\n\n" + "\n\n".join(outcome.failures)
