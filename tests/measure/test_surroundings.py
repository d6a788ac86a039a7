"""Candidates that are timed as the kernels of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from stormdrop.base.codec import decode, encode
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import HandWritten, Measurer, MeasureSettings
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.target import Surroundings
from stormdrop.target.machine import Target

Write = Callable[..., HandWritten]
Draw = Callable[[Task, int], list[Schedule]]

MODEL = Surroundings(constant_bytes=2 << 20, arena_bytes=1 << 20)
SETTINGS = MeasureSettings(run_timeout=5, min_seconds=0.002, surroundings=MODEL)


@pytest.fixture(scope="module")
def surrounded(target: Target) -> Iterator[Measurer]:
    with Measurer(target, SETTINGS, builders=1) as measurer:
        yield measurer


def kind(result: Result) -> str:
    return result.kind if isinstance(result, Failure) else ""


def test_settings_reach_a_worker_as_they_are() -> None:
    for settings in (SETTINGS, MeasureSettings(seed=3)):
        assert decode(MeasureSettings, encode(settings)) == settings


def test_candidates_are_right_in_surroundings_however_they_are_timed(surrounded: Measurer, draw: Draw) -> None:
    task = build("GMM", [1, 16, 32, 24])
    first, second = draw(task, 2)
    results = [*surrounded.measure(task, [first, second]), *surrounded.retime(task, [first, second], 2)]
    results.append(surrounded.prove(task, first, witness=second))
    assert all(isinstance(result, Timing) and result.seconds > 0 for result in results), results


def test_cold_candidates_are_right_in_surroundings(target: Target, draw: Draw) -> None:
    task = build("GMM", [1, 16, 32, 24])
    small = replace(target, l3_bytes=1 << 20).with_cold_weights(True)
    with Measurer(small, SETTINGS, builders=1) as measurer:
        results = [*measurer.measure(task, draw(task, 2)), *measurer.retime(task, draw(task, 2), 2)]
    assert all(isinstance(result, Timing) for result in results), results


def test_faults_are_found_in_surroundings(surrounded: Measurer, tiny: Task, write: Write) -> None:
    """Inputs can be written in timed runs; what a candidate must not do shows in its first run, on read-only ones."""
    wrong = write("")
    writes_to_its_input = write("store float %y, ptr %at\n  store float 0.0, ptr %ina")
    later_wrong = write("%z = select i1 %again, float 7.0, float %y\n  store float %z, ptr %at")
    results = surrounded.measure(tiny, [wrong, writes_to_its_input, later_wrong, write()])
    assert [kind(result) for result in results] == ["wrong", "crash", "wrong", ""]


def test_a_hopeless_candidate_is_stopped_early(surrounded: Measurer, draw: Draw) -> None:
    task = build("GMM", [1, 64, 64, 64])
    (result,) = surrounded.measure(task, draw(task, 1), best=1e-9)
    assert isinstance(result, Timing)
    assert result.stopped_early
