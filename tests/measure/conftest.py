"""A measurer for all tests of a module, a task of one element, and kernels for it written by hand."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stormdrop.device.artifact import Artifact, BufferSpec
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import HandWritten, Measurer, MeasureSettings
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope

QUICK = MeasureSettings(run_timeout=1.5, min_seconds=0.002, memory_limit_bytes=320 << 20)

# %a and %b are the inputs, %y is relu(a + b), %at is where it belongs; %again: not the first run.
RIGHT = "store float %y, ptr %at"
KERNEL = """
define void @kernel(ptr %buffers, ptr %scratch, i64 %phase, i64 %begin, i64 %end) {{
  %has = icmp slt i64 %begin, %end
  br i1 %has, label %work, label %done
work:
  %pb = getelementptr ptr, ptr %buffers, i64 1
  %pat = getelementptr ptr, ptr %buffers, i64 2
  %ina = load ptr, ptr %buffers
  %inb = load ptr, ptr %pb
  %at = load ptr, ptr %pat
  %a = load float, ptr %ina
  %b = load float, ptr %inb
  %sum = fadd float %a, %b
  %negative = fcmp ogt float 0.0, %sum
  %y = select i1 %negative, float 0.0, float %sum
  %runs = load i64, ptr %scratch
  %more = add i64 %runs, 1
  store i64 %more, ptr %scratch
  %again = icmp ne i64 %runs, 0
  {body}
  br label %done
done:
  ret void
}}
define internal i64 @syscall(i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e) {{
  %r = call i64 asm sideeffect "{syscall}"(i64 %n, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 0)
  ret i64 %r
}}
{more}
"""
SYSCALLS = {
    "x86_64": 'syscall", "={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory}',
    "aarch64": 'svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},{x4},{x5},~{memory}',
}
LIKE = Artifact(
    b"",
    (
        BufferSpec("A", "f32", Scope.INPUT, 1),
        BufferSpec("B", "f32", Scope.INPUT, 1),
        BufferSpec("Y", "f32", Scope.OUTPUT, 1),
    ),
    extents=(2,),
    scratch_bytes=64,
)  # both threads compute the same element


@pytest.fixture(scope="session")
def target() -> Target:
    return detect(2)


@pytest.fixture(scope="module")
def measurer(target: Target) -> Iterator[Measurer]:
    with Measurer(target, QUICK) as m:
        yield m


@pytest.fixture(scope="session")
def tiny() -> Task:
    return build("ADR", [1, 1, 1, 1])


@pytest.fixture(scope="session")
def write() -> Callable[..., HandWritten]:
    """A kernel for `tiny` with the given body."""

    def written(body: str = RIGHT, more: str = "") -> HandWritten:
        syscall = SYSCALLS[platform.machine()]
        return HandWritten(KERNEL.format(body=body, more=more, syscall=syscall), LIKE)

    return written


@pytest.fixture(scope="session")
def draw(target: Target) -> Callable[[Task, int], list[Schedule]]:
    """Random schedules of a task's first sketch."""

    def drawn(task: Task, n: int) -> list[Schedule]:
        sketch = sketches(task, target)[0]
        points = sketch.sample(8 * n, np.random.default_rng(3))
        points = points[np.asarray(sketch.legal(points))][:n]
        return [sketch.schedule(p) for p in points]

    return drawn
