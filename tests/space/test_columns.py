"""Columns: what is noted once and computed for many points equals the same arithmetic on arrays, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stormdrop.space.columns import (
    Num,
    ceil_div,
    equal,
    is_multiple,
    maximum,
    minimum,
    rounded_down,
    rounded_up,
    traced,
    where,
)

Pair = Callable[[Num, Num], Num]

FORMULAS: dict[str, Pair] = {
    "sums": lambda a, b: (a + b) - (3 - b) + (0 + a) - 0,
    "products": lambda a, b: a * 1 * b * 0.1 * (1 * a) / 1,
    "quotients": lambda a, b: 7.0 / a + a / b / 3.0,
    "rounding": lambda a, b: (
        rounded_up(a / b) + rounded_down(a / b) + ceil_div(a, b) + ceil_div(a, 1) + ceil_div(100, b)
    ),
    "bounds": lambda a, b: minimum(a, 5) + minimum(5, a) + minimum(a, b) + maximum(a, b) + maximum(2.5, b),
    "conditions": lambda a, b: where((a > b) & (b >= 2) | (a < 3), a, where(b <= 1, 0.5, b)),
    "known conditions": lambda a, b: where(True & (a > 2), 1, 2) + where(False | (b > 2), a, 2) + where(True, a, b),
    "equality": lambda a, b: where(equal(a, b), 1.5, where(equal(a, 2), a, b)),
    "multiples": lambda a, b: where(is_multiple(a, b), 1, 2) * where(is_multiple(96, b), 3, 5),
    "a value that is used to the end": lambda a, b: ((((a + b) * b + a) * b + a) * b + a) * b + a,
}


def points(n: int = 200) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(3).integers(1, 12, (2, n)).astype(np.float64)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_program_gives_the_bits_of_the_same_arithmetic_on_arrays(name: str) -> None:
    tape, columns = traced(["a", "b"])
    program = tape.program([FORMULAS[name](columns["a"], columns["b"])])
    a, b = points()
    (found,) = program.run(points())
    assert np.array_equal(found, FORMULAS[name](a, b))


def test_all_formulas_in_one_program_do_not_disturb_each_other() -> None:
    tape, columns = traced(["a", "b"])
    results = [f(columns["a"], columns["b"]) for f in FORMULAS.values()]
    a, b = points()
    for found, f in zip(tape.program([columns["b"], *results, columns["a"], 7]).run(points())[1:], FORMULAS.values()):
        assert np.array_equal(found, f(a, b))


def test_inputs_and_constants_can_be_results() -> None:
    tape, columns = traced(["a", "b"])
    total = columns["a"] + columns["b"]
    a, found, seven = tape.program([columns["a"], total, 7]).run(points())
    assert np.array_equal(a, points()[0])
    assert np.array_equal(found, points().sum(axis=0))
    assert float(seven) == 7.0


def test_equal_steps_are_one() -> None:
    tape, columns = traced(["a", "b"])
    a, b = columns["a"], columns["b"]
    program = tape.program([minimum(a * b + 2, 9), minimum(a * b + 2.0, 9) + minimum(a * b + 2, 9)])
    assert len(program.steps) == 4  # product, sum, minimum, and the sum of two


def test_what_no_result_needs_is_not_computed() -> None:
    tape, columns = traced(["a", "b"])
    unused = columns["a"] / columns["b"]
    program = tape.program([columns["a"] * 2])
    assert len(program.steps) == 1
    assert len(tape.program([unused]).steps) == 1


def test_slots_are_used_again() -> None:
    tape, columns = traced(["a", "b"])
    total = columns["a"]
    for k in range(2, 100):
        total = total + columns["b"] * k
    program = tape.program([total])
    assert len(program.steps) == 196
    assert len(program.slots) <= 98 + 5  # the constants, and few others
