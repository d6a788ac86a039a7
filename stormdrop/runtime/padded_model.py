"""A model for larger arrays than the caller's: inputs are padded with zeros, outputs are cut.

`graph.padding` proves that what is cut out is what a model of the caller's own sizes computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.errors import UserError
from stormdrop.runtime.arrays import Array
from stormdrop.runtime.device import Seconds
from stormdrop.runtime.model import Model
from stormdrop.runtime.profile import Profile

Cut = Callable[[Array], Array]


class PaddedModel:
    """Runs arrays of one tuple of shapes in a model of larger ones.

    The model's last inputs are `masks`, which say where its arrays are valid; `cuts` take that part out of its outputs.
    """

    def __init__(self, model: Model, masks: Sequence[Array], cuts: Sequence[Cut]) -> None:
        self.model, self._masks, self._cuts = model, tuple(masks), tuple(cuts)
        self._wanted = model.inputs[: len(model.inputs) - len(self._masks)]

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        results = self.model(*self._padded(inputs))
        whole = results if isinstance(results, tuple) else (results,)
        found = [np.ascontiguousarray(cut(array)) for cut, array in zip(self._cuts, whole)]
        if out is not None:
            targets: list[Any] = list(out) if isinstance(out, (list, tuple)) else [out]
            if len(targets) != len(found):
                raise UserError(f"out= needs {len(found)} arrays, not {len(targets)}")
            for target, array in zip(targets, found):
                if not isinstance(target, np.ndarray) or (target.shape, target.dtype) != (array.shape, array.dtype):
                    raise UserError(f"out= needs an array {array.dtype}{list(array.shape)}")
                target[...] = array
            found = targets
        return found[0] if len(found) == 1 else tuple(found)

    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        return self.model.bench(*self._padded(inputs), repeats=repeats)

    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        return self.model.profile(*self._padded(inputs), repeats=repeats, standalone=standalone)

    def _padded(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        arrays: list[Array] = []
        for port, given in zip(self._wanted, inputs):
            array = np.asarray(given)
            if array.shape != port.shape:
                larger = np.zeros(port.shape, array.dtype)
                larger[tuple(map(slice, array.shape))] = array
                array = larger
            arrays.append(array)
        return [*arrays, *self._masks]
