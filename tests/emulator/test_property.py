"""Random points of GPU sketches compute what the reference interpreter computes, without a fault or a race.

python -m tests.emulator            more of them
"""

from __future__ import annotations

import re

import pytest

from tests.emulator.__main__ import seed_of
from tests.emulator.building import text_artifact
from tests.emulator.mutate import HARMFUL, Mutation, mutations
from tests.emulator.trials import CASES, GpuTrial, emulated, has_judge
from tests.support.trials import Case

POINTS, PARTS = 152, 19

pytestmark = pytest.mark.skipif(not has_judge(), reason="there is no judge of GPUs yet")


@pytest.mark.parametrize("part", range(PARTS))
def test_every_legal_point_computes_what_the_reference_computes(part: int) -> None:
    for number in range(part, POINTS // CASES, PARTS):
        for case in GpuTrial(seed_of(number)).cases():
            problem = emulated(case)
            assert not problem, f"{problem}\n{case}"


STRICT = ("dropped wait", "wait for one group fewer", "two threads for one", "moved store")
"""Noticed wherever they are made. A module may have barriers for loops with one trip, or a single block."""


def changed(mutation: Mutation, case: Case) -> str:
    return emulated(case, lambda _: mutation.text, seed=1)


@pytest.mark.parametrize("seed", [2, 16, 18, 19])
def test_mistakes_in_emitted_kernels_are_noticed(seed: int) -> None:
    """A convolution, a dot product, a product of two inputs, row minima."""
    case = next(case for case in GpuTrial(seed).cases())
    text = text_artifact(case.program(), case.target).code.decode()
    noticed: dict[str, list[bool]] = {}
    for mutation in mutations(text, HARMFUL):
        noticed.setdefault(mutation.mistake, []).append(bool(changed(mutation, case)))
    assert len(noticed) >= 3
    for mistake, found in noticed.items():
        if mistake in STRICT:
            assert all(found), mistake
        elif mistake != "two blocks for one" or not re.search("once|in 1,", str(case.program())):
            assert any(found), mistake
