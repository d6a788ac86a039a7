"""The rule that computes a matrix product, or a convolution, by the matrix instructions of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from stormdrop.base.errors import ScheduleError
from stormdrop.ir import build
from stormdrop.ir.affine import index_condition
from stormdrop.ir.expr import (
    Axis,
    Bin,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    binary,
    call,
    compare,
    loads,
    rewrite,
    select,
    substitute,
)
from stormdrop.ir.tensor import Compute, Tensor
from stormdrop.space.access import axes_of, choosing_axes, operand_load, operands, walks
from stormdrop.space.packing import copied_operand, guarded_operand, with_copy
from stormdrop.space.structure import Args, ComputeAt, MatrixTile, Stage, Structure, elementwise
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import MATRIX_KERNELS, Microkernel, Precision
from stormdrop.target.structures import CPU_STRUCTURES, GPU_STRUCTURES, MATRIX_STRUCTURE

HALF_PADDING_BYTES, WORD_PADDING_BYTES = 16, 32
"""Padding of the rows of a copy in shared memory, against bank conflicts. The first holds if ldmatrix loads fragments:
its eight rows of 16 bytes lie in different banks. The second is for 32-bit elements with rows along the operand's own
axis, which ldmatrix cannot load. The lanes of a warp read eight neighbours in each of four rows."""
HALF_OF_LAST_BIT = 0x1000
"""Half of the last mantissa bit of a tf32, as bits of an f32. Adding this constant before clearing the lower bits
rounds to the nearest, ties away from zero, like cvt.rna."""


class Factors(NamedTuple):
    """The operands of a product. `row` varies along the rows, `column` along the columns (the vector axis)."""

    row: Expr
    column: Expr
    row_axes: tuple[Axis, ...]  # the axes that only the first operand has


class MatrixProduct:
    """Tensorisation: sums products by matrix instructions of a warp, with the operands staged in shared memory.

        C[i,j] += A[i,k] * B[k,j]   ->   per reduce block: A'[i,k] = round(A[i,k]);  B'[k,j] = round(B[k,j])
                                         per warp:         C[16,8] += A'[16,k] * B'[k,8]

    The arguments are the precision, the axis of the rows, and the place where each of the two operands is rounded:

        block   in the copy to shared memory; to tf32 only when fragments are read from there
        root    the whole tensor, in a phase before
        load    the whole constant, when constants are packed

    At 3xtf32 operands are split into a large and a small part when fragments are read, so they are never rounded ahead.
    The innermost reduce axis is padded with zeros to a multiple of the instruction's depth k.
    """

    name, version = "mma", 1

    def options(self, s: Structure, stage: Stage, target: Target) -> Sequence[Args | None]:
        kernel = target.matrix_kernel if isinstance(target, Gpu) else None
        if kernel is None or stage.tiling is not GPU_STRUCTURES.reuse or stage.unrolled or stage.host is not None:
            return [None]
        factors = _factors(stage, kernel)
        # Winograd's transforms multiply the rounding errors of their products.
        if factors is None or any(choosing_axes(x.body) for x in s.stages):
            return [None]
        assert isinstance(target, Gpu)
        rows = stage.axis_id(max(factors.row_axes, key=lambda a: min(a.extent, 64)))
        places = [self._places(s, op, kernel) for op in (factors.row, factors.column)]
        count = max(map(len, places))
        chosen = [tuple(p[min(i, len(p) - 1)].value for p in places) for i in range(count)]
        return [*((target.precision, rows, *pair) for pair in chosen), None]

    def _places(self, s: Structure, op: Expr, kernel: Microkernel) -> list[ComputeAt]:
        """Returns the places to round an operand: only `block` if it is split, or has the instruction's type."""
        tensor = operand_load(op).tensor
        if kernel.products > 1 or op.dtype == kernel.operand != "f32":
            return [ComputeAt.REDUCE_BLOCK]
        if tensor.constant:
            return [ComputeAt.LOAD]
        writer = s.writer(tensor)
        is_apart = writer is None or writer.host is None
        return [ComputeAt.PHASE, ComputeAt.REDUCE_BLOCK] if is_apart else [ComputeAt.REDUCE_BLOCK]

    def apply(self, s: Structure, stage: Stage, args: Args) -> Structure:
        precision, rows, *places = args
        kernel = MATRIX_KERNELS[cast(Precision, precision)]
        factors = _factors(stage, kernel)
        if factors is None or stage.vector is None or stage.tiling is not GPU_STRUCTURES.reuse:
            raise ScheduleError(f"{stage.id} is no matrix product in a thread block")
        row_axis = stage.axis(str(rows))
        if row_axis not in factors.row_axes:
            raise ScheduleError(f"{stage.id}: {rows} is no axis of the rows")
        reader = _padded(stage, kernel)
        levels = [ComputeAt(place) for place in places]
        is_rounded = [kernel.operand != "f32" or level is not ComputeAt.REDUCE_BLOCK for level in levels]
        matrix = MatrixTile(kernel, row_axis, (is_rounded[0], is_rounded[1]))
        reader = replace(reader, tiling=MATRIX_STRUCTURE, matrix=matrix)
        pairs = zip((factors.row, factors.column), (row_axis, stage.vector), levels, strict=True)
        fragments: list[Expr] = []
        for number, (op, along, level) in enumerate(pairs):
            element = guarded_operand(stage.body, op)
            assert element is not None
            element = _within(element, stage.reduce_axes[-1], reader.reduce_axes[-1])
            if level is not ComputeAt.REDUCE_BLOCK:
                s, element = _rounded_ahead(s, reader.id, stage, element, kernel, number, level)
            copy, load = _staged(reader, element, kernel, number, along)
            s = with_copy(s, stage, operand_load(op).tensor, ComputeAt.REDUCE_BLOCK, (copy, stage))
            fragments.append(build.cast(load, "f32"))
        body = binary("mul", fragments[0], fragments[1])
        return s.updated(stage, replace(reader, body=body))


