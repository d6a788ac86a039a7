"""Tensors, computes and tasks.

A `Compute` fills a tensor: one value per point of its axes, perhaps reduced over reduce axes. A `Task` is a DAG of
computes with one or more variants that are equal as functions; it is what a kernel is built for. Stages and axes have
ids taken from the structure alone (`s1`, `s1.a0`, `s1.r2`), never from names.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stormdrop.errors import UserError
from stormdrop.ir import keys
from stormdrop.ir.expr import (
    ITEMSIZE,
    NUMPY,
    Axis,
    Bin,
    Call,
    Combiner,
    Dtype,
    Expr,
    Load,
    Reduce,
    Scalar,
    index,
    lift,
    loads,
    walk,
)
from stormdrop.ir.verify import verify_compute, verify_task

MAX_ELEMENTS = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array. `constant`: its values are known when the kernel is loaded (weights)."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype = "f32"
    constant: bool = False
    compute: Compute | None = None

    def __post_init__(self) -> None:
        if self.dtype not in NUMPY:
            raise UserError(f"tensor {self.name}: unknown element type {self.dtype!r}; known: {', '.join(NUMPY)}")
        if not all(_is_extent(n) for n in self.shape):
            raise UserError(f"tensor {self.name}: bad shape {self.shape}; extents are non-negative integers")
        if self.size * ITEMSIZE[self.dtype] > MAX_ELEMENTS:
            raise UserError(f"tensor {self.name}: shape {self.shape} is too large to address")

    def __iter__(self) -> Iterator[Load]:
        # Python would otherwise ask for [0], [1], … for ever.
        raise TypeError(f"tensor {self.name} cannot be iterated over")

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != len(self.shape):
            rank = len(self.shape)
            raise UserError(f"tensor {self.name} has {rank} dimensions, but is read with {len(indices)} indices")
        return Load(self, [index(i) for i in indices])

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}{' constant' if self.constant else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """`tensor[axes] = combiner over reduce axes of body`, or just `body` where nothing is reduced."""

    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    combiner: Combiner | None = None

    @property
    def axis_ids(self) -> dict[Expr, str]:
        """a0, a1, … for the axes, r0, r1, … for the reduce axes."""
        spatial: dict[Expr, str] = {a: f"a{i}" for i, a in enumerate(self.axes)}
        return spatial | {a: f"r{i}" for i, a in enumerate(self.reduce_axes)}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a task's outputs; `error_bound` is in units of eps · Σ|a·b| against float64."""

    outputs: tuple[Tensor, ...]
    name: str = "direct"
    error_bound: float = 2.0

    @property
    def stages(self) -> tuple[Tensor, ...]:
        """The computed tensors, producers first, in an order that depends on the structure alone."""
        order: list[Tensor] = []
        seen: set[Tensor] = set()

        def visit(t: Tensor) -> None:
            if t in seen or t.compute is None:
                return
            seen.add(t)
            for load in loads(t.compute.body):
                visit(load.tensor)
            order.append(t)

        for out in self.outputs:
            visit(out)
        return tuple(order)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Every tensor that is read but not computed, constants included."""
        read = (load.tensor for t in self.stages if t.compute is not None for load in loads(t.compute.body))
        return tuple(dict.fromkeys(t for t in read if t.compute is None))

    @property
    def class_key(self) -> str:
        """The structure without sizes, names and numbers. A schedule belongs to the class of its variant."""
        return keys.class_key(self)

    @property
    def anchor_key(self) -> str:
        """The class of the reductions and what they read, without the epilogue; empty where nothing is reduced."""
        return keys.anchor_key(self)


@dataclass(frozen=True, eq=False)
class Task:
    """What a kernel computes. Inputs are ordered as they are first read; outputs as given."""

    outputs: tuple[Tensor, ...]
    variants: tuple[Variant, ...]
    name: str = "task"
    flops: float = 0.0

    def __init__(
        self, outputs: Tensor | Sequence[Tensor] = (), variants: Sequence[Variant] = (), name: str = "task"
    ) -> None:
        if not isinstance(outputs, (Tensor, Iterable)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"a task is made of its outputs, sd.Task([output]), not of {outputs!r}")
        variants = tuple(variants) or (Variant((outputs,) if isinstance(outputs, Tensor) else tuple(outputs)),)
        object.__setattr__(self, "variants", variants)
        object.__setattr__(self, "outputs", variants[0].outputs)
        object.__setattr__(self, "name", name)
        verify_task(self)
        object.__setattr__(self, "flops", nominal_flops(variants[0]))

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.variants[0].inputs

    @property
    def runtime_inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.inputs if not t.constant)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.inputs if t.constant)

    @cached_property
    def class_key(self) -> str:
        """The class of the direct variant: equal for an operator at any shape, stride, dilation and padding."""
        return self.variants[0].class_key

    @property
    def anchor_key(self) -> str:
        """The anchor class of the direct variant."""
        return self.variants[0].anchor_key

    @cached_property
    def digest(self) -> str:
        """The structure with all sizes, without names: tasks of one digest are computed by the same kernels."""
        from stormdrop.ir.serial import nameless

        return hashlib.sha256(json.dumps(nameless(self)).encode()).hexdigest()[:24]

    @property
    def minimal_bytes(self) -> int:
        """What must at least be moved: every input read once, every output written once."""
        return sum(t.nbytes for t in (*self.inputs, *self.outputs))

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(repr, tensors)) for tensors in (self.inputs, self.outputs))
        return f"<task {self.name}, {inputs} → {outputs}>"

    def __str__(self) -> str:
        from stormdrop.ir.printer import show_task

        return show_task(self)

    def to_json(self) -> dict[str, object]:
        from stormdrop.ir.serial import task_to_json

        return task_to_json(self)

    @staticmethod
    def from_json(data: object) -> Task:
        from stormdrop.ir.serial import task_from_json

        return task_from_json(data)


def nominal_flops(variant: Variant) -> float:
    """Operations on floats in the bodies; a reduction adds its combiner; padding counts as computed."""
    total = 0.0
    for t in variant.stages:
        assert t.compute is not None
        points = math.prod(a.extent for a in (*t.compute.axes, *t.compute.reduce_axes))
        total += points * (operations(t.compute.body) + (t.compute.combiner is not None))
    return total


def operations(e: Expr) -> int:
    """Floating-point operations of one evaluation; choosing, comparing and moving are free."""
    counted = (n for n in walk(e) if n.dtype in ("f32", "f64") and isinstance(n, (Bin, Call)))
    return sum(3 if isinstance(n, Bin) and n.op == "dot" else 1 for n in counted)


def tensor(name: str, shape: int | Iterable[int], dtype: Dtype = "f32", constant: bool = False) -> Tensor:
    """An input of a task."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"a tensor's name is a string, not {name!r}")
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    return Tensor(name, tuple(int(n) if _is_extent(n) else n for n in shape), dtype, constant)


