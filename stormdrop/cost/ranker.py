"""The ranker of a search by the learned model. Its scores may be compared across sketches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.cost.model import CostModel

Points = NDArray[np.int64]


class Featured(Protocol):
    """Points of one sketch."""

    def features(self, points: Points) -> NDArray[np.float64]: ...


class ModelRanker:
    """The learned model, or the prior before it has learned; `group` names the task's rows in the model."""

    def __init__(self, spaces: Sequence[Featured], model: CostModel, group: str | None = None) -> None:
        self._spaces, self._model, self._group = spaces, model, group

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return self._model.predict(self._spaces[sketch].features(points), self._group)
