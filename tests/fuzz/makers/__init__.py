"""What random models are made of: per module a table from a name to a maker and its weight.

A key is an ONNX operator's name, or lower-case words for an idiom of several operators.
"""

from __future__ import annotations

from tests.fuzz.draft import Maker
from tests.fuzz.makers import (
    attention,
    blocks,
    choices,
    composites,
    control,
    gathering,
    idioms,
    movement,
    narrow,
    pointwise,
    products,
    recurrent,
    reductions,
    resizing,
    windows,
)

MODULES = (
    pointwise,
    reductions,
    products,
    windows,
    movement,
    gathering,
    resizing,
    recurrent,
    control,
    composites,
    idioms,
    attention,
    blocks,
    choices,
    narrow,
)
MAKERS: dict[str, tuple[float, Maker]] = {name: made for module in MODULES for name, made in module.MAKERS.items()}
