"""Derivation enumerates the structures of a variant by rules. Replay rebuilds one structure from its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Variant
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import FEWEST_PARTS, RULES, Args, Rule
from stormdrop.space.structure import DerivationStep, Stage, Structure, initial
from stormdrop.target.machine import Target

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
