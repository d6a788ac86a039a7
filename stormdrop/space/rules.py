"""The derivation rules. The docstring of each rule states its rewrite.

`options` lists the arguments to explore for a stage, at its shape on the target (None: leave the stage as it is).
`apply` performs the rewrite. Its checks depend on structure, not on extents: a schedule replays at every shape of its
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis, Const, Expr, Load, Select, compare, identity_of, rewrite, select, substitute, walk
from stormdrop.ir.tensor import Compute, Tensor
from stormdrop.space.access import (
    axes_of,
    choosing_axes,
    converts,
    has_reuse,
    indexes_last,
    invert,
    is_expensive,
    is_linear,
    occurrences,
    operand_load,
    operands,
    walks,
    without_ones,
)
from stormdrop.space.matrix_product import MatrixProduct
from stormdrop.space.packing import DotPairs, Pack
from stormdrop.space.structure import Args, ComputeAt, OpenSplit, Stage, Structure
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.structures import CPU_STRUCTURES, STRUCTURES, TilingStructures

FEWEST_PARTS = 2
FEW_READS = 8
"""The most reads per element of a weight for which an inlined conversion costs less than loading wider elements."""
SPLIT_TILE = 1024  # elements of a typical thread block's tile
SHORT_REDUCTION = 128  # of a stage with reuse; splitting a shorter one does not pay
LONG_REDUCTION = 8192  # of any other: the threads of one block divide a shorter one
EXAMPLE_PARTS = 16
"""The number of parts with which the extents of an open split are computed for later rules."""


class Rule(Protocol):
    """One kind of derivation step."""

    @property
    def name(self) -> str:
        """The name of the rule in schedules."""
        ...

    @property
    def version(self) -> int:
        """The version of the rule in schedules; it rises when the meaning of a step changes."""
        ...

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        """Returns the arguments of the steps that are worth exploring for a stage; None leaves the stage as it is."""
        ...

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        """Returns the structure after one step on a stage. Raises ScheduleError if the step does not apply."""
        ...


class Inline:
    """Inlining (compute_inline): substitutes an elementwise stage into its readers.

    P[i] = f(i);  C[j] = g(P[h(j)])   ->   C[j] = g(f(h(j)))
    """

    name, version = "inline", 1

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        if not self._applies(s, stage):
            return [None]
        readers = s.readers(stage.tensor)
        is_reused = any(has_reuse(r) for r in readers)
        if is_reused and converts(stage.finish) and self._is_read_often(s, stage):
            return [None]
        if is_expensive(stage.finish):
            if is_reused:
                return [None]
            return [()] if len(readers) == 1 else [None, ()] if len(readers) == 2 else [None]
        # An inlined border costs a test per read; the alternative materialises the padded tensor.
        has_border = any(isinstance(n, Select) for n in walk(stage.finish))
        is_linearly_read = all(is_linear(load.indices) for _, load in s.reads_of(stage.tensor))
        return [(), None] if has_border and is_reused and not stage.tensor.constant and is_linearly_read else [()]

    def _is_read_often(self, s: Structure, stage: Stage) -> bool:
        """Returns whether converting elements at each read costs more than loading wider elements."""
        if not stage.tensor.constant:
            return True
        counts = [prod(a.extent for a in r.axes if a not in axes_of(load)) for r, load in s.reads_of(stage.tensor)]
        return max(counts) > FEW_READS and not any(r.tensor.constant for r in s.readers(stage.tensor))

    def _applies(self, s: Structure, stage: Stage) -> bool:
        return not stage.is_reduction and stage.tensor not in s.outputs and bool(s.readers(stage.tensor))

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        if not self._applies(s, stage):
            raise ScheduleError(f"{stage.id} cannot be inlined")
        readers = s.readers(stage.tensor)

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.tensor is stage.tensor:
                indices = [rewrite(i, visit) for i in node.indices]
                return substitute(stage.finish, dict(zip(stage.axes, indices)))
            return None

        return s.with_stages(
            replace(r, body=rewrite(r.body, visit), finish=rewrite(r.finish, visit)) if r in readers else r
            for r in s.stages
            if r is not stage
        )


class RFactor:
    """Reduction splitting (rfactor): splits a reduction into parts that can run in parallel.

        C = sum(k, f(k))   ->   P[p] = sum(q, f(p*Q + q));  C = sum(p, P[p])

    `rfactor(s, r)` leaves the number of parts to a knob, `rfactor(s, r, n)` fixes it.
    """

    name, version = "rfactor", 1

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        if not stage.is_reduction:
            return [None]
        space = prod(a.extent for a in stage.axes)
        length = prod(a.extent for a in stage.reduce_axes)
        if isinstance(target, Gpu):
            return self._block_options(stage, target, space, length)
        if space >= 4 * target.threads or length < 4096 or stage.id.endswith("p"):
            return [None]
        axis = next((a for a in stage.reduce_axes if a.extent >= 4 * target.threads), stage.reduce_axes[-1])
        return [None, (stage.axis_id(axis),)]

    def _block_options(self, stage: Stage, target: Gpu, space: int, length: int) -> Sequence[Args | None]:
        """Returns the options on a GPU: parts are blocks, which pay if spatial tiles leave multiprocessors idle."""
        axis = max(stage.reduce_axes, key=lambda a: a.extent)
        tiles, least = 2.0 * space, LONG_REDUCTION
        if _pays_to_tile(stage):
            tiles, least = space / SPLIT_TILE / 4, SHORT_REDUCTION
        is_short = length < least or axis.extent < 2 * FEWEST_PARTS
        if is_short or tiles >= target.multiprocessors or stage.id.endswith("p") or choosing_axes(stage.body):
            return [None]
        return [None, (stage.axis_id(axis),)]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        axis = stage.axis(str(args[0]))
        if not stage.is_reduction or axis not in stage.reduce_axes:
            raise ScheduleError(f"{stage.id} has no reduce axis {args[0]}")
        is_open = len(args) == 1
        count = even_parts(axis.extent, EXAMPLE_PARTS if is_open else int(args[1]))
        length = -(-axis.extent // count)
        outer, inner = Axis(axis.name + "p", count, "spatial"), Axis(axis.name, length, "reduce")
        position = outer * length + inner
        body = substitute(stage.body, {axis: position})
        assert stage.combiner is not None
        inside = compare("lt", position, axis.extent)
        body = select(inside, body, Const(identity_of(stage.combiner, body.dtype), body.dtype))
        axes = (outer, *stage.axes)
        reduce_axes = tuple(inner if a is axis else a for a in stage.reduce_axes)
        whole = Compute(axes, body, reduce_axes, stage.combiner)
        partial = Tensor(stage.acc.name + ".part", tuple(a.extent for a in axes), body.dtype, False, whole)
        names = {**stage.names, inner: stage.names[axis], outer: "p0"}
        del names[axis]
        first = replace(stage, id=stage.id + "p", axes=axes, reduce_axes=reduce_axes, body=body, names=names)
        first = replace(first, finish=Load(partial, axes), acc=partial, tensor=partial, place=axes)
        again = Axis(axis.name + "p", count, "reduce")
        rest = {a: n for a, n in stage.names.items() if a in stage.axes} | {again: "r0"}
        second = replace(stage, reduce_axes=(again,), body=Load(partial, (again, *stage.axes)), names=rest)
        done = s.with_stages(x for r in s.stages for x in ((first, second) if r is stage else (r,)))
        split = OpenSplit(len(s.steps), axis.extent, prod(a.extent for a in stage.axes))
        return replace(done, splits=(*s.splits, split)) if is_open else done


def _pays_to_tile(stage: Stage) -> bool:
    """Returns whether the threads of a block read an operand's element more than once at this shape."""
    long = {a for a in stage.axes if a.extent > 1}
    return has_reuse(stage) and any(long - axes_of(op) for op in operands(stage.body))


