"""Counted operations against code that counts itself: every block of a kernel's IR adds its own to a global."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from stormdrop.builder.building import artifact_of, lowered
from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import assemble
from stormdrop.device.arrays import aligned
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostKernel, host_device
from stormdrop.ir.tensor import Task
from stormdrop.lower.executed import executed_flops
from stormdrop.lower.program import Program
from stormdrop.model.prepared import PreparedKernel
from stormdrop.operators.catalogue import build
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope

FMA = re.compile(r"call .*@llvm\.fma\.(?:v(\d+))?f32\(")


def counting(text: str) -> str:
    """The same module, with a counter of multiply-adds' operations."""
    lines, flops = ["@counter = global i64 0"], 0
    for line in text.splitlines():
        found = FMA.search(line)
        if found:
            flops += 2 * int(found[1] or 1)
        if flops and re.match(r"\s*(br|ret|switch)\b", line):
            lines.append(f"  %count.{len(lines)} = atomicrmw add ptr @counter, i64 {flops} monotonic")
            flops = 0
        lines.append(line)
    return "\n".join(lines)


def counted_flops(task: Task, program: Program, target: Target) -> int:
    artifact = replace(artifact_of(program, target), code=assemble(counting(emit(program, target)), target))
    weights = {t.name: np.ones(t.shape, np.float32) for t in task.constants}
    kernel = PreparedKernel(artifact, weights, host_device(1))
    recording = kernel.record()
    inputs, outputs = (
        [aligned(4 * buffer.elements) for buffer in artifact.buffers if buffer.scope is scope]
        for scope in (Scope.INPUT, Scope.OUTPUT)
    )
    recording.bind(inputs, outputs)
    assert isinstance(kernel.kernel, HostKernel)
    counter = ctypes.c_int64.from_address(kernel.kernel.code.address("counter"))
    counter.value = 0
    recording.run()
    return counter.value


CASES = [
    "GMM 1 17 33 9",
    "C1D 1 20 8 16 3 1 1",
    "C2D 1 9 7 8 20 3 1 1",
    "C2D 1 11 11 5 17 5 2 2",
    "C3D 1 4 5 5 4 16 3 1 1",
    "GRP 1 7 7 8 16 3 1 1 2",
    "DIL 1 9 9 8 16 3 1 2 2",
    "DEP 1 9 9 33 3 1 1",
    "T2D 1 4 4 8 16 4 2 1",
    "CAP 1 5 5 3 4 3 1 1",
    "GMV 33 65",
    "DOT 1000",
]


def programs(task: Task, target: Target) -> Iterator[Program]:
    rng = np.random.default_rng(7)
    for sketch in sketches(task, target):
        for point in sketch.sample_legal(5, rng):
            yield lowered(sketch, point)


@pytest.mark.parametrize("case", CASES)
def test_counted_operations_are_those_that_the_code_executes(case: str) -> None:
    name, *args = case.split()
    task, target = build(name, [int(a) for a in args]), detect(1)
    if not target.has_fma:
        pytest.skip("without fma a multiply-add is two instructions")
    for program in programs(task, target):
        assert executed_flops(program) == counted_flops(task, program, target), str(program)


def test_a_program_without_borders_executes_at_least_its_nominal_operations() -> None:
    task, target = build("GMM", [1, 64, 64, 64]), detect(1)
    for program in programs(task, target):
        assert executed_flops(program) >= task.flops
