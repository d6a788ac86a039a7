"""The callable that users hold, a kernel or a model: arrays in, arrays out.

C-contiguous and aligned arrays are read and written in place, others through a copy (`runtime.arrays`). Concurrent
calls use different recordings, each with its own working memory, so several Python threads may call at once; idle
recordings are reused. A call takes no lock in Python code, and releases the GIL in native code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from numpy.typing import ArrayLike

from stormdrop.errors import UserError
from stormdrop.runtime.arrays import Array, Described, checked, checked_outputs, is_plain, new_array

D = TypeVar("D", bound=Described)


class Runnable(Protocol):
    """The part of `Recording` that a call needs."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None: ...
    def run(self) -> None: ...


@runtime_checkable
class TakesOtherArrays(Protocol):
    """A device whose recordings use arrays in its own memory, those of other libraries."""

    def is_own_memory(self, value: object) -> bool:
        """Whether it is an array in the device's memory."""
        ...

    def run_in_place(self, recording: Runnable, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Run on arrays of which some are in the device's memory, each with its description; the outputs, of which
        those given as None are made. Raises UserError for arrays that do not match.
        """
        ...


class Executable(ABC, Generic[D]):
    """A callable on arrays; `inputs` and `outputs` describe them."""

    def __init__(self, name: str, inputs: tuple[D, ...], outputs: tuple[D, ...]) -> None:
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self._idle: list[Runnable] = []  # list.pop and append are atomic

    def __reduce__(self) -> Any:
        raise UserError(
            f"{self.name} holds native code and memory of this process, and is neither pickled nor copied: save a "
            "model with model.save(path) and open it elsewhere with sd.load_compiled(path); build a kernel again there"
        )

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        """Returns one array, or a tuple of several outputs. Raises UserError for arrays that do not match."""
        if self._other is not None and any(map(self._other.is_own_memory, inputs)):
            found = self._run_in_place(self._other, inputs, out)
            return found[0] if len(found) == 1 else tuple(found)
        arrays = self._checked(inputs)
        targets = checked_outputs(self.outputs, out, arrays)
        if out is None:
            self._run(arrays, targets)
        else:
            direct = [t if is_plain(t) else new_array(wanted) for t, wanted in zip(targets, self.outputs)]
            self._run(arrays, direct)
            for t, d in zip(targets, direct):
                if t is not d:
                    t[...] = d
        return targets[0] if len(targets) == 1 else tuple(targets)

    @cached_property
    def _other(self) -> TakesOtherArrays | None:
        """The device, if it takes arrays in its own memory."""
        return None

    @abstractmethod
    def _record(self) -> Runnable:
        """A new recording; it serves one call at a time."""

    def _check_count(self, inputs: Sequence[object]) -> None:
        if len(inputs) != len(self.inputs):
            wanted = ", ".join(map(repr, self.inputs)) or "no inputs"
            raise UserError(f"{self.name} takes {len(self.inputs)} arrays ({wanted}), not {len(inputs)}")

    def _checked(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        self._check_count(inputs)
        return [checked(t, x) for t, x in zip(self.inputs, inputs)]

    def _run_in_place(self, device: TakesOtherArrays, inputs: Sequence[object], out: Any) -> list[Any]:
        self._check_count(inputs)
        given: list[Any] = (
            [None] * len(self.outputs) if out is None else list(out) if isinstance(out, (list, tuple)) else [out]
        )
        if len(given) != len(self.outputs):
            raise UserError(f"out= needs {len(self.outputs)} arrays, not {len(given)}")
        recording = self._taken()
        found = device.run_in_place(recording, list(zip(self.inputs, inputs)), list(zip(self.outputs, given)))
        self._idle.append(recording)
        return found

    def _taken(self) -> Runnable:
        """A recording that nobody else uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._record()

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        recording = self._taken()
        recording.bind(inputs, outputs)
        recording.run()
        self._idle.append(recording)
