"""Tensors, computes and tasks.

A `Compute` fills a tensor: one value per point of its axes, perhaps reduced over reduce axes. A `Task` is a DAG of
computes, the unit for which a kernel is built; its variants are equal as functions. Stages and axes have ids derived
from the structure alone (`s1`, `s1.a0`, `s1.r2`), never from names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import keys
from stormdrop.ir.build import distinct, renamed_axes
from stormdrop.ir.dtypes import DtypeLike, dtype_of
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
    rewrite,
    substitute,
    walk,
)
from stormdrop.ir.verify_task import verify_compute, verify_task

MAX_ELEMENTS = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array. `constant`: its values are known when the kernel is loaded (weights)."""

    name: str
    """The name of the tensor: the keyword of an input in calls, the key of a constant."""
    shape: tuple[int, ...]
    """The extent of each dimension."""
    dtype: Dtype = "f32"
    """The element type."""
    constant: bool = False
    """True for weights: a kernel gets their values when it is built."""
    compute: Compute | None = None
    """The formula of the elements; None for an input."""

    def __post_init__(self) -> None:
        if self.dtype not in NUMPY:
            raise UserError(f"tensor {self.name}: unknown element type {self.dtype!r}; known: {', '.join(NUMPY)}")
        if not all(_is_extent(n) for n in self.shape):
            raise UserError(f"tensor {self.name}: bad shape {self.shape}; extents are non-negative integers")
        if self.size * ITEMSIZE[self.dtype] > MAX_ELEMENTS:
            raise UserError(f"tensor {self.name}: shape {self.shape} is too large to address")

    def __iter__(self) -> Iterator[Load]:
        # Without this error Python would read [0], [1], … forever.
        raise TypeError(f"tensor {self.name} cannot be iterated over")

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> Load:
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != len(self.shape):
            rank = len(self.shape)
            raise UserError(f"tensor {self.name} has {rank} dimensions, but is read with {len(indices)} indices")
        return Load(self, [index(i) for i in indices])

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.size * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}{' constant' if self.constant else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """`tensor[axes] = combiner over reduce axes of body`, or `tensor[axes] = body` without a reduction."""

    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    combiner: Combiner | None = None

    @property
    def terms(self) -> int:
        """The number of values that one element combines: 1 without a reduction."""
        return math.prod(a.extent for a in self.reduce_axes)

    @property
    def axis_ids(self) -> dict[Expr, str]:
        """The ids of axes: a0, a1, … for spatial axes, r0, r1, … for reduce axes."""
        spatial: dict[Expr, str] = {a: f"a{i}" for i, a in enumerate(self.axes)}
        return spatial | {a: f"r{i}" for i, a in enumerate(self.reduce_axes)}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a task's outputs; `error_bound` is in units of eps · Σ|a·b| against float64."""

    outputs: tuple[Tensor, ...]
    """The tensors to compute."""
    name: str = "direct"
    """The name of the algorithm, such as direct or F(2,3)."""
    error_bound: float = 2.0
    """The bound of the rounding error, in units of eps · Σ|a·b| against float64."""

    @property
    def stages(self) -> tuple[Tensor, ...]:
        """The computed tensors, producers first, in an order that depends on the structure alone."""
        order: dict[Tensor, None] = {}

        def visit(t: Tensor) -> None:
            if t not in order and t.compute is not None:
                for load in loads(t.compute.body):
                    visit(load.tensor)
                order[t] = None

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
        """The class of the reductions and the stages they read, without the epilogue; empty without a reduction."""
        return keys.anchor_key(self)


@dataclass(frozen=True, eq=False)
class Task:
    """The computation of one kernel. Inputs are ordered as they are first read; outputs as given."""

    outputs: tuple[Tensor, ...]
    """The outputs of the direct variant, in the given order."""
    variants: tuple[Variant, ...]
    """The ways to compute the outputs, equal as functions."""
    name: str = "task"
    """The label in reports and stores; it is no part of the digest."""
    flops: float = 0.0
    """The nominal number of operations: floating-point operations of the direct variant."""

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
        """The tensors that are read but not computed, constants included, in the order in which they are first read."""
        return self.variants[0].inputs

    @property
    def runtime_inputs(self) -> tuple[Tensor, ...]:
        """The inputs that a call of the kernel takes."""
        return tuple(t for t in self.inputs if not t.constant)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The weights among the inputs: a kernel gets their values when it is built."""
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
        """The least memory traffic: every input read once, every output written once."""
        return sum(t.nbytes for t in (*self.inputs, *self.outputs))

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(repr, tensors)) for tensors in (self.inputs, self.outputs))
        return f"<task {self.name}, {inputs} → {outputs}>"

    def __str__(self) -> str:
        from stormdrop.ir.printer import show_task

        return show_task(self)

    def to_json(self) -> dict[str, object]:
        """Returns the task as a tree for `json.dumps`; `from_json` reads it."""
        from stormdrop.ir.serial import task_to_json

        return task_to_json(self)

    @staticmethod
    def from_json(data: object) -> Task:
        """Returns the task of a tree that `to_json` made. Raises UserError if it is no task."""
        from stormdrop.ir.serial import task_from_json

        return task_from_json(data)


def nominal_flops(variant: Variant) -> float:
    """Returns the number of float operations in the bodies, including combiners of reductions and padding."""
    total = 0.0
    for t in variant.stages:
        assert t.compute is not None
        points = math.prod(a.extent for a in (*t.compute.axes, *t.compute.reduce_axes))
        total += points * (operations(t.compute.body) + (t.compute.combiner is not None))
    return total


def operations(e: Expr) -> int:
    """Counts the floating-point operations of one evaluation; choosing, comparing and moving are free."""
    counted = (n for n in walk(e) if n.dtype in ("f32", "f64") and isinstance(n, (Bin, Call)))
    return sum(3 if isinstance(n, Bin) and n.op == "dot" else 1 for n in counted)


def tensor(name: str, shape: int | Iterable[int], dtype: DtypeLike = "f32", constant: bool = False) -> Tensor:
    """Returns an input of a task."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"a tensor's name is a string, not {name!r}")
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    return Tensor(name, tuple(int(n) if _is_extent(n) else n for n in shape), _dtype_for(name, dtype), constant)


def _dtype_for(name: str, dtype: DtypeLike) -> Dtype:
    try:
        return dtype_of(dtype)
    except UserError as error:
        raise UserError(f"tensor {name}: {error}") from error


def axis(extent: int, name: str = "") -> Axis:
    """Returns a spatial axis."""
    return Axis(name or "i", _extent(extent, name or "i"), "spatial")


def reduce_axis(extent: int, name: str = "") -> Axis:
    """Returns an axis to reduce over."""
    return Axis(name or "k", _extent(extent, name or "k"), "reduce")


def _is_extent(n: object) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool) and int(n) >= 0


