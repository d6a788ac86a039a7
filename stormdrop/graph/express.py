"""Every operator as a tensor expression: a table from names to functions of a node and its inputs' tensors.

    express(node, [x, w]) -> Tensor          # computed from x and w; several together are a fused task

The functions are pure: no arrays, no layout changes. Constants are tensors with constant=True, as the caller made them.
`task_of(node)` is the task of one node alone; its inputs are named x0, x1, … so that equal nodes have equal tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stormdrop.base.errors import UserError
from stormdrop.graph.elementwise import ELEMENTWISE
from stormdrop.graph.formula import FORMULA, applied
from stormdrop.graph.graph import Node, Value
from stormdrop.graph.shapes import window_of
from stormdrop.ir.expr import Combiner
from stormdrop.ir.tensor import Task, Tensor, tensor
from stormdrop.operators import broadcast, contract, indexing, normalize, regions, sampling, window

Express = Callable[[Node, Sequence[Tensor]], Tensor]

VIEWS = frozenset({"Reshape"})
"""Operators that only rename elements of a row-major tensor: no work if the input is materialised."""


def express(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the node's result, computed from its inputs. Raises UserError for an unknown operator."""
    if node.op in ELEMENTWISE:
        function = ELEMENTWISE[node.op]
        return broadcast.elementwise(lambda operands: function(node, *operands), inputs)
    if node.op not in EXPRESS:
        raise UserError(f"{node}: no such operator")
    return EXPRESS[node.op](node, inputs)


def task_of(node: Node, constants: Collection[Value] = ()) -> Task:
    """Returns one node as a task; equal inputs are one tensor."""
    tensors: dict[Value, Tensor] = {}
    for v in node.inputs:
        if v not in tensors:
            tensors[v] = tensor(f"x{len(tensors)}", v.shape, v.dtype, v in constants)
    return Task([express(node, [tensors[v] for v in node.inputs])], name=node.op)


def _pad(n: Node, x: Sequence[Tensor]) -> Tensor:
    before, after, mode = n.integers("before"), n.integers("after"), n.text("mode")
    if mode != "constant":
        return broadcast.pad_reflected(x[0], before, after, mode)
    return broadcast.pad_constant(x[0], before, after, x[1][()] if len(x) > 1 else n.constant("value", x[0].dtype))


def _reduce(combiner: Combiner) -> Express:
    return lambda n, x: normalize.reduce_dims(x[0], n.integers("axes"), combiner, n.flag("keepdims", 1))


def _arg(largest: bool) -> Express:
    return lambda n, x: indexing.arg_extremum(x[0], n.integer("axis"), largest, n.flag("last", 0))


def _cumulative(combiner: Combiner) -> Express:
    return lambda n, x: indexing.cumulative(
        x[0], n.integer("axis"), combiner, n.flag("exclusive", 0), n.flag("reverse", 0)
    )


def _einsum(n: Node, x: Sequence[Tensor]) -> Tensor:
    labels, _, result = n.text("equation").partition("->")
    return contract.einsum(labels.split(","), result, x)


def _matmul(n: Node, x: Sequence[Tensor]) -> Tensor:
    return contract.matmul_nd(x[0], x[1], n.flag("transpose_a", 0), n.flag("transpose_b", 0))


def _conv(n: Node, x: Sequence[Tensor]) -> Tensor:
    return window.conv_nd(x[0], x[1], window_of(n), n.integer("groups"), n.text("layout"))


def _conv_transpose(n: Node, x: Sequence[Tensor]) -> Tensor:
    extents, groups = n.integers("extents"), n.integer("groups")
    return window.conv_transpose_nd(x[0], x[1], window_of(n), extents, groups, n.text("layout"))


def _roi_align(n: Node, x: Sequence[Tensor]) -> Tensor:
    height, width = n.integers("extents")
    samples, scale = n.integer("samples"), n.number("scale")
    return regions.roi_align(x[0], x[1], x[2], (height, width), samples, scale, n.flag("half_pixel"), n.flag("largest"))


