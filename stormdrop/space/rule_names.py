"""Derivation rules as a caller passes them: checked, and named so that another process can import them.

    references((*RULES, Mine()))[-1] == "package.module:Mine";   imported(["package.module:Mine"]) == (Mine(),)

A reference comes from the calling program or from the command line, never from a store or a file. Stores and files
identify rules as schedules do, by name and version, and import no module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.space.rules import RULES, Rule

_BUILT_IN = {f"{type(rule).__module__}:{type(rule).__qualname__}": rule for rule in RULES}


def checked(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Returns the rules as a tuple. Raises UserError if name and version do not identify each rule."""
    if rules is RULES:
        return RULES
    by_name: dict[object, Rule] = {(rule.name, rule.version): rule for rule in RULES}
    given: set[object] = set()
    unchecked = tuple(rules)
    for rule in unchecked:
        if isinstance(rule, type) or type(rule).__hash__ is None:
            raise UserError(f"{rule!r} is not a rule: give an instance of its class, hashable (a frozen dataclass is)")
        key = name, version = getattr(rule, "name", None), getattr(rule, "version", None)
        if not is_name(name) or type(version) is not int:
            raise UserError(
                f"{rule!r} is called {name!r} v{version!r}: a rule's name is letters, digits and underscores, its "
                "version is a whole number"
            )
        if key in given or type(by_name.get(key, rule)) is not type(rule):
            raise UserError(
                f"two rules are called {name} v{version}; rename one: schedules identify rules by name and version"
            )
        given.add(key)
    return unchecked


def is_name(name: object) -> bool:
    """Returns whether a schedule may name a rule like this."""
    return isinstance(name, str) and name.isidentifier() and name.isascii()


def references(rules: Sequence[Rule]) -> list[str]:
    """Returns the `module:Class` of every rule. Raises UserError if another process cannot import it unchanged."""
    return [_reference(rule) for rule in checked(rules)]


def _reference(rule: Rule) -> str:
    kind: type[Any] = type(rule)
    reference = f"{kind.__module__}:{kind.__qualname__}"
    if reference in _BUILT_IN:
        return reference
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or getattr(module, "__spec__", None) is None:
        raise UserError(
            f"rule {rule.name} is a class of {kind.__module__}, which worker processes cannot import; move the class "
            "to a module, for example a file beside this program, and import it from there"
        )
    again = _instance(reference)
    if type(again) is not kind or (again != rule and again.__getstate__() != rule.__getstate__()):
        raise UserError(
            f"rule {rule.name} differs from {reference}(), which constructs the rule in worker processes; construct it "
            "without arguments, and give each variation a class of its own"
        )
    return reference


def imported(references: Iterable[str]) -> tuple[Rule, ...]:
    """Returns the rules of `module:Class` references, constructed without arguments. Raises UserError."""
    return checked([_BUILT_IN.get(reference) or _instance(reference) for reference in references])


def sent(rules: Sequence[Rule]) -> dict[str, list[str]] | None:
    """Returns the description of rules for a worker process; None for the built-in rules. Raises as `references`."""
    if checked(rules) == RULES:
        return None
    return {"references": references(rules), "path": [os.path.abspath(p) for p in sys.path]}


def received(message: Mapping[str, Sequence[str]] | None) -> tuple[Rule, ...]:
    """Returns the rules that were `sent`: modules are found as in the process that sent them. Raises UserError."""
    if message is None:
        return RULES
    sys.path[:] = message["path"]
    return imported(message["references"])


def _instance(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        rule: Any = importlib.import_module(module)
        for part in name.split("."):
            rule = getattr(rule, part)
        return rule()
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise UserError(
            f"rule {reference} cannot be imported and constructed without arguments ({type(error).__name__}: {error}); "
            "define a class at the top of a module and refer to it as package.module:Class"
        ) from error
