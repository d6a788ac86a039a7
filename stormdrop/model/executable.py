"""The callable that users hold, a kernel or a model: arrays in, arrays out.

C-contiguous and aligned arrays are read and written in place, all other arrays through a copy (`device.arrays`).
Concurrent calls use different recordings, each with its own working memory, so several Python threads may call at once;
idle recordings are reused. A call takes no lock in Python code, and releases the GIL in native code.

An executable holds machine code, weights and working memory until it is closed or has no references.

Memory for the output arrays of calls, reused by later calls once the arrays in it are garbage.

    memory = ResultMemory(model.outputs)
    arrays = memory.arrays()

The reason is that the allocator returns large blocks to the system when they are freed: always above 32 MB, smaller if
several are freed at once. The next call then pays a page fault for every 4 KiB that it writes (measured: four results
of 4 MiB, 1,010 faults a call). Here up to two blocks are kept for each output, since a caller usually holds the last
result while the next result is computed.

A block is free if its only reference is the reference in `ResultMemory`. The array in a block, and every view of that
array, hold a reference to the block itself.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.errors import UserError
from stormdrop.device.arrays import (
    Array,
    Described,
    NamedArray,
    array_in,
    checked,
    checked_outputs,
    is_plain,
    new_array,
    new_block,
)

LEAST_BYTES = 128 << 10
"""Smaller arrays stay with the allocator, which keeps their pages."""


class ResultMemory:
    """Allocates one array for each description in `wanted`, again and again. Any thread may call its methods."""

    def __init__(self, wanted: Sequence[Described]) -> None:
        self._wanted = tuple(wanted)
        # by size in bytes: the number of blocks kept, and the blocks, free or in use
        self._most = {nbytes: 2 * count for nbytes, count in Counter(t.nbytes for t in wanted).items()}
        self._blocks: dict[int, deque[Array]] = {n: deque() for n in self._most if n >= LEAST_BYTES}

    def arrays(self) -> list[Array]:
        """Returns arrays without other references, with undefined contents. Raises RunError if there is no memory."""
        return [array_in(self._block(t), t) for t in self._wanted]

    def clear(self) -> None:
        """Drops all blocks, and keeps none from now on."""
        self._blocks = {}

    def _block(self, t: Described) -> Array:
        blocks = self._blocks.get(t.nbytes)
        if blocks is None:
            return new_block(t)
        for _ in range(len(blocks)):
            try:
                block = blocks.popleft()  # atomic: no two threads look at the same block
            except IndexError:
                break
            is_free = sys.getrefcount(block) <= _UNSHARED
            blocks.append(block)
            if is_free:  # the local reference marks it as taken until an array refers to it
                return block
        block = new_block(t)
        if len(blocks) < self._most[t.nbytes]:
            blocks.append(block)
        return block


def _count_unshared() -> int:
    """Returns the `sys.getrefcount` of a free block in `_block`. Measured, since interpreters count differently."""
    blocks = deque([np.empty(0, np.uint8)])
    block = blocks.popleft()
    return sys.getrefcount(block)


_UNSHARED = _count_unshared()


D = TypeVar("D", bound=NamedArray)


class Runnable(Protocol):
    """The part of `Recording` that a call needs."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None: ...
    def run(self) -> None: ...


