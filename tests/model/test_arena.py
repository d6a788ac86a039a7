"""The memory plan: nothing that lives at once overlaps, and little is wasted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormdrop.model.arena import Lifetime, least_bytes, plan
from stormdrop.target import ALIGN_BYTES


def overlaps(lifetimes: list[Lifetime], offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pairs that share a step and a byte, by comparing all with all."""
    begin = np.array(offsets)
    end = begin + [life.nbytes for life in lifetimes]
    first, last = (np.array([getattr(life, name) for life in lifetimes]) for name in ("first", "last"))
    some = end > begin
    meet = (
        (begin[:, None] < end)
        & (begin < end[:, None])
        & (first[:, None] <= last)
        & (first <= last[:, None])
        & some
        & some[:, None]
    )
    return [(int(a), int(b)) for a, b in np.argwhere(meet) if a < b]


def lifetime(nbytes: int, first: int, length: int) -> Lifetime:
    return Lifetime(nbytes, first, first + length)


LIFETIMES = st.builds(lifetime, st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12))


@given(st.lists(LIFETIMES, max_size=60))
@settings(max_examples=150, deadline=None)
def test_buffers_that_live_at_once_never_overlap_and_are_aligned(lifetimes: list[Lifetime]) -> None:
    offsets, total = plan(lifetimes)
    assert len(offsets) == len(lifetimes)
    assert not overlaps(lifetimes, offsets)
    assert all(at >= 0 and at % ALIGN_BYTES == 0 for at, life in zip(offsets, lifetimes) if life.nbytes)
    assert total == max((at + life.nbytes for at, life in zip(offsets, lifetimes) if life.nbytes), default=0)
    assert total >= least_bytes(lifetimes)


def test_the_bound_is_the_most_that_lives_at_one_step() -> None:
    lifetimes = [Lifetime(100, 0, 3), Lifetime(10, 2, 2), Lifetime(50, 3, 9), Lifetime(70, 4, 4)]
    by_step = [sum(life.nbytes for life in lifetimes if life.first <= t <= life.last) for t in range(10)]
    assert least_bytes(lifetimes) == max(by_step) == 150


def test_nothing_needs_no_memory() -> None:
    assert plan([]) == ((), 0)
    assert plan([Lifetime(0, 0, 5), Lifetime(0, 2, 3)]) == ((0, 0), 0)


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    sizes = [64 * n for n in (3, 9, 4, 8, 8, 1, 16, 2)]
    chain = [Lifetime(n, t, t + 1) for t, n in enumerate(sizes)]
    assert plan(chain)[1] == max(a + b for a, b in pairwise(sizes)) == least_bytes(chain)


def test_memory_whose_buffer_died_is_used_again() -> None:
    offsets, total = plan([Lifetime(640, 0, 1), Lifetime(640, 2, 3), Lifetime(64, 0, 3)])
    assert offsets[0] == offsets[1] != offsets[2]
    assert total == 704


def test_a_buffer_takes_the_smallest_gap_that_fits() -> None:
    """Two gaps are open at step 1, of 512 and of 256 bytes."""
    sizes, lasts = (4096, 512, 448, 256, 192), (1, 0, 1, 0, 1)
    lifetimes = [*(Lifetime(n, 0, last) for n, last in zip(sizes, lasts)), Lifetime(128, 1, 1)]
    offsets, total = plan(lifetimes)
    assert offsets[5] == offsets[3]
    assert total == least_bytes(lifetimes)


def residual_network(depth: int, seed: int) -> list[Lifetime]:
    """Buffers of a chain whose every third value lives on beside two others, of sizes that shrink with depth; and
    scratch.
    """
    rng = np.random.default_rng(seed)
    lifetimes: list[Lifetime] = []
    for t in range(depth):
        size = 64 * int(rng.integers(1, 4) * 4 ** (4 - 4 * t // depth))
        lifetimes.append(Lifetime(size, t, t + (3 if t % 3 == 0 else 1)))
        if rng.random() < 0.3:
            lifetimes.append(Lifetime(int(rng.integers(1, size)), t, t))
    return lifetimes


@pytest.mark.parametrize("depth", [20, 60, 200])
def test_a_residual_network_needs_little_more_than_the_bound(depth: int) -> None:
    for seed in range(5):
        lifetimes = residual_network(depth, seed)
        offsets, total = plan(lifetimes)
        assert not overlaps(lifetimes, offsets)
        assert total <= 1.15 * least_bytes(lifetimes)


def test_ten_thousand_buffers_are_planned() -> None:
    lifetimes = residual_network(8000, 1)
    assert len(lifetimes) > 10_000
    offsets, total = plan(lifetimes)
    assert not overlaps(lifetimes, offsets)
    assert total <= 1.15 * least_bytes(lifetimes)
