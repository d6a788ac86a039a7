"""Random search: seeds first, every sketch in turn, nothing twice, an end."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np

from stormdrop.operators.catalogue import build
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.cpu import cross
from stormdrop.tuning.strategies import RandomSearch
from stormdrop.tuning.strategy import Candidate, Outcome, candidate


@cache
def spaces() -> tuple[Sketch, ...]:
    return tuple(sketches(build("C2D", [1, 7, 7, 8, 16, 3, 1, 1]), cross("avx2").with_threads(2)))


@cache
def tiny() -> tuple[Sketch, ...]:
    return tuple(sketches(build("ADR", [1, 1, 1, 2]), cross("avx2").with_threads(2)))


def asked(search: RandomSearch, *sizes: int) -> list[Candidate]:
    return [c for n in sizes for c in search.ask(n).candidates]


def test_nothing_is_proposed_twice_and_everything_is_legal() -> None:
    found = asked(RandomSearch(spaces(), np.random.default_rng(0)), 16, 16, 100)
    assert len(set(found)) == len(found) == 132
    for c in found:
        row = np.array([c.point], dtype=np.int64)
        sketch = spaces()[c.sketch]
        assert sketch.legal(row).all()
        assert np.array_equal(sketch.canonical(row), row)


def test_seeds_come_first_in_their_order() -> None:
    seeds = asked(RandomSearch(spaces(), np.random.default_rng(1)), 5)
    found = asked(RandomSearch(spaces(), np.random.default_rng(2), [*seeds, seeds[0]]), 20)
    assert found[:5] == seeds
    assert len(set(found)) == 20


def test_every_sketch_has_its_turn() -> None:
    counts = Counter(c.sketch for c in asked(RandomSearch(spaces(), np.random.default_rng(0)), 10 * len(spaces())))
    assert set(counts) == set(range(len(spaces())))
    assert max(counts.values()) - min(counts.values()) <= 2


def test_a_small_space_is_proposed_as_a_whole_and_then_nothing() -> None:
    search = RandomSearch(tiny(), np.random.default_rng(0))
    found = asked(search, *[64] * 20)
    everything = {
        candidate(k, row) for k, s in enumerate(tiny()) for row in s.sample_legal(4096, np.random.default_rng(1))
    }
    assert set(found) == everything
    assert search.ask(8).candidates == ()


def test_what_others_measured_is_not_proposed() -> None:
    others = asked(RandomSearch(spaces(), np.random.default_rng(3)), 40)
    search = RandomSearch(spaces(), np.random.default_rng(3))
    search.tell([Outcome(c, 1.0) for c in others])
    assert not set(asked(search, 100)) & set(others)


def test_a_seed_of_the_generator_decides_everything() -> None:
    first, again, other = (asked(RandomSearch(spaces(), np.random.default_rng(s)), 32, 32) for s in (5, 5, 6))
    assert first == again
    assert first != other