@runtime_checkable
class TakesOtherArrays(Protocol):
    """A device whose recordings use arrays of other libraries in its own memory."""

    def is_own_memory(self, value: object) -> bool:
        """Returns whether `value` is an array in the device's memory."""
        ...

    def run_in_place(self, recording: Runnable, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Runs on arrays of which some are in the device's memory, each with its description; returns the outputs.

        Outputs given as None are created. Raises UserError for arrays that do not match.
        """
        ...


class Executable(ABC, Generic[D]):
    """A callable on arrays; `inputs` and `outputs` describe them."""

    name: str
    """The name of the model or of the task."""
    inputs: tuple[D, ...]
    """The descriptions of the inputs, in the order of the arguments."""
    outputs: tuple[D, ...]
    """The descriptions of the outputs, in the order of the results."""

    def __init__(self, name: str, inputs: tuple[D, ...], outputs: tuple[D, ...]) -> None:
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self._is_closed = False

    def __reduce__(self) -> Any:
        raise UserError(
            f"{self.name} holds native code and memory of this process, and is neither pickled nor copied: save a "
            "model with model.save(path) and open it elsewhere with sd.load(path); build a kernel again there"
        )

    @abstractmethod
    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None, **named: ArrayLike) -> Any:
        """Returns one array, or a tuple of several outputs.

        Inputs are given in order, or by name. Raises UserError for arrays that do not match.
        """

    def close(self) -> None:
        """Frees code, weights and memory. Running calls end as usual, later calls raise UserError."""
        self._is_closed = True
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        """Drops the references to code and weights."""

    def _in_order(self, inputs: Sequence[ArrayLike], named: Mapping[str, ArrayLike]) -> tuple[ArrayLike, ...]:
        """Returns all inputs in order: the first by position, the rest by name. Raises UserError for unknown names."""
        names = [port.name for port in self.inputs]
        known = ", ".join(map(repr, names)) or "none"
        for name in named:
            if name not in names:
                raise UserError(f"{self.name} has no input {name!r}; its inputs: {known}")
            if name in names[: len(inputs)]:
                raise UserError(f"{self.name} takes {name!r} once; it is given by position and by name")
        missing = [repr(name) for name in names[len(inputs) :] if name not in named]
        if missing:
            raise UserError(f"{self.name} needs {', '.join(missing)}; its inputs: {known}")
        return (*inputs, *(named[name] for name in names[len(inputs) :]))

    def _closed(self) -> UserError:
        return UserError(f"{self.name} is closed")

    def _check_count(self, inputs: Sequence[object]) -> None:
        if len(inputs) != len(self.inputs):
            wanted = ", ".join(map(repr, self.inputs)) or "no inputs"
            raise UserError(f"{self.name} takes {len(self.inputs)} arrays ({wanted}), not {len(inputs)}")


class Recorded(Executable[D]):
    """An executable whose calls run recordings of native code. A recording serves one call at a time."""

    def __init__(self, name: str, inputs: tuple[D, ...], outputs: tuple[D, ...]) -> None:
        super().__init__(name, inputs, outputs)
        self._idle: list[Runnable] = []  # list.pop and append are atomic
        self._results = ResultMemory(outputs)

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None, **named: ArrayLike) -> Any:
        """Returns one array, or a tuple of several outputs.

        Inputs are given in order, or by name. Raises UserError for arrays that do not match.
        """
        if named:
            inputs = self._in_order(inputs, named)
        if not self._is_closed and self._other is not None and any(map(self._other.is_own_memory, inputs)):
            results = self._run_in_place(self._other, inputs, out)
            return results[0] if len(results) == 1 else tuple(results)
        arrays = self._checked(inputs)
        if out is None:
            targets = self._results.arrays()
            self._run(arrays, targets)
        else:
            targets = checked_outputs(self.outputs, out, arrays)
            direct = [t if is_plain(t) else new_array(wanted) for t, wanted in zip(targets, self.outputs)]
            self._run(arrays, direct)
            for t, d in zip(targets, direct):
                if t is not d:
                    t[...] = d
        return targets[0] if len(targets) == 1 else tuple(targets)

    def close(self) -> None:
        """Frees code, weights and memory. Running calls end as usual, later calls raise UserError."""
        super().close()
        self._idle.clear()
        self._results.clear()

    @cached_property
    def _other(self) -> TakesOtherArrays | None:
        """The device, if it takes arrays in its own memory."""
        return None

    @abstractmethod
    def _record(self) -> Runnable:
        """Returns a new recording; it serves one call at a time."""

    def _checked(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        if self._is_closed:
            raise self._closed()
        self._check_count(inputs)
        return [checked(t, x) for t, x in zip(self.inputs, inputs)]

    def _run_in_place(self, device: TakesOtherArrays, inputs: Sequence[object], out: Any) -> list[Any]:
        self._check_count(inputs)
        given: list[Any] = (
            [None] * len(self.outputs) if out is None else list(out) if isinstance(out, (list, tuple)) else [out]
        )
        if len(given) != len(self.outputs):
            raise UserError(f"out= needs {len(self.outputs)} arrays, not {len(given)}")
        recording = self._idle_recording()
        results = device.run_in_place(recording, list(zip(self.inputs, inputs)), list(zip(self.outputs, given)))
        self._give(recording)
        return results

    def _idle_recording(self) -> Runnable:
        """Returns a recording that no other call uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._record()

    def _give(self, recording: Runnable) -> None:
        """Returns a recording to the idle recordings."""
        if not self._is_closed:
            self._idle.append(recording)

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        recording = self._idle_recording()
        recording.bind(inputs, outputs)
        recording.run()
        self._give(recording)