def _max_roi_pool(n: Node, x: Sequence[Tensor]) -> Tensor:
    height, width = n.integers("extents")
    return regions.max_roi_pool(x[0], x[1], (height, width), n.number("scale"))


def _deformed_windows(n: Node, x: Sequence[Tensor]) -> Tensor:
    return regions.deformed_windows(x[0], x[1], x[2] if len(x) > 2 else None, window_of(n), n.integer("groups"))


EXPRESS: dict[str, Express] = {
    FORMULA: applied,
    "Reshape": lambda n, x: broadcast.reshape(x[0], n.integers("shape")),
    "Transpose": lambda n, x: broadcast.transpose(x[0], n.integers("perm")),
    "Expand": lambda n, x: broadcast.expand(x[0], n.integers("shape")),
    "Concat": lambda n, x: broadcast.concat(x, n.integer("axis")),
    "Slice": lambda n, x: broadcast.cut(x[0], n.integers("starts"), n.integers("steps"), n.integers("shape")),
    "Pad": _pad,
    "Repeat": lambda n, x: broadcast.repeat(x[0], n.integer("axis"), n.integer("times")),
    "Tile": lambda n, x: broadcast.tile(x[0], n.integers("times")),
    "Trilu": lambda n, x: broadcast.triangle(x[0], n.flag("upper"), n.integer("k")),
    "Interpolate": lambda n, x: indexing.interpolate(x[0], x[1], x[2], n.integer("axis")),
    "Gather": lambda n, x: indexing.gather(x[0], x[1], n.integer("axis")),
    "GatherElements": lambda n, x: indexing.gather_elements(x[0], x[1], n.integer("axis")),
    "GatherND": lambda n, x: indexing.gather_nd(x[0], x[1], n.integer("batch_dims")),
    "ScatterElements": lambda n, x: indexing.scatter_elements(x[0], x[1], x[2], n.integer("axis"), n.text("reduction")),
    "ScatterND": lambda n, x: indexing.scatter_nd(x[0], x[1], x[2], n.text("reduction")),
    "WriteAt": lambda n, x: indexing.write_at(x[0], x[1], x[2], n.integer("axis"), n.flag("circular")),
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "DeformedWindows": _deformed_windows,
    "ReverseSequence": lambda n, x: indexing.reverse_sequence(
        x[0], x[1], n.integer("time_axis"), n.integer("batch_axis")
    ),
    "GridSample": lambda n, x: sampling.grid_sample(
        x[0], x[1], n.text("mode"), n.text("padding"), n.flag("align_corners")
    ),
    "CumSum": _cumulative("sum"),
    "CumProd": _cumulative("prod"),
    "TopKIndices": lambda n, x: indexing.top_k_indices(x[0], n.integer("axis"), n.integer("k"), n.flag("largest")),
    "ReduceSum": _reduce("sum"),
    "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"),
    "ReduceProd": _reduce("prod"),
    "ArgMax": _arg(True),
    "ArgMin": _arg(False),
    "Softmax": lambda n, x: normalize.softmax(x[0], n.integer("axis")),
    "LogSoftmax": lambda n, x: normalize.log_softmax(x[0], n.integer("axis")),
    "Standardize": lambda n, x: normalize.standardize(x[0], n.integers("axes"), n.number("epsilon")),
    "RmsNormalize": lambda n, x: normalize.rms_normalize(x[0], n.integers("axes"), n.number("epsilon")),
    "MatMul": _matmul,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": lambda n, x: window.pool(x[0], window_of(n), n.text("layout"), "max"),
    "SumPool": lambda n, x: window.pool(x[0], window_of(n), n.text("layout"), "sum"),
    "Fold": lambda n, x: window.fold(x[0], window_of(n), n.integers("extents")),
    "MaxPoolIndices": lambda n, x: window.max_pool_indices(x[0], window_of(n), n.flag("column_major", 0)),
}
