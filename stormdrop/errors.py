"""Errors, sorted by whose fault they are.

`UserError` is the caller's mistake, `ScheduleError` an illegal candidate (expected, dropped), `BuildError`, `RunError`
and `Timeout` a candidate that failed. Anything else that is raised is a bug of ours and propagates.
"""

from __future__ import annotations

from collections.abc import Iterable


class StormdropError(Exception):
    """The base of every error that Stormdrop raises on purpose."""


class UserError(StormdropError):
    """A bad model, an unsupported operator, a wrong argument: the message says what to do about it."""


class Unsupported(UserError):
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
