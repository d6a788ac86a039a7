"""Phases of a model without barriers between them: equal results, and no iteration touches what another one writes.

Models are also compiled from instrumented code (`tests.support.traced`), which tells the bytes that each iteration
really touched: that is independent of what grouping knows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.builder import building
from stormdrop.builder.building import BuiltKernel
from stormdrop.builder.grouping import MEANS, means_from
from stormdrop.compiler import kernel_builds as build_module
from stormdrop.compiler import model_build
from stormdrop.compiler.kernel_builds import Job, build_kernels
from stormdrop.device.artifact import Group
from stormdrop.device.host_device import HostMemory, HostRecording
from stormdrop.device.pool.pool_ir import STEP_WORDS
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.model import Model
from stormdrop.model.package import load
from stormdrop.space.rules import Rule
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import Target
from stormdrop.zoo.builder import NetworkBuilder
from stormdrop.zoo.export import model as onnx_model
from tests.support.traced import Conflict, TraceLog, conflicts

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@cache
def network() -> bytes:
    """Branches, chains of 1x1 convolutions, and a squeeze with little to compute."""
    net = NetworkBuilder("branches", batch=1, opset=18)
    x = net.relu(net.conv(net.input("x", (16, 12, 12)), "stem", 32, 1))
    branches = [net.relu(net.conv(x, f"branch{k}", 16 + 16 * k, 1)) for k in range(3)]
    x = net.relu(net.conv(net.concat("joined", branches), "mixed", 48, 3, pad=1))
    gate = net.relu(net.linear(net.flatten(net.global_average(x, "pool")), "squeeze", 12))
    gate = net.sigmoid(net.linear(gate, "excite", 48))
    x = net.mul("scaled", x, net.reshape(gate, "wide", (48, 1, 1)))
    x = net.relu(net.conv(net.relu(net.conv(x, "one", 64, 1)), "two", 32, 1))
    return onnx_model(net.finish(x), seed=0).SerializeToString()


X: Array = np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)


BUILT: dict[tuple[str, str, int, bool], BuiltKernel] = {}


def built_once(jobs: Sequence[Job], target: Cpu, rules: Sequence[Rule]) -> list[BuiltKernel]:
    """Kernels of which the tests need many models."""
    keys = [(job.task.digest, str(job.strides), target.threads, target.is_cold) for job in jobs]
    missing = {key: job for key, job in zip(keys, jobs) if key not in BUILT}
    BUILT.update(zip(missing, build_kernels(list(missing.values()), target, rules=rules)))
    return [BUILT[key] for key in keys]


def compiled(
    threads: int,
    means: Sequence[str] = MEANS,
    is_cold: bool = False,
    build: Callable[..., list[BuiltKernel]] = built_once,
) -> Model:
    target = sd.detect(threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORMDROP_GROUPS", ",".join(means) or "none")
        patch.setattr(model_build, "build_kernels", build)
        machine = replace(target, l3_bytes=4096) if is_cold else target
        return sd.compile(network(), target=machine, schedules=lambda _: None, winograd=False)


def kinds(model: Model) -> set[str]:
    return {"serial" if g.is_serial else "parallel" for g in model.image.all_groups if len(g.phases) > 1}


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_results_are_bit_equal_with_and_without_groups(threads: int) -> None:
    plain = compiled(threads, ())
    assert plain.image.groups == ()
    wanted = plain(X)
    found: set[str] = set()
    for means in (MEANS, *((one,) for one in MEANS)):
        model = compiled(threads, means)
        found |= kinds(model)
        for _ in range(5):
            assert model(X).tobytes() == wanted.tobytes(), means
    assert found == (set() if threads == 1 else {"serial", "parallel"})


def test_equal_models_have_equal_groups() -> None:
    assert compiled(2).image.groups == compiled(2).image.groups


def test_a_saved_model_has_its_groups_and_runs_with_other_threads(tmp_path: object) -> None:
    model, path = compiled(3), f"{tmp_path}/grouped.sd"
    model.save(path)
    assert load(path, 3)[0].groups == model.image.groups
    for threads in (1, 2, 4):
        assert sd.load_compiled(path, threads=threads)(X).tobytes() == model(X).tobytes()


def test_the_parts_of_a_profile_add_up_to_the_time_of_the_model() -> None:
    model = compiled(2)
    profile = model.profile(X, repeats=50)
    assert len(profile.rows) == len(model.image.calls)
    assert all(row.seconds > 0 and row.computing > 0 for row in profile.rows)
    assert all(part > -1e-9 for row in profile.rows for part in (row.late, row.waiting, row.off))
    assert np.isclose(profile.seconds, sum(row.computing + row.late + row.waiting + row.off for row in profile.rows))


def test_unknown_ways_of_grouping_are_refused() -> None:
    assert means_from({}) == set(MEANS)
    assert means_from({"STORMDROP_GROUPS": "none"}) == set()
    assert means_from({"STORMDROP_GROUPS": "serial, local"}) == {"serial", "local"}
    with pytest.raises(UserError, match="some of serial, independent, local"):
        means_from({"STORMDROP_GROUPS": "some"})


# ---- what iterations really touch ------------------------------------------------------------------------------------


class Traced:
    """A model of instrumented code, and one recording of it."""

    def __init__(self, threads: int, share_arena: bool = False) -> None:
        log = TraceLog()
        text_of = building.text_of

        def traced(program: building.Program, target: Target) -> str:
            return log.instrumented(text_of(program, target))

        def one_by_one(_groups: Sequence[Group], calls: int) -> list[tuple[int, int]]:
            return [(k, k) for k in range(calls)]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building, "text_of", traced)
            patch.setattr(build_module, "available_cpus", lambda: 1)
            if share_arena:
                patch.setattr(model_build, "concurrent_calls", one_by_one)
            model = compiled(threads, build=build_kernels)
            assert isinstance(model, FixedModel)
            self.model = model
        self.log = log
        calls, recording = self.model._recorded()
        assert isinstance(recording, HostRecording)
        self.recording = recording
        self.results = [np.zeros(port.shape, np.float32) for port in self.model.outputs]
        recording.bind([X], self.results)
        arenas = {id(a.memory): a.memory for call in calls for a in call.arguments if hasattr(a, "memory")}  # pyright: ignore
        blocks = [memory.block for memory in arenas.values() if isinstance(memory, HostMemory)]
        weights = {chunk.memory for chunk in self.model.chunks if isinstance(chunk.memory, HostMemory)}
        blocks = [block for block in blocks if not any(block is memory.block for memory in weights)]
        self.memory = [*blocks, *(result.reshape(-1).view(np.uint8) for result in self.results)]

    @property
    def records(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        return self.recording._steps._records.reshape(-1, STEP_WORDS).copy()

    def conflicts(self, records: np.ndarray[tuple[int, int], np.dtype[np.int64]] | None = None) -> list[Conflict]:
        return conflicts(self.records if records is None else records, self.log, self.memory)


traced_model = cache(Traced)


@pytest.mark.parametrize("threads", [2, 5])
def test_no_iteration_touches_what_another_one_of_its_group_writes(threads: int) -> None:
    traced = traced_model(threads)
    assert kinds(traced.model) == {"serial", "parallel"}
    assert traced.conflicts() == []
    assert np.allclose(traced.results[0], compiled(1, ())(X), atol=1e-4)


def test_a_missing_dependency_is_caught() -> None:
    """Each group put together with the one before it, although it reads what that wrote."""
    traced = traced_model(2)
    records = traced.records
    begins = np.flatnonzero(records[:, 7])
    caught = 0
    for first, second in pairwise(begins):
        size = int(records[first, 7] + records[second, 7])
        planted = records[first : first + size].copy()
        planted[:, 6], planted[:, 7] = 4, 0
        planted[0, 7] = size
        caught += bool(traced.conflicts(planted))
    assert caught >= len(begins) // 2


def test_memory_that_is_used_again_within_a_group_is_caught() -> None:
    assert any(Traced(threads, share_arena=True).conflicts() for threads in (5, 2, 3))
