"""Derivation: from a task's variant to structures, by rules; and replay, from steps to the one structure they
describe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from stormdrop.errors import ScheduleError
from stormdrop.ir.tensor import Variant
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import FEWEST_PARTS, RULES, Args, Rule
from stormdrop.space.structure import DerivationStep, Stage, Structure, initial
from stormdrop.target.machine import Target

MAX_STRUCTURES = 48


def derive(variant: Variant, steps: Iterable[DerivationStep], rules: Sequence[Rule] = RULES) -> Structure:
    """Replay steps. Raises ScheduleError where a rule is not among the given ones, or does not apply."""
    known = {(rule.name, rule.version): rule for rule in rules}
    s = initial(variant)
    for step in steps:
        rule = known.get((step.rule, step.version))
        if rule is None:
            raise ScheduleError(f"the schedule follows rule {step.rule} v{step.version}, which is not among the rules")
        try:
            s = _apply(s, rule, s.stage(step.stage), step.args)
        except (LookupError, TypeError, ValueError) as error:  # arguments may come from a file that anybody wrote
            raise ScheduleError(f"{step} cannot be applied: {error!r}") from error
    if any(stage.tiling is None for stage in s.stages):
        raise ScheduleError("the derivation is not complete: a stage has no tiling")
    return s


@lru_cache(maxsize=256)
def divided(variant: Variant, s: Structure, parts: int, rules: tuple[Rule, ...] = RULES) -> Structure:
    """A structure with its open splits made, each into so many parts."""
    steps = list(s.steps)
    for split in s.splits:
        steps[split.step] = replace(steps[split.step], args=(*steps[split.step].args, parts))
    return derive(variant, steps, rules)


def _apply(s: Structure, rule: Rule, stage: Stage, args: Args) -> Structure:
    done = rule.apply(s, stage, args)
    return replace(done, steps=(*s.steps, DerivationStep(rule.name, rule.version, stage.id, args)))


def enumerate_structures(variant: Variant, target: Target, rules: Sequence[Rule] = RULES) -> list[Structure]:
    """Every structure that the rules find worth exploring, at most `MAX_STRUCTURES`; never none.

    Rules are applied one after the other; each visits the stages from the last to the first, so that a reader is
    decided before what it reads. A structure that needs too much scratch however small its tiles are is left out. Where
    all do, what is left are those that compute no stage inside another.
    """
    known, judge = tuple(rules), judge_of(target)

    def smallest(s: Structure) -> Structure:
        return divided(variant, s, FEWEST_PARTS, known) if s.splits else s

    fitting = [s for s in _enumerated(variant, target, rules, attaching=True) if judge.fits(smallest(s))]
    return fitting or _enumerated(variant, target, rules, attaching=False)


def _enumerated(variant: Variant, target: Target, rules: Sequence[Rule], attaching: bool) -> list[Structure]:
    found = [initial(variant)]
    known: dict[object, Stage] = {}
    for rule in rules:
        found = [done for s in found for done in _explore(s, rule, target, known, attaching)]
        if len(found) > MAX_STRUCTURES:  # a spread over all, the first kept
            found = [found[i * len(found) // MAX_STRUCTURES] for i in range(MAX_STRUCTURES)]
    return found


def _explore(s: Structure, rule: Rule, target: Target, known: dict[object, Stage], attaching: bool) -> list[Structure]:
    """What a rule makes of a structure.

    Equal stages of different structures are one object: what is known of one is known of all.
    """
    open_states = [(s, [stage.id for stage in reversed(s.stages)])]
    finished: list[Structure] = []
    while open_states:
        state, waiting = open_states.pop()
        if not waiting:
            finished.append(state)
            continue
        present = {stage.id for stage in state.stages}
        if waiting[0] not in present:
            open_states.append((state, waiting[1:]))
            continue
        stage = state.stage(waiting[0])
        for args in reversed(list(rule.options(state, stage, target))):
            nexts = state if args is None else _shared(_apply(state, rule, stage, args), state, known)
            if attaching or all(r.host is None for r in nexts.stages):
                open_states.append((nexts, waiting[1:]))
    return finished


def _shared(s: Structure, before: Structure, known: dict[object, Stage]) -> Structure:
    old = set(before.stages)
    return s.with_stages(stage if stage in old else known.setdefault(stage.content, stage) for stage in s.stages)
