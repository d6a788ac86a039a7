"""A recipe under construction: every node is evaluated as it is added, so that shapes are known and the numbers make
sense.

Makers (`tests/fuzz/makers`) call it. Invariant: whatever `emit` has accepted is valid ONNX, an oracle evaluates it, and
its results are determined well enough to be compared (`held`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tests.fuzz import values
from tests.fuzz.held import Held, Refused, apply
from tests.fuzz.recipe import Node, Recipe

Array = NDArray[Any]
Shape = tuple[int, ...]
T = TypeVar("T")
MOST_ELEMENTS = 20_000
SIZES = (1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 19, 24, 31, 32, 33, 47, 48, 63, 64, 65)
FLOATS = (np.float32, np.float64)
INTEGERS = (np.int32, np.int64)
NUMBERS = (*FLOATS, *INTEGERS)
TYPES = (*NUMBERS, np.bool_)

__all__ = ["FLOATS", "INTEGERS", "NUMBERS", "TYPES", "Draft", "Maker", "Refused", "Shape"]


class Draft:
    """Nodes, arrays, and what each value is."""

    def __init__(self, rng: np.random.Generator, opset: int, special: bool = False, empties: bool = False) -> None:
        """`special`: data holds NaN, infinities, signed zeros, subnormals. `empties`: dimensions of 0 are drawn."""
        self.rng, self.opset, self.special, self.empties = rng, opset, special, empties
        self.nodes: list[Node] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.held: dict[str, Held] = {}
        self.made: list[str] = []  # outputs of nodes, in order
        self.read: set[str] = set()

    # ---- chance --------------------------------------------------------------------------------------------------

    def among(self, *some: T) -> T:
        return some[int(self.rng.integers(len(some)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """A random integer, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def needs(self, opset: int) -> None:
        """Refuse where the model's operator set is older."""
        if self.opset < opset:
            raise Refused(f"needs operator set {opset}")

    # ---- shapes and types ----------------------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        return self.held[name].plain.shape

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def dtype(self, name: str) -> np.dtype[Any]:
        return self.held[name].plain.dtype

    def dim(self, most: int = 65) -> int:
        """A size: one often, around vectors and tiles, rarely 0."""
        if self.empties and self.chance(0.15):
            return 0
        return int(self.among(*(n for n in SIZES if n <= most)))

    def dims(self, rank: int | None = None, most: int = MOST_ELEMENTS) -> Shape:
        """A shape of `rank` dimensions (0 to 5) with at most `most` elements."""
        rank = int(self.among(0, 1, 1, 2, 2, 3, 3, 4, 4, 5)) if rank is None else rank
        limit = 65 if rank <= 2 else 33 if rank == 3 else 17
        for _ in range(20):
            shape = tuple(1 if self.chance(0.2) else self.dim(limit) for _ in range(rank))
            if np.prod(shape, dtype=np.int64) <= most:
                return shape
        return (1,) * rank

    # ---- values --------------------------------------------------------------------------------------------------

    def input(self, shape: Sequence[int], dtype: DTypeLike = np.float32, array: Array | None = None) -> str:
        """A new input of the model; `array` instead of random data."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self._array(shape, dtype) if array is None else array
        self.held[name] = Held.exactly(self.inputs[name])
        return name

    def constant(self, value: Any) -> str:
        """A new initializer."""
        name = f"w{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        self.held[name] = Held.exactly(self.constants[name])
        return name

    def integers(self, some: Sequence[int]) -> str:
        """An i64 initializer: axes, shapes, pads."""
        return self.constant(np.array(some, np.int64))

    def weights(self, *shape: int, dtype: DTypeLike = np.float32, scale: float = 1.0, centre: float = 0.0) -> str:
        """A constant of normal data."""
        return self.constant(np.asarray(centre + scale * self.rng.standard_normal(shape)).astype(dtype))

    def value(self, shape: Sequence[int], dtype: DTypeLike = np.float32) -> str:
        """A value of this shape and type: one that is there, a new input, or a constant."""
        same = [n for n in (*self.inputs, *self.made) if self.shape(n) == tuple(shape) and self.dtype(n) == dtype]
        if same and self.chance(0.6):
            return self.among(*same)
        if self.chance(0.35):
            return self.constant(self._array(shape, dtype))
        return self.input(shape, dtype)

    def within(self, shape: Sequence[int], low: int, high: int, dtype: DTypeLike | None = None) -> str:
        """Integers in [low, high), as indices are: a constant, or an input known only at run time."""
        if high <= low:
            raise Refused("no index is valid")
        array = np.asarray(self.rng.integers(low, high, tuple(shape))).astype(dtype or self.among(np.int64, np.int32))
        return self.constant(array) if self.chance(0.5) else self.input(shape, array=array)

    def pick(self, fits: Callable[[Shape], bool] = lambda s: True, dtypes: Sequence[DTypeLike] = FLOATS) -> str:
        """An input or a node's output, recent and unread ones more often. Raises Refused where none fits."""
        kinds = [np.dtype(t) for t in dtypes]
        pool = [n for n in (*self.inputs, *self.made) if self.dtype(n) in kinds and fits(self.shape(n))]
        if not pool:
            raise Refused("nothing fits")
        weights = np.array([1.12**k * (1 if name in self.read else 3) for k, name in enumerate(pool)])
        return pool[int(self.rng.choice(len(pool), p=weights / weights.sum()))]

    def take(
        self,
        make: Callable[[], Shape],
        dtypes: Sequence[DTypeLike] = FLOATS,
        fits: Callable[[Shape], bool] | None = None,
    ) -> str:
        """What `pick` finds (with `fits`; by default any shape of the rank that `make` gives), or a new input of shape
        `make()`.
        """
        shape = make()
        rank = len(shape)

        def same_rank(s: Shape) -> bool:
            return len(s) == rank

        accepts = fits or same_rank
        if self.chance(0.75):
            try:
                return self.pick(accepts, dtypes)
            except Refused:
                pass
        if not accepts(shape):
            raise Refused(f"{shape} does not fit")
        return self.input(shape, self.type_among(dtypes))

    def type_among(self, dtypes: Sequence[DTypeLike] = TYPES) -> DTypeLike:
        """One of these types, f32 and i64 more often."""
        often = {"float32": 5.0, "int64": 2.0}
        weights = np.array([often.get(np.dtype(t).name, 1.0) for t in dtypes])
        return dtypes[int(self.rng.choice(len(dtypes), p=weights / weights.sum()))]

    def _array(self, shape: Sequence[int], dtype: DTypeLike) -> Array:
        return values.draw(self.rng, tuple(shape), np.dtype(dtype), self.special)

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def emit(self, op: str, *inputs: str, results: int | Sequence[bool] = 1, **attributes: Any) -> list[str]:
        """Add a node; the names of its results. An input "" is absent. Raises Refused, and then nothing has changed.

        `results`: how many, or for each output whether it is wanted.
        """
        wanted = [True] * results if isinstance(results, int) else results
        names = [f"v{len(self.made) + k}" for k in range(sum(wanted))]
        left = iter(names)
        node = Node(op, inputs, tuple(next(left) if want else "" for want in wanted), attributes)
        given = {name: self.held[name] for name in sorted(node.reads()) if name in self.held}
        outputs = apply(node, given, self.opset, self.rng, self.special)
        if any(h.plain.size > MOST_ELEMENTS or h.plain.ndim > 6 for h in outputs):
            raise Refused(f"{op} gives too much")
        self.nodes.append(node)
        self.read.update(given)
        self.made += names
        self.held |= dict(zip(names, outputs))
        return names

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.emit(op, *inputs, **attributes)[0]

    def recipe(self, outputs: Sequence[str]) -> Recipe:
        return Recipe(self.opset, self.inputs, self.constants, tuple(self.nodes), tuple(outputs)).pruned()


Maker = Callable[[Draft], object]
"""Adds one operator, or an idiom of several, to a draft; raises Refused where nothing fits."""
