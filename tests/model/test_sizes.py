"""Results by size: one compilation for all threads, refusals that are remembered, other errors that are not."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from stormdrop.base.errors import BuildError, ModelError, UnsupportedOperator, UserError
from stormdrop.model.sizes import KeyLocks, Sizes


def test_threads_that_miss_one_key_wait_for_one_compilation_and_other_keys_do_not_wait() -> None:
    sizes = Sizes[int, str](8)
    begun, go = Event(), Event()
    compiled: list[int] = []

    def make() -> str:
        compiled.append(1)
        begun.set()
        assert go.wait(60)
        return "slow"

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(sizes.made, 1, make) for _ in range(4)]
        assert begun.wait(60)
        assert sizes.made(2, lambda: "other") == "other"
        assert sizes.get(2) == "other"
        go.set()
        assert [call.result() for call in calls] == ["slow"] * 4
    assert compiled == [1]


class NeedsTwo(UserError):
    """An error whose initialiser takes more than a message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second


def test_a_refusal_with_an_initialiser_of_its_own_is_raised_again() -> None:
    sizes = Sizes[int, str](8)

    def make() -> str:
        raise NeedsTwo("a", "b")

    for _ in range(2):
        with pytest.raises(NeedsTwo, match=r"^a and b$") as caught:
            sizes.made(1, make)
        assert caught.value.second == "b"


def test_a_refusal_is_compiled_once_and_raised_anew_with_its_class_and_attributes() -> None:
    sizes = Sizes[int, str](8)
    compiled: list[int] = []

    def make() -> str:
        compiled.append(1)
        raise UnsupportedOperator("no Wobble", ["Wobble"])

    errors: list[UnsupportedOperator] = []
    for _ in range(3):
        with pytest.raises(UnsupportedOperator, match="no Wobble") as caught:
            sizes.made(1, make)
        errors.append(caught.value)
    assert compiled == [1]
    assert len({id(error) for error in errors}) == 3
    assert all(error.operators == ("Wobble",) for error in errors)
    assert sizes.items() == []


def test_a_remembered_refusal_holds_no_array_of_the_failed_compilation() -> None:
    sizes = Sizes[int, str](8)
    watched: list[weakref.ref[object]] = []

    def make() -> str:
        weights = np.zeros(8)
        watched.append(weakref.ref(weights))
        raise UserError("refused")

    with pytest.raises(UserError):
        sizes.made(1, make)
    gc.collect()
    assert watched[0]() is None
    with pytest.raises(UserError, match="refused"):
        sizes.made(1, lambda: "never compiled")


@pytest.mark.parametrize("error", [BuildError("no memory"), UserError("the file cannot be read")])
def test_an_error_that_is_no_refusal_is_not_remembered(error: Exception) -> None:
    sizes = Sizes[int, str](8, ModelError)

    def fail() -> str:
        raise error

    with pytest.raises(type(error)):
        sizes.made(1, fail)
    assert sizes.made(1, lambda: "compiled") == "compiled"


def test_a_result_that_does_not_suit_is_replaced() -> None:
    sizes = Sizes[int, str](8)
    sizes.put(1, "rounded")
    assert sizes.made(1, lambda: "exact", lambda held: held != "other") == "rounded"
    assert sizes.made(1, lambda: "exact", lambda held: held != "rounded") == "exact"
    assert sizes.items() == [(1, "exact")]


def test_refusals_displace_no_results() -> None:
    sizes = Sizes[int, str](2)
    sizes.put(0, "compiled")

    def refuse() -> str:
        raise UserError("refused")

    for key in range(1, 6):
        with pytest.raises(UserError):
            sizes.made(key, refuse)
    assert sizes.get(0) == "compiled"
    assert sizes.made(1, lambda: "compiled again") == "compiled again"  # its refusal was the oldest


def test_a_lock_of_a_key_ends_with_its_last_holder() -> None:
    locks = KeyLocks[str]()
    lock = locks.of("a")
    assert locks.of("a") is lock
    assert locks.of("b") is not lock
    ended = weakref.ref(lock)
    del lock
    assert ended() is None
