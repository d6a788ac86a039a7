"""The shape and element type of every operator's result, from its inputs and attributes alone.

`infer` must agree with the results of `express`; tests compare both on every node they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from stormdrop.base.errors import UserError
from stormdrop.graph.elementwise import ELEMENTWISE, NUMBERS, TRUTHS, dtype_of
from stormdrop.graph.formula import FORMULA, POINTWISE_FORMULA
from stormdrop.graph.graph import Attribute, Node, Value, shown
from stormdrop.ir.dtypes import ACCUMULATOR, Dtype
from stormdrop.operators.broadcast import broadcast_shape, put
from stormdrop.operators.contract import einsum_extents, matmul_extents
from stormdrop.operators.window import Window

Shape = tuple[int, ...]
Rule = Callable[[Node], Shape]


def infer(op: str, inputs: Sequence[Value], attributes: Mapping[str, Attribute]) -> tuple[Shape, Dtype]:
    """Returns the shape and type of one operation. Raises UserError for unfit inputs or an unknown operator."""
    node = Node(op, tuple(inputs), (), attributes)
    if op in ELEMENTWISE:
        if op != POINTWISE_FORMULA:
            _same_types(node)
        return broadcast_shape(*(v.shape for v in inputs)), _elementwise_type(node)
    if op not in RULES:
        raise UserError(f"{op}: no such operator")
    if op == FORMULA:
        return node.integers("shape"), dtype_of(node.text("dtype"))
    dtype: Dtype = "i64" if op in POSITIONS else inputs[0].dtype
    return RULES[op](node), ACCUMULATOR.get(dtype, dtype) if op in NARROW_PRODUCTS else dtype


SCATTERED = frozenset({"none", "add", "mul", "max", "min"})
"""The modes in which a Scatter combines an update with the previous element."""
REDUCTIONS = frozenset({"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"})
POOLS = frozenset({"MaxPool", "SumPool"})
NARROW_PRODUCTS = frozenset({"Conv", "MatMul", "Einsum"})
"""Products that take narrow types, and sum them in a wider one (`ACCUMULATOR`)."""
NORMS = frozenset({"Softmax", "LogSoftmax", "Standardize", "RmsNormalize"})
POSITIONS = frozenset({"ArgMax", "ArgMin", "TopKIndices", "MaxPoolIndices"})


def _elementwise_type(node: Node) -> Dtype:
    if node.op in TRUTHS:
        return "bool"
    if node.op == POINTWISE_FORMULA:
        return dtype_of(node.text("dtype"))
    if node.op in ("Cast", "BitCast", "Quantize", "Requantize"):
        return dtype_of(node.text("to"))
    if node.op == "Dequantize":
        return "f32"
    return node.inputs[1 if node.op == "Where" else 0].dtype


def _same_types(node: Node) -> None:
    alike = node.inputs[1:] if node.op == "Where" else node.inputs
    if len({v.dtype for v in alike}) > 1 and node.op != "Pow" and node.op not in NUMBERS:
        raise UserError(f"{node.op} needs operands of one type, not {', '.join(v.dtype for v in alike)}")
    if node.op == "Where" and node.inputs[0].dtype != "bool":
        raise UserError(f"Where needs a bool condition, not {node.inputs[0].dtype}")


def window_of(node: Node) -> Window:
    return Window(*(node.integers(key) for key in ("kernel", "strides", "dilations", "before", "after")))


def _reshape(n: Node) -> Shape:
    shape = n.integers("shape")
    if prod(shape) != n.inputs[0].size:
        raise UserError(f"{n.inputs[0]} cannot be reshaped to {list(shape)}")
    return shape


def _transpose(n: Node) -> Shape:
    order = n.integers("perm")
    if sorted(order) != list(range(n.inputs[0].rank)):
        raise UserError(f"{order} is no permutation of the dimensions of {n.inputs[0]}")
    return tuple(n.inputs[0].shape[d] for d in order)


def _expand(n: Node) -> Shape:
    shape = n.integers("shape")
    if broadcast_shape(n.inputs[0].shape, shape) != shape:
        raise UserError(f"{n.inputs[0]} cannot be expanded to {list(shape)}")
    return shape


def _concat(n: Node) -> Shape:
    along, first = n.integer("axis"), n.inputs[0]
    for v in n.inputs:
        alike = v.rank == first.rank and all(a == b for d, (a, b) in enumerate(zip(v.shape, first.shape)) if d != along)
        if not alike or v.dtype != first.dtype or not 0 <= along < first.rank:
            raise UserError(f"{first} and {v} cannot be joined along dimension {along}")
    return put(first.shape, along, sum(v.shape[along] for v in n.inputs))


def _slice(n: Node) -> Shape:
    starts, steps, shape = n.integers("starts"), n.integers("steps"), n.integers("shape")
    for start, step, count, extent in zip(starts, steps, shape, n.inputs[0].shape):
        last = start + (count - 1) * step
        if count and not (0 <= start < extent and 0 <= last < extent):
            raise UserError(f"a slice from {start} to {last} leaves {n.inputs[0]}")
    return shape


def _pad(n: Node) -> Shape:
    before, after = n.integers("before"), n.integers("after")
    mode = n.text("mode")
    for b, a, e in zip(before, after, n.inputs[0].shape):
        if b < 0 or a < 0 or (mode != "constant" and e == 0 and b + a):
            raise UserError(f"pads {before} and {after} do not fit {n.inputs[0]}")
    return tuple(b + e + a for b, e, a in zip(before, n.inputs[0].shape, after))


def _reduced(n: Node) -> Shape:
    dims, keep = _dims(n), n.flag("keepdims", 1)
    return tuple(1 if d in dims else e for d, e in enumerate(n.inputs[0].shape) if keep or d not in dims)


def _dims(n: Node) -> tuple[int, ...]:
    """Returns the dimensions in the attribute `axes` or `axis`, which the first input must have."""
    dims = n.integers("axes") if "axes" in n.attributes else (n.integer("axis"),)
    if any(not 0 <= d < n.inputs[0].rank for d in dims) or len(set(dims)) != len(dims):
        raise UserError(f"{n.inputs[0]} has no dimensions {list(dims)}")
    return dims


def _gather(n: Node) -> Shape:
    x, indices = n.inputs
    (along,) = _dims(n)
    return (*x.shape[:along], *indices.shape, *x.shape[along + 1 :])


def _gather_nd(n: Node) -> Shape:
    x, indices = n.inputs
    batch = n.integer("batch_dims")
    fits = 0 <= batch < min(x.rank, indices.rank)
    if not fits or batch + indices.shape[-1] > x.rank or indices.shape[:batch] != x.shape[:batch]:
        raise UserError(f"indices {indices} do not fit {x}")
    return (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])


def _gather_elements(n: Node) -> Shape:
    x, indices = n.inputs
    (along,) = _dims(n)
    if indices.rank != x.rank or any(i > e for d, (i, e) in enumerate(zip(indices.shape, x.shape)) if d != along):
        raise UserError(f"indices {indices} do not fit {x} along dimension {along}")
    return indices.shape


def _scatter_elements(n: Node) -> Shape:
    x, indices, updates = n.inputs
    _gather_elements(Node(n.op, (x, indices), (), n.attributes))
    _reduction(n)
    if updates.shape != indices.shape:
        raise UserError(f"updates {updates} and indices {indices} have different shapes")
    return x.shape


def _scatter_nd(n: Node) -> Shape:
    x, indices, updates = n.inputs
    _reduction(n)
    fits = indices.rank == 2 and indices.shape[1] <= x.rank
    if not fits or updates.shape != (indices.shape[0], *x.shape[indices.shape[1] :]):
        raise UserError(f"updates {updates} and indices {indices} do not fit {x}")
    return x.shape


def _write_at(n: Node) -> Shape:
    x, updates, starts = n.inputs
    (along,) = _dims(n)
    alike = updates.rank == x.rank and put(updates.shape, along, x.shape[along]) == x.shape
    if not alike or updates.shape[along] > x.shape[along] or along == 0 or starts.shape != x.shape[:1]:
        raise UserError(f"updates {updates} at {starts} do not fit {x} along dimension {along}")
    return x.shape


def _regions(n: Node) -> Shape:
    return (n.inputs[1].shape[0], n.inputs[0].shape[1], *n.integers("extents"))


def _deformed_windows(n: Node) -> Shape:
    x, w = n.inputs[0], window_of(n)
    return (*x.shape[:2], *w.kernel, *w.extents(x.shape[2:]))


def _reduction(n: Node) -> None:
    if n.text("reduction") not in SCATTERED:
        raise UserError(f"unknown reduction {shown(n.text('reduction'))}")


def _trilu(n: Node) -> Shape:
    if n.inputs[0].rank < 2:
        raise UserError(f"{n.inputs[0]} is no matrix")
    return n.inputs[0].shape


def _same_dims(n: Node) -> Shape:
    _dims(n)
    return n.inputs[0].shape


def _resized(n: Node, extent: int) -> Shape:
    (along,) = _dims(n)
    return put(n.inputs[0].shape, along, extent)


def _matmul(n: Node) -> Shape:
    a, b = n.inputs
    if a.dtype != b.dtype:
        raise UserError(f"{a} and {b} are no matrices to multiply")
    lead, rows, _, columns = matmul_extents(a.shape, b.shape, n.flag("transpose_a", 0), n.flag("transpose_b", 0))
    return (*lead, rows, columns)


def _einsum(n: Node) -> Shape:
    labels, _, result = n.text("equation").partition("->")
    extents = einsum_extents(labels.split(","), result, [v.shape for v in n.inputs])
    return tuple(extents[label] for label in result)


def _windows(n: Node) -> Shape:
    x, first = n.inputs[0], n.text("layout") == "NCHW"
    extents = window_of(n).extents(x.shape[2:] if first else x.shape[1:-1])
    count = x.shape[1 if first else -1]
    if n.op == "Conv":
        count = n.inputs[1].shape[0 if first else -1]
    return (x.shape[0], count, *extents) if first else (x.shape[0], *extents, count)


def _conv_transpose(n: Node) -> Shape:
    x, w = n.inputs
    if n.text("layout") == "NCHW":
        return (x.shape[0], w.shape[1] * n.integer("groups"), *n.integers("extents"))
    return (x.shape[0], *n.integers("extents"), w.shape[-1])


def _fold(n: Node) -> Shape:
    x, w, extents = n.inputs[0], window_of(n), n.integers("extents")
    counts = w.extents(extents)
    if x.shape[2:] != (*w.kernel, *counts):
        raise UserError(f"{x} does not hold windows of {list(w.kernel)} in an image of {list(extents)}")
    return (*x.shape[:2], *extents)


RULES: dict[str, Rule] = {
    FORMULA: lambda n: n.integers("shape"),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "Concat": _concat,
    "Slice": _slice,
    "Pad": _pad,
    "Repeat": lambda n: _resized(n, n.inputs[0].shape[n.integer("axis")] * n.integer("times")),
    "Interpolate": lambda n: _resized(n, n.inputs[1].shape[0]),
    "Trilu": _trilu,
    "Tile": lambda n: tuple(e * k for e, k in zip(n.inputs[0].shape, n.integers("times"))),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "WriteAt": _write_at,
    **dict.fromkeys(("RoiAlign", "MaxRoiPool"), _regions),
    "DeformedWindows": _deformed_windows,
    "ReverseSequence": lambda n: n.inputs[0].shape,
    "GridSample": lambda n: (*n.inputs[0].shape[:2], *n.inputs[1].shape[1:-1]),
    "TopKIndices": lambda n: _resized(n, n.integer("k")),
    **dict.fromkeys((*NORMS, "CumSum", "CumProd"), _same_dims),
    **dict.fromkeys((*REDUCTIONS, "ArgMax", "ArgMin"), _reduced),
    "MatMul": _matmul,
    "Einsum": _einsum,
    **dict.fromkeys((*POOLS, "Conv", "MaxPoolIndices"), _windows),
    "ConvTranspose": _conv_transpose,
    "Fold": _fold,
}
