"""Dimensions that a file leaves open: their names, and what they are called in errors."""

from __future__ import annotations

import pytest
from onnx import ModelProto, helper

from stormdrop.base.errors import UserError
from stormdrop.frontend.onnx import load
from stormdrop.frontend.open_dimensions import interface
from stormdrop.frontend.parsed import parsed
from tests.support.open_onnx import open_onnx


def relu(*dims: int | str) -> ModelProto:
    return open_onnx([helper.make_node("Relu", ["x"], ["y"])], {"x": ("f32", dims)}, {"y": ("f32", dims)}, {})


def test_negative_numbers_and_question_marks_have_no_name_and_are_independent() -> None:
    (port,) = interface(parsed(relu(-1, 3, "?", "?"))).inputs
    assert port.dimensions == ("x[0]", 3, "x[2]", "x[3]")
    assert str(port) == "x: f32[any, 3, any, any]"


def test_each_takes_a_size_of_its_own() -> None:
    graph = load(relu(-1, 3, "?", "?"), shapes={"x": (1, 3, 48, 192)})
    assert graph.inputs[0].shape == (1, 3, 48, 192)


def test_dimensions_of_one_name_have_one_size() -> None:
    assert str(interface(parsed(relu("n", "n"))).inputs[0]) == "x: f32[n, n]"
    with pytest.raises(UserError, match="dimension n is given both as 2 and as 3"):
        load(relu("n", "n"), shapes={"x": (2, 3)})


def test_errors_print_an_open_dimension_as_any_or_by_its_name() -> None:
    with pytest.raises(UserError, match=r"has the fixed shape \[any, 3, any, width\], but \(1, 4, 8, 8\) is given"):
        load(relu(-1, 3, "?", "width"), shapes={"x": (1, 4, 8, 8)})
