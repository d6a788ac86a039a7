"""Errors, sorted by whose fault they are.

`UserError` is the caller's mistake, `ScheduleError` an illegal candidate (expected, dropped), `BuildError`, `RunError`
and `Timeout` a candidate that failed. Anything else that is raised is a bug of ours and propagates.
"""


class StormdropError(Exception):
    """The base of every error that Stormdrop raises on purpose."""


class UserError(StormdropError):
    """A bad model, an unsupported operator, a wrong argument: the message says what to do about it."""


class ScheduleError(StormdropError):
    """A schedule that does not fit its task or its target."""


class BuildError(StormdropError):
    """A program that could not be turned into machine code."""


class RunError(StormdropError):
    """A kernel that crashed, trapped or computed something wrong."""


class Timeout(StormdropError):
    """A candidate that took longer than it may."""
