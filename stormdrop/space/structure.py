"""The structure of a loop program: the stages, the place where each stage is computed (compute_at), and its loop order.

Derivation rules rewrite a `Structure`. A `Structure` holds no tile sizes: tile sizes are knobs. Every stage is one loop
nest

    for tiles of the axes:                    structure string, e.g. SSRSRS: spatial and reduce levels, outermost first
        acc = combine over reduce axes of body
        tensor[place] = finish(acc)

The last S is the register tile (unrolled rows x vectors); the last R is the reduce loop around the register tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from math import prod
from operator import attrgetter

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.expr import ITEMSIZE, Axis, Combiner, Expr, Load, loads, walk
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Tensor, Variant
from stormdrop.target.microkernels import Microkernel
from stormdrop.target.structures import TilingStructure


class ComputeAt(Enum):
    """The compute_at level of a stage. The values are the spelling in schedule files."""

    LOAD = "load"  # once, when the kernel is loaded: every input is constant
    PHASE = "root"  # compute_root: a phase, i.e. a parallel loop, of its own
    UNIT = "thread"  # inside the host's parallel loop: once per iteration (a unit of parallel work)
    REDUCE_BLOCK = "block"  # inside the reader's outer reduce loops


Args = tuple[str | int, ...]
"""The arguments of a derivation step."""


@dataclass(frozen=True, slots=True)
class DerivationStep:
    """One decision of a derivation: pure data, replayed by `derive.derive`."""

    rule: str
    version: int
    stage: str
    args: Args = ()

    def __str__(self) -> str:
        return f"{self.rule}({', '.join(map(str, (self.stage, *self.args)))})"


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """The use of matrix instructions in a stage.

    Rows lie along `rows`, columns along the vector axis, and the instructions sum along the innermost reduce axis.
    """

    kernel: Microkernel
    rows: Axis
    is_rounded: tuple[bool, bool] = (False, False)
    """(rows, columns): true if the copy of this operand in shared memory has the instruction's format."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A loop nest.

    A *root* stage has a phase of its own. An *attached* stage runs inside the loops of a root stage, its `host`. A
    *copy* packs an operand of another stage, its `reader`.
    """

    id: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]  # in loop order, outermost first
    combiner: Combiner | None
    body: Expr  # the reduced expression; without a combiner, equal to finish
    finish: Expr  # the epilogue, which reads the reduction's result as a load of acc
    acc: Tensor  # the reduction's result, held in the accumulators
    tensor: Tensor  # the tensor that is written
    place: tuple[Expr, ...]  # the index written, over the axes
    names: Mapping[Axis, str]  # canonical axis ids: a0, r1
    guard: Expr | None = None  # store only under the guard: a fused consumer may read only a part of acc
    level: ComputeAt = ComputeAt.PHASE
    host: str | None = None  # of an attached stage: the root stage around it
    reader: str | None = None  # of a copy: the stage with the packed operand
    vector: Axis | None = None
    tiling: TilingStructure | None = None
    unsplit: tuple[Axis, ...] = ()  # axes that the parallel loop does not split
    unrolled: tuple[Axis, ...] = ()  # fully unrolled axes: each value selects a constant (see rules.Unroll)
    matrix: MatrixTile | None = None  # the products are computed by matrix instructions
    row_padding: int = 0  # of a copy in shared memory for matrix instructions: bytes behind every row

    def axis_id(self, axis: Axis) -> str:
        return self.names[axis]

    def axis(self, name: str) -> Axis:
        for a, n in self.names.items():
            if n == name:
                return a
        raise ScheduleError(f"stage {self.id} has no axis {name}")

    @property
    def content(self) -> tuple[object, ...]:
        """The key by which equal stages are interned. `names` is compared by identity: derived stages share it."""
        return (*_CONTENT(self), id(self.names))

    @property
    def is_reduction(self) -> bool:
        return self.combiner is not None

    @cached_property
    def points(self) -> int:
        """Evaluations of the body: the product of all extents."""
        return prod(a.extent for a in (*self.axes, *self.reduce_axes))

    @property
    def vector_is_reduced(self) -> bool:
        return self.vector is not None and self.vector.kind == "reduce"

    @cached_property
    def reads(self) -> tuple[Load, ...]:
        """Every load from memory, the accumulators excluded."""
        every = dict.fromkeys([*(loads(self.body) if self.is_reduction else ()), *loads(self.finish)])
        return tuple(load for load in every if load.tensor is not self.acc or not self.is_reduction)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of the widest element in the stage, which determine the number of lanes."""
        return max(4, ITEMSIZE[self.tensor.dtype], _widest(self.body), _widest(self.finish))


