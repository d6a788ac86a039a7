"""Several sizes of one model are tuned together, and the open model runs the results at these sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.graph.partition import TaskUse
from stormdrop.lower.packed_layout import PackedLayout, layout_of
from stormdrop.model.model import Model
from stormdrop.model.open_model import OpenModel
from stormdrop.space.default import resolve
from stormdrop.space.schedule import Schedule
from stormdrop.tuning.in_model import accept
from stormdrop.tuning.tune import TuneOptions
from stormdrop.tuning.tuned import Tuned
from tests.compiler.test_stored import other_schedules, verdict
from tests.support.open_onnx import decoder, perceptron

LENGTHS = 20, 40
"""Lengths that are rounded up, to 24 and 48."""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    monkeypatch.setattr("stormdrop.tuning.in_model.accept", quick(accept))


def quick(whole: Any) -> Any:
    def accepted(*args: Any, **options: Any) -> Tuned:
        return whole(*args, **{**options, "seconds": 0.001})

    return accepted


def small_decoder() -> ModelProto:
    return decoder(layers=1, width=16, heads=2, words=30)


def tuned(proto: ModelProto, shapes: Sequence[Mapping[str, Sequence[int]]], **options: Any) -> tuple[Tuned, ...]:
    return sd.tune(proto, shapes=shapes, trials=1, search="random", **options)


def opened(proto: ModelProto, **options: Any) -> OpenModel:
    model = sd.compile(proto, **options)
    assert isinstance(model, OpenModel)
    return model


def default(task: sd.Task) -> None:
    """No schedule of its own."""


def run_at(model: OpenModel, length: int) -> Model:
    """The model that runs a plain call."""
    model(np.ones((1, length), np.int64))
    return model.models[-1]


def decided(size: Tuned) -> set[str]:
    return {t.task.digest for t in size.tasks}


def is_run_as_tuned(model: Model, size: Tuned) -> bool:
    """Whether every task is one that was tuned, with its verdict; copies are no tasks of a partition."""
    copies = {digest for digest, origin in model.origins.items() if origin != "verdict"}
    return set(model.origins) - copies == decided(size) and len(copies) <= 1


def test_an_open_model_runs_the_exact_tasks_that_were_tuned_and_rounds_other_sizes() -> None:
    proto = small_decoder()
    untuned = opened(proto)
    assert run_at(untuned, LENGTHS[0]).inputs[0].shape == (1, 24)
    sizes = tuned(proto, [{"ids": (1, n)} for n in LENGTHS])
    assert [size.shapes for size in sizes] == [{"ids": (1, n)} for n in LENGTHS]
    model = opened(proto)
    for length, size in zip(LENGTHS, sizes):
        running = run_at(model, length)
        assert running.inputs[0].shape == (1, length)
        assert is_run_as_tuned(running, size)
    assert run_at(model, 21).inputs[0].shape == (1, 24)
    by_default = opened(proto, schedules=default)
    assert run_at(by_default, LENGTHS[0]).inputs[0].shape == (1, 24)


def test_a_size_that_others_are_rounded_up_to_runs_its_own_tasks_once_it_is_tuned() -> None:
    proto = small_decoder()
    (size,) = tuned(proto, [{"ids": (1, 24)}])
    model = opened(proto)
    rounded = run_at(model, 23)
    assert (is_run_as_tuned(rounded, size), len(rounded.inputs) > 1) == (False, True)
    assert is_run_as_tuned(run_at(model, 24), size)


def test_one_size_that_is_tuned_alone_is_run_exactly_too() -> None:
    proto = small_decoder()
    size = sd.tune(proto, shapes={"ids": (1, LENGTHS[0])}, trials=1, search="random")
    assert isinstance(size, Tuned)
    assert is_run_as_tuned(run_at(opened(proto), LENGTHS[0]), size)


def test_sizes_ahead_and_those_in_a_file_run_what_was_tuned(tmp_path: Path) -> None:
    proto = small_decoder()
    shapes = [{"ids": (1, n)} for n in LENGTHS]
    sizes = tuned(proto, shapes)
    ahead = opened(proto, shapes=shapes)
    assert all(is_run_as_tuned(m, size) for m, size in zip(ahead.models, reversed(sizes), strict=True))
    ahead.save(tmp_path / "m.sd")
    loaded = sd.load(tmp_path / "m.sd")
    assert isinstance(loaded, OpenModel)
    for m, size in zip(loaded.models, reversed(sizes), strict=True):
        assert {call.digest for call in m.image.calls} >= decided(size)


def layout(use: TaskUse, schedule: Schedule | None = None) -> PackedLayout:
    return layout_of(*resolve(use.task, schedule, sd.detect()))


def test_a_schedule_that_tuning_decided_keeps_its_packing_beside_other_sizes() -> None:
    proto = perceptron(width=256)
    large, small = (tasks_of(read_graph(proto, {"x": (rows, 32)})).tasks[0] for rows in (64, 1))
    others = other_schedules(small.task, sd.detect(), 40)
    schedule = next(s for s in others if layout(small, s).tensors and layout(small, s) != layout(large))
    with sd.Store.open() as store:
        store.add_verdicts([verdict(small.task, sd.detect(), schedule)])
    model = opened(proto, shapes=[{"x": (64, 32)}, {"x": (1, 32)}])
    origins = {digest: origin for m in model.models for digest, origin in m.origins.items()}
    assert (origins[large.task.digest], origins[small.task.digest]) == ("default", "verdict")


def test_weights_are_those_of_the_sum_that_is_minimised(monkeypatch: pytest.MonkeyPatch) -> None:
    objectives: list[Any] = []

    def listening(subjects: Sequence[object], _: object, options: TuneOptions, **__: object) -> tuple[object, ...]:
        objectives.append((len(subjects), options.objective))
        raise UserError("enough")

    monkeypatch.setattr("stormdrop.tuning.api.tune_subjects", listening)
    for weights in ([1, 3], None):
        with pytest.raises(UserError, match="enough"):
            tuned(perceptron(), [{"x": (1, 32)}, {"x": (8, 32)}], weights=weights)
    (count, weighted), (_, default) = objectives
    assert (count, weighted.weights, default) == (2, (1.0, 3.0), None)


def test_wrong_sizes_and_weights_are_refused() -> None:
    proto, sizes = perceptron(), [{"x": (1, 32)}, {"x": (8, 32)}]
    with pytest.raises(UserError, match=r"weights given: 3, models or sizes: 2"):
        tuned(proto, sizes, weights=[1, 2, 3])
    with pytest.raises(UserError, match="weights must be positive numbers, got 0"):
        tuned(proto, sizes, weights=[1, 0])
    with pytest.raises(UserError, match="lists 0 sizes"):
        tuned(proto, [])
    with pytest.raises(UserError, match="of one model"):
        sd.tune([proto, proto], shapes=sizes)  # pyright: ignore
    with pytest.raises(UserError, match=r"weights= .* is for models|weights= is for models"):
        sd.tune(tasks_of(read_graph(proto, sizes[0])).tasks[0].task, weights=[1])  # pyright: ignore
