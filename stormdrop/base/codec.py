"""Conversion of typed values to JSON trees, and of trees back to values, by type annotations.

    @dataclass(frozen=True, slots=True)
    class Port(Row):                    # ["x", [3, 5]]; without Row: {"name": "x", "shape": [3, 5]}
        name: str
        shape: tuple[Size, ...]

    encode(port) -> tree                decode(Port, tree) -> port

Scalars are None, bool, str, bytes, int of 64 bits and finite float; numbers in a range, `Annotated[int, Range(1, 64)]`;
`Literal` of strings; and `Enum` with string values. Tuples, dataclasses, unions and mappings consist of these types.
The members of a union must have different trees. A mapping is a list of pairs. In the object of a dataclass, fields
with their default value may be missing. A class with `to_json` and `from_json` defines its own tree.

`text_of` and `tree_of` turn trees into JSON text and back. Byte strings are kept outside the text, one after the other.

Invariant: `decode` accepts only trees of the given type, and converts no value except a whole number to a float. The
error of a wrong tree states the place of the fault, such as `ports.0.shape`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from stormdrop.base.errors import UserError

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
"""A function from trees of one type to values. Raises Malformed."""

LARGEST = 1 << 46
"""The most bytes or iterations: their products with a number of threads still fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `least` to `most`, both included."""

    least: float
    most: float


Size = Annotated[int, Range(0, LARGEST)]
Count = Annotated[int, Range(1, LARGEST)]
Amount = Annotated[float, Range(0, 1e300)]
Rate = Annotated[float, Range(1e-300, 1e300)]
_INT, _FLOAT = Range(-(1 << 63), (1 << 63) - 1), Range(-1e300, 1e300)


class Row:
    """The base of dataclasses whose tree is a list of all fields, in order, instead of an object."""

    __slots__ = ()


class Tolerant:
    """The base of dataclasses that ignore unknown fields of an object, which another version wrote."""

    __slots__ = ()


class Malformed(ValueError):
    """An error in a tree or a text, with the fields and indices that lead to the place of the error."""

    def __init__(self, fault: str, *places: str) -> None:
        super().__init__(f"{'.'.join(places)}: {fault}" if places else fault)
        self.fault, self.places = fault, places


def encode(value: Any) -> Any:
    """Returns the tree of a value; byte strings stay byte strings. Raises TypeError for a value without a tree."""
    match value:
        case None | bool() | int() | str() | bytes():
            return value
        case float():
            return float(value)  # not NumPy's
        case tuple() | list():
            return [encode(item) for item in cast(tuple[Any, ...], value)]
        case Enum():
            return value.value
        case Row():
            return [encode(getattr(value, name)) for name in _defaults(type(value))]
        case _ if hasattr(value, "to_json"):
            return value.to_json()
        case _ if is_dataclass(value):
            parts = {name: (getattr(value, name), default) for name, default in _defaults(type(value)).items()}
            return {name: encode(part) for name, (part, default) in parts.items() if part != default}
        case Mapping():  # last, since this test is slow
            return [[encode(key), encode(item)] for key, item in cast(Mapping[Any, Any], value).items()]
        case _:
            raise TypeError(f"a {type(value).__name__} has no tree")


def decode(kind: type[_T], tree: Any) -> _T:
    """Returns the value of a tree, the inverse of `encode`. Raises Malformed."""
    return _reader(kind)(tree)


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Returns the defaults of the arguments of a dataclass by name; `MISSING` for a required one.

    An argument with a default factory counts as required.
    """
    return {field.name: field.default for field in fields(kind) if field.init}


