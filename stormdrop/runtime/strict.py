"""Data of files and messages, read strictly: every field is there, is known, and is of its type and range.

All functions raise ValueError that says what was found and what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from stormdrop.ir.expr import ITEMSIZE, Dtype

LARGEST = 1 << 46
"""Bytes, or trips of a loop: products with a number of threads still fit 64 bits."""

_DTYPES: dict[str, Dtype] = {name: name for name in ITEMSIZE}
T = TypeVar("T")


def parsed(data: bytes) -> Any:
    """A JSON document without repeated names and without NaN or infinities."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


class Fields:
    """The fields of a JSON object, each of which must be there and be taken."""

    def __init__(self, tree: Any, what: str) -> None:
        self._tree, self._what = dict(object_of(tree)), what

    def take(self, name: str, read: Callable[[Any], T]) -> T:
        if name not in self._tree:
            raise ValueError(f"a {self._what} without {name}")
        try:
            return read(self._tree.pop(name))
        except ValueError as error:
            raise ValueError(f"{self._what}, {name}: {error}") from error

    def close(self) -> None:
        if self._tree:
            raise ValueError(f"a {self._what} with {min(self._tree)[:40]!r}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name occurs twice")
    return tree


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def object_of(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"{_shown(value)} for an object")
    return value


def list_of(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{_shown(value)} for a list")
    return value


def row_of(value: Any, length: int) -> list[Any]:
    if len(list_of(value)) != length:
        raise ValueError(f"{len(value)} entries for {length}")
    return value


def text_of(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{_shown(value)} for a text")
    return value


def integer_of(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # a bool is not an int here
        raise ValueError(f"{_shown(value)} for a whole number between {least} and {most}")
    return value


def size_of(value: Any) -> int:
    return integer_of(value, 0, LARGEST)


def amount_of(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e300:
        raise ValueError(f"{_shown(value)} for an amount")
    return float(value)


def one_of(value: Any, known: dict[str, T]) -> T:
    if type(value) is not str or value not in known:
        raise ValueError(f"{_shown(value)} for one of {', '.join(known)}")
    return known[value]


def _shown(value: Any) -> str:
    text = repr(value) if type(value) in (str, int, float, bool) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def flag_of(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_shown(value)} for yes or no")
    return value


def dtype_of(value: Any) -> Dtype:
    return one_of(value, _DTYPES)
