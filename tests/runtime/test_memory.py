"""Aligned memory: where it begins, what it holds, and whose it is after a fork."""

from __future__ import annotations

import os

import pytest

from stormdrop.runtime.memory import HUGE_BYTES, HUGE_FROM_BYTES, aligned


@pytest.mark.parametrize("nbytes", [1, 63, 4096, HUGE_FROM_BYTES - 1, HUGE_FROM_BYTES, HUGE_BYTES + 5])
@pytest.mark.parametrize("align", [64, 4096])
def test_memory_is_zeroed_and_begins_where_it_should(nbytes: int, align: int) -> None:
    block = aligned(nbytes, align)
    assert len(block) == nbytes
    assert block.ctypes.data % align == 0
    assert not block.any()
    block.fill(0xFF)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("nbytes", [4096, HUGE_BYTES])
def test_a_forked_child_writes_into_its_own_copy(nbytes: int) -> None:
    block = aligned(nbytes)
    block.fill(7)
    child = os.fork()
    if not child:
        block.fill(9)
        os._exit(0)
    os.waitpid(child, 0)
    assert (block == 7).all()