def axis(extent: int, name: str = "") -> Axis:
    """A spatial axis."""
    return Axis(name or "i", _extent(extent, name or "i"), "spatial")


def reduce_axis(extent: int, name: str = "") -> Axis:
    """An axis to reduce over."""
    return Axis(name or "k", _extent(extent, name or "k"), "reduce")


def _is_extent(n: object) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool) and int(n) >= 0


def _extent(extent: int, name: str) -> int:
    if not _is_extent(extent):
        raise UserError(f"axis {name}: an extent is a non-negative integer, not {extent!r}")
    return int(extent)


def compute(name: str, axes: Axis | Sequence[Axis], body: Expr | Scalar, dtype: Dtype | None = None) -> Tensor:
    """A computed tensor: `compute("C", (i, j), sd.sum(A[i, k] * B[k, j], k))`."""
    axes = (axes,) if isinstance(axes, Axis) else tuple(axes)
    value = lift(body, dtype or "f32")
    for a in axes:
        if not isinstance(a, Axis):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"{name}: {a!r} is no axis; make one with sd.axis({a!r})")
    if isinstance(value, Reduce):
        return computed(name, Compute(axes, value.body, value.axes, value.combiner))
    return computed(name, Compute(axes, value))


def computed(name: str, c: Compute) -> Tensor:
    """The tensor that a compute fills, constant where all it reads is. Raises UserError for an ill-formed one."""
    verify_compute(name, c)
    read = loads(c.body)
    constant = bool(read) and all(load.tensor.constant for load in read)
    return Tensor(name, tuple(a.extent for a in c.axes), c.body.dtype, constant, c)
