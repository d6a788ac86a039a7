"""The callable that users hold, a kernel or a model: arrays in, arrays out.

C-contiguous and aligned arrays are read and written in place, others through a copy (`runtime.arrays`). Concurrent
calls use different recordings, each with its own working memory, so several Python threads may call at once; idle
recordings are reused. A call takes no lock in Python code, and releases the GIL in native code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import ArrayLike

from stormdrop.errors import UserError
from stormdrop.runtime.arrays import Array, Described, checked, checked_outputs, is_plain, new_array

D = TypeVar("D", bound=Described)


class Runnable(Protocol):
    """The part of `Recording` that a call needs."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None: ...
    def run(self) -> None: ...


class Executable(ABC, Generic[D]):
    """A callable on arrays; `inputs` and `outputs` describe them."""

    def __init__(self, name: str, inputs: tuple[D, ...], outputs: tuple[D, ...]) -> None:
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self._idle: list[Runnable] = []  # list.pop and append are atomic

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        """Returns one array, or a tuple of several outputs. Raises UserError for arrays that do not match."""
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

    @abstractmethod
    def _record(self) -> Runnable:
        """A new recording; it serves one call at a time."""

    def _checked(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        if len(inputs) != len(self.inputs):
            wanted = ", ".join(map(repr, self.inputs)) or "no inputs"
            raise UserError(f"{self.name} takes {len(self.inputs)} arrays ({wanted}), not {len(inputs)}")
        return [checked(t, x) for t, x in zip(self.inputs, inputs)]

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        try:
            recording = self._idle.pop()
        except IndexError:
            recording = self._record()
        recording.bind(inputs, outputs)
        recording.run()
        self._idle.append(recording)
