"""The nineteen operators of the benchmark suite, by the names that `stormdrop op` takes.

Inputs are X (and Q, K, A, B), weights are W and constant. Every shape, stride, dilation and pad of one operator has
the same class key.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stormdrop.errors import UserError
from stormdrop.ir.expr import Dtype
from stormdrop.ir.tensor import Task, Tensor, tensor
from stormdrop.ops.attention import attention_weights
from stormdrop.ops.conv import capsule_conv2d, conv, depthwise_conv2d, grouped_conv2d, transposed_conv2d
from stormdrop.ops.elementwise import add_relu, relu, scale_shift
from stormdrop.ops.matmul import batch_matmul, matvec
from stormdrop.ops.movement import transpose
from stormdrop.ops.pool import max_pool2d
from stormdrop.ops.reduce import dot, matrix_norm, softmax

CAPSULE = 4


@dataclass(frozen=True, slots=True)
class Operator:
    """`result` builds the output from an element type and one integer per argument."""

    name: str
    arguments: tuple[str, ...]
    note: str
    result: Callable[..., Tensor]


def _gmm(t: Dtype, batch: int, n: int, m: int, k: int) -> Tensor:
    return batch_matmul(tensor("X", (batch, n, k), t), tensor("W", (batch, k, m), t, constant=True))


def _den(t: Dtype, batch: int, n: int, m: int, k: int) -> Tensor:
    return batch_matmul(tensor("A", (batch, n, k), t), tensor("B", (batch, k, m), t))


def _c1d(t: Dtype, n: int, length: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    return conv(tensor("X", (n, length, ci), t), tensor("W", (kernel, ci, co), t, constant=True), stride, pad)


def _c2d(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    return _dil(t, n, h, w, ci, co, kernel, stride, pad, 1)


def _dil(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int, by: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, ci, co), t, constant=True)
    return conv(tensor("X", (n, h, w, ci), t), weights, stride, pad, by)


def _c3d(t: Dtype, n: int, d: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, kernel, ci, co), t, constant=True)
    return conv(tensor("X", (n, d, h, w, ci), t), weights, stride, pad)


def _grp(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int, groups: int) -> Tensor:
    if ci % groups or co % groups:
        raise UserError(f"GRP: {groups} groups must divide both the {ci} input and the {co} output channels")
    weights = tensor("W", (kernel, kernel, ci // groups, groups, co // groups), t, constant=True)
    return grouped_conv2d(tensor("X", (n, h, w, groups, ci // groups), t), weights, stride, pad)


def _dep(t: Dtype, n: int, h: int, w: int, c: int, kernel: int, stride: int, pad: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, c), t, constant=True)
    return depthwise_conv2d(tensor("X", (n, h, w, c), t), weights, stride, pad)


def _t2d(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, ci, co), t, constant=True)
    return transposed_conv2d(tensor("X", (n, h, w, ci), t), weights, stride, pad)


def _cap(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, CAPSULE, CAPSULE, ci, co), t, constant=True)
    return capsule_conv2d(tensor("X", (n, h, w, CAPSULE, CAPSULE, ci), t), weights, stride, pad)


def _cbr(t: Dtype, n: int, h: int, w: int, ci: int, co: int, kernel: int, stride: int, pad: int) -> Tensor:
    weights = tensor("W", (kernel, kernel, ci, co), t, constant=True)
    y = conv(tensor("X", (n, h, w, ci), t), weights, stride, pad, name="C")
    scale, shift = (tensor(name, (co,), t, constant=True) for name in ("scale", "shift"))
    return relu(scale_shift(y, scale, shift, "B"))


def _nrm(t: Dtype, batch: int, m: int, n: int) -> Tensor:
    return matrix_norm(tensor("X", (batch, m, n), t))


def _sfm(t: Dtype, m: int, n: int) -> Tensor:
    return softmax(tensor("X", (m, n), t))


def _tbg(t: Dtype, batch: int, seq: int, heads: int, dim: int) -> Tensor:
    shape = (batch, seq, heads, dim)
    return attention_weights(tensor("Q", shape, t), tensor("K", shape, t))


def _mxp(t: Dtype, n: int, h: int, w: int, c: int, kernel: int, stride: int, pad: int) -> Tensor:
    return max_pool2d(tensor("X", (n, h, w, c), t), kernel, stride, pad)


def _adr(t: Dtype, n: int, h: int, w: int, c: int) -> Tensor:
    return add_relu(tensor("A", (n, h, w, c), t), tensor("B", (n, h, w, c), t))


def _gmv(t: Dtype, n: int, k: int) -> Tensor:
    return matvec(tensor("W", (n, k), t, constant=True), tensor("X", (k,), t))


def _dot(t: Dtype, n: int) -> Tensor:
    return dot(tensor("A", (n,), t), tensor("B", (n,), t))


def _trn(t: Dtype, m: int, n: int) -> Tensor:
    return transpose(tensor("X", (m, n), t), (1, 0), "Y")


_GEMM = ("batch", "n", "m", "k")
_WINDOW = ("kernel", "stride", "pad")
_CONV2D = ("batch", "h", "w", "in", "out", *_WINDOW)
_POOL = ("batch", "h", "w", "channels", *_WINDOW)

OPERATORS: dict[str, Operator] = {
    o.name: o
    for o in (
        Operator("GMM", _GEMM, "matmul with constant weights", _gmm),
        Operator("C1D", ("batch", "length", "in", "out", *_WINDOW), "convolution of a sequence", _c1d),
        Operator("C2D", _CONV2D, "convolution of an image", _c2d),
        Operator("C3D", ("batch", "d", "h", "w", "in", "out", *_WINDOW), "convolution of a volume", _c3d),
        Operator("GRP", (*_CONV2D, "groups"), "grouped convolution", _grp),
        Operator("DIL", (*_CONV2D, "dilation"), "dilated convolution", _dil),
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
        Operator("DEN", _GEMM, "matmul whose two operands are both run-time inputs", _den),
    )
}


def build(name: str, args: Sequence[int], dtype: Dtype = "f32") -> Task:
    """The task of one operator: `build("C2D", [1, 56, 56, 64, 64, 3, 1, 1])`.

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
    label = " ".join([operator.name, *map(str, values)])
    try:
        return Task([operator.result(dtype, *values)], name=label)
    except UserError as error:
        raise UserError(f"{label}: {error} ({usage})") from error
