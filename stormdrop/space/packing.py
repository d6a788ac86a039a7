"""Rules that copy an operand into the order in which a register tile reads it: panels, and pairs for dot products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.affine import conjunction
from stormdrop.ir.expr import Axis, Bin, Cast, Const, Expr, Load, Select, binary, compare, loads, select, substitute
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Compute, Tensor
from stormdrop.space.access import axes_of, has_reuse, is_linear, occurrences, operand_load, operands, walks
from stormdrop.space.structure import Args, ComputeAt, Stage, Structure, elementwise
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import BF16_DOT, I16_DOT
from stormdrop.target.structures import CPU_STRUCTURES, GPU_STRUCTURES

DOTS = {(m.operand, m.accumulator): m for m in (BF16_DOT, I16_DOT)}


class DotPairs:
    """Dot-product pairing: pairs the reduction steps of a product of bf16 or i16 for the machine's two-way dot-product
    instruction.

        C[i,j] += f32(A[i,k]) * f32(B[k,j])
          ->   B2[k,j] = pair(B[2k,j], B[2k+1,j]);   C[i,j] += dot(pair(A[i,2k], A[i,2k+1]), B2[k,j])

    An odd extent is padded with zero. The pairs of the vector operand are packed. The argument is the place of the
    copy, as in `Pack`.
    """

    name, version = "dot", 1

    def _factors(self, stage: Stage) -> tuple[Load, Load] | None:
        """Returns the broadcast operand and the vector operand."""
        match stage.body:
            case Bin("mul", Cast(Load() as a), Cast(Load() as b)) if stage.combiner == "sum":
                pass
            case _:
                return None
        is_known = (a.dtype, stage.body.dtype) in DOTS and a.dtype == b.dtype
        if not is_known or stage.vector is None or stage.vector_is_reduced:
            return None
        if stage.vector in axes_of(a):
            a, b = b, a
        axis = stage.reduce_axes[-1]
        paired = all(axis in axes_of(x) and is_linear(x.indices) and len(loads(x)) == 1 for x in (a, b))
        return (a, b) if paired and stage.vector in axes_of(b) and stage.vector not in axes_of(a) else None

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        factors = self._factors(stage)
        if factors is None or stage.level is ComputeAt.LOAD or stage.unrolled:
            return [None]
        if DOTS[factors[0].dtype, stage.body.dtype] not in target.microkernels:
            return [None]
        source = factors[1].tensor
        return [("load",)] if source.constant else [(place.value,) for place in _places(s, stage, source)]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        factors = self._factors(stage)
        if factors is None:
            raise ScheduleError(f"{stage.id} sums no products of bf16 or i16")
        a, b = factors
        axis = stage.reduce_axes[-1]
        half = Axis(axis.name, -(-axis.extent // 2), "reduce")
        names = {half if x is axis else x: name for x, name in stage.names.items()}
        reduce_axes = tuple(half if x is axis else x for x in stage.reduce_axes)
        body = Bin("dot", _pair(a, axis, half), _pair(b, axis, half))
        paired = replace(stage, reduce_axes=reduce_axes, body=body, names=names)
        place = ComputeAt(args[0])
        return with_copy(s, stage, b.tensor, place, copied_operand(paired, body.b, "pairs", place))


def _pair(x: Load, axis: Axis, half: Axis) -> Expr:
    """Returns the elements 2 * half and 2 * half + 1 of `x` along `axis`, zero beyond the end."""
    low, high = (substitute(x, {axis: half * 2 + k}) for k in range(2))
    if axis.extent % 2:
        high = select(compare("lt", half * 2 + 1, axis.extent), high, Const(0, x.dtype))
    return Bin("pair", low, high)


class Pack:
    """Packing: copies an operand into the order in which its reader's register tile reads it.

        C[i,j] += A[i,k] * B[k,j]   ->   B'[j/w, k, j%w] = B[k,j];   C[i,j] += A[i,k] * B'[j/w, k, j%w]

    The arguments are the operand's number and the place where the copy is computed (`ComputeAt`). `load` copies
    constants at load time, `root` copies in a preceding phase, `thread` and `block` copy into per-thread scratch. More
    such pairs copy more operands. On a GPU `block` stages the operand in shared memory: the threads of a block copy it
    together, in every reduce block.
    """

    name, version = "pack", 1

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        if not has_reuse(stage) or stage.vector is None or stage.level is ComputeAt.LOAD or stage.unrolled:
            return [None]
        if any(copy.reader == stage.id for copy in s.stages):
            return [None]  # packed as pairs
        if stage.tiling is not None and stage.tiling.is_cooperative:
            return self._staged(stage) if stage.tiling is GPU_STRUCTURES.reuse else [None]
        chosen: list[Args | None] = [None]
        for k, op in enumerate(operands(stage.body)):
            tensor = operand_load(op).tensor
            if len(loads(operand_load(op))) > 1:
                continue  # an indirect load: its index is data, which may change while the tensor is constant
            if guarded_operand(stage.body, op) is None:
                continue
            if tensor.constant:
                if stage.vector in axes_of(op) and not stage.vector_is_reduced:
                    return [(k, "load")]
                continue
            if stage.vector not in axes_of(op) or stage.vector_is_reduced:
                continue
            chosen += [(k, place.value) for place in _places(s, stage, tensor)]
            if not walks(tensor, operand_load(op).indices, stage.vector) and chosen[0] is None:
                chosen = chosen[1:]  # drop None: an operand with reuse is never gathered
        return chosen

    def _staged(self, stage: Stage) -> Sequence[Args | None]:
        """Returns two options: shared memory for every operand that threads of a block share, or for no operand."""
        staged: list[str | int] = []
        axes, reduce_axes = set(stage.axes), set(stage.reduce_axes)
        for k, op in enumerate(operands(stage.body)):
            of_op, is_direct = axes_of(op), len(loads(operand_load(op))) == 1
            is_shared = of_op & axes and (axes - of_op or not of_op & reduce_axes)
            if is_direct and is_shared and guarded_operand(stage.body, op) is not None:
                staged += [k, ComputeAt.REDUCE_BLOCK.value]
        return [tuple(staged), None] if staged else [None]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        listed, reader = operands(stage.body), stage
        for number, place in zip(args[::2], args[1::2], strict=True):
            k, level = int(number), ComputeAt(place)
            if k >= len(listed) or not stage.is_reduction:
                raise ScheduleError(f"{stage.id} has no operand {k}")
            op, body = listed[k], reader.body
            # Other operands may be copied already: find the operand's number in the present body.
            present = next(k for k, operand in enumerate(operands(body)) if operand is op)
            copy, after = _packed(reader, present, level, str(k))
            s = with_copy(s, reader, operand_load(op).tensor, level, (copy, after))
            reader = after
        return s


def _places(s: Structure, stage: Stage, source: Tensor) -> list[ComputeAt]:
    """Returns the places where a run-time operand of a stage may be copied."""
    writer = s.writer(source)
    if writer is not None and writer.host is not None:
        return [ComputeAt.UNIT]
    return [ComputeAt.UNIT, ComputeAt.REDUCE_BLOCK, *((ComputeAt.PHASE,) if stage.host is None else ())]


def with_copy(s: Structure, stage: Stage, source: Tensor, place: ComputeAt, new: tuple[Stage, Stage]) -> Structure:
    """Returns the structure with a copy of `source` and its reader instead of the stage."""
    writer = s.writer(source)
    if place is not ComputeAt.UNIT and writer is not None and writer.host is not None:
        raise ScheduleError(f"{writer.id} is computed inside a parallel loop; its copy can stand only there")
    return s.with_stages(x for r in s.stages for x in (new if r is stage else (r,)))


@memoised(1024)
def _packed(stage: Stage, k: int, level: ComputeAt, name: str) -> tuple[Stage, Stage]:
    """Returns the copy of an operand, and the stage that reads it."""
    op = operands(stage.body)[k]
    source_element = guarded_operand(stage.body, op)
    if source_element is None:
        raise ScheduleError(f"{stage.id} reads {op} under a condition on other axes")
    return copied_operand(stage, op, name, level, source_element)


def copied_operand(
    stage: Stage, op: Expr, name: str, level: ComputeAt, element: Expr | None = None, last: Axis | None = None
) -> tuple[Stage, Stage]:
    """Returns the copy of `op`, a subexpression of the body, and the stage that reads it.

    The copy stores `element`, or `op`. `last` is its contiguous axis: by default the vector or the last reduce axis.
    """
    used = axes_of(op)
    spatial = [a for a in stage.axes if a in used and a is not stage.vector]
    inner = [a for a in stage.axes if a is stage.vector and a in used]
    reduced = [a for a in stage.reduce_axes if a in used and a is not stage.vector]
    order = [*spatial, *reduced, *inner]
    if last is not None:
        order = [*(a for a in order if a is not last), last]
    own = {a: Axis(a.name, a.extent, "spatial") for a in order}
    body = substitute(op if element is None else element, own)
    axes = tuple(own[a] for a in order)
    source = loads(op)[0].tensor
    packed = Tensor(
        f"{source.name}.packed", tuple(a.extent for a in axes), body.dtype, source.constant, Compute(axes, body)
    )
    host = None if level in (ComputeAt.LOAD, ComputeAt.PHASE) else (stage.host or stage.id)
    names = {own[a]: stage.axis_id(a) for a in order}
    is_cooperative = level is not ComputeAt.LOAD and stage.tiling is not None and stage.tiling.is_cooperative
    vector = _copied_along(op, order, own) if is_cooperative else axes[-1] if axes else None
    tiling = (GPU_STRUCTURES if is_cooperative else CPU_STRUCTURES).elementwise
    copy = elementwise(f"{stage.id}.{name}", packed, names, level=level, vector=vector, tiling=tiling)
    copy = replace(copy, host=host, reader=stage.id)
    reader = replace(stage, body=substitute(stage.body, {op: Load(packed, tuple(order))}))
    return copy, reader


def _copied_along(op: Expr, order: Sequence[Axis], own: Mapping[Axis, Axis]) -> Axis | None:
    """Returns the axis along which neighbouring threads copy: contiguous in the source, preferably also in the copy."""
    load = loads(op)[0]
    contiguous = [a for a in reversed(order) if walks(load.tensor, load.indices, a)]
    return own[(contiguous or [order[-1]])[0]] if order else None


def guarded_operand(body: Expr, op: Expr) -> Expr | None:
    """Returns the operand under the conditions on its own axes with which the body reads it: 0 if it is not read.

    Returns None if a condition relates its axes to other axes: a copy is indexed by its own axes alone.
    """
    paths = [[c for c in path if not axes_of(c).isdisjoint(axes_of(op))] for path in occurrences(body)[op]]
    if not all(paths):
        return op
    inside = reduce(partial(binary, "or"), dict.fromkeys(conjunction(path) for path in paths))
    if not axes_of(inside) <= axes_of(op):
        return None
    if isinstance(op, Select):
        return select(binary("and", inside, op.condition), op.a, op.b)
    return select(inside, op, 0)
