"""Three hundred random models with fixed seeds, and every model that went wrong once."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.codegen import values
from stormdrop.codegen.text import SsaValue, Writer
from tests.fuzz import __main__ as fuzz
from tests.fuzz.draft import Draft
from tests.fuzz.held import Held, expected
from tests.fuzz.model import random_model
from tests.fuzz.recipe import Node, Recipe
from tests.fuzz.shrink import Failure, check, shrunk
from tests.fuzz.trial import Setting, difference
from tests.fuzz.workers import Died, isolated, outcomes

FINITE, SPECIAL = range(240), range(60)


@pytest.mark.parametrize(("seeds", "special"), [(FINITE, False), (SPECIAL, True)], ids=["finite", "special"])
def test_random_models_compute_what_other_implementations_compute(seeds: range, special: bool) -> None:
    found = dict(outcomes(seeds, lambda seed: fuzz.tried(seed, special), 2))
    wrong = {seed: row.cause if isinstance(row, Died) else row["problem"] for seed, row in found.items()}
    assert {seed: why for seed, why in wrong.items() if why is not None} == {}
    assert len(found) == len(seeds)


@pytest.mark.parametrize("name", sorted(path.stem for path in fuzz.CASES.glob("*.json")))
def test_a_model_that_went_wrong_once_is_right(name: str) -> None:
    failure = fuzz.kept(name)
    assert expected(failure.recipe, np.random.default_rng(0), failure.special)  # it is not refused
    assert check(failure.recipe, failure.setting, failure.special) is None


def test_a_seed_gives_one_model() -> None:
    first, again, other = (random_model(seed) for seed in (5, 5, 6))
    assert first.recipe.to_json() == again.recipe.to_json()
    assert first.setting == again.setting
    assert first.recipe.to_json() != other.recipe.to_json()


def test_a_recipe_survives_json() -> None:
    for seed in range(8):
        recipe = random_model(seed, special=seed % 2 == 1).recipe
        again = Recipe.from_json(recipe.to_json())
        assert str(again) == str(recipe)
        assert all(again.inputs[k].tobytes() == a.tobytes() for k, a in recipe.inputs.items() if a.dtype.kind != "f")
        assert all(np.array_equal(again.inputs[k], a, equal_nan=a.dtype.kind == "f") for k, a in recipe.inputs.items())


def test_a_value_made_by_movement_must_be_equal_and_a_rounded_one_close() -> None:
    d = Draft(np.random.default_rng(0), 18)
    x = d.input((3, 4))
    moved, rounded = d.held[d.one("Transpose", x, perm=[1, 0])], d.held[d.one("Exp", x)]
    assert difference(moved.plain.copy(), moved) is None
    assert difference(moved.plain * np.float32(1 + 1e-6), moved) is not None
    assert difference(rounded.plain * np.float32(1 + 1e-6), rounded) is None
    assert "are wrong" in (difference(rounded.plain * np.float32(1 + 1e-3), rounded) or "")
    assert "float64" in (difference(rounded.plain.astype(np.float64), rounded) or "")


def test_signs_of_zeros_and_kinds_of_infinity_count_in_special_models() -> None:
    zero, infinite = Held.exactly(np.zeros(2, np.float32)), Held.exactly(np.full(2, np.inf, np.float32))
    assert difference(-zero.plain, zero) is None
    assert difference(-zero.plain, zero, special=True) is not None
    assert difference(-infinite.plain, infinite) is not None
    assert difference(np.full(2, np.nan, np.float32), infinite) is not None


def test_a_process_that_dies_costs_its_item(capfd: pytest.CaptureFixture[str]) -> None:
    def job(item: int) -> int:
        if item == 2:
            import os

            os.abort()
        return item * item

    found = dict(outcomes(range(5), job, 2))
    assert {k: v for k, v in found.items() if k != 2} == {0: 0, 1: 1, 3: 9, 4: 16}
    assert isinstance(found[2], Died)
    assert "SIGABRT" in found[2].cause
    assert isolated(lambda: 7) == 7


def test_a_failure_shrinks_to_the_node_that_causes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neg is planted to be wrong; the chain around it and most of its elements go."""
    right = values.function

    def wrong(w: Writer, fn: str, x: SsaValue, fma: bool) -> SsaValue:
        return x if fn == "neg" else right(w, fn, x, fma)

    monkeypatch.setattr(values, "function", wrong)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    nodes = (
        Node("Exp", ("x",), ("a",)),
        Node("Neg", ("a",), ("b",)),
        Node("Transpose", ("b",), ("c",), {"perm": [1, 0]}),
        Node("Tanh", ("x",), ("d",)),
    )
    big = Failure(Recipe(18, {"x": x}, {}, nodes, ("c", "d")), Setting("sse", 2, 5), False, "")
    assert check(big.recipe, big.setting, False) is not None
    small = shrunk(big)
    assert [n.op for n in small.recipe.nodes] == ["Neg"]
    assert small.setting.schedules is None
    assert sum(a.size for a in small.recipe.inputs.values()) == 1
