"""Elementwise operators: functions of scalars, the parts of a fused kernel. Operands broadcast as NumPy's do.

    EXP = plain("Exp", partial(call, "exp"), is_costly=True)
    EXP.scalar(node, a)                     # one element of the result, from one element of each operand
    EXP.express(node, [x])                  # the result as a tensor

All further parameters of a node are its attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.build import power
from stormdrop.ir.dtypes import FLOATS, Dtype, dtype_of
from stormdrop.ir.expr import Expr, binary, call, compare, select
from stormdrop.operators import scalar
from stormdrop.operators.broadcast import broadcast_shape, elementwise
from stormdrop.operators.node import Node, Operator, OperatorKind, Shape, of_first


def broadcast(node: Node) -> Shape:
    return broadcast_shape(*(v.shape for v in node.inputs))


def of_one_type(node: Node) -> Shape:
    if len({v.dtype for v in node.inputs}) > 1:
        raise UserError(f"{node.op} needs operands of one type, not {', '.join(v.dtype for v in node.inputs)}")
    return broadcast(node)


def pointwise(
    name: str,
    function: Callable[..., Expr],
    *,
    shape: Callable[[Node], Shape] = of_one_type,
    dtype: Callable[[Node], Dtype] = of_first,
    numpy: Callable[..., Any] | None = None,
    **facts: Any,
) -> Operator:
    """Returns an elementwise operator. `function` takes the node and one scalar for each operand.

    `numpy` is NumPy's function of the operands, if an equal one exists; `facts` are further fields of the record.
    """
    return Operator(
        name,
        shape,
        lambda node, inputs: elementwise(lambda operands: function(node, *operands), inputs),
        kind=OperatorKind.POINTWISE,
        dtype=dtype,
        scalar=function,
        numpy=(lambda _, arrays: numpy(*arrays)) if numpy else None,
        **facts,
    )


def unary(name: str, function: Callable[[Node, Expr], Expr], **facts: Any) -> Operator:
    return pointwise(name, function, **facts)


def plain(name: str, function: Callable[..., Expr], **facts: Any) -> Operator:
    """Returns an elementwise operator without attributes; `function` takes one scalar for each operand."""

    def scalars(_: Node, *operands: Expr) -> Expr:
        return function(*operands)

    return pointwise(name, scalars, **facts)


def truth(_: Node) -> Dtype:
    return "bool"


def chosen(node: Node) -> Dtype:
    """Returns the element type in the attribute `to`."""
    return dtype_of(node.text("to"))


def _f32(_: Node) -> Dtype:
    return "f32"


def _of_second(node: Node) -> Dtype:
    return node.inputs[1].dtype


def _where_shape(node: Node) -> Shape:
    condition, a, b = node.inputs
    if a.dtype != b.dtype:
        raise UserError(f"Where needs operands of one type, not {a.dtype}, {b.dtype}")
    if condition.dtype != "bool":
        raise UserError(f"Where needs a bool condition, not {condition.dtype}")
    return broadcast(node)


def _rounding(fn: str) -> Callable[[Node, Expr], Expr]:
    return lambda n, x: call(fn, x) if x.dtype in FLOATS else x


def _leaky(n: Node, x: Expr) -> Expr:
    return select(compare("lt", x, scalar.number(0, x)), x * n.number("alpha"), x)


def _elu(n: Node, x: Expr) -> Expr:
    """Returns gamma · (x, or alpha · (exp(x / width) - 1) below zero): Elu, Selu and Celu."""
    alpha, gamma, width = n.number("alpha"), n.number("gamma", 1.0), n.number("width", 1.0)
    inner = x if width == 1.0 else x / width
    below = call("expm1", inner) * (alpha * gamma)
    return select(compare("lt", x, scalar.number(0, x)), below, x if gamma == 1.0 else x * gamma)


def _clip(n: Node, x: Expr) -> Expr:
    for key, op in (("min", "max"), ("max", "min")):
        if key in n.attributes:
            x = binary(op, x, scalar.number(n.constant(key, x.dtype), x))
    return x


def _hard_sigmoid(n: Node, x: Expr) -> Expr:
    y = x * n.number("alpha") + n.number("beta")
    return binary("min", binary("max", y, 0.0), 1.0)


def _is_inf(n: Node, x: Expr) -> Expr:
    wanted = [value for key, value in (("positive", math.inf), ("negative", -math.inf)) if n.flag(key)]
    tests = [compare("eq", x, scalar.number(value, x)) for value in wanted]
    return reduce(Expr.__or__, tests) if tests else compare("lt", x, x)


def _shrink(n: Node, x: Expr) -> Expr:
    """Returns Shrink; the attributes are cast to the operand's type, as in ONNX's function body."""
    as_x = float if x.dtype in FLOATS else int
    limit, bias = as_x(n.number("lambd")), as_x(n.number("bias"))
    above = select(compare("gt", x, scalar.number(limit, x)), x - bias, scalar.number(0, x))
    return select(compare("lt", x, scalar.number(-limit, x)), x + bias, above)


def _thresholded(n: Node, x: Expr) -> Expr:
    return select(compare("gt", x, scalar.number(n.number("alpha"), x)), x, scalar.number(0, x))


def _swish(n: Node, x: Expr) -> Expr:
    alpha = n.number("alpha", 1.0)
    return x * build.sigmoid(x if alpha == 1.0 else x * alpha)


def _prelu(n: Node, x: Expr, slope: Expr) -> Expr:
    return select(compare("lt", x, scalar.number(0, x)), x * slope, x)


def _quantize(n: Node, x: Expr, scale: Expr, zero: Expr) -> Expr:
    """Returns round(x / scale) + zero, saturated; sums beyond f32's integers are beyond the result's type too."""
    return build.cast(call("round", x / scale) + zero, chosen(n))


def _requantize(n: Node, x: Expr, factor: Expr, zero: Expr) -> Expr:
    """Returns round(x · factor) + zero of an i32 sum x, saturated."""
    return build.cast(call("round", build.cast(x, "f32") * factor) + zero, chosen(n))


def _dequantize(n: Node, x: Expr, scale: Expr, zero: Expr) -> Expr:
    """Returns (x - zero) · scale, rounded: no multiply-add joins the product with a following sum."""
    return binary("rounded_mul", build.cast(x, "f32") - zero, scale)


def _mod(n: Node, a: Expr, b: Expr) -> Expr:
    return scalar.remainder(a, b, n.flag("fmod", 0))


def _bit_shift(n: Node, a: Expr, b: Expr) -> Expr:
    return binary("shl" if n.text("direction") == "LEFT" else "shr", a, b)


def _cast(n: Node, x: Expr) -> Expr:
    return build.cast(x, chosen(n))


ADD = plain("Add", partial(binary, "add"), neutral=0, commutes="exactly", numpy=np.add)
MUL = plain("Mul", partial(binary, "mul"), neutral=1, commutes="exactly", numpy=np.multiply)
COPY = unary("Copy", lambda n, x: x)
REQUANTIZE = pointwise("Requantize", _requantize, shape=broadcast, dtype=chosen)
WHERE = plain("Where", select, shape=_where_shape, dtype=_of_second, numpy=np.where)
_costly = partial(plain, is_costly=True)

POINTWISE = (
    ADD,
    plain("Sub", partial(binary, "sub"), neutral=0, numpy=np.subtract),
    MUL,
    _costly("Div", scalar.divide, neutral=1),
    _costly("Pow", power, neutral=1, shape=broadcast),
    unary("PowConst", lambda n, x: power(x, scalar.number(n.number("exponent"), x)), is_costly=True),
    pointwise("Mod", _mod, is_costly=True),
    plain("Max", partial(binary, "max"), commutes="but for zeros"),
    plain("Min", partial(binary, "min"), commutes="but for zeros"),
    pointwise("Clip", _clip),
    plain("Abs", partial(call, "abs"), repeated="idempotent"),
    plain("Neg", partial(call, "neg"), repeated="involution", numpy=np.negative),
    plain("Sign", scalar.sign, repeated="idempotent"),
    pointwise("Floor", _rounding("floor"), repeated="idempotent"),
    pointwise("Ceil", _rounding("ceil"), repeated="idempotent"),
    pointwise("Round", _rounding("round"), repeated="idempotent"),
    unary("Reciprocal", lambda n, x: 1.0 / x, is_costly=True),
    _costly("Exp", partial(call, "exp")),
    _costly("Log", partial(call, "log")),
    _costly("Sqrt", partial(call, "sqrt"), numpy=np.sqrt),
    _costly("Rsqrt", partial(call, "rsqrt")),
    _costly("Erf", partial(call, "erf")),
    _costly("Sin", partial(call, "sin")),
    _costly("Cos", partial(call, "cos")),
    _costly("Tan", scalar.tan),
    _costly("Asin", scalar.asin),
    _costly("Acos", scalar.acos),
    _costly("Atan", scalar.atan),
    _costly("Sinh", scalar.sinh),
    _costly("Cosh", scalar.cosh),
    _costly("Tanh", partial(call, "tanh")),
    _costly("Asinh", scalar.asinh),
    _costly("Acosh", scalar.acosh),
    _costly("Atanh", scalar.atanh),
    # Activations
    plain("Relu", build.relu, repeated="idempotent"),
    pointwise("LeakyRelu", _leaky),
    pointwise("PRelu", _prelu),
    pointwise("ThresholdedRelu", _thresholded),
    pointwise("Shrink", _shrink),
    pointwise("Elu", _elu, is_costly=True),
    _costly("Sigmoid", partial(call, "sigmoid")),
    pointwise("HardSigmoid", _hard_sigmoid),
    unary("HardSwish", lambda n, x: x * _hard_sigmoid(n, x)),
    unary("Softsign", lambda n, x: x / (call("abs", x) + 1.0), is_costly=True),
    _costly("Softplus", scalar.softplus),
    _costly("Mish", scalar.mish),
    pointwise("Swish", _swish, is_costly=True),
    unary("Gelu", lambda n, x: scalar.gelu(x, n.text("approximate", "none") == "tanh"), is_costly=True),
    # Comparisons, logic and bits
    plain("Equal", partial(compare, "eq"), dtype=truth, commutes="exactly", numpy=np.equal),
    plain("Less", partial(compare, "lt"), dtype=truth, numpy=np.less),
    plain("LessOrEqual", partial(compare, "le"), dtype=truth),
    plain("Greater", partial(compare, "gt"), dtype=truth, numpy=np.greater),
    plain("GreaterOrEqual", partial(compare, "ge"), dtype=truth),
    plain("Not", partial(call, "not"), dtype=truth, repeated="involution"),
    plain("And", partial(binary, "and"), dtype=truth, neutral=1, commutes="exactly"),
    plain("Or", partial(binary, "or"), dtype=truth, neutral=0, commutes="exactly"),
    plain("Xor", partial(binary, "xor"), dtype=truth, neutral=0, commutes="exactly"),
    plain("IsNaN", scalar.is_nan, dtype=truth),
    pointwise("IsInf", _is_inf, dtype=truth),
    WHERE,
    plain("BitwiseAnd", partial(binary, "bitand")),
    plain("BitwiseOr", partial(binary, "bitor")),
    plain("BitwiseXor", partial(binary, "bitxor")),
    pointwise("BitShift", _bit_shift),
    # Element types
    pointwise("Cast", _cast, dtype=chosen),
    unary("BitCast", lambda n, x: call(f"bits_as_{n.text('to')}", x), dtype=chosen),
    pointwise("Quantize", _quantize, shape=broadcast, dtype=chosen, is_costly=True),
    REQUANTIZE,
    pointwise("Dequantize", _dequantize, shape=broadcast, dtype=_f32),
    COPY,
)
