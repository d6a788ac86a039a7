"""Aligned memory: where it begins, what it holds, whose it is after a fork, and on which nodes it lies."""

from __future__ import annotations

import ctypes
import os
import platform

import numpy as np
import numpy.typing as npt
import pytest

from stormdrop.device import arrays as memory
from stormdrop.device import host_device
from stormdrop.device.arrays import HUGE_BYTES, HUGE_FROM_BYTES, aligned
from stormdrop.device.pool.pool import shared_pool


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


# ---- NUMA nodes ------------------------------------------------------------------------------------------------------


def policy_of(block: npt.NDArray[np.uint8]) -> int | None:
    """The memory policy at an address (get_mempolicy with MPOL_F_ADDR); None where there is none."""
    number = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    call = ctypes.CDLL(None).syscall
    call.argtypes = [ctypes.c_long] * 6
    failed = call(number, ctypes.addressof(mode), ctypes.addressof(mask), 1024, block.ctypes.data, 2)
    return None if failed else mode.value


def test_a_block_is_interleaved_over_nodes_as_the_system_understands_it() -> None:
    block = aligned(HUGE_BYTES + 5)
    block.fill(7)
    if policy_of(block) is None or not memory.interleave(block, (0,)):
        pytest.skip("this system has no NUMA policies, or forbids them")
    assert policy_of(block) == 3  # MPOL_INTERLEAVE
    assert (block == 7).all()  # pages in use move with their contents
    assert policy_of(aligned(HUGE_BYTES)) == 0
    assert not memory.interleave(aligned(HUGE_BYTES), (63,))  # there is no such node


def test_a_device_interleaves_over_the_nodes_of_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def call(_number: int, address: int, nbytes: int, mode: int, mask: int, most: int, _flags: int) -> int:
        asked.append((nbytes, mode, ctypes.c_ulong.from_address(mask).value, most))
        assert address % HUGE_BYTES == 0
        return -1  # refused, as in many containers

    monkeypatch.setattr(memory, "_system_call", lambda: call)
    monkeypatch.setattr(host_device, "nodes_of", lambda cpus: (0, 2))  # pyright: ignore[reportUnknownLambdaType]
    device = host_device.HostDevice(shared_pool(1))
    device.allocate(100)
    block = device.allocate(3 << 20)
    device.adopt(block.block)
    assert asked == [(4 << 20, 3, 0b101, 65)] * 2


def test_a_machine_with_one_node_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_device, "nodes_of", lambda cpus: ())  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(memory, "_system_call", lambda: pytest.fail("asked"))
    host_device.HostDevice(shared_pool(1)).allocate(3 << 20)
