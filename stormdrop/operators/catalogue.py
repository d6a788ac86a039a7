"""The nineteen operators of the benchmark suite, by their names in `stormdrop op`.

Every operator has a short name, which stands in labels, stores and JSON, and a readable alias: GMM is `matmul`. Both
are accepted in any case.

The operators are the graph layer's own descriptions, channels-last: an operator has the same task as a model with this
node alone. Inputs are X (and Q, K, A, B); weights are W and constant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stormdrop.base.errors import UserError
from stormdrop.ir import build as build_expr
from stormdrop.ir.expr import Dtype
from stormdrop.ir.tensor import Task, Tensor, tensor
from stormdrop.operators.broadcast import elementwise, transpose
from stormdrop.operators.contract import einsum, matmul_nd
from stormdrop.operators.normalize import reduce_dims, softmax
from stormdrop.operators.window import Window, capsule_conv, conv_nd, conv_transpose_nd, pool

CAPSULE = 4


@dataclass(frozen=True, slots=True)
class BenchmarkOperator:
    """One operator; `result` builds its output from an element type and one integer per argument.

    If `has_optional_batch`, the first argument may be left out; it is then 1.
    """

    name: str
    alias: str
    arguments: tuple[str, ...]
    note: str
    result: Callable[..., Tensor]
    has_optional_batch: bool = False

    @property
    def usage(self) -> str:
        """The arguments as the command line takes them; an optional argument stands in brackets."""
        first, *others = self.arguments
        return " ".join((f"[{first}]" if self.has_optional_batch else first, *others))

    def values(self, args: Sequence[int], shown: str) -> tuple[int, ...]:
        """Returns one integer per argument. `shown` names the operator in errors.

        Raises UserError for a wrong number of arguments, and for values out of range.
        """
        usage, count = f"{shown} {self.usage}", len(self.arguments)
        if self.has_optional_batch and len(args) == count - 1:
            args = (1, *args)
        if len(args) != count:
            counts = f"{count - 1} or {count}" if self.has_optional_batch else str(count)
            raise UserError(f"{shown} takes {counts} numbers, not {len(args)}: {usage}")
        for argument, value in zip(self.arguments, args):
            least = 0 if argument == "pad" else 1
            if isinstance(value, bool) or int(value) != value or value < least:
                raise UserError(f"{shown}: {argument} must be at least {least}, not {value!r}: {usage}")
        return tuple(int(value) for value in args)


def _product(operands: str, t: Dtype, batch: int, n: int, m: int, k: int) -> Tensor:
    """Returns the product of two matrices; W is constant."""
    left, right = operands
    return matmul_nd(tensor(left, (batch, n, k), t), tensor(right, (batch, k, m), t, constant=right == "W"))


def _conv(rank: int, t: Dtype, batch: int, *numbers: int) -> Tensor:
    """Returns the image's sizes, channels in and out, and the window: kernel, stride, pad, perhaps dilation."""
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
_CONV1D = ("batch", "length", "in", "out", *_WINDOW)
_CONV2D = ("batch", "h", "w", "in", "out", *_WINDOW)
_CONV3D = ("batch", "d", "h", "w", "in", "out", *_WINDOW)
_HEADS = ("batch", "seq", "heads", "dim")
_POOL = ("batch", "h", "w", "channels", *_WINDOW)

OPERATORS: dict[str, BenchmarkOperator] = {
    o.name: o
    for o in (
        BenchmarkOperator("GMM", "matmul", _GEMM, "matmul with constant weights", partial(_product, "XW"), True),
        BenchmarkOperator("C1D", "conv1d", _CONV1D, "convolution of a sequence", partial(_conv, 1)),
        BenchmarkOperator("C2D", "conv2d", _CONV2D, "convolution of an image", partial(_conv, 2)),
        BenchmarkOperator("C3D", "conv3d", _CONV3D, "convolution of a volume", partial(_conv, 3)),
        BenchmarkOperator("GRP", "grouped_conv2d", (*_CONV2D, "groups"), "grouped convolution", _grp),
        BenchmarkOperator("DIL", "dilated_conv2d", (*_CONV2D, "dilation"), "dilated convolution", partial(_conv, 2)),
        BenchmarkOperator("DEP", "depthwise_conv2d", _POOL, "depthwise convolution", _dep),
        BenchmarkOperator("T2D", "conv_transpose2d", _CONV2D, "transposed convolution", _t2d),
        BenchmarkOperator("CAP", "capsule_conv2d", _CONV2D, "convolution whose pixels are 4x4 matrices", _cap),
        BenchmarkOperator("NRM", "matrix_norm", ("batch", "m", "n"), "matrix 2-norm", _nrm),
        BenchmarkOperator("SFM", "softmax", ("m", "n"), "row softmax", _sfm),
        BenchmarkOperator("CBR", "conv2d_bn_relu", _CONV2D, "conv2d, folded batch norm and relu", _cbr),
        BenchmarkOperator("TBG", "attention_scores", _HEADS, "transposes, batched matmul and softmax", _tbg),
        BenchmarkOperator("MXP", "max_pool2d", _POOL, "max pooling", _mxp),
        BenchmarkOperator("ADR", "add_relu", ("batch", "h", "w", "channels"), "add two tensors, then relu", _adr),
        BenchmarkOperator("GMV", "matvec", ("n", "k"), "matrix (n x k, constant) times vector", _gmv),
        BenchmarkOperator("DOT", "dot", ("n",), "inner product of two vectors", _dot),
        BenchmarkOperator("TRN", "transpose", ("m", "n"), "transpose of a matrix", _trn),
        BenchmarkOperator("DEN", "bmm", _GEMM, "batched matmul of two run-time inputs", partial(_product, "AB")),
    )
}


def resolve(name: str, args: Sequence[int]) -> tuple[BenchmarkOperator, tuple[int, ...]]:
    """Returns the operator with a short name or an alias, and one integer for each of its arguments.

    Raises UserError for an unknown name, a wrong number of arguments, and values out of range.
    """
    shown_by_key = {shown.lower(): shown for o in OPERATORS.values() for shown in (o.name, o.alias)}
    key = name.lower().replace("-", "_")
    if key not in shown_by_key:
        near = [shown_by_key[close] for close in difflib.get_close_matches(key, shown_by_key, n=3, cutoff=0.6)]
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        known = ", ".join(f"{o.alias} ({o.name})" for o in OPERATORS.values())
        raise UserError(f"unknown operator {name!r}{hint} Known: {known}")
    shown = shown_by_key[key]
    operator = next(o for o in OPERATORS.values() if shown in (o.name, o.alias))
    return operator, operator.values(args, shown)


def build(name: str, args: Sequence[int], dtype: Dtype = "f32") -> Task:
    """Returns the task of one operator: `build("C2D", [1, 56, 56, 64, 64, 3, 1, 1])`.

    The task's label has the short name. With element type bf16 the matrix products read bf16 and return f32; operators
    that would compute in bf16 are refused. Raises UserError for an unknown name, a wrong number of arguments, and
    invalid values.
    """
    operator, values = resolve(name, args)
    label = " ".join([operator.name, *map(str, values), *([dtype] if dtype != "f32" else [])])
    try:
        return Task([operator.result(dtype, *values)], name=label)
    except UserError as error:
        raise UserError(f"{label}: {error} ({operator.name} {operator.usage})") from error
