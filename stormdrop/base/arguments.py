"""Checks of the arguments that callers pass to the Python functions of this package.

A type checker finds such errors earlier. For all other callers, these checks name the wrong argument before any work is
done. One table holds the values that each option takes, in every function that has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from numbers import Integral, Real
from operator import attrgetter
from pathlib import Path
from typing import Any

from stormdrop.base.errors import UserError


def _is_whole(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)


def _is_natural(value: object) -> bool:
    return isinstance(value, Integral) and _is_whole(value) and int(value) >= 0


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def _has(*names: str) -> Callable[[object], bool]:
    return lambda value: all(hasattr(value, name) for name in names)


FALLBACKS = ("auto", "onnxruntime", "none")
"""The names of runtimes for operators that are not supported."""
_FLAG = (_is_flag, "True or False")
_FUNCTION = (callable, "a function")
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "cold": _FLAG,
    "divide": (_has("next"), "a division (`Divide` in stormdrop.tuning.divide)"),
    "donors": (_is_list, "a list of names of models"),
    "kernel_value": _FUNCTION,
    "listen": _FUNCTION,
    "measurer": (_has("measure", "retime", "prove"), "a measurer"),
    "objective": (
        lambda value: isinstance(value, str) or _has("slopes")(value),
        "latency, speedup, or an object such as LatencyTargets in stormdrop.tuning.objectives",
    ),
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
    "weights": (_is_list, "a list of numbers, one for each model or size"),
    "winograd": _FLAG,
}


def check_arguments(**given: object) -> None:
    """Raises UserError for the first option with a value of the wrong kind. None is accepted and means "not set".

    Options outside the table are checked by the functions that take them.
    """
    for name, value in given.items():
        is_fine, kind = _KINDS.get(name, (None, ""))
        if value is not None and is_fine is not None and not is_fine(value):
            raise UserError(f"{name}={value!r:.60}: it takes {kind}, not {type(value).__name__}")


def imported(reference: str, kind: str, name: str = "NAME") -> Any:
    """Returns the value of a `package.module:NAME` reference. Raises UserError, which names the kind of the value."""
    module, _, path = reference.partition(":")
    try:
        return attrgetter(path)(import_module(module))
    except Exception as error:  # importing runs the user's module, which may raise any error
        fault = f"the {kind} {reference} cannot be imported ({type(error).__name__}: {error})"
        raise UserError(f"{fault}; write package.module:{name}, a name at the top of a module") from error


def path_of(value: object) -> Path:
    """Returns the path of a file. Raises UserError if `value` is neither a string nor a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"the name of a file is a string or a path, not {type(value).__name__}")
    return Path(value)


def shape_from(text: str) -> tuple[int, ...]:
    """Returns the shape that a text such as 1x3x224x224 gives; empty for a scalar. Raises UserError for other texts."""
    if not re.fullmatch(r"(\d+([x×,]\d+)*)?", text):
        raise UserError(f"{text!r} is not a shape; write 1x3x224x224")
    return tuple(int(n) for n in re.split("[x×,]", text) if n)


def shapes_by_name(given: Any) -> Any:
    """Returns the `shapes` of a caller with texts such as 1x3x224x224 as tuples; all else as it is.

    Raises UserError for a text that is no shape.
    """
    if not isinstance(given, Mapping):
        return given if given is None or not _is_list(given) else [shapes_by_name(shapes) for shapes in given]
    tuples: dict[Any, Any] = {}
    shapes: Mapping[Any, Any] = given
    for name, shape in shapes.items():
        try:
            tuples[name] = shape_from(shape) if isinstance(shape, str) else shape
        except UserError as error:
            raise UserError(f"shapes= gives {shape!r} for {name!r}; write {{{name!r}: (1, 3, 224, 224)}}") from error
    return tuples
