"""Inputs for a model of the zoo or of ONNX's light ones: images with large and small features, or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
PATCHES = 7
TOKENS = {"input_ids": 30_000, "token_type_ids": 2}


def inputs_for(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """An array for every input that is no initializer, the same for the same seed."""
    rng = np.random.default_rng(seed)
    held = {t.name for t in model.graph.initializer}
    found: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in held:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value or 1 for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.INT64:
            most = TOKENS.get(value.name)
            found[value.name] = np.ones(shape, np.int64) if most is None else rng.integers(0, most, shape)
        else:
            found[value.name] = image(shape, rng)
    return found


def image(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Noise on patches of noise.

    Networks end in means over all pixels: those of plain noise are alike in all images, and so would the outputs be.
    """
    x = rng.standard_normal(tuple(shape), np.float32)
    if len(shape) < 4 or shape[-1] < 2 * PATCHES:
        return x
    coarse = rng.standard_normal((*shape[:-2], PATCHES, PATCHES), np.float32)
    for axis in (-1, -2):
        coarse = np.take(coarse, np.arange(shape[axis]) * PATCHES // shape[axis], axis=axis)
    return (coarse + 0.5 * x).astype(np.float32)
