"""Seed to model: which makers are called how often, and what the outputs are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tests.fuzz.draft import Draft, Maker, Refused
from tests.fuzz.held import Held
from tests.fuzz.makers import MAKERS
from tests.fuzz.recipe import Recipe
from tests.fuzz.trial import Setting, random_setting

OPSETS = (13, 17, 18, 18, 20, 21, 21, 22, 23)
LENGTHS = ((1, 1), (1, 1), (1, 2), (2, 4), (3, 6), (5, 12), (10, 40))
"""Least and most nodes; one of these pairs is drawn."""
TRIES = 8
"""Makers tried per wanted node before the model is taken as it is."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """What a seed gives: a model, what it computes, and how to compile it."""

    recipe: Recipe
    held: Mapping[str, Held]
    setting: Setting


def random_model(seed: int, special: bool = False) -> RandomModel:
    """The same model for the same seed, makers, and versions of the oracles."""
    rng = np.random.default_rng([seed, int(special)])
    while True:
        d = Draft(rng, int(rng.choice(OPSETS)), special, empties=rng.random() < 0.08)
        low, high = LENGTHS[int(rng.integers(len(LENGTHS)))]
        _fill(d, int(rng.integers(low, high + 1)))
        if d.made:
            recipe = d.recipe(_outputs(d))
            if recipe.nodes:
                return RandomModel(recipe, d.held, random_setting(rng))


def _fill(d: Draft, wanted: int) -> None:
    makers: list[Maker] = [maker for _, maker in MAKERS.values()]
    weights = np.array([weight for weight, _ in MAKERS.values()])
    for _ in range(TRIES * wanted):
        if len(d.nodes) >= wanted:
            return
        inputs, constants = len(d.inputs), len(d.constants)
        try:
            makers[int(d.rng.choice(len(makers), p=weights / weights.sum()))](d)
        except Refused:
            if not d.nodes:  # a first node that failed leaves nothing worth picking
                for table, count in ((d.inputs, inputs), (d.constants, constants)):
                    for name in list(table)[count:]:
                        del table[name], d.held[name]


def _outputs(d: Draft) -> list[str]:
    """Values that nothing reads, mostly; then the awkward ones: values read inside, inputs, copies of each other,
    views.
    """
    loose = [name for name in d.made if name not in d.read]
    found = [name for name in loose if d.chance(0.85)] or loose or d.made[-1:]
    if d.chance(0.3):
        found.append(d.among(*d.made))
    if d.inputs and d.chance(0.04):
        found.append(d.among(*d.inputs))
    with suppress(Refused):
        if d.inputs and d.chance(0.05):
            found.append(d.one("Identity", d.among(*d.inputs)))
        if d.chance(0.06):
            found += [d.one("Identity", found[0]), d.one("Identity", found[0])]
        if d.chance(0.06) and d.held[found[0]].plain.size:
            found.append(d.one("Reshape", found[0], d.integers([-1])))
    order = d.rng.permutation(len(found))
    return list(dict.fromkeys(found[int(k)] for k in order))
