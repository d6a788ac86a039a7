"""One function compiles for Python and for the command line: options, events, a store that cannot be read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stormdrop as sd
from stormdrop.cli.main import main
from stormdrop.compiler.compile import Keywords, compile, compile_model
from stormdrop.compiler.options import (
    CompileOptions,
    Event,
    MachineOptions,
    Placed,
    Planned,
    ReadOptions,
    Scheduled,
    StoreUnreadable,
)
from stormdrop.model.open_model import OpenModel
from tests.support.mixed_models import X, opened, positives
from tests.support.tiny_onnx import INPUT, dense

REMARK = "default schedules are used, since the store cannot be read"


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path))
    (tmp_path / "reservoir.sqlite").write_bytes(b"nothing of the kind" * 100)


def compiled(model: Any, **reading: Any) -> tuple[sd.Model, list[Event]]:
    events: list[Event] = []
    options = CompileOptions(read=ReadOptions(**reading), machine=MachineOptions(threads=1))
    return compile_model(model, options, events.append), events


def at_one_size(folder: Path) -> tuple[sd.Model, list[Event]]:
    return compiled(dense(folder))


def in_parts(folder: Path) -> tuple[sd.Model, list[Event]]:
    return compiled(positives(), fallback="onnxruntime")


def at_two_sizes(folder: Path) -> tuple[sd.Model, list[Event]]:
    model, events = compiled(dense(folder, "N"))
    assert isinstance(model, OpenModel)
    for rows in (2, 3):
        model(np.ones((rows, 6), np.float32))
    return model, events


def in_parts_at_two_sizes(folder: Path) -> tuple[sd.Model, list[Event]]:
    model, events = compiled(opened(positives()), fallback="onnxruntime")
    for rows in (2, 3):
        model(X[:rows])
    return model, events


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("made", [at_one_size, in_parts, at_two_sizes, in_parts_at_two_sizes])
def test_an_unreadable_store_is_one_event_and_default_schedules_follow(
    made: Callable[[Path], tuple[sd.Model, list[Event]]], tmp_path: Path
) -> None:
    model, events = made(tmp_path)
    (event,) = (e for e in events if isinstance(e, StoreUnreadable))
    assert REMARK in str(event)
    assert model.origins
    assert set(model.origins.values()) == {"default"}


@pytest.mark.usefixtures("unreadable")
def test_the_event_of_an_unreadable_store_is_a_warning_in_python(tmp_path: Path) -> None:
    with pytest.warns(sd.StormdropWarning, match=REMARK) as remarks:
        sd.compile(dense(tmp_path), threads=1)
    assert len(remarks) == 1


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("sizes", [(), (f"{INPUT}=2x6", f"{INPUT}=3x6")])
def test_the_event_of_an_unreadable_store_is_a_note_on_the_command_line(sizes: tuple[str, ...], tmp_path: Path) -> None:
    words = ["compile", str(dense(tmp_path, "N" if sizes else 2)), "-o", str(tmp_path / "m.sd"), "--threads", "1"]
    result = CliRunner().invoke(main, [*words, *(word for size in sizes for word in ("--shapes", size))])
    assert result.exit_code == 0, result.output
    assert result.stderr.count(REMARK) == 1


def test_a_compilation_is_planned_and_each_task_is_scheduled(tmp_path: Path) -> None:
    model, events = compiled(dense(tmp_path))
    planned, *scheduled = events
    assert isinstance(planned, Planned)
    assert [type(event) for event in scheduled] == [Scheduled] * planned.tasks
    assert planned.tasks == len(model.origins)


def test_a_part_in_another_runtime_is_an_event() -> None:
    _, events = compiled(positives(), fallback="auto")
    (placed,) = (event for event in events if isinstance(event, Placed))
    assert "NonZero" in str(placed)


def test_the_keyword_arguments_are_the_fields_of_the_options() -> None:
    keywords = set(inspect.signature(compile).parameters) - {"model", "example_inputs", "progress"}
    nested = {f.name for options in (ReadOptions, MachineOptions) for f in fields(options)}
    assert keywords == nested | {f.name for f in fields(CompileOptions)} - {"read", "machine"}
    assert set(Keywords.__annotations__) == keywords - {"fallback"} | {"progress"}
