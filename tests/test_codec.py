"""The codec: values survive their trees and texts, and hostile trees raise the named error only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormdrop.base.codec import Amount, Count, Malformed, Range, Row, Size, decode, encode, text_of, tree_of
from stormdrop.base.errors import UserError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Word:
    """A class with a tree of its own."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and other.text == self.text

    def to_json(self) -> str:
        return self.text

    @staticmethod
    def from_json(tree: Any) -> Word:
        if type(tree) is not str:
            raise UserError("not a word")
        return Word(tree)


@dataclass(frozen=True, slots=True)
class Pair(Row):
    least: Size
    most: Size

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError("the least is more than the most")


@dataclass(frozen=True, slots=True)
class Derived(Row):
    total: int = field(init=False)
    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.parts))


@dataclass(frozen=True, slots=True)
class Everything:
    name: str
    code: bytes
    pairs: tuple[Pair, ...]
    derived: Derived
    dimensions: tuple[int | str, ...] | None
    is_large: bool = False
    color: Color = Color.RED
    space: Literal["arena", "weights"] = "arena"
    seconds: Amount = 0.0
    threads: Annotated[int, Range(1, 8)] = 1
    fixed: tuple[str, int] = ("", 0)
    strides: Mapping[str, tuple[int, ...]] | None = None
    word: Word | None = None


INTS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.builds(
    Everything,
    st.text(),
    st.binary(max_size=8),
    st.lists(st.tuples(st.integers(0, 9), st.integers(9, 1 << 46)).map(lambda p: Pair(*p)), max_size=3).map(tuple),
    st.lists(INTS, max_size=3).map(lambda parts: Derived(tuple(parts))),
    st.none() | st.lists(INTS | st.text(), max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from(Color),
    st.sampled_from(["arena", "weights"]),
    st.floats(0, 1e300),
    st.integers(1, 8),
    st.tuples(st.text(), INTS),
    st.none() | st.dictionaries(st.text(), st.lists(INTS, max_size=2).map(tuple), max_size=2),
    st.none() | st.text().map(Word),
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda trees: st.lists(trees, max_size=4) | st.dictionaries(st.text(), trees, max_size=4),
)
GOOD = Everything("x", b"code", (Pair(1, 2),), Derived((1, 2)), (3, "rows"))


@settings(deadline=None)
@given(VALUES)
def test_a_value_survives_its_text(value: Everything) -> None:
    assert decode(Everything, tree_of(*text_of(encode(value)))) == value


@settings(deadline=None)
@given(st.sampled_from(list(Everything.__slots__)), TREES)
def test_a_hostile_tree_raises_the_named_error_only(name: str, tree: Any) -> None:
    for hostile in (tree, encode(GOOD) | {name: tree}):
        try:
            value = decode(Everything, hostile)
        except Malformed:
            continue
        assert decode(Everything, encode(value)) == value


@settings(deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=4))
def test_hostile_text_raises_the_named_error_only(text: bytes, blobs: bytes) -> None:
    with suppress(Malformed):
        tree_of(text, blobs)


def test_fields_with_their_default_are_left_out_and_rows_are_lists() -> None:
    assert encode(GOOD) == {
        "name": "x",
        "code": b"code",
        "pairs": [[1, 2]],
        "derived": [[1, 2]],
        "dimensions": [3, "rows"],
    }


@pytest.mark.parametrize(
    ("field_name", "tree", "fault"),
    [
        ("name", 3, "name: 3 is not a str"),
        ("is_large", 1, "is_large: 1 is not a bool"),
        ("threads", True, "threads: True is not a whole number from 1 to 8"),
        ("threads", 9, "threads: 9 is not a whole number from 1 to 8"),
        ("threads", 1.0, "threads: 1.0 is not a whole number"),
        ("seconds", -1.0, "seconds: -1.0 is not a number from 0 to 1e+300"),
        ("seconds", float("nan"), "seconds: nan is not a number"),
        ("color", "green", "color: 'green' is not one of red, blue"),
        ("space", ["arena"], "space: a list is not one of arena, weights"),
        ("pairs", [[1, 2], [1]], "pairs.1: a list is not a list of least, most"),
        ("pairs", [[1, -2]], "pairs.0.most: -2 is not a whole number from 0"),
        ("pairs", [[2, 1]], "pairs.0: the least is more than the most"),
        ("fixed", ["x"], "fixed: a list is not a list of 2"),
        ("dimensions", [None], "dimensions.0: None is not a whole number"),
        ("strides", [["a", [1]], ["a", [2]]], "a key occurs twice"),
        ("word", 3, "word: not a word"),
        ("secret", 1, "with name, code, pairs"),
    ],
)
def test_an_error_names_its_place(field_name: str, tree: Any, fault: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode(Everything, encode(GOOD) | {field_name: tree})
    assert fault in str(caught.value)


def test_a_missing_field_and_a_type_without_trees_are_errors() -> None:
    with pytest.raises(Malformed, match="a dict with name is not an object with name, code"):
        decode(Everything, {"name": "x"})
    with pytest.raises(TypeError, match="no trees"):
        decode(object, {})
    with pytest.raises(TypeError, match="has no tree"):
        encode(object())


def test_a_whole_number_is_a_float() -> None:
    amount = decode(tuple[Amount, Count], [3, 3])
    assert [type(part) for part in amount] == [float, int]


@pytest.mark.parametrize(
    ("text", "blobs", "fault"),
    [
        ("", b"", "not JSON"),
        ("[" * 100_000, b"", "not JSON"),
        ("NaN", b"", "NaN is not a finite number"),
        ('{"a": 1, "a": 1}', b"", "a name occurs twice"),
        ('[{"": 2}, {"": 1}]', b"xy", "3 is not the number of bytes"),
        ('{"": 1}', b"xy", "1 is not the number of bytes"),
        ('{"": -1}', b"", "-1 is not a whole number"),
        (json.dumps({"": [1]}), b"x", "a list is not a whole number"),
    ],
)
def test_malformed_text_is_refused(text: str, blobs: bytes, fault: str) -> None:
    with pytest.raises(Malformed, match=fault):
        tree_of(text.encode(), blobs)