_CONTENT = attrgetter(*(field.name for field in fields(Stage) if field.name != "names"))


@dataclass(frozen=True, slots=True)
class OpenSplit:
    """An rfactor with the knob `parts` as its number of parts. Replaying the derivation with the number appended to the
    arguments of step `step` gives the structure at a point.
    """

    step: int  # index into Structure.steps
    extent: int  # of the reduce axis
    results: int  # elements that the reduction computes


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The stages of a partial or complete sketch, producers first.

    With open splits, the extents of the stages are examples, computed with `rules.EXAMPLE_PARTS` parts.
    """

    stages: tuple[Stage, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[DerivationStep, ...] = ()
    splits: tuple[OpenSplit, ...] = ()

    def stage(self, id: str) -> Stage:
        for s in self.stages:
            if s.id == id:
                return s
        raise ScheduleError(f"there is no stage {id}")

    def writer(self, tensor: Tensor) -> Stage | None:
        return next((s for s in self.stages if s.tensor is tensor), None)

    def readers(self, tensor: Tensor) -> list[Stage]:
        return list(dict.fromkeys(stage for stage, _ in _reads_of(self, tensor)))

    def reads_of(self, tensor: Tensor) -> tuple[tuple[Stage, Load], ...]:
        """Returns every load of a tensor, with the stage that reads it."""
        return _reads_of(self, tensor)

    def with_stages(self, stages: Iterable[Stage]) -> Structure:
        return replace(self, stages=tuple(stages))

    def updated(self, old: Stage, new: Stage) -> Structure:
        return self.with_stages(new if s is old else s for s in self.stages)

    @property
    def roots(self) -> list[Stage]:
        return [s for s in self.stages if s.level in (ComputeAt.PHASE, ComputeAt.LOAD)]

    def components(self) -> list[tuple[Stage, ...]]:
        """Returns the connected components of the stages under host and reader: components share no knob.

        Components that run only at load time are left out.
        """
        group = {s.id: {s.id} for s in self.stages}
        for s in self.stages:
            for other in (s.host, s.reader):
                if other is not None and group[other] is not group[s.id]:
                    group[s.id] |= group[other]
                    group.update(dict.fromkeys(group[other], group[s.id]))
        ids = {id(members): members for members in group.values()}.values()
        components = [tuple(s for s in self.stages if s.id in members) for members in ids]
        return [stages for stages in components if any(s.level is not ComputeAt.LOAD for s in stages)]

    def attached(self, host: Stage) -> list[Stage]:
        """Returns the stages attached under `host`, producers first."""
        return [s for s in self.stages if s.host == host.id]


@memoised(4096)
def _widest(e: Expr) -> int:
    return max((ITEMSIZE[n.dtype] for n in walk(e) if isinstance(n, Load) or n.dtype == "f64"), default=0)


@memoised()
def _reads_of(s: Structure, tensor: Tensor) -> tuple[tuple[Stage, Load], ...]:
    return tuple((stage, load) for stage in s.stages for load in stage.reads if load.tensor is tensor)


def elementwise(
    id: str,
    tensor: Tensor,
    names: Mapping[Axis, str],
    *,
    level: ComputeAt = ComputeAt.PHASE,
    vector: Axis | None = None,
    tiling: TilingStructure | None = None,
) -> Stage:
    """Returns the stage of a tensor whose compute has no reduction; `names` holds the ids of its axes."""
    c = tensor.compute
    assert c is not None
    stage = Stage(id, c.axes, (), None, c.body, c.body, tensor, tensor, c.axes, names)
    return replace(stage, level=level, vector=vector, tiling=tiling)


def initial(variant: Variant) -> Structure:
    """Returns every compute as a root stage, not yet tiled."""
    stages: list[Stage] = []
    for k, t in enumerate(variant.stages):
        c = t.compute
        assert c is not None
        names = {a: f"a{i}" for i, a in enumerate(c.axes)} | {a: f"r{i}" for i, a in enumerate(c.reduce_axes)}
        own = Load(t, c.axes)
        finish = own if c.combiner is not None else c.body
        stages.append(Stage(f"s{k}", c.axes, c.reduce_axes, c.combiner, c.body, finish, t, t, c.axes, names))
    return Structure(tuple(stages), variant.outputs)
