"""The log of races agrees with comparing every two accesses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.emulator.faults import Fault
from tests.emulator.memory import GlobalBuffer, Memory
from tests.emulator.races import RaceLog
from tests.emulator.reading import Instruction

THREADS, BLOCKS = 3, 3
SOME = Instruction("some instruction", 1, "load")


@dataclass(frozen=True)
class Touch:
    epoch: int
    thread: int
    granule: int
    is_shared: bool
    is_write: bool

    @property
    def block(self) -> int:
        return self.thread // THREADS


def races(a: Touch, b: Touch) -> bool:
    if (a.granule, a.is_shared) != (b.granule, b.is_shared) or not (a.is_write or b.is_write) or a.thread == b.thread:
        return False
    if a.block != b.block:
        return not a.is_shared
    return a.epoch == b.epoch


def drawn(seed: int) -> list[Touch]:
    """Few accesses to few granules: about half of the lists have a race."""
    rng = np.random.default_rng(seed)
    return [
        Touch(
            epoch=int(rng.integers(4)),
            thread=int(rng.integers(THREADS * BLOCKS)),
            granule=int(rng.integers(12)),
            is_shared=bool(rng.random() < 0.5),
            is_write=bool(rng.random() < 0.3),
        )
        for _ in range(int(rng.integers(2, 40)))
    ]


def is_reported(touches: list[Touch]) -> bool:
    """Each block's shared memory lies apart; accesses of one epoch come in any order, some of them together."""
    buffer = GlobalBuffer("g", np.zeros(64, np.uint8), is_writable=True)
    memory = Memory([buffer], {}, BLOCKS, 64, 4)
    log = RaceLog(memory, THREADS)
    rng = np.random.default_rng(len(touches))
    try:
        for epoch in range(4):
            now = [t for t in touches if t.epoch == epoch]
            rng.shuffle(now)  # type: ignore[arg-type]
            groups: dict[tuple[bool, bool, int], list[Touch]] = {}
            for t in now:
                groups.setdefault((t.is_shared, t.is_write, int(rng.integers(2))), []).append(t)
            for (is_shared, is_write, _), group in groups.items():
                starts = [memory.shared_base(t.block) if is_shared else memory.addresses[0] for t in group]
                first = np.array([start // 4 + t.granule for start, t in zip(starts, group)])
                log.add(SOME, first, 1, np.array([t.thread for t in group]), is_write)
            log.end_epoch()
    except Fault:
        return True
    return False


def test_a_race_is_reported_exactly_where_two_accesses_make_one() -> None:
    found = 0
    for seed in range(2000):
        touches = drawn(seed)
        wanted = any(races(a, b) for k, a in enumerate(touches) for b in touches[:k])
        assert is_reported(touches) == wanted, touches
        found += wanted
    assert 500 < found < 1500


@pytest.mark.parametrize("width", [2, 4])
def test_wide_accesses_race_in_their_last_granule(width: int) -> None:
    memory = Memory([GlobalBuffer("g", np.zeros(256, np.uint8), is_writable=True)], {}, 1, 64, 4)
    log = RaceLog(memory, 8)
    start = memory.addresses[0] // 4
    log.add(SOME, np.array([start]), width, np.array([0]), False)
    log.add(SOME, np.array([start + width]), 1, np.array([1]), True)
    log.end_epoch()
    log.add(SOME, np.array([start]), width, np.array([0]), False)
    log.add(SOME, np.array([start + width - 1]), 1, np.array([1]), True)
    with pytest.raises(Fault, match=f"byte {4 * (width - 1)} of g"):
        log.end_epoch()
