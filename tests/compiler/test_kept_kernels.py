"""Kernels that are kept between processes: found again, never trusted where others could have written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.builder.building import BuiltKernel, Packing
from stormdrop.compiler import kept_kernels
from stormdrop.compiler.kept_kernels import KeptKernels
from stormdrop.compiler.kernel_builds import Job, build_kernels
from stormdrop.device.host_device import host_device
from stormdrop.lower.packed_layout import PackedLayout, layout_of
from stormdrop.model.kernel import PreparedKernel
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from tests.support.remarks import every_remark, remarks


def job(n: int) -> Job:
    a = sd.tensor("a", (n,))
    i = sd.axis(n)
    return Job(sd.Task([sd.compute("y", (i,), a[i] + 1.0)]), None, {}, packing=Packing())


@pytest.fixture
def target() -> Target:
    return sd.detect(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "compiled"


def run(kernel: BuiltKernel, n: int) -> float:
    x, y = np.arange(n, dtype=np.float32), np.empty(n, np.float32)
    recording = PreparedKernel(kernel.artifact, {}, host_device(1)).record()
    recording.bind([x], [y])
    recording.run()
    return float(y.sum() - x.sum())


def built_again(folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch, n: int = 5) -> bool:
    """Whether a job is built, rather than read."""
    asked: list[int] = []
    real = kept_kernels.build_kernels
    monkeypatch.setattr(kept_kernels, "build_kernels", lambda *a, **k: asked.append(1) or real(*a, **k))  # pyright: ignore
    (kernel,) = KeptKernels(folder).build([job(n)], target)
    assert run(kernel, n) == n
    monkeypatch.undo()
    return bool(asked)


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_kernels_are_found_again_and_only_this_user_can_read_them(
    folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built_again(folder, target, monkeypatch)
    assert not built_again(folder, target, monkeypatch)
    assert the_file(folder).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_another_task_target_or_version_is_another_file(
    folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptKernels(folder).build([job(5)], target)
    KeptKernels(folder).build([job(6)], target)
    KeptKernels(folder).build([job(5)], target.with_threads(2))
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(kept_kernels, "_source_digest", lambda: "edited")
    KeptKernels(folder).build([job(5)], target)
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("mode", [0o622, 0o602])
def test_a_file_that_others_may_write_is_not_read(
    folder: Path, target: Target, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptKernels(folder).build([job(5)], target)
    the_file(folder).chmod(mode)
    assert built_again(folder, target, monkeypatch)


def test_a_directory_that_others_may_write_is_not_read(
    folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptKernels(folder).build([job(5)], target)
    folder.chmod(0o777)
    assert built_again(folder, target, monkeypatch)


def test_a_file_of_another_user_is_not_read(folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptKernels(folder).build([job(5)], target)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (kernel,) = KeptKernels(folder).build([job(5)], target)
    assert run(kernel, 5) == 5


def test_a_link_is_not_followed(folder: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptKernels(folder).build([job(5)], target)
    path = the_file(folder)
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")
    assert built_again(folder, target, monkeypatch)


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_file_is_built_again(folder: Path, target: Target, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptKernels(folder).build([job(5)], target)
    data = bytearray(the_file(folder).read_bytes())
    data[at] ^= 1
    the_file(folder).write_bytes(data)
    assert built_again(folder, target, monkeypatch)
    assert not built_again(folder, target, monkeypatch)


def test_the_least_recently_used_files_go(folder: Path, target: Target) -> None:
    KeptKernels(folder).build([job(5)], target)
    first = the_file(folder)
    os.utime(first, (1, 1))
    KeptKernels(folder).build([job(6)], target)
    second = next(p for p in folder.iterdir() if p != first)
    os.utime(second, (2, 2))
    KeptKernels(folder).build([job(5)], target)  # used again: it is the youngest now
    size = first.stat().st_size
    KeptKernels(folder, most_bytes=int(2.5 * size)).build([job(7)], target)
    assert first.exists()
    assert not second.exists()


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, target: Target) -> None:
    taken = tmp_path / "file"
    taken.write_text("no directory")
    (kernel,) = KeptKernels(taken / "compiled").build([job(5)], target)
    assert run(kernel, 5) == 5


def test_what_became_of_a_schedule_is_told_in_every_process(folder: Path, target: Target) -> None:
    task = job(64).task
    schedule = default_schedule(task, target)
    elsewhere = replace(schedule, class_key="another")
    illegal = replace(schedule, values=tuple((name, 10**6) for name, _ in schedule.values))
    for given, deviation, hits in ((elsewhere, "default", 0), (illegal, "fitted", 1)):
        first, second = KeptKernels(folder), KeptKernels(folder)
        for kept in (first, second):
            with every_remark() as recorded:
                (kernel,) = kept.build([Job(task, given, {})], target)
            assert kernel.deviation == deviation
        assert second.hits == hits
        assert len(remarks(recorded)) == 1 - hits  # of what was fitted, whoever builds the model tells


def test_a_schedule_that_gives_way_to_shared_constants_is_told_of(target: Target) -> None:
    a, b = sd.tensor("a", (64, 64)), sd.tensor("b", (64, 64), constant=True)
    i, j, k = sd.axis(64), sd.axis(64), sd.reduce_axis(64)
    task = sd.Task([sd.compute("c", (i, j), sd.sum(a[i, k] * b[k, j], k))])
    by_layout: dict[PackedLayout, Schedule] = {}
    for sketch in sketches(task, target):
        for point in sketch.sample_legal(20, np.random.default_rng(0)):
            by_layout.setdefault(layout_of(sketch, point), sketch.schedule(point))
    (one, schedule), (other, _) = [(key, s) for key, s in by_layout.items() if key.tensors][:2]
    for known, deviation in ((one, ""), (other, "shared")):
        (kernel,) = build_kernels([Job(task, schedule, {}, packing=Packing((known,), may_own=False))], target)
        assert kernel.deviation == deviation
