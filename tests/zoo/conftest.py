"""Running a model of the zoo in a runtime that nobody here wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray


@pytest.fixture
def run() -> Callable[..., list[NDArray[np.float32]]]:
    """run(model, inputs by name): its outputs."""

    def outputs(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
        session: Any = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, dict(inputs))

    return outputs
