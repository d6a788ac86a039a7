"""Kernels built by two processes are those that one builds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop.driver import build as building
from stormdrop.driver.build import Job, build_kernel, build_kernels
from stormdrop.errors import RunError
from stormdrop.ir.tensor import Task, tensor
from stormdrop.measure.process import Worker
from stormdrop.ops.broadcast import elementwise
from stormdrop.runtime.host import detect
from stormdrop.space.default import default_schedule
from stormdrop.target.machine import Target


def _jobs(count: int) -> list[Job]:
    def task(n: int) -> Task:
        return Task([elementwise(lambda x: x[0] * x[0], [tensor("x", (4, n))], "out")])

    return [Job(task(n), None, {"x": (2 * n, 1)} if n % 2 else {}) for n in range(1, count + 1)]


@pytest.fixture
def target() -> Target:
    return detect(2)


def test_both_processes_build_the_same(target: Target) -> None:
    jobs = _jobs(building.WORTH_A_WORKER + 2)
    assert build_kernels(jobs, target, cpus=2) == [build_kernel(job, target) for job in jobs]


def test_a_worker_that_cannot_start_costs_nothing_but_time(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RunError("no more processes")

    monkeypatch.setattr(Worker, "ask", refuse)
    jobs = _jobs(building.WORTH_A_WORKER)
    assert build_kernels(jobs, target, cpus=2) == [build_kernel(job, target) for job in jobs]


def test_a_schedule_of_another_class_gives_way_to_the_default(target: Target) -> None:
    (job,) = _jobs(1)
    other = replace(default_schedule(job.task, target), class_key="another")
    assert build_kernel(replace(job, schedule=other), target) == build_kernel(job, target)
