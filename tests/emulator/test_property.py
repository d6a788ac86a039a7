"""Random points of GPU sketches compute what the reference interpreter computes, without a fault or a race.

python -m tests.emulator            more of them
"""

from __future__ import annotations

import re

import pytest

from stormdrop.device.artifact import Artifact
from tests.emulator.__main__ import seed_of
from tests.emulator.building import text_artifact
from tests.emulator.mutate import HARMFUL, SOMETIMES, Mutation, mutations
from tests.emulator.trials import CASES, GpuTrial, emulated
from tests.support.trials import Case

POINTS, PARTS = 152, 19


@pytest.mark.parametrize("part", range(PARTS))
def test_every_legal_point_computes_what_the_reference_computes(part: int) -> None:
    for number in range(part, POINTS // CASES, PARTS):
        for case in GpuTrial(seed_of(number)).cases():
            problem = emulated(case)
            assert not problem, f"{problem}\n{case}"


FAILED_ONCE = {
    "403:0": "a guard fails while an asynchronous copy fills the first box of the buffer",
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
KERNELS = {
    "a pipeline of copies": r"cp\.async\.wait\.group\(i32 [1-9]\)",
    "copies without a pipeline": r"cp\.async\.wait\.group\(i32 0\)",
    "shuffles": r"shfl\.sync",
    "stores to shared memory": r"(?s)^(?!.*cp\.async).*barrier\.cta",
}


def first_with(pattern: str) -> tuple[Case, Artifact]:
    """The first random point whose text has something, with several threads."""
    for seed in range(100):
        for case in GpuTrial(seed).cases():
            artifact = text_artifact(case.program(), case.target)
            if re.search(pattern, artifact.code.decode()) and all(n.threads > 1 for n in artifact.launches):
                return case, artifact
    raise AssertionError(f"no point has {pattern}")


def some_of_each(found: list[Mutation], most: int = 4) -> list[Mutation]:
    """Of every mistake, the first places and the last one."""
    chosen: list[Mutation] = []
    for mistake in dict.fromkeys(m.mistake for m in found):
        same = [m for m in found if m.mistake == mistake]
        chosen += same if len(same) <= most else [*same[: most - 1], same[-1]]
    return chosen


@pytest.mark.parametrize("kind", KERNELS)
def test_mistakes_in_emitted_kernels_are_noticed(kind: str) -> None:
    case, artifact = first_with(KERNELS[kind])
    noticed: dict[str, list[bool]] = {}
    for mutation in some_of_each(list(mutations(artifact.code.decode(), {**HARMFUL, **SOMETIMES}))):
        problem = emulated(case, lambda _, text=mutation.text: text, seed=1)
        noticed.setdefault(mutation.mistake, []).append(bool(problem))
    if all(launch.blocks == 1 for launch in artifact.launches):
        noticed.pop("two blocks for one")
    assert len(noticed) >= 4
    has_dead = "dead from" in str(case.program())  # the stores of an instance that is never alive do not run
    for mistake, found in noticed.items():
        if mistake in STRICT and not (has_dead and mistake == "moved store"):
            assert all(found), mistake
        elif mistake in HARMFUL:
            assert any(found), mistake
    if kind == "a pipeline of copies":
        assert any(noticed["next remainder"])