@cache
def _reader(kind: Any) -> _Reader:
    """Returns the function that decodes trees of a type. Raises TypeError for a type without trees."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _number(*arguments)
    if origin is Literal:
        return _one_of({word: word for word in arguments})
    if origin is tuple:
        return _list(arguments)
    if origin is Mapping:
        return _mapping(_reader(tuple[tuple[arguments], ...]))
    if origin in (Union, UnionType):
        return _union([_reader(member) for member in arguments])
    if kind in (int, float):
        return _number(kind, _INT if kind is int else _FLOAT)
    if kind in (bool, str, bytes, NoneType):
        return _exactly(kind)
    if hasattr(kind, "from_json"):
        return lambda tree: _built(kind.from_json, tree)
    if issubclass(kind, Enum):
        return _one_of({member.value: member for member in kind})
    if is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind} has no trees")


def _exactly(kind: type) -> _Reader:
    wanted = "null" if kind is NoneType else f"a {kind.__name__}"

    def read(tree: Any) -> Any:
        _demand(type(tree) is kind, tree, wanted)
        return tree

    return read


def _number(kind: type[int] | type[float], bounds: Range) -> _Reader:
    kinds = (int,) if kind is int else (int, float)  # a bool is no int here
    wanted = f"a {'whole ' if kind is int else ''}number from {bounds.least:.15g} to {bounds.most:.15g}"

    def read(tree: Any) -> Any:
        _demand(type(tree) in kinds and bounds.least <= tree <= bounds.most, tree, wanted)
        return kind(tree)

    return read


def _one_of(values: Mapping[Any, Any]) -> _Reader:
    wanted = f"one of {', '.join(values)}"

    def read(tree: Any) -> Any:
        _demand(type(tree) is str and tree in values, tree, wanted)
        return values[tree]

    return read


def _list(kinds: tuple[Any, ...]) -> _Reader:
    """Returns the reader of `tuple[kinds]`; the last of the kinds may be an ellipsis."""
    has_any_length = kinds[-1] is ...
    readers = [_reader(kind) for kind in kinds if kind is not ...]
    wanted = "a list" if has_any_length else f"a list of {len(readers)}"

    def read(tree: Any) -> Any:
        _demand(type(tree) is list and (has_any_length or len(tree) == len(readers)), tree, wanted)
        reader_of_each = repeat(readers[0]) if has_any_length else readers
        return tuple([_part(k, reader, item) for k, (reader, item) in enumerate(zip(reader_of_each, tree))])

    return read


def _mapping(pairs: _Reader) -> _Reader:
    def read(tree: Any) -> Any:
        items = pairs(tree)
        mapping = dict(items)
        _demand(len(mapping) == len(items), tree, "a mapping: a key occurs twice")
        return mapping

    return read


def _union(readers: list[_Reader]) -> _Reader:
    def read(tree: Any) -> Any:
        errors: list[Malformed] = []
        for reader in readers:
            try:
                return reader(tree)
            except Malformed as error:
                errors.append(error)
        raise max(errors, key=lambda error: len(error.places))  # the closest member

    return read


def _dataclass(kind: Any) -> _Reader:
    hints, defaults = get_type_hints(kind, include_extras=True), _defaults(kind)
    readers = {name: _reader(hints[name]) for name in defaults}
    required = {name for name, default in defaults.items() if default is MISSING}
    wanted = f"{'a list of' if issubclass(kind, Row) else 'an object with'} {', '.join(readers)}"

    def of_object(tree: Any) -> Any:
        if issubclass(kind, Tolerant) and type(tree) is dict:
            tree = {name: item for name, item in cast(dict[Any, Any], tree).items() if name in readers}
        _demand(type(tree) is dict and required <= tree.keys() <= readers.keys(), tree, wanted)
        parts = cast(dict[str, Any], tree)
        return _built(kind, **{name: _part(name, readers[name], item) for name, item in parts.items()})

    def of_row(tree: Any) -> Any:
        _demand(type(tree) is list and len(tree) == len(readers), tree, wanted)
        return _built(kind, *[_part(name, reader, item) for (name, reader), item in zip(readers.items(), tree)])

    return of_row if issubclass(kind, Row) else of_object


def _built(build: Callable[..., Any], *values: Any, **values_by_name: Any) -> Any:
    """Builds a value by a class or a `from_json`. Raises Malformed if `build` rejects the parts."""
    try:
        return build(*values, **values_by_name)
    except (ValueError, UserError) as error:
        raise Malformed(str(error)) from error


def _part(place: object, reader: _Reader, tree: Any) -> Any:
    """Decodes the part of a tree at a field or an index, which comes to the front of an error's places."""
    try:
        return reader(tree)
    except Malformed as error:
        raise Malformed(error.fault, str(place), *error.places) from error.__cause__


def _demand(is_met: bool, tree: Any, wanted: str) -> None:
    """Raises Malformed, with the tree and the wanted one in words, unless the demand is met."""
    if not is_met:
        text = repr(tree) if type(tree) in (str, int, float, bool, NoneType) else f"a {type(tree).__name__}"
        names = f" with {', '.join(map(str, tree))}" if type(tree) is dict else ""
        raise Malformed(f"{(text + names)[:80]} is not {wanted}")


def text_of(tree: Any) -> tuple[bytes, bytes]:
    """Returns a tree as JSON text and its byte strings, concatenated; in the text `{"": n}` stands for n bytes."""
    blobs: list[bytes] = []

    def set_aside(value: object) -> dict[str, int]:
        if not isinstance(value, bytes):
            raise TypeError(f"a {type(value).__name__} has no tree")
        blobs.append(value)
        return {"": len(value)}

    text = json.dumps(tree, separators=(",", ":"), allow_nan=False, default=set_aside)
    return text.encode(), b"".join(blobs)


def tree_of(text: bytes, blobs: bytes = b"") -> Any:
    """Returns the tree of JSON text and its byte strings, the inverse of `text_of`.

    Raises Malformed for other text, repeated names, NaN, infinities, and more or fewer bytes than the text states.
    """
    end = 0
    read_size = _reader(Size)

    def object_of(pairs: list[tuple[str, Any]]) -> Any:
        nonlocal end
        tree = dict(pairs)
        if len(tree) != len(pairs):
            raise Malformed("a name occurs twice")
        if tree.keys() != {""}:
            return tree
        begin, end = end, end + read_size(tree[""])
        return blobs[begin:end]

    def refuse(name: str) -> Any:
        raise Malformed(f"{name} is not a finite number")

    try:
        tree = json.loads(text, object_pairs_hook=object_of, parse_constant=refuse)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error
    _demand(end == len(blobs), end, f"the number of bytes beside the text, {len(blobs)}")
    return tree
