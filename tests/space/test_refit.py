"""Re-fitting: schedules of one task as candidates for others of its class or its anchor class.

pytest tests/space/test_refit.py --pairs 1000       more pairs of tasks than the 30 of every run, and more points
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replay, sketches
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target
from tests.support import crew
from tests.support.model_tasks import model_tasks
from tests.support.tasks import Rng
from tests.support.trials import Case, Subject, random_array, targets

SERVER = cross("avx512")
CASES = 4


@dataclass(frozen=True)
class Transfer(Subject):
    """Random schedules of a donor, re-fitted to a task, for a machine."""

    seed: int
    donor: Task
    given: Task
    machine: Target

    @property
    def title(self) -> str:
        return f"transfer {self.seed} of {self.donor.name}"

    @cached_property
    def task(self) -> Task:
        return self.given

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng([1, self.seed])
        return {t.name: random_array(t, rng) for t in self.task.inputs}

    def cases(self) -> Iterator[Case]:
        rng = np.random.default_rng([2, self.seed])
        target = self.machine.with_threads(int(rng.choice([1, 2])))
        found = sketches(self.donor, target)
        candidates: list[Schedule] = []
        while len(candidates) < CASES and found:
            candidates += refit(random_schedule(found.pop(int(rng.integers(len(found)))), rng), *self.pair, target)
        assert candidates, f"no schedule of {self.donor.name} could be carried over"
        for number, schedule in enumerate(candidates[:CASES]):
            sketch, point = replay(self.task, schedule, target)
            if sketch.schedule(point) != schedule or not sketch.legal(point[None, :])[0]:
                raise AssertionError(f"not a legal point of the task: {schedule}")
            yield Case(self, number, sketch, tuple(int(x) for x in point), {})

    @property
    def pair(self) -> tuple[Task, Task]:
        return self.donor, self.task


def random_schedule(sketch: Sketch, rng: Rng) -> Schedule:
    return sketch.schedule(sketch.sample_legal(1, rng)[0])


def shares(donor: Task, task: Task, key: str) -> bool:
    """Whether tasks share a class, or (`anchor`) an anchor class alone."""
    has_class = donor.class_key == task.class_key
    return has_class if key == "class" else donor.anchor_key == task.anchor_key and not has_class


@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", targets()[:2], ids=lambda m: m.isa)
@pytest.mark.parametrize("key", ["class", "anchor"])
def test_a_schedule_carried_to_another_task_is_legal_and_computes_what_the_reference_computes(
    key: str, machine: Target, pairs: int
) -> None:
    """On this machine, and on this machine held to the next narrower instruction set."""
    tasks = model_tasks()
    related = [(a, b) for a in tasks for b in tasks if a is not b and shares(a, b, key)]
    assert len(related) > 60
    # Each pair once before any comes again with other points; a longer run begins with the pairs of a shorter one.
    chosen = np.resize(np.random.default_rng(0).permutation(len(related)), pairs)
    outcome = crew.check([Transfer(k, *related[i], machine) for k, i in enumerate(chosen)])
    assert outcome.points > 2 * pairs
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


def values(schedules: Sequence[Schedule], *names: str) -> list[tuple[int, ...]]:
    return [tuple(s.by_name[name] for name in names) for s in schedules]


def with_values(schedule: Schedule, **given: int) -> Schedule:
    changed = {name.replace("_", "."): value for name, value in given.items()}
    return Schedule(
        schedule.class_key, schedule.variant, schedule.steps, tuple({**schedule.by_name, **changed}.items())
    )


def test_tiles_are_kept_scaled_or_moved_to_the_nearest_even_cut() -> None:
    small, large = build("GMM", (1, 96, 64, 64)), build("GMM", (1, 200, 64, 64))
    sketch = sketches(small, SERVER)[0]
    least = sketch.schedule([k.choices[0] for k in sketch.knobs])
    donor = with_values(least, s0_a1_1=2, s0_a1_2=4, s0_a1_3=6)
    found = refit(donor, small, large, SERVER)
    assert values(found, "s0.a1.1", "s0.a1.2", "s0.a1.3") == [(2, 4, 6), (4, 4, 6), (2, 4, 7)]
    assert {s.steps for s in found} == {donor.steps}


def test_a_ratio_below_one_shrinks_inner_tiles_once_the_outer_ones_are_gone() -> None:
    small, large = build("GMM", (1, 16, 64, 64)), build("GMM", (1, 128, 64, 64))
    sketch = sketches(large, SERVER)[0]
    least = sketch.schedule([k.choices[0] for k in sketch.knobs])
    found = refit(with_values(least, s0_a1_1=4, s0_a1_2=2, s0_a1_3=8), large, small, SERVER)
    assert (1, 1, 8) in values(found, "s0.a1.1", "s0.a1.2", "s0.a1.3")


def test_a_schedule_carried_to_its_own_task_stays_as_it_is() -> None:
    rng = np.random.default_rng(3)
    for task in model_tasks()[:12]:
        for sketch in sketches(task, SERVER)[:3]:
            schedule = random_schedule(sketch, rng)
            assert refit(schedule, task, task, SERVER)[0] == schedule


def test_the_anchor_is_derived_as_the_donor_derives_it_and_the_epilogue_by_default() -> None:
    """The donor copies its padded image; the default of the task tests the border instead."""
    plain, finished = build("C2D", (1, 14, 14, 16, 32, 3, 1, 1)), build("CBR", (1, 20, 20, 32, 48, 3, 1, 1))
    assert plain.class_key != finished.class_key
    assert plain.anchor_key == finished.anchor_key
    for sketch in sketches(plain, SERVER):
        donor = sketch.schedule(sketch.sample_legal(1, np.random.default_rng(0))[0])
        found = refit(donor, plain, finished, SERVER)
        steps = {str(step) for step in found[0].steps}
        assert {str(step) for step in donor.steps} <= steps
        assert {step for step in steps if step.startswith("fuse")} == {"fuse(s1)"}
        register = [name for name in sketch.names if name.startswith("s1.a") and name.endswith(".3")]
        assert values(found[:1], *register) == values([donor], *register)


def test_winograd_schedules_go_to_winograd_variants() -> None:
    with_winograd = [t for t in model_tasks() if len(t.variants) == 3]
    assert len(with_winograd) > 3
    first = with_winograd[0]
    sketch = next(s for s in sketches(first, SERVER) if s.variant == 2)
    donor = random_schedule(sketch, np.random.default_rng(0))
    for task in with_winograd[1:]:
        assert {s.variant for s in refit(donor, first, task, SERVER)} == {2}


def test_tasks_that_share_no_key_give_no_candidates() -> None:
    product, pool = build("GMM", (1, 8, 8, 8)), build("MXP", (1, 8, 8, 8, 3, 1, 1))
    assert refit(default_schedule(product, SERVER), product, pool, SERVER) == ()


def test_a_schedule_that_is_not_the_donors_is_refused() -> None:
    product, pool = build("GMM", (1, 8, 8, 8)), build("MXP", (1, 8, 8, 8, 3, 1, 1))
    with pytest.raises(ScheduleError, match="class"):
        refit(default_schedule(product, SERVER), pool, product, SERVER)
