"""Errors, sorted by whose fault they are.

`UserError` is the caller's mistake, `ScheduleError` an illegal candidate (expected, dropped), `BuildError`, `RunError`
and `Timeout` a candidate that failed. Anything else that is raised is a bug of ours and propagates.
"""

from __future__ import annotations

from collections.abc import Iterable


class StormdropError(Exception):
    """The base of every error that Stormdrop raises on purpose.

    Its text holds names out of models and files; what is not printable in them is written as an escape.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


def printable(text: str, keep: str = "") -> str:
    """The text with everything that is not printable written as an escape: \\x1b, \\n, \\u202e, \\udc80.

    A name can then neither move the cursor, nor turn the line round, nor begin another one. `keep` names exceptions.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


class UserError(StormdropError):
    """A bad model, an unsupported operator, a wrong argument: the message says what to do about it."""


class ModelError(UserError):
    """A model that cannot be read or imported.

    `file` is its path, None if it came from memory; `node` names the node at fault, None if it is none of them.
    """

    def __init__(self, message: str, file: str | None = None, node: str | None = None) -> None:
        super().__init__(message)
        self.file, self.node = file, node


class Unsupported(ModelError):
    """A model that is right, but needs something that Stormdrop does not do."""


class UnsupportedOperator(Unsupported):
    """A model that needs operators, or forms of operators, that are not supported.

    `operators` names them, each once: `NonZero`, or with its domain, `com.example.Sparse`.
    """

    def __init__(self, message: str, operators: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.operators = tuple(sorted(set(operators)))


class ScheduleError(StormdropError):
    """A schedule that does not fit its task or its target."""


class BuildError(StormdropError):
    """A program that could not be turned into machine code."""


class RunError(StormdropError):
    """A kernel that crashed, trapped or computed something wrong."""


class Timeout(StormdropError):
    """A candidate that took longer than it may."""
