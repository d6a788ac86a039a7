"""The nineteen operators of the benchmark suite, by the names that `stormdrop op` takes.

They are the graph layer's own descriptions, channels-last: an operator has the task that a model with this one node
has. Inputs are X (and Q, K, A, B), weights are W and constant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stormdrop.errors import UserError
from stormdrop.ir import build as build_expr
from stormdrop.ir.expr import Dtype
from stormdrop.ir.tensor import Task, Tensor, tensor
from stormdrop.ops.broadcast import elementwise, transpose
from stormdrop.ops.contract import einsum, matmul_nd
from stormdrop.ops.normalize import reduce_dims, softmax
from stormdrop.ops.window import Window, capsule_conv, conv_nd, conv_transpose_nd, pool

CAPSULE = 4


@dataclass(frozen=True, slots=True)
class Operator:
    """`result` builds the output from an element type and one integer per argument."""

    name: str
    arguments: tuple[str, ...]
    note: str
    result: Callable[..., Tensor]


def _product(operands: str, t: Dtype, batch: int, n: int, m: int, k: int) -> Tensor:
    """Of two matrices: W is constant."""
    left, right = operands
    return matmul_nd(tensor(left, (batch, n, k), t), tensor(right, (batch, k, m), t, constant=right == "W"))


def _conv(rank: int, t: Dtype, batch: int, *numbers: int) -> Tensor:
    """The image's sizes, channels in and out, and the window: kernel, stride, pad, perhaps dilation."""
    *sizes, ci, co = numbers[: rank + 2]
    return _grouped(t, batch, sizes, ci, co, Window.uniform(rank, *numbers[rank + 2 :]), 1)


