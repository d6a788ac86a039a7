"""Errors that say where in a model they arose: every UserError becomes a ModelError with the file and the node."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from stormdrop.errors import ModelError, Unsupported, UnsupportedOperator, UserError


@contextmanager
def located(
    prefix: str = "", *, file: str | None = None, node: str | None = None, operator: str = ""
) -> Generator[None]:
    """Puts a prefix before the message of an error, and notes its place; a node inside another keeps its own.

    A message that names a node already gets no prefix from a node around it. What the operator of a node needs and is
    not supported becomes an error of the operator.
    """
    try:
        yield
    except UserError as error:
        message = str(error)
        is_of_operator = type(error) is Unsupported and bool(operator)
        if prefix and (node is None or is_of_operator or "node " not in message):
            message = f"{prefix}: {message}"
        if is_of_operator:
            found: ModelError = UnsupportedOperator(message, [operator])
        else:
            found = error if isinstance(error, ModelError) else ModelError(message)
        found.args = (message,)
        found.file, found.node = found.file or file, found.node or node
        if found is error:
            raise
        raise found from error
