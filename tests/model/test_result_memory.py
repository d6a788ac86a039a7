"""Memory of results is taken again when nobody holds it, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stormdrop.device.arrays import Array, address_of
from stormdrop.model.executable import LEAST_BYTES, ResultMemory
from stormdrop.model.image import Port
from stormdrop.target import ALIGN_BYTES

LARGE = Port("y", (LEAST_BYTES // 4,), "f32")


def one(memory: ResultMemory) -> Array:
    (array,) = memory.arrays()
    return array


def test_a_result_that_was_dropped_gives_its_memory_to_the_next_one() -> None:
    memory = ResultMemory([LARGE])
    first = one(memory)
    assert first.shape == LARGE.shape
    assert first.dtype == np.float32
    at = address_of(first)
    assert at % ALIGN_BYTES == 0
    second = one(memory)
    assert not np.may_share_memory(first, second)
    del first
    assert address_of(one(memory)) == at


def test_whatever_holds_a_result_keeps_its_memory() -> None:
    memory = ResultMemory([LARGE])
    holders: tuple[Callable[[Array], Any], ...] = (
        lambda y: y[3:5],
        lambda y: y.reshape(2, -1)[0].T,
        lambda y: y.data,
        lambda y: np.from_dlpack(y),
        lambda y: y.view(np.int32),
    )
    held = [hold(one(memory)) for hold in holders]
    arrays = [np.asarray(h) for h in held]
    for k, array in enumerate(arrays):
        array[...] = k
    for _ in range(4):
        one(memory)[...] = -1
    assert all((array == k).all() for k, array in enumerate(arrays))


def test_memory_for_two_calls_is_kept_and_none_after_clearing() -> None:
    memory = ResultMemory([LARGE, LARGE])
    several = [memory.arrays() for _ in range(5)]
    assert len({address_of(array) for arrays in several for array in arrays}) == 10
    kept = {address_of(array) for arrays in several[:2] for array in arrays}
    several.clear()
    first, second = memory.arrays(), memory.arrays()
    assert {address_of(array) for array in (*first, *second)} == kept
    memory.clear()
    assert not any(np.may_share_memory(array, other) for array in memory.arrays() for other in (*first, *second))


def test_small_results_are_the_allocators() -> None:
    small = Port("y", (7,), "f32")
    memory = ResultMemory([small, LARGE])
    y, z = memory.arrays()
    assert (y.shape, z.shape) == ((7,), LARGE.shape)


def test_no_two_threads_have_one_block() -> None:
    memory, barrier = ResultMemory([LARGE]), threading.Barrier(4)

    def work(number: int) -> bool:
        barrier.wait()
        for _ in range(300):
            array = one(memory)
            array[:8] = number
            array[-8:] = number
            if not (array[:8] == number).all() or not (array[-8:] == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4)))
