"""A failing model made small: fewer outputs, fewer nodes, a simpler setting, smaller dimensions, plainer numbers.

Every candidate is evaluated by the oracles again and compiled in a process of its own; the first that still fails
replaces the model, until none does. A failure may change its text on the way, but not its kind: any wrong answer is
worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.held import Held, Refused, expected
from tests.fuzz.recipe import Recipe
from tests.fuzz.trial import Setting, problem
from tests.fuzz.workers import Died, isolated

Array = NDArray[Any]
MOST_CHECKS = 400
REPEATS = 2
"""A candidate that passes is tried again: some failures depend on what lies around in memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A model that goes wrong, and how."""

    recipe: Recipe
    setting: Setting
    special: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        data = {"why": self.why, "special": self.special, "setting": self.setting.to_json(), **self.recipe.to_json()}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        return cls(Recipe.from_json(data), Setting(**data["setting"]), data["special"], data["why"])


def check(recipe: Recipe, setting: Setting, special: bool) -> str | None:
    """How a model goes wrong, in a process of its own; None where it does not, or where nothing can be said."""

    def job() -> str | None:
        try:
            held = expected(recipe, np.random.default_rng(0), special)
        except Refused:
            return None
        return problem(recipe, held, setting, special)

    for _ in range(REPEATS):
        outcome = isolated(job)
        if isinstance(outcome, Died):
            return f"Died: {outcome.cause}"
        if outcome is not None:
            return outcome
    return None


def kind(why: str) -> str:
    """The name of the exception, or that of wrong answers: a model that became invalid on the way is no smaller
    failure.
    """
    name = why.partition(":")[0]
    return name if name.isidentifier() else "wrong answer"


def shrunk(failure: Failure, say: Callable[[str], None] = lambda text: None) -> Failure:
    """A smaller failure, or the same one."""
    checks = 0
    moves = (_fewer_outputs, _simpler_setting, _cut, _without_node, _smaller, _plainer)
    again = True
    while again:
        again = False
        for move in moves:
            for recipe, setting in move(failure):
                checks += 1
                if checks > MOST_CHECKS:
                    return failure
                why = check(recipe, setting, failure.special)
                if why is not None and kind(why) == kind(failure.why):
                    failure = replace(failure, recipe=recipe, setting=setting, why=why)
                    say(f"{len(recipe.nodes)} nodes: {why}")
                    again = True
                    break
            if again:
                break
    return failure


Candidates = Iterator[tuple[Recipe, Setting]]


def _fewer_outputs(failure: Failure) -> Candidates:
    recipe = failure.recipe
    if len(recipe.outputs) > 1:
        for name in recipe.outputs:
            yield replace(recipe, outputs=(name,)).pruned(), failure.setting


def _simpler_setting(failure: Failure) -> Candidates:
    setting = failure.setting
    if setting.schedules is not None:
        yield failure.recipe, replace(setting, schedules=None)
    if setting.threads > 1:
        yield failure.recipe, replace(setting, threads=1)


def _cut(failure: Failure) -> Candidates:
    """One value of the model as an input of it: all that only it needed goes."""
    held = _evaluated(failure)
    if held is None:
        return
    recipe = failure.recipe
    for node in reversed(recipe.nodes):
        for name in node.outputs:
            if name and name not in recipe.outputs:
                yield _with_input(recipe, name, held[name].plain), failure.setting


def _with_input(recipe: Recipe, name: str, array: Array) -> Recipe:
    kept = tuple(replace(n, outputs=tuple("" if o == name else o for o in n.outputs)) for n in recipe.nodes)
    nodes = tuple(n for n in kept if any(n.outputs))
    return replace(recipe, inputs={**recipe.inputs, name: array}, nodes=nodes).pruned()


def _without_node(failure: Failure) -> Candidates:
    """A node's readers read its input instead; an output moves to what it was made from."""
    recipe = failure.recipe
    for k, node in enumerate(recipe.nodes):
        for source in node.inputs:
            if not source or len(recipe.nodes) < 2:
                continue
            swap = {node.outputs[0]: source}
            rest = recipe.nodes[:k] + recipe.nodes[k + 1 :]
            nodes = tuple(replace(n, inputs=tuple(swap.get(i, i) for i in n.inputs)) for n in rest)
            outputs = tuple(dict.fromkeys(swap.get(o, o) for o in recipe.outputs))
            made = {o for n in nodes for o in n.outputs} | set(recipe.inputs) | set(recipe.constants)
            read = {i for n in nodes for i in n.inputs if i} | set(outputs)
            if read <= made and not set(outputs) <= set(recipe.inputs) | set(recipe.constants):
                yield replace(recipe, nodes=nodes, outputs=outputs).pruned(), failure.setting


def _smaller(failure: Failure) -> Candidates:
    """Every dimension of one size made smaller at once, then in one array alone."""
    recipe = failure.recipe
    arrays = {**recipe.inputs, **recipe.constants}
    for size in sorted({n for a in arrays.values() for n in a.shape if n > 1}, reverse=True):
        for less in dict.fromkeys((1, size // 2, size - 1)):
            if less < 1:
                continue
            names = [name for name, a in arrays.items() if size in a.shape]
            for chosen in (names, *([n] for n in names if len(names) > 1)):
                cut = {n: _sliced(a, size, less) if n in chosen else a for n, a in arrays.items()}
                yield _with_arrays(recipe, cut), failure.setting


def _sliced(a: Array, size: int, less: int) -> Array:
    return np.ascontiguousarray(a[tuple(slice(0, less) if n == size else slice(None) for n in a.shape)]).reshape(
        tuple(less if n == size else n for n in a.shape)
    )


def _plainer(failure: Failure) -> Candidates:
    """Float data rounded to small numbers; inputs as constants."""
    recipe = failure.recipe
    for name, a in recipe.inputs.items():
        if a.dtype.kind == "f":
            with np.errstate(all="ignore"):
                plain = np.where(np.isfinite(a), np.clip(np.round(a), -4, 4), a).astype(a.dtype)
            if not np.array_equal(plain, a, equal_nan=True):
                yield replace(recipe, inputs={**recipe.inputs, name: plain}), failure.setting


def _with_arrays(recipe: Recipe, arrays: Mapping[str, Array]) -> Recipe:
    return replace(
        recipe,
        inputs={k: arrays[k] for k in recipe.inputs},
        constants={k: arrays[k] for k in recipe.constants},
    )


def _evaluated(failure: Failure) -> dict[str, Held] | None:
    """Every value, computed in a process of its own: an oracle may crash too."""
    outcome = isolated(lambda: expected(failure.recipe, np.random.default_rng(0), failure.special))
    return None if isinstance(outcome, Died) else outcome
