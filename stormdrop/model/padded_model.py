"""A model for larger arrays than the caller's: inputs are padded with zeros, outputs are cut.

`graph.padding` proves that what is cut out is what a model of the caller's own sizes computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.device.arrays import Array, copied_out
from stormdrop.device.device import Seconds
from stormdrop.ir.padding import Claim, Padding, valid_part
from stormdrop.model.model import Model
from stormdrop.model.profile import Profile


class PaddedModel:
    """Runs arrays of one tuple of shapes in a model of larger ones.

    The model's last inputs are masks, which say where its arrays are valid; of its outputs that part is kept.
    """

    def __init__(self, model: Model, masks: Sequence[Padding], outputs: Sequence[Claim]) -> None:
        self.model, self.masks, self.outputs = model, tuple(masks), tuple(outputs)
        count = len(model.inputs) - len(masks)
        self._wanted = model.inputs[:count]
        self._masks = [mask.mask(port.shape[0]) for mask, port in zip(masks, model.inputs[count:])]

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        results = self.model(*self._padded(inputs))
        whole = results if isinstance(results, tuple) else (results,)
        found = [np.ascontiguousarray(valid_part(array, claim)) for claim, array in zip(self.outputs, whole)]
        found = copied_out(out, found)
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
