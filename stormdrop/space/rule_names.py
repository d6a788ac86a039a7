"""Derivation rules as a caller passes them: checked, and named so that another process can import them.

    references((*RULES, Mine()))[-1] == "package.module:Mine";   imported(["package.module:Mine"]) == (Mine(),)

A reference comes from whoever calls or from the command line, never from a store or a file: those name rules as
schedules do, by name and version, and nothing is imported for them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stormdrop.errors import UserError
from stormdrop.space.rules import RULES, Rule

_BUILT_IN = {f"{type(rule).__module__}:{type(rule).__qualname__}": rule for rule in RULES}


def checked(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules as a tuple in which a name and a version stand for one rule, never for another than the built-in one.

    Raises UserError.
    """
    if rules is RULES:
        return RULES
    by_name: dict[object, Rule] = {(rule.name, rule.version): rule for rule in RULES}
    given: set[object] = set()
    found = tuple(rules)
    for rule in found:
        if isinstance(rule, type) or type(rule).__hash__ is None:
            raise UserError(f"{rule!r} is not a rule: give an instance of its class, hashable (a frozen dataclass is)")
        key = name, version = getattr(rule, "name", None), getattr(rule, "version", None)
        if not is_name(name) or type(version) is not int:
            raise UserError(
                f"{rule!r} is called {name!r} v{version!r}: a rule's name is letters, digits and underscores, its "
                "version is a whole number"
            )
        if key in given or type(by_name.get(key, rule)) is not type(rule):
            raise UserError(f"two rules are called {name} v{version}: schedules could not tell them apart")
        given.add(key)
    return found


def is_name(name: object) -> bool:
    """Whether a schedule may call a rule so."""
    return isinstance(name, str) and name.isidentifier() and name.isascii()


def references(rules: Sequence[Rule]) -> list[str]:
    """The `module:Class` of every rule. Raises UserError for one that another process would not import as it is."""
    return [_reference(rule) for rule in checked(rules)]


def _reference(rule: Rule) -> str:
    kind: type[Any] = type(rule)
    reference = f"{kind.__module__}:{kind.__qualname__}"
    if reference in _BUILT_IN:
        return reference
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or getattr(module, "__spec__", None) is None:
        raise UserError(
            f"rule {rule.name} is a class of {kind.__module__}, which other processes cannot import, and kernels are "
            "built in some: put it in a module (a file of its own beside this one will do) and import it from there"
        )
    again = _instance(reference)
    if type(again) is not kind or (again != rule and again.__getstate__() != rule.__getstate__()):
        raise UserError(
            f"rule {rule.name} would be another one in other processes, where it is made by {reference}(): give it no "
            "arguments, and a class of its own for each variation"
        )
    return reference


def imported(references: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of `module:Class` references, made without arguments; built-in ones as they are. Raises UserError."""
    return checked([_BUILT_IN.get(reference) or _instance(reference) for reference in references])


def sent(rules: Sequence[Rule]) -> dict[str, list[str]] | None:
    """What a worker process is told of rules; nothing of the built-in ones. Raises UserError as `references`."""
    if checked(rules) == RULES:
        return None
    return {"references": references(rules), "path": [os.path.abspath(p) for p in sys.path]}


def received(message: Mapping[str, Sequence[str]] | None) -> tuple[Rule, ...]:
    """The rules that were `sent`: modules are found as in the process that sent them. Raises UserError."""
    if message is None:
        return RULES
    sys.path[:] = message["path"]
    return imported(message["references"])


def _instance(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found()
    except Exception as error:  # whatever the user's module does when it is imported
        raise UserError(
            f"the rule {reference} cannot be imported and made without arguments ({type(error).__name__}: {error}): it "
            "must be a class at the top of a module, written package.module:Class"
        ) from error