def _factors(stage: Stage, kernel: Microkernel) -> Factors | None:
    """Returns the operands of a stage that sums f32 products, perhaps under an index condition; else None."""
    body = stage.body
    if isinstance(body, Select) and index_condition(body.condition) and isinstance(body.a, Bin) and _is_zero(body.b):
        body = body.a
    match body:
        case Bin("mul", a, b) if stage.combiner == "sum" and body.dtype == "f32" == stage.acc.dtype:
            pass
        case _:
            return None
    pair = [x.a if isinstance(x, Cast) else x for x in (a, b)]
    if stage.vector is None or pair[0] is pair[1]:
        return None
    if stage.vector in axes_of(pair[0]):
        pair.reverse()
    known, inner = frozenset(operands(stage.body)), stage.reduce_axes[-1]
    for op in pair:
        if op not in known or op.dtype not in ("f32", kernel.operand) or inner not in axes_of(op):
            return None
        is_border = isinstance(op, Select)
        if len(loads(operand_load(op))) > 1 or (is_border and not _is_zero(op.b)):
            return None
        if guarded_operand(stage.body, op) is None:
            return None
    row, column = pair
    rows = tuple(a for a in stage.axes if a in axes_of(row) and a not in axes_of(column))
    if not rows or stage.vector in axes_of(row) or stage.vector not in axes_of(column):
        return None
    return Factors(row, column, rows)


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _padded(stage: Stage, kernel: Microkernel) -> Stage:
    """Returns the stage with its innermost reduce axis rounded up to a multiple of k. Its body has the old axis."""
    axis = stage.reduce_axes[-1]
    if axis.extent % kernel.k == 0:
        return stage
    longer = Axis(axis.name, -(-axis.extent // kernel.k) * kernel.k, "reduce")
    names = {longer if a is axis else a: name for a, name in stage.names.items()}
    return replace(stage, reduce_axes=(*stage.reduce_axes[:-1], longer), names=names)


def _within(element: Expr, axis: Axis, longer: Axis) -> Expr:
    """Returns an operand over the padded axis `longer`, zero beyond the end of `axis`."""
    if axis is longer:
        return element
    inside, moved = compare("lt", longer, axis.extent), substitute(element, {axis: longer})
    if isinstance(moved, Select):
        return Select(binary("and", inside, moved.condition), moved.a, moved.b)
    return Select(inside, moved, Const(0, moved.dtype))


def _rounded(x: Expr, kernel: Microkernel) -> Expr:
    """Returns a number in the instruction's format: converted, or for tf32 an f32 with a mantissa of 10 bits."""
    if kernel.operand != "f32":
        return build.cast(x, kernel.operand)
    bits = binary("add", call("bits_as_i32", x), HALF_OF_LAST_BIT)
    return select(compare("eq", x, x), call("bits_as_f32", binary("bitand", bits, -2 * HALF_OF_LAST_BIT)), x)


def _rounded_ahead(
    s: Structure, id: str, stage: Stage, element: Expr, kernel: Microkernel, number: int, level: ComputeAt
) -> tuple[Structure, Expr]:
    """Returns the structure with a stage that rounds an operand's whole tensor, and the operand read from there."""
    load = loads(element)[0]
    source = load.tensor
    axes = tuple(Axis(f"i{d}", n, "spatial") for d, n in enumerate(source.shape))
    body = _rounded(Load(source, axes), kernel)
    name = f"{source.name}.{kernel.operand}"
    rounded = Tensor(name, source.shape, kernel.operand, source.constant, Compute(axes, body))
    is_load = level is ComputeAt.LOAD
    if is_load and not source.constant:
        raise ScheduleError(f"{source.name} is no constant and has no value at load time; round it in another place")
    long = [a for a in axes if a.extent > 1] or list(axes)
    names = {a: f"a{d}" for d, a in enumerate(axes)}
    tiling = (CPU_STRUCTURES if is_load else GPU_STRUCTURES).elementwise
    vector = long[-1] if long else None
    ahead = elementwise(f"{id}.{number}r", rounded, names, level=level, vector=vector, tiling=tiling)

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor is source:
            return Load(rounded, e.indices)
        return Const(e.value, kernel.operand) if isinstance(e, Const) and e.dtype == source.dtype else None

    stages = [x for r in s.stages for x in ((ahead, r) if r is stage else (r,))]
    return s.with_stages(stages), rewrite(element, visit)


def _staged(stage: Stage, element: Expr, kernel: Microkernel, number: int, along: Axis) -> tuple[Stage, Expr]:
    """Returns the stage that copies an operand to shared memory in the instruction's type, and the load from there.

    `along` is the axis of the operand's rows or columns. The copy's last axis is the contiguous axis of the source:
    `along`, or the innermost reduce axis.
    """
    load = loads(element)[0]
    inner = stage.reduce_axes[-1]
    is_across = not walks(load.tensor, load.indices, inner) and walks(load.tensor, load.indices, along)
    stored = build.cast(element, kernel.operand)
    probe, last = replace(stage, body=stored), along if is_across else inner
    copy, reader = copied_operand(probe, stored, str(number), ComputeAt.REDUCE_BLOCK, last=last)
    padding = WORD_PADDING_BYTES if is_across and kernel.operand == "f32" else HALF_PADDING_BYTES
    return replace(copy, row_padding=padding), reader.body