def even_parts(extent: int, parts: int) -> int:
    """Rounds `parts` down to a number of non-empty parts of equal length; the last part may be shorter."""
    if extent == 0:
        return 1
    length = -(-extent // max(1, min(parts, extent)))
    return -(-extent // length)


class Fuse:
    """Epilogue fusion: fuses the only reader, an elementwise stage, into a reduction as the epilogue on the
    accumulators.

        C[i] = sum(k, …);  D[g(i)] = f(C[i], …)   ->   acc = sum(k, …);  D[g(i)] = f(acc, …)

    The rule does not apply if D reads C under a condition on indices: an element of D that reads no element of C would
    not be written.
    """

    name, version = "fuse", 1

    def _consumer(self, s: Structure, stage: Stage) -> tuple[Stage, Load, dict[Axis, Expr], Expr] | None:
        """Returns the reader, its load, the reader's axes over the stage's axes, and the condition of their range."""
        reads = s.reads_of(stage.tensor)
        if not stage.is_reduction or stage.tensor in s.outputs or len(reads) != 1 or stage.acc is not stage.tensor:
            return None
        reader, read = reads[0]
        if reader.is_reduction or any(occurrences(reader.finish)[read]):
            return None
        inverse = invert(read.indices, stage.axes, reader.axes)
        return None if inverse is None else (reader, read, *inverse)

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        return [()] if self._consumer(s, stage) else [None]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        consumer = self._consumer(s, stage)
        if consumer is None:
            raise ScheduleError(f"{stage.id} has no consumer to finish with")
        reader, read, inverse, inside = consumer
        finish = substitute(reader.finish, inverse)
        finish = substitute(finish, {substitute(read, inverse): Load(stage.acc, stage.axes)})
        place = tuple(substitute(i, inverse) for i in reader.place)
        guard = None if inside is Const(True, "bool") else inside
        merged = replace(stage, finish=finish, tensor=reader.tensor, place=place, guard=guard)
        # The merged stage takes the consumer's position: everything that the consumer reads precedes it.
        return s.with_stages([merged if r is reader else r for r in s.stages if r is not stage])


class Place:
    """Placement (compute_at): attaches a producer inside the parallel loop of its reader's nest. None leaves the
    producer in a phase of its own.

    phase: P = …;  phase: for i: C[i] = f(P)     ->     phase: for i: { P over the region that i needs;  C[i] = f(P) }

    `load` computes a constant once, at load time.
    """

    name, version = "place", 1

    def _host(self, s: Structure, stage: Stage) -> Stage | None:
        reads = s.reads_of(stage.tensor)
        if stage.tensor in s.outputs or not all(isinstance(i, Axis) for i in stage.place):
            return None
        hosts = {reader.host or reader.id for reader, _ in reads}
        if len(hosts) != 1 or not all(self._can_attach(reader, load) for reader, load in reads):
            return None
        host = s.stage(hosts.pop())
        return host if host.level is ComputeAt.PHASE else None

    def _can_attach(self, reader: Stage, load: Load) -> bool:
        """Returns whether bounds inference is exact: the indices are affine, and no condition keeps them in range."""
        guarded = any(path for e in (reader.body, reader.finish) for path in occurrences(e).get(load, ()))
        return is_linear(load.indices) and not guarded

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        if stage.tensor.constant and stage.tensor not in s.outputs:
            return [("load",)]
        host = self._host(s, stage)
        if host is None:
            return [None]
        if isinstance(target, Gpu) and (_pays_to_tile(stage) or _pays_to_tile(host) or choosing_axes(stage.body)):
            return [None]  # a tiled stage takes all threads of its own blocks
        if isinstance(target, Gpu) and stage.id.endswith("p"):
            return [None]  # parts are blocks of their own
        shares = _shared_axes(s, stage, host)
        if not shares or (stage.is_reduction and prod(a.extent for a in shares) < 2):
            return [None]
        # Producers of an attached stage are attached too, unless they have reuse: then also try a phase of their own.
        follows = any(r.host is not None for r in s.readers(stage.tensor)) and not has_reuse(stage)
        return [("thread",)] if follows else [("thread",), None]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        if args[0] == "load":
            return s.updated(stage, replace(stage, level=ComputeAt.LOAD))
        host = self._host(s, stage)
        if host is None:
            raise ScheduleError(f"{stage.id} cannot be computed inside another stage")
        shared = _shared_axes(s, stage, host)
        unsplit = tuple(a for a in host.axes if a not in shared or a in host.unsplit)
        moved = replace(stage, level=ComputeAt.UNIT, host=host.id)
        return s.with_stages(
            moved if r is stage else replace(host, unsplit=unsplit) if r is host else r for r in s.stages
        )


def _shared_axes(s: Structure, stage: Stage, host: Stage) -> set[Axis]:
    """Returns the host's axes on which the needed region depends; splitting another axis recomputes the region."""
    return set().union(*(_host_axes(s, stage, host, position) for position in range(len(stage.place)))) & set(host.axes)


def _host_axes(s: Structure, stage: Stage, host: Stage, position: int) -> set[Axis]:
    """Returns the axes of the host in the index `position` of the reads of a stage, through the stages in between."""
    axes: set[Axis] = set()
    for reader, load in s.reads_of(stage.tensor):
        for a in axes_of(load.indices[position]):
            if reader is host:
                axes.add(a)
            elif a in reader.axes:
                axes |= _host_axes(s, reader, host, reader.place.index(a))
    return axes


class Unroll:
    """Full unrolling of the axes that select constants: coefficients become literals, and zero terms disappear.

    for a, i: V[a] += P[i] * B(a, i)   ->   V[0] += P[0] - P[2];  V[1] += P[1] + P[2];  …
    """

    name, version = "unroll", 1

    def _axes(self, stage: Stage) -> tuple[Axis, ...]:
        choosing = choosing_axes(stage.body)
        return tuple(a for a in (*stage.axes, *stage.reduce_axes) if a in choosing)

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        axes = self._axes(stage)
        worth = stage.is_reduction and axes and set(stage.reduce_axes) <= set(axes) and all(a.extent <= 8 for a in axes)
        return [()] if worth else [None]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        axes = self._axes(stage)
        if not stage.is_reduction or not set(stage.reduce_axes) <= set(axes):
            raise ScheduleError(f"{stage.id} has no axes that choose constants")
        return s.updated(stage, replace(stage, unrolled=axes))


class Tile:
    """Tiling: splits every axis into the levels of a tiling structure, e.g. SSRSRS, and chooses the vector axis (`-`
    for none).

        for i, j, k: C[i,j] += …   ->   for i0, j0, i1, j1, k0, j2, i2, k1: [i3, j3 in registers]

    A reduced vector axis becomes the innermost reduce axis; its lanes are separate accumulators.
    """

    name, version = "tile", 1

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        tiled = has_reuse(stage) and stage.level is not ComputeAt.LOAD and not stage.unrolled
        offered = target.structures
        if isinstance(target, Gpu):
            if stage.level is not ComputeAt.LOAD:
                return self._block_options(stage, offered)
            offered = CPU_STRUCTURES  # the host runs load-time stages
        structure = offered.reuse if tiled else offered.reduction if stage.is_reduction else offered.elementwise
        tiling = structure.name
        lanes = target.vector_bytes // stage.itemsize
        candidates = self._candidates(stage)
        kept = [a for a in candidates if a.extent >= lanes // 4] or candidates[:1]
        if not kept:
            return [(tiling, "-")]
        spatial = [a for a in kept if a.kind == "spatial"]
        reduced = [a for a in kept if a.kind == "reduce"]
        if spatial and has_reuse(stage) and self._reads_well(stage, spatial[0]):
            reduced = [a for a in reduced if prod(x.extent for x in stage.axes if x not in spatial) < 2]
        if reduced and not has_reuse(stage) and not self._reads_well(stage, spatial[0] if spatial else reduced[0]):
            spatial = []
        return [(tiling, stage.axis_id(a)) for a in (*spatial[:1], *reduced[:1])]

    def _block_options(self, stage: Stage, offered: TilingStructures) -> Sequence[Args | None]:
        """Returns the options in a thread block. The vector axis, of neighbouring threads, is spatial or absent."""
        tiled = _pays_to_tile(stage) and not stage.unrolled and stage.host is None
        spatial = [a for a in self._candidates(stage) if a.kind == "spatial" and a not in stage.unrolled]
        reduced = [a for a in self._candidates(stage) if a.kind == "reduce"]
        is_good = not reduced or (spatial and self._is_coalesced(stage, spatial[0]))
        chosen = stage.axis_id(spatial[0]) if spatial and is_good else "-"
        if not tiled:
            return [((offered.reduction if stage.is_reduction else offered.elementwise).name, chosen)]
        options: list[Args | None] = [(offered.reuse.name, stage.axis_id(spatial[0]) if spatial else "-")]
        long = {a for a in stage.axes if a.extent > 1}
        if any(long <= axes_of(op) for op in operands(stage.body)):
            # The largest operand has no reuse, as in a matrix times a vector.
            options.append((offered.reduction.name, chosen))
        return options

    def _is_coalesced(self, stage: Stage, vector: Axis) -> bool:
        """Returns whether neighbours along the axis are neighbours in every operand that depends on the axis."""
        for load in (operand_load(op) for op in operands(stage.body) if vector in axes_of(op)):
            last = without_ones(load.tensor.shape, load.indices)
            if not walks(load.tensor, load.indices, vector) or abs(affine(last[-1]).coefficient(vector)) != 1:
                return False
        return True

    def _reads_well(self, stage: Stage, vector: Axis) -> bool:
        """Returns whether operands that depend on the axis are contiguous along it, or constant (hence packed)."""
        loads = [operand_load(op) for op in operands(stage.body) if vector in axes_of(op)]
        return all(load.tensor.constant or walks(load.tensor, load.indices, vector) for load in loads)

    def _candidates(self, stage: Stage) -> list[Axis]:
        """Returns the candidate vector axes: spatial, contiguous in the store, or reduced, contiguous in every load.

        An axis of extent 1 is a candidate only if there is no other axis.
        """
        spatial = [a for a in stage.axes if a.extent > 1 and walks(stage.tensor, stage.place, a)]
        if spatial:  # several axes may index the last dimension (groups, channels): the smallest stride first
            last = without_ones(stage.tensor.shape, stage.place)[-1]
            steps = {a: abs(c) for a, c in affine(last).terms}
            spatial.sort(key=lambda a: steps.get(a, 1))
        else:
            spatial = [a for a in stage.axes if a.extent > 1][-1:]
        reads = [operand_load(op) for op in operands(stage.body)] if stage.is_reduction else []
        reduced: list[Axis] = []
        for a in stage.reduce_axes:
            of_axis = [load for load in reads if a in axes_of(load)]
            if a.extent > 1 and of_axis and all(walks(load.tensor, load.indices, a) for load in of_axis):
                reduced.append(a)
        others = (*stage.axes, *stage.reduce_axes)
        candidates = [*spatial, *reduced] or [a for a in others if a.extent > 1][-1:] or list(others[-1:])
        if not stage.unrolled:
            return candidates
        # Along an axis that is not contiguous in a load, every unrolled instance would gather.
        kept = [a for a in candidates if a not in stage.unrolled]
        return [a for a in kept if all(indexes_last(load.indices, a) for load in reads if a in axes_of(load))]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        tiling = STRUCTURES.get(str(args[0]))
        if tiling is None:
            raise ScheduleError(f"there is no tiling structure {args[0]}; known are {', '.join(STRUCTURES)}")
        vector = None if args[1] == "-" else stage.axis(str(args[1]))
        reduce_axes = tuple(sorted(stage.reduce_axes, key=lambda a: a is vector))
        return s.updated(stage, replace(stage, tiling=tiling, vector=vector, reduce_axes=reduce_axes))


RULES: tuple[Rule, ...] = (Inline(), RFactor(), Fuse(), Place(), Unroll(), Tile(), MatrixProduct(), DotPairs(), Pack())
