"""Errors that say where in a model they arose: every UserError becomes a ModelError with the file and the node."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from stormdrop.errors import ModelError, UserError


@contextmanager
def located(prefix: str = "", *, file: str | None = None, node: str | None = None) -> Generator[None]:
    """Puts a prefix before the message of an error, and notes its place; a node inside another keeps its own.

    A message that names a node already gets no prefix from a node around it.
    """
    try:
        yield
    except UserError as error:
        message = str(error)
        if prefix and not (node is not None and "node " in message):
            message = f"{prefix}: {message}"
        if isinstance(error, ModelError):
            error.args = (message,)
            error.file, error.node = error.file or file, error.node or node
            raise
        raise ModelError(message, file, node) from error
