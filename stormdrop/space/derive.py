"""Derivation enumerates the structures of a variant by rules. Replay rebuilds one structure from its steps.

A caller passes rules as objects or as references. Rules are checked, and named so that another process imports them:

    references((*RULES, Mine()))[-1] == "package.module:Mine";   imported(["package.module:Mine"]) == (Mine(),)

A reference comes from the calling program or from the command line, never from a store or a file. Stores and files
identify rules as schedules do, by name and version, and import no module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stormdrop.base import arguments
from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Variant
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import FEWEST_PARTS, RULES, Args, Rule
from stormdrop.space.structure import DerivationStep, Stage, Structure, initial
from stormdrop.target.machine import Target

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
    kind = arguments.imported(reference, "rule", "Class")
    try:
        return kind()
    except Exception as error:  # the user's class may raise any error
        raise UserError(
            f"the rule {reference} cannot be constructed without arguments ({type(error).__name__}: {error}); "
            "write package.module:Class, with a class at the top of the module"
        ) from error


MAX_STRUCTURES = 48


def derive(variant: Variant, steps: Iterable[DerivationStep], rules: Sequence[Rule] = RULES) -> Structure:
    """Replays steps. Raises ScheduleError if a rule is unknown or does not apply, or if a stage remains untiled."""
    known = {(rule.name, rule.version): rule for rule in rules}
    s = initial(variant)
    for step in steps:
        rule = known.get((step.rule, step.version))
        if rule is None:
            raise ScheduleError(f"the schedule follows rule {step.rule} v{step.version}, which is not among the rules")
        try:
            s = _apply(s, rule, s.stage(step.stage), step.args)
        except (LookupError, TypeError, ValueError) as error:  # arguments may come from an untrusted file
            raise ScheduleError(f"{step} cannot be applied: {error!r}") from error
    if any(stage.tiling is None for stage in s.stages):
        raise ScheduleError("the derivation is not complete: a stage has no tiling")
    return s


@memoised(256)
def divided(variant: Variant, s: Structure, parts: int, rules: tuple[Rule, ...] = RULES) -> Structure:
    """Returns the structure in which every open split is fixed at `parts` parts."""
    steps = list(s.steps)
    for split in s.splits:
        steps[split.step] = replace(steps[split.step], args=(*steps[split.step].args, parts))
    return derive(variant, steps, rules)


def _apply(s: Structure, rule: Rule, stage: Stage, args: Args) -> Structure:
    done = rule.apply(s, stage, args)
    return replace(done, steps=(*s.steps, DerivationStep(rule.name, rule.version, stage.id, args)))


def enumerate_structures(variant: Variant, target: Target, rules: Sequence[Rule] = RULES) -> list[Structure]:
    """Returns the structures that the options of the rules span, at most `MAX_STRUCTURES`; never empty.

    Rules are applied in order; each rule visits readers before their producers. A structure is left out if its scratch
    does not fit even at its smallest point. If none fits, the structures without attached stages are returned.
    """
    known, judge = tuple(rules), judge_of(target)

    def smallest(s: Structure) -> Structure:
        return divided(variant, s, FEWEST_PARTS, known) if s.splits else s

    fitting = [s for s in _enumerated(variant, target, rules, attaching=True) if judge.fits(smallest(s))]
    return fitting or _enumerated(variant, target, rules, attaching=False)


def _enumerated(variant: Variant, target: Target, rules: Sequence[Rule], attaching: bool) -> list[Structure]:
    structures = [initial(variant)]
    known: dict[object, Stage] = {}
    for rule in rules:
        structures = [done for s in structures for done in _explore(s, rule, target, known, attaching)]
        if len(structures) > MAX_STRUCTURES:  # an even subsample that keeps the first
            structures = [structures[i * len(structures) // MAX_STRUCTURES] for i in range(MAX_STRUCTURES)]
    return structures


def _explore(s: Structure, rule: Rule, target: Target, known: dict[object, Stage], attaching: bool) -> list[Structure]:
    """Returns all structures that a rule derives from `s`, depth first, in the order of the rule's options.

    Equal stages of different structures are interned as one object, so per-stage caches are shared.
    """
    open_states = [(s, [stage.id for stage in reversed(s.stages)])]
    finished: list[Structure] = []
    while open_states:
        state, waiting = open_states.pop()
        if not waiting:
            finished.append(state)
            continue
        if all(stage.id != waiting[0] for stage in state.stages):
            open_states.append((state, waiting[1:]))
            continue
        stage = state.stage(waiting[0])
        for args in reversed(list(rule.options(state, stage, target))):
            nexts = state
            if args is not None:
                changed = _apply(state, rule, stage, args)
                old = set(state.stages)
                nexts = changed.with_stages(x if x in old else known.setdefault(x.content, x) for x in changed.stages)
            if attaching or all(r.host is None for r in nexts.stages):
                open_states.append((nexts, waiting[1:]))
    return finished
