"""JSON of files and messages, checked against a form before anything is made of it.

PORT = (str, [SIZE], DTYPE)                       # a list of three
conform(tree, {"name": str, "inputs": [PORT]})    # an object with exactly these fields; a list of any length
"""

from __future__ import annotations

import json
from typing import Any

from stormdrop.ir.expr import ITEMSIZE

LARGEST = 1 << 46
"""Bytes, or trips of a loop: products with a number of threads still fit 64 bits."""

SIZE = range(LARGEST + 1)
DTYPE = frozenset(ITEMSIZE)

Form = Any
"""A range: a whole number in it. `float`: a finite amount, 0 or more. A frozenset: one of these texts. Another type: a
value of exactly this type. [form]: a list of such values. (form, …): a list of exactly these. {name: form, …}: an
object with exactly these fields; an `Optional` field may be missing. `Nullable`: such a value, or null.
"""


class Nullable:
    """A form that allows null."""

    def __init__(self, form: Form) -> None:
        self.form = form


class Optional:
    """The form of a field that an object need not have."""

    def __init__(self, form: Form) -> None:
        self.form = form


def parsed(data: bytes) -> Any:
    """Parses a JSON document without repeated names and without NaN or infinities. Raises ValueError."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name occurs twice")
    return tree


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def conform(tree: Any, form: Form, where: str) -> None:
    """Raises ValueError if a tree differs from its form: the place, the value and the expected form."""
    kind = type(tree)
    match form:
        case Nullable():
            if tree is not None:
                conform(tree, form.form, where)
        case dict():
            required = {name for name, part in form.items() if not isinstance(part, Optional)}
            if kind is not dict or not required <= tree.keys() <= form.keys():
                found = f"an object with {', '.join(map(_shown, tree))}" if kind is dict else _shown(tree)
                raise ValueError(f"{where}: {found} for an object with {', '.join(form)}")
            for name, value in tree.items():
                part = form[name]
                conform(value, part.form if isinstance(part, Optional) else part, f"{where}, {name}")
        case list():
            if kind is not list:
                raise ValueError(f"{where}: {_shown(tree)} for a list")
            for item in tree:
                conform(item, form[0], where)
        case tuple():
            if kind is not list or len(tree) != len(form):
                raise ValueError(f"{where}: {_shown(tree)} for a list of {len(form)}")
            for item, part in zip(tree, form):
                conform(item, part, where)
        case range():
            if kind is not int or tree not in form:  # a bool is not an int here
                raise ValueError(f"{where}: {_shown(tree)} for a whole number from {form.start} to {form.stop - 1}")
        case frozenset():
            if kind is not str or tree not in form:
                raise ValueError(f"{where}: {_shown(tree)} for one of {', '.join(sorted(form))}")
        case _ if form is float:
            if kind not in (int, float) or not 0 <= tree < 1e300:
                raise ValueError(f"{where}: {_shown(tree)} for an amount")
        case _:
            if kind is not form:
                raise ValueError(f"{where}: {_shown(tree)} for a {form.__name__}")


def _shown(value: Any) -> str:
    text = repr(value) if type(value) in (str, int, float, bool) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