def _grouped(t: Dtype, batch: int, sizes: Sequence[int], ci: int, co: int, w: Window, groups: int) -> Tensor:
    if ci % groups or co % groups:
        raise UserError(f"{groups} groups must divide both the {ci} input and the {co} output channels")
    weights = tensor("W", (*w.kernel, ci // groups, co), t, constant=True)
    return conv_nd(tensor("X", (batch, *sizes, ci), t), weights, w, groups, "NHWC")


def _grp(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int, groups: int) -> Tensor:
    return _grouped(t, n, (h, w), ci, co, Window.uniform(2, kernel, stride, pad), groups)


def _dep(t: Dtype, n: int, h: int, w: int, c: int, *window: int) -> Tensor:
    return _grouped(t, n, (h, w), c, c, Window.uniform(2, *window), c)


def _t2d(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    extents = [(size - 1) * stride - 2 * pad + kernel for size in (h, w)]
    if min(extents) < 1:
        raise UserError(f"pad {pad} leaves nothing of an output of {[e + 2 * pad for e in extents]}")
    x, weights = tensor("X", (n, h, w, ci), t), tensor("W", (kernel, kernel, ci, co), t, constant=True)
    return conv_transpose_nd(x, weights, Window.uniform(2, kernel, stride, pad), extents, 1, "NHWC")


def _cap(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, CAPSULE, CAPSULE, ci, co), t, constant=True)
    x = tensor("X", (n, h, w, CAPSULE, CAPSULE, ci), t)
    return capsule_conv(x, weights, Window.uniform(2, kernel, stride, pad))


def _relu(x: Tensor) -> Tensor:
    return elementwise(lambda e: build_expr.relu(e[0]), [x])


def _cbr(t: Dtype, *numbers: int) -> Tensor:
    y = _conv(2, t, *numbers)
    scale, shift = (tensor(name, y.shape[-1:], t, constant=True) for name in ("scale", "shift"))
    return _relu(elementwise(lambda e: e[0] * e[1] + e[2], [y, scale, shift]))


def _nrm(t: Dtype, batch: int, m: int, n: int) -> Tensor:
    x = tensor("X", (batch, m, n), t)
    squares = elementwise(lambda e: e[0] * e[1], [x, x])
    return elementwise(lambda e: build_expr.sqrt(e[0]), [reduce_dims(squares, (1, 2), "sum", keep=False)])


def _sfm(t: Dtype, m: int, n: int) -> Tensor:
    return softmax(tensor("X", (m, n), t))


def _tbg(t: Dtype, batch: int, seq: int, heads: int, dim: int) -> Tensor:
    q, k = (tensor(name, (batch, seq, heads, dim), t) for name in "QK")
    return softmax(matmul_nd(transpose(q, (0, 2, 1, 3)), transpose(k, (0, 2, 3, 1))))


def _mxp(t: Dtype, n: int, h: int, w: int, c: int, kernel: int, stride: int, pad: int) -> Tensor:
    if pad >= kernel:
        raise UserError(f"with pad {pad} a window of {kernel} can lie wholly outside the image")
    return pool(tensor("X", (n, h, w, c), t), Window.uniform(2, kernel, stride, pad), "NHWC", "max")


def _adr(t: Dtype, n: int, h: int, w: int, c: int) -> Tensor:
    operands = [tensor(name, (n, h, w, c), t) for name in "AB"]
    return _relu(elementwise(lambda e: e[0] + e[1], operands))


def _gmv(t: Dtype, n: int, k: int) -> Tensor:
    return einsum(["nk", "k"], "n", [tensor("W", (n, k), t, constant=True), tensor("X", (k,), t)])


def _dot(t: Dtype, n: int) -> Tensor:
    return einsum(["k", "k"], "", [tensor("A", (n,), t), tensor("B", (n,), t)])


def _trn(t: Dtype, m: int, n: int) -> Tensor:
    return transpose(tensor("X", (m, n), t), (1, 0))


_GEMM = ("batch", "n", "m", "k")
_WINDOW = ("kernel", "stride", "pad")
_CONV2D = ("batch", "h", "w", "in", "out", *_WINDOW)
_POOL = ("batch", "h", "w", "channels", *_WINDOW)

OPERATORS: dict[str, Operator] = {
    o.name: o
    for o in (
        Operator("GMM", _GEMM, "matmul with constant weights", partial(_product, "XW")),
        Operator("C1D", ("batch", "length", "in", "out", *_WINDOW), "convolution of a sequence", partial(_conv, 1)),
        Operator("C2D", _CONV2D, "convolution of an image", partial(_conv, 2)),
        Operator("C3D", ("batch", "d", "h", "w", "in", "out", *_WINDOW), "convolution of a volume", partial(_conv, 3)),
        Operator("GRP", (*_CONV2D, "groups"), "grouped convolution", _grp),
        Operator("DIL", (*_CONV2D, "dilation"), "dilated convolution", partial(_conv, 2)),
        Operator("DEP", _POOL, "depthwise convolution", _dep),
        Operator("T2D", _CONV2D, "transposed convolution", _t2d),
        Operator("CAP", _CONV2D, "capsule convolution: each pixel is a 4x4 matrix", _cap),
        Operator("NRM", ("batch", "m", "n"), "matrix 2-norm", _nrm),
        Operator("SFM", ("m", "n"), "row softmax", _sfm),
        Operator("CBR", _CONV2D, "conv2d + folded batch norm + relu as one task", _cbr),
        Operator("TBG", ("batch", "seq", "heads", "dim"), "transposes + batched matmul + softmax of attention", _tbg),
        Operator("MXP", _POOL, "max pooling", _mxp),
        Operator("ADR", ("batch", "h", "w", "channels"), "add two tensors, then relu", _adr),
        Operator("GMV", ("n", "k"), "matrix (n x k, constant) times vector", _gmv),
        Operator("DOT", ("n",), "inner product of two vectors", _dot),
        Operator("TRN", ("m", "n"), "transpose of a matrix", _trn),
        Operator("DEN", _GEMM, "matmul whose two operands are both run-time inputs", partial(_product, "AB")),
    )
}


def build(name: str, args: Sequence[int], dtype: Dtype = "f32") -> Task:
    """The task of one operator: `build("C2D", [1, 56, 56, 64, 64, 3, 1, 1])`.

    With element type bf16 the matrix products read bf16 and give f32; what else would compute with it is refused.
    Raises UserError for an unknown name, a wrong number of arguments, and values that make no sense.
    """
    operator = OPERATORS.get(name) or OPERATORS.get(name.upper())
    if operator is None:
        close = difflib.get_close_matches(name.upper(), OPERATORS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(f"unknown operator {name!r}{hint} Known: {', '.join(OPERATORS)}")
    usage = f"{operator.name} {' '.join(operator.arguments)}"
    if len(args) != len(operator.arguments):
        raise UserError(f"{operator.name} takes {len(operator.arguments)} numbers, not {len(args)}: {usage}")
    for argument, value in zip(operator.arguments, args):
        least = 0 if argument == "pad" else 1
        if isinstance(value, bool) or int(value) != value or value < least:
            raise UserError(f"{operator.name}: {argument} must be at least {least}, not {value!r}: {usage}")
    values = [int(value) for value in args]
    label = " ".join([operator.name, *map(str, values), *([dtype] if dtype != "f32" else [])])
    try:
        return Task([operator.result(dtype, *values)], name=label)
    except UserError as error:
        raise UserError(f"{label}: {error} ({usage})") from error
