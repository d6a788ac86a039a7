"""The backend of `torch.compile`, which PyTorch finds by the package's entry point.

fast = torch.compile(module, backend="stormdrop", options={"threads": 4})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stormdrop.base.errors import UserError
from stormdrop.compiler.compile import compile

if TYPE_CHECKING:
    from stormdrop.pytorch.backend import GraphFunction


def backend(
    graph: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> GraphFunction:
    """A function that runs a graph of `torch.compile`; `options` are keyword arguments of `sd.compile`."""
    from stormdrop.pytorch.backend import GraphFunction

    if mode not in (None, "default"):
        raise UserError(f"mode={mode!r} is not supported; sd.tune(module, example_inputs=...) finds faster kernels")
    return GraphFunction(graph, partial(compile, **(options or {})))
