"""A compiled model small enough to be damaged a thousand times: a product with packed weights, and what follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop.model.image import Image
from stormdrop.model.shared_weights import pack
from tests.support.images import Draft

Array = NDArray[Any]


def two_steps(
    n: int = 3,
    k: int = 5,
    m: int = 7,
    *,
    threads: int = 1,
    name: str = "tiny",
    input_name: str = "x",
    output_name: str = "y",
) -> tuple[Image, NDArray[np.uint8]]:
    """relu(x @ B + S), where B is packed and S is read as it is."""
    rng = np.random.default_rng(7)
    constants = {"B": rng.standard_normal((k, m)).astype(np.float32), "S": rng.standard_normal(m).astype(np.float32)}
    A, B, C, S = (
        sd.tensor("A", (n, k)),
        sd.tensor("B", (k, m), constant=True),
        sd.tensor("C", (n, m)),
        sd.tensor("S", (m,), constant=True),
    )
    i, j, q = sd.axis(n), sd.axis(m), sd.reduce_axis(k)
    product = sd.Task([sd.compute("P", (i, j), sd.sum(A[i, q] * B[q, j], q))], name="product")
    shifted = sd.Task([sd.compute("D", (i, j), sd.relu(C[i, j] + S[j]))], name="shifted")
    draft = Draft({input_name: (n, k)}, {output_name: (n, m)}, threads, name=name)
    between = draft.call(product, {"A": draft.port(input_name)})
    draft.call(shifted, {"C": between, "D": draft.port(output_name)})
    image = draft.image()
    return image, pack(image, lambda _: constants)
