"""Errors, sorted by origin.

`UserError` is the caller's mistake, `ScheduleError` an illegal candidate (expected, dropped). `BuildError`, `RunError`
and `Timeout` are candidates that failed. Every other error is a bug in Stormdrop and propagates.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

LONGEST = 500
"""Characters of the first line of an error, which may quote a name of any length."""
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class StormdropError(Exception):
    """The base of every error that Stormdrop raises on purpose.

    Its text may hold names from models and files; their unprintable characters are written as escapes.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


def printable(text: str, keep: str = "") -> str:
    """Returns the text with every unprintable character written as an escape: \\x1b, \\n, \\u202e, \\udc80.

    So a name can neither move the cursor, nor reverse the line, nor begin a new line. Characters in `keep` stay
    unchanged.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """Returns the first line of a library's error; of onnxruntime's errors in nested graphs, the innermost message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].rpartition("Status Message: ")[2][:LONGEST] if lines else type(error).__name__


class StormdropWarning(UserWarning):
    """A warning to users; execution continues. `warnings.filterwarnings` silences it, or makes it an error."""


def warn(text: str) -> None:
    """Warns the caller of Stormdrop: the warning's place is the nearest line outside this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    module = frame.f_globals
    registry = module.setdefault("__warningregistry__", {})
    place = frame.f_code.co_filename, frame.f_lineno, module.get("__name__", "<unknown>")
    warnings.warn_explicit(printable(text), StormdropWarning, *place, registry)


class UserError(StormdropError):
    """A bad model, an unsupported operator, a wrong argument: the message states the remedy."""


class ModelError(UserError):
    """A model that cannot be read or imported.

    `file` is its path, None if it came from memory; `node` names the node at fault, None if it is none of them.
    """

    file: str | None
    """The path of the model's file; None if the model came from memory."""
    node: str | None
    """The name of the node at fault; None if the fault lies in no node."""

    def __init__(self, message: str, file: str | None = None, node: str | None = None) -> None:
        super().__init__(message)
        self.file, self.node = file, node


class Unsupported(ModelError):
    """A valid model that needs an unsupported feature."""


class UnsupportedOperator(Unsupported):
    """A model that needs operators, or forms of operators, that are not supported.

    `operators` names them, each once: `NonZero`, or with its domain, `com.example.Sparse`.
    """

    operators: tuple[str, ...]
    """The operators that are not supported, sorted."""

    def __init__(self, message: str, operators: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.operators = tuple(sorted(set(operators)))


class ScheduleError(StormdropError):
    """A schedule that does not fit its task or its target."""


class BuildError(StormdropError):
    """A program that could not be turned into machine code."""


class RunError(StormdropError):
    """A kernel that crashed, trapped or computed a wrong result."""


class Timeout(StormdropError):
    """A candidate that exceeded its time limit."""
