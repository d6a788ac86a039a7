"""Checks of what a caller passes to the Python functions of this package.

Types are for those who check them; others learn here which argument is wrong, before any work is done. One table says
what each option takes, whichever function has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path

from stormdrop.errors import UserError


def _is_whole(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)


def _is_natural(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def _has(*names: str) -> Callable[[object], bool]:
    return lambda value: all(hasattr(value, name) for name in names)


_FLAG = (_is_flag, "True or False")
_FUNCTION = (callable, "a function")
_TAKEN: dict[str, tuple[Callable[[object], bool], str]] = {
    "cold": _FLAG,
    "divide": (_has("next"), "a division (`Divide` in stormdrop.search.divide)"),
    "donors": (_is_list, "a list of names of models"),
    "goal": (_has("slopes"), "a goal, such as TotalLatency() in stormdrop.search.goal"),
    "listen": _FUNCTION,
    "measurer": (_has("measure", "retime", "prove"), "a measurer"),
    "objective": _FUNCTION,
    "operators": (_is_list, "a list of sd.CustomOperator values"),
    "pool": (
        lambda value: isinstance(value, str) or _has("threads", "settings")(value),
        "'shared', 'own' or sd.Pool(…)",
    ),
    "rules": (_is_list, "a list of rules, such as (*sd.RULES, Mine())"),
    "schedule": (_has("steps", "values"), "a schedule (sd.Schedule)"),
    "schedules": (callable, "a function from tasks to schedules, such as tuned.schedules"),
    "precision": (lambda value: isinstance(value, str), "a name, such as tf32"),
    "search": (lambda value: isinstance(value, str) or callable(value), "a name, or a function that makes a strategy"),
    "seconds": (_is_number, "a number"),
    "seed": (_is_natural, "a whole number, 0 or more"),
    "settings": (_has("batch", "cost"), "TuneSettings"),
    "shapes": (
        lambda value: isinstance(value, Mapping) or _is_list(value),
        "shapes by name, {'input': (1, 3, 224, 224)}, or a list of such",
    ),
    "spaces": (_is_list, "a list of sketches"),
    "spin": (_is_number, "a number of microseconds"),
    "start": (_has("steps", "values"), "a schedule (sd.Schedule)"),
    "store": (_has("add", "verdict"), "a store, sd.Store.open(path)"),
    "target": (lambda value: isinstance(value, str) or _has("with_cold_weights")(value), "a target, or its name"),
    "task": (_has("variants", "digest"), "a task, sd.Task([output])"),
    "threads": (_is_whole, "a whole number"),
    "trials": (_is_whole, "a whole number"),
    "unproved": _FLAG,
    "winograd": _FLAG,
}


def check_arguments(**given: object) -> None:
    """Raises UserError for the first option that is not what it should be. None is taken for any: it says nothing.

    Options that the table does not have are whoever takes them's matter.
    """
    for name, value in given.items():
        is_fine, told = _TAKEN.get(name, (None, ""))
        if value is not None and is_fine is not None and not is_fine(value):
            raise UserError(f"{name}={value!r:.60}: it takes {told}, not {type(value).__name__}")


def path_of(value: object) -> Path:
    """The path that names a file. Raises UserError for anything else."""
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"the name of a file is a string or a path, not {type(value).__name__}")
    return Path(value)
