"""Kernels built by two processes are those that one builds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop.base.errors import RunError
from stormdrop.builder.building import code_of
from stormdrop.compiler import kernel_builds as building
from stormdrop.compiler.kernel_builds import Job, build_kernel, build_kernels
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task, tensor
from stormdrop.measure.process import Worker
from stormdrop.operators.broadcast import elementwise
from stormdrop.space.default import default_schedule
from stormdrop.target.machine import Target
from tests.support.remarks import every_remark, remarks


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
    default = build_kernel(job, target)
    assert build_kernel(replace(job, schedule=other), target) == replace(default, deviation="default")


def test_a_schedule_that_cannot_be_replayed_is_told_of_once_for_each_task(
    target: Target,
) -> None:
    first, second = _jobs(2)
    other = replace(default_schedule(first.task, target), class_key="another")
    jobs = [replace(first, schedule=other), replace(first, schedule=other), replace(second, schedule=other)]
    with every_remark() as recorded:
        build_kernels(jobs, target)
    assert [text.partition(" is computed by default")[0] for text in remarks(recorded)] == [
        first.task.name,
        second.task.name,
    ]


def test_a_kernel_whose_code_is_not_the_one_that_was_named_is_marked(target: Target) -> None:
    jobs = _jobs(building.WORTH_A_WORKER + 2)
    found: list[Job] = []
    for k, job in enumerate(jobs):
        schedule = default_schedule(job.task, target)
        code = code_of(job.task, schedule, target)
        found.append(replace(job, schedule=schedule, code="0 1" if k % 2 else code))
    for built in (build_kernels(found, target, cpus=2), [build_kernel(job, target) for job in found]):
        assert [kernel.is_changed for kernel in built] == [bool(k % 2) for k in range(len(jobs))]
