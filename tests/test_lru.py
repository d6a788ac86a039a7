"""The bounded cache: recent use keeps an entry, weights count, threads may share a cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stormdrop.base.lru import Lru


@dataclass(frozen=True)
class Key:
    """A key whose `__eq__` is written in Python."""

    number: int


def test_the_least_recently_used_entry_goes_first() -> None:
    kept = Lru[str, int](2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert kept.items() == [("a", 1), ("c", 3)]
    assert kept.get("b") is None


def test_a_replaced_value_counts_as_used_and_has_its_new_weight() -> None:
    kept = Lru[str, int](10)
    kept.put("a", 1, weight=9)
    kept.put("b", 2)
    kept.put("a", 3, weight=1)
    kept.put("c", 4, weight=8)
    assert kept.items() == [("b", 2), ("a", 3), ("c", 4)]
    kept.put("d", 5)
    assert kept.items() == [("a", 3), ("c", 4), ("d", 5)]


def test_a_heavy_entry_displaces_many_and_stays_even_beyond_the_limit() -> None:
    kept = Lru[int, str](10)
    for k in range(5):
        kept.put(k, "light", weight=2)
    kept.put(5, "heavy", weight=7)
    assert [key for key, _ in kept.items()] == [4, 5]
    kept.put(6, "larger than the limit", weight=11)
    assert [key for key, _ in kept.items()] == [6]


def test_listing_is_no_use_and_dropped_entries_are_gone() -> None:
    kept = Lru[str, int](2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.items() == [("a", 1), ("b", 2)]
    kept.put("c", 3)
    assert len(kept) == 2
    assert kept.get("a") is None
    kept.discard("b")
    kept.discard("unknown")
    assert kept.items() == [("c", 3)]
    kept.clear()
    assert len(kept) == 0


def test_threads_that_use_and_displace_entries_get_only_values_of_their_keys() -> None:
    kept = Lru[Key, int](8)

    def work(first: int) -> bool:
        right = True
        for k in range(2000):
            number = (first * 7 + k) % 16
            value = kept.get(Key(number))
            right = right and value in (None, number)
            if value is None:
                kept.put(Key(number), number)
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert len(kept) == 8
