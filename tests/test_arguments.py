"""Wrong arguments to the Python functions: each is a UserError that names the argument, before any work is done."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.arguments import shape_from, shapes_by_name
from stormdrop.operators.catalogue import build
from tests.support.graphs import graph_of
from tests.support.tiny_onnx import dense

TASK = build("GMM", [1, 8, 8, 8])
W = {"W": np.zeros((1, 8, 8), np.float32)}

COMPILE: dict[str, Any] = {
    "shapes": [
        5,
        [1, 2],
        {"x": "abc"},
        {"x": None},
        {"x": 4},
        {"x": (1.5, 2)},
        {"x": ("a", "b")},
        {"x": (-1, 8)},
        {1: (2, 3)},
    ],
    "constants": [5, [1], {1: 2}],
    "threads": ["2", 1.5, 0, True, 10**6],
    "spin": ["x", -1, True, float("nan"), 1e9],
    "affinity": ["x", "", 3, [], [True], [-1], [0, 0]],
    "pool": ["x", 3],
    "target": [3, "x"],
    "winograd": ["no", 0, 1],
    "unproved": ["x"],
    "rules": [3, "tile", ["tile"]],
    "schedules": [3, {}, lambda task: "x"],  # pyright: ignore[reportUnknownLambdaType]
    "operators": [3, [3]],
}
TUNE: dict[str, Any] = {
    "trials": ["x", 1.5, 0, True],
    "seconds": ["3", 0, float("nan")],
    "seed": ["x", -1, 1.5],
    "store": ["x", 3],
    "objective": [3, "fast"],
    "kernel_value": [3],
    "search": [3, "x"],
    "reuse": [3],
    "donors": [3, "x"],
    "cold": ["x"],
    "start": [3],
    "listen": [3],
    "settings": [3],
    "spaces": [3],
    "measurer": [3],
    "rules": [3],
    "threads": ["2"],
    "target": [3],
}


def cases(options: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r:.20}") for name, values in options.items() for value in values
    ]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return dense(tmp_path)


@pytest.mark.parametrize(("name", "value"), cases(COMPILE))
def test_compile_refuses_it(model: Path, name: str, value: Any) -> None:
    with pytest.raises(sd.UserError):
        sd.compile(model, **{name: value})


@pytest.mark.parametrize("value", [3, None, [], {}, object()])
def test_what_is_no_model_is_refused(value: Any) -> None:
    with pytest.raises(sd.UserError, match="a model is"):
        sd.compile(value)


@pytest.mark.parametrize(("name", "value"), cases(TUNE))
def test_tune_refuses_it(name: str, value: Any) -> None:
    given: Any = {"trials": 1, name: value}
    with pytest.raises(sd.UserError):
        sd.tune(TASK, **given)


@pytest.mark.parametrize(
    ("name", "value"), [("objective", 3), ("objective", "fast"), ("divide", 3), ("winograd", "no")]
)
def test_tuning_a_model_refuses_it(model: Path, name: str, value: Any) -> None:
    given: Any = {"trials": 1, name: value}
    with pytest.raises(sd.UserError, match=name):
        sd.tune(model, **given)


OTHERS: dict[str, Callable[[Any], object]] = {
    "build: a task": lambda three: sd.build(three),
    "build: a schedule": lambda three: sd.build(TASK, constants=W, schedule=three),
    "build: rules": lambda three: sd.build(TASK, constants=W, rules=three),
    "read_graph": lambda three: sd.read_graph(three),
    "load": lambda three: sd.load(three),
    "a store": lambda three: sd.Store.open(three),
    "a view of a store": lambda three: sd.Store.view(three),
    "sketches: a task": lambda three: sd.sketches(three, sd.detect()),
    "sketches: a target": lambda three: sd.sketches(TASK, three),
    "a tensor's name": lambda three: sd.tensor(three, (2,)),
    "a task's outputs": lambda three: sd.Task(three),
    "a file to save in": lambda three: tiny().save(three),
    "a library": lambda three: sd.export_library(tiny(), three),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS.keys())
def test_three_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(sd.UserError):
        call(3)


def tiny() -> sd.Model:
    from stormdrop.graph.builder import GraphBuilder

    b = GraphBuilder()
    return sd.compile(graph_of(b, b.emit("Relu", b.input("x", (8, 8), "f32"))), schedules=lambda task: None)


def test_a_compiled_model_is_not_compiled_again(tmp_path: Path) -> None:
    tiny().save(tmp_path / "m.sd")
    for path in (tmp_path / "m.sd", str(tmp_path / "m.sd")):
        with pytest.raises(sd.UserError, match=r"sd\.load"):
            sd.compile(path)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_a_model_or_a_kernel_says_what_to_do_instead(way: Callable[[object], object]) -> None:
    for made in (tiny(), sd.build(TASK, constants=W)):
        with pytest.raises(sd.UserError, match=r"model\.save"):
            way(made)


def test_control_characters_of_names_are_escaped_in_the_texts_of_errors() -> None:
    X, i = sd.tensor("X", (4,)), sd.axis(4)
    task = sd.Task([sd.compute("Y", i, X[i] * 2)], name="\x1b[31mred\u202e")
    kernel = sd.build(task)
    with pytest.raises(sd.UserError) as told:
        kernel(1, 2)
    assert "\\x1b[31mred\\u202e" in str(told.value)
    assert str(told.value).isprintable()


def test_texts_of_shapes_become_tuples() -> None:
    assert shapes_by_name({"x": "1x3x32x32", "y": "4", "z": "", "w": (2, 3)}) == {
        "x": (1, 3, 32, 32),
        "y": (4,),
        "z": (),
        "w": (2, 3),
    }
    assert shapes_by_name([{"x": "1x2"}, {"x": [3, 4]}]) == [{"x": (1, 2)}, {"x": [3, 4]}]
    assert shapes_by_name(None) is None
    for text in ("1x", "axb", "1 3", "-1x3", "x"):
        with pytest.raises(sd.UserError, match="write 1x3x224x224"):
            shape_from(text)
