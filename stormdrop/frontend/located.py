"""Errors with their place in a model: every UserError becomes a ModelError with the file and the node."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from stormdrop.base.errors import ModelError, Unsupported, UnsupportedOperator, UserError

EXTRA = "pip install '.[onnxruntime]'"
RUNTIME_REMEDY = f'onnxruntime can run it: {EXTRA}, with --fallback auto (fallback="auto")'
REMEDIES = f"{RUNTIME_REMEDY}; or give an operator of your own: --operator (operators=)"
"""The remedies for an operator that is not supported."""


@contextmanager
def with_remedies() -> Generator[None]:
    """Appends the remedies to the message of an UnsupportedOperator."""
    try:
        yield
    except UnsupportedOperator as error:
        error.args = (f"{error}; {REMEDIES}",)
        raise


@contextmanager
def located(
    prefix: str = "", *, file: str | None = None, node: str | None = None, operator: str = ""
) -> Generator[None]:
    """Puts a prefix before the message of an error, and notes its place; a node inside another node keeps its own.

    A message that already names a node gets no prefix from an outer node. An unsupported property of a node becomes an
    error of its operator.
    """
    try:
        yield
    except UserError as error:
        message = str(error)
        is_of_operator = type(error) is Unsupported and bool(operator)
        if prefix and (node is None or is_of_operator or "node " not in message):
            message = f"{prefix}: {message}"
        if is_of_operator:
            placed: ModelError = UnsupportedOperator(message, [operator])
        else:
            placed = error if isinstance(error, ModelError) else ModelError(message)
        placed.args = (message,)
        placed.file, placed.node = placed.file or file, placed.node or node
        if placed is error:
            raise
        raise placed from error
