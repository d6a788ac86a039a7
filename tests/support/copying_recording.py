"""A recording of a device with memory of its own: the caller's arrays are copied in and out around every run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from stormdrop.device.device import Account, Array, BoundCall, Memory, Seconds

M = TypeVar("M", bound=Memory)


class CopyingRecording(ABC, Generic[M]):
    """Calls are run one by one; a subclass runs one and says how long it took."""

    def __init__(self, calls: Sequence[BoundCall], allocate: Callable[[int], M]) -> None:
        self._calls, self._allocate = list(calls), allocate
        self._inputs: list[tuple[Array, M]] = []
        self._outputs: list[tuple[Array, M]] = []

    @abstractmethod
    def _timed(self, call: BoundCall) -> float: ...

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs, self._outputs = (
            [(array, self._allocate(array.nbytes)) for array in arrays] for arrays in (inputs, outputs)
        )

    def run(self) -> None:
        self.profile(1)

    def bench(self, repeats: int) -> Seconds:
        return self.profile(repeats).sum(axis=1)

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        chosen = calls if calls is not None else range(len(self._calls))
        for array, memory in (*self._inputs, *self._outputs):  # of outputs, what no call writes stays as it is
            memory.write(0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        seconds = np.array([[self._timed(self._calls[n]) for n in chosen] for _ in range(repeats)]).reshape(repeats, -1)
        for array, memory in self._outputs:
            array[...] = memory.read(0, array.nbytes).view(array.dtype).reshape(array.shape)
        return seconds

    def each(self, calls: range) -> Seconds:
        return self.profile(1, calls).ravel()

    def account(self, repeats: int, calls: range | None = None) -> Account:
        seconds = self.profile(repeats, calls)
        return Account(seconds, 0 * seconds, seconds, 0 * seconds)
