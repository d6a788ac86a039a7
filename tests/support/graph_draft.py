"""A random graph under construction, and random data.

What a graph is made of comes from one generator and how large it is from another, so that the same operators can be
drawn at another shape. Extents are ones, primes and numbers around a vector; indices are data or constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.expr import FLOATS, NUMPY, Dtype
from stormdrop.operators.node import Value

Rng = np.random.Generator
Array = NDArray[Any]
Shape = tuple[int, ...]
T = TypeVar("T")
EXTENTS = (1, 1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 31, 33)
LONG = (100, 129, 200, 255)
MOST_ELEMENTS = 2500


class Refused(Exception):
    """A step that does not fit what there is."""


def random_data(shape: Shape, dtype: Dtype, rng: Rng, index_of: int | None = None) -> Array:
    """Floats are quarters: sums and products of some are exact. Integers are indices of an extent, small, or any."""
    if dtype in FLOATS:
        return (rng.integers(-8, 9, shape) / 4).astype(NUMPY[dtype])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if index_of is not None:
        return rng.integers(-index_of if rng.random() < 0.4 else 0, max(1, index_of), shape).astype(NUMPY[dtype])
    limits = np.iinfo(np.int32 if dtype == "i32" else np.int64)
    match int(rng.integers(3)):
        case 0:
            values = rng.integers(-9, 10, shape)
        case 1:
            values = rng.integers(limits.min, limits.max, shape, endpoint=True, dtype=limits.dtype)
        case _:
            ends = [limits.min, limits.min + 1, -1, 0, 1, 2**24 + 1, limits.max - 1, limits.max]
            values = rng.choice(np.array(ends), shape)
    return values.astype(NUMPY[dtype])


class GraphDraft:
    """Values and nodes so far. `pick` chooses operators, `size` extents; both are new for every step."""

    def __init__(self, structure: Sequence[int], sizes: Sequence[int]) -> None:
        self._structure, self._sizes = structure, sizes
        self.b = GraphBuilder()
        self.values: list[Value] = []
        self.step(0)

    def step(self, k: int) -> None:
        self.pick, self.size = np.random.default_rng([*self._structure, k]), np.random.default_rng([*self._sizes, k])

    def chance(self, p: float) -> bool:
        return bool(self.pick.random() < p)

    def among(self, *options: T) -> T:
        return options[int(self.pick.integers(len(options)))]

    def extent(self, most: int = 33) -> int:
        return int(self.size.choice([e for e in EXTENTS if e <= most]))

    def shape(self, rank: int) -> Shape:
        dims = [self.extent() for _ in range(rank)]
        if self.size.random() < 0.35:  # a row of many vectors
            dims = [min(n, 3) for n in dims]
            dims[int(self.size.integers(rank))] = int(self.size.choice(LONG))
        while prod(dims) > MOST_ELEMENTS // 4:
            dims[int(np.argmax(dims))] //= 2
        return tuple(dims)

    def input(self, shape: Shape, dtype: Dtype) -> Value:
        value = self.b.input(f"x{len(self.b.inputs)}", shape, dtype)
        self.values.insert(0, value)
        return value

    def constant(self, shape: Shape, dtype: Dtype) -> Value:
        return self.b.constant(random_data(shape, dtype, self.size), dtype)

    def given(self, shape: Shape, dtype: Dtype, constant: float = 0.4) -> Value:
        return self.constant(shape, dtype) if self.chance(constant) else self.input(shape, dtype)

    def indices(self, shape: Shape, extent: int) -> Value:
        dtype: Dtype = self.among("i64", "i64", "i32")
        if self.chance(0.4):
            return self.b.constant(random_data(shape, dtype, self.size, extent), dtype)
        return self.input(shape, dtype)

    def operand(self, x: Value, dtype: Dtype | None = None) -> Value:
        """Something that broadcasts against a value: another one, a row, a column, a number."""
        dtype = dtype or x.dtype
        alike = [v for v in self.values if v.shape == x.shape and v.dtype == dtype]
        if alike and self.chance(0.4):
            return self.among(*alike)
        if self.chance(0.3) and dtype != "bool":
            numbers = (0.5, 2.0, -1.0, 0.1, 3.0) if dtype in FLOATS else (0, 1, -1, 3, 7)
            return self.b.constant(self.among(*numbers), dtype)
        shape = tuple(n if self.chance(0.7) else 1 for n in x.shape)
        first = int(self.pick.integers(0, len(shape) + 1)) if self.chance(0.3) else 0
        return self.given(shape[first:], dtype)

    def axis(self, x: Value) -> int:
        if not x.rank:
            raise Refused
        return int(self.pick.integers(x.rank))

    def wants(self, ok: bool) -> None:
        if not ok:
            raise Refused
