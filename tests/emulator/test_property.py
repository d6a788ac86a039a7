"""Random points of GPU sketches compute what the reference interpreter computes, without a fault or a race.

python -m tests.emulator            more of them
"""

from __future__ import annotations

import pytest

from tests.emulator.__main__ import seed_of
from tests.emulator.building import text_artifact
from tests.emulator.mutate import HARMFUL, mutations
from tests.emulator.trials import CASES, GpuTrial, emulated

POINTS, PARTS = 152, 19


@pytest.mark.parametrize("part", range(PARTS))
def test_every_legal_point_computes_what_the_reference_computes(part: int) -> None:
    for number in range(part, POINTS // CASES, PARTS):
        for case in GpuTrial(seed_of(number)).cases():
            problem = emulated(case)
            assert not problem, f"{problem}\n{case}"


FAILED_ONCE = {
    "1000000214:0": "a condition on a clamped index, which the verifier must take apart with the index",
    "1000000509:0": "an index that is clamped twice",
}


@pytest.mark.parametrize("case", FAILED_ONCE)
def test_what_failed_once_is_right(case: str) -> None:
    seed, _, number = case.partition(":")
    (chosen,) = (c for c in GpuTrial(int(seed)).cases() if c.number == int(number))
    assert not emulated(chosen)


STRICT = ("dropped wait", "wait for one group fewer", "two threads for one", "moved store")
"""Noticed wherever they are made; barriers also stand around loops of one trip."""


@pytest.mark.parametrize("seed", [2, 16, 18, 30])
def test_mistakes_in_emitted_kernels_are_noticed(seed: int) -> None:
    """In a convolution, a dot product and two products of run-time matrices."""
    case = next(case for case in GpuTrial(seed).cases())
    artifact = text_artifact(case.program(), case.target)
    noticed: dict[str, list[bool]] = {}
    for mutation in mutations(artifact.code.decode(), HARMFUL):
        problem = emulated(case, lambda _, text=mutation.text: text, seed=1)
        noticed.setdefault(mutation.mistake, []).append(bool(problem))
    if all(launch.blocks == 1 for launch in artifact.launches):
        noticed.pop("two blocks for one")
    assert len(noticed) >= 3
    for mistake, found in noticed.items():
        assert all(found) if mistake in STRICT else any(found), mistake
