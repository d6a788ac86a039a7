"""What random models are made of: per module a table from a name to a maker and its weight.

A key is an ONNX operator's name, or lower-case words for an idiom of several operators.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tests.fuzz.draft import Maker

_MODULES = ("pointwise", "reductions", "products", "idioms", "windows", "movement", "gathering", "resizing", "recurrent")


def _tables() -> dict[str, tuple[float, Maker]]:
    found: dict[str, tuple[float, Maker]] = {}
    for name in _MODULES:
        if find_spec(f"tests.fuzz.makers.{name}") is not None:
            found |= import_module(f"tests.fuzz.makers.{name}").MAKERS
    return found


MAKERS = _tables()