def _extent(extent: int, name: str) -> int:
    if not _is_extent(extent):
        raise UserError(f"axis {name}: an extent is a non-negative integer, not {extent!r}")
    return int(extent)


def compute(name: str, axes: Axis | Sequence[Axis], body: Expr | Scalar, dtype: DtypeLike | None = None) -> Tensor:
    """Returns a computed tensor: `compute("C", (i, j), sd.sum(A[i, k] * B[k, j], k))`.

    A reduction inside a larger formula, `sd.sum(A[i, k], k) / 2`, becomes a computed tensor of its own. Axes of one
    name get names of their own.
    """
    axes = (axes,) if isinstance(axes, Axis) else tuple(axes)
    value = lift(body, _dtype_for(name, dtype or "f32"))
    for a in axes:
        if not isinstance(a, Axis):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"{name}: {a!r} is no axis; make one with sd.axis({a!r})")
    is_reduction = isinstance(value, Reduce)
    combiner, reduce_axes, body = (value.combiner, value.axes, value.body) if is_reduction else (None, (), value)
    body = _without_reductions(name, body)
    renamed = distinct(dict.fromkeys((*axes, *reduce_axes)))
    axes, reduce_axes = (tuple(renamed.get(a, a) for a in group) for group in (axes, reduce_axes))
    return computed(name, Compute(axes, renamed_axes(body, renamed), reduce_axes, combiner))


def _without_reductions(name: str, body: Expr) -> Expr:
    """Returns the expression with each reduction replaced by a read of a tensor that holds the reduction's values."""
    names = (f"{name}_{k}" for k in itertools.count(1))
    replaced: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce):
            return None
        inner = rewrite(node.body, visit, replaced)
        free = tuple(dict.fromkeys(a for a in walk(inner) if isinstance(a, Axis) and a not in node.axes))
        axes = tuple(Axis(a.name, a.extent) for a in free)
        reduction = Reduce(node.combiner, node.axes, substitute(inner, dict(zip(free, axes))))
        return compute(next(names), axes, reduction)[free]

    return rewrite(body, visit, replaced)


def computed(name: str, c: Compute) -> Tensor:
    """Returns the tensor that a compute fills, constant if its operands are. Raises UserError if it is ill-formed."""
    verify_compute(name, c)
    read = loads(c.body)
    constant = bool(read) and all(load.tensor.constant for load in read)
    return Tensor(name, tuple(a.extent for a in c.axes), c.body.dtype, constant, c)
